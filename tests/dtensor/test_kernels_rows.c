/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators over rows: norms, rotary positions, copies, argmax. */
#include "tests/dtensor/test_kernels.h"

/* --- norms ------------------------------------------------------------------------------------ */

typedef enum norm_kind { RMS, RMS_ONCE, RMS_1P, LAYER } norm_kind;

static void expect_norm_row(kt_case *c, int64_t r, int64_t n, norm_kind kind)
{
    const bool layer = kind == LAYER;
    const dt_dtype t = c->out.dtype;
    const double eps = (double)((const dti_norm_attr *)c->attr)->eps;
    double mean = 0.0, square = 0.0, scale, most = 0.0;

    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(kt_get(&c->in[0], r * n + i)));
    for (int64_t i = 0; layer && i < n; i++) mean += kt_get(&c->in[0], r * n + i) / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += pow(kt_get(&c->in[0], r * n + i) - mean, 2.0) / (double)n;
    scale = 1.0 / sqrt(square + eps);
    for (int64_t i = 0; i < n; i++) {
        const double w = kt_get(&c->in[1], i) + (kind == RMS_1P ? 1.0 : 0.0);
        const double h = (kt_get(&c->in[0], r * n + i) - mean) * scale;
        c->want[r * n + i] = layer         ? h * w + kt_get(&c->in[2], i)
                             : kind == RMS ? kt_round(t, h) * w
                                           : h * w;
        /* f32 sums in several lanes; the mean cancels against x; rms_norm rounds h to the dtype */
        c->slack[r * n + i] = 0x1p-24 * ((double)n / 8 + 8) * fabs(h * w) +
                              (layer         ? 0x1p-24 * 16 * most * scale * fabs(w) + 0x1p-22
                               : kind == RMS ? 2 * kt_unit(t) * fabs(h * w)
                                             : 0.0);
    }
}

static void run_norm(norm_kind kind, dt_dtype t, int64_t rows, int64_t n, kt_fill fill)
{
    const int64_t shape[] = { rows, n };
    const dti_norm_attr attr = { 1e-5f };
    static const char *const names[] = { "rms_norm", "rms_norm_once", "rms_norm_1p", "layer_norm" };
    static const dt_kernel kernels[] = { dti_rms_norm_cpu, dti_rms_norm_once_cpu,
                                         dti_rms_norm_1p_cpu, dti_layer_norm_cpu };
    const bool layer = kind == LAYER;
    kt_case c = {
        .name = names[kind], .kernel = kernels[kind], .n_in = layer ? 3 : 2, .attr = &attr
    };

    c.in[0] = kt_filled(t, 2, shape, fill, 31);
    c.in[1] = kt_filled(t, 1, shape + 1, KT_UNIFORM, 32);
    if (layer) c.in[2] = kt_filled(t, 1, shape + 1, KT_UNIFORM, 33);
    c.out = (dt_local){ .dtype = t, .n_axes = 2, .shape = { rows, n } };
    kt_expect(&c);
    for (int64_t r = 0; r < rows && n > 0; r++) expect_norm_row(&c, r, n, kind);
    kt_run(&c);
}

DT_TEST(kernels_rows, norms_match_float64)
{
    for (norm_kind kind = RMS; kind <= LAYER; kind++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
                for (int64_t rows = 0; rows < 4; rows += 3)
                    run_norm(kind, kt_floats[t], rows, kt_sizes[s], KT_UNIFORM);
            run_norm(kind, kt_floats[t], 2, 96, KT_EQUAL);
            run_norm(kind, kt_floats[t], 2, 96, KT_ZERO);
            run_norm(kind, kt_floats[t], 3, 250, KT_MIXED);
            run_norm(kind, kt_floats[t], 41, 1001, KT_UNIFORM); /* wakes the pool */
        }
}

/* --- rope ------------------------------------------------------------------------------------- */

static void run_rope(dt_dtype t, int64_t batch, int64_t tokens, int64_t heads, int64_t e, int64_t r)
{
    const int64_t x[] = { batch, tokens, heads, e }, table[] = { batch, tokens, r };
    const double unit = kt_unit(t);
    kt_case c = { .name = "rope", .kernel = dti_rope_cpu, .n_in = 2 };

    c.in[0] = kt_filled(t, 4, x, KT_UNIFORM, 41);
    c.in[1] = kt_filled(t, 3, table, KT_UNIFORM, 42);
    c.out = (dt_local){ .dtype = t, .n_axes = 4, .shape = { batch, tokens, heads, e } };
    kt_expect(&c);
    for (int64_t row = 0; row < batch * tokens * heads; row++)
        for (int64_t i = 0; i < e; i++) {
            const int64_t half = r / 2, token = row / heads, at = i < half ? i : i - half;
            double a, b;
            c.want[row * e + i] = kt_get(&c.in[0], row * e + i);
            if (i >= r) continue;
            a = kt_round(t, kt_get(&c.in[0], row * e + i) * kt_get(&c.in[1], token * r + at));
            b = kt_round(t, kt_get(&c.in[0], row * e + (i < half ? i + half : i - half)) *
                                kt_get(&c.in[1], token * r + half + at));
            c.want[row * e + i] = i < half ? a - b : a + b;
            c.slack[row * e + i] = unit * 0.01 * (fabs(a) + fabs(b));
        }
    kt_run(&c);
}

DT_TEST(kernels_rows, rope_rotates_halves)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_rope(kt_floats[t], 1, 1, 1, 2, 2);
        run_rope(kt_floats[t], 2, 3, 2, 16, 16);
        run_rope(kt_floats[t], 1, 5, 3, 66, 66);
        run_rope(kt_floats[t], 1, 2, 3, 80, 32);
        run_rope(kt_floats[t], 0, 2, 3, 80, 32);
        run_rope(kt_floats[t], 1, 2, 0, 64, 64);
        run_rope(kt_floats[t], 1, 40, 8, 128, 128);
    }
}

static void check_rope_table(dt_dtype t, int64_t tokens, int64_t half, float factor)
{
    const int64_t positions[] = { 1, tokens };
    const dti_rope_table_attr attr = { t, factor };
    kt_case c = { .name = "rope_table", .kernel = dti_rope_table_cpu, .n_in = 2, .attr = &attr };

    c.in[0] = kt_local(DT_I32, 2, positions);
    c.in[1] = kt_local(DT_F32, 1, &half);
    for (int64_t i = 0; i < tokens; i++) ((int32_t *)c.in[0].data)[i] = (int32_t)(i * i * 37);
    for (int64_t i = 0; i < half; i++)
        ((float *)c.in[1].data)[i] = powf(10000.0f, -(float)i / (float)half);
    c.out = (dt_local){ .dtype = t, .n_axes = 3, .shape = { 1, tokens, 2 * half } };
    kt_expect(&c);
    for (int64_t i = 0; i < tokens * half; i++) {
        const float angle =
            (float)((int32_t *)c.in[0].data)[i / half] * ((float *)c.in[1].data)[i % half];
        const int64_t at = i / half * 2 * half + i % half;
        c.want[at] = cos((double)angle) * (double)factor;
        c.want[at + half] = sin((double)angle) * (double)factor;
        c.slack[at] = c.slack[at + half] = 0x1p-23;
    }
    kt_run(&c);
}

DT_TEST(kernels_rows, rope_table_holds_cosines_then_sines)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        check_rope_table(kt_floats[t], 0, 4, 1.0f);
        check_rope_table(kt_floats[t], 1, 1, 1.0f);
        check_rope_table(kt_floats[t], 50, 33, 1.25f);
    }
}

/* --- copies ----------------------------------------------------------------------------------- */

static void check_bits(const kt_case *c, const void *got)
{
    const int64_t n = kt_count(&c->out);

    for (int64_t i = 0; i < n; i++)
        if ((double)dti_load_f32(got, c->out.dtype, i) != c->want[i])
            dt_test_fail(__FILE__, __LINE__, "%s: element %lld is not exact", c->name,
                         (long long)i);
}

static void run_embedding(dt_dtype t, int64_t n_ids, int64_t rows, int64_t first, int64_t d)
{
    const int64_t table[] = { rows, d };
    kt_case c = { .name = "embedding", .kernel = dti_embedding_cpu, .n_in = 2 };

    c.in[0] = kt_local(DT_I32, 1, &n_ids);
    c.in[1] = kt_filled(t, 2, table, KT_UNIFORM, 51);
    c.in[1].offset[0] = first;
    c.out = (dt_local){ .dtype = t, .n_axes = 2, .shape = { n_ids, d } };
    kt_expect(&c);
    c.check = check_bits;
    for (int64_t i = 0; i < n_ids; i++) {
        const int64_t id = i * 7 % 23;
        ((int32_t *)c.in[0].data)[i] = (int32_t)id;
        for (int64_t k = 0; k < d; k++)
            if (id >= first && id < first + rows)
                c.want[i * d + k] = kt_get(&c.in[1], (id - first) * d + k);
    }
    kt_run(&c);
}

DT_TEST(kernels_rows, embedding_takes_its_own_rows)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_embedding(kt_floats[t], 30, 23, 0, 33);
        run_embedding(kt_floats[t], 30, 8, 8, 7);
        run_embedding(kt_floats[t], 30, 0, 23, 7);
        run_embedding(kt_floats[t], 0, 4, 0, 7);
        run_embedding(kt_floats[t], 3, 4, 0, 0);
        run_embedding(kt_floats[t], 64, 23, 0, 1024);
    }
}

/* x [2, 9, 5, 2] or another shape; its axis `axis` sliced. */
static void run_slice(const int64_t *x, dti_slice_attr attr)
{
    const int64_t rows = x[attr.axis], first = attr.begin < 0 ? attr.begin + rows : attr.begin;
    int64_t inner = 1, n = 1;
    kt_case c = { .name = "slice", .kernel = dti_slice_cpu, .n_in = 1, .attr = &attr };

    c.in[0] = kt_filled(DT_BF16, 4, x, KT_UNIFORM, 52);
    c.out = (dt_local){ .dtype = DT_BF16, .n_axes = 4 };
    for (int a = 0; a < 4; a++) {
        c.out.shape[a] = a == attr.axis ? attr.count : x[a];
        n *= c.out.shape[a];
        if (a > attr.axis) inner *= x[a];
    }
    kt_expect(&c);
    c.check = check_bits;
    for (int64_t i = 0; i < n; i++)
        c.want[i] = kt_get(&c.in[0], (i / (attr.count * inner) * rows + first) * inner +
                                         i % (attr.count * inner));
    kt_run(&c);
}

DT_TEST(kernels_rows, slice_counts_from_either_end)
{
    static const struct {
        int64_t x[4];
        dti_slice_attr attr;
    } cases[] = {
        { { 2, 9, 5, 2 }, { 1, 3, 4 } },  { { 3, 9, 5, 2 }, { 1, -1, 1 } },
        { { 2, 9, 5, 2 }, { 1, -4, 2 } }, { { 1, 1, 1, 2 }, { 1, 0, 1 } },
        { { 2, 9, 5, 2 }, { 1, 9, 0 } },  { { 0, 9, 5, 2 }, { 1, 0, 3 } },
        { { 2, 3, 0, 2 }, { 1, 0, 3 } },  { { 7, 3, 5, 2 }, { 0, 2, 3 } },
        { { 2, 3, 6, 2 }, { 2, -2, 2 } }, { { 2, 3, 5, 9 }, { 3, 4, 5 } },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) run_slice(cases[i].x, cases[i].attr);
}

DT_TEST(kernels_rows, kv_write_puts_rows_at_their_positions)
{
    enum { B = 2, T = 3, S = 10, K = 2, E = 5 };
    const int64_t k_shape[] = { B, T, K, E }, p_shape[] = { B, T }, c_shape[] = { B, S, K, E };
    static const int32_t positions[B * T] = { 4, 5, 6, 9, 0, 2 };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        dt_local in[3] = { kt_filled(kt_floats[t], 4, k_shape, KT_UNIFORM, 1),
                           kt_local(DT_I32, 2, p_shape),
                           kt_filled(kt_floats[t], 4, c_shape, KT_EQUAL, 1) };
        memcpy(in[1].data, positions, sizeof positions);
        DT_ASSERT_OK(dti_kv_write_cpu(&(dt_kargs){ in, &in[2], NULL, cpu, 3, 1, NULL }));
        for (int64_t i = 0; i < B * S * K * E; i++) {
            const int64_t row = i / (K * E);
            double want = 0.75;
            for (int64_t j = 0; j < B * T; j++)
                if (row == j / T * S + positions[j]) want = kt_get(&in[0], j * K * E + i % (K * E));
            DT_ASSERT(kt_get(&in[2], i) == want);
        }
        for (int i = 0; i < 3; i++) kt_release(&in[i]);
    }
}

/* --- argmax ----------------------------------------------------------------------------------- */

/* The id of the largest element of a row that is cut in two at `cut`, as ranks would find it. */
static int32_t argmax_of(dti_cpu *cpu, dt_dtype t, const float *values, int64_t n, int64_t cut)
{
    static unsigned char bytes[2000 * 8];
    int64_t keys[2];
    int32_t id;
    dt_local key = { .dtype = DT_I64, .n_axes = 1, .shape = { 1 } };
    dt_local ids = { .data = &id, .dtype = DT_I32, .n_axes = 1, .shape = { 1 } };

    for (int64_t i = 0; i < n; i++) dti_store_f32(bytes, t, i, values[i]);
    for (int part = 0; part < 2; part++) {
        dt_local x = { .dtype = t, .n_axes = 2, .shape = { 1, part ? n - cut : cut } };
        x.data = bytes + (part ? cut * (int64_t)dt_dtype_size(t) : 0);
        x.offset[1] = part ? cut : 0;
        key.data = &keys[part];
        DT_ASSERT_OK(dti_argmax_key_cpu(&(dt_kargs){ &x, &key, NULL, cpu, 1, 1, NULL }));
    }
    if (keys[1] > keys[0]) keys[0] = keys[1];
    key.data = &keys[0];
    DT_ASSERT_OK(dti_argmax_id_cpu(&(dt_kargs){ &key, &ids, NULL, cpu, 1, 1, NULL }));
    return id;
}

DT_TEST(kernels_rows, argmax_finds_the_first_largest)
{
    static float x[2000];

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            for (size_t s = 1; s < DT_COUNT(kt_sizes); s++)
                for (int64_t at = 0; at < kt_sizes[s]; at += 1 + at / 3) {
                    const int64_t n = kt_sizes[s];
                    const dt_dtype dtype = kt_floats[t];
                    for (int64_t cut = 0; cut <= n; cut += 1 + n / 3) {
                        for (int64_t i = 0; i < n; i++) x[i] = -2.0f - (float)(i * 13 % 7);
                        DT_ASSERT_EQ_INT(argmax_of(cpu, dtype, x, n, cut), 0);
                        x[at] = x[n - 1] = -1.0f; /* two equal ones: the first */
                        DT_ASSERT_EQ_INT(argmax_of(cpu, dtype, x, n, cut), at);
                        x[at] = INFINITY;
                        DT_ASSERT_EQ_INT(argmax_of(cpu, dtype, x, n, cut), at);
                        x[n - 1] = NAN;
                        DT_ASSERT_EQ_INT(argmax_of(cpu, dtype, x, n, cut), n - 1);
                        x[at] = -NAN;
                        DT_ASSERT_EQ_INT(argmax_of(cpu, dtype, x, n, cut), at);
                    }
                }
        dti_cpu_destroy(&cpu);
    }
}

DT_TEST(kernels_rows, argmax_of_special_rows)
{
    static const float zeros[] = { -0.0f, 0.0f, -0.0f };
    static const float infinite[] = { -INFINITY, -INFINITY };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
    int64_t key = 0;
    int32_t id = 0;
    dt_local empty = { .data = &key, .dtype = DT_F32, .n_axes = 2, .shape = { 1, 0 } };
    dt_local keys = { .data = &key, .dtype = DT_I64, .n_axes = 1, .shape = { 1 } };
    dt_local ids = { .data = &id, .dtype = DT_I32, .n_axes = 1, .shape = { 1 } };

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    DT_ASSERT_EQ_INT(argmax_of(cpu, DT_F32, zeros, 3, 1), 0); /* both zeros are equal */
    DT_ASSERT_EQ_INT(argmax_of(cpu, DT_BF16, infinite, 2, 0), 0);
    DT_ASSERT_OK(dti_argmax_key_cpu(&(dt_kargs){ &empty, &keys, NULL, cpu, 1, 1, NULL }));
    DT_ASSERT(key == INT64_MIN);
    DT_ASSERT_OK(dti_argmax_id_cpu(&(dt_kargs){ &keys, &ids, NULL, cpu, 1, 1, NULL }));
    DT_ASSERT_EQ_INT(id, -1);
}

DT_TEST(kernels_rows, argmax_of_many_rows_on_threads)
{
    enum { ROWS = 40, N = 1000 };
    const int64_t shape[] = { ROWS, N };
    int64_t keys[KT_MAX_THREADS][ROWS];

    for (int t = 0; t < KT_MAX_THREADS; t++) {
        dt_local x = kt_filled(DT_BF16, 2, shape, KT_UNIFORM, 61);
        dt_local key = { .data = keys[t], .dtype = DT_I64, .n_axes = 1, .shape = { ROWS } };
        dti_pool *pool;
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_pool_create(t + 1, false, NULL, NULL, &pool));
        DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), pool, &cpu));
        DT_ASSERT_OK(dti_argmax_key_cpu(&(dt_kargs){ &x, &key, NULL, cpu, 1, 1, NULL }));
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t best = 0;
            for (int64_t i = 1; i < N; i++)
                if (kt_get(&x, r * N + i) > kt_get(&x, r * N + best)) best = i;
            DT_ASSERT_EQ_INT(UINT32_MAX - (uint32_t)keys[t][r], best);
        }
        DT_ASSERT(memcmp(keys[0], keys[t], sizeof keys[0]) == 0);
        dti_cpu_destroy(&cpu);
        dti_pool_destroy(&pool);
        kt_release(&x);
    }
}
