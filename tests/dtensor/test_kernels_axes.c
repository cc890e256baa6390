/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that work along axes or move them: softmax and cumulative sums, products of matrices,
 * permute, concat, pad, index_select, dropout. Judged in float64, or by the bits. */
#include "tests/dtensor/test_kernels.h"

#include "dtensor/kernels/random.h"

/* --- along one axis --------------------------------------------------------------------------- */

typedef struct line_case {
    int n_axes;
    int64_t shape[4];
    int64_t axis;
} line_case;

static const line_case lines[] = {
    { 1, { 7 }, 0 },       { 2, { 3, 1 }, 1 },        { 2, { 5, 700 }, 1 },    { 2, { 700, 5 }, 0 },
    { 3, { 3, 4, 5 }, 1 }, { 3, { 2, 1030, 3 }, 1 },  { 3, { 2, 3, 600 }, 1 }, { 2, { 0, 4 }, 1 },
    { 2, { 4, 0 }, 1 },    { 4, { 2, 3, 2, 33 }, 3 }, { 2, { 40, 2000 }, 1 },
};

static void want_line(kt_case *c, dt_kernel kernel, int64_t at, int64_t step, int64_t k)
{
    double most = -INFINITY, sum = 0.0;

    for (int64_t i = 0; i < k; i++) most = fmax(most, kt_get(&c->in[0], at + i * step));
    for (int64_t i = 0; i < k; i++) sum += exp(kt_get(&c->in[0], at + i * step) - most);
    for (int64_t i = 0; i < k; i++) {
        const double x = kt_get(&c->in[0], at + i * step);
        double *want = &c->want[at + i * step], *slack = &c->slack[at + i * step];
        if (kernel == dti_softmax_cpu) {
            *want = exp(x - most) / sum;
            *slack = 0x1p-24 * (4.0 + most - x) * *want + 0x1p-140;
        } else if (kernel == dti_log_softmax_cpu) {
            *want = x - most - log(sum);
            *slack = 0x1p-23 * fabs(x - most) + 0x1p-18 * log(sum); /* e^(x - most) is off
                                                                       * by the bits of x - most */
        } else {
            *want = (i > 0 ? c->want[at + (i - 1) * step] : 0.0) + x;
        }
    }
}

static void run_line(const line_case *l, dt_kernel kernel, dt_dtype t, kt_fill fill)
{
    const dti_axis_attr attr = { l->axis };
    kt_case c = { .name = "along an axis", .kernel = kernel, .n_in = 1, .attr = &attr };
    int64_t outer = 1, inner = 1;

    c.in[0] = kt_filled(t, l->n_axes, l->shape, fill, 11);
    c.out = (dt_local){ .dtype = t, .n_axes = l->n_axes };
    memcpy(c.out.shape, l->shape, sizeof l->shape);
    kt_expect(&c);
    for (int a = 0; a < l->n_axes; a++)
        if (a != l->axis) *(a < l->axis ? &outer : &inner) *= l->shape[a];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++)
            want_line(&c, kernel, o * l->shape[l->axis] * inner + i, inner, l->shape[l->axis]);
    for (int64_t i = 0; t == DT_F16 && i < kt_count(&c.out); i++)
        if (fabs(c.want[i]) >= 65520.0) c.want[i] = copysign((double)INFINITY, c.want[i]);
    kt_run(&c);
}

DT_TEST(kernels_axes, lines_match_float64)
{
    static const dt_kernel kernels[] = { dti_softmax_cpu, dti_log_softmax_cpu, dti_cumsum_cpu };

    for (size_t k = 0; k < DT_COUNT(kernels); k++)
        for (size_t l = 0; l < DT_COUNT(lines); l++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
                run_line(&lines[l], kernels[k], kt_floats[t], KT_UNIFORM);
                run_line(&lines[l], kernels[k], kt_floats[t], KT_MIXED);
            }
}

/* --- products --------------------------------------------------------------------------------- */

typedef struct product_case {
    int64_t batch, m, n, k;
} product_case;

static const product_case products[] = {
    { 1, 1, 1, 1 }, { 2, 3, 5, 7 }, { 3, 1, 300, 9 }, { 1, 70, 20, 600 }, { 2, 65, 257, 17 },
    { 0, 3, 4, 5 }, { 2, 0, 4, 5 }, { 2, 4, 0, 5 },   { 2, 4, 5, 0 },     { 1, 130, 64, 64 },
};

/* Element (r, c) of a batch's matrix of rows x columns. */
static double element(const dt_local *x, bool transposed, int64_t at, int64_t rows, int64_t columns,
                      int64_t r, int64_t c)
{
    return kt_get(x, at * rows * columns + (transposed ? c * rows + r : r * columns + c));
}

static void run_product(const product_case *p, bool ta, bool tb, dt_dtype t, dt_dtype out)
{
    const dti_matmul_attr attr = { out, ta, tb, 0 };
    const int64_t a[] = { p->batch, ta ? p->k : p->m, ta ? p->m : p->k };
    const int64_t b[] = { p->batch, tb ? p->n : p->k, tb ? p->k : p->n };
    kt_case c = { .name = "matmul", .kernel = dti_matmul_cpu, .n_in = 2, .attr = &attr };

    c.in[0] = kt_filled(t, 3, a, KT_UNIFORM, 5);
    c.in[1] = kt_filled(t, 3, b, KT_UNIFORM, 6);
    c.out = (dt_local){ .dtype = out, .n_axes = 3, .shape = { p->batch, p->m, p->n } };
    kt_expect(&c);
    for (int64_t i = 0; i < kt_count(&c.out); i++) {
        const int64_t at = i / p->n / p->m, row = i / p->n % p->m, column = i % p->n;
        for (int64_t k = 0; k < p->k; k++) {
            const double term = element(&c.in[0], ta, at, p->m, p->k, row, k) *
                                element(&c.in[1], tb, at, p->k, p->n, k, column);
            c.want[i] += term;
            c.slack[i] += 0x1p-24 * (double)(k + 2) * fabs(term);
        }
    }
    kt_run(&c);
}

DT_TEST(kernels_axes, products_of_matrices_match_float64)
{
    for (size_t p = 0; p < DT_COUNT(products); p++)
        for (int form = 0; form < 4; form++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
                run_product(&products[p], form & 1, form & 2, kt_floats[t], kt_floats[t]);
                run_product(&products[p], form & 1, form & 2, kt_floats[t], DT_F32);
            }
}

/* --- moves ------------------------------------------------------------------------------------ */

/* Elements count up, in every dtype exactly (mod 251). */
static dt_local counted(dt_dtype t, int n_axes, const int64_t *shape, int from)
{
    dt_local x = kt_local(t, n_axes, shape);

    for (int64_t i = 0, n = kt_count(&x); i < n; i++)
        dti_store_f32(x.data, t, i, (float)((i + from) % 251));
    return x;
}

static void index_of(const dt_local *x, int64_t i, int64_t *index)
{
    for (int a = x->n_axes - 1; a >= 0; i /= x->shape[a--]) index[a] = i % x->shape[a];
}

static int64_t at_index(const dt_local *x, const int64_t *index)
{
    int64_t at = 0;

    for (int a = 0; a < x->n_axes; a++) at = at * x->shape[a] + index[a];
    return at;
}

typedef struct permute_case {
    int n_axes;
    int64_t shape[5];
    int8_t axis[DT_MAX_AXES];
} permute_case;

static const permute_case permutes[] = {
    { 1, { 7 }, { 0 } },
    { 2, { 3, 5 }, { 1, 0 } },
    { 3, { 2, 3, 4 }, { 0, 1, 2 } },
    { 3, { 2, 3, 4 }, { 2, 0, 1 } },
    { 4, { 2, 3, 4, 5 }, { 0, 2, 1, 3 } },
    { 4, { 2, 1, 4, 1 }, { 3, 2, 1, 0 } },
    { 3, { 1, 1, 1 }, { 2, 1, 0 } },
    { 5, { 2, 3, 2, 2, 3 }, { 3, 4, 0, 1, 2 } },
    { 2, { 0, 5 }, { 1, 0 } },
    { 2, { 300, 200 }, { 1, 0 } },
};

DT_TEST(kernels_axes, axes_are_permuted)
{
    for (size_t p = 0; p < DT_COUNT(permutes); p++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const permute_case *m = &permutes[p];
            dti_permute_attr attr = { { 0 } };
            kt_case c = { .name = "permute", .kernel = dti_permute_cpu, .n_in = 1, .attr = &attr };
            int64_t to[DT_MAX_AXES], from[DT_MAX_AXES];
            memcpy(attr.axis, m->axis, sizeof attr.axis);
            c.in[0] = counted(kt_floats[t], m->n_axes, m->shape, 0);
            c.out = (dt_local){ .dtype = kt_floats[t], .n_axes = m->n_axes };
            for (int a = 0; a < m->n_axes; a++) c.out.shape[a] = m->shape[m->axis[a]];
            kt_expect(&c);
            for (int64_t i = 0; i < kt_count(&c.out); i++) {
                index_of(&c.out, i, to);
                for (int a = 0; a < m->n_axes; a++) from[m->axis[a]] = to[a];
                c.want[i] = kt_get(&c.in[0], at_index(&c.in[0], from));
            }
            kt_run(&c);
        }
}

DT_TEST(kernels_axes, operands_are_concatenated)
{
    static const int64_t extents[] = { 2, 0, 3, 1 };

    for (int axis = 0; axis < 3; axis++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const dti_concat_attr attr = { .axis = axis };
            kt_case c = { .name = "concat", .kernel = dti_concat_cpu, .n_in = 4, .attr = &attr };
            int64_t shape[] = { 3, 4, 5 };
            c.out = (dt_local){ .dtype = kt_floats[t], .n_axes = 3, .shape = { 3, 4, 5 } };
            for (int i = 0; i < 4; i++) {
                shape[axis] = extents[i];
                c.in[i] = counted(kt_floats[t], 3, shape, 100 * i);
            }
            c.out.shape[axis] = 6;
            kt_expect(&c);
            for (int64_t i = 0; i < kt_count(&c.out); i++) {
                int64_t index[DT_MAX_AXES];
                int of = 0;
                index_of(&c.out, i, index);
                while (index[axis] >= extents[of]) index[axis] -= extents[of++];
                c.want[i] = kt_get(&c.in[of], at_index(&c.in[of], index));
            }
            kt_run(&c);
        }
}

/* Pieces of a cut axis of 5 rows with 2 before and 3 behind: each gives its part of the whole. */
DT_TEST(kernels_axes, what_is_padded_lies_around_the_rows)
{
    static const int64_t cuts[] = { 0, 2, 2, 5 }; /* three pieces, one of them empty */

    for (int axis = 0; axis < 2; axis++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (int piece = -1; piece < 3; piece++) {
                const int64_t begin = piece < 0 ? 0 : cuts[piece];
                const int64_t end = piece < 0 ? 5 : cuts[piece + 1];
                const int64_t first = piece <= 0 ? 0 : begin + 2;
                const int64_t last = piece < 0 || piece == 2 ? 10 : end + 2;
                dti_pad_attr attr = { .axis = axis, .before = 2, .after = 3 };
                kt_case c = { .name = "pad", .kernel = dti_pad_cpu, .n_in = 1, .attr = &attr };
                int64_t shape[] = { 4, 4 };
                shape[axis] = end - begin;
                dti_store_f32(&attr.bits, kt_floats[t], 0, -1.5f);
                c.in[0] = counted(kt_floats[t], 2, shape, 1);
                c.in[0].offset[axis] = begin;
                c.out = c.in[0];
                c.out.data = NULL;
                c.out.shape[axis] = last - first;
                c.out.offset[axis] = first;
                kt_expect(&c);
                for (int64_t i = 0; i < kt_count(&c.out); i++) {
                    int64_t index[DT_MAX_AXES];
                    index_of(&c.out, i, index);
                    index[axis] += first - 2 - begin;
                    c.want[i] = index[axis] >= 0 && index[axis] < end - begin
                                    ? kt_get(&c.in[0], at_index(&c.in[0], index))
                                    : -1.5;
                }
                kt_run(&c);
            }
}

DT_TEST(kernels_axes, rows_without_elements_are_padded)
{
    const dti_pad_attr attr = { .axis = 0, .before = 2, .after = 3 };
    const dt_local x = { .dtype = DT_F32, .n_axes = 2, .shape = { 4, 0 } };
    const dt_local y = { .dtype = DT_F32, .n_axes = 2, .shape = { 9, 0 } };

    DT_ASSERT_OK(dti_pad_cpu(&(dt_kargs){ .in = &x, .out = (dt_local[]){ y }, .attr = &attr }));
}

/* Rows of another rank, and rows that nobody has, are zeros. */
DT_TEST(kernels_axes, rows_are_selected)
{
    static const int32_t ids[] = { 4, 2, 2, 9, -1, 3 };

    for (int axis = 0; axis < 3; axis++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const dti_axis_attr attr = { axis };
            const int64_t n = DT_COUNT(ids);
            kt_case c = {
                .name = "index_select", .kernel = dti_index_select_cpu, .n_in = 2, .attr = &attr
            };
            int64_t shape[] = { 2, 2, 2 };
            shape[axis] = 3;
            c.in[0] = counted(kt_floats[t], 3, shape, 1);
            c.in[0].offset[axis] = 2; /* rows 2, 3, 4 */
            c.in[1] = kt_local(DT_I32, 1, &n);
            memcpy(c.in[1].data, ids, sizeof ids);
            c.out = (dt_local){ .dtype = kt_floats[t], .n_axes = 3, .shape = { 2, 2, 2 } };
            c.out.shape[axis] = n;
            kt_expect(&c);
            for (int64_t i = 0; i < kt_count(&c.out); i++) {
                int64_t index[DT_MAX_AXES];
                index_of(&c.out, i, index);
                index[axis] = ids[index[axis]] - 2;
                if (index[axis] >= 0 && index[axis] < 3)
                    c.want[i] = kt_get(&c.in[0], at_index(&c.in[0], index));
            }
            kt_run(&c);
        }
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* Element i of the whole goes where uniform number i of the key is below p, whatever the piece. */
DT_TEST(kernels_axes, dropout_follows_the_global_index)
{
    static const int64_t offsets[][2] = { { 0, 0 }, { 3, 0 }, { 0, 5 }, { 7, 11 } };
    const dti_dropout_attr attr = { 1234567890123u, 42, 0.3, { 50, 600 } };
    int64_t dropped = 0, all = 0;

    for (size_t o = 0; o < DT_COUNT(offsets); o++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            const int64_t shape[] = { 9, 523 };
            kt_case c = { .name = "dropout", .kernel = dti_dropout_cpu, .n_in = 1, .attr = &attr };
            c.in[0] = kt_filled(kt_floats[t], 2, shape, KT_UNIFORM, 3);
            memcpy(c.in[0].offset, offsets[o], sizeof offsets[o]);
            c.out = c.in[0];
            kt_expect(&c);
            for (int64_t i = 0; i < kt_count(&c.out); i++) {
                const int64_t g = (i / 523 + offsets[o][0]) * 600 + i % 523 + offsets[o][1];
                uint32_t w[4] = { (uint32_t)(g / 4), 0, 42, 0 };
                dti_philox(w, (uint32_t)attr.seed, (uint32_t)(attr.seed >> 32));
                if (dti_uniform_f32(w[g % 4], 24) < 0.3f) {
                    dropped++;
                } else {
                    c.want[i] = kt_get(&c.in[0], i) / 0.7;
                    c.slack[i] = 0x1p-23 * fabs(c.want[i]);
                }
                all++;
            }
            kt_run(&c);
        }
    DT_ASSERT(llabs(10 * dropped - 3 * all) < all / 10); /* 0.29 to 0.31 */
}
