/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts: tensor parallel, expert parallel, both, and with tokens cut, equal to one
 * rank at the price of one collective; mixtures of styles that do not fit are refused. */
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { TOKENS = 5, D = 6, F = 7, E = 5, K = 2, MAX_VALUES = E * 2 * F * D };

static const dt_layer_spec specs[] = {
    { .name = "gate",
      .kind = DT_LAYER_LINEAR,
      .axis = { { E, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .style = "ep_router" },
    { .name = "experts", .kind = DT_LAYER_POINT, .style = "moe_tp_experts" },
    { .name = "experts.gate_up_proj",
      .kind = DT_LAYER_EXPERTS,
      .axis = { { 2 * F, DT_UNIT_ROW }, { D, DT_UNIT_ROW } },
      .blocks = { { 2, { { F, DT_UNIT_ROW }, { F, DT_UNIT_ROW } } } },
      .n_experts = E,
      .style = "packed_colwise" },
    { .name = "experts.down_proj",
      .kind = DT_LAYER_EXPERTS,
      .axis = { { D, DT_UNIT_ROW }, { F, DT_UNIT_ROW } },
      .n_experts = E,
      .style = "rowwise" },
};

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
static const dt_plan_rule half[] = { { "experts.down_proj", "grouped_gemm" } };

static const dt_plan plan_whole = { .rules = whole, .n_rules = 2 };
static const dt_plan plan_by_expert = { .rules = by_expert, .n_rules = 2 };
static const dt_plan plan_ep = { .rules = on_ep, .n_rules = 3, .dim = "ep" };
static const dt_plan plan_scattered = { .rules = scattered, .n_rules = 1 };
static const dt_plan plan_half = { .rules = half, .n_rules = 1 };

static dt_status fill(dt_mesh *mesh, dt_layers *layers)
{
    float values[MAX_VALUES];

    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(layers, i)); p++) {
            dt_layer *layer = dt_layers_at(layers, i);
            const dt_param_info info = dt_layer_param_info(layer, p);
            int64_t shape[DT_PARAM_MAX_AXES];
            dt_placement place[DT_MAX_DIMS];
            dt_tensor *x = NULL;
            dt_status st;
            for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
            dt_test_random(values, MAX_VALUES, (uint32_t)(7 + i));
            for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
                place[m] = dt_layout_placement(dt_layer_param_layout(layer, p), m);
            DT_TRY(dt_distribute(mesh, place, DT_F32, info.n_axes, shape,
                                 (dt_source){ values, DT_EQUAL_COPIES }, &x));
            st = dt_layer_set_param(layer, p, x);
            dt_tensor_release(&x);
            DT_TRY(st);
        }
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const dt_plan *plan, dt_tape *t, dt_tensor **out)
{
    const int64_t shape[] = { 1, TOKENS, D };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    dt_tensor *x = NULL, *logits, *ids, *y;
    float values[TOKENS * D];
    dt_layers *layers = NULL;
    dt_status st = DT_OK;

    dt_test_random(values, TOKENS * D, 3);
    DT_TRY(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), plan, &layers));
    DT_TRY_TO(done, st, fill(mesh, layers));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, everywhere, DT_F32, 3, shape,
                            (dt_source){ values, DT_EQUAL_COPIES }, &x));
    logits = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    ids = dt_route_ids(t, logits, K);
    y = dt_layer_experts(t, dt_layers_at(layers, 1), dt_layers_at(layers, 2),
                         dt_layers_at(layers, 3), x, ids, dt_route_weights(t, logits, ids, true));
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_full_tensor(y, out));
done:
    dt_tensor_release(&x);
    dt_layers_release(&layers);
    return st;
}

typedef struct experts_case {
    const dt_plan *plan;
    dt_comm_kind kind;
    int factor; /* of (p - 1) / p of the result, in bytes */
} experts_case;

static dt_status equals_one_rank(dt_mesh *mesh, const void *arg)
{
    const experts_case *c = arg;
    const int64_t p = dt_mesh_n_ranks(mesh), n = TOKENS * D * (int64_t)sizeof(float);
    dt_tensor *got = NULL, *want = NULL;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, run(mesh, &plan_whole, t, &want));
    dt_tape_reset(t);
    DT_TRY_TO(done, st, run(mesh, c->plan, t, &got));
    for (int k = 0; k < DT_N_COMM_KINDS && dt_mesh_n_dims(mesh) == 1; k++) {
        const dt_comm_counter count = dt_tape_comm(t, (dt_comm_kind)k);
        const int64_t calls = k == (int)c->kind && p > 1;
        DT_EXPECT_TO(done, st, count.calls == calls, "%lld collectives of kind %d, not %lld",
                     (long long)count.calls, k, (long long)calls);
        if (k == DT_COMM_ALL_REDUCE && calls > 0)
            DT_EXPECT_TO(done, st, count.bytes == 2 * (p - 1) * n / p, "%lld bytes",
                         (long long)count.bytes);
    }
    for (int i = 0; i < TOKENS * D; i++) {
        const float a = ((const float *)dt_tensor_local(got)->data)[i];
        const float b = ((const float *)dt_tensor_local(want)->data)[i];
        DT_EXPECT_TO(done, st, fabsf(a - b) <= 2e-6f * (1 + fabsf(b)), "element %d is %g, not %g",
                     i, (double)a, (double)b);
    }
done:
    dt_tensor_release(&got);
    dt_tensor_release(&want);
    dt_tape_release(&t);
    return st;
}

DT_TEST(experts, every_cut_of_experts_equals_one_rank_for_one_collective)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    const experts_case parts = { NULL, DT_COMM_ALL_REDUCE, 2 };
    const experts_case experts = { &plan_by_expert, DT_COMM_ALL_REDUCE, 2 };
    const experts_case tokens = { &plan_scattered, DT_COMM_REDUCE_SCATTER, 1 };
    const experts_case both = { &plan_ep, DT_COMM_ALL_REDUCE, 2 };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        dt_test_on_ranks(meshes[m], equals_one_rank, &parts);
        dt_test_on_ranks(meshes[m], equals_one_rank, &experts);
        dt_test_on_ranks(meshes[m], equals_one_rank, &tokens);
    }
    dt_test_on_ranks("ep=2,tp=2", equals_one_rank, &both);
    dt_test_on_ranks("tp=2,ep=2", equals_one_rank, &both);
    dt_test_on_ranks("ep=3,tp=1", equals_one_rank, &both);
}

/* --- refusals --------------------------------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    dt_layer_spec spec = specs[2];
    dt_layers *layers = NULL;
    dt_tensor *out = NULL;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    spec.n_experts = 0;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "has 0 experts");
    spec.n_experts = E;
    spec.style = "colwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "there it can be: rowwise, packed_colwise");
    spec.style = "moe_tp_experts";
    DT_EXPECT_STATUS(
        dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
        "does not fit experts.gate_up_proj, a layer of experts with weight [5, 14, 6]");
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_EXPECT_TO(done, st, run(mesh, &plan_half, t, &out) == DT_ERR_LAYOUT, "two cuts do not meet");
    DT_EXPECT_TO(done, st,
                 strstr(dt_last_error()->message, "experts are cut as a whole, or gate and up") !=
                     NULL,
                 "%s", dt_last_error()->message);
    dt_tape_reset(t);
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", specs, 4, NULL, &layers));
    DT_EXPECT_TO(done, st, dt_layer_forward(t, dt_layers_at(layers, 2), NULL) == NULL, "alone");
    DT_EXPECT_TO(done, st, strstr(dt_last_error()->message, "dt_layer_experts() runs both") != NULL,
                 "%s", dt_last_error()->message);
done:
    dt_layers_release(&layers);
    dt_tensor_release(&out);
    dt_tape_release(&t);
    return st;
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
                                 .kind = DT_LAYER_POINT,
                                 .style = "moe_identity_expert" };
    const dt_placement everywhere = DT_REPLICATE;
    const int64_t shape[] = { 3, 5 };
    dt_tensor *x = NULL, *full = NULL, *y;
    dt_layers *layers = NULL;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    DT_TRY_TO(done, st, dt_test_arange(mesh, &everywhere, DT_F32, 2, shape, &x));
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st,
                 dt_mesh_n_ranks(mesh) == 1 ||
                     dt_layout_placement(dt_tensor_layout(y), 0).kind == DT_PLACE_PARTIAL,
                 "is a term");
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT_TO(done, st, dt_tape_comm(t, (dt_comm_kind)k).calls == 0, "nothing moves");
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    DT_TRY_TO(done, st, dt_test_expect_arange(full));
done:
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_layers_release(&layers);
    dt_tape_release(&t);
    return st;
}

DT_TEST(experts, an_identity_expert_joins_the_sum_once)
{
    dt_test_on_ranks("tp=1", joins_once, NULL);
    dt_test_on_ranks("tp=3", joins_once, NULL);
}
