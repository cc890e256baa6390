/* SPDX-License-Identifier: Apache-2.0
 *
 * A decode step that repeats does no malloc and misses no cache; caches hold what a pass over the
 * whole text would compute. */
#include <dtensor/models.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

enum { WARM_UP = 3, STEPS = 8 };

static const char *const fixtures[] = { "llama/uneven", "qwen3/base", "gpt_neo/base" };

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **out)
{
    char relative[128], path[DT_TEST_PATH_BYTES];

    (void)snprintf(relative, sizeof relative, "tests/golden/%s", fixture);
    return dt_model_load(mesh, dt_test_source_path(path, relative), NULL, out);
}

/* One greedy step as dt_generate() does it. */
static dt_status step(dt_tape *t, dt_model *m, dt_state *s, int32_t *id)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_tensor *best;

    dt_tape_reset(t);
    best = dt_argmax_key(t, dt_model_forward(t, m, s, id, 1, DT_LOGITS_LAST));
    best = dt_argmax_id(t, dt_move(t, best, whole));
    DT_TRY(dt_tape_status(t));
    *id = *(const int32_t *)dt_tensor_local(best)->data;
    return DT_OK;
}

static dt_status steps_are_free(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_status st = DT_OK;
    dt_model *m = NULL;
    dt_state *s = NULL;
    dt_tape *t = NULL;
    uint64_t allocs = 0, misses = 0, calls = 0;
    int32_t id = 1;

    DT_TRY(load(mesh, arg, &m));
    DT_TRY_TO(done, st, dt_state_create(m, 1, WARM_UP + STEPS, &s));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    for (int i = 0; i < WARM_UP + STEPS; i++) {
        if (i == WARM_UP) {
            allocs = dti_alloc_count();
            dt_op_counts(rt, &calls, &misses);
        }
        DT_TRY_TO(done, st, step(t, m, s, &id));
    }
    {
        const uint64_t before = misses, calls_before = calls;
        dt_op_counts(rt, &calls, &misses);
        DT_EXPECT_TO(done, st, calls - calls_before > STEPS * 20, "operators ran");
        DT_EXPECT_TO(done, st, misses == before, "%llu misses of the decision cache",
                     (unsigned long long)(misses - before));
        DT_EXPECT_TO(done, st, dti_alloc_count() == allocs, "%llu allocations",
                     (unsigned long long)(dti_alloc_count() - allocs));
    }
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    dt_model_release(&m);
    return st;
}

DT_TEST(decode, a_warm_step_allocates_nothing_and_misses_no_cache)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_test_on_ranks("tp=1", steps_are_free, fixtures[f]);
        dt_test_on_ranks("tp=2", steps_are_free, fixtures[f]);
        dt_test_on_ranks("tp=3", steps_are_free, fixtures[f]);
    }
}

/* Logits of the last of n tokens: in one pass, and token by token through the caches. */
static dt_status cached_equals_whole(dt_mesh *mesh, const void *arg)
{
    enum { N = 11 };
    static const int32_t ids[N] = { 3, 14, 15, 92, 6, 5, 35, 8, 9, 79, 3 };
    dt_status st = DT_OK;
    dt_model *m = NULL;
    dt_state *s = NULL;
    dt_tape *t = NULL;
    dt_tensor *y, *one = NULL, *all = NULL;

    DT_TRY(load(mesh, arg, &m));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_state_create(m, 1, N, &s));
    y = dt_model_forward(t, m, s, ids, N, DT_LOGITS_LAST);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_full_tensor(y, &all));
    dt_state_rewind(s, 0);
    DT_EXPECT_TO(done, st, dt_state_length(s) == 0, "rewound");
    for (int i = 0; i < N; i++) {
        dt_tape_reset(t);
        y = dt_model_forward(t, m, s, &ids[i], 1, DT_LOGITS_LAST);
        DT_TRY_TO(done, st, dt_tape_status(t));
    }
    DT_TRY_TO(done, st, dt_full_tensor(y, &one));
    for (int64_t v = 0; v < dt_model_info_of(m)->vocab_size; v++) {
        const float a = ((const float *)dt_tensor_local(one)->data)[v];
        const float b = ((const float *)dt_tensor_local(all)->data)[v];
        DT_EXPECT_TO(done, st, fabsf(a - b) <= 1e-4f * (1 + fabsf(b)), "logit %lld: %g and %g",
                     (long long)v, (double)a, (double)b);
    }
done:
    dt_tensor_release(&one);
    dt_tensor_release(&all);
    dt_tape_release(&t);
    dt_state_release(&s);
    dt_model_release(&m);
    return st;
}

DT_TEST(decode, caches_give_what_a_whole_pass_gives)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_test_on_ranks("tp=1", cached_equals_whole, fixtures[f]);
        dt_test_on_ranks("tp=3", cached_equals_whole, fixtures[f]);
    }
}

static dt_status bad_input(dt_mesh *mesh, const void *arg)
{
    const int32_t large[] = { 1, 100000 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_model *m = NULL;
    dt_state *s = NULL;
    int32_t out[64];
    int64_t n;

    (void)arg;
    DT_TRY(load(mesh, "llama/uneven", &m));
    DT_EXPECT_TO(done, st, dt_state_create(m, 1, 129, &s) == DT_ERR_ARG && s == NULL, "capacity");
    DT_TRY_TO(done, st, dt_state_create(m, 1, 16, &s));
    DT_EXPECT_TO(done, st, dt_generate(m, s, large, 2, &o, out, &n) == DT_ERR_ARG,
                 "20 tokens in 16");
    o.max_new_tokens = 4;
    DT_EXPECT_TO(done, st, dt_generate(m, s, large, 2, &o, out, &n) == DT_ERR_ARG && n == 0, "id");
    DT_EXPECT_TO(done, st, dt_generate(m, s, large, 0, &o, out, &n) == DT_ERR_ARG, "empty prompt");
    DT_TRY_TO(done, st, dt_generate(m, s, large, 1, &o, out, &n));
    DT_EXPECT_TO(done, st, n == 4 && dt_state_length(s) == 4, "a state survives refused calls");
done:
    dt_state_release(&s);
    dt_model_release(&m);
    return st;
}

DT_TEST(decode, bad_input_is_refused_and_harms_nothing)
{
    dt_test_on_ranks("tp=2", bad_input, NULL);
}
