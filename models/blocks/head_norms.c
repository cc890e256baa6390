/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder with a norm of every query and key head before the rotation: Qwen3 and its kin. */
#include "models/blocks/decoder.h"

dt_status dti_decoder_add_normed_layers(void *self, const dt_model_info *info, dt_builder *builder)
{
    const dt_extent E = { info->head_dim, DT_UNIT_ROW, "head_dim" }, none = { 0 };
    /* clang-format off */
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const dt_layer_row norms[] = {
/*      field                name in the checkpoint  kind               out  in    bias   style on "tp"  tied to */
        { DTI_BLOCK(q_norm), "self_attn.q_norm",     DT_LAYER_RMS_NORM, E,   none, false, PER_HEAD,      NULL },
        { DTI_BLOCK(k_norm), "self_attn.k_norm",     DT_LAYER_RMS_NORM, E,   none, false, PER_HEAD,      NULL },
    };
#undef PER_HEAD
    /* clang-format on */

    return dti_decoder_add_layers(self, info, builder, norms, (int)DT_COUNT(norms));
}
