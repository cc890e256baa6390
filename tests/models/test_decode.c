/* SPDX-License-Identifier: Apache-2.0
 *
 * A decode step that repeats does no malloc and misses no cache; caches hold what a pass over the
 * whole text would compute. */
#include <dtensor/generation.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

enum { WARM_UP = 3, STEPS = 8 };

static const char *const fixtures[] = { "llama/uneven",  "qwen2/windows", "qwen3/base",
                                        "gemma3/uneven", "phi3/uneven",   "gpt_neo/base" };

static dt_status load(dt_mesh *mesh, const char *fixture, dt_model **out)
{
    char path[DT_TEST_PATH_BYTES];

    return dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", fixture), NULL, out);
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
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = NULL;
    uint64_t allocs = 0, misses = 0, calls = 0;
    int32_t id = 1;

    DT_TRY(load(mesh, arg, &m));
    DT_TRY(dt_state_create(m, 1, WARM_UP + STEPS, &s));
    DT_TRY(dt_tape_create(rt, &t));
    for (int i = 0; i < WARM_UP + STEPS; i++) {
        if (i == WARM_UP) {
            allocs = dti_alloc_count();
            dt_op_counts(rt, &calls, &misses);
        }
        DT_TRY(step(t, m, s, &id));
    }
    {
        const uint64_t before = misses, calls_before = calls;
        dt_op_counts(rt, &calls, &misses);
        DT_EXPECT(calls - calls_before > STEPS * 20, "operators ran");
        DT_EXPECT(misses == before, "%llu misses of the decision cache",
                  (unsigned long long)(misses - before));
        DT_EXPECT(dti_alloc_count() == allocs, "%llu allocations",
                  (unsigned long long)(dti_alloc_count() - allocs));
    }
    return DT_OK;
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
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *one = NULL, *all = NULL;
    dt_tensor *y;

    DT_TRY(load(mesh, arg, &m));
    DT_TRY(dt_state_create(m, 1, N, &s));
    y = dt_model_forward(t, m, s, ids, N, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &all));
    dt_state_rewind(s, 0);
    DT_EXPECT(dt_state_length(s) == 0, "rewound");
    for (int i = 0; i < N; i++) {
        dt_tape_reset(t);
        y = dt_model_forward(t, m, s, &ids[i], 1, DT_LOGITS_LAST);
        DT_TRY(dt_tape_status(t));
    }
    DT_TRY(dt_full_tensor(y, &one));
    for (int64_t v = 0; v < dt_model_info_of(m)->vocab_size; v++) {
        const float a = ((const float *)dt_tensor_local(one)->data)[v];
        const float b = ((const float *)dt_tensor_local(all)->data)[v];
        DT_EXPECT(fabsf(a - b) <= 1e-4f * (1 + fabsf(b)), "logit %lld: %g and %g", (long long)v,
                  (double)a, (double)b);
    }
    return DT_OK;
}

DT_TEST(decode, caches_give_what_a_whole_pass_gives)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_test_on_ranks("tp=1", cached_equals_whole, fixtures[f]);
        dt_test_on_ranks("tp=3", cached_equals_whole, fixtures[f]);
    }
}

/* Logits of a pass over n ids after what the state has seen: [1, n, vocab], gathered. */
static dt_status logits_of(dt_tape *t, dt_model *m, dt_state *s, const int32_t *ids, int64_t n,
                           dt_tensor **out)
{
    dt_tape_reset(t);
    dt_tensor *y = dt_model_forward(t, m, s, ids, n, DT_LOGITS_ALL);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_extent(y, 1) == n, "%lld rows", (long long)dt_tensor_extent(y, 1));
    DT_TRY(dt_full_tensor(y, out));
    return DT_OK;
}

/* The last rows of each sequence of `all` are those of `part`. */
static dt_status ends_like(const dt_tensor *all, const dt_tensor *part, int64_t rows, int64_t vocab)
{
    const int64_t n = dt_tensor_extent(all, 1), m = dt_tensor_extent(part, 1);

    for (int64_t b = 0; b < dt_tensor_extent(all, 0); b++) {
        const float *x = (const float *)dt_tensor_local(all)->data + ((b + 1) * n - rows) * vocab;
        const float *y = (const float *)dt_tensor_local(part)->data + ((b + 1) * m - rows) * vocab;
        for (int64_t i = 0; i < rows * vocab; i++)
            DT_EXPECT(fabsf(x[i] - y[i]) <= 1e-4f * (1 + fabsf(x[i])),
                      "sequence %lld, logit %lld: %g and %g", (long long)b, (long long)i,
                      (double)x[i], (double)y[i]);
    }
    return DT_OK;
}

/* longrope: at 24 tokens all positions begin to rotate otherwise. */
static dt_status turns(dt_mesh *mesh, const void *arg)
{
    enum { N = 30, TURN = 24, BACK = 9 };
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL, *other = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *whole = NULL, *part = NULL, *shorter = NULL, *back = NULL;
    int32_t ids[N];
    int64_t vocab;

    for (int i = 0; i < N; i++) ids[i] = i * i % 97;
    DT_TRY(load(mesh, arg, &m));
    vocab = dt_model_info_of(m)->vocab_size;
    DT_TRY(dt_state_create(m, 1, N, &s));
    DT_TRY(dt_state_create(m, 1, N, &other));
    DT_TRY(logits_of(t, m, other, ids, N, &whole));
    DT_TRY(logits_of(t, m, s, ids, TURN - 3, &shorter));
    dt_tensor_release(&shorter);
    DT_TRY(logits_of(t, m, s, ids + TURN - 3, 3, &shorter)); /* still the short ones */
    DT_TRY(logits_of(t, m, s, ids + TURN, N - TURN, &part)); /* reads all again */
    DT_EXPECT(dt_state_length(s) == N, "%lld tokens", (long long)dt_state_length(s));
    DT_TRY(ends_like(whole, part, N - TURN, vocab));
    dt_state_rewind(s, BACK);
    DT_TRY(logits_of(t, m, s, ids + BACK, TURN - BACK, &back)); /* and again */
    DT_TRY(ends_like(back, shorter, 3, vocab));
    return DT_OK;
}

/* The same for two sequences, one of which is shorter: the longest decides for both. */
static dt_status turn_together(dt_mesh *mesh, const void *arg)
{
    enum { N = 30, BEFORE = 21, PADS = 4 };
    static const int64_t pads[] = { 0, PADS };
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL, *other = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *whole = NULL, *part = NULL;
    int32_t ids[2 * N], first[2 * BEFORE], rest[2 * (N - BEFORE)];

    for (int i = 0; i < 2 * N; i++) ids[i] = i * i % 97;
    for (int b = 0; b < 2; b++) {
        memcpy(first + b * BEFORE, ids + b * N, BEFORE * sizeof *ids);
        memcpy(rest + b * (N - BEFORE), ids + b * N + BEFORE, (N - BEFORE) * sizeof *ids);
    }
    DT_TRY(load(mesh, arg, &m));
    DT_TRY(dt_state_create(m, 2, N, &s));
    DT_TRY(dt_state_create(m, 2, N, &other));
    DT_TRY(dt_state_pad(other, pads));
    DT_TRY(logits_of(t, m, other, ids, N, &whole));
    DT_TRY(dt_state_pad(s, pads));
    DT_TRY(logits_of(t, m, s, first, BEFORE, &part));
    dt_tensor_release(&part);
    DT_TRY(logits_of(t, m, s, rest, N - BEFORE, &part)); /* reads all again */
    DT_EXPECT(dt_state_length_of(s, 0) == N && dt_state_length_of(s, 1) == N - PADS,
              "%lld and %lld tokens", (long long)dt_state_length_of(s, 0),
              (long long)dt_state_length_of(s, 1));
    DT_TRY(ends_like(whole, part, N - BEFORE, dt_model_info_of(m)->vocab_size));
    return DT_OK;
}

DT_TEST(decode, a_text_that_passes_the_turn_of_longrope_is_read_again)
{
    dt_test_on_ranks("tp=1", turns, "phi3/longrope");
    dt_test_on_ranks("tp=3", turns, "phi3/longrope");
    dt_test_on_ranks("tp=1", turn_together, "phi3/longrope");
    dt_test_on_ranks("tp=2", turn_together, "phi3/longrope");
}

/* On a dry mesh one sequence stands for all of a batch. */
DT_TEST(decode, a_plan_of_a_batch_passes_the_turn_too)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tape) *t = NULL;

    options.n_ranks = 2;
    DT_ASSERT_OK(dt_runtime_create_dry(&options, 1, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=2", &mesh));
    DT_ASSERT_OK(load(mesh, "phi3/longrope", &m));
    DT_ASSERT_OK(dt_tape_create(rt, &t));
    DT_ASSERT_OK(dt_state_create(m, 1000, 40, &s));
    for (int64_t n = 20; n <= 21; n++) {
        dt_tensor *y = dt_model_forward(t, m, s, NULL, n == 20 ? n : 5, DT_LOGITS_ALL);
        DT_ASSERT_OK(dt_tape_status(t));
        DT_ASSERT_EQ_INT(dt_tensor_extent(y, 0), 1000);
        DT_ASSERT_EQ_INT(dt_tensor_extent(y, 1), n == 20 ? n : 5);
        dt_tape_reset(t);
    }
    DT_ASSERT_EQ_INT(dt_state_length(s), 25);
}

/* Decisions of one model must not serve another whose heads have another width. */
static dt_status one_after_the_other(dt_mesh *mesh, const void *arg)
{
    static const char *const both[] = { "llama/tied", "qwen3/uneven" };
    int32_t alone[8], together[8];
    const int32_t prompt[] = { 5, 17, 40 };
    const bool first_too = *(const bool *)arg;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    static int32_t reference[8];
    dt_status st = DT_OK;

    o.max_new_tokens = 8;
    load.keep_dtype = false; /* both in f32: the same layouts and dtypes */
    for (int i = first_too ? 0 : 1; i < 2; i++) {
        char path[DT_TEST_PATH_BYTES];
        dt_model *m = NULL;
        dt_state *s = NULL;
        int64_t n;
        DT_TRY_TO(
            next, st,
            dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", both[i]), &load, &m));
        DT_TRY_TO(next, st, dt_state_create(m, 1, 16, &s));
        DT_TRY_TO(next, st, dt_generate(m, s, prompt, 3, &o, first_too ? together : alone, &n));
    next:
        dt_state_release(&s);
        dt_model_release(&m);
        DT_TRY(st);
    }
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) != 0) return DT_OK;
    if (!first_too) memcpy(reference, alone, sizeof alone);
    DT_EXPECT(!first_too || memcmp(together, reference, sizeof together) == 0, "tokens differ");
    return DT_OK;
}

DT_TEST(decode, two_models_in_one_run_do_not_disturb_each_other)
{
    static const bool alone = false, after_another = true;

    dt_test_on_ranks("tp=2", one_after_the_other, &alone);
    dt_test_on_ranks("tp=2", one_after_the_other, &after_another);
}

/* A rank that is not on the mesh takes part in nothing and is told nothing. */
static bool never(void *arg, int64_t n, int32_t id)
{
    (void)n, (void)id;
    *(bool *)arg = true;
    return true;
}

static dt_status outsiders(dt_mesh *world, const void *arg)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const int32_t prompt[] = { 3 };
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    bool called = false;
    int64_t n = -1;

    (void)arg;
    o.on_token = never;
    o.arg = &called;
    DT_TRY(dt_mesh_create(dt_mesh_runtime(world), "tp=2", &mesh));
    DT_TRY(load(mesh, "llama/uneven", &m));
    DT_TRY(dt_state_create(m, 1, 32, &s));
    DT_TRY(dt_generate(m, s, prompt, 1, &o, NULL, &n));
    DT_EXPECT(called == dt_mesh_is_member(mesh), "callback");
    DT_EXPECT(n == (dt_mesh_is_member(mesh) ? 20 : 0), "%lld tokens", (long long)n);
    return DT_OK;
}

DT_TEST(decode, ranks_outside_the_mesh_stand_by)
{
    dt_test_on_ranks("all=3", outsiders, NULL);
}

static dt_status state_outlives(dt_mesh *mesh, const void *arg)
{
    const int32_t prompt[] = { 3, 14 };
    DT_HELD(state) *s = NULL;
    DT_HELD(model) *m = NULL;
    dt_model *borrowed;
    int32_t out[20];
    int64_t n = 0;

    (void)arg;
    DT_TRY(load(mesh, "llama/uneven", &m));
    DT_TRY(dt_state_create(m, 1, 32, &s));
    borrowed = m;
    dt_model_release(&m);
    DT_TRY(dt_generate(borrowed, s, prompt, 2, NULL, out, &n));
    DT_EXPECT(n == 20, "%lld tokens", (long long)n);
    return DT_OK;
}

DT_TEST(decode, a_state_keeps_its_model_alive)
{
    dt_test_on_ranks("tp=2", state_outlives, NULL);
}

typedef struct leftovers {
    dt_model *model[2];
    dt_state *state[2];
    dt_mesh *mesh[2];
} leftovers;

static dt_status leave_a_model(dt_runtime *rt, void *arg)
{
    const int32_t prompt[] = { 3, 14 };
    leftovers *l = arg;
    const int r = dt_runtime_rank(rt);
    int32_t out[20];
    int64_t n;

    DT_TRY(dt_mesh_create(rt, "tp=2", &l->mesh[r]));
    DT_TRY(load(l->mesh[r], "llama/uneven", &l->model[r]));
    DT_TRY(dt_state_create(l->model[r], 1, 32, &l->state[r]));
    DT_TRY(dt_generate(l->model[r], l->state[r], prompt, 2, NULL, out, &n));
    return DT_OK;
}

DT_TEST(decode, models_and_states_may_be_released_after_their_run)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    leftovers l = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = 2;
    DT_ASSERT_OK(dt_run(&o, leave_a_model, &l));
    for (int r = 0; r < 2; r++) {
        dt_mesh_release(&l.mesh[r]);
        dt_model_release(&l.model[r]);
        DT_ASSERT_EQ_INT(dt_state_length(l.state[r]), 21);
        dt_state_release(&l.state[r]);
    }
}

/* Rank 1 is handed another second token. */
static dt_status other_prompts(dt_mesh *mesh, const void *arg)
{
    const int32_t prompt[] = { 1, dt_mesh_coord(mesh, 0) == 1 ? *(const int *)arg : 2, 3 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int32_t out[4];
    int64_t n;

    o.max_new_tokens = 2;
    DT_TRY(load(mesh, "llama/uneven", &m));
    DT_TRY(dt_state_create(m, 1, 16, &s));
    DT_TRY(dt_generate(m, s, prompt, 3, &o, out, &n));
    return DT_OK;
}

DT_TEST(decode, ranks_with_different_tokens_are_told_both_sides)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "agree";
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", other_prompts, &(int){ 2 }));
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", other_prompts, &(int){ 4 }), DT_ERR_ARG,
                     "pass over 3 tokens after 0: 1, 2, 3");
    DT_ASSERT(strstr(dt_last_error()->message, "pass over 3 tokens after 0: 1, 4, 3"));
    DT_ASSERT_STATUS(dt_test_run(&o, "dp=2,tp=2", other_prompts, &(int){ 4 }), DT_ERR_ARG,
                     "pass over 3 tokens");
}

static dt_status bad_input(dt_mesh *mesh, const void *arg)
{
    const int32_t large[] = { 1, 100000 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int32_t out[64];
    int64_t n;

    (void)arg;
    DT_TRY(load(mesh, "llama/uneven", &m));
    DT_EXPECT(dt_state_create(m, 1, 129, &s) == DT_ERR_ARG && s == NULL, "capacity");
    DT_TRY(dt_state_create(m, 1, 16, &s));
    DT_EXPECT(dt_generate(m, s, large, 2, &o, out, &n) == DT_ERR_ARG, "20 tokens in 16");
    o.max_new_tokens = 4;
    DT_EXPECT(dt_generate(m, s, large, 2, &o, out, &n) == DT_ERR_ARG && n == 0, "id");
    DT_EXPECT(dt_generate(m, s, large, 0, &o, out, &n) == DT_ERR_ARG, "empty prompt");
    DT_TRY(dt_generate(m, s, large, 1, &o, out, &n));
    DT_EXPECT(n == 4 && dt_state_length(s) == 4, "a state survives refused calls");
    return DT_OK;
}

DT_TEST(decode, bad_input_is_refused_and_harms_nothing)
{
    dt_test_on_ranks("tp=2", bad_input, NULL);
}
