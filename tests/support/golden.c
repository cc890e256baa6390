/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/host.h"
#include "files/safetensors.h"

const char *const dt_golden_fixtures[DT_GOLDEN_ALL] = {
    "llama/uneven",
    "llama/tied",
    "llama/biases",
    "llama/sharded",
    "llama/yarn",
    "qwen2/base",
    "qwen2/windows",
    "qwen2/dynamic",
    "qwen3/base",
    "qwen3/uneven",
    "qwen3/windows",
    "gpt_neo/base",
    "gpt_neo/uneven",
    "gpt_neo/wide",
    "phi3/base",
    "phi3/uneven",
    "phi3/longrope",
    "gemma3/base",
    "gemma3/uneven",
    "gemma3/multimodal",
    "qwen3_moe/base",
    "qwen3_moe/uneven",
    "llama/gelu",
    "gpt_neo/relu",
    "gemma3/silu",
    "qwen3/relu2",
    /* of tables over the same block */
    "mistral/base",
    "mistral/uneven",
    "mistral/multimodal",
    "smollm3/uneven",
    "granite/base",
    "granite/uneven",
    "gemma/base",
    "gemma2/uneven",
    "smollm3/base",
    "gemma/uneven",
    "gemma2/base",
    "mixtral/base",
    "mixtral/uneven",
    "seed_oss/base",
    "seed_oss/uneven",
    "exaone4/base",
    "cwm/base",
    "ministral/uneven",
    "cwm/uneven",
    "ministral/base",
    "gpt2/base",
    "gpt2/uneven",
    "gpt_bigcode/base",
    "gpt_bigcode/uneven",
    "gpt_neox/base",
    "gpt_neox/uneven",
    "gpt_neox/odd",
    "falcon/base",
    "falcon/first",
    "falcon/uneven",
    "phi/base",
    "phi/uneven",
    "starcoder2/base",
    "starcoder2/uneven",
    "stablelm/base",
    "stablelm/uneven",
    "glm/base",
    "glm/uneven",
    "glm4/base",
    "glm4/uneven",
    "gptj/base",
    "gptj/uneven",
    "cohere/base",
    "cohere/uneven",
    "cohere2/base",
    "cohere2/uneven",
    "ernie4_5/base",
    "ernie4_5/uneven",
    "qwen2_moe/base",
    "qwen2_moe/uneven",
    "exaone4/uneven",
    "olmo2/base",
    "olmo2/uneven",
    "olmo3/base",
    "olmo3/uneven",
    "glm4_moe/base",
    "glm4_moe/uneven",
    "ministral3/base",
    "ministral3/uneven",
    "ministral3/multimodal",
    "gpt_oss/base",
    "gpt_oss/uneven",
    "deepseek_v3/base",
    "deepseek_v3/uneven",
    "qwen3_next/base",
    "qwen3_next/uneven",
    "qwen3_next/small",
};

static dt_status read_ids(const dti_st_file *file, const char *name, const dti_st_stage *stage,
                          int32_t *to, int64_t max, int64_t *n)
{
    const dti_st_entry *e = dti_st_find(file, name);
    int64_t ids[DT_GOLDEN_PROMPT];

    DT_EXPECT(e != NULL && e->dtype == DT_I64 && e->shape[0] <= max && max <= DT_GOLDEN_PROMPT,
              "%s", name);
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

dt_status dt_golden_open(const char *fixture, dt_golden *x)
{
    char path[DT_TEST_PATH_BYTES + 32];
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    int64_t n;

    *x = (dt_golden){ .dtype = DT_F32, .n_greedy = DT_GOLDEN_GREEDY };
    (void)dt_test_source_path(x->folder, "tests/golden/%s", fixture);
    (void)snprintf(path, sizeof path, "%s/expected.safetensors", x->folder);
    DT_TRY(dti_st_open(path, &file));
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    DT_TRY(read_ids(file, "prompt", &stage, x->prompt, DT_GOLDEN_PROMPT, &x->n_prompt));
    DT_TRY(read_ids(file, "greedy_f32", &stage, x->greedy, DT_GOLDEN_GREEDY, &n));
    DT_EXPECT(n == DT_GOLDEN_GREEDY, "%lld greedy tokens", (long long)n);
    DT_TRY(read_logits(file, "logits_f32", &stage, &x->f32, &x->vocab));
    DT_TRY(read_logits(file, "logits_bf16", &stage, &x->bf16, &x->vocab));
    return DT_OK;
}

void dt_golden_close(dt_golden *x)
{
    dti_free(x->f32);
    dti_free(x->bf16);
}

/* max |ours - theirs| <= 1e-5 max |theirs| */
static dt_status judge_f32(const dt_golden *x, const float *ours)
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
static dt_status judge_bf16(const dt_golden *x, const float *ours)
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
static dt_status prompt_logits(dt_model *model, const dt_golden *x, float *to)
{
    DT_HELD(tape) *tape = NULL;
    DT_HELD(state) *state = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *logits;
    dti_host host;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY(dt_state_create(model, 1, x->n_prompt, &state));
    logits = dt_model_forward(tape, model, state, x->prompt, x->n_prompt, DT_LOGITS_ALL);
    DT_TRY(dt_tape_status(tape));
    DT_EXPECT(dt_tensor_extent(logits, 2) == x->vocab, "vocabulary");
    DT_TRY(dt_full_tensor(logits, &full));
    DT_TRY(dti_host_open(full, DTI_HOST_READS, &host));
    dti_convert(to, DT_F32, host.local.data, dt_tensor_dtype(full), x->n_prompt * x->vocab);
    return dti_host_close(&host, DT_OK);
}

static dt_status check_greedy(dt_model *model, const dt_golden *x)
{
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    int32_t out[DT_GOLDEN_GREEDY];
    DT_HELD(state) *state = NULL;
    int64_t n;

    options.max_new_tokens = x->n_greedy;
    options.ignore_eos = true;
    DT_TRY(dt_state_create(model, 1, x->n_prompt + x->n_greedy, &state));
    DT_TRY(dt_generate(model, state, x->prompt, x->n_prompt, &options, out, &n));
    for (int i = 0; i < x->n_greedy; i++)
        DT_EXPECT(out[i] == x->greedy[i], "token %d is %d, theirs is %d", i, out[i], x->greedy[i]);
    return DT_OK;
}

dt_status dt_golden_matches(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const dt_golden *x = arg;
    DT_HELD(model) *model = NULL;
    DT_FREED float *once = NULL, *twice = NULL;
    const size_t n = (size_t)(x->n_prompt * x->vocab);

    options.keep_dtype = false;
    options.dtype = x->dtype;
    options.sequence_parallel = x->sequence_parallel;
    options.plan = x->plan;
    options.plan_name = x->plan_name;
    options.policies = &x->policy;
    options.n_policies = x->policy != NULL ? 1 : 0;
    DT_TRY(dt_model_load(mesh, x->folder, &options, &model));
    DT_TRY(dti_alloc_array(n, sizeof *once, (void **)&once));
    DT_TRY(dti_alloc_array(n, sizeof *twice, (void **)&twice));
    DT_TRY(prompt_logits(model, x, once));
    DT_TRY(x->dtype == DT_F32 ? judge_f32(x, once) : judge_bf16(x, once));
    DT_TRY(prompt_logits(model, x, twice));
    DT_EXPECT(memcmp(once, twice, n * sizeof *once) == 0, "two runs differ");
    if (x->dtype == DT_F32) DT_TRY(check_greedy(model, x));
    return DT_OK;
}

void dt_golden_check(const char *fixture, const char *mesh, const dt_run_options *options,
                     const dt_golden *golden)
{
    const dt_status st = dt_test_run(options, mesh, dt_golden_matches, golden);

    if (st != DT_OK) dti_error_prefix("%s, %s, %s", fixture, mesh, dt_dtype_name(golden->dtype));
    DT_ASSERT_OK(st);
}
