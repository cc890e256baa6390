/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans: which rule wins, what is reported, tied weights. */
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "parallel_styles/layers_internal.h"
#include "tests/support/dt_test.h"

DT_TEST(plan, a_star_is_one_whole_component)
{
    DT_ASSERT_EQ_INT(dti_plan_match("a.b", "a.b"), 0);
    DT_ASSERT_EQ_INT(dti_plan_match("a.*", "a.b"), 1);
    DT_ASSERT_EQ_INT(dti_plan_match("*.*", "a.b"), 2);
    DT_ASSERT_EQ_INT(dti_plan_match("layers.*.w1", "layers.12.w1"), 1);
    DT_ASSERT_EQ_INT(dti_plan_match("layers.*.w*", "layers.12.w1"), -1); /* not part of one */
    DT_ASSERT_EQ_INT(dti_plan_match("a.*", "a.b.c"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a.*.c", "a.c"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a", "a.b"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("a.b", "a"), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("*", ""), -1);
    DT_ASSERT_EQ_INT(dti_plan_match("ab", "ac"), -1);
}

DT_TEST(plan, a_pattern_is_as_far_from_a_name_as_has_to_be_changed)
{
    static const struct {
        const char *pattern, *name;
        int distance;
    } rows[] = {
        { "a.b", "a.b", 0 },      { "", "abc", 3 },
        { "abc", "", 3 },         { "a.c", "a.b", 1 },
        { "ab", "b", 1 },         { "*.b", "long.b", 0 },
        { "*b", "b", 0 },         { "*", "a.b", 1 },
        { "x.*.w", "y.12.w", 1 }, { "layer.*.w", "layers.0.w", 1 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_EQ_INT(dti_name_distance(rows[i].pattern, rows[i].name), rows[i].distance);
}

static const dt_layer_spec specs[] = {
    { .name = "embed", .kind = &dt_embedding_kind, .axis = { { 11, 0 }, { 6, 0 } } },
    { .name = "layers.0.up",
      .kind = &dt_linear_kind,
      .axis = { { 8, 0 }, { 6, 0 } },
      .style = "colwise" },
    { .name = "layers.1.up",
      .kind = &dt_linear_kind,
      .axis = { { 8, 0 }, { 6, 0 } },
      .style = "colwise" },
    { .name = "head",
      .kind = &dt_linear_kind,
      .axis = { { 11, 0 }, { 6, 0 } },
      .tied_to = "embed" },
};

static dt_status expect_style(dt_layers *layers, const char *layer, const char *style)
{
    DT_EXPECT_EQ_STR(dt_layer_style(dt_layers_find(layers, layer))->name, style);
    return DT_OK;
}

static dt_status make(dt_mesh *mesh, const dt_plan_rule *rules, int n, bool strict, dt_layers **out)
{
    const dt_plan plan = { .rules = rules, .n_rules = n, .strict = strict };

    return dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), &plan, out);
}

static dt_status rules_win(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule rules[] = { { "layers.0.up", "replicate" },
                                   { "*.1.up", "colwise" },
                                   { "layers.*.up", "rowwise" },
                                   { "*.*.up", "colwise_gather_output" },
                                   { "head", "colwise" } };
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(make(mesh, rules, (int)DT_COUNT(rules), true, &layers));
    DT_TRY_TO(done, st, expect_style(layers, "layers.0.up", "replicate")); /* exact */
    DT_TRY_TO(done, st, expect_style(layers, "layers.1.up", "rowwise"));   /* fewer stars, later */
    DT_TRY_TO(done, st, expect_style(layers, "head", "colwise"));
    DT_TRY_TO(done, st,
              expect_style(layers, "embed", "embedding_rowwise")); /* follows its partner */
    DT_EXPECT_TO(done, st,
                 dt_layer_param_layout(dt_layers_find(layers, "head"), 0) ==
                     dt_layer_param_layout(dt_layers_find(layers, "embed"), 0),
                 "tied weights lie alike");
done:
    dt_layers_release(&layers);
    return st;
}

static dt_status wrong_plans(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule unknown = { "layers.*.up", "sideways" },
                       unused = { "layer.*.up", "colwise" };
    const dt_plan_rule torn[] = { { "embed", "colwise" }, { "head", "colwise" } };
    dt_layers *layers = NULL;
    dt_status st;

    (void)arg;
    DT_EXPECT_STATUS(
        make(mesh, &unknown, 1, false, &layers), DT_ERR_ARG,
        "the plan, rule \"layers.*.up\": \"sideways\": layers.0.up: unknown style \"sideways\"");
    DT_EXPECT_STATUS(make(mesh, &unused, 1, true, &layers), DT_ERR_ARG,
                     "\"layer.*.up\": \"colwise\" matches no layer");
    DT_EXPECT_STATUS(make(mesh, torn, 2, true, &layers), DT_ERR_LAYOUT,
                     "head shares the weight of embed");
    st = make(mesh, &unused, 1, false, &layers); /* a warning in the log */
    dt_layers_release(&layers);
    return st;
}

DT_TEST(plan, the_most_exact_rule_wins_and_tied_layers_follow)
{
    dt_test_on_ranks("tp=2", rules_win, NULL);
}

DT_TEST(plan, wrong_plans_are_refused_with_names)
{
    dt_test_on_ranks("tp=2", wrong_plans, NULL);
}

static dt_status no_such_dim(dt_mesh *mesh, const void *arg)
{
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), NULL, &layers),
                     DT_ERR_ARG,
                     "the mesh has no dim \"tp\", which the styles of these layers speak "
                     "of; it has \"dp\"");
    DT_TRY(dt_layers_create(mesh, "tp?", specs, (int)DT_COUNT(specs), NULL, &layers));
    for (int i = 0; i < dt_layers_count(layers); i++)
        DT_EXPECT_TO(done, st,
                     dt_layout_is_replicated(dt_layer_param_layout(dt_layers_at(layers, i), 0)),
                     "layer %d", i);
done:
    dt_layers_release(&layers);
    return st;
}

DT_TEST(plan, a_mesh_without_the_dim_replicates_where_that_is_said)
{
    dt_test_on_ranks("dp=2", no_such_dim, NULL);
}
