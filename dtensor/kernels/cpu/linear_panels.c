/* SPDX-License-Identifier: Apache-2.0
 *
 * Products on panels (panels.h). Rows are taken in blocks that fit beside the
 * weights into level 2. For each block x is packed by all workers; then they take chunks of outputs
 * as they become free, pack the weights of a chunk, one depth after the other, and multiply. */
#include <stdatomic.h>

#include "base/numbers.h"
#include "dtensor/kernels/cpu/linear.h"
#include "dtensor/kernels/cpu/panels.h"

/* Rows of a block; outputs of a chunk; panels of either that are packed at once. */
enum { MAX_ROWS = 512, MAX_CHUNK = 256, MAX_PANELS = 16 };

typedef struct panels_job {
    const dti_linear *l;
    const dti_panel_ops *ops;
    int64_t row, n_rows;          /* of the block */
    int64_t depth;                /* columns at a time */
    int64_t n_x_panels, n_depths; /* of the block; over the columns */
    int64_t chunk, n_chunks;      /* outputs, a multiple of a panel's */
    char *x;                      /* [n_depths, n_x_panels] panels */
    char *scratch;                /* of worker 0 */
    int64_t w_bytes, sums_bytes;  /* parts of a worker's scratch */
    int64_t rows_bytes;
    _Atomic int64_t next; /* chunk to be taken */
} panels_job;

static int64_t depth_at(const panels_job *j, int64_t d)
{
    const int64_t left = j->l->n_in - d * j->depth;

    return left < j->depth ? left : j->depth;
}

/* A panel's rows from `row` on, of n_rows that there are; columns of depth d. */
static dti_panel_source source_of(const panels_job *j, const dt_local *m, int64_t row,
                                  int64_t n_rows, int64_t d)
{
    const dti_linear *l = j->l;
    const bool turned = m == l->x ? l->x_turned : l->w_turned;
    const int64_t bytes = (int64_t)dt_dtype_size(m->dtype), column = d * j->depth;
    const int64_t stride = !turned ? l->n_in : m == l->x ? l->n_rows : l->n_out;

    return (dti_panel_source){
        .first = (const char *)m->data +
                 (turned ? column * stride + row : row * stride + column) * bytes,
        .n_rows = n_rows,
        .stride = stride,
        .depth = depth_at(j, d),
        .turned = turned,
        .load = m->dtype == DT_F32 ? NULL : j->l->cpu->rows[m->dtype].load,
        .element_bytes = bytes,
    };
}

/* Panel `panel` of the block's x at depth d. */
static dti_panel_source x_source(const panels_job *j, int64_t panel, int64_t d)
{
    const int64_t row = panel * j->ops->rows, left = j->n_rows - row;

    return source_of(j, j->l->x, j->row + row, left < j->ops->rows ? left : j->ops->rows, d);
}

/* Packs some panels of one depth whose source lies turned, a step of columns after the other: what
 * lies side by side is read at once. A column of a panel takes column_bytes. */
static void pack_turned(const panels_job *j, char *to, const dti_panel_source *panels, int64_t n,
                        int64_t column_bytes, void (*pack)(void *, const dti_panel_source *))
{
    const int64_t columns = j->ops->columns, depth = panels[0].depth;

    for (int64_t i = 0; i < depth; i += columns)
        for (int64_t p = 0; p < n; p++) {
            dti_panel_source from = panels[p];
            from.first = (const char *)from.first + i * from.stride * from.element_bytes;
            from.depth = depth - i < columns ? depth - i : columns;
            pack(to + (p * j->depth + i) * column_bytes, &from);
        }
}

/* Panels begin .. end - 1 of all depths. */
static void pack_turned_x(const panels_job *j, int64_t begin, int64_t end)
{
    dti_panel_source panels[MAX_PANELS];

    while (begin < end) {
        const int64_t d = begin / j->n_x_panels, first = begin % j->n_x_panels;
        int64_t n = 0;
        for (; begin + n < end && first + n < j->n_x_panels && n < MAX_PANELS; n++)
            panels[n] = x_source(j, first + n, d);
        pack_turned(j, j->x + begin * j->depth * j->ops->x_bytes, panels, n, j->ops->x_bytes,
                    j->ops->pack_x);
        begin += n;
    }
}

static void pack_share(void *arg, int worker, int n_workers)
{
    const panels_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_depths * j->n_x_panels, 1, worker, n_workers, &begin, &end);
    if (j->l->x_turned) {
        pack_turned_x(j, begin, end);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const dti_panel_source from = x_source(j, i % j->n_x_panels, i / j->n_x_panels);
        j->ops->pack_x(j->x + i * j->depth * j->ops->x_bytes, &from);
    }
}

/* --- one chunk of outputs --------------------------------------------------------------------- */

typedef struct panels_part {
    char *w;     /* a panel; all of the chunk where w lies turned */
    float *sums; /* [panels of w, panels of x] tiles */
    float *rows; /* a panel of rows, all outputs of the chunk */
    int64_t o, n, n_panels;
} panels_part;

/* Panel b of w, as far as the chunk goes, at depth d. */
static dti_panel_source w_source(const panels_job *j, const panels_part *p, int64_t b, int64_t d)
{
    const int64_t o = b * j->ops->outputs, left = p->n - o;

    return source_of(j, j->l->w, p->o + o, left < j->ops->outputs ? left : j->ops->outputs, d);
}

/* Part a of n of a panel's source: reading it from memory when it is packed would take as long as
 * some of the products that can be computed meanwhile. */
static dti_panel_ahead ahead_of(const dti_panel_source *from, int64_t columns, int64_t a, int64_t n)
{
    const int64_t rows = from->turned ? columns : from->n_rows;
    const int64_t begin = rows * a / n, end = rows * (a + 1) / n;
    const int64_t stride = from->stride * from->element_bytes;

    return (dti_panel_ahead){ (const char *)from->first + begin * stride, end - begin, stride,
                              columns * (from->turned ? stride : from->element_bytes),
                              from->turned ? from->n_rows * from->element_bytes : 64 };
}

/* The panel of w that follows panel b of depth d in this chunk; the first again after the last. Of
 * those that are packed together the one of the next depth. */
static dti_panel_source next_source(const panels_job *j, const panels_part *p, int64_t b, int64_t d)
{
    if (j->l->w_turned) return w_source(j, p, b, d + 1 < j->n_depths ? d + 1 : d);
    if (b + 1 < p->n_panels) return w_source(j, p, b + 1, d);
    return w_source(j, p, 0, d + 1 < j->n_depths ? d + 1 : d);
}

/* Of rows a, how many panels of outputs multiply itself stores: whole ones whose sums are the
 * result. */
static int64_t n_stored(const panels_job *j, const panels_part *p, int64_t a)
{
    const dti_linear *l = j->l;
    const bool whole = (a + 1) * j->ops->rows <= j->n_rows;
    const bool direct = j->ops->stores_rows && l->bias == NULL && l->y->dtype == DT_F32;

    return whole && direct ? p->n / j->ops->outputs : 0;
}

/* Packs panel b of w, or all panels with the first one. Returns where it is. */
static const char *pack_w(const panels_job *j, const panels_part *p, int64_t b, int64_t d)
{
    dti_panel_source panels[MAX_PANELS];

    if (!j->l->w_turned) {
        const dti_panel_source from = w_source(j, p, b, d);
        j->ops->pack_w(p->w, &from);
        return p->w;
    }
    for (int64_t i = 0; i < p->n_panels && b == 0; i++) panels[i] = w_source(j, p, i, d);
    if (b == 0) pack_turned(j, p->w, panels, p->n_panels, j->ops->w_bytes, j->ops->pack_w);
    return p->w + b * j->depth * j->ops->w_bytes;
}

static void multiply_depth(const panels_job *j, const panels_part *p, int64_t d)
{
    const dti_panel_ops *ops = j->ops;
    const int64_t tile = ops->rows * ops->outputs, x_bytes = j->depth * ops->x_bytes;
    const bool last = d + 1 == j->n_depths;
    float *y = (float *)j->l->y->data + j->row * j->l->n_out + p->o;
    const char *x = j->x + d * j->n_x_panels * x_bytes;

    for (int64_t b = 0; b < p->n_panels; b++) {
        const dti_panel_source next = next_source(j, p, b, d);
        const char *w = pack_w(j, p, b, d);
        for (int64_t a = 0; a < j->n_x_panels; a++) {
            const bool store = last && b < n_stored(j, p, a);
            float *to = store ? y + a * ops->rows * j->l->n_out + b * ops->outputs : NULL;
            ops->multiply(
                &(dti_panel_product){ .sums = p->sums + (b * j->n_x_panels + a) * tile,
                                      .x = x + a * x_bytes,
                                      .w = w,
                                      .depth = depth_at(j, d),
                                      .add = d > 0,
                                      .to = to,
                                      .stride = j->l->n_out,
                                      .ahead = ahead_of(&next, ops->columns, a, j->n_x_panels) });
        }
    }
}

/* What multiply did not. */
static void store_part(const panels_job *j, const panels_part *p)
{
    const dti_panel_ops *ops = j->ops;
    const int64_t tile = ops->rows * ops->outputs;

    for (int64_t a = 0; a < j->n_x_panels; a++) {
        const int64_t row = a * ops->rows, left = j->n_rows - row, first = n_stored(j, p, a);
        const int64_t begin = first * ops->outputs;
        for (int64_t b = first; b < p->n_panels; b++)
            ops->unpack(p->rows + b * ops->outputs, j->chunk,
                        p->sums + (b * j->n_x_panels + a) * tile);
        if (begin < p->n)
            dti_linear_store(j->l, p->rows + begin, j->chunk, j->row + row,
                             left < ops->rows ? left : ops->rows, p->o + begin, p->n - begin);
    }
}

static void multiply_share(void *arg, int worker, int n_workers)
{
    panels_job *j = arg;
    char *scratch = j->scratch + worker * (j->w_bytes + j->sums_bytes + j->rows_bytes);
    panels_part p = { .w = scratch,
                      .sums = (float *)(void *)(scratch + j->w_bytes),
                      .rows = (float *)(void *)(scratch + j->w_bytes + j->sums_bytes) };

    (void)n_workers;
    if (j->ops->begin != NULL) j->ops->begin();
    for (;;) {
        const int64_t c = atomic_fetch_add(&j->next, 1);
        if (c >= j->n_chunks) break;
        p.o = c * j->chunk;
        p.n = j->l->n_out - p.o < j->chunk ? j->l->n_out - p.o : j->chunk;
        p.n_panels = dti_divide_up(p.n, j->ops->outputs);
        for (int64_t d = 0; d < j->n_depths; d++) multiply_depth(j, &p, d);
        store_part(j, &p);
        dti_cpu_beside(j->l->cpu, worker);
    }
    if (j->ops->end != NULL) j->ops->end();
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Wide, so that x is read from the outer caches few times; yet some chunks for every worker. */
static int64_t chunk_of(int64_t n_out, int64_t outputs, int n_workers)
{
    const int64_t fair =
        dti_divide_up(dti_divide_up(n_out, 4 * (int64_t)n_workers), outputs) * outputs;

    return fair < MAX_CHUNK ? fair : MAX_CHUNK;
}

/* With few rows the reading of w is what takes time; it is fast where pieces of a row are long. */
static int64_t depth_of(const dti_panel_ops *ops, int64_t n_x_panels, int64_t n_in)
{
    const int64_t depth = ops->depth * (n_x_panels < 8 ? 8 / n_x_panels : 1);
    const int64_t all = dti_divide_up(n_in, ops->columns) * ops->columns;

    return depth < all ? depth : all;
}

static void run_block(panels_job *j)
{
    j->n_x_panels = dti_divide_up(j->n_rows, j->ops->rows);
    j->next = 0;
    dti_cpu_run(j->l->cpu, dti_bytes(j->l->x), pack_share, j);
    dti_cpu_run(j->l->cpu, dti_bytes(j->l->w), multiply_share, j);
}

dt_status dti_linear_panels(const dti_linear *l, const dti_panel_ops *ops)
{
    const int64_t max_rows = l->n_rows < MAX_ROWS ? l->n_rows : MAX_ROWS;
    const int64_t max_panels = dti_divide_up(max_rows, ops->rows);
    const int n_workers = dti_pool_size(l->cpu->pool);
    panels_job j = { .l = l,
                     .ops = ops,
                     .depth = depth_of(ops, max_panels, l->n_in),
                     .chunk = chunk_of(l->n_out, ops->outputs, n_workers) };
    int64_t x_bytes;
    void *scratch;

    j.n_depths = dti_divide_up(l->n_in, j.depth);
    x_bytes = j.n_depths * j.depth * max_panels * ops->x_bytes;
    j.n_chunks = dti_divide_up(l->n_out, j.chunk);
    j.w_bytes = j.depth * ops->w_bytes * (l->w_turned ? dti_divide_up(j.chunk, ops->outputs) : 1);
    j.sums_bytes = max_panels * ops->rows * j.chunk * (int64_t)sizeof(float);
    j.rows_bytes = ops->rows * j.chunk * (int64_t)sizeof(float);
    DT_TRY(dti_cpu_scratch(
        l->cpu, (size_t)(x_bytes + n_workers * (j.w_bytes + j.sums_bytes + j.rows_bytes)),
        &scratch));
    j.x = scratch;
    j.scratch = j.x + x_bytes;
    for (j.row = 0; j.row < l->n_rows; j.row += j.n_rows) {
        const int64_t left = l->n_rows - j.row;
        j.n_rows = left < MAX_ROWS ? left : MAX_ROWS;
        run_block(&j);
    }
    return DT_OK;
}
