/* SPDX-License-Identifier: Apache-2.0
 *
 * The feed-forward of a sparse block: a router, and the experts that it chooses for each token.
 * D model width, N experts, F width of one; G = 2 F, gate | up. */
#include <stdio.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

dt_status dti_moe_read(dti_moe *moe, const dt_config *config, const char *key, int64_t n_experts,
                       int64_t n_chosen)
{
    const dt_config quiet = dt_config_quietly(config);
    const dt_config chosen = dt_config_member(config, "num_experts_per_tok");

    DT_TRY(dti_config_word(config, "hidden_act", "silu", "silu")); /* the experts' own */
    moe->key = key;
    DT_TRY(dt_config_int(&quiet, key, n_experts, 1, 65536, &moe->n_experts));
    DT_TRY(dt_config_int(config, "num_experts_per_tok", n_chosen, 1, 65536, &moe->n_chosen));
    if (moe->n_chosen > moe->n_experts)
        return dt_config_must_be(&chosen, DT_ERR_FORMAT, "at most %s, %lld", key,
                                 (long long)moe->n_experts);
    return DT_OK;
}

/* How many experts lie in a group, and whether a token's can be chosen from so many groups. */
static dt_status check_groups(const dti_moe *moe, const dt_config *config)
{
    const dt_config n_group = dt_config_member(config, "n_group");
    const dt_config topk_group = dt_config_member(config, "topk_group");
    const int64_t n = moe->routing.n_groups, size = moe->n_experts / n;

    if (moe->n_experts % n != 0 || size < 2)
        return dt_config_must_be(&n_group, DT_ERR_FORMAT,
                                 "a divisor of n_routed_experts, %lld, that leaves two in a group",
                                 (long long)moe->n_experts);
    if (moe->routing.n_chosen_groups > n || moe->routing.n_chosen_groups * size < moe->n_chosen)
        return dt_config_must_be(&topk_group, DT_ERR_FORMAT,
                                 "at most n_group, %lld, and so many that %lld experts are in them",
                                 (long long)n, (long long)moe->n_chosen);
    return DT_OK;
}

dt_status dti_moe_read_corrected(dti_decoder *m, const dt_config *config, const dti_moe_defaults *d)
{
    const int64_t most = DTI_CONFIG_MAX_EXTENT;
    dti_moe *moe = &m->moe;
    int64_t dense, shared, every;

    DT_TRY(dti_moe_read(moe, config, "n_routed_experts", d->n_experts, d->n_chosen));
    moe->ff_key = "moe_intermediate_size";
    moe->both_key = "2 * moe_intermediate_size";
    moe->corrected = true;
    moe->routing.scores = DT_ROUTE_SIGMOID;
    moe->shared_name = "mlp.shared_experts";
    DT_TRY(dti_config_word(config, "scoring_func", "sigmoid", "sigmoid"));
    DT_TRY(dti_config_word(config, "topk_method", "noaux_tc", "noaux_tc"));
    DT_TRY(dt_config_int(config, "moe_layer_freq", 1, 1, 1, &every));
    DT_TRY(dt_config_int(config, moe->ff_key, d->ff, 1, most / 2, &moe->ff));
    DT_TRY(dt_config_bool(config, "norm_topk_prob", true, &moe->normalise));
    DT_TRY(dt_config_number(config, "routed_scaling_factor", d->scale, 1e-9, 1e9,
                            &moe->routing.scale));
    DT_TRY(dt_config_int(config, "n_group", d->n_groups, 1, 32, &moe->routing.n_groups));
    DT_TRY(dt_config_int(config, "topk_group", d->n_chosen_groups, 1, 32,
                         &moe->routing.n_chosen_groups));
    DT_TRY(check_groups(moe, config));
    DT_TRY(dt_config_int(config, "n_shared_experts", 1, 0, most / moe->ff, &shared));
    moe->shared = shared * moe->ff;
    DT_TRY(dt_config_int(config, "first_k_dense_replace", d->dense, 0, most, &dense));
    for (int64_t i = 0; i < m->info.n_layers; i++) m->blocks[i].sparse = i >= dense;
    return DT_OK;
}

/* Logits in f32, of whatever dtype x and the weight are. */
static dt_tensor *f32_logits(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_use(t, layer, DT_PARAM_WEIGHT);

    return dt_linear(t, dt_cast(t, x, DT_F32), dt_cast(t, w, DT_F32), NULL);
}

enum { CORRECTION = 1 };
static const dt_layer_kind corrected_router = {
    .name = "corrected_router",
    .words = "a router",
    .like = &dt_linear_kind,
    .params = { { "weight", "oi" },
                { "e_score_correction_bias", "o", .frozen = true, .wide = true,
                  .begins = DT_BEGINS_ZEROS } },
    .cost = "2 oi",
    .forward = f32_logits,
};

/* What every token passes: a gated feed-forward; times the sigmoid of a number per token, if it has
 * a gate of its own. */
static dt_status add_shared(const dti_decoder *m, const char *name, dt_builder *builder,
                            dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent F = { c->shared, DT_UNIT_ROW,
                          c->shared_name != NULL ? "n_shared_experts * moe_intermediate_size"
                                                 : "shared_expert_intermediate_size" };
    const dt_extent one = { 1, DT_UNIT_ROW, "1" };
    char prefix[80];

    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field             name in the checkpoint  kind             out  in  bias   style on "tp"    tied to */
        { DTI_BLOCK(gate),  "gate_proj",          &dt_linear_kind, F,   D,  false, "colwise",       NULL },
        { DTI_BLOCK(up),    "up_proj",            &dt_linear_kind, F,   D,  false, "colwise",       NULL },
        { DTI_BLOCK(down),  "down_proj",          &dt_linear_kind, D,   F,  false, "local_rowwise", NULL },
    };
    const dt_layer_row gate = { DTI_BLOCK(shared_gate), "mlp.shared_expert_gate", &dt_linear_kind, one, D, false, "replicate", NULL };
    /* clang-format on */

    (void)snprintf(prefix, sizeof prefix, "%s.%s", name,
                   c->shared_name != NULL ? c->shared_name : "mlp.shared_expert");
    DT_TRY(dt_builder_add(builder, prefix, rows, (int)DT_COUNT(rows), b));
    return c->shared_name != NULL ? DT_OK : dt_builder_add(builder, name, &gate, 1, b);
}

dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent N = { c->n_experts, DT_UNIT_ROW, c->key };
    const dt_extent F = { c->ff, DT_UNIT_ROW, c->ff_key };
    const dt_extent G = { 2 * c->ff, DT_UNIT_ROW, c->both_key };
    const dt_layer_kind *router = c->corrected ? &corrected_router : &dt_linear_kind;
    const char *point = c->shared > 0 ? "local" : "moe_tp_experts"; /* summed with the shared one */
    dt_layer_spec *spec;

    if (c->shared > 0) DT_TRY(add_shared(m, name, builder, b));
    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field                    name in the checkpoint      kind              out   in    bias   style on "tp"     tied to */
        { DTI_BLOCK(router),       "mlp.gate",                 router,           N,    D,    false, "replicate",      NULL },
        { DTI_BLOCK(experts),      "mlp.experts",              &dt_point_kind,   none, none, false, point,            NULL },
        { DTI_BLOCK(gate_up),      "mlp.experts.gate_up_proj", &dt_experts_kind, G,    D,    false, "packed_colwise", NULL },
        { DTI_BLOCK(experts_down), "mlp.experts.down_proj",    &dt_experts_kind, D,    F,    false, "rowwise",        NULL },
    };
    /* clang-format on */

    DT_TRY(dt_builder_add(builder, name, rows, (int)DT_COUNT(rows), b));
    spec = dt_builder_spec(builder, "mlp.experts.gate_up_proj");
    spec->axis[2].extent = c->n_experts;
    spec->blocks[0] = (dt_axis_blocks){ 2, { { c->ff, DT_UNIT_ROW }, { c->ff, DT_UNIT_ROW } } };
    spec->parts[0] = c->parts[0] != NULL ? c->parts[0] : "gate_proj";
    spec->parts[1] = c->parts[1] != NULL ? c->parts[1] : "up_proj";
    spec = dt_builder_spec(builder, "mlp.experts.down_proj");
    spec->axis[2].extent = c->n_experts;
    spec->parts[0] = c->parts[2] != NULL ? c->parts[2] : "down_proj";
    return DT_OK;
}

dt_tensor *dti_moe_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    dt_tensor *logits = dt_layer_forward(t, b->router, n);
    dt_routing routing = m->moe.routing;
    dt_tensor *ids, *weights, *gate, *up, *y, *s;

    routing.n_chosen = m->moe.n_chosen;
    routing.normalise = m->moe.normalise;
    routing.bias = m->moe.corrected ? dt_layer_use(t, b->router, CORRECTION) : NULL;
    dt_route_tokens(t, logits, &routing, &ids, &weights);
    weights = dt_cast(t, weights, m->info.dtype);
    y = dt_layer_experts(t, b->experts, b->gate_up, b->experts_down, n, ids, weights);
    if (m->moe.shared == 0) return y;
    gate = dt_layer_forward(t, b->gate, n);
    up = dt_layer_forward(t, b->up, n);
    s = dt_layer_forward(t, b->down, dt_activate_mul(t, m->activation, gate, up));
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (b->shared_gate != NULL) {
        gate = dt_sigmoid(t, dt_layer_forward(t, b->shared_gate, n));
        s = dt_mul(t, s, dt_cast(t, gate, dt_tensor_dtype(s))); /* terms of a sum are f32 */
    }
    return dti_decoder_join(t, b->mlp, y, s);
}
