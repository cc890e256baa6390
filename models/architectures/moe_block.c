/* SPDX-License-Identifier: Apache-2.0
 *
 * The feed-forward of a sparse block: a router, and the experts that it chooses for each token.
 * D model width, N experts, F width of one; G = 2 F, gate | up. */
#include "models/architectures/decoder_block.h"

dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b)
{
    const dti_moe *c = &m->moe;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent N = { c->n_experts, DT_UNIT_ROW, "num_experts" };
    const dt_extent F = { c->ff, DT_UNIT_ROW, "moe_intermediate_size" };
    const dt_extent G = { 2 * c->ff, DT_UNIT_ROW, "2 * moe_intermediate_size" };
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
    spec->parts[0] = "gate_proj";
    spec->parts[1] = "up_proj";
    spec = dt_builder_spec(builder, "mlp.experts.down_proj");
    spec->axis[2].extent = c->n_experts;
    spec->parts[0] = "down_proj";
    return DT_OK;
}

dt_tensor *dti_moe_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    dt_tensor *logits = dt_layer_forward(t, b->router, n);
    dt_tensor *ids = dt_route_ids(t, logits, m->moe.n_chosen);
    dt_tensor *weights = dt_route_weights(t, logits, ids, m->moe.normalise);

    return dt_layer_experts(t, b->experts, b->gate_up, b->experts_down, n, ids, weights);
}
