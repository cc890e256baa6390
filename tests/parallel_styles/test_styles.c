/* SPDX-License-Identifier: Apache-2.0
 *
 * Styles: every built-in one gives the result of one rank and costs the collectives that its line
 * names; the head rule; the registry; own styles that go wrong. */
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { IN = 7, OUT = 9, VOCAB = 11 };

typedef struct style_case {
    const char *style;
    const dt_layer_kind *kind;
    dt_placement input;
    dt_comm_kind comm; /* one call of it on 2 ranks and more, none if calls is 0 */
    int64_t calls;
} style_case;

/* clang-format off */
static const style_case cases[] = {
    { "colwise",               &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_GATHER, 0 },
    { "colwise_gather_output", &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_GATHER, 1 },
    { "colwise_rep",           &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_GATHER, 1 },
    { "rowwise",               &dt_linear_kind,    { .kind = DT_PLACE_SHARD, .axis = 1, .unit = 1, .replicas = 1 }, DT_COMM_ALL_REDUCE, 1 },
    { "rowwise",               &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 1 },
    { "rowwise_split_input",   &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 1 },
    { "rowwise_rep",           &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 1 },
    { "replicate",             &dt_linear_kind,    { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 0 },
    { "embedding_rowwise",     &dt_embedding_kind, { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 1 },
    { "rowwise",               &dt_embedding_kind, { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_REDUCE, 1 },
    { "colwise",               &dt_embedding_kind, { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_GATHER, 0 },
    { "colwise_gather_output", &dt_embedding_kind, { .kind = DT_PLACE_REPLICATE },        DT_COMM_ALL_GATHER, 1 },
};
/* clang-format on */

static dt_layer_spec spec_of(const style_case *c, const char *style)
{
    const bool linear = c->kind == &dt_linear_kind;

    return (dt_layer_spec){ .name = "layer",
                            .kind = c->kind,
                            .axis = { { linear ? OUT : VOCAB, DT_UNIT_ROW },
                                      { linear ? IN : OUT, DT_UNIT_ROW } },
                            .with = linear ? "bias" : NULL,
                            .style = style };
}

/* The layer under `style`, gathered; with the tape's counters left behind. */
static dt_status run(dt_mesh *mesh, const style_case *c, const char *style, dt_tape *t,
                     dt_tensor **out)
{
    const int64_t shape[] = { 4, IN }, n_ids = 4;
    const int32_t ids[] = { 0, 10, 5, 3 };
    const dt_placement whole = DT_REPLICATE;
    const dt_layer_spec spec = spec_of(c, style);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    float values[4 * IN];

    dt_test_random(values, 4 * IN, 3);
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_F32, 7));
    if (c->kind == &dt_linear_kind)
        DT_TRY(dt_distribute(mesh, strcmp(style, "replicate") == 0 ? &whole : &c->input, DT_F32, 2,
                             shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    else
        DT_TRY(dt_distribute(mesh, &whole, DT_I32, 1, &n_ids, (dt_source){ ids, DT_EQUAL_COPIES },
                             &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, out));
    return DT_OK;
}

static dt_status equals_one_rank(dt_mesh *mesh, const void *arg)
{
    const style_case *c = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *got = NULL, *want = NULL;

    DT_TRY(run(mesh, c, "replicate", t, &want));
    DT_TRY(run(mesh, c, c->style, t, &got));
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const int64_t calls = k == (int)c->comm && dt_mesh_n_ranks(mesh) > 1 ? c->calls : 0;
        DT_EXPECT(dt_tape_comm(t, (dt_comm_kind)k).calls == calls,
                  "%s: %lld collectives of kind %d, not %lld", c->style,
                  (long long)dt_tape_comm(t, (dt_comm_kind)k).calls, k, (long long)calls);
    }
    for (int i = 0; i < 4 * OUT; i++) {
        const float a = ((const float *)dt_tensor_local(got)->data)[i];
        const float b = ((const float *)dt_tensor_local(want)->data)[i];
        DT_EXPECT(fabsf(a - b) <= 1e-6f * (1 + fabsf(b)), "%s: element %d is %g, not %g", c->style,
                  i, (double)a, (double)b);
    }
    return DT_OK;
}

DT_TEST(styles, every_style_gives_the_result_of_one_rank_at_its_price)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], equals_one_rank, &cases[c]);
}

DT_TEST(styles, heads_are_cut_by_the_head_rule)
{
    const dt_axis q = { 0, DT_UNIT_HEADS }, kv = { 0, DT_UNIT_KV_HEADS };
    const struct {
        int64_t heads, kv;
        int parts;
        int64_t q_unit; /* in heads */
        dt_place_kind kv_kind;
        int kv_replicas;
    } rule[] = {
        { 8, 8, 4, 1, DT_PLACE_SHARD, 1 },     /* one kv head per query head */
        { 8, 2, 2, 4, DT_PLACE_SHARD, 1 },     /* whole groups of four */
        { 6, 2, 3, 1, DT_PLACE_REPLICATE, 0 }, /* 2 kv heads do not divide 3 ranks */
        { 8, 2, 4, 1, DT_PLACE_SHARD, 2 },     /* two ranks share a kv head */
        { 6, 2, 4, 1, DT_PLACE_REPLICATE, 0 }, /* 4 ranks do not divide 6 heads */
        { 5, 5, 3, 1, DT_PLACE_SHARD, 1 },     /* uneven: 2, 2, 1 */
    };

    for (size_t i = 0; i < DT_COUNT(rule); i++) {
        const dt_head_counts heads = { rule[i].heads, rule[i].kv, 16 };
        const dt_placement p = dt_cut_axis(&q, &heads, 0, rule[i].parts);
        const dt_placement k = dt_cut_axis(&kv, &heads, 0, rule[i].parts);
        DT_ASSERT_EQ_INT(p.unit, 16 * rule[i].q_unit);
        DT_ASSERT_EQ_INT(k.kind, rule[i].kv_kind);
        if (k.kind != DT_PLACE_SHARD) continue;
        DT_ASSERT_EQ_INT(k.unit, 16);
        DT_ASSERT_EQ_INT(k.replicas, rule[i].kv_replicas);
    }
}

static dt_status partial_param(const dt_style *s, const dt_param_info *p, int n, dt_cut_room *room,
                               dt_placement *out)
{
    (void)s, (void)p, (void)n, (void)room;
    *out = DT_PARTIAL(DT_SUM);
    return DT_OK;
}

static dt_status axis_seven(const dt_style *s, const dt_param_info *p, int n, dt_cut_room *room,
                            dt_placement *out)
{
    (void)s, (void)p, (void)n, (void)room;
    *out = DT_SHARD(7);
    return DT_OK;
}

static dt_status unknown_kind(const dt_style *s, const dt_param_info *p, int n, dt_cut_room *room,
                              dt_placement *out)
{
    (void)s, (void)p, (void)n, (void)room;
    out->kind = (dt_place_kind)7;
    return DT_OK;
}

/* Boundaries that end one row too early. */
static dt_status short_offsets(const dt_style *s, const dt_param_info *p, int n, dt_cut_room *room,
                               dt_placement *out)
{
    (void)s, (void)p;
    for (int r = 0; r <= n; r++) room->offsets[r] = r + r / 2;
    *out = dt_shard_offsets(0, n + 1, room->offsets);
    return DT_OK;
}

static dt_status refuses(const dt_style *s, const dt_layer *layer, int n_parts)
{
    (void)s, (void)layer;
    return dt_fail(DT_ERR_LAYOUT, "%d ranks are too many", n_parts);
}

static dt_status silent(const dt_style *s, const dt_layer *layer, int n_parts)
{
    (void)s, (void)layer, (void)n_parts;
    return DT_ERR_LAYOUT; /* without a record */
}

static dt_status no_placement(const dt_style *s, const dt_param_info *param, int n_parts,
                              dt_cut_room *room, dt_placement *out)
{
    (void)s, (void)param, (void)n_parts, (void)room, (void)out;
    return DT_ERR_LAYOUT; /* without a record */
}

static void nothing(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                    dt_tensor **x)
{
    (void)s, (void)t, (void)layer, (void)dim, (void)n;
    *x = NULL; /* without an error */
}

static void another_shape(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                          dt_tensor **x)
{
    (void)s, (void)layer, (void)dim, (void)n;
    *x = dt_slice(t, *x, 0, 0, 1);
}

typedef struct wrong_function {
    bool output;
    void (*prepare)(const dt_style *s, dt_tape *t, const dt_layer *layer, int dim, int n,
                    dt_tensor **x);
    dt_status status;
    const char *says;
} wrong_function;

/* A style whose prepare_input or prepare_output gives nothing, or something else. */
static dt_status wrong_result(dt_mesh *mesh, const void *arg)
{
    const wrong_function *wrong = arg;
    const int64_t shape[] = { 4, 4 };
    dt_style style = { .size = sizeof style };
    dt_layer_spec spec = {
        .name = "a.b", .kind = &dt_linear_kind, .axis = { { 4, 0 }, { 4, 0 } }, .style = "nothing"
    };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *x = NULL;

    if (wrong->output)
        style.prepare_output = wrong->prepare;
    else
        style.prepare_input = wrong->prepare;
    DT_TRY(dt_style_register(rt, "nothing", &style));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_zeros(mesh, &(dt_placement){ .kind = DT_PLACE_REPLICATE }, DT_F32, 2, shape, &x));
    DT_TRY(dt_layer_set_param(dt_layers_at(layers, 0), 0, x));
    DT_EXPECT(dt_layer_forward(t, dt_layers_at(layers, 0), x) == NULL, "no tensor");
    DT_EXPECT_STATUS(dt_tape_status(t), wrong->status, wrong->says);
    return DT_OK;
}

DT_TEST(styles, functions_that_give_nothing_or_another_shape_are_named)
{
    static const wrong_function wrong[] = {
        { false, nothing, DT_ERR_ARG,
          "style \"nothing\": its prepare_input gave NULL for a.b (mesh dim \"tp\" of 2 ranks)" },
        { true, nothing, DT_ERR_ARG,
          "style \"nothing\": its prepare_output gave NULL for a.b (mesh dim \"tp\" of 2 ranks)" },
        { false, another_shape, DT_ERR_SHAPE,
          "its prepare_input made [1, 4] of [4, 4] of a.b; it may change nothing but" },
        { true, another_shape, DT_ERR_SHAPE, "its prepare_output made [1, 4] of [4, 4] of a.b" },
    };

    for (size_t i = 0; i < DT_COUNT(wrong); i++) dt_test_on_ranks("tp=2", wrong_result, &wrong[i]);
}

static dt_status registry(dt_mesh *mesh, const void *arg)
{
    dt_style style = { .size = sizeof(dt_style), .partition_param = partial_param };
    dt_layer_spec spec = { .name = "a.b", .kind = &dt_linear_kind, .axis = { { 4, 0 }, { 4, 0 } } };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_layers *layers = NULL;
    const dt_style *found;

    (void)arg;
    DT_EXPECT_STATUS(dt_style_find(rt, "nope", NULL, &found), DT_ERR_ARG,
                     "colwise, colwise_gather_output");
    DT_EXPECT_STATUS(dt_style_find(rt, "colwize", NULL, &found), DT_ERR_ARG,
                     "unknown style \"colwize\", did you mean \"colwise\"; there are");
    DT_EXPECT_STATUS(dt_style_find(rt, "RowiseParallel()", NULL, &found), DT_ERR_ARG,
                     "did you mean \"RowwiseParallel\"");
    DT_EXPECT_STATUS(dt_style_find(rt, "colwise", "v3", &found), DT_ERR_ARG,
                     "unknown version \"v3\" of style names; there are: \"newest\"");
    DT_EXPECT_STATUS(dt_style_register(rt, "colwise", &style), DT_ERR_ARG, "registered already");
    DT_EXPECT_STATUS(dt_style_register(rt, "colwise_rep", &style), DT_ERR_ARG, "another name");
    DT_EXPECT_STATUS(dt_style_register(rt, "", &style), DT_ERR_ARG, "needs a name");
    style.size = 3;
    DT_EXPECT_STATUS(dt_style_register(rt, "mine", &style), DT_ERR_ARG, "size is 3");
    style.size = sizeof style;
    style.out.of[0].to.kind = (dt_lay_kind)9;
    DT_EXPECT_STATUS(dt_style_register(rt, "mine", &style), DT_ERR_ARG,
                     "style \"mine\": how value 0 of `out` is laid out is dt_lay { 9, 0 }, which "
                     "there is none of");
    style.out.of[0].to.kind = DT_LAY_KEEP;
    DT_TRY(dt_style_register(rt, "partial", &style));
    style.partition_param = axis_seven;
    DT_TRY(dt_style_register(rt, "seven", &style));
    style.validate = refuses;
    DT_TRY(dt_style_register(rt, "never", &style));
    spec.style = "partial";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "makes a.b.weight Partial");
    spec.style = "seven";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "a.b.weight");
    spec.style = "never";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "\"never\" refuses a.b: 2 ranks are too many");
    style = (dt_style){ .size = sizeof style, .partition_param = short_offsets };
    DT_TRY(dt_style_register(rt, "short", &style));
    spec.style = "short";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_SHAPE,
                     "style \"short\" on a.b.weight [4, 4] on mesh dim \"tp\" of 2 ranks: ");
    style.partition_param = unknown_kind;
    DT_TRY(dt_style_register(rt, "kind", &style));
    spec.style = "kind";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "style \"kind\" on a.b.weight [4, 4] on mesh dim \"tp\" of 2 ranks: ");
    style.validate = silent;
    DT_TRY(dt_style_register(rt, "silent", &style));
    spec.style = "silent";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "\"silent\" refuses a.b");
    style = (dt_style){ .size = sizeof style, .partition_param = no_placement };
    DT_TRY(dt_style_register(rt, "none", &style));
    spec.style = "none";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "style \"none\" refuses a.b (weight [4, 4], mesh dim \"tp\" of 2 ranks)");
    DT_EXPECT(layers == NULL, "nothing is left behind");
    return DT_OK;
}

DT_TEST(styles, the_registry_and_wrong_styles_are_refused_by_name)
{
    dt_test_on_ranks("tp=2", registry, NULL);
}

/* --- versions --------------------------------------------------------------------------------- */

static dt_status versions(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec spec = { .name = "norm", .kind = &dt_rms_norm_kind, .axis = { { 4, 0 } } };
    const dt_plan_rule rule = { "norm", "sequence_parallel" };
    dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true };
    DT_HELD(layers) *layers = NULL;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, &plan, &layers));
    DT_EXPECT(dt_layer_style(dt_layers_at(layers, 0))->out.of[0].to.kind == DT_LAY_KEEP,
              "the newest one leaves tokens cut");
    dt_layers_release(&layers);
    plan.version = "v4.56";
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, &plan, &layers));
    DT_EXPECT(dt_layer_style(dt_layers_at(layers, 0))->out.of[0].to.kind == DT_LAY_REPLICATE,
              "that of v4.56 gathers them");
    dt_layers_release(&layers);
    plan.version = "v1";
    for (plan.n_rules = 0; plan.n_rules <= 1; plan.n_rules++) /* of no rule and of one */
        DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, &plan, &layers), DT_ERR_ARG,
                         "the plan: unknown version \"v1\"");
    return DT_OK;
}

DT_TEST(styles, a_plan_of_v4_56_means_what_names_meant_then)
{
    dt_test_on_ranks("tp=2", versions, NULL);
}

/* --- values that cannot pass ------------------------------------------------------------------ */

static dt_status on_another_mesh(dt_mesh *mesh, dt_tape *t)
{
    const dt_layer_spec spec = { .name = "here", .kind = &dt_point_kind, .style = "local" };
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { 3, 4 };
    dt_layers *layers = NULL;
    dt_mesh *other = NULL;
    dt_tensor *x = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY_TO(done, st, dt_mesh_create(dt_mesh_runtime(mesh), "cp=2", &other));
    DT_TRY_TO(done, st, dt_zeros(other, &whole, DT_F32, 2, shape, &x));
    (void)dt_layer_forward(t, dt_layers_at(layers, 0), x);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                               "input 0 of here lies on another mesh");
    dt_tape_reset(t);
done:
    dt_tensor_release(&x);
    dt_mesh_release(&other);
    dt_layers_release(&layers);
    return st;
}

static dt_status wrong_values(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { 3, 4 };
    const dt_style styles[] = {
        { .size = sizeof(dt_style), .in = DT_LAID(DT_LAY_SHARD, 2) },
        { .size = sizeof(dt_style), .out = DT_LAID(DT_LAY_SHARD, -3) },
        { .size = sizeof(dt_style), .out = DT_LAID(DT_LAY_PARTIAL) },
    };
    static const char *const says[] = {
        "style \"s0\" cuts axis 2, but a value of here has 2 axes",
        "style \"s1\" cuts axis -3, but a value of here has 2 axes",
        "style \"s2\" leaves terms of a sum, but a value of here is Replicate on mesh dim \"tp\"",
    };
    dt_layer_spec spec = { .name = "here", .kind = &dt_point_kind };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_tensor *x = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, dt_zeros(mesh, &whole, DT_F32, 2, shape, &x));
    for (int i = 0; i < (int)DT_COUNT(styles); i++) {
        char name[] = { 's', (char)('0' + i), '\0' };
        dt_layers *layers = NULL;
        DT_TRY_TO(done, st, dt_style_register(rt, name, &styles[i]));
        spec.style = name;
        DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
        (void)dt_layer_forward(t, dt_layers_at(layers, 0), x);
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                                   says[i]);
        dt_tape_reset(t);
        dt_layers_release(&layers);
        DT_TRY_TO(done, st, st);
    }
    DT_TRY_TO(done, st, on_another_mesh(mesh, t));
done:
    dt_tensor_release(&x);
    dt_tape_release(&t);
    return st;
}

DT_TEST(styles, values_that_a_style_cannot_lay_out_are_refused)
{
    dt_test_on_ranks("tp=2", wrong_values, NULL);
}

/* --- names ------------------------------------------------------------------------------------ */

static dt_status all_names(dt_mesh *mesh, const void *arg)
{
    /* What each of them does is in docs/styles.md, which test_style_table.c runs. */
    static const char *const names[][2] = {
        { "colwise", "colwise" },
        { "rowwise", "rowwise" },
        { "colwise_rep", "colwise_gather_output" },
        { "rowwise_rep", "rowwise_split_input" },
        { "local_colwise", "local_colwise" },
        { "local_rowwise", "local_rowwise" },
        { "local", "local" },
        { "gather", "gather" },
        { "replicate", "replicate" },
        { "sequence_parallel", "sequence_parallel" },
        { "colwise_gather_output", "colwise_gather_output" },
        { "rowwise_split_input", "rowwise_split_input" },
        { "embedding_rowwise", "embedding_rowwise" },
        { "embedding_colwise", "embedding_colwise" },
        { "replicated_with_grad_allreduce", "replicated_with_grad_allreduce" },
        { "mla_kv_a_proj", "mla_kv_a_proj" },
        { "all_reduce", "all_reduce" },
        { "packed_colwise", "packed_colwise" },
        { "packed_rowwise", "packed_rowwise" },
        { "local_packed_rowwise", "packed_rowwise" },
        { "grouped_gemm", "grouped_gemm" },
        { "ep_router", "ep_router" },
        { "moe_tp_experts", "moe_tp_experts" },
        { "moe_identity_expert", "moe_identity_expert" },
        { "ep_dispatch_experts", "ep_dispatch_experts" },
        { "moe_experts_allreduce", "moe_tp_experts" },
        { "megamoe_experts", "moe_tp_experts" },
        { "megamoe_router", "ep_router" },
        { "moe_tp_gate_up_colwise", "packed_colwise" },
        { "moe_tp_down_rowwise", "rowwise" },
        { "rowwise_allreduce", "rowwise" },
        { "colwise_allgather", "colwise_gather_output" },
        { "vocab_allreduce", "rowwise_split_input" },
        { "vocab_reduce_scatter", "vocab_reduce_scatter" },
        { "activation", "activation" },
        { "activation_seq_dim_2", "activation_seq_dim_2" },
        { "module_allgather", "module_allgather" },
        { "module_allgather_hidden_states", "module_allgather" },
        { "module_allgather_split", "module_allgather_split" },
        { "rowwise_reduce_scatter", "rowwise_reduce_scatter" },
        { "colwise_loss_parallel", "colwise_loss_parallel" },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        const dt_style *style;
        DT_TRY(dt_style_find(dt_mesh_runtime(mesh), names[i][0], NULL, &style));
        DT_EXPECT_EQ_STR(style->name, names[i][1]);
        DT_TRY(dt_style_find(dt_mesh_runtime(mesh), names[i][0], "v4.56", &style));
        DT_EXPECT(strncmp(style->name, names[i][1], strlen(names[i][1])) == 0, "%s", style->name);
    }
    return DT_OK;
}

DT_TEST(styles, every_name_of_transformers_is_known)
{
    dt_test_on_ranks("tp=1", all_names, NULL);
}
