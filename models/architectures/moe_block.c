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

dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent N = { c->n_experts, DT_UNIT_ROW, c->key };
    const dt_extent F = { c->ff, DT_UNIT_ROW, c->ff_key };
    const dt_extent G = { 2 * c->ff, DT_UNIT_ROW, c->both_key };
    dt_layer_spec *spec;

    /* clang-format off */
    const dt_layer_row rows[] = {
/*      field                    name in the checkpoint      kind              out   in    bias   style on "tp"     tied to */
        { DTI_BLOCK(router),       "mlp.gate",                 &dt_linear_kind,  N,    D,    false, "replicate",      NULL },
        { DTI_BLOCK(experts),      "mlp.experts",              &dt_point_kind,   none, none, false, "moe_tp_experts", NULL },
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

    return dt_layer_experts(t, b->experts, b->gate_up, b->experts_down, n, ids, weights);
}
