/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts: tensor parallel, expert parallel, both, and with tokens cut, equal to one
 * rank at the price of one collective; mixtures of styles that do not fit are refused. */
#include <dtensor/expert_loads.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <string.h>

#include "dtensor/kernels/kernel.h"
#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

typedef struct mixture {
    int64_t batch, tokens, d, f, experts, chosen;
} mixture;

static const mixture mixtures[] = {
    { 2, 12, 12, 12, 12, 3 }, /* 1, 2, 3, 4 divide all */
    { 1, 5, 6, 7, 5, 2 },     /* 2, 3, 4 divide hardly anything */
    { 1, 2, 3, 2, 3, 1 },     /* ranks without tokens, experts, or a part of one */
    { 2, 1, 5, 3, 2, 2 },     /* a step of one token */
};

enum { N_LAYERS = 4, MOST_TOKENS = 2 * 12, MOST_D = 12 };

static void make_specs(const mixture *m, dt_layer_spec specs[N_LAYERS])
{
    const dt_layer_spec all[N_LAYERS] = {
        { .name = "gate",
          .kind = &dt_linear_kind,
          .axis = { { m->experts, DT_UNIT_ROW }, { m->d, DT_UNIT_ROW } },
          .style = "ep_router" },
        { .name = "experts", .kind = &dt_point_kind, .style = "moe_tp_experts" },
        { .name = "experts.gate_up_proj",
          .kind = &dt_experts_kind,
          .axis = { { 2 * m->f, DT_UNIT_ROW }, { m->d, DT_UNIT_ROW }, { m->experts, DT_UNIT_ROW } },
          .blocks = { { 2, { { m->f, DT_UNIT_ROW }, { m->f, DT_UNIT_ROW } } } },
          .style = "packed_colwise" },
        { .name = "experts.down_proj",
          .kind = &dt_experts_kind,
          .axis = { { m->d, DT_UNIT_ROW }, { m->f, DT_UNIT_ROW }, { m->experts, DT_UNIT_ROW } },
          .style = "rowwise" },
    };

    memcpy(specs, all, sizeof all);
}

#define WHOLE_EXPERTS                           \
    { "experts.gate_up_proj", "grouped_gemm" }, \
    {                                           \
        "experts.down_proj", "grouped_gemm"     \
    }
static const dt_plan_rule by_expert[] = { WHOLE_EXPERTS };
static const dt_plan_rule whole[] = { { "experts.gate_up_proj", "replicate" },
                                      { "experts.down_proj", "replicate" } };
static const dt_plan_rule on_ep[] = { WHOLE_EXPERTS, { "experts", "moe_tp_experts" } };
static const dt_plan_rule scattered[] = { { "experts", "moe_reduce_scatter" } };
static const dt_plan_rule both_scattered[] = { WHOLE_EXPERTS, { "experts", "moe_reduce_scatter" } };
static const dt_plan_rule half[] = { { "experts.down_proj", "grouped_gemm" } };

static const dt_plan plan_whole = { .rules = whole, .n_rules = 2 };
static const dt_plan plan_by_expert = { .rules = by_expert, .n_rules = 2 };
static const dt_plan plan_ep = { .rules = on_ep, .n_rules = 3, .dim = "ep" };
static const dt_plan plan_scattered = { .rules = scattered, .n_rules = 1 };
static const dt_plan plan_experts_scattered = { .rules = both_scattered, .n_rules = 3 };
static const dt_plan plan_half = { .rules = half, .n_rules = 1 };

static dt_tensor *forward(dt_tape *t, dt_layers *layers, int64_t chosen, dt_tensor *x)
{
    dt_tensor *logits = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    dt_tensor *ids = dt_route_ids(t, logits, chosen);

    return dt_layer_experts(t, dt_layers_at(layers, 1), dt_layers_at(layers, 2),
                            dt_layers_at(layers, 3), x, ids,
                            dt_route_weights(t, logits, ids, true));
}

typedef struct experts_case {
    const dt_plan *plan;
    dt_comm_kind kind; /* of the one collective */
    const mixture *size;
    dt_dtype dtype;
} experts_case;

/* The result under `plan`, of tokens that the first dim cuts or nobody, kept on the tape. */
static dt_status run_on(dt_mesh *mesh, const experts_case *c, const dt_plan *plan, bool cut,
                        dt_tape *t, dt_tensor **y)
{
    const int64_t shape[] = { c->size->batch, c->size->tokens, c->size->d };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    float values[MOST_TOKENS * MOST_D];
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *whole_x = NULL;
    dt_tensor *x;
    dt_layer_spec specs[N_LAYERS];

    make_specs(c->size, specs);
    dt_test_random(values, MOST_TOKENS * MOST_D, 3);
    DT_TRY(dt_layers_create(mesh, "tp", specs, N_LAYERS, plan, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, c->dtype, 7));
    DT_TRY(dt_distribute(mesh, everywhere, DT_F32, 3, shape, (dt_source){ values, DT_EQUAL_COPIES },
                         &whole_x));
    x = dt_cast(t, whole_x, c->dtype);
    if (cut) x = dt_move_dim(t, x, 0, DT_SHARD(1));
    *y = forward(t, layers, c->size->chosen, x);
    return dt_tape_status(t);
}

static dt_status run(dt_mesh *mesh, const experts_case *c, const dt_plan *plan, dt_tape *t,
                     dt_tensor **y)
{
    return run_on(mesh, c, plan, false, t, y);
}

/* One move of the result, of terms in f32, on a mesh of one dim. On several dims every one of them
 * that has more than one rank sums the whole result once. */
static dt_status expect_price(dt_mesh *mesh, const experts_case *c, const dt_tape *t)
{
    const mixture *m = c->size;
    const dt_test_move move = { .kind = c->kind,
                                .n_axes = 3,
                                .shape = { m->batch, m->tokens, m->d },
                                .from = -1,
                                .to = c->kind == DT_COMM_REDUCE_SCATTER ? 1 : -1,
                                .each = sizeof(float) };
    dt_comm_counter want[DT_N_COMM_KINDS] = { { 0, 0 } };

    if (dt_mesh_n_dims(mesh) == 1) return dt_test_expect_move(t, mesh, &move);
    for (int dim = 0; dim < dt_mesh_n_dims(mesh); dim++) {
        const int p = dt_mesh_dim_size(mesh, dim);
        want[c->kind].calls += p > 1;
        want[c->kind].bytes += dt_test_move_bytes(&move, p, dt_mesh_coord(mesh, dim));
    }
    return dt_test_expect_counts(t, want);
}

static dt_status expect_place(dt_mesh *mesh, const experts_case *c, const dt_tensor *y)
{
    /* a step of one token runs under the twin, which leaves tokens whole */
    const bool cut = c->kind == DT_COMM_REDUCE_SCATTER && c->size->tokens > 1;

    for (int dim = 0; dim < dt_mesh_n_dims(mesh); dim++) {
        const dt_placement now = dt_layout_placement(dt_tensor_layout(y), dim);
        if (dt_mesh_dim_size(mesh, dim) == 1) continue;
        DT_EXPECT(now.kind == (cut ? DT_PLACE_SHARD : DT_PLACE_REPLICATE), "dim %d: kind %d", dim,
                  (int)now.kind);
        DT_EXPECT(!cut || now.axis == 1, "cut along axis %d", now.axis);
        if (cut)
            DT_EXPECT_EQ_INT(dt_tensor_local(y)->shape[1],
                             dt_test_piece(&c->size->tokens, 1, 0, dt_mesh_dim_size(mesh, dim),
                                           dt_mesh_coord(mesh, dim)));
    }
    return DT_OK;
}

static dt_status equals_one_rank(dt_mesh *mesh, const void *arg)
{
    const experts_case *c = arg;
    const double tolerance = c->dtype == DT_F32 ? 4e-6 : 2e-2; /* bf16 rounds each of F, and y */
    dt_tape *t = NULL, *aside = NULL;
    dt_tensor *got, *want;
    dt_status st = DT_OK;
    bool close = false;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &aside));
    DT_TRY_TO(done, st, run(mesh, c, &plan_whole, aside, &want));
    DT_TRY_TO(done, st, run(mesh, c, c->plan, t, &got));
    DT_TRY_TO(done, st, expect_place(mesh, c, got));
    DT_TRY_TO(done, st, expect_price(mesh, c, t));
    DT_TRY_TO(done, st, dt_allclose(want, got, tolerance, tolerance, &close));
    DT_EXPECT_TO(done, st, close, "values differ from those of one rank");
done:
    if (st != DT_OK)
        dti_error_prefix("%lld tokens, %lld experts, %s", (long long)c->size->tokens,
                         (long long)c->size->experts, dt_dtype_name(c->dtype));
    dt_tape_release(&aside);
    dt_tape_release(&t);
    return st;
}

static void every_size(const char *spec, const dt_plan *plan, dt_comm_kind kind)
{
    for (size_t i = 0; i < DT_COUNT(mixtures); i++)
        for (int half_floats = 0; half_floats < 2; half_floats++) {
            /* a step of one token is summed whole, under the twin */
            const bool step = mixtures[i].tokens == 1;
            const experts_case c = { plan, step ? DT_COMM_ALL_REDUCE : kind, &mixtures[i],
                                     half_floats ? DT_BF16 : DT_F32 };
            dt_test_on_ranks(spec, equals_one_rank, &c);
        }
}

DT_TEST(experts, every_cut_of_experts_equals_one_rank_for_one_collective)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        every_size(meshes[m], NULL, DT_COMM_ALL_REDUCE);
        every_size(meshes[m], &plan_by_expert, DT_COMM_ALL_REDUCE);
        every_size(meshes[m], &plan_scattered, DT_COMM_REDUCE_SCATTER);
        every_size(meshes[m], &plan_experts_scattered, DT_COMM_REDUCE_SCATTER);
    }
}

DT_TEST(experts, experts_cut_on_one_dim_and_their_parts_on_another_equal_one_rank)
{
    static const char *const meshes[] = { "ep=2,tp=2", "tp=2,ep=2", "ep=3,tp=1", "ep=1,tp=3" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        every_size(meshes[m], &plan_ep, DT_COMM_ALL_REDUCE);
}

/* --- tokens that go to their experts ---------------------------------------------------------- */

#define DISPATCHED(on)                      \
    {                                       \
        WHOLE_EXPERTS, { "gate", "local" }, \
        {                                   \
            "experts", (on)                 \
        }                                   \
    }
static const dt_plan_rule sent[] = DISPATCHED("ep_dispatch_experts");
static const dt_plan_rule summed[] = DISPATCHED("moe_tp_experts");

/* Of whole tokens, and of those that the dim has cut, which stay so. */
static dt_status equals_a_sum(dt_mesh *mesh, const void *arg)
{
    const char *dim = dt_mesh_dim_name(mesh, 0);
    const dt_plan ways[] = { { .rules = sent, .n_rules = 4, .dim = dim },
                             { .rules = summed, .n_rules = 4, .dim = dim } };
    const experts_case *c = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh), *aside = dt_test_tape(mesh);
    dt_tensor *whole_y, *cut_y, *want;

    DT_TRY(run(mesh, c, &ways[1], aside, &want));
    DT_TRY(run(mesh, c, &ways[0], t, &whole_y));
    DT_TRY(dt_test_expect_same(want, whole_y, "of whole tokens"));
    DT_TRY(run_on(mesh, c, &ways[0], true, t, &cut_y));
    want = dt_move_dim(aside, want, 0, DT_SHARD(1));
    DT_TRY(dt_tape_status(aside));
    DT_EXPECT(dt_mesh_dim_size(mesh, 0) == 1 || dt_tensor_layout(cut_y) == dt_tensor_layout(want),
              "tokens that were cut stay so");
    if (dti_local_count(dt_tensor_local(want)) > 0)
        DT_TRY(dt_test_expect_same(want, cut_y, "of tokens that are cut"));
    return DT_OK;
}

DT_TEST(experts, tokens_that_go_to_their_experts_give_the_bits_of_one_sum)
{
    static const char *const meshes[] = { "tp=1",      "tp=2",      "tp=3",     "tp=4",
                                          "ep=2,tp=2", "ep=3,tp=1", "tp=2,ep=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t i = 0; i < DT_COUNT(mixtures); i++)
            for (int half_floats = 0; half_floats < 2; half_floats++)
                dt_test_on_ranks(meshes[m], equals_a_sum,
                                 &(experts_case){ .size = &mixtures[i],
                                                  .dtype = half_floats ? DT_BF16 : DT_F32 });
}

/* One token, of which all ranks hold experts, would be 3 terms for one of 4 ranks. */
static dt_status the_cheaper_one(dt_mesh *mesh, const void *arg)
{
    const dt_plan plan = { .rules = sent, .n_rules = 4 };
    const experts_case one_token = { .size = arg, .dtype = DT_F32 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *y;

    DT_TRY(run(mesh, &one_token, &plan, t, &y));
    DT_EXPECT_EQ_INT(dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls, one_token.size->tokens == 1);
    DT_EXPECT_EQ_INT(dt_tape_comm(t, DT_COMM_ALL_TO_ALL).calls, one_token.size->tokens > 1);
    return DT_OK;
}

DT_TEST(experts, whole_tokens_go_the_way_of_fewer_bytes)
{
    static const mixture one = { 1, 1, 6, 3, 8, 8 }, many = { 1, 12, 6, 3, 8, 2 };

    dt_test_on_ranks("tp=4", the_cheaper_one, &one);
    dt_test_on_ranks("tp=4", the_cheaper_one, &many);
}

/* --- how tokens spread ------------------------------------------------------------------------ */

/* Choices of all tokens, each once, whether ranks have the same ones or each its own. */
static dt_status counted(dt_mesh *mesh, const void *arg)
{
    const mixture m = { 2, 6, 6, 3, 5, 2 };
    const int64_t shape[] = { m.batch, m.tokens, m.d };
    const dt_plan plan = { .rules = sent, .n_rules = 4, .dim = dt_mesh_dim_name(mesh, 0) };
    const bool cut = *(const bool *)arg;
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL, *ids = NULL;
    int64_t want[5] = { 0 }, most = 0;
    float values[MOST_TOKENS * MOST_D];
    dt_layer_spec specs[N_LAYERS];
    dt_expert_load load;

    make_specs(&m, specs);
    dt_test_random(values, MOST_TOKENS * MOST_D, 3);
    if (cut) place[0] = DT_SHARD(1);
    DT_TRY(dt_layers_create(mesh, "tp?", specs, N_LAYERS, &plan, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_F32, 7));
    DT_TRY(
        dt_distribute(mesh, place, DT_F32, 3, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x));
    DT_EXPECT_STATUS(dt_layers_sum_experts(layers), DT_ERR_ARG, "comes before the passes");
    DT_EXPECT(!dt_layers_expert_load(layers, 0, &load), "nothing is counted");
    DT_TRY(dt_layers_count_experts(layers, true));
    for (int pass = 0; pass < 2; pass++) (void)forward(t, layers, m.chosen, x);
    DT_TRY(dt_full_tensor(
        dt_route_ids(t, dt_layer_forward(t, dt_layers_at(layers, 0), x), m.chosen), &ids));
    for (int64_t i = 0; i < m.batch * m.tokens * m.chosen; i++)
        want[((const int32_t *)dt_tensor_local(ids)->data)[i]] += 2;
    DT_TRY(dt_layers_sum_experts(layers));
    DT_EXPECT(dt_layers_expert_load(layers, 0, &load), "the first");
    DT_EXPECT_EQ_STR(load.layer, "experts");
    DT_EXPECT_EQ_INT(load.n_experts, 5);
    for (int e = 0; e < 5; e++) {
        DT_EXPECT_EQ_INT(load.tokens[e], want[e]);
        most = want[e] > most ? want[e] : most;
    }
    DT_EXPECT_EQ_INT(load.most, most);
    DT_EXPECT_CLOSE(load.imbalance, (double)most * 5 / 48, 1e-12);
    DT_EXPECT(!dt_layers_expert_load(layers, 1, &load), "there is one mixture");
    DT_TRY(dt_layers_sum_experts(layers)); /* of no passes */
    DT_EXPECT(dt_layers_expert_load(layers, 0, &load) && load.most == 0 && load.unused == 5 &&
                  load.imbalance == 0,
              "it began anew");
    return DT_OK;
}

DT_TEST(experts, choices_are_counted_once_for_each_token)
{
    static const char *const meshes[] = { "tp=1", "tp=3", "ep=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (int cut = 0; cut < 2; cut++) dt_test_on_ranks(meshes[m], counted, &(bool){ cut != 0 });
}

/* --- refusals --------------------------------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const experts_case unfit = { .size = &mixtures[1], .dtype = DT_F32 };
    dt_layer_spec specs[N_LAYERS], spec;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(layers) *layers = NULL;
    dt_tensor *y;

    (void)arg;
    make_specs(unfit.size, specs);
    spec = specs[2];
    spec.axis[2].extent = 0;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "axis 2, 'e' of a layer of experts, has extent 0");
    spec.axis[2].extent = unfit.size->experts;
    spec.style = "packed_rowwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "there it can be: colwise, rowwise, packed_colwise");
    spec.style = "colwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "are 2 blocks of which every rank needs its part; use \"packed_colwise\"");
    spec.style = "moe_tp_experts";
    DT_EXPECT_STATUS(
        dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
        "does not fit experts.gate_up_proj, a layer of experts with weight [5, 14, 6]");
    DT_EXPECT(run(mesh, &unfit, &plan_half, t, &y) == DT_ERR_LAYOUT, "two cuts do not meet");
    DT_EXPECT(strstr(dt_last_error()->message, "experts are cut as a whole, or gate and up") !=
                  NULL,
              "%s", dt_last_error()->message);
    dt_tape_reset(t);
    DT_TRY(dt_layers_create(mesh, "tp", specs, 4, NULL, &layers));
    DT_EXPECT(dt_layer_forward(t, dt_layers_at(layers, 2), NULL) == NULL, "alone");
    DT_EXPECT(strstr(dt_last_error()->message, "which dt_layer_experts() computes") != NULL, "%s",
              dt_last_error()->message);
    return DT_OK;
}

DT_TEST(experts, styles_that_do_not_fit_are_refused)
{
    dt_test_on_ranks("tp=2", refusals, NULL);
}

/* --- identity --------------------------------------------------------------------------------- */

/* A value that every rank has joins a sum once, with its own bits. */
static dt_status joins_once(dt_mesh *mesh, const void *arg)
{
    const dt_layer_spec spec = { .name = "zero",
                                 .kind = &dt_point_kind,
                                 .style = "moe_identity_expert" };
    const dt_placement everywhere = DT_REPLICATE;
    const int64_t shape[] = { 3, 5 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_tensor *y;

    (void)arg;
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY(dt_test_arange(mesh, &everywhere, DT_F32, 2, shape, &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_mesh_n_ranks(mesh) == 1 ||
                  dt_layout_placement(dt_tensor_layout(y), 0).kind == DT_PLACE_PARTIAL,
              "is a term");
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(dt_tape_comm(t, (dt_comm_kind)k).calls == 0, "nothing moves");
    DT_TRY(dt_full_tensor(y, &full));
    DT_TRY(dt_test_expect_arange(full));
    return DT_OK;
}

DT_TEST(experts, an_identity_expert_joins_the_sum_once)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], joins_once, NULL);
}
