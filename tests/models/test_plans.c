/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans from files: what a file may say, what it becomes, what is refused; auto and manual. */
#include <dtensor/models.h>
#include <dtensor/plans.h>
#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "tests/support/dt_test.h"
#include "tests/support/plan_files.h"

DT_TEST(plans, a_file_becomes_a_chain_of_plans)
{
    DT_HELD(plan) *p = NULL;

    DT_ASSERT_OK(
        dt_test_read_plan("{\"a.*\": \"colwise\", \"a.b\": {\"tp\": \"rowwise\", \"dp\": \"mine\"},"
                          " \"strict\": false, \"c\": \"replicate\", \"d\": {\"dp\": \"x\"}}",
                          &p));
    DT_ASSERT_EQ_INT(p->n_rules, 2);
    DT_ASSERT_EQ_STR(p->rules[0].pattern, "a.*");
    DT_ASSERT_EQ_STR(p->rules[1].style, "replicate");
    DT_ASSERT(!p->strict && !p->manual && p->dim == NULL);
    DT_ASSERT(strstr(p->source, "plan.json") != NULL);
    DT_ASSERT_EQ_STR(p->more->dim, "tp");
    DT_ASSERT_EQ_INT(p->more->n_rules, 1);
    DT_ASSERT_EQ_STR(p->more->rules[0].style, "rowwise");
    DT_ASSERT_EQ_STR(p->more->more->dim, "dp");
    DT_ASSERT_EQ_INT(p->more->more->n_rules, 2);
    DT_ASSERT_EQ_STR(p->more->more->rules[1].pattern, "d");
    DT_ASSERT(!p->more->more->strict && p->more->more->more == NULL);
    dt_plan_release(&p);
    DT_ASSERT(p == NULL);
    dt_plan_release(&p);

    DT_ASSERT_OK(dt_test_read_plan("{\"mode\": \"manual\"}", &p));
    DT_ASSERT(p->n_rules == 0 && p->strict && p->manual && p->more == NULL);
}

static dt_status lay_on_eight_dims(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec spec = { .name = "a",
                                 .kind = &dt_linear_kind,
                                 .axis = { { .extent = 4 }, { .extent = 4 } } };
    dt_layers *layers = NULL;

    DT_TRY(dt_layers_create(mesh, "d1", &spec, 1, arg, &layers));
    dt_layers_release(&layers);
    return DT_OK;
}

/* As many as a mesh may have, and rules of none beside them. */
DT_TEST(plans, a_file_may_name_eight_mesh_dims)
{
    DT_HELD(plan) *p = NULL;
    int n = 0;

    DT_ASSERT_OK(dt_test_read_plan(
        "{\"a\": {\"d1\":\"colwise\",\"d2\":\"replicate\",\"d3\":\"replicate\","
        "\"d4\":\"replicate\",\"d5\":\"replicate\",\"d6\":\"replicate\",\"d7\":\"replicate\","
        "\"d8\":\"replicate\"}, \"a*\": \"replicate\", \"strict\": false}",
        &p));
    for (const dt_plan *at = p; at != NULL; at = at->more) n++;
    DT_ASSERT_EQ_INT(n, 9);
    dt_test_on_ranks("d1=2,d2=1,d3=1,d4=1,d5=1,d6=1,d7=1,d8=1", lay_on_eight_dims, p);
}

DT_TEST(plans, a_rule_may_have_arguments)
{
    DT_HELD(plan) *p = NULL;

    DT_ASSERT_OK(
        dt_test_read_plan("{\"a\": {\"style\": \"rowwise\", \"output\": \"S(1)\"},"
                          " \"b\": {\"tp\": {\"style\": \"x\", \"input\": [\"R\", \"keep\"],"
                          " \"comes\": []}}, \"c\": {\"style\": \"y\"}, \"version\": \"v4.56\"}",
                          &p));
    DT_ASSERT_EQ_STR(p->rules[0].style, "rowwise(output=S(1))");
    DT_ASSERT_EQ_STR(p->rules[1].style, "y");
    DT_ASSERT_EQ_STR(p->more->rules[0].style, "x(input=[R, keep], comes=[])");
    DT_ASSERT_EQ_STR(p->version, "v4.56");
    DT_ASSERT_EQ_STR(p->more->version, "v4.56");
}

/* PyTorch's own types: integers, None and booleans. */
DT_TEST(plans, arguments_may_be_numbers_and_null)
{
    DT_HELD(plan) *p = NULL;

    DT_ASSERT_OK(dt_test_read_plan(
        "{\"a\": {\"style\": \"SequenceParallel\", \"sequence_dim\": 1},"
        " \"b\": {\"style\": \"PrepareModuleInput\", \"input_layouts\": [\"Shard(1)\", null]},"
        " \"c\": {\"style\": \"ColwiseParallel\", \"use_local_output\": true},"
        " \"d\": {\"style\": \"SequenceParallel\", \"sequence_dim\": -1}}",
        &p));
    DT_ASSERT_EQ_STR(p->rules[0].style, "SequenceParallel(sequence_dim=1)");
    DT_ASSERT_EQ_STR(p->rules[1].style, "PrepareModuleInput(input_layouts=[Shard(1), None])");
    DT_ASSERT_EQ_STR(p->rules[2].style, "ColwiseParallel(use_local_output=true)");
    DT_ASSERT_EQ_STR(p->rules[3].style, "SequenceParallel(sequence_dim=-1)");
}

DT_TEST(plans, a_file_that_is_no_plan_is_refused_by_place)
{
    static const struct {
        const char *text;
        dt_status code;
        const char *message;
    } bad[] = {
        { "[]", DT_ERR_FORMAT, "plan.json" },
        { "{\"a\": 3}", DT_ERR_FORMAT, "plan.json: a is 3, must be the name of a style, or" },
        { "{\"a\": [\"x\"]}", DT_ERR_FORMAT, "a is an array of 1, must be the name of a style" },
        { "{\"a\": {}}", DT_ERR_FORMAT, "a style, or an object that has one per mesh dim" },
        { "{\"a\": {\"tp\": null}}", DT_ERR_FORMAT, "a.tp is null" },
        { "{\"a\": {\"style\": 3}}", DT_ERR_FORMAT, "a.style is 3" },
        { "{\"a\": {\"style\": \"x\", \"input\": {}}}", DT_ERR_FORMAT, "a.input is" },
        { "{\"a\": {\"style\": \"x\", \"sequence_dim\": 1.5}}", DT_ERR_FORMAT,
          "a.sequence_dim is 1.5" },
        { "{\"a\": {\"style\": \"x\", \"sequence_dim\": 99}}", DT_ERR_FORMAT,
          "a.sequence_dim is 99" },
        { "{\"version\": 4}", DT_ERR_FORMAT, "version is 4" },
        { "{\"strict\": 1}", DT_ERR_FORMAT, "plan.json: strict is 1" },
        { "{\"mode\": \"semi\"}", DT_ERR_FORMAT,
          "plan.json: mode is the string \"semi\", must be \"auto\" or \"manual\"" },
        { "{\"a\": \"x\", \"a\": \"y\"}", DT_ERR_FORMAT, "\"a\"" },
        { "{\"a\": {\"d1\":\"x\",\"d2\":\"x\",\"d3\":\"x\",\"d4\":\"x\",\"d5\":\"x\",\"d6\":\"x\","
          "\"d7\":\"x\",\"d8\":\"x\",\"d9\":\"x\"}}",
          DT_ERR_ARG, "for one of 8 mesh dims" },
    };
    dt_plan *p;

    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        DT_ASSERT_STATUS(dt_test_read_plan(bad[i].text, &p), bad[i].code, bad[i].message);
        DT_ASSERT(p == NULL);
    }
    DT_ASSERT_STATUS(dt_plan_read("/nowhere/plan.json", &p), DT_ERR_IO, "/nowhere/plan.json");
    DT_ASSERT_STATUS(dt_plan_read(NULL, &p), DT_ERR_ARG, "path is NULL");
    DT_ASSERT_STATUS(dt_plan_read("x", NULL), DT_ERR_ARG, "out is NULL");
    DT_ASSERT_STATUS(dt_plan_parse("mine", "{", 1, &p), DT_ERR_FORMAT, "mine: line 1");
    DT_ASSERT_STATUS(dt_plan_parse("mine", "{\"a\": 1.5}", 10, &p), DT_ERR_FORMAT, "mine: a is");
    DT_ASSERT_STATUS(dt_plan_parse("mine", NULL, 0, &p), DT_ERR_ARG, "text is NULL");
    DT_ASSERT_OK(dt_plan_parse("mine", "{\"a\": \"colwise\"}", 16, &p));
    DT_ASSERT(p != NULL && p->n_rules == 1 && strcmp(p->source, "mine") == 0);
    dt_plan_release(&p);
}

/* --- auto and manual -------------------------------------------------------------------------- */

static const dt_layer_spec specs[] = {
    { .name = "embed",
      .kind = &dt_embedding_kind,
      .axis = { { 11, 0 }, { 6, 0 } },
      .style = "embedding_rowwise" },
    { .name = "layers.0.norm", .kind = &dt_rms_norm_kind, .axis = { { 6, 0 } } },
    { .name = "layers.0.up",
      .kind = &dt_linear_kind,
      .axis = { { 8, 0 }, { 6, 0 } },
      .style = "colwise" },
    { .name = "layers.0.down",
      .kind = &dt_linear_kind,
      .axis = { { 6, 0 }, { 8, 0 } },
      .style = "rowwise" },
    { .name = "head",
      .kind = &dt_linear_kind,
      .axis = { { 11, 0 }, { 6, 0 } },
      .style = "colwise",
      .tied_to = "embed" },
};

static dt_status expect_styles_of(dt_mesh *mesh, const dt_layer_spec *list, const char *text,
                                  const char *const *styles)
{
    DT_HELD(plan) *plan = NULL;
    DT_HELD(layers) *layers = NULL;

    DT_TRY(dt_test_read_plan(text, &plan));
    DT_TRY(dt_layers_create(mesh, "tp", list, (int)DT_COUNT(specs), plan, &layers));
    for (int i = 0; i < dt_layers_count(layers); i++)
        DT_EXPECT(strcmp(dt_layer_style(dt_layers_at(layers, i))->name, styles[i]) == 0,
                  "%s: %s is %s", text, specs[i].name,
                  dt_layer_style(dt_layers_at(layers, i))->name);
    return DT_OK;
}

static dt_status expect_styles(dt_mesh *mesh, const char *text, const char *const *styles)
{
    return expect_styles_of(mesh, specs, text, styles);
}

static dt_status modes(dt_mesh *mesh, const void *arg)
{
    static const char *const built_in[] = { "embedding_rowwise", "replicate", "colwise", "rowwise",
                                            "colwise" };
    static const char *const automatic[] = { "embedding_rowwise", "replicate", "replicate",
                                             "rowwise", "colwise" };
    static const char *const manual[] = { "embedding_rowwise", "replicate", "replicate", "rowwise",
                                          "colwise" };
    static const char *const scatters[] = { "vocab_reduce_scatter", "replicate", "colwise",
                                            "rowwise", "colwise" };
    static const char *const other_cut[] = { "colwise", "replicate", "colwise", "rowwise",
                                             "rowwise_split_input" }; /* not the specs' own */
    static const char *const whole[] = { "replicate", "replicate", "replicate", "replicate",
                                         "replicate" };
    dt_layer_spec scattering[DT_COUNT(specs)];
    dt_layers *layers = NULL;
    dt_plan *plan = NULL;
    dt_status st = DT_OK;

    (void)arg;
    memcpy(scattering, specs, sizeof specs);
    scattering[0].style = "vocab_reduce_scatter"; /* lays the weight as colwise lays the head's */
    DT_TRY(expect_styles(mesh, "{}", built_in));
    DT_TRY(expect_styles(mesh, "{\"layers.*.up\": \"replicate\"}", automatic));
    /* the head's rule covers what it shares with the embedding, and norms need none */
    DT_TRY(expect_styles(mesh,
                         "{\"mode\": \"manual\", \"layers.*.up\": \"replicate\","
                         " \"layers.*.down\": \"rowwise\", \"head\": \"colwise\"}",
                         manual));
    DT_TRY(expect_styles(mesh, "{\"mode\": \"manual\", \"strict\": false}", whole));
    DT_TRY(expect_styles_of(mesh, scattering, "{\"head\": \"colwise\"}", scatters));
    DT_TRY(expect_styles(mesh, "{\"head\": \"rowwise_split_input\"}", other_cut));
    DT_TRY(dt_test_read_plan("{\"layers.*.up\": {\"output\": \"R\"}}", &plan));
    st = dt_test_expect_status(
        __func__, __FILE__, __LINE__,
        dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), plan, &layers), DT_ERR_ARG,
        "\"output\" is an argument of a style and no dim of the mesh; is \"style\" missing");
    dt_plan_release(&plan);
    if (st != DT_OK) return st;
    DT_TRY(dt_test_read_plan("{\"mode\": \"manual\", \"layers.*.up\": \"colwise\"}", &plan));
    st = dt_test_expect_status(
        __func__, __FILE__, __LINE__,
        dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), plan, &layers), DT_ERR_ARG,
        "plan.json: no rule covers embed.weight [11, 6] (and 2 more), and the plan is manual");
    dt_plan_release(&plan);
    return st;
}

static dt_status remarks(dt_mesh *mesh, const void *arg)
{
    static const char text[] =
        "{\"strict\": false, \"mode\": \"manual\", \"layer.*.up\": \"colwise\","
        " \"layers.*.up\": {\"cp\": \"colwise\"}, \"layers.*.down\": \"rowwise\"}";
    static const char *const want[] = {
        "rule \"layer.*.up\": \"colwise\" matches no layer; the nearest is layers.0.up",
        "rule \"layers.*.up\": \"colwise\": the mesh has no dim \"cp\"",
        "no rule covers embed.weight [11, 6] (and 2 more): whole on every rank",
    };
    DT_HELD(plan) *plan = NULL;
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_TRY(dt_test_read_plan(text, &plan));
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), plan, &layers));
    for (int i = 0; i < 3; i++)
        DT_EXPECT(dt_layers_remark(layers, i) != NULL &&
                      strstr(dt_layers_remark(layers, i), want[i]) != NULL,
                  "remark %d is \"%s\"", i, dt_layers_remark(layers, i));
    DT_EXPECT(dt_layers_remark(layers, 3) == NULL, "no more");
    DT_EXPECT(dt_layers_remark(layers, -1) == NULL, "none before");
    return DT_OK;
}

DT_TEST(plans, what_is_said_in_vain_or_left_out_is_remembered)
{
    dt_test_on_ranks("tp=2", remarks, NULL);
}

DT_TEST(plans, a_manual_plan_has_to_cover_what_could_be_cut)
{
    dt_test_on_ranks("tp=1", modes, NULL);
    dt_test_on_ranks("tp=2", modes, NULL);
}

/* --- many rules --------------------------------------------------------------------------------
 */

static dt_status load_by(dt_mesh *mesh, const void *arg)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    dt_layers *layers;
    int n = 0;

    o.plan = arg;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/qwen2/base"), &o, &m));
    layers = dt_model_layers(m);
    while (dt_layers_remark(layers, n) != NULL) n++;
    DT_EXPECT(n == 17, "%d remarks", n);
    DT_EXPECT(strstr(dt_layers_remark(layers, 16), "199984 more rules match no layer") != NULL,
              "%s", dt_layers_remark(layers, 16));
    DT_EXPECT(strcmp(dt_layer_style(dt_layers_find(layers, "model.layers.1.mlp.up_proj"))->name,
                     "replicate") == 0,
              "the rule spelled as files do has no effect");
    return DT_OK;
}

/* One after the other each would be held against each layer in each spelling, and its nearest layer
 * be sought. */
DT_TEST(plans, a_file_of_two_hundred_thousand_rules_is_taken)
{
    enum { MANY = 200000, RULE_BYTES = 40 };
    dti_writer w = { .bytes = (size_t)(MANY + 4) * RULE_BYTES };
    dt_plan *plan;

    DT_ASSERT_OK(dti_alloc_array(w.bytes, 1, (void **)&w.text));
    dti_put(&w, "{\"strict\": false");
    for (int i = 0; i < MANY; i++) dti_put(&w, ", \"layers.1.mlp.up%d\": \"colwise\"", i);
    dti_put(&w, ", \"layers.1.mlp.*\": \"replicate\"}");
    DT_ASSERT_OK(dt_test_read_plan(w.text, &plan));
    dt_test_on_ranks("tp=1", load_by, plan);
    dt_plan_release(&plan);
    dti_free(w.text);
}
