/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles of users where a layer is more than a matrix: experts, and layers that share a weight. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <stdio.h>

#include "tests/support/dt_test.h"

enum { E = 5, D = 6, F = 7 };

static const dt_layer_spec experts_specs[] = {
    { .name = "mlp.experts", .kind = &dt_point_kind, .style = "moe_tp_experts" },
    { .name = "mlp.experts.down_proj",
      .kind = &dt_experts_kind,
      .axis = { { D, 0 }, { F, 0 }, { E, 0 } } },
};

/* --- offsets on the third axis ---------------------------------------------------------------- */

static dt_status uneven(const dt_style *style, const dt_param_info *param, int n_parts,
                        dt_cut_room *room, dt_placement *out)
{
    const int axis = param->n_axes - 1;
    const int64_t n = param->axis[axis].extent + *(const int *)style->user;

    for (int r = 0; r <= n_parts; r++) room->offsets[r] = n - n * (n_parts - r) / n_parts;
    *out = dt_shard_offsets(axis, n_parts + 1, room->offsets);
    return DT_OK;
}

static dt_status third_axis(dt_mesh *mesh, const void *arg)
{
    static const int right = 0, wrong = 1; /* rows too many */
    dt_style style = { .size = sizeof style, .partition_param = uneven, .user = &right };
    const dt_plan_rule rule = { "mlp.experts.down_proj", "right" };
    const dt_plan_rule bad = { "mlp.experts.down_proj", "wrong" };
    dt_plan plan = { .rules = &rule, .n_rules = 1 };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_layers *layers = NULL;
    dt_placement place;

    (void)arg;
    DT_TRY(dt_style_register(rt, "right", &style));
    style.user = &wrong;
    DT_TRY(dt_style_register(rt, "wrong", &style));
    DT_TRY(dt_layers_create(mesh, "tp", experts_specs, 2, &plan, &layers));
    place = dt_layout_placement(dt_layer_param_layout(dt_layers_at(layers, 1), 0), 0);
    dt_layers_release(&layers);
    DT_EXPECT(place.kind == DT_PLACE_SHARD && place.axis == 2 && place.n_offsets == 3, "uneven");
    plan.rules = &bad;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", experts_specs, 2, &plan, &layers), DT_ERR_SHAPE,
                     "style \"wrong\" on mlp.experts.down_proj.weight [5, 6, 7] on mesh dim \"tp\" "
                     "of 2 ranks: mesh dim 0 cuts axis 2 at offsets that end at 8, but 7 rows");
    return DT_OK;
}

DT_TEST(own_styles, offsets_on_the_third_axis_of_experts_are_checked)
{
    dt_test_on_ranks("tp=2", third_axis, NULL);
}

/* --- what experts would ignore ---------------------------------------------------------------- */

static void same(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                 dt_tensor **x)
{
    (void)style, (void)t, (void)layer, (void)dim, (void)n, (void)x;
}

static dt_tensor *other(void *arg, dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    (void)arg, (void)t, (void)layer;
    return x;
}

static dt_status expect_refused(dt_mesh *mesh, const char *style, bool with_point)
{
    const dt_plan_rule rule = { "mlp.experts.down_proj", style };
    const dt_plan plan = { .rules = &rule, .n_rules = 1 };
    dt_layers *layers = NULL;
    char says[160];

    (void)snprintf(says, sizeof says,
                   "style \"%s\" lays out values of mlp.experts.down_proj, a layer of experts, "
                   "where a style only cuts the weight; say it at %s",
                   style, with_point ? "mlp.experts" : "the point around it");
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", with_point ? experts_specs : &experts_specs[1],
                                      with_point ? 2 : 1, &plan, &layers),
                     DT_ERR_LAYOUT, says);
    return DT_OK;
}

static dt_status ignored(dt_mesh *mesh, const void *arg)
{
    static const char *const names[] = { "rowwise(output=S(1))",
                                         "rowwise(comes=S(2))",
                                         "grouped_gemm(output=R)",
                                         "local(input=[R, keep])",
                                         "sequence_parallel",
                                         "gather",
                                         "before",
                                         "behind" };
    static const char *const fine[] = { "rowwise", "grouped_gemm", "replicate", "local" };
    dt_style style = { .size = sizeof style, .prepare_input = same };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_layers *layers = NULL;

    (void)arg;
    DT_TRY(dt_style_register(rt, "before", &style));
    style.prepare_input = NULL;
    style.prepare_output = same;
    DT_TRY(dt_style_register(rt, "behind", &style));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        DT_TRY(expect_refused(mesh, names[i], true));
        DT_TRY(expect_refused(mesh, names[i], false));
    }
    for (size_t i = 0; i < DT_COUNT(fine); i++) {
        const dt_plan_rule rule = { "mlp.experts.down_proj", fine[i] };
        const dt_plan plan = { .rules = &rule, .n_rules = 1 };
        dt_status st;
        DT_TRY(dt_layers_create(mesh, "tp", experts_specs, 2, &plan, &layers));
        st = dt_layer_set_forward(dt_layers_at(layers, 1), other, NULL);
        dt_layers_release(&layers);
        DT_EXPECT_STATUS(st, DT_ERR_ARG,
                         "mlp.experts.down_proj is a layer of experts, which dt_layer_experts()");
    }
    return DT_OK;
}

DT_TEST(own_styles, what_experts_would_ignore_is_refused)
{
    dt_test_on_ranks("tp=1", ignored, NULL);
    dt_test_on_ranks("tp=3", ignored, NULL);
}

/* --- specs of experts ------------------------------------------------------------------------- */

static dt_status files(dt_mesh *mesh, const void *arg)
{
    dt_layer_spec spec = experts_specs[1];
    dt_layers *layers = NULL;

    (void)arg;
    spec.reversed = true;
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    dt_layers_release(&layers);
    spec.parts[0] = "down_proj";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "mlp.experts.down_proj is reversed, but has names of parts");
    spec.reversed = false;
    spec.parts[1] = "up_proj";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "has names for 2 parts, but its outputs are 0 blocks");
    spec.blocks[0] = (dt_axis_blocks){ 3, { { 2, 0 }, { 2, 0 }, { 2, 0 } } };
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "has names for 2 parts, but its outputs are 3 blocks");
    spec.parts[0] = NULL;
    spec.blocks[0] = (dt_axis_blocks){ 2, { { 2, 0 }, { 4, 0 } } };
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "has names for 1 parts, but its outputs are 2 blocks");
    return DT_OK;
}

DT_TEST(own_styles, names_of_parts_have_to_fit_the_blocks)
{
    dt_test_on_ranks("tp=1", files, NULL);
}

/* --- shared weights --------------------------------------------------------------------------- */

static dt_status shared(dt_mesh *mesh, const void *arg)
{
    dt_layer_spec specs[] = {
        { .name = "embed", .kind = &dt_embedding_kind, .axis = { { 11, 0 }, { 6, 0 } } },
        { .name = "head",
          .kind = &dt_linear_kind,
          .axis = { { 12, 0 }, { 6, 0 } },
          .tied_to = "embed" },
        { .name = "second",
          .kind = &dt_linear_kind,
          .axis = { { 11, 0 }, { 6, 0 } },
          .tied_to = "head" },
    };
    dt_layers *layers = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 2, NULL, &layers), DT_ERR_ARG,
                     "head has weight [12, 6], but shares that of embed, [11, 6]");
    specs[1].axis[0].extent = 11;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 3, NULL, &layers), DT_ERR_ARG,
                     "second shares the weight of head, which shares that of embed");
    specs[1].reversed = true;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 2, NULL, &layers), DT_ERR_ARG,
                     "head shares the weight of embed, but only one of them is reversed");
    specs[1] = (dt_layer_spec){
        .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { 11, 0 } }, .tied_to = "embed"
    };
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 2, NULL, &layers), DT_ERR_ARG,
                     "norm, an RMS norm, shares the weight of embed, an embedding: linear layers");
    return DT_OK;
}

/* A cut that no built-in style has: the partner cannot follow, and is told to. */
static dt_status own_cut(dt_mesh *mesh, const void *arg)
{
    static const int right = 0;
    const dt_style style = { .size = sizeof style, .partition_param = uneven, .user = &right };
    const dt_layer_spec specs[] = {
        { .name = "embed", .kind = &dt_embedding_kind, .axis = { { 6, 0 }, { 11, 0 } } },
        { .name = "head",
          .kind = &dt_linear_kind,
          .axis = { { 6, 0 }, { 11, 0 } },
          .tied_to = "embed" },
    };
    const dt_plan_rule rules[] = { { "embed", "mine" }, { "head", "mine" } };
    dt_plan plan = { .rules = rules, .n_rules = 1 };
    dt_layers *layers = NULL;

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &style));
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 2, &plan, &layers), DT_ERR_LAYOUT,
                     "give head a rule with the same cut");
    plan.n_rules = 2;
    DT_TRY(dt_layers_create(mesh, "tp", specs, 2, &plan, &layers));
    dt_layers_release(&layers);
    return DT_OK;
}

DT_TEST(own_styles, a_partner_that_cannot_follow_is_told_to)
{
    dt_test_on_ranks("tp=2", own_cut, NULL);
}

DT_TEST(own_styles, shared_weights_have_to_be_the_same_matrix)
{
    dt_test_on_ranks("tp=1", shared, NULL);
}

/* --- functions in the place of a layer's ------------------------------------------------------ */

static dt_status gives_a_wrong_shape(dt_mesh *mesh, const void *arg)
{
    const dt_layer_kind *kind = arg;
    const bool ids = kind == &dt_embedding_kind;
    const dt_layer_spec spec = { .name = "up", .kind = kind, .axis = { { 3, 0 }, { 4, 0 } } };
    const dt_placement whole = DT_REPLICATE;
    const int64_t weight[] = { 3, 4 }, shape[] = { 2, 4 };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *w = NULL, *x = NULL;

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_zeros(mesh, &whole, DT_F32, 2, weight, &w));
    DT_TRY(dt_zeros(mesh, &whole, ids ? DT_I32 : DT_F32, 2, shape, &x));
    DT_TRY(dt_layer_set_param(dt_layers_at(layers, 0), 0, w));
    DT_TRY(dt_layer_set_forward(dt_layers_at(layers, 0), other, NULL));
    DT_EXPECT(dt_layer_forward(t, dt_layers_at(layers, 0), x) == NULL, "refused");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     ids ? "replaces the forward of up gave [2, 4], not [2, 4, 4]"
                         : "replaces the forward of up gave [2, 4], not [2, 3]");
    return DT_OK;
}

DT_TEST(own_styles, a_function_in_the_place_of_a_layers_keeps_its_shape)
{
    static const dt_layer_kind *const kinds[] = { &dt_linear_kind, &dt_embedding_kind };

    for (size_t i = 0; i < DT_COUNT(kinds); i++)
        dt_test_on_ranks("tp=2", gives_a_wrong_shape, kinds[i]);
}

/* --- ids ------------------------------------------------------------------------------------ */

/* "sequence" of ids [B, T] is T, in whatever field it stands. */
static dt_status tokens_of_ids(dt_mesh *mesh, const void *arg)
{
    static const char *const styles[] = { "local(input=sequence)", "local(input=[sequence])",
                                          "local(comes=sequence)", "local(comes=[sequence])" };
    const dt_placement cut = DT_SHARD(1), whole = DT_REPLICATE;
    const int64_t shape[] = { 3, 4 }, weight[] = { 5, 2 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL, *w = NULL;
    dt_tensor *y;

    (void)arg;
    DT_TRY(dt_zeros(mesh, &cut, DT_I32, 2, shape, &x));
    DT_TRY(dt_zeros(mesh, &whole, DT_F32, 2, weight, &w));
    for (size_t i = 0; i < DT_COUNT(styles); i++) {
        const dt_layer_spec spec = { .name = "embed",
                                     .kind = &dt_embedding_kind,
                                     .axis = { { 5, 0 }, { 2, 0 } },
                                     .style = styles[i] };
        DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
        DT_TRY(dt_layer_set_param(dt_layers_at(layers, 0), 0, w));
        y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(dt_layout_placement(dt_tensor_layout(y), 0).axis == 1, "%s: axis", styles[i]);
        dt_layers_release(&layers);
    }
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(dt_tape_comm(t, (dt_comm_kind)k).calls == 0, "nothing moves");
    return DT_OK;
}

DT_TEST(own_styles, the_sequence_of_ids_is_their_last_axis)
{
    dt_test_on_ranks("tp=2", tokens_of_ids, NULL);
    dt_test_on_ranks("tp=3", tokens_of_ids, NULL);
}

/* --- functions that look at more than the first value ----------------------------------------- */

static dt_tensor *cut_last(dt_tape *t, dt_tensor *x, int dim)
{
    return dt_move_dim(t, x, dim, DT_SHARD(1));
}

/* The second value is a gate of the first. */
static void gated_by_second(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                            int n, dt_tensor **x)
{
    (void)style, (void)layer;
    x[0] = cut_last(t, x[0], dim);
    if (n < 2) return;
    x[1] = cut_last(t, x[1], dim);
    x[0] = dt_mul(t, x[0], x[1]);
}

/* The second value joins the first. */
static void joined_by_second(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                             int n, dt_tensor **y)
{
    (void)style, (void)layer;
    for (int i = 0; i < n; i++) y[i] = dt_move_dim(t, y[i], dim, DT_REPLICATE);
    if (n > 1) y[0] = dt_add(t, y[0], y[1]);
}

static void loses_second(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                         dt_tensor **x)
{
    (void)style, (void)t, (void)layer, (void)dim;
    if (n > 1) x[1] = NULL;
}

enum { ROWS = 3, WIDTH = 7 };

static dt_status given(dt_mesh *mesh, dt_placement cut, float first, dt_tensor **out)
{
    const int64_t shape[] = { ROWS, WIDTH };
    float values[ROWS * WIDTH];

    for (int i = 0; i < ROWS * WIDTH; i++) values[i] = first + (float)i;
    return dt_distribute(mesh, &cut, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, out);
}

static dt_status expect_values(const dt_tensor *y, bool joined)
{
    const dt_local *local = dt_tensor_local(y);

    DT_EXPECT(dt_layout_placement(dt_tensor_layout(y), 0).kind == DT_PLACE_REPLICATE, "whole");
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const float a = 1.0f + (float)i, b = 5.0f + (float)i;
        const float got = ((const float *)local->data)[i];
        DT_EXPECT(got == (joined ? a * b + b : a), "element %d is %g", i, (double)got);
    }
    return DT_OK;
}

static dt_status second_values(dt_mesh *mesh, const void *arg)
{
    dt_style style = { .size = sizeof style,
                       .prepare_input = gated_by_second,
                       .prepare_output = joined_by_second };
    dt_style loser = { .size = sizeof loser, .prepare_input = loses_second };
    const dt_layer_spec specs[] = { { .name = "a", .kind = &dt_point_kind, .style = "gated" },
                                    { .name = "b", .kind = &dt_point_kind, .style = "loses" } };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_tensor *x[2] = { NULL, NULL }, *y[2];
    dt_layers *layers = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_style_register(rt, "gated", &style));
    DT_TRY(dt_style_register(rt, "loses", &loser));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", specs, 2, NULL, &layers));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, given(mesh, DT_REPLICATE, 1.0f, &x[0]));
    DT_TRY_TO(done, st, given(mesh, DT_SHARD(0), 5.0f, &x[1])); /* cut elsewhere */
    for (int n = 1; n <= 2; n++) {
        dt_tape_reset(t);
        y[0] = x[0];
        y[1] = x[1];
        dt_layer_enter_all(t, dt_layers_at(layers, 0), n, y);
        dt_layer_leave_all(t, dt_layers_at(layers, 0), n, y);
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_TRY_TO(done, st, expect_values(y[0], n == 2));
    }
    y[0] = x[0];
    y[1] = x[1];
    dt_layer_enter_all(t, dt_layers_at(layers, 1), 2, y);
    DT_EXPECT_TO(done, st, y[0] == NULL && y[1] == NULL, "both are gone");
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                               "style \"loses\": its prepare_input gave NULL for");
done:
    dt_tensor_release(&x[0]);
    dt_tensor_release(&x[1]);
    dt_tape_release(&t);
    dt_layers_release(&layers);
    return st;
}

DT_TEST(own_styles, functions_of_a_style_use_all_values_that_pass)
{
    dt_test_on_ranks("tp=1", second_values, NULL);
    dt_test_on_ranks("tp=2", second_values, NULL);
    dt_test_on_ranks("tp=3", second_values, NULL);
}
