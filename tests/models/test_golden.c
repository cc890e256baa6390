/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints made by Transformers: our logits and greedy tokens against its own, on 1 to 4 ranks,
 * by the measures of docs/numerics.md. tools/make_golden.py makes the fixtures. */
#include <dtensor/generation.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "models/checkpoint/safetensors.h"
#include "tests/support/dt_test.h"

enum { N_GREEDY = 40, MAX_PROMPT = 64 };

static const char *const fixtures[] = {
    "llama/uneven",   "llama/tied",       "llama/biases",   "llama/sharded", "llama/yarn",
    "qwen2/base",     "qwen2/windows",    "qwen2/dynamic",  "qwen3/base",    "qwen3/uneven",
    "qwen3/windows",  "gpt_neo/base",     "gpt_neo/uneven", "gpt_neo/wide",  "phi3/base",
    "phi3/uneven",    "phi3/longrope",    "gemma3/base",    "gemma3/uneven", "gemma3/multimodal",
    "qwen3_moe/base", "qwen3_moe/uneven",
};
static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

/* What a fixture's expected.safetensors holds. */
typedef struct expected {
    char folder[DT_TEST_PATH_BYTES];
    dt_dtype dtype;         /* of this run */
    bool sequence_parallel; /* in this run */
    int64_t n_prompt;
    int64_t vocab;
    int32_t prompt[MAX_PROMPT];
    int32_t greedy[N_GREEDY];
    const dt_policy *policy; /* to load with, or NULL */
    const dt_plan *plan;     /* the same */
    float *f32;              /* [n_prompt, vocab] */
    float *bf16;             /* the same in bf16, widened */
} expected;

static dt_status read_ids(const dti_st_file *file, const char *name, const dti_st_stage *stage,
                          int32_t *to, int64_t max, int64_t *n)
{
    const dti_st_entry *e = dti_st_find(file, name);
    int64_t ids[MAX_PROMPT];

    DT_EXPECT(e != NULL && e->dtype == DT_I64 && e->shape[0] <= max && max <= MAX_PROMPT, "%s",
              name);
    DT_TRY(dti_st_read_slice(file, e, NULL, NULL, DT_I64, stage, ids));
    *n = e->shape[0];
    for (int64_t i = 0; i < *n; i++) to[i] = (int32_t)ids[i];
    return DT_OK;
}

static dt_status read_logits(const dti_st_file *file, const char *name, const dti_st_stage *stage,
                             float **to, int64_t *vocab)
{
    const dti_st_entry *e = dti_st_find(file, name);

    DT_EXPECT(e != NULL && e->n_axes == 2, "%s", name);
    *vocab = e->shape[1];
    DT_TRY(dti_alloc_array((size_t)(e->shape[0] * e->shape[1]), sizeof **to, (void **)to));
    DT_TRY(dti_st_read_slice(file, e, NULL, NULL, DT_F32, stage, *to));
    return DT_OK;
}

static dt_status read_expected(const char *fixture, expected *x)
{
    char path[DT_TEST_PATH_BYTES + 32], relative[128];
    dti_st_stage stage = { 0 };
    dti_st_file *file = NULL;
    dt_status st = DT_OK;
    int64_t n;

    *x = (expected){ .dtype = DT_F32 };
    (void)snprintf(relative, sizeof relative, "tests/golden/%s", fixture);
    (void)dt_test_source_path(x->folder, relative);
    (void)snprintf(path, sizeof path, "%s/expected.safetensors", x->folder);
    DT_TRY(dti_st_open(path, &file));
    DT_TRY_TO(done, st, dti_st_stage_create(0, NULL, &stage));
    DT_TRY_TO(done, st, read_ids(file, "prompt", &stage, x->prompt, MAX_PROMPT, &x->n_prompt));
    DT_TRY_TO(done, st, read_ids(file, "greedy_f32", &stage, x->greedy, N_GREEDY, &n));
    DT_EXPECT_TO(done, st, n == N_GREEDY, "%lld greedy tokens", (long long)n);
    DT_TRY_TO(done, st, read_logits(file, "logits_f32", &stage, &x->f32, &x->vocab));
    DT_TRY_TO(done, st, read_logits(file, "logits_bf16", &stage, &x->bf16, &x->vocab));
done:
    dti_st_stage_destroy(&stage);
    dti_st_close(&file);
    return st;
}

static void free_expected(expected *x)
{
    dti_free(x->f32);
    dti_free(x->bf16);
}

/* max |ours - theirs| <= 1e-5 max |theirs| */
static dt_status judge_f32(const expected *x, const float *ours)
{
    double worst = 0, largest = 0;

    for (int64_t i = 0; i < x->n_prompt * x->vocab; i++) {
        worst = fmax(worst, fabs((double)ours[i] - x->f32[i]));
        largest = fmax(largest, fabs((double)x->f32[i]));
    }
    DT_EXPECT(worst <= 1e-5 * largest, "max |ours - theirs| is %g of max |theirs| %g",
              worst / largest, largest);
    return DT_OK;
}

/* Against their f32: our bf16 may be off by 1.1 times (rms) and 1.5 times (max) what theirs is. */
static dt_status judge_bf16(const expected *x, const float *ours)
{
    double our_sum = 0, their_sum = 0, our_max = 0, their_max = 0;

    for (int64_t i = 0; i < x->n_prompt * x->vocab; i++) {
        const double o = (double)ours[i] - x->f32[i], t = (double)x->bf16[i] - x->f32[i];
        our_sum += o * o;
        their_sum += t * t;
        our_max = fmax(our_max, fabs(o));
        their_max = fmax(their_max, fabs(t));
    }
    DT_EXPECT(our_sum <= 1.1 * 1.1 * their_sum, "rms is %g of theirs", sqrt(our_sum / their_sum));
    DT_EXPECT(our_max <= 1.5 * their_max, "max is %g of theirs", our_max / their_max);
    return DT_OK;
}

/* Logits of the whole prompt, widened to f32. */
static dt_status prompt_logits(dt_model *model, const expected *x, float *to)
{
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_tensor *logits, *full = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY_TO(done, st, dt_state_create(model, 1, x->n_prompt, &state));
    logits = dt_model_forward(tape, model, state, x->prompt, x->n_prompt, DT_LOGITS_ALL);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_EXPECT_TO(done, st, dt_tensor_extent(logits, 2) == x->vocab, "vocabulary");
    DT_TRY_TO(done, st, dt_full_tensor(logits, &full));
    dti_convert(to, DT_F32, dt_tensor_local(full)->data, dt_tensor_dtype(full),
                x->n_prompt * x->vocab);
done:
    dt_tensor_release(&full);
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

static dt_status check_greedy(dt_model *model, const expected *x)
{
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    int32_t out[N_GREEDY];
    dt_state *state = NULL;
    dt_status st = DT_OK;
    int64_t n;

    options.max_new_tokens = N_GREEDY;
    options.ignore_eos = true;
    DT_TRY(dt_state_create(model, 1, x->n_prompt + N_GREEDY, &state));
    DT_TRY_TO(done, st, dt_generate(model, state, x->prompt, x->n_prompt, &options, out, &n));
    for (int i = 0; i < N_GREEDY; i++)
        DT_EXPECT_TO(done, st, out[i] == x->greedy[i], "token %d is %d, theirs is %d", i, out[i],
                     x->greedy[i]);
done:
    dt_state_release(&state);
    return st;
}

static dt_status matches(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const expected *x = arg;
    dt_status st = DT_OK;
    dt_model *model = NULL;
    float *once = NULL, *twice = NULL;
    const size_t n = (size_t)(x->n_prompt * x->vocab);

    options.keep_dtype = false;
    options.dtype = x->dtype;
    options.sequence_parallel = x->sequence_parallel;
    options.plan = x->plan;
    options.policies = &x->policy;
    options.n_policies = x->policy != NULL ? 1 : 0;
    DT_TRY(dt_model_load(mesh, x->folder, &options, &model));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *once, (void **)&once));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *twice, (void **)&twice));
    DT_TRY_TO(done, st, prompt_logits(model, x, once));
    DT_TRY_TO(done, st, x->dtype == DT_F32 ? judge_f32(x, once) : judge_bf16(x, once));
    DT_TRY_TO(done, st, prompt_logits(model, x, twice));
    DT_EXPECT_TO(done, st, memcmp(once, twice, n * sizeof *once) == 0, "two runs differ");
    if (x->dtype == DT_F32) DT_TRY_TO(done, st, check_greedy(model, x));
done:
    dti_free(once);
    dti_free(twice);
    dt_model_release(&model);
    return st;
}

static void check_one(const char *fixture, const char *mesh, const char *isa, const expected *x)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    dt_status st;

    options.isa = isa;
    st = dt_test_run(&options, mesh, matches, x);
    if (st != DT_OK) dti_error_prefix("%s, %s, %s", fixture, mesh, dt_dtype_name(x->dtype));
    DT_ASSERT_OK(st);
}

static void check_all(dt_dtype dtype, const char *isa, bool sequence_parallel, bool policies)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        expected x;
        if (policies && strstr(fixtures[f], "llama/") == NULL &&
            strstr(fixtures[f], "uneven") == NULL)
            continue;
        DT_ASSERT_OK(read_expected(fixtures[f], &x));
        x.dtype = dtype;
        x.sequence_parallel = sequence_parallel;
        if (policies) {
            char name[32];
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(fixtures[f], "/"), fixtures[f]);
            DT_ASSERT_OK(dt_policy_find(name, &x.policy));
        }
        /* Other kernels on one rank and on an uneven number: cuts are checked with the best. So
         * are processes that hold several ranks. */
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            if ((isa != NULL && m != 0 && m != 2) ||
                ((dtype != DT_F32 || sequence_parallel) && !dt_test_fits_launch(meshes[m])))
                continue;
            check_one(fixtures[f], meshes[m], isa, &x);
        }
        free_expected(&x);
    }
}

DT_TEST(golden, f32_logits_and_greedy_tokens_match_on_every_mesh)
{
    check_all(DT_F32, NULL, false, false);
}

DT_TEST(golden, bf16_logits_match_on_every_mesh)
{
    check_all(DT_BF16, NULL, false, false);
}

/* In bf16 too: test_sequence.c shows that the bits are those of whole tokens. */
DT_TEST(golden, tokens_cut_between_blocks_match_too)
{
    check_all(DT_F32, NULL, true, false);
}

DT_TEST(golden, portable_kernels_match_too)
{
    check_all(DT_F32, "portable", false, false);
    check_all(DT_BF16, "portable", false, false);
}

DT_TEST(golden, policies_of_attention_and_mlp_match_too)
{
    check_all(DT_F32, NULL, false, true);
}

/* Expert parallel: whole experts on each rank, on the dim of the rest or on one of their own. */
DT_TEST(golden, experts_cut_as_a_whole_match_too)
{
    static const char *const moe[] = { "qwen3_moe/base", "qwen3_moe/uneven" };
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "moe_tp_experts" },
    };
    static const dt_plan on_tp = { .rules = rules, .n_rules = 3, .strict = true };
    static const dt_plan on_ep = { .rules = rules, .n_rules = 3, .dim = "ep", .strict = true };

    for (size_t f = 0; f < DT_COUNT(moe); f++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            expected x;
            DT_ASSERT_OK(read_expected(moe[f], &x));
            x.dtype = bf16 ? DT_BF16 : DT_F32;
            x.plan = &on_tp;
            for (size_t m = 0; m < 4; m++) check_one(moe[f], meshes[m], NULL, &x);
            x.plan = &on_ep;
            check_one(moe[f], "ep=2,tp=2", NULL, &x);
            check_one(moe[f], "ep=3,tp=1", NULL, &x);
            free_expected(&x);
        }
}
