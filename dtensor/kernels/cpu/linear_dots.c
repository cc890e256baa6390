/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of any number of rows by the tiles of dots.h. Rows are taken in blocks; all workers pack
 * one, then they take chunks of outputs as they become free. One tile of rows after the other meets
 * a chunk: its x stays in level 1, the weights of the chunk in level 2, while those of the next one
 * are on their way from memory. Where there is one tile it meets the weights as they come. */
#include <stdatomic.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/kernels/cpu/dots.h"
#include "dtensor/kernels/cpu/linear.h"

/* Rows of a block, at least and at most; outputs of a chunk, whose rows of y fill pairs of lines
 * that caches fetch so that two workers do not write into one; a multiple of which they are. */
enum { MIN_ROWS = 96, MAX_ROWS = 512, MAX_CHUNK = 64, GRAIN = 16 };

/* Tiles from which on a chunk's weights are copied, so that rows which lie a large power of two
 * apart do not push each other out of level 2; bytes between the ends of rows then. */
enum { COPY_TILES = 16, GAP = 64 };

/* Bytes of a block's x, which stays in level 3; of a chunk's weights; of the x of a tile at a
 * depth. */
enum { BLOCK = 8 << 20, CHUNK = 256 << 10, SLOT = 24 << 10 };

/* Bytes of the x of a tile beside which a stream of weights passes through level 1; rows of x, and
 * their bytes, beside which the processor fetches that stream best by itself; how early it is
 * called else. */
enum { STREAM = 26 << 10, QUIET_ROWS = 2, QUIET = 12 << 10, LEAD = 16 << 10 };

typedef struct dots_job {
    const dti_linear *l;
    const dti_dots_ops *ops;
    int64_t row, n_rows;     /* of the block */
    int64_t n_tiles;         /* of the block, which share its rows evenly */
    int64_t depth, n_depths; /* columns at a time */
    int64_t chunk, n_chunks; /* outputs */
    bool stream;             /* one tile, which takes one or two outputs at a time */
    char *x;                 /* [n_depths, n_tiles] of slot_bytes */
    char *scratch;           /* of worker 0 */
    int64_t slot_bytes, copy_stride, copy_bytes, lanes_bytes, sums_bytes;
    _Atomic int64_t next; /* chunk to be taken */
} dots_job;

/* The first row of a tile. */
static int64_t row_of(const dots_job *j, int64_t tile)
{
    return tile * j->n_rows / j->n_tiles;
}

static char *slot(const dots_job *j, int64_t d, int64_t tile)
{
    return j->x + (d * j->n_tiles + tile) * j->slot_bytes;
}

static void pack_share(void *arg, int worker, int n_workers)
{
    const dots_job *j = arg;
    const int64_t n_in = j->l->n_in, bytes = (int64_t)dt_dtype_size(j->l->x->dtype);
    int64_t begin, end;

    dti_pool_share(j->n_tiles * j->n_depths, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t tile = i % j->n_tiles, d = i / j->n_tiles, row = row_of(j, tile);
        const char *x = j->l->x->data;
        j->ops->pack(slot(j, d, tile), x + ((j->row + row) * n_in + d * j->depth) * bytes,
                     n_in * bytes, row_of(j, tile + 1) - row,
                     dti_min(n_in - d * j->depth, j->depth));
    }
}

/* --- one chunk of outputs --------------------------------------------------------------------- */

/* By one worker. */
typedef struct dots_part {
    const dots_job *j;
    char *copy;          /* of its weights, [n_depths, outputs] of copy_stride */
    float *lanes, *sums; /* of a tile: [outputs / width] tiles; [rows, outputs of a chunk] */
    int64_t o, n;        /* outputs */
    int64_t next;        /* that one of the workers will take when this is done */
} dots_part;

static dots_part part_of(const dots_job *j, int64_t chunk, int worker, int n_workers)
{
    char *scratch = j->scratch + worker * (j->copy_bytes + j->lanes_bytes + j->sums_bytes);

    return (dots_part){
        .j = j,
        .copy = scratch,
        .lanes = (float *)(void *)(scratch + j->copy_bytes),
        .sums = (float *)(void *)(scratch + j->copy_bytes + j->lanes_bytes),
        .o = chunk * j->chunk,
        .n = dti_min(j->l->n_out - chunk * j->chunk, j->chunk),
        .next = (chunk + n_workers) * j->chunk,
    };
}

/* Outputs at a time. */
static int64_t width_of(const dots_job *j)
{
    if (!j->stream) return j->ops->outputs;
    return j->n_rows <= DTI_DOTS_SINGLE ? 1 : 2;
}

/* Rows of what is ahead that tiles before i call: of the next chunk all the same, of a stream what
 * is taken at a time, unless x leaves so much to it that the processor does better. */
static int64_t called_before(const dots_job *j, int64_t i)
{
    const bool quiet = j->n_rows <= QUIET_ROWS && j->n_rows * j->depth * j->ops->x_bytes <= QUIET;

    if (!j->stream) return j->ops->outputs * i / j->n_tiles;
    return quiet ? 0 : width_of(j) * i;
}

static const char *weights_of(const dots_part *p)
{
    const dt_local *w = p->j->l->w;

    return (const char *)w->data + p->o * p->j->l->n_in * (int64_t)dt_dtype_size(w->dtype);
}

static void copy_weights(const dots_part *p)
{
    const dots_job *j = p->j;
    const int64_t bytes = (int64_t)dt_dtype_size(j->l->w->dtype);
    const char *w = weights_of(p);

    for (int64_t o = 0; o < p->n; o++)
        for (int64_t d = 0; d < j->n_depths; d++) {
            const int64_t first = d * j->depth, n = dti_min(j->l->n_in - first, j->depth);
            memcpy(p->copy + (d * j->chunk + o) * j->copy_stride,
                   w + (o * j->l->n_in + first) * bytes, (size_t)(n * bytes));
        }
}

static void multiply_tile(const dots_part *p, int64_t tile)
{
    const dots_job *j = p->j;
    const dti_dots_ops *ops = j->ops;
    const int64_t bytes = (int64_t)dt_dtype_size(j->l->w->dtype), stride = j->l->n_in * bytes;
    const int64_t row = row_of(j, tile), n_rows = row_of(j, tile + 1) - row;
    const int64_t called = called_before(j, tile);
    const char *w = weights_of(p);
    const char *ahead = w + (j->stream ? LEAD : (p->next - p->o) * stride);
    const bool copied = j->copy_bytes > 0;

    for (int64_t d = 0; d < j->n_depths; d++) {
        const int64_t depth = dti_min(j->l->n_in - d * j->depth, j->depth);
        ops->multiply(&(dti_dots_tile){
            .n_rows = n_rows,
            .n_outputs = p->n,
            .depth = depth,
            .width = width_of(j),
            .x = slot(j, d, tile),
            .w = copied ? p->copy + d * j->chunk * j->copy_stride : w + d * j->depth * bytes,
            .w_stride = copied ? j->copy_stride : stride,
            .lanes = p->lanes,
            .begins = d == 0,
            .ends = d + 1 == j->n_depths,
            .y = p->sums,
            .y_stride = j->chunk,
            /* all depths and tiles together call each line once, in the order of memory */
            .ahead = ahead + (d * j->depth * p->n + called * depth) * bytes,
            .ahead_stride = depth * bytes,
            .n_ahead = called_before(j, tile + 1) - called,
        });
    }
    dti_linear_store(j->l, p->sums, j->chunk, j->row + row, n_rows, p->o, p->n);
}

static void multiply_share(void *arg, int worker, int n_workers)
{
    dots_job *j = arg;
    int64_t chunk;

    if (j->ops->begin != NULL) j->ops->begin();
    while ((chunk = atomic_fetch_add(&j->next, 1)) < j->n_chunks) {
        const dots_part part = part_of(j, chunk, worker, n_workers);
        if (j->copy_bytes > 0) copy_weights(&part);
        for (int64_t i = 0; i < j->n_tiles; i++) multiply_tile(&part, i);
        dti_cpu_beside(j->l->cpu, worker);
    }
    if (j->ops->end != NULL) j->ops->end();
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Large enough that taking one costs nothing, yet some for every worker. */
static int64_t chunk_of(const dots_job *j, int n_workers)
{
    const int64_t fair = dti_round_up(dti_divide_up(j->l->n_out, 4 * (int64_t)n_workers), GRAIN);
    const int64_t weights = CHUNK / (j->l->n_in * (int64_t)dt_dtype_size(j->l->w->dtype));

    return dti_min(dti_min(fair, MAX_CHUNK), dti_max(weights / GRAIN * GRAIN, GRAIN));
}

static void run_block(dots_job *j)
{
    j->n_tiles = dti_divide_up(j->n_rows, j->ops->rows);
    j->next = 0;
    dti_cpu_run(j->l->cpu, j->n_tiles > 1 ? dti_bytes(j->l->x) : 0, pack_share, j);
    dti_cpu_run_stream(j->l->cpu, dti_bytes(j->l->w) * j->n_tiles, multiply_share, j);
}

dt_status dti_linear_dots(const dti_linear *l)
{
    const dti_dots_ops *ops = l->cpu->dots[l->w->dtype];
    const int64_t block = dti_max(BLOCK / (l->n_in * ops->x_bytes), MIN_ROWS);
    const int64_t n_blocks = dti_divide_up(l->n_rows, dti_min(block, MAX_ROWS));
    const int64_t max_rows = dti_divide_up(l->n_rows, n_blocks);
    const int64_t max_tiles = dti_divide_up(max_rows, ops->rows),
                  all = dti_round_up(l->n_in, ops->columns);
    const int64_t depth = SLOT / (ops->rows * ops->x_bytes) / ops->columns * ops->columns;
    const int n_workers = dti_pool_size(l->cpu->pool);
    dots_job j = { .l = l, .ops = ops, .depth = max_tiles > 1 ? dti_min(all, depth) : all };
    int64_t x_bytes;
    void *scratch;

    j.n_depths = dti_divide_up(l->n_in, j.depth);
    j.stream = max_tiles == 1 && max_rows * j.depth * ops->x_bytes <= STREAM;
    j.slot_bytes = ops->rows * j.depth * ops->x_bytes;
    j.chunk = chunk_of(&j, n_workers);
    j.n_chunks = dti_divide_up(l->n_out, j.chunk);
    j.copy_stride = j.depth * (int64_t)dt_dtype_size(l->w->dtype) + GAP;
    j.copy_bytes = max_tiles >= COPY_TILES ? j.n_depths * j.chunk * j.copy_stride : 0;
    x_bytes = j.n_depths * max_tiles * j.slot_bytes;
    j.lanes_bytes = j.n_depths > 1 ? j.chunk * ops->rows * ops->lane_bytes : 0;
    j.sums_bytes = dti_round_up(ops->rows * j.chunk * (int64_t)sizeof(float), 64);
    DT_TRY(dti_cpu_scratch(
        l->cpu, (size_t)(x_bytes + n_workers * (j.copy_bytes + j.lanes_bytes + j.sums_bytes)),
        &scratch));
    j.x = scratch;
    j.scratch = j.x + x_bytes;
    for (int64_t b = 0; b < n_blocks; b++) {
        j.row = b * l->n_rows / n_blocks;
        j.n_rows = (b + 1) * l->n_rows / n_blocks - j.row;
        run_block(&j);
    }
    return DT_OK;
}
