/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of NeMo Automodel, pasted and by name: those that were refused, and what a plan may say
 * without a meaning. All of them, on all fixtures, are in test_nemo_plans_long.c. */
#include <dtensor/architectures.h>
#include <string.h>

#include "tests/support/nemo_plans.h"
#include "tests/support/plan_files.h"

DT_TEST(nemo_plans, give_the_tokens_of_transformers)
{
    static const struct {
        int i;
        const char *mesh;
    } some[] = { { 0, "tp=3" },  { 6, "tp=2" },  { 8, "tp=2" },  { 8, "tp=4" },
                 { 11, "tp=2" }, { 12, "tp=2" }, { 12, "tp=3" }, { 13, "tp=2" } };

    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        for (int tokens_cut = 0; tokens_cut < 2; tokens_cut++)
            dt_nemo_check(&dt_nemo_cases[some[i].i], some[i].mesh, tokens_cut == 1);
}

/* The tables in the library are the fixture's rules, in its order. */
DT_TEST(nemo_plans, those_by_name_are_those_of_the_file)
{
    static const struct {
        const char *type, *class;
    } rows[] = { { "llama", "LlamaForCausalLM" },
                 { "qwen2", "Qwen2ForCausalLM, Qwen3ForCausalLM" },
                 { "qwen3", "Qwen2ForCausalLM, Qwen3ForCausalLM" },
                 { "gemma3_text", "Gemma3ForCausalLM" },
                 { "gemma3", "Gemma3ForConditionalGeneration" } };

    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (int i = 0; i < 2; i++) {
            const dt_named_plan *named = dt_named_plan_at(NULL, rows[r].type, i);
            dt_plan *file;
            DT_ASSERT(named != NULL);
            DT_ASSERT_EQ_STR(named->name, i == 0 ? "nemo" : "nemo+sp");
            DT_ASSERT_OK(dt_nemo_plan(rows[r].class, i == 1, "manual", &file));
            DT_ASSERT_EQ_INT(named->plan.n_rules, file->n_rules);
            for (int k = 0; k < file->n_rules; k++) {
                DT_ASSERT_EQ_STR(named->plan.rules[k].pattern, file->rules[k].pattern);
                DT_ASSERT_EQ_STR(named->plan.rules[k].style, file->rules[k].style);
            }
            dt_plan_release(&file);
        }
    DT_ASSERT(dt_named_plan_at(NULL, "llama", 2) == NULL);
    DT_ASSERT(dt_named_plan_at(NULL, "phi3", 0) == NULL);
    DT_ASSERT(dt_named_plan_at(NULL, "nobody", 0) == NULL);
    DT_ASSERT(dt_named_plan_at(NULL, NULL, 0) == NULL);
    DT_ASSERT(dt_named_plan_at(NULL, "llama", -1) == NULL);
}

/* --- what is said ----------------------------------------------------------------------------- */

typedef struct heard {
    int idle_arguments, idle_rules;
} heard;

static void listen(void *arg, dt_log_level level, int rank, const char *text)
{
    heard *h = arg;

    (void)rank;
    if (level == DT_LOG_INFO && strstr(text, "use_local_output and use_dtensor change nothing"))
        h->idle_arguments++;
    if (level == DT_LOG_INFO &&
        strstr(text, "\"model.rotary_emb\" and others of the plan passed over"))
        h->idle_rules++;
}

static dt_status load_named(dt_mesh *mesh, const void *arg)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *m = NULL;
    dt_status st;

    o.plan_name = arg;
    st = dt_model_load(mesh, dt_test_source_path(path, "tests/golden/qwen2/base"), &o, &m);
    dt_model_release(&m);
    return st;
}

DT_TEST(nemo_plans, what_has_no_meaning_is_explained_once)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    heard h = { 0 };

    o.log = listen;
    o.log_arg = &h;
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", load_named, "nemo+sp"));
    if (!dt_test_is_here(0, 2)) return;
    DT_ASSERT_EQ_INT(h.idle_arguments, 1);
    DT_ASSERT_EQ_INT(h.idle_rules, 1);
}

static dt_status load_pasted(dt_mesh *mesh, const void *arg)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *m = NULL;
    dt_plan *plan;
    dt_status st;

    DT_TRY(dt_test_read_plan(arg, &plan));
    o.plan = plan;
    st = dt_model_load(mesh, dt_test_source_path(path, "tests/golden/qwen2/base"), &o, &m);
    dt_model_release(&m);
    dt_plan_release(&plan);
    return st;
}

DT_TEST(nemo_plans, what_is_wrong_is_still_refused)
{
    dt_test_on_ranks_fail("tp=2", load_named, "nemo2", DT_ERR_ARG,
                          "qwen2 has no plan \"nemo2\"; by name there is \"nemo\", \"nemo+sp\"");
    dt_test_on_ranks_fail("tp=2", load_pasted, "{\"model.rotary_embed\": \"RotaryEmbedParallel\"}",
                          DT_ERR_ARG, "matches no layer");
    dt_test_on_ranks_fail("tp=2", load_pasted,
                          "{\"lm_head\": \"ColwiseParallel(use_dtensor=S(1))\"}", DT_ERR_ARG,
                          "true or false is missing");
    dt_test_on_ranks_fail("tp=2", load_pasted, "{\"vision.layers.*.mlp.up_proj\": \"colwise\"}",
                          DT_ERR_ARG, "matches no layer");
}
