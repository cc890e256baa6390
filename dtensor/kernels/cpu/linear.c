/* SPDX-License-Identifier: Apache-2.0
 *
 * y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]); x [M, I], w [O, I] row-major, bias [O], y [M, O] of
 * the model's dtype or f32. Sums in f32, in an order that depends on the instruction set alone:
 * a row's bits are the same among any rows, on any number of threads, and where O is split over
 * ranks; splitting I changes them. */
#include "dtensor/kernels/cpu/linear.h"

/* Floats that pass through level 1; rows from which on panels are faster. */
enum { BLOCK = 512, MANY_ROWS = 64 };

void dti_linear_store(const dti_linear *l, const float *sums, int64_t stride, int64_t row,
                      int64_t n_rows, int64_t o, int64_t n)
{
    const dti_row_ops *rows = l->cpu->rows;
    const int64_t y_bytes = (int64_t)dt_dtype_size(l->y->dtype);
    _Alignas(64) float bias[BLOCK], block[BLOCK];

    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        if (l->bias != NULL)
            rows[l->bias->dtype].load(bias,
                                      (const char *)l->bias->data +
                                          (o + i) * (int64_t)dt_dtype_size(l->bias->dtype),
                                      part);
        for (int64_t m = 0; m < n_rows; m++) {
            const float *from = sums + m * stride + i;
            char *y = (char *)l->y->data + ((row + m) * l->n_out + o + i) * y_bytes;
            if (l->bias != NULL) {
                rows[DT_F32].add(block, from, bias, part);
                from = block;
            }
            rows[l->y->dtype].store(y, from, part);
        }
    }
}

/* --- the operator ----------------------------------------------------------------------------- */

/* No columns to sum over: y = bias, or zeros. */
static void store_empty_sums(const dti_linear *l)
{
    static const float zeros[BLOCK];

    for (int64_t o = 0; o < l->n_out; o += BLOCK)
        dti_linear_store(l, zeros, 0, 0, l->n_rows, o, l->n_out - o < BLOCK ? l->n_out - o : BLOCK);
}

/* Few rows of operands that lie transposed, where there are no panels: as a product of values. */
static dt_status multiply_few(const dti_linear *l)
{
    const dti_matmul_attr attr = { l->y->dtype, l->x_turned, !l->w_turned, 0 };
    dt_local in[2] = { *l->x, *l->w }, y = *l->y;

    in[0].n_axes = in[1].n_axes = y.n_axes = 2;
    in[0].shape[l->x_turned] = y.shape[0] = l->n_rows;
    in[1].shape[l->w_turned] = y.shape[1] = l->n_out;
    in[0].shape[!l->x_turned] = in[1].shape[!l->w_turned] = l->n_in;
    DT_TRY(dti_matmul_cpu(&(dt_kargs){ in, &y, &attr, l->cpu, 2, 1, NULL }));
    return DT_OK;
}

dt_status dti_linear_check(const dti_linear *l, const char *op)
{
    const dt_local *const all[] = { l->x, l->w, l->y, l->bias };
    const dti_row_ops *ops;

    for (size_t i = 0; i < DT_COUNT(all) && all[i] != NULL; i++)
        DT_TRY(dti_cpu_rows(l->cpu, op, all[i], &ops));
    DT_CHECK(l->x->dtype == l->w->dtype, DT_ERR_UNSUPPORTED,
             "%s on CPU: one operand is %s, the other %s; cast one of them", op,
             dt_dtype_name(l->x->dtype), dt_dtype_name(l->w->dtype));
    return DT_OK;
}

/* In one order dots are used for all numbers of rows that they have. f32 loses by that. */
static bool has_dots(const dti_linear *l, const dti_panel_ops *panels)
{
    const int64_t max_rows = l->cpu->dots[l->w->dtype]->max_rows;

    if (l->x_turned || l->w_turned) return false;
    if (l->cpu->any_order && panels != NULL && l->w->dtype == DT_F32 && l->n_rows >= MANY_ROWS)
        return false;
    return max_rows == 0 || l->n_rows <= max_rows;
}

dt_status dti_linear_run(const dti_linear *l)
{
    const dti_panel_ops *panels = l->cpu->panels[l->w->dtype];

    if (l->n_rows == 0 || l->n_out == 0) return DT_OK;
    if (l->n_in == 0)
        store_empty_sums(l);
    else if (has_dots(l, panels))
        DT_TRY(dti_linear_dots(l));
    else if (panels != NULL)
        DT_TRY(dti_linear_panels(l, panels));
    else if (l->n_rows < DTI_LIBRARY_ROWS)
        DT_TRY(multiply_few(l));
    else
        DT_TRY(dti_linear_library(l));
    return DT_OK;
}

dt_status dti_linear_cpu(const dt_kargs *a)
{
    const dti_linear l = { .cpu = a->cpu,
                           .x = &a->in[0],
                           .w = &a->in[1],
                           .bias = a->n_in > 2 ? &a->in[2] : NULL,
                           .y = &a->out[0],
                           .n_rows = dti_rows(&a->in[0]),
                           .n_in = a->in[1].shape[1],
                           .n_out = a->in[1].shape[0] };

    DT_TRY(dti_linear_check(&l, "linear"));
    DT_TRY(dti_linear_run(&l));
    return DT_OK;
}
