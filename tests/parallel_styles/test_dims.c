/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles on several mesh dims, sums that a style leaves Partial, and parameters that do not belong
 * to their layer. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { ROWS = 4, IN = 7, OUT = 9 };

static const dt_layer_spec specs[] = {
    { .name = "up",
      .kind = &dt_linear_kind,
      .axis = { { OUT, 0 }, { IN, 0 } },
      .with = "bias",
      .style = "colwise" },
    { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { OUT, 0 } } },
    { .name = "sum", .kind = &dt_point_kind },
};

static dt_status make_x(dt_mesh *mesh, dt_dtype dtype, dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { ROWS, IN };
    float values[ROWS * IN];
    char data[sizeof values];

    dt_test_random(values, ROWS * IN, 3);
    dti_convert(data, dtype, values, DT_F32, ROWS * IN);
    return dt_distribute(mesh, whole, dtype, 2, shape, (dt_source){ data, DT_EQUAL_COPIES }, out);
}

/* up(x) under `plan`, then the point, then the whole of it in f32. */
static dt_status run(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, dt_tape *t, float *to)
{
    dt_tensor *x = NULL, *full = NULL, *y;
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, plan, &layers));
    DT_TRY_TO(done, st, dt_test_fill_layers(mesh, layers, dtype, 11));
    DT_TRY_TO(done, st, make_x(mesh, dtype, &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    y = dt_layer_forward(t, dt_layers_at(layers, 2), y);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, dt_tensor_dtype(y) == dtype, "the model's dtype is back");
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    dti_convert(to, DT_F32, dt_tensor_local(full)->data, dtype, ROWS * OUT);
done:
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_tape_reset(t);
    dt_layers_release(&layers);
    return st;
}

static dt_status agree(dt_mesh *mesh, const dt_plan *plan, dt_dtype dtype, float tolerance)
{
    const dt_plan_rule whole[] = { { "up", "replicate" } };
    const dt_plan none = { .rules = whole, .n_rules = 1 };
    float want[ROWS * OUT], got[ROWS * OUT];
    DT_HELD(tape) *t = dt_test_tape(mesh);

    DT_TRY(run(mesh, &none, dtype, t, want));
    DT_TRY(run(mesh, plan, dtype, t, got));
    for (int i = 0; i < ROWS * OUT; i++)
        DT_EXPECT(fabsf(got[i] - want[i]) <= tolerance * (1 + fabsf(want[i])),
                  "element %d is %g, not %g", i, (double)got[i], (double)want[i]);
    return DT_OK;
}

/* --- two dims --------------------------------------------------------------------------------- */

static dt_status two_dims(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule out_rules[] = { { "up", "colwise" } }, in_rules[] = { { "*", "rowwise" } };
    const dt_plan in_plan = { .rules = in_rules, .n_rules = 1, .dim = "cp", .more = NULL };
    const dt_plan plan = { .rules = out_rules, .n_rules = 1, .strict = true, .more = &in_plan };
    const dt_plan_rule up_only[] = { { "up", "rowwise" } };
    const dt_plan in_up = { .rules = up_only, .n_rules = 1, .dim = "cp", .strict = true };
    const dt_plan both = { .rules = out_rules, .n_rules = 1, .strict = true, .more = &in_up };
    dt_layers *layers = NULL;
    dt_status st = DT_OK;
    const dt_layer *up;
    char text[64];

    (void)arg;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 3, &plan, &layers), DT_ERR_LAYOUT,
                     " ranks: style \"rowwise\" does not fit norm, an RMS norm with weight [9]; "
                     "there it can be: replicate");
    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, &both, &layers));
    up = dt_layers_at(layers, 0);
    (void)dt_layout_print(dt_layer_param_layout(up, DT_PARAM_WEIGHT), text, sizeof text);
    DT_EXPECT_TO(done, st, text[2] == '1' && text[6] == '0', "inputs on cp, outputs on tp: %s",
                 text);
    (void)dt_layout_print(dt_layer_param_layout(up, DT_PARAM_BIAS), text, sizeof text);
    DT_EXPECT_TO(done, st, text[0] == 'R' && text[3] == '0', "the bias follows outputs: %s", text);
    DT_EXPECT_TO(done, st, dt_layer_style_on(up, 0) != dt_layer_style(up), "two styles");
    DT_EXPECT_TO(done, st, dt_layer_style_on(up, 1) == dt_layer_style(up), "tp is the list's");
    DT_EXPECT_TO(done, st, dt_layer_style_on(up, 2) == NULL, "no third dim");
    DT_EXPECT_TO(done, st, dt_layer_style_on(dt_layers_at(layers, 1), 0) == NULL,
                 "no rule, no style on another dim");
done:
    dt_layers_release(&layers);
    DT_TRY(st);
    DT_TRY(agree(mesh, &both, DT_F32, 1e-6f));
    DT_TRY(agree(mesh, &both, DT_BF16, 1e-2f));
    return DT_OK;
}

DT_TEST(dims, styles_on_two_mesh_dims_work_together)
{
    dt_test_on_ranks("cp=2,tp=2", two_dims, NULL);
    dt_test_on_ranks("cp=3,tp=2", two_dims, NULL);
}

static dt_status missing_dim(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule rules[] = { { "up", "rowwise" } };
    dt_plan plan = { .rules = rules, .n_rules = 1, .dim = "cp", .strict = true };
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    plan.source = "a\nplan";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 3, &plan, &layers), DT_ERR_ARG,
                     "a\\nplan, rule \"up\": \"rowwise\": the mesh has no dim \"cp\"; add it "
                     "(\"cp=1\")");
    plan.strict = false;
    plan.more = &plan;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", specs, 3, &plan, &layers), DT_ERR_ARG,
                     "chained by `more`");
    plan.more = NULL;
    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, &plan, &layers));
    DT_EXPECT(dt_layer_style_on(dt_layers_at(layers, 0), 0) != NULL, "built-in stays");
    return DT_OK;
}

DT_TEST(dims, rules_for_a_dim_that_is_not_there_are_reported)
{
    dt_test_on_ranks("tp=2", missing_dim, NULL);
}

/* --- Partial ---------------------------------------------------------------------------------- */

static dt_status partial_sum(dt_mesh *mesh, const void *arg)
{
    static const dt_plan_rule rules[] = { { "up", "rowwise_partial" }, { "sum", "reduce" } };
    const dt_plan plan = { .rules = rules, .n_rules = 2, .strict = true };
    const dt_style leaves = { .size = sizeof(dt_style),
                              .cut = DT_CUT_ROWS,
                              .in = DT_LAID(DT_LAY_LAST),
                              .out = DT_LAID(DT_LAY_KEEP) };
    const dt_style reduces = { .size = sizeof(dt_style), .in = DT_LAID(DT_LAY_REPLICATE) };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = NULL;
    dt_tensor *y;

    (void)arg;
    DT_TRY(dt_style_register(rt, "rowwise_partial", &leaves));
    DT_TRY(dt_style_register(rt, "reduce", &reduces));
    DT_TRY(agree(mesh, &plan, DT_F32, 1e-6f));
    DT_TRY(agree(mesh, &plan, DT_BF16, 1e-2f));
    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, &plan, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_BF16, 11));
    DT_TRY(make_x(mesh, DT_BF16, &x));
    DT_TRY(dt_tape_create(rt, &t));
    for (int again = 0; again < 2; again++) {
        y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(dt_tensor_dtype(y) == DT_F32, "terms are not rounded");
        DT_EXPECT(dt_layout_placement(dt_tensor_layout(y), 0).kind == DT_PLACE_PARTIAL, "Partial");
        DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls == 0, "nothing moved");
    }
    return DT_OK;
}

DT_TEST(dims, a_sum_left_partial_is_f32_terms_with_the_bias_in_one)
{
    dt_test_on_ranks("tp=2", partial_sum, NULL);
    dt_test_on_ranks("tp=3", partial_sum, NULL);
    dt_test_on_ranks("tp=4", partial_sum, NULL);
}

/* A style that leaves its sum Partial on tp meets inputs that are whole on dp, and inputs that are
 * terms of a sum there: the bias joins one term of either. */
static dt_status changing_dims(dt_mesh *mesh, const void *arg)
{
    const dt_style style = { .size = sizeof style,
                             .name = "rows_kept",
                             .summary = "cut inputs, sum left Partial",
                             .cut = DT_CUT_ROWS,
                             .in = DT_LAID(DT_LAY_KEEP),
                             .out = DT_LAID(DT_LAY_KEEP) };
    const dt_layer_spec spec = { .name = "l",
                                 .kind = &dt_linear_kind,
                                 .axis = { { 4, DT_UNIT_ROW }, { 4, DT_UNIT_ROW } },
                                 .with = "bias",
                                 .style = "rows_kept" };
    const dt_placement whole[2] = { DT_REPLICATE, DT_SHARD(1) };
    const dt_placement terms[2] = { DT_PARTIAL(DT_SUM), DT_SHARD(1) };
    const int64_t shape[] = { 4, 4 };
    dt_tensor *w = NULL, *b = NULL, *x[2] = { NULL };
    const int first = *(const int *)arg;
    const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    dt_layers *layers = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "rows_kept", &style));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY_TO(done, st, dt_ones(mesh, whole, DT_F32, 2, shape, &w));
    DT_TRY_TO(done, st,
              dt_ones(mesh, (dt_placement[2]){ DT_REPLICATE, DT_REPLICATE }, DT_F32, 1, shape, &b));
    DT_TRY_TO(done, st, dt_layer_set_param(dt_layers_at(layers, 0), 0, w));
    DT_TRY_TO(done, st, dt_layer_set_param(dt_layers_at(layers, 0), 1, b));
    DT_TRY_TO(done, st, dt_from_local(mesh, whole, DT_F32, 2, shape, ones, &x[0]));
    DT_TRY_TO(done, st, dt_from_local(mesh, terms, DT_F32, 2, shape, ones, &x[1]));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < 3; i++) {
        const int which = (first + i) % 2;
        dt_tensor *full = NULL, *y;
        dt_tape_reset(t);
        y = dt_layer_forward(t, dt_layers_at(layers, 0), x[which]);
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_TRY_TO(done, st, dt_full_tensor(y, &full));
        for (int64_t e = 0; e < 16; e++) {
            const float got = ((const float *)dt_tensor_local(full)->data)[e];
            DT_EXPECT_TO(done, st, got == (which == 0 ? 5.0f : 9.0f), "%g", (double)got);
        }
        dt_tensor_release(&full);
    }
done:
    dt_tape_release(&t);
    for (int i = 0; i < 2; i++) dt_tensor_release(&x[i]);
    dt_tensor_release(&b);
    dt_tensor_release(&w);
    dt_layers_release(&layers);
    return st;
}

DT_TEST(dims, the_bias_joins_a_sum_over_whatever_dims)
{
    for (int first = 0; first < 2; first++) dt_test_on_ranks("dp=2,tp=2", changing_dims, &first);
}

/* Where a mesh dim has one rank nothing is summed: product and bias are rounded once, as one. */
static dt_status rounded_once(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 32, 16 };
    const dt_layer_spec spec = { .name = "x",
                                 .kind = &dt_linear_kind,
                                 .axis = { { 16, DT_UNIT_ROW }, { 16, DT_UNIT_ROW } },
                                 .with = "bias",
                                 .style = "rowwise" };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *y[2];

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_BF16, 1));
    DT_TRY(dt_randn(mesh, whole, DT_BF16, 2, shape, (dt_random){ 3, 0 }, &x));
    y[0] = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    y[1] = dt_linear(t, x, dt_layer_param(dt_layers_at(layers, 0), 0),
                     dt_layer_param(dt_layers_at(layers, 0), 1));
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(memcmp(dt_tensor_local(y[0])->data, dt_tensor_local(y[1])->data,
                     32 * 16 * sizeof(uint16_t)) == 0,
              "other bits");
    return DT_OK;
}

DT_TEST(dims, a_bias_of_one_rank_is_rounded_with_its_product)
{
    dt_test_on_ranks("tp=1", rounded_once, NULL);
}

/* --- parameters ------------------------------------------------------------------------------- */

static dt_status wrong_params(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[DT_MAX_DIMS] = { DT_SHARD(0) };
    const int64_t w_shape[] = { OUT, IN }, b_shape[] = { OUT };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(mesh) *another = NULL;
    DT_HELD(tensor) *other = NULL, *ids = NULL, *w = NULL, *b = NULL;
    dt_layer *up;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", specs, 3, NULL, &layers));
    up = dt_layers_at(layers, 0);
    DT_TRY(dt_mesh_create(dt_mesh_runtime(mesh), "cp=2", &another));
    DT_TRY(dt_zeros(another, rows, DT_F32, 2, w_shape, &other));
    DT_TRY(dt_zeros(mesh, rows, DT_I32, 2, w_shape, &ids));
    DT_TRY(dt_zeros(mesh, rows, DT_BF16, 2, w_shape, &w));
    DT_TRY(dt_zeros(mesh, rows, DT_F32, 1, b_shape, &b));
#define REFUSED(call, code, says) \
    DT_TRY(dt_test_expect_status(__func__, __FILE__, __LINE__, call, code, says))
    REFUSED(dt_layer_set_param(up, 0, other), DT_ERR_LAYOUT, "up.weight lies on another mesh");
    REFUSED(dt_layer_set_param(up, 0, ids), DT_ERR_SHAPE, "up.weight is i32");
    DT_TRY(dt_layer_set_param(up, 0, w));
    REFUSED(dt_layer_set_param(up, 1, b), DT_ERR_SHAPE,
            "up.bias is f32, but the layer has a "
            "parameter in bf16");
    REFUSED(dt_layer_set_param(up, 1, w), DT_ERR_SHAPE, "up.bias has 1 axes");
#undef REFUSED
    return DT_OK;
}

DT_TEST(dims, parameters_of_another_mesh_or_dtype_are_refused)
{
    dt_test_on_ranks("tp=2", wrong_params, NULL);
}
