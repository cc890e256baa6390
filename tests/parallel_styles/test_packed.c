/* SPDX-License-Identifier: Apache-2.0
 *
 * Axes made of blocks: gate | up and q | k | v in one weight, cut block by block, taken apart
 * again, equal to one rank and at the price that the styles name. */
#include <dtensor/ops.h>
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/layers.h"
#include "tests/support/tensors.h"

enum { MAX_VALUES = 4096, TOKENS = 5 };

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

/* One model of two layers: its specs, what it computes, and the collectives that it costs. */
typedef struct model_case {
    dt_layer_spec specs[2];
    dt_tensor *(*forward)(dt_tape *t, dt_layers *layers, dt_tensor *x, const void *arg);
    const dt_head_counts *heads;
    int64_t width;  /* of x and of the result */
    bool scattered; /* the result, over tokens */
} model_case;

/* Does y lie as the last layer's style says? */
static dt_status expect_place(const dt_mesh *mesh, const dt_tensor *y, bool scattered)
{
    const dt_placement place = dt_layout_placement(dt_tensor_layout(y), 0);

    if (dt_mesh_n_ranks(mesh) > 1)
        DT_EXPECT(scattered ? place.kind == DT_PLACE_SHARD && place.axis == 1
                            : place.kind == DT_PLACE_REPLICATE,
                  "the result is cut along axis %d", place.axis);
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const model_case *c, bool whole, dt_tape *t, dt_tensor **out)
{
    static const dt_plan_rule rules[] = { { "a", "replicate" }, { "b", "replicate" } };
    const dt_plan plan = { .rules = rules, .n_rules = 2 };
    const int64_t shape[] = { 1, TOKENS, c->width };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *x = NULL;
    float values[MAX_VALUES];
    dt_tensor *y;

    dt_test_random(values, TOKENS * c->width, 3);
    DT_TRY(dt_layers_create(mesh, "tp", c->specs, 2, whole ? &plan : NULL, &layers));
    DT_TRY(dt_test_fill_layers(mesh, layers, DT_F32, 7));
    DT_TRY(dt_distribute(mesh, everywhere, DT_F32, 3, shape, (dt_source){ values, DT_EQUAL_COPIES },
                         &x));
    y = c->forward(t, layers, x, c->heads);
    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_place(mesh, y, c->scattered && !whole));
    DT_TRY(dt_full_tensor(y, out));
    return DT_OK;
}

/* A sum of terms that is scattered over tokens: one reduce-scatter of TOKENS rows, or, where pieces
 * would be too uneven, the all-reduce that is cheaper. */
static dt_status expect_scattered(const dt_mesh *mesh, const dt_tape *t, int64_t width)
{
    const dt_test_move move = { .kind = DT_COMM_REDUCE_SCATTER,
                                .n_axes = 3,
                                .shape = { 1, TOKENS, width },
                                .from = -1,
                                .to = 1,
                                .each = (int64_t)sizeof(float) };

    DT_TRY(dt_test_expect_move(t, mesh, &move));
    return DT_OK;
}

/* One all-reduce of the result, and no byte more. Moves of what a rank holds already are free. Only
 * where neighbours share kv heads and the query heads do not divide do some of them move. */
static dt_status expect_price(const dt_mesh *mesh, const dt_head_counts *h, const dt_tape *t,
                              int64_t bytes)
{
    const int64_t p = dt_mesh_n_ranks(mesh);
    const bool heads_move = h != NULL && h->n_kv_heads < p && h->n_heads % p != 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter n = dt_tape_comm(t, (dt_comm_kind)k);
        if (k == DT_COMM_ALL_REDUCE) {
            DT_EXPECT(n.calls == (p > 1), "%lld all-reduces", (long long)n.calls);
            DT_EXPECT(n.bytes == bytes * 2 * (p - 1) / p, "%lld bytes", (long long)n.bytes);
        } else {
            DT_EXPECT((n.calls == 0 && n.bytes == 0) || (heads_move && k == DT_COMM_ALL_TO_ALL),
                      "%lld collectives and %lld bytes of kind %d", (long long)n.calls,
                      (long long)n.bytes, k);
        }
    }
    return DT_OK;
}

static dt_status equals_one_rank(dt_mesh *mesh, const void *arg)
{
    const model_case *c = arg;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *got = NULL, *want = NULL;

    DT_TRY(run(mesh, c, true, t, &want));
    dt_tape_reset(t);
    DT_TRY(run(mesh, c, false, t, &got));
    if (c->scattered)
        DT_TRY(expect_scattered(mesh, t, c->width));
    else
        DT_TRY(expect_price(mesh, c->heads, t, TOKENS * c->width * (int64_t)sizeof(float)));
    for (int i = 0; i < TOKENS * c->width; i++) {
        const float a = ((const float *)dt_tensor_local(got)->data)[i];
        const float b = ((const float *)dt_tensor_local(want)->data)[i];
        DT_EXPECT(fabsf(a - b) <= 4e-6f * (1 + fabsf(b)), "element %d is %g, not %g", i, (double)a,
                  (double)b);
    }
    return DT_OK;
}

/* --- gate | up -------------------------------------------------------------------------------- */

static dt_tensor *gated(dt_tape *t, dt_layers *layers, dt_tensor *x, const void *unused)
{
    dt_tensor *y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    const int64_t f = dt_layer_param_info(dt_layers_at(layers, 1), 0).axis[1].extent;
    dt_tensor *gate = dt_slice(t, y, -1, 0, f), *up = dt_slice(t, y, -1, f, f);

    (void)unused;
    return dt_layer_forward(t, dt_layers_at(layers, 1), dt_silu_mul(t, gate, up));
}

DT_TEST(packed, gate_and_up_in_one_weight_equal_one_rank_for_one_all_reduce)
{
    static const int64_t widths[] = { 1, 3, 7, 8 }; /* of the feed-forward: also fewer than ranks */

    for (size_t i = 0; i < DT_COUNT(widths); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            const int64_t f = widths[i], d = 6;
            const model_case c = {
                .specs = { { .name = "a",
                             .kind = &dt_linear_kind,
                             .axis = { { 2 * f, DT_UNIT_ROW }, { d, DT_UNIT_ROW } },
                             .blocks = { { 2, { { f, DT_UNIT_ROW }, { f, DT_UNIT_ROW } } } },
                             .with = "bias",
                             .style = "packed_colwise" },
                           { .name = "b",
                             .kind = &dt_linear_kind,
                             .axis = { { d, DT_UNIT_ROW }, { f, DT_UNIT_ROW } },
                             .with = "bias",
                             .style = "rowwise" } },
                .forward = gated,
                .width = d
            };
            dt_test_on_ranks(meshes[m], equals_one_rank, &c);
        }
}

/* --- q | k | v -------------------------------------------------------------------------------- */

static dt_tensor *attention(dt_tape *t, dt_layers *layers, dt_tensor *x, const void *arg)
{
    const dt_head_counts *h = arg;
    const dt_attention_options options = { .n_heads = h->n_heads,
                                           .n_kv_heads = h->n_kv_heads,
                                           .scale = 0.5f };
    const int64_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim,
                  shape[] = { 1, TOKENS };
    const dt_placement everywhere[DT_MAX_DIMS] = { { 0 } };
    int32_t places[TOKENS];
    dt_tensor *positions = NULL, *y, *part[3];

    for (int32_t i = 0; i < TOKENS; i++) places[i] = i;
    if (dt_distribute(dt_tensor_mesh(x), everywhere, DT_I32, 2, shape,
                      (dt_source){ places, DT_EQUAL_COPIES }, &positions) != DT_OK)
        return NULL;
    positions = dt_tape_own(t, positions);
    y = dt_layer_forward(t, dt_layers_at(layers, 0), x);
    part[0] = dt_heads(t, dt_slice(t, y, 2, 0, q), h->head_dim);
    part[1] = dt_heads(t, dt_slice(t, y, 2, q, kv), h->head_dim);
    part[2] = dt_heads(t, dt_slice(t, y, 2, -kv, kv), h->head_dim);
    y = dt_unheads(t, dt_attention(t, part[0], part[1], part[2], positions, &options));
    return dt_layer_forward(t, dt_layers_at(layers, 1), y);
}

DT_TEST(packed, queries_keys_and_values_in_one_weight_equal_one_rank)
{
    static const dt_head_counts counts[] = {
        { 4, 4, 2 }, { 8, 4, 2 }, { 6, 2, 4 }, { 4, 1, 2 }, { 5, 5, 4 }, { 6, 3, 2 },
    };

    for (size_t i = 0; i < DT_COUNT(counts); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            const dt_head_counts *h = &counts[i];
            const int64_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim, d = 6;
            const model_case c = {
                .specs = { { .name = "a",
                             .kind = &dt_linear_kind,
                             .axis = { { q + 2 * kv, DT_UNIT_ROW }, { d, DT_UNIT_ROW } },
                             .blocks = { { 3,
                                           { { q, DT_UNIT_HEADS },
                                             { kv, DT_UNIT_KV_HEADS },
                                             { kv, DT_UNIT_KV_HEADS } } } },
                             .heads = *h,
                             .with = "bias",
                             .style = "packed_colwise" },
                           { .name = "b",
                             .kind = &dt_linear_kind,
                             .axis = { { d, DT_UNIT_ROW }, { q, DT_UNIT_HEADS } },
                             .heads = *h,
                             .style = "rowwise" } },
                .forward = attention,
                .heads = h,
                .width = d
            };
            dt_test_on_ranks(meshes[m], equals_one_rank, &c);
        }
}

DT_TEST(packed, heads_are_cut_by_the_head_rule_in_every_block)
{
    const struct {
        dt_head_counts heads;
        int parts;
        bool cut;
        int64_t q_unit, kv_unit;
        int copies;
    } rows[] = {
        { { 8, 4, 16 }, 4, true, 32, 16, 1 }, { { 8, 4, 16 }, 3, true, 32, 16, 1 },
        { { 8, 2, 16 }, 4, true, 64, 16, 2 }, { { 6, 2, 16 }, 4, true, 48, 16, 2 },
        { { 6, 2, 16 }, 3, false, 0, 0, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_head_counts *h = &rows[i].heads;
        const int64_t q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
        const dt_param_info info = { .kind = &dt_linear_kind,
                                     .n_axes = 2,
                                     .heads = *h,
                                     .blocks = { { 3,
                                                   { { q, DT_UNIT_HEADS },
                                                     { kv, DT_UNIT_KV_HEADS },
                                                     { kv, DT_UNIT_KV_HEADS } } } } };
        dt_cut_room room;
        const dt_placement p = dt_cut_param(&info, 0, rows[i].parts, &room);
        DT_ASSERT_EQ_INT(p.kind == DT_PLACE_SHARD, rows[i].cut);
        if (!rows[i].cut) continue;
        DT_ASSERT_EQ_INT(p.replicas, rows[i].copies);
        DT_ASSERT(p.n_blocks == 3 && p.blocks[0] == q && p.blocks[2] == kv);
        DT_ASSERT(p.units[0] == rows[i].q_unit && p.units[1] == rows[i].kv_unit);
        DT_ASSERT_EQ_INT(p.units[2], rows[i].kv_unit);
    }
}

/* Keys and values in one weight, queries in another: those are cut by head, so copies of kv heads
 * fit them only where the heads divide. */
DT_TEST(packed, keys_and_values_without_queries_have_copies_only_where_heads_divide)
{
    const struct {
        dt_head_counts heads;
        int parts, copies; /* 0: whole */
    } rows[] = {
        { { 8, 4, 16 }, 4, 1 }, { { 8, 2, 16 }, 4, 2 }, { { 6, 2, 16 }, 4, 0 },
        { { 6, 4, 16 }, 4, 1 }, { { 6, 2, 16 }, 3, 0 }, { { 6, 1, 16 }, 4, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_head_counts *h = &rows[i].heads;
        const int64_t kv = h->n_kv_heads * h->head_dim;
        const dt_param_info info = {
            .kind = &dt_linear_kind,
            .n_axes = 2,
            .heads = *h,
            .blocks = { { 2, { { kv, DT_UNIT_KV_HEADS }, { kv, DT_UNIT_KV_HEADS } } } }
        };
        dt_cut_room room;
        const dt_placement p = dt_cut_param(&info, 0, rows[i].parts, &room);
        DT_ASSERT_EQ_INT(p.kind == DT_PLACE_SHARD, rows[i].copies > 0);
        if (rows[i].copies > 0) DT_ASSERT_EQ_INT(p.replicas, rows[i].copies);
    }
}

/* --- packed inputs ---------------------------------------------------------------------------- */

static dt_tensor *one_after_the_other(dt_tape *t, dt_layers *layers, dt_tensor *x, const void *arg)
{
    (void)arg;
    return dt_layer_forward(t, dt_layers_at(layers, 1),
                            dt_layer_forward(t, dt_layers_at(layers, 0), x));
}

DT_TEST(packed, packed_inputs_are_summed_over_all_blocks)
{
    const dt_axis_blocks blocks = {
        3, { { 7, DT_UNIT_ROW }, { 2, DT_UNIT_ROW }, { 4, DT_UNIT_ROW } }
    };
    const model_case c = { .specs = { { .name = "a",
                                        .kind = &dt_linear_kind,
                                        .axis = { { 13, DT_UNIT_ROW }, { 6, DT_UNIT_ROW } },
                                        .blocks = { blocks },
                                        .style = "packed_colwise" },
                                      { .name = "b",
                                        .kind = &dt_linear_kind,
                                        .axis = { { 6, DT_UNIT_ROW }, { 13, DT_UNIT_ROW } },
                                        .blocks = { { 0 }, blocks },
                                        .with = "bias",
                                        .style = "packed_rowwise" } },
                           .forward = one_after_the_other,
                           .width = 6 };
    model_case sliced = c; /* from a whole x the blocks are sliced */
    model_case scattered[2];

    sliced.specs[0].blocks[0].n = 0;
    sliced.specs[0].style = "replicate";
    sliced.specs[1].style = "local_packed_rowwise";
    for (size_t i = 0; i < DT_COUNT(scattered); i++) {
        scattered[i] = i == 0 ? c : sliced;
        scattered[i].specs[1].style = "packed_rowwise_reduce_scatter";
        scattered[i].scattered = true;
    }
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        dt_test_on_ranks(meshes[m], equals_one_rank, &c);
        dt_test_on_ranks(meshes[m], equals_one_rank, &sliced);
        for (size_t i = 0; i < DT_COUNT(scattered); i++)
            dt_test_on_ranks(meshes[m], equals_one_rank, &scattered[i]);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    dt_layer_spec spec = { .name = "mlp.gate_up",
                           .kind = &dt_linear_kind,
                           .axis = { { 16, DT_UNIT_ROW }, { 4, DT_UNIT_ROW } },
                           .blocks = { { 2, { { 8, DT_UNIT_ROW }, { 8, DT_UNIT_ROW } } } },
                           .style = "colwise" };
    dt_layers *layers = NULL;

    (void)arg;
    DT_EXPECT_STATUS(
        dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
        "cuts the outputs of mlp.gate_up as one piece, but those of weight [16, 4] are "
        "2 blocks of which every rank needs its part; use \"packed_colwise\"");
    spec.style = "colwise_gather_output"; /* whole again: any cut will do */
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    dt_layers_release(&layers);
    spec.blocks[0].n = 0;
    spec.style = "packed_colwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "those of weight [16, 4] are one piece; use \"colwise\"");
    spec.style = "packed_rowwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "are one piece; use \"rowwise\"");
    spec.blocks[1] = (dt_axis_blocks){ 2, { { 1, DT_UNIT_ROW }, { 3, DT_UNIT_ROW } } };
    spec.style = "rowwise";
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_LAYOUT,
                     "use \"packed_rowwise\"");
    spec.blocks[1].block[1].extent = 2;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "the blocks of its 4 inputs have 3 together");
    spec.blocks[1].block[1].extent = 5;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "block 1 of its 4 inputs has 5, after 1");
    spec.blocks[1].block[1].extent = 4;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "block 1 of its 4 inputs has 4, after 1");
    spec.blocks[1].n = 9;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "9 blocks: 1 to 8");
    spec.kind = &dt_embedding_kind;
    DT_EXPECT_STATUS(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers), DT_ERR_ARG,
                     "only axes of linear layers are made of blocks");
    DT_EXPECT(layers == NULL, "nothing is left behind");
    return DT_OK;
}

DT_TEST(packed, styles_and_blocks_that_do_not_fit_are_refused_with_the_remedy)
{
    dt_test_on_ranks("tp=2", refusals, NULL);
}

static dt_status slices(dt_mesh *mesh, const void *arg)
{
    const dt_placement packed = DT_SHARD_PACKED(1, 4, 2, 2);
    const int64_t shape[] = { 2, 8 };
    const struct {
        int64_t begin, count;
        const char *message; /* NULL: fits */
    } rows[] = { { 0, 4, NULL },
                 { 4, 4, NULL },
                 { -2, 2, NULL },
                 { 0, 8, NULL },
                 { 4, 0, NULL },
                 { 0, 3, "rows 0 to 2 of axis 1 are no blocks of it" },
                 { 2, 2, "no blocks of it" },
                 { 4, 3, "no blocks of it" },
                 { 4, 5, "which has 8" } };
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const int64_t first = rows[i].begin < 0 ? rows[i].begin + 8 : rows[i].begin;
        dt_tensor *x = NULL, *full = NULL, *y;
        dt_tape_reset(t);
        DT_TRY_TO(done, st, dt_test_arange(mesh, &packed, DT_F32, 2, shape, &x));
        y = dt_slice(t, dt_tape_own(t, x), 1, rows[i].begin, rows[i].count);
        if (rows[i].message != NULL) {
            DT_EXPECT_TO(done, st,
                         y == NULL && strstr(dt_last_error()->message, rows[i].message) != NULL,
                         "%s", dt_last_error()->message);
            continue;
        }
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_TRY_TO(done, st, dt_full_tensor(y, &full));
        for (int64_t k = 0; k < 2 * rows[i].count; k++) {
            const float got = ((const float *)dt_tensor_local(full)->data)[k];
            const float want = (float)(k / rows[i].count * 8 + first + k % rows[i].count);
            if (got != want)
                st = dt_test_unexpected(__func__, __FILE__, __LINE__, "got == want", "%g, not %g",
                                        (double)got, (double)want);
        }
        dt_tensor_release(&full);
        DT_TRY_TO(done, st, st);
    }
done:
    dt_tape_release(&t);
    return st;
}

DT_TEST(packed, slices_are_whole_blocks)
{
    dt_test_on_ranks("tp=2", slices, NULL);
    dt_test_on_ranks("tp=3", slices, NULL);
}
