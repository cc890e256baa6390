/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nemo_plans.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/plan_files.h"

#define QWEN "Qwen2ForCausalLM, Qwen3ForCausalLM"

const dt_nemo_case dt_nemo_cases[] = {
    { "llama/uneven", "LlamaForCausalLM" },
    { "llama/biases", "LlamaForCausalLM" },
    { "llama/sharded", "LlamaForCausalLM" },
    { "llama/yarn", "LlamaForCausalLM" },
    { "llama/tied", "LlamaForCausalLM" },
    { "qwen2/base", QWEN },
    { "qwen2/windows", QWEN },
    { "qwen2/dynamic", QWEN },
    { "qwen3/base", QWEN },
    { "qwen3/uneven", QWEN },
    { "qwen3/windows", QWEN },
    { "gemma3/base", "Gemma3ForCausalLM" },
    { "gemma3/uneven", "Gemma3ForCausalLM" },
    { "gemma3/multimodal", "Gemma3ForConditionalGeneration" },
};
const int dt_n_nemo_cases = (int)(sizeof dt_nemo_cases / sizeof dt_nemo_cases[0]);

dt_status dt_nemo_plan(const char *class, bool tokens_cut, const char *mode, dt_plan **out)
{
    char path[DT_TEST_PATH_BYTES], *text = NULL;
    json_t *all =
        json_load_file(dt_test_source_path(path, "tests/golden/plans/nemo.json"), 0, NULL);
    json_t *plan = json_object_get(json_object_get(all, class), tokens_cut ? "tp_sp" : "tp");
    const char *pattern;
    json_t *rule;
    dt_status st;

    DT_EXPECT(plan != NULL, "%s has no plan for %s", path, class);
    json_object_foreach(plan, pattern, rule)(void)
        json_object_del(rule, "note"); /* the fixture's own */
    (void)json_object_set_new(plan, "mode", json_string(mode));
    if (strcmp(mode, "manual") == 0) (void)json_object_set_new(plan, "strict", json_false());
    text = json_dumps(plan, 0);
    st = dt_test_read_plan(text, out);
    free(text);
    json_decref(all);
    return st;
}

void dt_nemo_check(const dt_nemo_case *c, const char *mesh, bool tokens_cut)
{
    static const char *const modes[] = { "auto", "manual" };
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    DT_ENDS(dt_golden_close) dt_golden x;

    DT_ASSERT_OK(dt_golden_open(c->fixture, &x));
    for (int m = 0; m < 2; m++) {
        dt_plan *plan;
        DT_ASSERT_OK(dt_nemo_plan(c->class, tokens_cut, modes[m], &plan));
        x.plan = plan;
        dt_golden_check(c->fixture, mesh, &options, &x);
        dt_plan_release(&plan);
    }
    x.plan = NULL;
    x.plan_name = tokens_cut ? "nemo+sp" : "nemo";
    dt_golden_check(c->fixture, mesh, &options, &x);
}
