/* SPDX-License-Identifier: Apache-2.0
 *
 * The feed-forward of a sparse block: a router, and the experts that it chooses for each token.
 * D model width, N experts, F width of one; G = 2 F, gate | up. */
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

/* What every token passes: a gated feed-forward, times the sigmoid of a number per token. */
static dt_status add_shared(const dti_decoder *m, const char *name, dt_builder *builder,
                            dti_block *b)
{
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent F = { m->moe.shared, DT_UNIT_ROW, "shared_expert_intermediate_size" };
    const dt_extent one = { 1, DT_UNIT_ROW, "1" };

    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field                    name in the checkpoint         kind             out  in  bias   style on "tp"    tied to */
        { DTI_BLOCK(gate),         "mlp.shared_expert.gate_proj", &dt_linear_kind, F,   D,  false, "colwise",       NULL },
        { DTI_BLOCK(up),           "mlp.shared_expert.up_proj",   &dt_linear_kind, F,   D,  false, "colwise",       NULL },
        { DTI_BLOCK(down),         "mlp.shared_expert.down_proj", &dt_linear_kind, D,   F,  false, "local_rowwise", NULL },
        { DTI_BLOCK(shared_gate),  "mlp.shared_expert_gate",      &dt_linear_kind, one, D,  false, "replicate",     NULL },
    };
    /* clang-format on */

    return dt_builder_add(builder, name, rows, (int)DT_COUNT(rows), b);
}

dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent N = { c->n_experts, DT_UNIT_ROW, c->key };
    const dt_extent F = { c->ff, DT_UNIT_ROW, c->ff_key };
    const dt_extent G = { 2 * c->ff, DT_UNIT_ROW, c->both_key };
    const char *point = c->shared > 0 ? "local" : "moe_tp_experts"; /* summed with the shared one */
    dt_layer_spec *spec;

    if (c->shared > 0) DT_TRY(add_shared(m, name, builder, b));
    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field                    name in the checkpoint      kind              out   in    bias   style on "tp"     tied to */
        { DTI_BLOCK(router),       "mlp.gate",                 &dt_linear_kind,  N,    D,    false, "replicate",      NULL },
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
    dt_tensor *ids = dt_route_ids(t, logits, m->moe.n_chosen);
    dt_tensor *weights = dt_route_weights(t, logits, ids, m->moe.normalise);
    dt_tensor *y = dt_layer_experts(t, b->experts, b->gate_up, b->experts_down, n, ids, weights);
    dt_tensor *gate, *up, *s;

    if (b->shared_gate == NULL) return y;
    gate = dt_layer_forward(t, b->gate, n);
    up = dt_layer_forward(t, b->up, n);
    s = dt_layer_forward(t, b->down, dt_activate_mul(t, m->activation, gate, up));
    if (dt_tape_status(t) != DT_OK) return NULL;
    gate = dt_sigmoid(t, dt_layer_forward(t, b->shared_gate, n));
    s = dt_mul(t, s, dt_cast(t, gate, dt_tensor_dtype(s))); /* terms of a sum are f32 */
    return dti_decoder_join(t, b->mlp, y, s);
}
