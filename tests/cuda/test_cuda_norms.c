/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms and rotary positions. A norm's sum of squares adds up in another order than on the CPU:
 * both are within a few roundings of the exact sum, so the scale differs by a few units of f32, and
 * a result near the middle between two values of its dtype may go the other way. */
#include "tests/cuda/rows.h"

static const dti_norm_attr norm_attr = { 1e-5f };

/* Rows that fit into a warp's registers, into a block's, and into none. */
static const int64_t norm_shapes[][2] = { { 0, 8 },    { 3, 0 },    { 1, 1 },    { 5, 3 },
                                          { 9, 128 },  { 17, 65 },  { 2, 512 },  { 2, 1024 },
                                          { 3, 1500 }, { 1, 4096 }, { 2, 8200 }, { 1, 9001 } };

/* In units of the output: f32 passes the scale's difference on, with a rounding of its own or two;
 * halves only see it where it changes which neighbour is nearer, twice at most. */
static double norm_ulps(dt_dtype t)
{
    return t == DT_F32 ? 6.0 : 2.0;
}

static void run_norm(const cr_device *d, const char *row, dt_kernel cpu, dt_dtype t,
                     const int64_t shape[2], int variant)
{
    cr_case c = { .row = row,
                  .cpu = cpu,
                  .n_in = strcmp(row, "layer_norm") == 0 ? 3 : 2,
                  .attr = &norm_attr,
                  .skew = variant & 1,
                  .in_place = variant >> 1,
                  .ulps = norm_ulps(t),
                  .out = { .dtype = t, .n_axes = 2, .shape = { shape[0], shape[1] } } };

    /* (x - mean) w + b loses digits where the terms cancel */
    if (c.n_in == 3) c.slack = (t == DT_F32 ? 0x1p-20 : t == DT_F16 ? 0x1p-10 : 0x1p-7) * 2.0;
    c.in[0] = kt_filled(t, 2, shape, KT_UNIFORM, 11);
    for (int i = 1; i < c.n_in; i++)
        c.in[i] = kt_filled(t, 1, shape + 1, KT_UNIFORM, (uint32_t)(20 + i));
    cr_run(&c, d);
}

DT_TEST(cuda_norms, rows_are_those_of_the_cpu)
{
    static const struct {
        const char *name;
        dt_kernel cpu;
    } rows[] = { { "rms_norm", dti_rms_norm_cpu },
                 { "rms_norm_once", dti_rms_norm_once_cpu },
                 { "rms_norm_1p", dti_rms_norm_1p_cpu },
                 { "layer_norm", dti_layer_norm_cpu } };
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(rows); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t s = 0; s < DT_COUNT(norm_shapes); s++)
                for (int variant = 0; variant < 4; variant++)
                    run_norm(&d, rows[r].name, rows[r].cpu, kt_floats[t], norm_shapes[s], variant);
}

/* Rows of equal values have an exact sum, so nothing may differ. */
DT_TEST(cuda_norms, equal_values_give_equal_bits)
{
    static const int64_t shape[] = { 3, 2048 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        cr_case c = { .row = "rms_norm",
                      .cpu = dti_rms_norm_cpu,
                      .n_in = 2,
                      .attr = &norm_attr,
                      .out = { .dtype = kt_floats[t], .n_axes = 2, .shape = { 3, 2048 } } };
        c.in[0] = kt_filled(kt_floats[t], 2, shape, KT_EQUAL, 1);
        c.in[1] = kt_filled(kt_floats[t], 1, shape + 1, KT_UNIFORM, 2);
        cr_run(&c, &d);
    }
}

/* --- rotary positions ------------------------------------------------------------------------- */

static dt_local positions_of(const int64_t shape[2], int32_t first, int32_t step)
{
    dt_local p = kt_local(DT_I32, 2, shape);

    for (int64_t i = 0; i < kt_count(&p); i++) ((int32_t *)p.data)[i] = first + (int32_t)i * step;
    return p;
}

/* Cosines and sines of f32 are within one unit of the exact ones on either side; times a factor and
 * rounded once more. */
DT_TEST(cuda_norms, tables_are_within_a_unit)
{
    static const int64_t shapes[][3] = {
        { 1, 1, 1 }, { 2, 3, 5 }, { 1, 70, 64 }, { 2, 0, 8 }, { 1, 2, 0 }
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            const dti_rope_table_attr attr = { kt_floats[t], 1.5f };
            const int64_t half = shapes[s][2];
            cr_case c = { .row = "rope_table",
                          .cpu = dti_rope_table_cpu,
                          .n_in = 2,
                          .attr = &attr,
                          .ulps = kt_floats[t] == DT_F32 ? 2.0 : 1.0,
                          .out = { .dtype = kt_floats[t],
                                   .n_axes = 3,
                                   .shape = { shapes[s][0], shapes[s][1], 2 * half } } };
            c.in[0] = positions_of(shapes[s], s == 2 ? 100000 : 0, s == 2 ? 997 : 1);
            c.in[1] = kt_local(DT_F32, 1, &half);
            for (int64_t i = 0; i < half; i++)
                ((float *)c.in[1].data)[i] = powf(10000.0f, -(float)i / (float)half);
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_norms, rotations_have_the_bits_of_the_cpu)
{
    static const struct {
        int64_t x[4], rotated;
    } shapes[] = { { { 1, 1, 1, 2 }, 2 },      { { 2, 3, 4, 16 }, 16 }, { { 1, 5, 3, 80 }, 20 },
                   { { 1, 2, 32, 128 }, 128 }, { { 2, 1, 2, 10 }, 6 },  { { 1, 3, 40, 64 }, 64 },
                   { { 1, 0, 4, 8 }, 8 },      { { 1, 2, 0, 8 }, 8 },   { { 1, 2, 2, 24 }, 0 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int variant = 0; variant < 4; variant++) {
                const int64_t *x = shapes[s].x, table[] = { x[0], x[1], shapes[s].rotated };
                cr_case c = { .row = "rope",
                              .cpu = dti_rope_cpu,
                              .n_in = 2,
                              .skew = variant & 1,
                              .in_place = variant >> 1,
                              .out = { .dtype = kt_floats[t],
                                       .n_axes = 4,
                                       .shape = { x[0], x[1], x[2], x[3] } } };
                c.in[0] = kt_filled(kt_floats[t], 4, x, KT_UNIFORM, 31);
                c.in[1] = kt_filled(kt_floats[t], 3, table, KT_UNIFORM, 32);
                cr_run(&c, &d);
            }
}
