/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tables of a plan: styles for many tokens, and their twins for steps of one. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/layers.h"

static dt_status expect_twin(dt_runtime *rt, const char *style, const char *twin)
{
    const dt_style *s;

    DT_TRY(dt_style_find(rt, style, NULL, &s));
    DT_EXPECT(s->twin != NULL && strcmp(s->twin, twin) == 0, "the twin of %s is %s, not %s", style,
              s->twin != NULL ? s->twin : "none", twin);
    return DT_OK;
}

static dt_status twins(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *s;

    (void)arg;
    DT_TRY(expect_twin(rt, "vocab_reduce_scatter", "embedding_rowwise"));
    DT_TRY(expect_twin(rt, "rowwise_reduce_scatter", "rowwise"));
    DT_TRY(expect_twin(rt, "activation", "replicate"));
    DT_TRY(expect_twin(rt, "activation(comes=S(1))", "replicate"));
    DT_TRY(expect_twin(rt, "rowwise(output=S(1))", "rowwise(output=S(1))@step"));
    DT_TRY(dt_style_find(rt, "rowwise(output=S(1))@step", NULL, &s));
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_REPLICATE, 0) &&
                  dt_test_lies(s->in.of[0].to, DT_LAY_LAST, 0),
              "tokens are whole");
    DT_TRY(dt_style_find(rt, "local(input=[sequence, keep], comes=[S(1), S(2)])", NULL, &s));
    DT_TRY(dt_style_find(rt, s->twin, NULL, &s));
    DT_EXPECT(dt_test_lies(s->in.of[0].to, DT_LAY_REPLICATE, 0) &&
                  dt_test_lies(s->in.of[1].to, DT_LAY_KEEP, 0),
              "inputs");
    DT_EXPECT(dt_test_lies(s->in.of[0].comes, DT_LAY_KEEP, 0) &&
                  dt_test_lies(s->in.of[1].comes, DT_LAY_SHARD, 2),
              "comes");
    DT_TRY(dt_style_find(rt, "rowwise(output=R)", NULL, &s));
    DT_EXPECT(s->twin == NULL, "nothing is cut");
    return DT_OK;
}

DT_TEST(twins, styles_that_cut_tokens_have_one)
{
    dt_test_on_ranks("tp=1", twins, NULL);
}

DT_TEST(twins, a_built_in_plan_has_its_sequence_variant_by_kind)
{
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_linear_kind, "rowwise"), "rowwise_reduce_scatter");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_linear_kind, "colwise"), "colwise");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_linear_kind, NULL), "replicate");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_embedding_kind, "embedding_rowwise"),
                     "vocab_reduce_scatter");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_embedding_kind, NULL), "sequence_parallel");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_rms_norm_kind, "replicate"), "activation");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_layer_norm_kind, NULL), "activation");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_rms_norm_kind, "replicated_with_grad_allreduce"),
                     "replicated_with_grad_allreduce");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_point_kind, NULL), "module_allgather");
    DT_ASSERT_EQ_STR(dt_sequence_style(&dt_point_kind, "mine"), "mine");
}

/* PyTorch's constructors are styles without a name: they get the twin that the same words get. */
static dt_status made(dt_mesh *mesh, const void *arg)
{
    const dt_style sp =
        dt_rowwise_parallel((dt_parallel_args){ .output_layouts = { DT_LAY_SHARD, 1 } });
    const dt_style last =
        dt_rowwise_parallel((dt_parallel_args){ .output_layouts = { DT_LAY_SHARD, -2 } });
    const dt_style norm = dt_sequence_parallel(1), heads = dt_sequence_parallel(-2);
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const dt_style *s;

    (void)arg;
    DT_TRY(dt_style_register(rt, "rowwise_sp", &sp));
    DT_TRY(expect_twin(rt, "rowwise_sp", "rowwise_sp@step"));
    DT_TRY(dt_style_find(rt, "rowwise_sp@step", NULL, &s));
    DT_EXPECT(dt_test_lies(s->out.of[0].to, DT_LAY_REPLICATE, 0) && s->cut == DT_CUT_ROWS,
              "tokens are whole");
    DT_TRY(dt_style_register(rt, "rowwise_last", &last));
    DT_TRY(expect_twin(rt, "rowwise_last", "rowwise_last@step"));
    DT_TRY(expect_twin(rt, "rowwise(output=S(-2))", "rowwise(output=S(-2))@step"));
    DT_TRY(dt_style_register(rt, "norm_sp", &norm));
    DT_TRY(expect_twin(rt, "norm_sp", "norm_sp@step"));
    DT_TRY(dt_style_register(rt, "norm_heads", &heads));
    DT_TRY(dt_style_find(rt, "norm_heads", NULL, &s));
    DT_EXPECT(s->twin == NULL, "axis -2 of a norm may be heads");
    DT_EXPECT_STATUS(dt_style_register(rt, "mine@step", &sp), DT_ERR_ARG, "the name of a twin");
    return DT_OK;
}

DT_TEST(twins, styles_of_constructors_have_one)
{
    dt_test_on_ranks("tp=1", made, NULL);
}

/* Collectives of one token through a layer: all of them. */
static dt_status calls_of_a_step(dt_mesh *mesh, const char *style, int64_t *reduces, int64_t *all)
{
    const dt_layer_spec spec = {
        .name = "down", .kind = &dt_linear_kind, .axis = { { 6, 0 }, { 7, 0 } }, .style = style
    };
    const dt_placement whole = DT_REPLICATE;
    const int64_t one[] = { 2, 1, 7 }, shape[] = { 6, 7 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL, *w = NULL;
    dt_placement cut;

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    cut = dt_layout_placement(dt_layer_param_layout(dt_layers_at(layers, 0), 0), 0);
    DT_TRY(dt_zeros(mesh, &cut, DT_F32, 2, shape, &w));
    DT_TRY(dt_layer_set_param(dt_layers_at(layers, 0), 0, w));
    DT_TRY(dt_zeros(mesh, &whole, DT_F32, 3, one, &x));
    (void)dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(t));
    *reduces = dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls;
    *all = 0;
    for (int k = 0; k < DT_N_COMM_KINDS; k++) *all += dt_tape_comm(t, (dt_comm_kind)k).calls;
    return DT_OK;
}

static dt_status steps(dt_mesh *mesh, const void *arg)
{
    const dt_style sp =
        dt_rowwise_parallel((dt_parallel_args){ .output_layouts = { DT_LAY_SHARD, 1 } });
    static const char *const names[] = { "rowwise", "rowwise(output=S(1))", "mine" };
    int64_t reduces, all;

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &sp));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        DT_TRY(calls_of_a_step(mesh, names[i], &reduces, &all));
        DT_EXPECT(reduces == 1 && all == 1, "%s: %lld all-reduces of %lld collectives", names[i],
                  (long long)reduces, (long long)all);
    }
    return DT_OK;
}

DT_TEST(twins, a_step_under_a_constructors_style_costs_what_it_costs_by_name)
{
    dt_test_on_ranks("tp=2", steps, NULL);
    dt_test_on_ranks("tp=3", steps, NULL);
}

static dt_status wrong(dt_mesh *mesh, const void *arg)
{
    dt_style style = { .size = sizeof style, .cut = DT_CUT_ROWS, .twin = "colwise" };
    dt_layer_spec spec = { .name = "a.b", .kind = &dt_linear_kind, .axis = { { 4, 0 }, { 4, 0 } } };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_layers *layers = NULL;

    (void)arg;
    DT_TRY(dt_style_register(rt, "torn", &style));
    style.twin = "nobody";
    DT_TRY(dt_style_register(rt, "lonely", &style));
    style.twin = "embedding_rowwise";
    DT_TRY(dt_style_register(rt, "odd", &style));
    spec.style = "torn";
    DT_EXPECT_STATUS(
        dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
        "style \"torn\" makes a.b.weight [4, 4] Shard(1), but its twin \"colwise\" for "
        "steps of one token makes it Shard(0) on mesh dim \"tp\"");
    spec.style = "lonely";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "the twin of style \"lonely\" on a.b: unknown style \"nobody\"");
    spec.style = "odd";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "its twin \"embedding_rowwise\" for steps of one token does not fit a linear");
    DT_EXPECT(layers == NULL, "nothing is left behind");
    return DT_OK;
}

DT_TEST(twins, a_twin_that_does_not_fit_is_refused)
{
    dt_test_on_ranks("tp=2", wrong, NULL);
}

/* A style of one's own and its twin, told apart by where they leave y. */
static dt_status chosen(dt_mesh *mesh, const void *arg)
{
    const dt_style style = { .size = sizeof style,
                             .out = DT_LAID(DT_LAY_SEQUENCE),
                             .twin = "replicate" };
    const dt_layer_spec spec = { .name = "point", .kind = &dt_point_kind, .style = "mine" };
    static const struct {
        int n_axes;
        int64_t shape[4];
        int cut; /* axis; -1: none */
    } values[] = {
        { 3, { 2, 5, 4 }, 1 }, { 3, { 2, 1, 4 }, -1 },   { 2, { 5, 4 }, 0 },
        { 2, { 1, 4 }, -1 },   { 4, { 1, 3, 2, 2 }, 1 }, { 4, { 3, 1, 2, 2 }, -1 },
    };
    const dt_placement whole = DT_REPLICATE;
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *x = NULL;

    (void)arg;
    DT_TRY(dt_style_register(dt_mesh_runtime(mesh), "mine", &style));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_EXPECT(strcmp(dt_layer_step_style_on(dt_layers_at(layers, 0), 0)->name, "replicate") == 0,
              "the style of a step");
    DT_EXPECT(dt_layer_step_style_on(dt_layers_at(layers, 0), 1) == NULL, "no dim");
    for (size_t i = 0; i < DT_COUNT(values); i++) {
        dt_placement now;
        DT_TRY(dt_zeros(mesh, &whole, DT_F32, values[i].n_axes, values[i].shape, &x));
        x = dt_tape_own(t, x);
        dt_tensor *y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
        x = NULL;
        DT_TRY(dt_tape_status(t));
        now = dt_layout_placement(dt_tensor_layout(y), 0);
        DT_EXPECT((now.kind == DT_PLACE_SHARD ? now.axis : -1) == values[i].cut, "value %zu", i);
    }
    return DT_OK;
}

DT_TEST(twins, a_value_of_one_token_meets_the_twin)
{
    dt_test_on_ranks("tp=2", chosen, NULL);
    dt_test_on_ranks("tp=3", chosen, NULL);
}
