/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding by recorded passes: they give what passes that are not recorded give, also when the
 * state goes back, and models whose passes differ are not recorded. */
#include <dtensor/generation.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/run/step.h"
#include "tests/support/cuda.h"

enum { N_PROMPT = 3, N_NEW = 9, MAX_VOCAB = 1024 };

/* Logits of one more token, on the host. */
static dt_status pass(dt_tape *t, dt_model *m, dt_state *s, int32_t id, float *to)
{
    dt_tensor *logits, *full = NULL;
    dt_status st = DT_OK;

    dt_tape_reset(t);
    logits = dt_model_forward(t, m, s, &id, 1, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(logits, &full));
    st = dt_tensor_read(full, to, (size_t)dt_tensor_extent(full, 2) * sizeof *to);
    dt_tensor_release(&full);
    return st;
}

/* A whole pass over the tokens so far gives the last one's logits without any recorded pass. */
static dt_status whole(dt_tape *t, dt_model *m, const int32_t *ids, int64_t n, float *to)
{
    DT_HELD(state) *s = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *logits;

    dt_tape_reset(t);
    DT_TRY(dt_state_create(m, 1, N_PROMPT + N_NEW, &s));
    logits = dt_model_forward(t, m, s, ids, n, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(logits, &full));
    return dt_tensor_read(full, to, (size_t)dt_tensor_extent(full, 2) * sizeof *to);
}

typedef struct step_case {
    const char *fixture;
    bool recorded;
} step_case;

/* The first two passes are seen and rehearsed, the third is recorded and played. */
enum { N_PLAYED = 2 * N_NEW - 2 };

static dt_status same_logits(const float *a, const float *b, int64_t n, int at)
{
    float largest = 0;

    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(b[i]));
    for (int64_t i = 0; i < n; i++)
        DT_EXPECT(a[i] - b[i] <= 1e-5f * largest && b[i] - a[i] <= 1e-5f * largest,
                  "token %d: logit %d is %g, not %g", at, (int)i, (double)a[i], (double)b[i]);
    return DT_OK;
}

static dt_status decode(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[N_PROMPT + N_NEW] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8 };
    static _Thread_local float got[MAX_VOCAB], want[MAX_VOCAB]; /* ranks are threads */
    char path[DT_TEST_PATH_BYTES];
    const step_case *c = arg;
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(state) *s = NULL;

    options.keep_dtype = false;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", c->fixture), &options,
                         &m));
    DT_TRY(dt_state_create(m, 1, N_PROMPT + N_NEW, &s));
    (void)dt_model_forward(t, m, s, ids, N_PROMPT, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    for (int round = 0; round < 2; round++) {
        for (int i = N_PROMPT; i < N_PROMPT + N_NEW; i++) {
            DT_TRY(pass(t, m, s, ids[i], got));
            if (i % 4 != 0 && i != N_PROMPT + N_NEW - 1) continue;
            DT_TRY(whole(t, m, ids, i + 1, want));
            DT_TRY(same_logits(got, want, dt_model_info_of(m)->vocab_size, i));
        }
        DT_EXPECT(dt_state_is_recorded(s) == c->recorded, "%s: recorded is %d", c->fixture,
                  !c->recorded);
        dt_state_rewind(s, N_PROMPT);
    }
    DT_EXPECT(dti_step_n_played(s) == (c->recorded ? N_PLAYED : 0), "%s: %d passes were played",
              c->fixture, (int)dti_step_n_played(s));
    dti_step_forget(s);
    s->unrecorded = true;
    for (int i = N_PROMPT; i < N_PROMPT + N_NEW; i++) DT_TRY(pass(t, m, s, ids[i], got));
    DT_TRY(same_logits(got, want, dt_model_info_of(m)->vocab_size, N_PROMPT + N_NEW));
    DT_EXPECT(!dt_state_is_recorded(s), "%s: recorded against its wish", c->fixture);
    return DT_OK;
}

DT_TEST(cuda_step, recorded_passes_give_the_same_logits)
{
    static const step_case cases[] = { { "llama/uneven", true },
                                       { "gemma3/base", true },
                                       { "gpt_neo/base", true },
                                       { "qwen2/dynamic", false } };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_gpus("tp=1", decode, &cases[i]);
}

/* Each rank plays a graph of its own, whose sums over ranks wait for those of the others. */
DT_TEST(cuda_step, ranks_record_where_kernels_wait_for_each_other)
{
    static const step_case cases[] = { { "llama/uneven", true } };

    dt_test_long();
    dt_test_cuda_needs_eager(dt_test_cuda_runs());
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_COMM", "cuda_local_spin", 1), 0);
    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_gpus("tp=2", decode, &cases[i]);
    /* one of them has no sequence */
    dt_test_on_gpus("dp=2,tp=1", decode, &cases[0]);
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_COMM", "cuda_local", 1), 0);
    dt_test_on_gpus("tp=2", decode, &(step_case){ "llama/uneven", false });
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_CUDA_COMM"), 0);
}

DT_TEST(cuda_step, nothing_is_recorded_on_the_cpu)
{
    static const step_case c = { "llama/uneven", false };

    dt_test_on_ranks("tp=1", decode, &c);
}

/* --- draws ------------------------------------------------------------------------------------ */

static void look_away(void *arg, int64_t n, const float *scores, int64_t n_rows, int64_t vocab)
{
    (void)arg, (void)n, (void)scores, (void)n_rows, (void)vocab;
}

/* The best scores are found on the device, behind a pass that is recorded; asking for all of them
 * makes the host work on all. */
static dt_status sample(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[N_PROMPT] = { 3, 1, 4 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    int32_t few[N_NEW], all[N_NEW];
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int64_t n;

    (void)arg;
    load.keep_dtype = false;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/llama/uneven"), &load, &m));
    DT_TRY(dt_state_create(m, 1, N_PROMPT + N_NEW, &s));
    o.max_new_tokens = N_NEW;
    o.ignore_eos = o.do_sample = true;
    o.temperature = 1.2;
    o.top_k = 20;
    o.top_p = 0.95;
    DT_TRY(dt_generate(m, s, prompt, N_PROMPT, &o, few, &n));
    DT_EXPECT(dt_state_is_recorded(s) == (dt_mesh_n_ranks(mesh) == 1), "recorded");
    dt_state_rewind(s, 0);
    o.on_scores = look_away;
    DT_TRY(dt_generate(m, s, prompt, N_PROMPT, &o, all, &n));
    for (int i = 0; i < N_NEW; i++)
        DT_EXPECT(few[i] == all[i], "token %d is %d, from all scores %d", i, few[i], all[i]);
    return DT_OK;
}

DT_TEST(cuda_step, draws_from_the_best_scores_are_those_from_all)
{
    dt_test_on_gpus("tp=1", sample, NULL);
    dt_test_on_gpus("tp=2", sample, NULL);
}
