/* SPDX-License-Identifier: Apache-2.0
 *
 * General operators on the device beside their CPU kernels. What moves elements, and sums that are
 * one chain, have the same bits. */
#include "tests/cuda/rows.h"

#define CASE(row_, n, ...)                                              \
    (cr_case)                                                           \
    {                                                                   \
        .row = #row_, .cpu = dti_##row_##_cpu, .n_in = (n), __VA_ARGS__ \
    }

static dt_local shaped(dt_dtype t, int n_axes, const int64_t *shape)
{
    dt_local x = { .dtype = t, .n_axes = n_axes };

    for (int a = 0; a < n_axes; a++) x.shape[a] = shape[a];
    return x;
}

static void fill_mask(dt_local *x)
{
    for (int64_t i = 0, n = kt_count(x); i < n; i++) ((uint8_t *)x->data)[i] = i % 3 == 1;
}

DT_TEST(cuda_general, operands_are_spread)
{
    static const int64_t shapes[][4][3] = {
        { { 3, 5, 7 }, { 3, 1, 7 }, { 1, 5, 7 }, { 3, 5, 7 } },
        { { 1, 1, 7 }, { 4, 1, 1 }, { 1, 3, 1 }, { 4, 3, 7 } },
        { { 2, 1, 1 }, { 2, 3, 300 }, { 1, 1, 1 }, { 2, 3, 300 } },
        { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } },
        { { 0, 1, 5 }, { 1, 3, 5 }, { 0, 3, 1 }, { 0, 3, 5 } },
    };
    static const dti_compare_attr less = { DT_LESS, 0 };
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t skew = 0; skew < DT_COUNT(cr_skews); skew++) {
                const dt_dtype f = kt_floats[t];
                const int64_t(*shape)[3] = shapes[s];
                cr_case cases[] = {
                    CASE(add, 2, .skew = 0),   CASE(sub, 2, .skew = 0),
                    CASE(mul, 2, .skew = 0),   CASE(div, 2, .skew = 0),
                    CASE(where, 3, .skew = 0), CASE(compare, 2, .attr = &less),
                };
                for (size_t k = 0; k < DT_COUNT(cases); k++) {
                    cr_case *c = &cases[k];
                    const int n = c->n_in, masks = n == 3;
                    int64_t out[3];
                    for (int i = 0; i < n; i++)
                        c->in[i] = i < masks
                                       ? kt_local(DT_U8, 3, shape[2])
                                       : kt_filled(f, 3, shape[i - masks], KT_UNIFORM, (uint32_t)i);
                    if (masks) fill_mask(&c->in[0]);
                    for (int a = 0; a < 3; a++) {
                        out[a] = 1;
                        for (int i = 0; i < n; i++)
                            if (c->in[i].shape[a] != 1) out[a] = c->in[i].shape[a];
                    }
                    c->out = shaped(k == 5 ? DT_U8 : f, 3, out);
                    c->skew = cr_skews[skew];
                    cr_run(c, &d);
                }
            }
}

DT_TEST(cuda_general, lines_along_an_axis)
{
    static const int64_t shapes[][3] = { { 3, 700, 1 }, { 2, 5, 33 }, { 2, 1030, 3 },
                                         { 1, 1, 1 },   { 0, 3, 4 },  { 3, 1, 4 } };
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(shapes); s++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (int64_t axis = 0; axis < 3; axis++) {
                const dti_axis_attr attr = { axis };
                if (shapes[s][1] > 1000 && axis != 1) continue; /* thousands of short lines */
                if (shapes[s][1] > 600 && axis != 1 && t > 0) continue;
                cr_case cases[] = { CASE(softmax, 1, .ulps = 4 + cr_function_ulps()),
                                    CASE(log_softmax, 1, .ulps = 4, .slack = 2e-6),
                                    CASE(cumsum, 1, .skew = 0),
                                    CASE(cumsum_backward, 1, .skew = 0) };
                for (size_t k = 0; k < DT_COUNT(cases); k++) {
                    cases[k].attr = &attr;
                    cases[k].in[0] = kt_filled(kt_floats[t], 3, shapes[s], KT_UNIFORM, 3);
                    cases[k].out = shaped(kt_floats[t], 3, shapes[s]);
                    cr_run(&cases[k], &d);
                }
            }
}

DT_TEST(cuda_general, products_of_matrices)
{
    static const int64_t sizes[][4] = { /* batch, m, n, k */
                                        { 2, 3, 5, 7 },    { 1, 65, 130, 17 }, { 3, 1, 64, 33 },
                                        { 2, 64, 64, 16 }, { 2, 4, 5, 0 },     { 0, 4, 5, 6 }
    };
    const bool fused = dti_isa_detect() != DTI_ISA_PORTABLE;
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(sizes); s++)
        for (int form = 0; form < 8; form++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
                const int64_t *n = sizes[s];
                const bool ta = form & 1, tb = form & 2, wide = form & 4;
                const int64_t a[] = { n[0], ta ? n[3] : n[1], ta ? n[1] : n[3] };
                const int64_t b[] = { n[0], tb ? n[2] : n[3], tb ? n[3] : n[2] };
                const dti_matmul_attr attr = { wide ? DT_F32 : kt_floats[t], ta, tb, 0 };
                cr_case c = CASE(matmul, 2, .attr = &attr, .slack = fused ? 0.0 : 1e-5);
                c.in[0] = kt_filled(kt_floats[t], 3, a, KT_UNIFORM, 3);
                c.in[1] = kt_filled(kt_floats[t], 3, b, KT_UNIFORM, 4);
                c.out = shaped(attr.dtype, 3, (const int64_t[]){ n[0], n[1], n[2] });
                cr_run(&c, &d);
            }
}

static void run_moves(const cr_device *d, dt_dtype t, int64_t skew)
{
    static const int32_t ids[] = { 2, 0, 7, -1, 1 };
    static const int8_t orders[][3] = { { 0, 1, 2 }, { 2, 0, 1 }, { 1, 0, 2 }, { 0, 2, 1 } };
    const int64_t shape[] = { 3, 4, 5 }, n_ids = DT_COUNT(ids);

    for (size_t o = 0; o < DT_COUNT(orders); o++) {
        dti_permute_attr attr = { { orders[o][0], orders[o][1], orders[o][2] } };
        cr_case c = CASE(permute, 1, .attr = &attr, .skew = skew);
        c.in[0] = kt_filled(t, 3, shape, KT_UNIFORM, 3);
        c.out = shaped(
            t, 3,
            (const int64_t[]){ shape[attr.axis[0]], shape[attr.axis[1]], shape[attr.axis[2]] });
        cr_run(&c, d);
    }
    for (int axis = 0; axis < 3; axis++) {
        const dti_concat_attr joined = { .axis = axis };
        const dti_axis_attr selected = { axis };
        dti_pad_attr padded = { .axis = axis, .before = 2, .after = 1 };
        int64_t one[] = { 3, 4, 5 }, none[] = { 3, 4, 5 }, out[] = { 3, 4, 5 };
        cr_case c = CASE(concat, 3, .attr = &joined, .skew = skew);
        one[axis] = 1;
        none[axis] = 0;
        out[axis] += 1;
        c.in[0] = kt_filled(t, 3, shape, KT_UNIFORM, 3);
        c.in[1] = kt_filled(t, 3, none, KT_UNIFORM, 4);
        c.in[2] = kt_filled(t, 3, one, KT_UNIFORM, 5);
        c.out = shaped(t, 3, out);
        cr_run(&c, d);
        for (int64_t piece = 0; piece < 3; piece++) { /* whole, the first and the last of a cut */
            dti_store_f32(&padded.bits, t, 0, 0.75f);
            c = CASE(pad, 1, .attr = &padded, .skew = skew);
            c.in[0] = kt_filled(t, 3, shape, KT_UNIFORM, 3);
            c.in[0].offset[axis] = piece == 2 ? 6 : 0;
            c.out = shaped(t, 3, shape);
            c.out.shape[axis] += piece == 0 ? 3 : piece == 1 ? 2 : 1;
            c.out.offset[axis] = piece == 2 ? 8 : 0;
            cr_run(&c, d);
        }
        c = CASE(index_select, 2, .attr = &selected, .skew = skew);
        c.in[0] = kt_filled(t, 3, shape, KT_UNIFORM, 3);
        c.in[0].offset[axis] = 1;
        c.in[1] = kt_local(DT_I32, 1, &n_ids);
        memcpy(c.in[1].data, ids, sizeof ids);
        c.out = shaped(t, 3, shape);
        c.out.shape[axis] = n_ids;
        cr_run(&c, d);
    }
}

DT_TEST(cuda_general, moves_have_the_bits_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t skew = 0; skew < DT_COUNT(cr_skews); skew++)
            run_moves(&d, kt_floats[t], cr_skews[skew]);
}

/* Rows of one id add up in the CPU's order, more than one run of them. */
DT_TEST(cuda_general, selected_rows_go_back_with_the_bits_of_the_cpu)
{
    static const int64_t shapes[][5] = {
        /* x, ids, rows that they are of */
        { 3, 1, 5, 4, 7 }, { 1, 1, 300, 30, 6 }, { 7, 1, 1, 90, 2 }, { 20, 1, 20, 3, 4 },
        { 2, 1, 3, 0, 5 }, { 0, 1, 3, 4, 5 },    { 2, 1, 3, 4, 0 }
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            const int64_t *n = shapes[s], dy[] = { n[0], n[3], n[2] };
            const dti_select_backward_attr attr = { 1, n[4] };
            cr_case c = CASE(index_select_backward, 2, .attr = &attr, .skew = cr_skews[s % 2]);
            c.in[0] = kt_filled(kt_floats[t], 3, dy, KT_UNIFORM, 3);
            c.in[1] = kt_local(DT_I32, 1, &n[3]);
            for (int64_t i = 0; i < n[3]; i++)
                ((int32_t *)c.in[1].data)[i] = (int32_t)(i * i % (n[4] + 2)) - 1;
            c.out = shaped(kt_floats[t], 3, (const int64_t[]){ n[0], n[4], n[2] });
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_general, dropout_drops_the_same_elements)
{
    const dti_dropout_attr attr = { 77, 5, 0.4, { 20, 3, 100 } };
    const int64_t shape[] = { 4, 2, 37 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        cr_case c = CASE(dropout, 1, .attr = &attr);
        c.in[0] = kt_filled(kt_floats[t], 3, shape, KT_UNIFORM, 3);
        c.in[0].offset[0] = 3;
        c.in[0].offset[2] = 41;
        c.out = shaped(kt_floats[t], 3, shape);
        cr_run(&c, &d);
    }
}

/* --- attention with what few calls have ------------------------------------------------------- */

typedef struct extra_case {
    int64_t batch, tokens, heads, kv, rows, width, window;
    uint32_t flags;
    float cap;
} extra_case;

enum { BIAS = DTI_ATTENTION_BIAS, SINKS = DTI_ATTENTION_SINKS, BOTH = DTI_ATTENTION_BOTH_WAYS };
enum { ONE_B = DTI_ATTENTION_ONE_BATCH, ONE_H = DTI_ATTENTION_ONE_HEAD };
enum { ONE_T = DTI_ATTENTION_ONE_TOKEN };

static void run_extra(const cr_device *d, const extra_case *e, dt_dtype t)
{
    const dti_attention_attr attr = { e->heads, e->kv, e->window, 0.3f, e->cap, e->flags, 0 };
    const int64_t q[] = { e->batch, e->tokens, e->heads, e->width };
    const int64_t k[] = { e->batch, e->rows, e->kv, e->width };
    const int64_t bias[] = { e->flags & ONE_B ? 1 : e->batch, e->flags & ONE_H ? 1 : e->heads,
                             e->flags & ONE_T ? 1 : e->tokens, e->rows };
    cr_case c = CASE(attention, 4, .attr = &attr, .slack = 2e-5, .ulps = 2);

    c.in[0] = kt_filled(t, 4, q, KT_UNIFORM, 1);
    c.in[1] = kt_filled(t, 4, k, KT_UNIFORM, 2);
    c.in[2] = kt_filled(t, 4, k, KT_UNIFORM, 3);
    c.in[3] = kt_local(DT_I32, 2, q);
    for (int64_t i = 0; i < e->batch * e->tokens; i++)
        ((int32_t *)c.in[3].data)[i] = (int32_t)(i * 7 % e->rows);
    if (e->flags & BIAS) {
        c.in[c.n_in] = kt_filled(t, 4, bias, KT_UNIFORM, 4);
        for (int64_t i = 0; i < kt_count(&c.in[c.n_in]); i++)
            if (i % 3 == 1 || i / e->rows == 1) dti_store_f32(c.in[c.n_in].data, t, i, -INFINITY);
        c.n_in++;
    }
    if (e->flags & SINKS) c.in[c.n_in++] = kt_filled(t, 1, &e->heads, KT_UNIFORM, 5);
    c.out = shaped(t, 4, q);
    cr_run(&c, d);
}

DT_TEST(cuda_general, attention_biased_capped_and_not_causal)
{
    static const extra_case cases[] = {
        { 2, 1, 4, 2, 40, 16, 0, BOTH, 0 },
        { 1, 33, 4, 2, 70, 8, 9, BOTH, 0 },
        { 2, 5, 3, 1, 40, 7, 0, 0, 0.5f },
        { 2, 1, 4, 2, 70, 16, 0, SINKS, 0 },
        { 1, 20, 4, 2, 40, 16, 0, BIAS, 0 },
        { 2, 20, 4, 2, 40, 16, 0, BIAS | ONE_B | ONE_T, 0 },
        { 2, 1, 4, 2, 40, 16, 0, BIAS | ONE_H, 0 },
        { 2, 9, 6, 2, 65, 24, 11, BIAS | SINKS | BOTH | ONE_H, 1.5f },
    };
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) run_extra(&d, &cases[i], kt_floats[t]);
}
