/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans are judged before weights are read: the folders here have a config.json and nothing else,
 * so a message about the plan is proof that nobody looked for weights. */
#include <dtensor/generation.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { MAX_RULES = 4, MAX_SAYS = 6 };

typedef struct judge_case {
    const char *fixture;
    const char *mesh;
    dt_plan_rule rules[MAX_RULES];
    dt_status code; /* DT_OK: the plan fits */
    const char *says[MAX_SAYS];
} judge_case;

#define L0 "model.layers.0."
#define L  "model.layers.*."

/* clang-format off */
static const judge_case cases[] = {
    /* styles that do not fit together */
    { "llama/uneven", "tp=2", { { L "self_attn.q_proj", "replicate" } }, DT_ERR_LAYOUT,
      { "my.json, rule \"" L "self_attn.q_proj\": \"replicate\" does not fit", L0 "self_attn.q_proj.weight [96, 96]",
        "on mesh dim \"tp\" of 2", "styles that fit: \"pairs\", \"colwise\"",
        "sizes of the dim that fit: 1, 3, 4", "query heads are Replicate" } },
    { "llama/uneven", "dp=2,tp=2", { { L "self_attn.v_proj", "replicate" } }, DT_ERR_LAYOUT,
      { L0 "self_attn.v_proj.weight [32, 96]", "mesh dim \"tp\" of 2", "\"colwise\"", "values are Replicate" } },
    { "qwen3/base", "tp=2", { { L "self_attn.k_proj", "rowwise" }, { L "mlp.up_proj", "replicate" } }, DT_ERR_LAYOUT,
      { "\"" L "self_attn.k_proj\": \"rowwise\"", L0 "self_attn.k_proj.weight", "styles that fit: \"pairs\", \"colwise\"" } },
    { "gpt_neo/base", "tp=2", { { "transformer.h.1.attn.attention.q_proj", "replicate" } }, DT_ERR_LAYOUT,
      { "transformer.h.1.attn.attention.q_proj", "styles that fit: \"pairs\", \"colwise\"", "tp" } },
    /* all of q, k and v whole is no contradiction, nor is a gate that is gathered */
    { "llama/uneven", "tp=2", { { L "self_attn.q_proj", "replicate" }, { L "self_attn.k_proj", "replicate" },
                                { L "self_attn.v_proj", "replicate" } }, DT_OK, { NULL } },
    { "qwen3_moe/base", "tp=4", { { L "mlp.experts.gate_up_proj", "grouped_gemm" } }, DT_ERR_LAYOUT,
      { "\"grouped_gemm\" does not fit", "experts.gate_up_proj.weight [6, 64, 48]", "styles that fit: \"packed_colwise\"" } },
    { "qwen3_moe/uneven", "tp=3", { { L "mlp.experts.gate_up_proj", "grouped_gemm" },
      { L "mlp.experts.down_proj", "grouped_gemm" } }, DT_OK, { NULL } },
    { "llama/uneven", "tp=3", { { L "mlp.gate_proj", "replicate" } }, DT_OK, { NULL } },
    { "llama/tied", "tp=3", { { "lm_head", "rowwise" } }, DT_OK, { NULL } },
    /* wrong kind of layer */
    { "llama/uneven", "tp=2", { { L "input_layernorm", "colwise" } }, DT_ERR_LAYOUT,
      { "my.json, rule \"" L "input_layernorm\": \"colwise\"", L0 "input_layernorm, an RMS norm with weight [96]", "replicate",
        "mesh dim \"tp\" of 2 ranks: style" } },
    { "llama/uneven", "tp=1", { { L "mlp.down_proj", "embedding_rowwise" } }, DT_ERR_LAYOUT,
      { L0 "mlp.down_proj, a linear layer with weight [96, 250]", "colwise, colwise_gather_output, rowwise" } },
    /* names */
    { "llama/uneven", "tp=2", { { "lm_head", "colwize" } }, DT_ERR_ARG,
      { "my.json, rule \"lm_head\": \"colwize\"", "unknown style \"colwize\"", "colwise, " } },
    { "llama/uneven", "tp=2", { { "model.layer.*.mlp", "colwise" } }, DT_ERR_ARG,
      { "my.json, rule \"model.layer.*.mlp\"", "matches no layer", "the nearest is model.layers.0." } },
    { "llama/tied", "tp=2", { { "lm_head", "colwise" }, { "model.embed_tokens", "colwise" } }, DT_ERR_LAYOUT,
      { "my.json, rule \"lm_head\": \"colwise\" and my.json, rule \"model.embed_tokens\"",
        "shares the weight of model.embed_tokens", "tp" } },
    /* a style of one's own that splits only in powers of two */
    { "llama/uneven", "tp=3", { { L "mlp.up_proj", "pairs" } }, DT_ERR_LAYOUT,
      { "\"pairs\" refuses " L0 "mlp.up_proj: 3 is no power of two (weight [250, 96], mesh dim \"tp\" of 3 ranks)",
        "sizes of mesh dim \"tp\" that fit: 1, 2, 4, 8, 16, 32, 64" } },
    { "llama/uneven", "tp=4", { { L "mlp.up_proj", "pairs" } }, DT_OK, { NULL } },
    /* one that leaves what the rest of the model cannot use */
    { "llama/uneven", "tp=2", { { L "mlp.down_proj", "torn" } }, DT_ERR_LAYOUT,
      { L0 "mlp.down_proj.weight [96, 250]", "styles that fit: \"pairs\", \"colwise\", ",
        "\"rowwise\"", "sizes of the dim that fit: 1:", "must be reduced" } },
};
/* clang-format on */

static dt_status powers_of_two(const dt_style *style, const dt_layer *layer, int n)
{
    (void)style, (void)layer;
    return (n & (n - 1)) == 0 ? DT_OK : dt_fail(DT_ERR_LAYOUT, "%d is no power of two", n);
}

static dt_status register_styles(dt_runtime *rt)
{
    const dt_style pairs = { .size = sizeof(dt_style),
                             .cut = DT_CUT_COLUMNS,
                             .in = DT_LAID(DT_LAY_REPLICATE),
                             .validate = powers_of_two };
    const dt_style torn = { .size = sizeof(dt_style),
                            .cut = DT_CUT_ROWS,
                            .in = DT_LAID(DT_LAY_LAST),
                            .out = DT_LAID(DT_LAY_KEEP) };

    DT_TRY(dt_style_register(rt, "pairs", &pairs));
    DT_TRY(dt_style_register(rt, "torn", &torn));
    return DT_OK;
}

/* A folder with the fixture's config.json alone. */
static void config_only(const char *fixture, char folder[DT_TEST_PATH_BYTES])
{
    char path[DT_TEST_PATH_BYTES];
    static char text[1 << 16];
    size_t n;
    FILE *f;

    f = fopen(dt_test_source_path(path, "tests/golden/%s/config.json", fixture), "rb");
    DT_ASSERT(f != NULL);
    n = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    dt_test_write_file(dt_test_temp_dir(folder), "config.json", text, n);
}

typedef struct trial {
    const judge_case *c;
    const char *folder;
} trial;

static void count_progress(void *arg, int64_t done, int64_t total)
{
    (void)arg, (void)done, (void)total;
    abort(); /* weights were read */
}

static dt_status expect(const judge_case *c, dt_status st)
{
    DT_EXPECT(st == c->code, "%s on %s: %s: %s", c->rules[0].pattern, c->mesh, dt_status_name(st),
              dt_last_error()->message);
    for (int i = 0; i < MAX_SAYS && c->says[i] != NULL; i++)
        DT_EXPECT(strstr(dt_last_error()->message, c->says[i]) != NULL, "\"%s\" is not in: %s",
                  c->says[i], dt_last_error()->message);
    return DT_OK;
}

static dt_status judge_it(dt_mesh *mesh, const void *arg)
{
    const trial *x = arg;
    const judge_case *c = x->c;
    dt_plan plan = { .rules = c->rules, .strict = true, .source = "my.json" };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_model *model = NULL;
    dt_status st;

    while (plan.n_rules < MAX_RULES && c->rules[plan.n_rules].pattern != NULL) plan.n_rules++;
    o.plan = &plan;
    o.progress = count_progress;
    DT_TRY(register_styles(dt_mesh_runtime(mesh)));
    DT_TRY(expect(c, dt_model_check(mesh, x->folder, &o)));
    st = dt_model_load(mesh, x->folder, &o, &model);
    DT_EXPECT(model == NULL, "nothing is left of a model that was refused");
    if (c->code != DT_OK) return expect(c, st);
    DT_EXPECT(st == DT_ERR_FORMAT, "the plan fits, now weights are looked for: %s",
              dt_last_error()->message);
    return DT_OK;
}

/* On a mesh of a dry runtime: the same words, and a model where the plan fits. */
static dt_status judge_dry(const trial *x)
{
    const judge_case *c = x->c;
    dt_plan plan = { .rules = c->rules, .strict = true, .source = "my.json" };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *model = NULL;

    while (plan.n_rules < MAX_RULES && c->rules[plan.n_rules].pattern != NULL) plan.n_rules++;
    o.plan = &plan;
    run.n_ranks = 4;
    DT_TRY(dt_runtime_create_dry(&run, 0, NULL, &rt));
    DT_TRY(register_styles(rt));
    DT_TRY(dt_mesh_create(rt, c->mesh, &mesh));
    DT_TRY(expect(c, dt_model_check(mesh, x->folder, &o)));
    if (c->code == DT_OK) DT_TRY(dt_model_load(mesh, x->folder, &o, &model));
    return DT_OK;
}

DT_TEST(judge, a_plan_is_refused_by_rule_parameter_and_remedy_before_weights)
{
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        char folder[DT_TEST_PATH_BYTES];
        const trial x = { &cases[i], folder };
        config_only(cases[i].fixture, folder);
        dt_test_on_ranks(cases[i].mesh, judge_it, &x);
        DT_ASSERT_OK(judge_dry(&x));
    }
}

/* A rule for a dim that the built-in styles do not speak of: other sizes of that one are tried. */
static dt_status judge_other_dim(dt_mesh *mesh, const void *folder)
{
    static const dt_plan_rule rule = { L "mlp.up_proj", "pairs" };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .source = "my.json", .dim = "ep" };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;

    o.plan = &plan;
    DT_TRY(register_styles(dt_mesh_runtime(mesh)));
    DT_EXPECT_STATUS(dt_model_check(mesh, folder, &o), DT_ERR_LAYOUT,
                     "mesh dim \"ep\" of 3 ranks); sizes of mesh dim \"ep\" that fit: 1");
    return DT_OK;
}

DT_TEST(judge, sizes_are_those_of_the_dim_that_the_rule_is_for)
{
    char folder[DT_TEST_PATH_BYTES];

    config_only("llama/uneven", folder);
    dt_test_on_ranks("ep=3", judge_other_dim, folder);
    dt_test_on_ranks("ep=3,dp=1", judge_other_dim, folder);
    dt_test_on_ranks("ep=3,tp=1", judge_other_dim, folder);
}

static _Thread_local int asked; /* of this rank's style */

static dt_status never(const dt_style *style, const dt_layer *layer, int n)
{
    (void)style, (void)layer;
    asked++;
    return dt_fail(DT_ERR_LAYOUT, "not on %d ranks", n);
}

static dt_status one_judge(dt_mesh *mesh, const void *folder)
{
    static const dt_plan_rule rule = { L "mlp.up_proj", "never" };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true, .source = "my.json" };
    const dt_style style = { .size = sizeof style,
                             .cut = DT_CUT_COLUMNS,
                             .in = DT_LAID(DT_LAY_REPLICATE),
                             .validate = never };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_model *m = NULL;

    asked = 0;
    o.plan = &plan;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "never", &style));
    DT_EXPECT_STATUS(dt_model_load(mesh, folder, &o, &m), DT_ERR_LAYOUT,
                     "\"never\" refuses " L0 "mlp.up_proj: not on");
    DT_EXPECT(m == NULL, "there is no model");
    DT_EXPECT((asked > 0) == (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0),
              "rank %d asked %d times", dt_runtime_rank(dt_mesh_runtime(mesh)), asked);
    return DT_OK;
}

DT_TEST(judge, one_rank_judges_and_all_say_what_it_found)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };
    char folder[DT_TEST_PATH_BYTES];

    config_only("llama/uneven", folder);
    for (size_t i = 0; i < DT_COUNT(meshes); i++) dt_test_on_ranks(meshes[i], one_judge, folder);
}

static dt_status no_choice(dt_mesh *mesh, const void *arg)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    const int32_t prompt[] = { 1, 2 };
    dt_runtime *rt = NULL;
    dt_mesh *dry = NULL;
    dt_model *m = NULL;
    dt_state *s = NULL;
    dt_status st = DT_OK;
    dt_tensor *logits;
    dt_tape *t = NULL;
    int64_t n;

    run.n_ranks = 6;
    DT_TRY_TO(done, st, dt_runtime_create_dry(&run, 4, dt_mesh_runtime(mesh), &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, "dp=2,tp=3", &dry));
    DT_TRY_TO(done, st, dt_model_load(dry, arg, NULL, &m));
    DT_TRY_TO(done, st, dt_state_create(m, 1, 8, &s));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    logits = dt_model_forward(t, m, s, prompt, 2, DT_LOGITS_ALL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, dt_tensor_extent(logits, 1) == 2 && dt_tensor_extent(logits, 2) == 257,
                 "logits have a shape");
    DT_EXPECT_TO(done, st, dt_tensor_local(logits)->data == NULL, "and no bytes");
    st =
        dt_test_expect_status(__func__, __FILE__, __LINE__,
                              dt_generate(m, s, prompt, 2, NULL, NULL, &n), DT_ERR_ARG, "dry mesh");
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    dt_model_release(&m);
    dt_mesh_release(&dry);
    dt_runtime_release_dry(&rt);
    return st;
}

DT_TEST(judge, a_dry_model_runs_but_chooses_no_token)
{
    char folder[DT_TEST_PATH_BYTES];

    config_only("llama/uneven", folder);
    dt_test_on_ranks("tp=1", no_choice, folder);
}
