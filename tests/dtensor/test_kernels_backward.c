/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of products and of biases, against float64 and in every form that multiplies. */
#include "tests/dtensor/test_kernels.h"

#include "dtensor/kernels/cpu/panels.h"

typedef struct product_shape {
    int64_t tokens, out, in;
} product_shape;

/* One chain or several of n additions in f32: off by n units of the sum of magnitudes at most. The
 * gradient is [rows, columns], element (r, c) the sum over n of a[at(r, j)] b[at(c, j)]. */
static void expect_sums(kt_case *c, int64_t columns, int64_t n, const int64_t a_step[2],
                        const int64_t b_step[2])
{
    const int64_t count = kt_count(&c->out);

    kt_expect(c);
    for (int64_t i = 0; i < count; i++) {
        double sum = 0.0, magnitude = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const double term = kt_get(&c->in[0], i / columns * a_step[0] + j * a_step[1]) *
                                kt_get(&c->in[1], i % columns * b_step[0] + j * b_step[1]);
            sum += term;
            magnitude += fabs(term);
        }
        c->want[i] = sum;
        c->slack[i] = 0x1p-24 * (double)(n + 2) * magnitude;
    }
}

static void run_dx(product_shape s, dt_dtype dtype, dt_dtype out)
{
    const int64_t dy[] = { s.tokens, s.out }, w[] = { s.out, s.in };
    const dti_dtype_attr attr = { out };
    char name[64];
    kt_case c = { .name = name, .kernel = dti_linear_backward_x_cpu, .n_in = 2, .attr = &attr };

    (void)snprintf(name, sizeof name, "dx %lldx%lldx%lld of %s", (long long)s.tokens,
                   (long long)s.out, (long long)s.in, dt_dtype_name(dtype));
    c.in[0] = kt_filled(dtype, 2, dy, KT_UNIFORM, 41);
    c.in[1] = kt_filled(dtype, 2, w, KT_UNIFORM, 42);
    c.out = (dt_local){ .dtype = out, .n_axes = 2, .shape = { s.tokens, s.in } };
    expect_sums(&c, s.in, s.out, (const int64_t[]){ s.out, 1 }, (const int64_t[]){ 1, s.in });
    kt_run(&c);
}

static void run_dw(product_shape s, dt_dtype dtype)
{
    const int64_t dy[] = { s.tokens, s.out }, x[] = { s.tokens, s.in };
    char name[64];
    kt_case c = { .name = name, .kernel = dti_linear_backward_w_cpu, .n_in = 2 };

    (void)snprintf(name, sizeof name, "dw %lldx%lldx%lld of %s", (long long)s.tokens,
                   (long long)s.out, (long long)s.in, dt_dtype_name(dtype));
    c.in[0] = kt_filled(dtype, 2, dy, KT_UNIFORM, 43);
    c.in[1] = kt_filled(dtype, 2, x, KT_UNIFORM, 44);
    c.out = (dt_local){ .dtype = DT_F32, .n_axes = 2, .shape = { s.out, s.in } };
    expect_sums(&c, s.in, s.tokens, (const int64_t[]){ 1, s.out }, (const int64_t[]){ 1, s.in });
    kt_run(&c);
}

static void run_db(product_shape s, dt_dtype dtype)
{
    static const int64_t one = 1;
    const int64_t dy[] = { s.tokens, s.out };
    kt_case c = { .name = "db", .kernel = dti_add_bias_backward_cpu, .n_in = 2 };

    c.in[0] = kt_filled(dtype, 2, dy, KT_UNIFORM, 45);
    c.in[1] = kt_filled(DT_F32, 1, &one, KT_EQUAL, 46); /* which the kernel does not see */
    dti_store_f32(c.in[1].data, DT_F32, 0, 1.0f);
    c.out = (dt_local){ .dtype = DT_F32, .n_axes = 1, .shape = { s.out } };
    expect_sums(&c, 1, s.tokens, (const int64_t[]){ 1, s.out }, (const int64_t[]){ 0, 0 });
    kt_run(&c);
}

static void run_all(product_shape s)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_dx(s, kt_floats[t], kt_floats[t]);
        if (kt_floats[t] != DT_F32) run_dx(s, kt_floats[t], DT_F32);
        run_dw(s, kt_floats[t]);
        run_db(s, kt_floats[t]);
    }
}

DT_TEST(kernels_backward, products_and_biases_of_odd_sizes)
{
    static const int64_t sizes[] = { 0, 1, 5, 31, 33, 70 };

    for (size_t m = 0; m < DT_COUNT(sizes); m++)
        for (size_t o = 0; o < DT_COUNT(sizes); o++)
            for (size_t i = o % 2; i < DT_COUNT(sizes); i += 2)
                run_all((product_shape){ sizes[m], sizes[o], sizes[i] });
}

/* More rows than a block has, more of a sum than a depth, more outputs than a chunk. */
DT_TEST(kernels_backward, products_of_more_than_is_taken_at_a_time)
{
    dt_test_long();
    run_all((product_shape){ 290, 530, 271 });
    run_all((product_shape){ 545, 40, 130 });
}

#ifdef DT_HAVE_X86_KERNELS
/* A panel of a matrix that lies turned is the panel of its transpose, of which few machines have
 * the instruction that multiplies it. */
static void compare_panels(const dti_panel_ops *ops, dt_dtype dtype, int64_t n, int64_t depth)
{
    const int64_t shape[] = { n, depth }, turned_shape[] = { depth, n };
    const size_t bytes = (size_t)(ops->x_bytes > ops->w_bytes ? ops->x_bytes : ops->w_bytes) * 320;
    dt_local x = kt_filled(dtype, 2, shape, KT_UNIFORM, 47);
    dt_local turned = kt_local(dtype, 2, turned_shape);
    void (*const pack[])(void *, const dti_panel_source *) = { ops->pack_x, ops->pack_w };
    const int64_t most[] = { ops->rows, ops->outputs };
    void *one, *two;

    for (int64_t i = 0; i < n * depth; i++)
        dti_store_f32(turned.data, dtype, i % depth * n + i / depth,
                      dti_load_f32(x.data, dtype, i));
    DT_ASSERT_OK(dti_big_alloc(bytes, &one));
    DT_ASSERT_OK(dti_big_alloc(bytes, &two));
    for (int k = 0; k < 2; k++) {
        dti_panel_source from = { .first = x.data,
                                  .n_rows = n < most[k] ? n : most[k],
                                  .stride = depth,
                                  .depth = depth,
                                  .element_bytes = (int64_t)dt_dtype_size(dtype) };
        memset(one, 0, bytes);
        memset(two, 0, bytes);
        pack[k](one, &from);
        from.first = turned.data;
        from.stride = n;
        from.turned = true;
        pack[k](two, &from);
        DT_ASSERT(memcmp(one, two, bytes) == 0);
    }
    dti_big_free(one, bytes);
    dti_big_free(two, bytes);
    kt_release(&x);
    kt_release(&turned);
}

DT_TEST(kernels_backward, panels_of_turned_operands)
{
    static const int64_t sizes[] = { 1, 11, 16, 17, 31, 32, 40 };

    for (size_t n = 0; n < DT_COUNT(sizes) && dti_isa_detect() >= DTI_ISA_AVX512; n++)
        for (size_t d = 0; d < DT_COUNT(sizes); d++) {
            compare_panels(&dti_panels_avx512, DT_F32, sizes[n], sizes[d]);
            compare_panels(&dti_panels_amx, DT_BF16, sizes[n], sizes[d]);
        }
}
#endif
