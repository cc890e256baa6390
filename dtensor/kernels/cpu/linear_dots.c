/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of any number of rows by the tiles of dots.h. Rows are taken in blocks; all workers pack
 * one, then they take chunks of outputs as they become free. Within a chunk some outputs after the
 * other meet a group of tiles of rows, which stays in level 2, while the weights of the next ones
 * are on their way from memory. The first tile keeps the weights, as they are multiplied, in level
 * 1 for the others. */
#include <stdatomic.h>

#include "dtensor/kernels/cpu/dots.h"
#include "dtensor/kernels/cpu/linear.h"

/* Rows of a block; tiles up to which all inputs are one depth; the least outputs of a chunk, and a
 * multiple of which it is. */
enum { MAX_ROWS = 512, FEW_TILES = 4, MIN_CHUNK = 32, GRAIN = 16 };

/* Bytes of the x of a group, which stays in level 2; of a chunk's sums, and of its weights. */
enum { GROUP = 480 << 10, SUMS = 32 << 10, CHUNK = 256 << 10 };

/* Bytes of the x of one tile beside which a stream of weights passes through level 1; those beside
 * which the processor fetches that stream best by itself; how early it is called else. */
enum { STREAM = 26 << 10, QUIET = 12 << 10, LEAD = 16 << 10 };

typedef struct dots_job {
    const dti_linear *l;
    const dti_dots_ops *ops;
    int64_t row, n_rows;       /* of the block */
    int64_t n_tiles, n_groups; /* of the block; rows and tiles are shared evenly */
    int64_t depth, n_depths;   /* columns at a time */
    int64_t max_group;         /* tiles */
    int64_t chunk, n_chunks;   /* outputs */
    bool stream;               /* each tile meets all outputs of a chunk, one or two at a time */
    char *x;                   /* [n_depths, n_tiles] of slot_bytes */
    char *scratch;             /* of worker 0 */
    int64_t slot_bytes, keep_bytes, lanes_bytes, sums_bytes;
    _Atomic int64_t next; /* part to be taken: a group and a chunk */
} dots_job;

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return divide_up(a, b) * b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

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
                     n_in * bytes, row_of(j, tile + 1) - row, least(n_in - d * j->depth, j->depth));
    }
}

/* --- one chunk of outputs --------------------------------------------------------------------- */

/* A chunk of outputs of a group of tiles. */
typedef struct dots_part {
    const dots_job *j;
    char *keep;
    float *lanes, *sums; /* [outputs / width, n_tiles] tiles; [rows, outputs of a chunk] */
    int64_t tile, n_tiles;
    int64_t o, n; /* outputs */
} dots_part;

static dots_part part_of(const dots_job *j, int64_t at, int worker)
{
    char *scratch = j->scratch + worker * (j->keep_bytes + j->lanes_bytes + j->sums_bytes);
    const int64_t o = at % j->n_chunks * j->chunk, group = at / j->n_chunks;
    const int64_t tile = group * j->n_tiles / j->n_groups;

    return (dots_part){
        .j = j,
        .keep = scratch,
        .lanes = (float *)(void *)(scratch + j->keep_bytes),
        .sums = (float *)(void *)(scratch + j->keep_bytes + j->lanes_bytes),
        .tile = tile,
        .n_tiles = (group + 1) * j->n_tiles / j->n_groups - tile,
        .o = o,
        .n = least(j->l->n_out - o, j->chunk),
    };
}

/* Some outputs of a part at a depth: all of it where it is a stream. */
typedef struct dots_step {
    int64_t d, o, n;
} dots_step;

/* What is called while a step is multiplied: what comes LEAD later, or where that does not follow
 * in memory, what is next. */
static const char *ahead_of(const dots_part *p, const dots_step *s, const char *w)
{
    const dots_job *j = p->j;
    const int64_t bytes = (int64_t)dt_dtype_size(j->l->w->dtype), stride = j->l->n_in * bytes;

    if (j->n_depths == 1) return w + (j->stream ? LEAD : most(s->n * stride, LEAD));
    if (s->o + s->n < p->n) return w + s->n * stride;
    return w + (s->d + 1 < j->n_depths ? j->depth * bytes - s->o * stride : 0);
}

/* Outputs at a time of tile i. */
static int64_t width_of(const dots_job *j, int64_t i, int64_t n_rows)
{
    if (!j->stream) return j->ops->outputs;
    return i == 0 && n_rows <= DTI_DOTS_SINGLE ? 1 : 2;
}

/* How much of what is ahead tile i of n calls: from which row of w on, and how many rows. Nothing
 * where its x leaves so much of level 1 to the stream that the processor does better. */
static int64_t called_before(const dots_job *j, int64_t i, int64_t n, int64_t n_rows)
{
    if (!j->stream) return j->ops->outputs * i / n;
    if (n_rows * j->depth * j->ops->x_bytes <= QUIET) return 0;
    return i == 0 ? 0 : width_of(j, 0, n_rows);
}

static void run_step(const dots_part *p, const dots_step *s)
{
    const dots_job *j = p->j;
    const dti_dots_ops *ops = j->ops;
    const int64_t bytes = (int64_t)dt_dtype_size(j->l->w->dtype), stride = j->l->n_in * bytes;
    const char *w = (const char *)j->l->w->data + (p->o + s->o) * stride + s->d * j->depth * bytes;
    const char *ahead = ahead_of(p, s, w);
    const int64_t first = row_of(j, p->tile), rows = row_of(j, p->tile + p->n_tiles) - first;

    for (int64_t i = 0; i < p->n_tiles; i++) {
        const int64_t row = row_of(j, p->tile + i), n_rows = row_of(j, p->tile + i + 1) - row;
        const int64_t called = called_before(j, i, p->n_tiles, n_rows);
        const bool keeps = !j->stream && p->n_tiles > 1;
        ops->multiply(&(dti_dots_tile){
            .n_rows = n_rows,
            .n_outputs = s->n,
            .depth = least(j->l->n_in - s->d * j->depth, j->depth),
            .width = width_of(j, i, n_rows),
            .x = slot(j, s->d, p->tile + i),
            .w = keeps && i > 0 ? p->keep : w,
            .w_stride = stride,
            .kept = keeps && i > 0,
            .keep = keeps ? p->keep : NULL,
            .lanes = p->lanes + (s->o * rows + ops->outputs * (row - first)) *
                                    (ops->lane_bytes / (int64_t)sizeof(float)),
            .begins = s->d == 0,
            .ends = s->d + 1 == j->n_depths,
            .y = p->sums + (row - first) * j->chunk + s->o,
            .y_stride = j->chunk,
            .ahead = ahead + called * stride,
            .n_ahead = called_before(j, i + 1, p->n_tiles, n_rows) - called,
        });
    }
}

static void multiply_share(void *arg, int worker, int n_workers)
{
    dots_job *j = arg;
    int64_t at;

    (void)n_workers;
    if (j->ops->begin != NULL) j->ops->begin();
    while ((at = atomic_fetch_add(&j->next, 1)) < j->n_groups * j->n_chunks) {
        const dots_part part = part_of(j, at, worker);
        const int64_t row = row_of(j, part.tile), n = j->stream ? part.n : j->ops->outputs;
        for (int64_t d = 0; d < j->n_depths; d++)
            for (int64_t o = 0; o < part.n; o += n)
                run_step(&part, &(dots_step){ d, o, least(part.n - o, n) });
        dti_linear_store(j->l, part.sums, j->chunk, j->row + row,
                         row_of(j, part.tile + part.n_tiles) - row, part.o, part.n);
    }
    if (j->ops->end != NULL) j->ops->end();
}

/* --- the whole -------------------------------------------------------------------------------- */

/* While the x of a tile stays in level 1 beside it, a stream of weights comes at the speed of
 * memory with the first of a few tiles, and from level 2 with the others. */
static bool is_stream(const dots_job *j, int64_t n_rows)
{
    const int64_t rows = least(n_rows, j->ops->rows);

    return n_rows <= FEW_TILES * j->ops->rows && rows * j->depth * j->ops->x_bytes <= STREAM;
}

/* Large enough that taking one costs nothing, yet some for every worker. */
static int64_t chunk_of(const dots_job *j, int n_workers)
{
    const int64_t fair = round_up(divide_up(j->l->n_out, 4 * (int64_t)n_workers), GRAIN);
    const int64_t weights = CHUNK / (j->depth * j->ops->x_bytes);
    const int64_t sums = SUMS / (j->max_group * j->ops->rows * (int64_t)sizeof(float));

    return least(fair, most(least(weights, sums) / GRAIN * GRAIN, MIN_CHUNK));
}

static void run_block(dots_job *j)
{
    j->n_tiles = divide_up(j->n_rows, j->ops->rows);
    j->n_groups = divide_up(j->n_tiles, j->max_group);
    j->next = 0;
    dti_cpu_run(j->l->cpu, j->n_tiles > 1 ? dti_bytes(j->l->x) : 0, pack_share, j);
    dti_cpu_run_stream(j->l->cpu, dti_bytes(j->l->w) * j->n_tiles, multiply_share, j);
}

dt_status dti_linear_dots(const dti_linear *l)
{
    const dti_dots_ops *ops = l->cpu->dots[l->w->dtype];
    const int64_t n_blocks = divide_up(l->n_rows, MAX_ROWS);
    const int64_t max_rows = divide_up(l->n_rows, n_blocks);
    const int64_t max_tiles = divide_up(max_rows, ops->rows), all = round_up(l->n_in, ops->columns);
    const int64_t depth = ops->depth_bytes / ops->x_bytes;
    const int n_workers = dti_pool_size(l->cpu->pool);
    dots_job j = { .l = l, .ops = ops, .depth = max_tiles > FEW_TILES ? least(all, depth) : all };
    int64_t x_bytes;
    void *scratch;

    j.n_depths = divide_up(l->n_in, j.depth);
    j.stream = is_stream(&j, max_rows);
    j.slot_bytes = ops->rows * j.depth * ops->x_bytes;
    j.max_group = least(max_tiles, divide_up(GROUP, j.slot_bytes));
    j.chunk = chunk_of(&j, n_workers);
    j.n_chunks = divide_up(l->n_out, j.chunk);
    x_bytes = j.n_depths * max_tiles * j.slot_bytes;
    j.keep_bytes = ops->outputs * j.depth * ops->x_bytes;
    j.lanes_bytes = j.n_depths > 1 ? j.chunk * j.max_group * ops->rows * ops->lane_bytes : 0;
    j.sums_bytes = round_up(j.max_group * ops->rows * j.chunk * (int64_t)sizeof(float), 64);
    DT_TRY(dti_cpu_scratch(
        l->cpu, (size_t)(x_bytes + n_workers * (j.keep_bytes + j.lanes_bytes + j.sums_bytes)),
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
