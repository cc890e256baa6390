/* SPDX-License-Identifier: Apache-2.0
 *
 * Embeddings' gradients and cross entropy: CUDA kernels beside the CPU's. */
#include "tests/cuda/rows.h"

enum { FIRST = 700, VOCABULARY = 3000 };
static const dti_cross_entropy_attr attr = { VOCABULARY, -100, 0.1, 0.01 };

static dt_local whole_numbers(int64_t n, int32_t step, int32_t modulo, int32_t ignored)
{
    dt_local x = kt_local(DT_I32, 1, &n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)x.data)[i] = i % 5 == 4 ? ignored : (int32_t)(i * step % modulo);
    return x;
}

/* Rows of one id add up in the CPU's order: the same bits. */
DT_TEST(cuda_loss, embeddings_add_rows_in_the_order_of_the_cpu)
{
    static const int64_t shapes[][4] = { { 30, 23, 0, 33 }, { 30, 8, 8, 7 }, { 30, 0, 23, 7 },
                                         { 0, 4, 0, 7 },    { 3, 4, 0, 0 },  { 700, 5, 0, 300 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            const int64_t *n = shapes[s], dy[] = { n[0], n[3] }, table[] = { n[1], n[3] };
            const dti_embedding_attr without = { t == 1 ? n[2] + 2 : -1 }; /* padding, or none */
            cr_case c = { .row = "embedding_backward",
                          .cpu = dti_embedding_backward_cpu,
                          .n_in = 3,
                          .attr = &without,
                          .skew = cr_skews[s % 2] };
            c.in[0] = kt_filled(kt_floats[t], 2, dy, KT_UNIFORM, 1);
            c.in[1] = whole_numbers(n[0], 7, 25, -1);
            c.in[2] = kt_local(kt_floats[t], 2, table);
            c.in[2].offset[0] = n[2];
            c.out = (dt_local){ .dtype = DT_F32, .n_axes = 2, .shape = { n[1], n[3] } };
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_loss, sums_of_gradients_have_the_bits_of_the_cpu)
{
    static const int64_t sizes[] = { 0, 1, 777 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(sizes); s++) {
            cr_case c = { .row = "accumulate",
                          .cpu = dti_accumulate_cpu,
                          .n_in = 2,
                          .in_place = 2,
                          .out = { .dtype = DT_F32, .n_axes = 1, .shape = { sizes[s] } } };
            c.in[0] = kt_filled(kt_floats[t], 1, &sizes[s], KT_UNIFORM, 1);
            c.in[1] = kt_filled(DT_F32, 1, &sizes[s], KT_UNIFORM, 2);
            cr_run(&c, &d);
        }
}

static void run_entropy(const cr_device *d, dt_dtype t, int64_t tokens, int64_t v)
{
    const int64_t shape[] = { tokens, v }, sums[] = { tokens, 3 };
    cr_case c = { .row = "cross_entropy_sums",
                  .cpu = dti_cross_entropy_sums_cpu,
                  .n_in = 3,
                  .attr = &attr,
                  .slack = 0x1p-22 * (double)(v + 8) / 4.0,
                  .ulps = 16.0,
                  .out = { .dtype = DT_F32, .n_axes = 2, .shape = { tokens, 3 } } };

    c.in[0] = kt_filled(t, 2, shape, KT_UNIFORM, 61);
    c.in[0].offset[1] = FIRST;
    c.in[1] = whole_numbers(tokens, 131, VOCABULARY, -100);
    c.in[2] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 62);
    cr_run(&c, d);

    c = (cr_case){ .row = "cross_entropy_backward",
                   .cpu = dti_cross_entropy_backward_cpu,
                   .n_in = 4,
                   .attr = &attr,
                   .ulps = cr_function_ulps(),
                   .out = { .dtype = t, .n_axes = 2, .shape = { tokens, v } } };
    c.in[0] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 63);
    c.in[1] = kt_filled(t, 2, shape, KT_UNIFORM, 64);
    c.in[1].offset[1] = FIRST;
    c.in[2] = whole_numbers(tokens, 131, VOCABULARY, -100);
    c.in[3] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 65);
    cr_run(&c, d);

    for (int which = 0; which < 3; which++) {
        c = (cr_case){ .row = "cross_entropy",
                       .cpu = dti_cross_entropy_cpu,
                       .n_in = 4,
                       .n_out = 3,
                       .which = which,
                       .attr = &attr,
                       .ulps = cr_function_ulps(),
                       .out = { .dtype = DT_F32, .n_axes = 1, .shape = { tokens } } };
        c.in[0] = kt_filled(t, 2, shape, KT_UNIFORM, 64);
        c.in[1] = whole_numbers(tokens, 131, VOCABULARY, -100);
        c.in[2] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 66);
        c.in[3] = kt_filled(DT_F32, 2, sums, KT_UNIFORM, 67);
        for (int64_t i = 0; i < 3 * tokens; i++) ((float *)c.in[3].data)[i] += 2.0f;
        for (int r = 0; r < 3; r++)
            if (r != which) c.others[r] = kt_local(DT_F32, 1, &tokens);
        cr_run(&c, d);
    }
}

DT_TEST(cuda_loss, cross_entropy_is_that_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_entropy(&d, kt_floats[t], 0, 5);
        run_entropy(&d, kt_floats[t], 3, 0);
        run_entropy(&d, kt_floats[t], 7, 33);
        run_entropy(&d, kt_floats[t], 30, 1100);
    }
}

DT_TEST(cuda_loss, targets_are_counted)
{
    static const dti_count_attr ignored = { -100 };
    static const int64_t sizes[] = { 0, 1, 777 };
    CR_DEVICE d = cr_open();

    for (size_t s = 0; s < DT_COUNT(sizes); s++) {
        cr_case c = { .row = "count_targets",
                      .cpu = dti_count_targets_cpu,
                      .n_in = 1,
                      .attr = &ignored,
                      .out = { .dtype = DT_F32, .n_axes = 0 } };
        c.in[0] = whole_numbers(sizes[s], 131, VOCABULARY, -100);
        cr_run(&c, &d);
    }
}

DT_TEST(cuda_loss, a_target_out_of_range_is_an_error)
{
    const int64_t n = 3, sums[] = { 3, 2 };
    float out[3][3];
    int32_t targets[] = { 0, VOCABULARY, -100 };
    dt_local in[4] = { kt_filled(DT_F32, 2, sums, KT_EQUAL, 1), kt_local(DT_I32, 1, &n),
                       kt_filled(DT_F32, 1, &n, KT_EQUAL, 1),
                       kt_filled(DT_F32, 2, sums, KT_EQUAL, 1) };
    dt_local results[3];
    CR_DEVICE d = cr_open();

    memcpy(in[1].data, targets, sizeof targets);
    for (int i = 0; i < 4; i++) {
        void *host = in[i].data;
        in[i].data = cr_up(&d, &in[i], 0);
        dti_big_free(host, (size_t)kt_count(&in[i]) * dt_dtype_size(in[i].dtype) + 64);
    }
    for (int r = 0; r < 3; r++) {
        results[r] = (dt_local){ .data = out[r], .dtype = DT_F32, .n_axes = 1, .shape = { 3 } };
        results[r].data = cr_up(&d, &results[r], 0);
    }
    DT_ASSERT_CUDA(
        d.m,
        dt_test_cuda_row(d.m, "cross_entropy")(
            d.c, &(dt_kargs){ .in = in, .out = results, .attr = &attr, .n_in = 4, .n_out = 3 }));
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c),
                         "target 3000 is neither ignored nor in the vocabulary");
    for (int i = 0; i < 4; i++) cr_release(&d, &in[i], in[i].data, 0);
    for (int r = 0; r < 3; r++) cr_release(&d, &results[r], results[r].data, 0);
}
