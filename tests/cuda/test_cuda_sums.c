/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions: over axes, in the order of the CPU kernel, and over the terms of ranks that lie in
 * boxes, in the order of the terms. Bits are equal throughout. */
#include "tests/cuda/rows.h"

#include "mesh/comm/reduce.h"

/* --- over axes -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    dt_kernel cpu;
} reductions[] = { { "sum", dti_sum_cpu }, { "max", dti_max_cpu }, { "min", dti_min_cpu } };

static void run_reduction(const cr_device *d, int r, dt_dtype from, dt_dtype to,
                          const int64_t shape[3], int axis)
{
    const dti_reduce_attr attr = { to, axis };
    cr_case c = { .row = reductions[r].name,
                  .cpu = reductions[r].cpu,
                  .n_in = 1,
                  .attr = &attr,
                  .skew = axis & 1,
                  .out = { .dtype = to } };

    for (int a = 0; a < 3 && axis >= 0; a++)
        if (a != axis) c.out.shape[c.out.n_axes++] = shape[a];
    c.in[0] = kt_filled(from, 3, shape, KT_MIXED, 17);
    if (kt_count(&c.in[0]) > 40) {
        dti_store_f32(c.in[0].data, from, 3, -0.0f);
        dti_store_f32(c.in[0].data, from, 20, NAN);
    }
    cr_run(&c, d);
}

DT_TEST(cuda_sums, reductions_have_the_bits_of_the_cpu)
{
    static const int64_t shapes[][3] = { { 2, 3, 5 }, { 1, 1, 1 },  { 4, 0, 3 },   { 0, 3, 2 },
                                         { 3, 2, 0 }, { 5, 7, 33 }, { 2, 300, 1 }, { 1, 17, 600 } };
    static const dt_dtype types[][2] = {
        { DT_F32, DT_F32 }, { DT_BF16, DT_BF16 }, { DT_BF16, DT_F32 }, { DT_F16, DT_F16 }
    };
    CR_DEVICE d = cr_open();

    for (int r = 0; r < (int)DT_COUNT(reductions); r++)
        for (size_t t = 0; t < DT_COUNT(types); t++)
            for (size_t s = 0; s < DT_COUNT(shapes); s++)
                for (int axis = -1; axis < 3; axis++)
                    run_reduction(&d, r, types[t][0], types[t][1], shapes[s], axis);
}

/* Rows of several pieces. */
DT_TEST(cuda_sums, long_rows_have_the_bits_of_the_cpu)
{
    static const int64_t shapes[][3] = { { 3, 1, 8192 }, { 2, 1, 8193 }, { 1, 3, 20001 } };
    CR_DEVICE d = cr_open();

    for (int r = 0; r < (int)DT_COUNT(reductions); r++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int axis = -1; axis < 3; axis += 3)
                run_reduction(&d, r, DT_F32, DT_F32, shapes[s], axis);
}

/* --- over ranks ------------------------------------------------------------------------------- */

enum { N_TERMS = 6 };

static const dt_dtype term_types[] = { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_I64 };
static const dt_reduce term_ops[] = { DT_SUM, DT_AVG, DT_MIN, DT_MAX, DT_PROD };

static dt_local term_of(dt_dtype t, int64_t n, uint32_t seed)
{
    dt_local x;

    if (dt_dtype_is_float(t)) {
        x = kt_filled(t, 1, &n, KT_MIXED, seed);
        if (n > 9) dti_store_f32(x.data, t, seed % 9, NAN);
        return x;
    }
    x = kt_local(t, 1, &n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t value = (int64_t)kt_random(&seed) * 40503 - 300000000000;
        if (t == DT_I32)
            ((int32_t *)x.data)[i] = (int32_t)value;
        else
            ((int64_t *)x.data)[i] = value;
    }
    return x;
}

static void sum_on_cpu(const dti_cuda_sum *s, const dt_local *terms, int64_t n, void *to)
{
    static dti_reducer r;

    for (int64_t i = 0; i < n; i += DTI_REDUCE_BLOCK) {
        const int64_t m = n - i < DTI_REDUCE_BLOCK ? n - i : DTI_REDUCE_BLOCK;
        const size_t at = (size_t)i * dt_dtype_size((dt_dtype)s->dtype);
        r.dtype = (dt_dtype)s->dtype;
        r.op = (dt_reduce)s->reduce;
        dti_reducer_first(&r, (const char *)terms[0].data + at, m);
        for (int k = 1; k < s->n_terms; k++)
            dti_reducer_add(&r, (const char *)terms[k].data + at, m);
        memcpy((char *)to + at, dti_reducer_finish(&r, m),
               (size_t)m * dt_dtype_size((dt_dtype)s->dtype));
    }
}

/* The terms whole, to two places, the second of them the last term's own. */
static void run_terms(const cr_device *d, dti_cuda_sum *s, int64_t n, int64_t skew)
{
    const dt_dtype t = (dt_dtype)s->dtype;
    dt_local terms[N_TERMS], want = kt_local(t, 1, &n);
    cr_case c = { .row = "a sum of terms",
                  .skew = skew,
                  .out = { .dtype = t, .n_axes = 1, .shape = { n } } };
    void *there[N_TERMS], *to = cr_up(d, &c.out, skew);
    dt_local got = kt_local(t, 1, &n);

    for (int k = 0; k < s->n_terms; k++) {
        terms[k] = term_of(t, n, (uint32_t)(k + 5));
        s->terms[k] = there[k] = cr_up(d, &terms[k], skew);
    }
    s->n_to = 2;
    s->to[0] = to;
    s->to[1] = there[s->n_terms - 1];
    s->box = s->to_box = (dti_cuda_box){ .n_axes = 1, .extent = { n }, .stride = { 1 } };
    DT_ASSERT_CUDA(d->m, d->m->sum(d->c, s));
    sum_on_cpu(s, terms, n, want.data);
    for (int k = 0; k < 2; k++) {
        cr_down(&c, d, s->to[k], got.data);
        cr_compare(&c, got.data, want.data);
    }
    cr_release(d, &c.out, to, skew);
    for (int k = 0; k < s->n_terms; k++) {
        cr_release(d, &terms[k], there[k], skew);
        kt_release(&terms[k]);
    }
    kt_release(&want);
    kt_release(&got);
}

DT_TEST(cuda_sums, terms_add_up_in_their_order)
{
    static const int64_t sizes[] = { 0, 1, 13, 2056, 3001 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(term_types); t++)
        for (size_t o = 0; o < DT_COUNT(term_ops); o++)
            for (size_t n = 0; n < DT_COUNT(sizes); n++)
                for (int n_terms = 1; n_terms <= N_TERMS; n_terms += n_terms == 2 ? 4 : 1) {
                    dti_cuda_sum s = { .dtype = (int)term_types[t],
                                       .reduce = (int)term_ops[o],
                                       .n_terms = n_terms };
                    run_terms(&d, &s, sizes[n], n_terms & 1);
                }
}

/* Rows of a matrix with gaps, into a place without. */
DT_TEST(cuda_sums, boxes_of_terms_add_up)
{
    static const int64_t extents[][2] = { { 3, 5 }, { 7, 64 }, { 1, 9 }, { 6, 1 }, { 0, 4 } };
    enum { WIDE = 80, ROOM = 8 * WIDE };
    const int64_t room = ROOM;
    CR_DEVICE d = cr_open();

    for (size_t e = 0; e < DT_COUNT(extents); e++) {
        const int64_t rows = extents[e][0], columns = extents[e][1];
        dt_local terms[2], to = kt_local(DT_BF16, 1, &room);
        uint16_t got[ROOM];
        dti_cuda_sum s = { .dtype = DT_BF16, .reduce = DT_SUM, .n_terms = 2, .n_to = 1 };
        for (int k = 0; k < 2; k++) {
            terms[k] = kt_filled(DT_BF16, 1, &room, KT_UNIFORM, (uint32_t)k);
            s.terms[k] = cr_up(&d, &terms[k], 0);
        }
        s.to[0] = cr_up(&d, &to, 0);
        s.box = (dti_cuda_box){
            .n_axes = 2, .offset = 8, .extent = { rows, columns }, .stride = { WIDE, 1 }
        };
        s.to_box = (dti_cuda_box){
            .n_axes = 2, .offset = 1, .extent = { rows, columns }, .stride = { columns, 1 }
        };
        DT_ASSERT_CUDA(d.m, d.m->sum(d.c, &s));
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, got, s.to[0], sizeof got, DTI_CUDA_DOWN));
        for (int64_t i = 0; i < room; i++) {
            const int64_t k = i - 1, at = columns > 0 ? 8 + k / columns * WIDE + k % columns : 0;
            const bool in = k >= 0 && k < rows * columns;
            DT_ASSERT_EQ_INT(got[i], !in ? 0
                                         : dti_f32_to_bf16((float)kt_get(&terms[0], at) +
                                                           (float)kt_get(&terms[1], at)));
        }
        cr_release(&d, &to, s.to[0], 0);
        for (int k = 0; k < 2; k++) {
            cr_release(&d, &terms[k], (void *)(uintptr_t)s.terms[k], 0);
            kt_release(&terms[k]);
        }
        kt_release(&to);
    }
}

DT_TEST(cuda_sums, bad_sums_are_refused)
{
    dti_cuda_sum s = { .dtype = DT_F32, .n_terms = DTI_CUDA_MAX_PEERS + 1 };
    CR_DEVICE d = cr_open();

    DT_ASSERT_CUDA_FAILS(d.m, d.m->sum(d.c, &s), "33 terms");
    s.n_terms = 0;
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sum(d.c, &s), "0 terms");
    s.n_terms = 1;
    s.dtype = DT_U8;
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sum(d.c, &s), "a sum of u8");
    DT_ASSERT_CUDA_FAILS(d.m, d.m->divide(d.c, NULL, 1, DT_U8, 2), "a division of u8");
    DT_ASSERT_CUDA_FAILS(d.m, d.m->divide(d.c, NULL, 1, DT_F32, 0), "by 0");
}

/* --- averages --------------------------------------------------------------------------------- */

static double quotient(dt_dtype t, const dt_local *x, int64_t i, int64_t divisor)
{
    if (t == DT_I32) return (double)(((const int32_t *)x->data)[i] / (int32_t)divisor);
    if (t == DT_I64) return (double)(((const int64_t *)x->data)[i] / divisor);
    if (t == DT_F64) return ((const double *)x->data)[i] / (double)divisor;
    return kt_round(t, (double)((float)kt_get(x, i) / (float)divisor));
}

DT_TEST(cuda_sums, divisions_are_those_of_an_average)
{
    static const int64_t sizes[] = { 0, 1, 1000 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(term_types); t++)
        for (size_t s = 0; s < DT_COUNT(sizes); s++) {
            const dt_dtype type = term_types[t];
            dt_local x = term_of(type, sizes[s], 3), got = kt_local(type, 1, &sizes[s]);
            const cr_case c = { .row = "divide", .out = x };
            void *there = cr_up(&d, &x, 0);
            DT_ASSERT_CUDA(d.m, d.m->divide(d.c, there, sizes[s], (int)type, 3));
            cr_down(&c, &d, there, got.data);
            for (int64_t i = 0; i < sizes[s]; i++) {
                const double want = quotient(type, &x, i, 3), found = quotient(type, &got, i, 1);
                DT_ASSERT(found == want || (isnan(found) && isnan(want)));
            }
            cr_release(&d, &x, there, 0);
            kt_release(&x);
            kt_release(&got);
        }
}
