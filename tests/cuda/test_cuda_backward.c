/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients: CUDA kernels beside the CPU's. Elements alone have the CPU's bits; sums add up in
 * another order. */
#include "tests/cuda/rows.h"

static const dti_scalar_attr cap = { 1.5 };

static const struct {
    const char *name;
    dt_kernel cpu;
    int n_in, n_out;
} elements[] = {
#define F(row, formula, slope) { #row "_backward", dti_##row##_backward_cpu, 2, 1 },
    DTI_CURVES(F)
#undef F
        { "soft_cap_backward", dti_soft_cap_backward_cpu, 2, 1 },
    { "silu_mul_backward", dti_silu_mul_backward_cpu, 3, 2 },
    { "gelu_tanh_mul_backward", dti_gelu_tanh_mul_backward_cpu, 3, 2 },
};

DT_TEST(cuda_backward, slopes_have_the_bits_of_the_cpu)
{
    static const int64_t sizes[] = { 0, 1, 7, 257, 4109 };
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(elements); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t s = 0; s < DT_COUNT(sizes); s++)
                for (int which = 0; which < elements[r].n_out; which++) {
                    cr_case c = { .row = elements[r].name,
                                  .cpu = elements[r].cpu,
                                  .n_in = elements[r].n_in,
                                  .n_out = elements[r].n_out,
                                  .which = which,
                                  .attr = &cap,
                                  .skew = cr_skews[s % 2],
                                  .ulps = cr_function_ulps(),
                                  .out = {
                                      .dtype = kt_floats[t], .n_axes = 1, .shape = { sizes[s] } } };
                    for (int i = 0; i < c.n_in; i++) {
                        c.in[i] =
                            kt_filled(kt_floats[t], 1, &sizes[s], KT_UNIFORM, (uint32_t)(7 + i));
                        for (int64_t k = 0; i == 1 && k < sizes[s]; k++)
                            dti_store_f32(c.in[1].data, kt_floats[t], k,
                                          12.0f * (float)kt_get(&c.in[1], k));
                    }
                    for (int o = 0; o < c.n_out; o++)
                        if (o != which) c.others[o] = kt_local(kt_floats[t], 1, &sizes[s]);
                    cr_run(&c, &d);
                }
}

static void run_norm(const cr_device *d, const char *row, dt_kernel cpu, dt_dtype t,
                     const int64_t shape[2], int which)
{
    const dti_norm_backward_attr attr = { 1e-5f, 7 };
    const bool layer = strcmp(row, "layer_norm_backward") == 0;
    const double rows = (double)shape[0], n = (double)shape[1];
    cr_case c = { .row = row,
                  .cpu = cpu,
                  .n_in = 3,
                  .n_out = layer ? 3 : 2,
                  .which = which,
                  .attr = &attr,
                  .skew = shape[1] & 1,
                  .ulps = 2.0,
                  .slack = 0x1p-23 * (which == 0 ? 8.0 * (n / 8 + 16) : 4.0 * rows * 16.0) };

    for (int i = 0; i < 2; i++) c.in[i] = kt_filled(t, 2, shape, KT_UNIFORM, (uint32_t)(11 + i));
    c.in[2] = kt_filled(t, 1, shape + 1, KT_UNIFORM, 21);
    for (int o = 0; o < c.n_out; o++)
        c.others[o] = kt_local(o == 0 ? t : DT_F32, o == 0 ? 2 : 1, o == 0 ? shape : shape + 1);
    c.out = c.others[which];
    c.out.data = NULL;
    kt_release(&c.others[which]);
    cr_run(&c, d);
}

DT_TEST(cuda_backward, norms_are_those_of_the_cpu)
{
    static const int64_t shapes[][2] = { { 0, 8 },    { 3, 0 },    { 1, 1 },
                                         { 5, 3 },    { 9, 128 },  { 200, 65 },
                                         { 2, 1024 }, { 3, 1500 }, { 65, 520 } };
    static const struct {
        const char *name;
        dt_kernel cpu;
        int n_out;
    } rows[] = { { "rms_norm_backward", dti_rms_norm_backward_cpu, 2 },
                 { "rms_norm_1p_backward", dti_rms_norm_1p_backward_cpu, 2 },
                 { "layer_norm_backward", dti_layer_norm_backward_cpu, 3 } };
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(rows); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t s = 0; s < DT_COUNT(shapes); s++)
                for (int which = 0; which < rows[r].n_out; which++)
                    run_norm(&d, rows[r].name, rows[r].cpu, kt_floats[t], shapes[s], which);
}

DT_TEST(cuda_backward, lines_are_those_of_the_cpu)
{
    static const int64_t shapes[][3] = { { 2, 3, 5 }, { 1, 700, 3 }, { 3, 2, 1030 }, { 0, 2, 2 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t axis = 0; axis < 3; axis++)
                for (int logarithm = 0; logarithm < 2; logarithm++) {
                    const dti_axis_attr attr = { axis };
                    const int64_t n_lines = shapes[s][(axis + 1) % 3] * shapes[s][(axis + 2) % 3];
                    if (n_lines > 300 && (t > 0 || logarithm)) continue; /* slow here */
                    cr_case c = { .row = logarithm ? "log_softmax_backward" : "softmax_backward",
                                  .cpu = logarithm ? dti_log_softmax_backward_cpu
                                                   : dti_softmax_backward_cpu,
                                  .n_in = 2,
                                  .attr = &attr,
                                  .skew = cr_skews[s % 2],
                                  .ulps = 2.0,
                                  .slack = 0x1p-20 };
                    for (int i = 0; i < 2; i++)
                        c.in[i] =
                            kt_filled(kt_floats[t], 3, shapes[s], KT_UNIFORM, (uint32_t)(31 + i));
                    c.out = c.in[0];
                    c.out.data = NULL;
                    cr_run(&c, &d);
                }
}

/* Runs of tokens as the CPU has them: the same bits. */
DT_TEST(cuda_backward, biases_have_the_bits_of_the_cpu)
{
    static const int64_t shapes[][3] = { { 1, 1, 1 },    { 3, 2, 5 }, { 1, 64, 33 },
                                         { 5, 129, 65 }, { 0, 4, 3 }, { 2, 3, 0 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            cr_case c = { .row = "add_bias_backward",
                          .cpu = dti_add_bias_backward_cpu,
                          .n_in = 1,
                          .skew = cr_skews[s % 2],
                          .out = { .dtype = DT_F32, .n_axes = 1, .shape = { shapes[s][2] } } };
            c.in[0] = kt_filled(kt_floats[t], 3, shapes[s], KT_UNIFORM, 41);
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_backward, rotations_have_the_bits_of_the_cpu)
{
    static const int64_t shapes[][5] = {
        { 1, 1, 1, 2, 2 }, { 2, 3, 5, 64, 64 }, { 1, 7, 3, 48, 22 }, { 0, 2, 2, 8, 8 }
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < 2 * DT_COUNT(shapes); s++) {
            const int64_t *shape = shapes[s / 2];
            const int64_t table[] = { shape[0], shape[1], shape[4] };
            cr_case c = { .row = "rope_backward",
                          .cpu = dti_rope_backward_cpu,
                          .n_in = 2,
                          .skew = cr_skews[s % 2] };
            c.in[0] = kt_filled(kt_floats[t], 4, shape, KT_UNIFORM, 51);
            c.in[1] = kt_filled(kt_floats[t], 3, table, KT_UNIFORM, 52);
            c.out = c.in[0];
            c.out.data = NULL;
            cr_run(&c, &d);
        }
}
