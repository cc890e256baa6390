/* SPDX-License-Identifier: Apache-2.0
 *
 * Choices: keys and experts are integers and must be the CPU's; weights of experts are a softmax
 * whose sum adds up in another order. */
#include "tests/cuda/rows.h"

#include "dtensor/argmax.h"

/* Values with ties, both zeros and, in every third row, NaN. */
static dt_local logits_of(dt_dtype t, const int64_t shape[2], uint32_t seed, bool with_nan)
{
    dt_local x = kt_filled(t, 2, shape, KT_UNIFORM, seed);

    for (int64_t i = 0; i < kt_count(&x); i++) {
        const uint32_t r = kt_random(&seed);
        if (r % 5 == 0) dti_store_f32(x.data, t, i, r % 2 == 0 ? 0.0f : -0.0f);
        if (r % 7 == 0) dti_store_f32(x.data, t, i, 0.875f);
        if (with_nan && i / shape[1] % 3 == 2 && r % 11 == 0) dti_store_f32(x.data, t, i, NAN);
        if (r % 13 == 0) dti_store_f32(x.data, t, i, -INFINITY);
    }
    return x;
}

DT_TEST(cuda_choices, keys_and_ids_are_those_of_the_cpu)
{
    static const int64_t shapes[][2] = { { 1, 1 },     { 4, 0 },    { 0, 5 },
                                         { 5, 33 },    { 2, 4096 }, { 3, 5001 },
                                         { 1, 70000 }, { 9, 8 },    { 10, 8193 } };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) {
                const int64_t rows = shapes[s][0];
                cr_case key = { .row = "argmax_key",
                                .cpu = dti_argmax_key_cpu,
                                .n_in = 1,
                                .skew = skew,
                                .out = { .dtype = DT_I64, .n_axes = 1, .shape = { rows } } };
                cr_case id = { .row = "argmax_id",
                               .cpu = dti_argmax_id_cpu,
                               .n_in = 1,
                               .skew = skew,
                               .out = { .dtype = DT_I32, .n_axes = 1, .shape = { rows } } };
                key.in[0] = logits_of(kt_floats[t], shapes[s], (uint32_t)s, true);
                key.in[0].offset[1] = 1000;
                id.in[0] = kt_local(DT_I64, 1, &rows);
                cr_run_cpu(&key, id.in[0].data);
                cr_run(&key, &d);
                cr_run(&id, &d);
            }
}

/* The first of equal elements, however far apart the threads that see them are. */
DT_TEST(cuda_choices, the_first_of_equals_is_chosen)
{
    static const int64_t places[][2] = { { 5, 6 }, { 31, 32 }, { 255, 9000 }, { 4095, 4096 } };
    const int64_t n = 20000;
    CR_DEVICE d = cr_open();

    for (size_t p = 0; p < DT_COUNT(places); p++) {
        dt_local x = kt_filled(DT_BF16, 1, &n, KT_ZERO, 1), out = { .dtype = DT_I64 };
        dt_local in = x;
        const dt_kargs args = { .in = &in, .out = &out, .n_in = 1, .n_out = 1 };
        int64_t key;
        for (int k = 0; k < 2; k++) dti_store_f32(x.data, DT_BF16, places[p][k], 2.5f);
        in.data = cr_up(&d, &x, 0);
        out.data = cr_up(&d, &out, 0);
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "argmax_key")(d.c, &args));
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, &key, out.data, sizeof key, DTI_CUDA_DOWN));
        DT_ASSERT_EQ_INT(dti_argmax_index(key), places[p][0]);
        DT_ASSERT(dti_argmax_value(key) == 2.5f);
        cr_release(&d, &x, in.data, 0);
        cr_release(&d, &out, out.data, 0);
        kt_release(&x);
    }
}

/* A step that is recorded finds its scratch memory again when it runs. */
DT_TEST(cuda_choices, a_recorded_choice_looks_at_what_is_there_when_it_runs)
{
    const int64_t n = 20000;
    DT_ENDS(kt_release) dt_local x = kt_filled(DT_F32, 1, &n, KT_ZERO, 1);
    dt_local out = { .dtype = DT_I64 }, in = x;
    const dt_kargs args = { .in = &in, .out = &out, .n_in = 1, .n_out = 1 };
    dti_cuda_graph *graph;
    int64_t key;
    CR_DEVICE d = cr_open();

    in.data = cr_up(&d, &x, 0);
    out.data = cr_up(&d, &out, 0);
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "argmax_key")(d.c, &args));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &graph));
    for (int64_t place = 7; place < n; place += 6007) {
        ((float *)x.data)[place] = (float)place;
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, in.data, x.data, cr_bytes(&x), DTI_CUDA_UP));
        DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, graph));
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, &key, out.data, sizeof key, DTI_CUDA_DOWN));
        DT_ASSERT_EQ_INT(dti_argmax_index(key), place);
    }
    d.m->graph_destroy(graph);
    cr_release(&d, &x, in.data, 0);
    cr_release(&d, &out, out.data, 0);
}

/* --- the k largest ---------------------------------------------------------------------------- */

/* One chunk, several, chunks of chunks, and more than a chunk keeps. */
static const int64_t top_shapes[][3] = { { 1, 1, 1 },       { 4, 0, 3 },      { 0, 5, 2 },
                                         { 5, 33, 33 },     { 3, 70, 100 },   { 2, 2048, 2048 },
                                         { 2, 2049, 1 },    { 3, 5001, 164 }, { 1, 70000, 100 },
                                         { 2, 9000, 1024 }, { 2, 2100, 1500 } };

DT_TEST(cuda_choices, the_largest_keys_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(top_shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) {
                const int64_t *shape = top_shapes[s];
                cr_case c = { .row = "top_k_keys",
                              .cpu = dti_top_k_keys_cpu,
                              .n_in = 1,
                              .skew = skew,
                              .out = {
                                  .dtype = DT_I64, .n_axes = 2, .shape = { shape[0], shape[2] } } };
                c.in[0] = logits_of(kt_floats[t], shape, (uint32_t)(80 + s), true);
                c.in[0].offset[1] = 1000;
                cr_run(&c, &d);
            }
}

/* Of keys in any order, some of which stand for nothing. */
static void check_top(const cr_device *d, int64_t n_rows, int64_t n, int64_t k)
{
    dt_local keys = kt_local(DT_I64, 2, (int64_t[]){ n_rows, n });
    dt_local values = kt_local(DT_F32, 2, (int64_t[]){ n_rows, k });
    dt_local indices = kt_local(DT_I32, 2, (int64_t[]){ n_rows, k });
    dt_local in = keys, got[] = { values, indices }, host[] = { values, indices };
    const dt_kargs args = { .in = &in, .out = got, .n_in = 1, .n_out = 2 };
    dt_kargs on_cpu = { .in = &keys, .out = host, .n_in = 1, .n_out = 2 };
    uint32_t seed = (uint32_t)n;
    dti_cpu *cpu;

    dt_local want = kt_local(DT_I32, 2, (int64_t[]){ n_rows, k });
    for (int64_t i = 0; i < n_rows * n; i++) {
        const uint32_t r = kt_random(&seed);
        ((int64_t *)keys.data)[i] = i / n == 1 && i % n > k / 2
                                        ? DTI_NO_KEY
                                        : dti_argmax_key((float)(r % 97) - 40.0f, i * 7 % n);
    }
    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    on_cpu.cpu = cpu;
    DT_ASSERT_OK(dti_top_k_cpu(&on_cpu));
    dti_cpu_destroy(&cpu);
    in.data = cr_up(d, &keys, 0);
    for (int r = 0; r < 2; r++) got[r].data = cr_up(d, &want, 0);
    DT_ASSERT_CUDA(d->m, dt_test_cuda_row(d->m, "top_k")(d->c, &args));
    for (int r = 0; r < 2; r++) {
        DT_ASSERT_CUDA(d->m,
                       d->m->copy(d->c, want.data, got[r].data, cr_bytes(&host[r]), DTI_CUDA_DOWN));
        DT_ASSERT(memcmp(want.data, host[r].data, cr_bytes(&host[r])) == 0);
        cr_release(d, &want, got[r].data, 0);
        kt_release(&host[r]);
    }
    cr_release(d, &keys, in.data, 0);
    kt_release(&keys);
    kt_release(&want);
}

DT_TEST(cuda_choices, values_and_indices_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    check_top(&d, 1, 1, 1);
    check_top(&d, 3, 328, 164);
    check_top(&d, 2, 4999, 7);
    check_top(&d, 2, 2500, 1250); /* by rounds */
}

/* --- experts ---------------------------------------------------------------------------------- */

static const int64_t route_shapes[][3] = { { 1, 4, 2 }, { 7, 64, 8 }, { 3, 128, 8 }, { 2, 257, 5 },
                                           { 9, 8, 8 }, { 0, 8, 2 },  { 2, 33, 33 }, { 4, 5, 0 } };

DT_TEST(cuda_choices, experts_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(route_shapes); s++) {
            const int64_t *shape = route_shapes[s];
            const dti_route_attr attr = { .k = shape[2] };
            cr_case c = { .row = "route_ids",
                          .cpu = dti_route_ids_cpu,
                          .n_in = 1,
                          .attr = &attr,
                          .out = {
                              .dtype = DT_I32, .n_axes = 2, .shape = { shape[0], shape[2] } } };
            c.in[0] = logits_of(kt_floats[t], shape, (uint32_t)(40 + s), true);
            cr_run(&c, &d);
        }
}

/* By groups, by scores with a bias, by both; of logits whose scores are further apart than what e^x
 * is off by. */
DT_TEST(cuda_choices, experts_of_groups_are_those_of_the_cpu)
{
    static const struct {
        int64_t shape[2];
        dti_route_attr attr;
    } rows[] = {
        { { 7, 64 }, { .k = 8, .scores = DT_ROUTE_SIGMOID, .n_groups = 8, .n_chosen_groups = 4 } },
        { { 3, 6 }, { .k = 2, .scores = DT_ROUTE_SIGMOID, .n_groups = 2, .n_chosen_groups = 1 } },
        { { 5, 256 }, { .k = 8, .n_groups = 32, .n_chosen_groups = 3 } },
        { { 4, 33 }, { .k = 33, .scores = DT_ROUTE_SIGMOID } },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(rows); s++)
            for (int n_in = 1; n_in <= 2; n_in++) {
                const int64_t *shape = rows[s].shape;
                cr_case c = {
                    .row = n_in == 2 ? "route_ids_bias" : "route_ids",
                    .cpu = dti_route_ids_cpu,
                    .n_in = n_in,
                    .attr = &rows[s].attr,
                    .out = { .dtype = DT_I32, .n_axes = 2, .shape = { shape[0], rows[s].attr.k } }
                };
                c.in[0] = kt_local(kt_floats[t], 2, shape);
                for (int64_t i = 0; i < shape[0] * shape[1]; i++)
                    dti_store_f32(c.in[0].data, kt_floats[t], i,
                                  (float)((37 * i + 5 * (i / shape[1])) % shape[1]) / 64.0f - 2.0f);
                if (n_in == 2) c.in[1] = kt_filled(DT_F32, 1, shape + 1, KT_UNIFORM, 9);
                cr_run(&c, &d);
            }
}

DT_TEST(cuda_choices, weights_are_within_units_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(route_shapes); s++)
            for (int way = 0; way < 4; way++) {
                const int64_t *shape = route_shapes[s], ids[] = { shape[0], shape[2] };
                const dti_route_attr attr = { .k = shape[2],
                                              .normalise = way & 1,
                                              .scale = way > 1 ? 2.5f : 0.0f,
                                              .scores =
                                                  way > 1 ? DT_ROUTE_SIGMOID : DT_ROUTE_SOFTMAX };
                cr_case c = {
                    .row = "route_weights",
                    .cpu = dti_route_weights_cpu,
                    .n_in = 2,
                    .attr = &attr,
                    /* e^x within a unit on both sides, two sums, two quotients */
                    .ulps = kt_floats[t] == DT_F32 ? 24.0 : 1.0,
                    .out = { .dtype = kt_floats[t], .n_axes = 2, .shape = { shape[0], shape[2] } }
                };
                c.in[0] = logits_of(kt_floats[t], shape, (uint32_t)(60 + s), false);
                c.in[1] = kt_local(DT_I32, 2, ids);
                for (int64_t i = 0; i < kt_count(&c.in[1]); i++)
                    ((int32_t *)c.in[1].data)[i] = (int32_t)((7 * i + 1) % shape[1]);
                cr_run(&c, &d);
            }
}

DT_TEST(cuda_choices, an_expert_that_is_none_is_reported)
{
    static const int64_t shape[] = { 1, 4 };
    DT_ENDS(kt_release)
    dt_local ids = kt_local(DT_I32, 2, shape), x = kt_filled(DT_F32, 2, shape, KT_UNIFORM, 1);
    const dti_route_attr attr = { .k = 4, .normalise = 1 };
    dt_local in[] = { x, ids }, out = x;
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = 2, .n_out = 1 };
    CR_DEVICE d = cr_open();

    ((int32_t *)ids.data)[2] = 4;
    in[0].data = cr_up(&d, &x, 0);
    in[1].data = cr_up(&d, &ids, 0);
    out.data = cr_up(&d, &x, 0);
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "route_weights")(d.c, &args));
    DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), "expert 4");
    DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
    cr_release(&d, &x, in[0].data, 0);
    cr_release(&d, &ids, in[1].data, 0);
    cr_release(&d, &x, out.data, 0);
}
