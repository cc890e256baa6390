/* SPDX-License-Identifier: Apache-2.0
 *
 * y[m, o] = sum_i x[m, i] s[o, i / G] (q[o, i] - z[o, i / G]); x [M, I], codes [O, I bits / 8],
 * scales [O, I / G], zero points [O, I / G] or the middle of the codes, y [M, O] of the model's
 * dtype or f32. Codes are exact, sums are f32 in an order that depends on the instruction set alone
 * (packed.h). Splitting O over ranks or threads changes no bit, splitting I does.
 *
 * Rows are taken in blocks; all workers pack one, then they take chunks of outputs as they become
 * free. Within a chunk some outputs after the other meet a group of tiles of rows, which stays in
 * level 2. */
#include "dtensor/kernels/cpu/packed.h"

#include <stdatomic.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/kernels/cpu/linear.h"

/* Rows of a block; outputs of a chunk, a multiple of a tile's, where rows are many. */
enum { MAX_ROWS = 512, CHUNK = 64 };

/* Bytes of the x of a group; where codes are turned for each, which is more of a burden than x
 * beyond level 2; of the codes of a chunk of few rows; how early a stream of codes is called. */
enum {
    GROUP_BYTES = 400 << 10,
    TURNED_GROUP_BYTES = 600 << 10,
    CHUNK_BYTES = 256 << 10,
    LEAD = 16 << 10
};

typedef struct packed_job {
    const dti_packed_ops *ops;
    const dti_row_ops *x_rows, *scale_rows;
    dti_linear l;
    const dt_local *scales, *zeros; /* zeros may be NULL */
    dti_packed_form form;
    int64_t groups, repeats;  /* for the kernel, groups of a file's one */
    int64_t row, n_rows;      /* of the block */
    int64_t n_tiles, n_parts; /* of the block: tiles share rows evenly, parts share tiles */
    int64_t depth, n_depths;  /* inputs at a time */
    int64_t max_part;         /* tiles */
    int64_t chunk, n_chunks;  /* outputs */
    char *x;                  /* [n_depths, n_tiles] of slot_bytes */
    int64_t slot_bytes;
    char *work; /* each worker's */
    int64_t work_bytes;
    _Atomic int64_t next; /* chunk of a part to be taken */
} packed_job;

#ifdef DT_HAVE_X86_KERNELS
/* Rows from which on turning codes for packed_vnni_many pays: the less there is to be done between
 * groups the later, and codes of 8 bits are more to turn. Measured; bits are the same. */
static int64_t many_rows(const dti_packed_form *f)
{
    const int64_t tiles = f->bits == 4    ? (f->group < 128 ? 2 : 3)
                          : f->group < 64 ? 2
                                          : f->group / 16;

    return tiles * dti_packed_vnni_rows.rows;
}
#endif

static const dti_packed_ops *ops_of(dti_isa isa, dt_dtype x, const dti_packed_form *f,
                                    int64_t n_rows)
{
#ifdef DT_HAVE_X86_KERNELS
    if (isa >= DTI_ISA_AVX512_BF16 && x == DT_BF16 && f->floats) return &dti_packed_avx512_bf16;
    if (isa >= DTI_ISA_AVX512_BF16 && x == DT_BF16)
        return n_rows <= dti_packed_vnni.rows ? &dti_packed_vnni
               : n_rows < many_rows(f)        ? &dti_packed_vnni_rows
                                              : &dti_packed_vnni_many;
    if (isa >= DTI_ISA_AVX512) return &dti_packed_avx512;
    if (isa == DTI_ISA_AVX2) return &dti_packed_avx2;
#endif
    (void)isa;
    (void)x;
    (void)f;
    (void)n_rows;
    return &dti_packed_portable;
}

static int64_t row_of(const packed_job *j, int64_t tile)
{
    return tile * j->n_rows / j->n_tiles;
}

static int64_t lines(int64_t bytes)
{
    return dti_round_up(bytes, 64);
}

static char *slot(const packed_job *j, int64_t d, int64_t tile)
{
    return j->x + (d * j->n_tiles + tile) * j->slot_bytes;
}

static void pack_row(const packed_job *j, int64_t tile, int64_t m, float *wide)
{
    const int64_t bytes = (int64_t)dt_dtype_size(j->l.x->dtype), first = row_of(j, tile);
    const int64_t step = (row_of(j, tile + 1) - first) * j->ops->vector;
    const char *x = (const char *)j->l.x->data + (j->row + m) * j->l.n_in * bytes;

    for (int64_t d = 0; d < j->n_depths; d++) {
        const int64_t i = d * j->depth, n = dti_min(j->l.n_in - i, j->depth);
        if (j->ops->widens) j->x_rows->load(wide, x + i * bytes, n);
        j->ops->pack(slot(j, d, tile) + (m - first) * j->ops->vector, step,
                     j->ops->widens ? (const void *)wide : x + i * bytes, &j->form, n);
    }
}

static void pack_share(void *arg, int worker, int n_workers)
{
    const packed_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_tiles, 1, worker, n_workers, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t m = row_of(j, t); m < row_of(j, t + 1); m++)
            pack_row(j, t, m, (float *)(void *)(j->work + worker * j->work_bytes));
}

/* A worker's scratch: [chunk, groups] scales and shifts with room, the numbers of a tile, [chunk /
 * outputs, rows] sums between depths, [rows, chunk] sums. */
typedef struct packed_work {
    float *scales, *shifts, *lanes, *sums;
    char *keep;
} packed_work;

/* Where it lies from `at` on; returns its bytes. */
static int64_t lay_out(const packed_job *j, char *at, packed_work *w)
{
    const int64_t rows = dti_min(j->max_part * j->ops->rows, MAX_ROWS),
                  f32 = (int64_t)sizeof(float);
    const int64_t chunk = dti_round_up(j->chunk, j->ops->outputs);
    const int64_t scales = lines((chunk * j->groups + DTI_PACKED_PAD) * f32);
    const int64_t keep = lines(j->ops->outputs * j->ops->row_bytes(&j->form, j->depth));
    const int64_t lanes = j->n_depths > 1 || j->ops->keeps ? chunk * rows * j->ops->lanes : 0;
    const int64_t sums = lines(rows * chunk * f32);

    *w = (packed_work){ (float *)(void *)at, (float *)(void *)(at + scales),
                        (float *)(void *)(at + 2 * scales + keep),
                        (float *)(void *)(at + 2 * scales + keep + lanes), at + 2 * scales };
    return 2 * scales + keep + lanes + sums;
}

/* Lines that are wanted when a stream of codes has come as far as it is called now. */
static void call(const void *p, int64_t bytes, int64_t ahead)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + ahead + i, 0, 2);
}

/* Scales of some outputs as floats, and what is to be added to codes less their middle: one for
 * each group that the kernel knows. */
static void widen(const packed_job *j, int64_t o, int64_t n, float *scales, float *shifts)
{
    const float middle = j->form.bits == 4 ? 8.0f : 128.0f;
    const int64_t groups = j->groups / j->repeats, bytes = (int64_t)dt_dtype_size(j->scales->dtype);
    const uint8_t *zeros = j->zeros != NULL ? (const uint8_t *)j->zeros->data + o * groups : NULL;
    const char *from = (const char *)j->scales->data + o * groups * bytes;
    const int64_t turns = dti_divide_up(LEAD, n * j->l.n_in * j->form.bits / 8 + 1);

    call(from, n * groups * bytes, turns * n * groups * bytes);
    if (zeros != NULL) call(zeros, n * groups, turns * n * groups);
    j->scale_rows->load(scales, from, n * groups);
    for (int64_t i = n * groups; j->repeats > 1 && i-- > 0;) {
        const float s = scales[i];
        for (int64_t r = 0; r < j->repeats; r++) scales[i * j->repeats + r] = s;
    }
    for (int64_t i = 0; zeros != NULL && i < n * j->groups; i++) {
        const int32_t word = DTI_PACKED_ZERO * zeros[i / j->repeats];
        shifts[i] = middle - (float)zeros[i / j->repeats];
        if (j->ops->whole) memcpy(shifts + i, &word, sizeof word);
    }
}

/* Where the first scale of output o of a chunk stands: those of a tile are used at once if there
 * is one depth. */
static int64_t first_scale(const packed_job *j, int64_t o)
{
    return j->n_depths > 1 ? o * j->groups : 0;
}

/* How far ahead codes are called by a tile from output o of a chunk on: a stream of them by a fixed
 * lead, others those of the next tile, which may be the first one of a chunk that the other workers
 * leave. */
static int64_t ahead_of(const packed_job *j, int64_t o, int64_t row_bytes)
{
    const int64_t others = dti_pool_size(j->l.cpu->pool) - 1, some = j->ops->outputs;

    if (j->n_depths == 1 && !j->ops->keeps) return LEAD;
    return (some + (o + some < j->chunk ? 0 : others * j->chunk)) * row_bytes;
}

/* Some outputs of a chunk, from o on, at depth d, for tiles [begin, end). */
static void run_tiles(const packed_job *j, const packed_work *w, int64_t chunk, int64_t o,
                      int64_t d, const int64_t part[2])
{
    const int64_t row_bytes = j->l.n_in * j->form.bits / 8, i = d * j->depth;
    const int64_t n = dti_min(j->l.n_out - chunk, j->chunk), first = row_of(j, part[0]);
    const int64_t rows = row_of(j, part[1]) - first, some = j->ops->outputs;
    dti_packed_tile t = { .form = j->form,
                          .n_outputs = dti_min(n - o, some),
                          .depth = dti_min(j->l.n_in - i, j->depth),
                          .codes = (const uint8_t *)j->l.w->data + (chunk + o) * row_bytes +
                                   i * j->form.bits / 8,
                          .codes_stride = row_bytes,
                          .ahead = ahead_of(j, o, row_bytes),
                          .scales = w->scales + first_scale(j, o) + i / j->form.group,
                          .shifts = w->shifts + first_scale(j, o) + i / j->form.group,
                          .scales_stride = j->groups,
                          .keep = part[1] - part[0] > 1 || j->ops->keeps ? w->keep : NULL,
                          .begins = d == 0,
                          .ends = d + 1 == j->n_depths,
                          .y_stride = j->chunk };

    for (int64_t tile = part[0]; tile < part[1]; tile++) {
        const int64_t row = row_of(j, tile) - first;
        t.n_rows = row_of(j, tile + 1) - first - row;
        t.x = slot(j, d, tile);
        t.lanes = w->lanes + (o * rows + some * row) * (j->ops->lanes / (int64_t)sizeof(float));
        t.y = w->sums + row * j->chunk + o;
        t.kept = tile > part[0];
        j->ops->multiply(&t);
    }
}

static void multiply_share(void *arg, int worker, int n_workers)
{
    packed_job *j = arg;
    packed_work w;
    int64_t at;

    (void)n_workers;
    (void)lay_out(j, j->work + worker * j->work_bytes, &w);
    while ((at = atomic_fetch_add(&j->next, 1)) < j->n_parts * j->n_chunks) {
        const int64_t chunk = at % j->n_chunks * j->chunk, p = at / j->n_chunks;
        const int64_t n = dti_min(j->l.n_out - chunk, j->chunk);
        const int64_t part[2] = { p * j->n_tiles / j->n_parts, (p + 1) * j->n_tiles / j->n_parts };
        for (int64_t d = 0; d < j->n_depths; d++)
            for (int64_t o = 0; o < n; o += j->ops->outputs) {
                const int64_t first = first_scale(j, o);
                if (d == 0)
                    widen(j, chunk + o, dti_min(n - o, j->ops->outputs), w.scales + first,
                          w.shifts + first);
                run_tiles(j, &w, chunk, o, d, part);
            }
        dti_linear_store(&j->l, w.sums, j->chunk, j->row + row_of(j, part[0]),
                         row_of(j, part[1]) - row_of(j, part[0]), chunk, n);
        dti_cpu_beside(j->l.cpu, worker);
    }
}

static void run_block(packed_job *j)
{
    j->n_tiles = dti_divide_up(j->n_rows, j->ops->rows);
    j->n_parts = dti_divide_up(j->n_tiles, j->max_part);
    j->next = 0;
    dti_cpu_run(j->l.cpu, j->n_tiles > 1 ? dti_bytes(j->l.x) : 0, pack_share, j);
    dti_cpu_run_stream(j->l.cpu, dti_bytes(j->l.w) * j->n_tiles, multiply_share, j);
}

/* How work is cut: few rows are one depth; a chunk of them is large, since codes are called ahead
 * of it. */
static void cut(packed_job *j, int64_t max_tiles, int n_workers)
{
    const int64_t outputs = j->ops->outputs, row_bytes = j->l.n_in * j->form.bits / 8;
    const int64_t fair = dti_divide_up(dti_divide_up(j->l.n_out, 4 * (int64_t)n_workers), outputs);
    const int64_t group = j->ops->keeps ? TURNED_GROUP_BYTES : GROUP_BYTES;
    const int64_t wide = max_tiles > 1 ? CHUNK : dti_min(CHUNK_BYTES / (row_bytes + 1), 4 * CHUNK);

    j->depth = max_tiles > 1 ? j->ops->depth : j->ops->keeps ? 8 * j->ops->depth : j->l.n_in;
    j->depth = dti_max(dti_min(j->l.n_in, j->depth), 1);
    j->n_depths = dti_max(dti_divide_up(j->l.n_in, j->depth), 1);
    j->slot_bytes = j->ops->rows * j->ops->row_bytes(&j->form, j->depth);
    j->max_part = dti_min(max_tiles, dti_divide_up(group, j->slot_bytes + 1));
    j->chunk = dti_min(fair, dti_max(wide / outputs, 1)) * outputs;
    j->n_chunks = dti_divide_up(j->l.n_out, j->chunk);
}

static dt_status run(const dt_kargs *a, const char *op, bool floats)
{
    const dti_packed_attr *attr = a->attr;
    packed_job j = { .l = { .cpu = a->cpu,
                            .x = &a->in[0],
                            .w = &a->in[1],
                            .y = &a->out[0],
                            .n_rows = dti_rows(&a->in[0]),
                            .n_in = a->in[0].shape[a->in[0].n_axes - 1],
                            .n_out = a->in[1].shape[0] },
                     .scales = &a->in[2],
                     .zeros = a->n_in > 3 ? &a->in[3] : NULL,
                     .form = { dti_min(attr->group, DTI_PACKED_GROUP), (int)attr->bits, floats,
                               a->n_in > 3 } };
    const int64_t n_blocks = dti_divide_up(j.l.n_rows, MAX_ROWS);
    const int n_workers = (int)dt_kernel_workers(a);
    const dti_row_ops *y_rows;
    int64_t max_tiles, packed;
    packed_work w; /* not there yet */
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, op, j.l.x, &j.x_rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, j.scales, &j.scale_rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, j.l.y, &y_rows));
    if (j.l.n_rows == 0 || j.l.n_out == 0) return DT_OK;
    j.ops = ops_of(a->cpu->isa, j.l.x->dtype, &j.form, j.l.n_rows);
    j.groups = j.l.n_in / j.form.group;
    j.repeats = attr->group / j.form.group;
    max_tiles = dti_divide_up(dti_divide_up(j.l.n_rows, n_blocks), j.ops->rows);
    cut(&j, max_tiles, n_workers);
    packed = j.n_depths * max_tiles * j.slot_bytes;
    j.work_bytes = dti_max(lay_out(&j, NULL, &w), lines(j.depth * (int64_t)sizeof(float)));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(packed + n_workers * j.work_bytes), &scratch));
    j.x = scratch;
    j.work = j.x + packed;
    for (int64_t b = 0; b < n_blocks; b++) {
        j.row = b * j.l.n_rows / n_blocks;
        j.n_rows = (b + 1) * j.l.n_rows / n_blocks - j.row;
        run_block(&j);
    }
    return DT_OK;
}

dt_status dti_linear_packed_cpu(const dt_kargs *a)
{
    return run(a, "linear_packed", false);
}

dt_status dti_linear_e4m3_cpu(const dt_kargs *a)
{
    return run(a, "linear_e4m3", true);
}
