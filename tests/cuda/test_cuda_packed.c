/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with packed weights on a device, beside the CPU's: sums add up in another order. */
#include "tests/cuda/rows.h"

#include "dtensor/kernels/attrs.h"

typedef struct packed_shape {
    int64_t m, k, n, group;
    int bits;
    bool zeros, floats;
} packed_shape;

static dt_local bytes_of(int64_t rows, int64_t n, int below, uint32_t seed)
{
    dt_local x = kt_local(DT_U8, 2, (int64_t[]){ rows, n });

    for (int64_t i = 0; i < rows * n; i++)
        ((uint8_t *)x.data)[i] = (uint8_t)(kt_random(&seed) % (uint32_t)below);
    return x;
}

static void run_packed(const cr_device *d, packed_shape s, dt_dtype dtype, dt_dtype scales,
                       dt_dtype out)
{
    const dti_packed_attr attr = { out, s.bits, s.group };
    const double largest = s.floats ? 448.0 : s.bits == 8 ? 255.0 : 15.0;
    cr_case c = { .row = s.floats  ? "linear_e4m3"
                         : s.zeros ? "linear_packed_zeros"
                                   : "linear_packed",
                  .cpu = s.floats ? dti_linear_e4m3_cpu : dti_linear_packed_cpu,
                  .attr = &attr,
                  .n_in = s.zeros ? 4 : 3,
                  .out = { .dtype = out, .n_axes = 2, .shape = { s.m, s.n } },
                  .ulps = 1,
                  .slack = 0x1p-22 * largest * (double)s.k };

    c.in[0] = kt_filled(dtype, 2, (int64_t[]){ s.m, s.k }, KT_UNIFORM, 11);
    c.in[1] = bytes_of(s.n, s.k * s.bits / 8, 256, 12);
    for (int64_t i = 0; i < s.n * s.k && s.floats; i++) /* NaN is none of the codes */
        if ((((const uint8_t *)c.in[1].data)[i] & 127) == 127) ((uint8_t *)c.in[1].data)[i] = 5;
    c.in[2] = kt_filled(scales, 2, (int64_t[]){ s.n, s.k / s.group }, KT_UNIFORM, 13);
    if (s.zeros) c.in[3] = bytes_of(s.n, s.k / s.group, 1 << s.bits, 14);
    for (c.skew = 0; c.skew < 2; c.skew++) {
        cr_case again = c;
        for (int i = 0; i < c.n_in; i++) { /* which the run frees */
            again.in[i] = kt_local(c.in[i].dtype, 2, c.in[i].shape);
            memcpy(again.in[i].data, c.in[i].data, cr_bytes(&c.in[i]));
        }
        cr_run(&again, d);
    }
    for (int i = 0; i < c.n_in; i++) kt_release(&c.in[i]);
}

DT_TEST(cuda_packed, products_are_those_of_the_cpu)
{
    static const int64_t inputs[][2] = { { 16, 16 },   { 96, 32 },   { 384, 128 },
                                         { 512, 512 }, { 1024, 64 }, { 0, 32 } };
    static const int64_t rows[] = { 1, 3, 8, 17, 0 };
    CR_DEVICE d = cr_open();
    int turn = 0;

    for (size_t k = 0; k < DT_COUNT(inputs); k++)
        for (size_t m = 0; m < DT_COUNT(rows); m++)
            for (int t = 0; t < 5; t++, turn++) {
                const dt_dtype dtype = kt_floats[turn % 3];
                const packed_shape s = { rows[m],       inputs[k][0], 1 + turn % 9, inputs[k][1],
                                         t < 2 ? 4 : 8, t % 2 == 1,   t == 4 };
                run_packed(&d, s, dtype, turn % 2 == 0 ? dtype : DT_F32,
                           turn % 4 == 3 ? DT_F32 : dtype);
            }
}
