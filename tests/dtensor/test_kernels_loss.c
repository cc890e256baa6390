/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of embeddings' gradients, of sums of gradients and of cross entropy, against float64. */
#include "tests/dtensor/test_kernels.h"

static dt_local ids_of(int64_t n, int32_t modulo)
{
    dt_local ids = kt_local(DT_I32, 1, &n);

    for (int64_t i = 0; i < n; i++) /* 1 is frequent, and some are of no row */
        ((int32_t *)ids.data)[i] = i % 3 == 0 ? 1 : (int32_t)(i * 7 % (modulo + 2)) - 1;
    return ids;
}

static void run_embedding(dt_dtype t, int64_t n_ids, int64_t rows, int64_t first, int64_t d,
                          int64_t padding)
{
    const int64_t dy[] = { n_ids, d }, table[] = { rows, d };
    const dti_embedding_attr attr = { padding };
    kt_case c = {
        .name = "embedding_backward", .kernel = dti_embedding_backward_cpu, .n_in = 3, .attr = &attr
    };

    c.in[0] = kt_filled(t, 2, dy, KT_UNIFORM, 51);
    c.in[1] = ids_of(n_ids, 23);
    c.in[2] = kt_local(t, 2, table);
    c.in[2].offset[0] = first;
    c.out = (dt_local){ .dtype = DT_F32, .n_axes = 2, .shape = { rows, d } };
    kt_expect(&c);
    for (int64_t i = 0; i < n_ids; i++) {
        const int64_t row = ((const int32_t *)c.in[1].data)[i] - first;
        for (int64_t k = 0; k < d && row >= 0 && row < rows && row + first != padding; k++) {
            c.want[row * d + k] += kt_get(&c.in[0], i * d + k);
            c.slack[row * d + k] += 0x1p-24 * (32.0 + (double)n_ids / 32.0);
        }
    }
    kt_run(&c);
}

DT_TEST(kernels_loss, embeddings_add_rows_by_id)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_embedding(kt_floats[t], 30, 23, 0, 33, -1);
        run_embedding(kt_floats[t], 30, 8, 8, 7, -1);
        run_embedding(kt_floats[t], 30, 0, 23, 7, -1);
        run_embedding(kt_floats[t], 0, 4, 0, 7, -1);
        run_embedding(kt_floats[t], 3, 4, 0, 0, -1);
        run_embedding(kt_floats[t], 900, 23, 0, 1040, -1);
        run_embedding(kt_floats[t], 30, 23, 0, 33, 1); /* the frequent one is padding */
        run_embedding(kt_floats[t], 30, 8, 8, 7, 14);
    }
}

DT_TEST(kernels_loss, sums_of_gradients_stay_where_they_are)
{
    static const int64_t sizes[] = { 0, 1, 257, 40000 };
    const dt_dtype *t = kt_floats;

    for (size_t i = 0; i < DT_COUNT(sizes) * DT_COUNT(kt_floats); i++) {
        const int64_t n = sizes[i / DT_COUNT(kt_floats)];
        dt_local in[] = { kt_filled(t[i % 3], 1, &n, KT_UNIFORM, 1),
                          kt_filled(DT_F32, 1, &n, KT_UNIFORM, 2) };
        dt_local before = kt_filled(DT_F32, 1, &n, KT_UNIFORM, 2);
        dti_cpu *cpu;
        DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
        DT_ASSERT_OK(dti_accumulate_cpu(&(dt_kargs){ in, &in[1], NULL, cpu, 2, 1, NULL }));
        for (int64_t k = 0; k < n; k++)
            DT_ASSERT(kt_get(&in[1], k) ==
                      (double)((float)kt_get(&before, k) + (float)kt_get(&in[0], k)));
        dti_cpu_destroy(&cpu);
        kt_release(&in[0]);
        kt_release(&in[1]);
        kt_release(&before);
    }
}

/* --- cross entropy: a part of a vocabulary of 3000 -------------------------------------------- */

enum { FIRST = 700, VOCABULARY = 3000 };
static const dti_cross_entropy_attr attr = { VOCABULARY, -100, 0.1, 0.01 };

static dt_local targets_of(int64_t n)
{
    dt_local targets = kt_local(DT_I32, 1, &n);

    for (int64_t i = 0; i < n; i++)
        ((int32_t *)targets.data)[i] = i % 5 == 4 ? -100 : (int32_t)(i * 131 % VOCABULARY);
    return targets;
}

static void run_sums(dt_dtype t, int64_t tokens, int64_t v, int64_t n_sums)
{
    const int64_t shape[] = { tokens, v };
    kt_case c = {
        .name = "cross_entropy_sums", .kernel = dti_cross_entropy_sums_cpu, .n_in = 3, .attr = &attr
    };

    c.in[0] = kt_filled(t, 2, shape, KT_UNIFORM, 61);
    c.in[0].offset[1] = FIRST;
    c.in[1] = targets_of(tokens);
    c.in[2] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 62);
    if (v == 0)
        for (int64_t i = 0; i < tokens; i++) ((float *)c.in[2].data)[i] = -INFINITY;
    c.out = (dt_local){ .dtype = DT_F32, .n_axes = 2, .shape = { tokens, n_sums } };
    kt_expect(&c);
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t at = ((const int32_t *)c.in[1].data)[i] - FIRST;
        double *want = c.want + i * n_sums, *slack = c.slack + i * n_sums;
        for (int64_t k = 0; k < v; k++) {
            const double x = kt_get(&c.in[0], i * v + k);
            want[0] += exp(x - kt_get(&c.in[2], i));
            if (n_sums > 2) want[2] += x;
            if (k == at) want[1] = x;
        }
        slack[0] = 0x1p-24 * 64.0 * want[0];
        if (n_sums > 2) slack[2] = 0x1p-24 * 64.0 * (double)v;
    }
    kt_run(&c);
}

static void run_slope(dt_dtype t, int64_t tokens, int64_t v)
{
    const int64_t shape[] = { tokens, v };
    kt_case c = { .name = "cross_entropy_backward",
                  .kernel = dti_cross_entropy_backward_cpu,
                  .n_in = 4,
                  .attr = &attr };

    c.in[0] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 63);
    c.in[1] = kt_filled(t, 2, shape, KT_UNIFORM, 64);
    c.in[1].offset[1] = FIRST;
    c.in[2] = targets_of(tokens);
    c.in[3] = kt_filled(DT_F32, 1, &tokens, KT_UNIFORM, 65);
    c.out = (dt_local){ .dtype = t, .n_axes = 2, .shape = { tokens, v } };
    kt_expect(&c);
    for (int64_t i = 0; i < tokens * v; i++) {
        const int32_t target = ((const int32_t *)c.in[2].data)[i / v];
        const double dloss = kt_get(&c.in[0], i / v), lse = kt_get(&c.in[3], i / v);
        const double p = exp(kt_get(&c.in[1], i) - lse) * (1.0 + 2.0 * 0.01 * lse);
        if (target == -100) continue;
        c.want[i] = dloss * (p - 0.9 * (i % v == target - FIRST) - 0.1 / VOCABULARY);
        c.slack[i] = 0x1p-22 * (1.0 + p);
    }
    kt_run(&c);
}

DT_TEST(kernels_loss, cross_entropy_matches_float64)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int64_t n_sums = 2; n_sums <= 3; n_sums++) {
            run_sums(kt_floats[t], 0, 5, n_sums);
            run_sums(kt_floats[t], 3, 0, n_sums);
            run_sums(kt_floats[t], 7, 33, n_sums);
            run_sums(kt_floats[t], 30, 2100, n_sums);
        }
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        run_slope(kt_floats[t], 0, 5);
        run_slope(kt_floats[t], 3, 0);
        run_slope(kt_floats[t], 7, 33);
        run_slope(kt_floats[t], 30, 2100);
    }
}
