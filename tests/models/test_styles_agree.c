/* SPDX-License-Identifier: Apache-2.0
 *
 * dt_parallelize() where a style's name means one thing on one rank, another on the others: every
 * field of a style is compared. */
#include <dtensor/parallel_styles.h>
#include <dtensor/parallelize.h>

#include "tests/support/dt_test.h"

static void touch(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                  dt_tensor **x)
{
    (void)s, (void)t, (void)layer, (void)dim, (void)n, (void)x;
}

static dt_tensor *as_it_is(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int param,
                           dt_tensor *w)
{
    (void)s, (void)t, (void)layer, (void)dim, (void)param;
    return w;
}

static dt_status fits(const dt_style *s, const dt_layer *layer, int n_parts)
{
    (void)s, (void)layer, (void)n_parts;
    return DT_OK;
}

#define COLUMNS .size = sizeof(dt_style), .cut = DT_CUT_COLUMNS
static const dt_style colwise = { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE) };
static const dt_pass made_whole = { { DT_LAY_REPLICATE, 0 }, { DT_LAY_KEEP, 0 } };
static const dt_pass has_to_be_whole = { { DT_LAY_REPLICATE, 0 }, { DT_LAY_REPLICATE, 0 } };

/* What rank 1 has under the name, and in what it differs from the others'. */
static const dt_style other_styles[] = {
    { .size = sizeof(dt_style), .cut = DT_CUT_ROWS, .in = DT_LAID(DT_LAY_LAST) },
    { COLUMNS, .in = DT_LAID(DT_LAY_KEEP) },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .out = DT_LAID(DT_LAY_SHARD, -1) },
    { COLUMNS, .in = { 0, { has_to_be_whole } } },
    { COLUMNS, .in = { 1, { made_whole } } },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .twin = "colwise" },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .kinds = "linear" },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .prepare_input = touch },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .prepare_output = touch },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .prepare_param = as_it_is },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .validate = fits },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .user = &colwise },
};

/* A style of its own for a step, on rank 0 and on rank 1. */
static const dt_style with_step = { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .twin = "my_step" };
static const dt_style steps[] = {
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE) },
    { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE), .out = DT_LAID(DT_LAY_SHARD, -1) },
};

static const dt_style refused_style = { COLUMNS, .in = DT_LAID(DT_LAY_REPLICATE),
                                        .kinds = "embedding" };
#undef COLUMNS

static dt_status styles_differ(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule rule = { "model.layers.*.mlp.up_proj", "mine" };
    static const dt_plan plan = { .rules = &rule, .n_rules = 1 };
    const bool refused = arg == &refused_style;
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_model *model = NULL;

    (void)dt_test_source_path(path, "tests/golden/llama/uneven");
    DT_TRY(dt_style_register(rt, "mine", dt_runtime_rank(rt) == 1 ? arg : &colwise));
    options.plan = &plan;
    DT_EXPECT_STATUS(
        dt_parallelize(rt, path, &options, &model), refused ? DT_ERR_LAYOUT : DT_ERR_ARG,
        refused ? "model.layers.0.mlp.up_proj"
                : "ranks 0 and 1 have laid out model.layers.0.mlp.up_proj differently");
    DT_EXPECT(model == NULL, "no model");
    DT_TRY(dt_parallelize(rt, path, NULL, &model)); /* the run goes on */
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(styles_agree, ranks_that_differ_all_hear_of_it)
{
    static const char *const meshes[] = { "tp=2", "tp=3" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        dt_test_on_ranks(meshes[m], styles_differ, &other_styles[0]);
        dt_test_on_ranks(meshes[m], styles_differ, &refused_style);
    }
}

/* The style of a step has the same name on all ranks, and moves elsewhere what leaves. */
static dt_status steps_differ(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule rule = { "model.layers.*.mlp.up_proj", "mine" };
    static const dt_plan plan = { .rules = &rule, .n_rules = 1 };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_parallelize_options options = DT_PARALLELIZE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *model = NULL;

    (void)arg;
    DT_TRY(dt_style_register(rt, "my_step", &steps[dt_runtime_rank(rt) == 1]));
    DT_TRY(dt_style_register(rt, "mine", &with_step));
    options.plan = &plan;
    DT_EXPECT_STATUS(dt_parallelize(rt, dt_test_source_path(path, "tests/golden/llama/uneven"),
                                    &options, &model),
                     DT_ERR_ARG,
                     "ranks 0 and 1 have laid out model.layers.0.mlp.up_proj differently");
    DT_EXPECT(model == NULL, "no model");
    return DT_OK;
}

DT_TEST(styles_agree, the_styles_of_a_step_are_compared_too)
{
    dt_test_on_ranks("tp=2", steps_differ, NULL);
}

/* Also in what places no parameter elsewhere and sends nothing else. */
DT_TEST(styles_agree, styles_are_compared_in_every_field)
{
    for (size_t i = 1; i < DT_COUNT(other_styles); i++)
        dt_test_on_ranks("tp=2", styles_differ, &other_styles[i]);
}
