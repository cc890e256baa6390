/* SPDX-License-Identifier: Apache-2.0
 *
 * A run goes on with the model that it began with: what config.json says is compared by what it
 * comes to, key by key. */
#include <dtensor/models.h>
#include <dtensor/training_checkpoints.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/checksum.h"
#include "models/describe/describe.h"
#include "parallel_styles/layer_rules.h"
#include "tests/support/dt_test.h"
#include "training/saving/manifest_tail.h"

enum { TEXT_BYTES = 8192, PATH_BYTES = DT_TEST_PATH_BYTES + 64 };

static void read_text(const char *path, char text[TEXT_BYTES])
{
    FILE *f = fopen(path, "rb");
    size_t n;

    DT_ASSERT(f != NULL);
    n = fread(text, 1, TEXT_BYTES - 1, f);
    (void)fclose(f);
    DT_ASSERT(n > 0 && n < TEXT_BYTES - 1);
    text[n] = '\0';
}

/* A fixture's folder once more, with `new` where config.json has `old`. */
static void copy_model(const char *fixture, const char *old, const char *new,
                       char folder[DT_TEST_PATH_BYTES])
{
    char from[DT_TEST_PATH_BYTES], path[PATH_BYTES], text[TEXT_BYTES], changed[2 * TEXT_BYTES];
    const char *at;
    char *weights;

    (void)snprintf(path, sizeof path, "%s/model.safetensors", dt_test_temp_dir(folder));
    weights =
        realpath(dt_test_source_path(from, "tests/golden/%s/model.safetensors", fixture), NULL);
    DT_ASSERT(weights != NULL && symlink(weights, path) == 0);
    free(weights);
    read_text(dt_test_source_path(from, "tests/golden/%s/config.json", fixture), text);
    at = strstr(text, old);
    if (at == NULL) dt_test_fail(__FILE__, __LINE__, "%s has no %s", fixture, old);
    (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new,
                   at + strlen(old));
    dt_test_write_file(folder, "config.json", changed, strlen(changed));
}

/* --- what is said ----------------------------------------------------------------------------- */

static void facts_of(const char *fixture, const char *old, const char *new, dti_described *d)
{
    char folder[DT_TEST_PATH_BYTES];

    copy_model(fixture, old, new, folder);
    DT_ASSERT_OK(dti_describe(NULL, folder, d));
    DT_ASSERT_OK(dti_say_sizes(d));
    dt_test_remove_dir(folder);
}

/* The first name that two say differently; NULL: none. */
static const char *first_other(const dti_facts *a, const dti_facts *b)
{
    for (int i = 0; i < a->n; i++) {
        const char *value = dti_facts_find(b, a->list[i].what);
        if (value == NULL || strcmp(value, a->list[i].value) != 0) return a->list[i].what;
    }
    return a->n < b->n ? "one more" : NULL;
}

#define ROPE \
    "\"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": \"default\"\n  }"

static const struct {
    const char *fixture, *old, *new;
    const char *what; /* that is said otherwise; NULL: nothing is */
} changes[] = {
    /* another model */
    { "llama/tied", "\"rope_theta\": 10000.0", "\"rope_theta\": 500000.0", "rope_theta" },
    { "llama/tied", "\"silu\"", "\"gelu\"", "hidden_act" },
    { "llama/tied", "1e-06", "1e-05", "rms_norm_eps" },
    { "llama/tied", "\"num_attention_heads\": 4", "\"num_attention_heads\": 8",
      "num_attention_heads" },
    { "llama/tied", "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2",
      "num_key_value_heads" },
    { "llama/tied", "\"head_dim\": 16", "\"head_dim\": 8", "head_dim" },
    { "llama/tied", "\"pad_token_id\": null", "\"pad_token_id\": 3", "pad_token_id" },
    { "llama/tied", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
      "tie_word_embeddings" },
    { "llama/tied", "\"model_type\": \"llama\"", "\"model_type\": \"qwen3\"", "model_type" },
    { "llama/tied", "\"default\"", "\"linear\", \"factor\": 2.0", "rope_parameters.rope_type" },
    { "llama/yarn", "\"factor\": 4.0", "\"factor\": 4.5", "rope_parameters.factor" },
    { "llama/yarn", "\"beta_fast\": 2.0", "\"beta_fast\": 2.5", "rope_parameters.beta_fast" },
    { "llama/yarn", "\"original_max_position_embeddings\": 16",
      "\"original_max_position_embeddings\": 17",
      "rope_parameters.original_max_position_embeddings" },
    { "qwen2/dynamic", "\"max_position_embeddings\": 24", "\"max_position_embeddings\": 25",
      "rope_parameters.max_position_embeddings" },
    { "qwen2/windows", "\"sliding_window\": 7", "\"sliding_window\": 8", "layer_types[2]" },
    { "qwen2/windows", "\"use_sliding_window\": true", "\"use_sliding_window\": true, \"x\": 1",
      NULL },
    { "qwen3/windows", "\"layer_types\": [\n    \"sliding_attention\"",
      "\"layer_types\": [\n    \"full_attention\"", "layer_types[0]" },
    { "phi3/longrope", "\"sliding_window\": null", "\"sliding_window\": 9", "layer_types[0]" },
    { "phi3/longrope", "1.3", "1.4", "rope_parameters.short_factor[2]" },
    { "phi3/longrope", "5.0", "5.5", "rope_parameters.long_factor[2]" },
    { "gpt_neo/base", "\"gelu_new\"", "\"relu\"", "activation_function" },
    { "gpt_neo/base", "1e-05", "1e-06", "layer_norm_epsilon" },
    { "gpt_neo/base", "\"window_size\": 8", "\"window_size\": 9", "layer_types[1]" },
    { "gemma3/base", "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 13",
      "query_pre_attn_scalar" },
    { "gemma3/base", "\"final_logit_softcapping\": null", "\"final_logit_softcapping\": 30.0",
      "final_logit_softcapping" },
    { "gemma3/base", "\"rope_theta\": 10000.0", "\"rope_theta\": 10001", "rope_local_base_freq" },
    { "gemma3/base", "\"factor\": 8.0", "\"factor\": 4.0", "rope_parameters.factor" },
    { "gemma3/base", "\"rope_theta\": 10000.0,\n      \"rope_type\": \"default\"",
      "\"rope_theta\": 10000.0,\n      \"factor\": 2,\n      \"rope_type\": \"linear\"",
      "rope_parameters.sliding_attention.rope_type" },
    { "qwen3_moe/base", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 3",
      "num_experts_per_tok" },
    { "qwen3_moe/base", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob" },
    /* the same one in other words */
    { "llama/tied", ROPE, "\"rope_theta\": 10000, \"rope_scaling\": null", NULL },
    { "llama/tied", "\"rope_theta\": 10000.0,\n    ", "", NULL },
    { "llama/tied", "\"attention_bias\": false,", "", NULL },
    { "llama/tied", "\"hidden_act\": \"silu\",", "", NULL },
    { "llama/tied", "\"head_dim\": 16,", "", NULL },
    { "llama/tied", "\"pad_token_id\": null", "\"pad_token_id\": -200", NULL },
    { "llama/tied", "1e-06", "0.000001", NULL },
    { "llama/tied", "\"dtype\": \"bfloat16\"", "\"torch_dtype\": \"float32\"", NULL },
    { "llama/tied", "\"eos_token_id\": null", "\"eos_token_id\": [3, 4]", NULL },
    { "llama/tied", "\"max_position_embeddings\": 64", "\"max_position_embeddings\": 128", NULL },
    { "llama/tied", "\"use_cache\": true", "\"use_cache\": false", NULL },
    { "qwen2/dynamic", "\"max_window_layers\": 28", "\"max_window_layers\": 1", NULL },
    { "qwen2/dynamic", "\"sliding_window\": null", "\"sliding_window\": 4096", NULL },
    { "qwen2/dynamic", "\"rope_scaling\": {\n    \"factor\": 4.0,\n    \"type\"",
      "\"rope_parameters\": {\n    \"factor\": 4,\n    \"rope_type\"", NULL },
    { "qwen2/windows", "\"max_window_layers\": 2", "\"max_window_layers\": 3", NULL },
    { "gpt_neo/base", "\"intermediate_size\": null", "\"intermediate_size\": 192", NULL },
    { "gpt_neo/base", "\"attention_layers\": [\n    \"global\",\n    \"local\"\n  ],", "", NULL },
    { "gemma3/base", "\"_sliding_window_pattern\": 6,", "\"sliding_window_pattern\": 2,", NULL },
    { "qwen3_moe/base", "\"num_local_experts\"", "\"num_experts\"", NULL },
};

DT_TEST(same_model, is_known_by_what_its_configuration_comes_to)
{
    for (size_t i = 0; i < DT_COUNT(changes); i++) {
        dti_described was, is;
        const char *what;

        facts_of(changes[i].fixture, "{", "{", &was);
        facts_of(changes[i].fixture, changes[i].old, changes[i].new, &is);
        what = first_other(&was.facts, &is.facts);
        if ((what == NULL) != (changes[i].what == NULL) ||
            (what != NULL && strcmp(what, changes[i].what) != 0))
            dt_test_fail(__FILE__, __LINE__, "%s, %s for %s: %s is said otherwise",
                         changes[i].fixture, changes[i].new, changes[i].old,
                         what != NULL ? what : "nothing");
        dti_described_free(&was);
        dti_described_free(&is);
    }
}

/* --- and compared ----------------------------------------------------------------------------- */

typedef struct session {
    char run[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES];
    bool saves, silent; /* silent: as a version that says nothing of the model */
} session;

static dt_status body(dt_mesh *mesh, const void *arg)
{
    dt_run_folder_options options = DT_RUN_FOLDER_OPTIONS_INIT;
    const dt_run_progress progress = { .step = 5 };
    const session *s = arg;
    DT_HELD(run_folder) *run = NULL;
    DT_HELD(model) *model = NULL;

    options.mode = s->saves ? DT_RUN_FOLDER_NEW : DT_RUN_FOLDER_RESUME;
    DT_TRY(dt_model_load(mesh, s->model, NULL, &model));
    if (s->silent) dti_facts_free(dti_layers_facts(dt_model_layers(model)));
    DT_TRY(dt_run_folder_open(mesh, s->run, &options, &run));
    if (!s->saves) return dt_run_folder_load(run, NULL, dt_model_layers(model), NULL, NULL, NULL);
    DT_TRY(dt_run_folder_save(run, dt_model_layers(model), NULL, &progress, NULL));
    return dt_run_folder_wait(run);
}

static void begin(session *s, const char *fixture, bool silent)
{
    (void)dt_test_temp_dir(s->run);
    copy_model(fixture, "{", "{", s->model);
    s->saves = true;
    s->silent = silent;
    dt_test_on_ranks("dp=2", body, s);
    s->saves = s->silent = false;
}

DT_TEST(same_model, another_one_is_refused_by_its_key_on_any_mesh)
{
    char message[2 * DT_TEST_PATH_BYTES];
    session s;

    begin(&s, "llama/tied", false);
    dt_test_on_ranks("tp=2", body, &s);
    copy_model("llama/tied", "\"rope_theta\": 10000.0", "\"rope_theta\": 500000.0", s.model);
    (void)snprintf(message, sizeof message,
                   "training.json: rope_theta is 10000 in the checkpoint, 500000 in "
                   "%s/config.json: it is of another model",
                   s.model);
    dt_test_on_ranks_fail("tp=2", body, &s, DT_ERR_ARG, message);
    dt_test_on_ranks_fail("dp=2", body, &s, DT_ERR_ARG, message);
    copy_model("llama/tied", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", s.model);
    dt_test_on_ranks_fail("dp=2", body, &s, DT_ERR_ARG,
                          "hidden_act is silu in the checkpoint, gelu in ");
}

/* Keys in another order, and keys that nobody reads. */
DT_TEST(same_model, the_same_in_another_order_goes_on)
{
    session s;

    begin(&s, "llama/tied", false);
    copy_model("llama/tied", "\"rms_norm_eps\": 1e-06,\n  " ROPE,
               ROPE ",\n  \"unheard\": [1],\n  \"rms_norm_eps\": 1e-06", s.model);
    dt_test_on_ranks("dp=2", body, &s);
}

/* A manifest of before has no object "model". */
static void make_old(const session *s)
{
    static const char model[] = ",\n  \"model\": {}", above[] = ",\n  \"checksum_above\"";
    char path[PATH_BYTES], text[TEXT_BYTES], *at, *end;

    (void)snprintf(path, sizeof path, "%s/step-00000005", s->run);
    (void)snprintf(path + strlen(path), 32, "/training.json");
    read_text(path, text);
    at = strstr(text, model);
    DT_ASSERT(at != NULL);
    memmove(at, at + strlen(model), strlen(at + strlen(model)) + 1);
    end = strstr(text, above);
    DT_ASSERT(end != NULL);
    (void)snprintf(end, sizeof text - (size_t)(end - text), DTI_MANIFEST_TAIL,
                   dti_checksum_of(text, (size_t)(end - text)));
    *strrchr(path, '/') = '\0';
    dt_test_write_file(path, "training.json", text, strlen(text));
}

DT_TEST(same_model, of_a_checkpoint_that_does_not_say_it_is_loaded)
{
    session s;

    begin(&s, "llama/tied", true);
    dt_test_on_ranks("tp=2", body, &s);
    make_old(&s);
    dt_test_on_ranks("tp=2", body, &s);
}

static dt_status export(dt_mesh *mesh, const void *arg)
{
    const session *s = arg;
    DT_HELD(model) *model = NULL;

    DT_TRY(dt_model_load(mesh, s->model, NULL, &model));
    return dt_model_save(model, s->run, NULL);
}

/* What a run leaves as its model is the model that it began with. */
DT_TEST(same_model, is_what_a_run_exports)
{
    static const char *const fixtures[] = { "llama/yarn",    "qwen2/windows", "qwen2/dynamic",
                                            "qwen3/windows", "phi3/longrope", "gpt_neo/base",
                                            "gemma3/base",   "qwen3_moe/base" };

    for (size_t i = 0; i < DT_COUNT(fixtures); i++) {
        session s;
        dti_described was, is;

        (void)dt_test_temp_dir(s.run);
        copy_model(fixtures[i], "{", "{", s.model);
        dt_test_on_ranks("tp=1", export, &s);
        DT_ASSERT_OK(dti_describe(NULL, s.model, &was));
        DT_ASSERT_OK(dti_describe(NULL, s.run, &is));
        if (first_other(&was.facts, &is.facts) != NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: %s", fixtures[i],
                         first_other(&was.facts, &is.facts));
        dti_described_free(&was);
        dti_described_free(&is);
    }
}
