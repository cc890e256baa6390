/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 3, its text part: what a model is made of. */
#ifndef DTI_GEMMA3_H
#define DTI_GEMMA3_H

#include "models/architectures/builder.h"
#include "models/architectures/rotary.h"

typedef struct gemma3_block {
    dt_layer *attn_norm, *attn, *q, *k, *v, *q_norm, *k_norm, *o, *attn_out_norm;
    dt_layer *mlp_norm, *mlp, *gate, *up, *down, *mlp_out_norm;
    dt_attention_options attention; /* window 0: all keys */
    bool local;                     /* rotates as local layers do */
} gemma3_block;

typedef struct gemma3 {
    dt_model_info info;
    int64_t ff;
    int64_t padding; /* of the embedding, as its spec has it */
    const dt_activation *activation;
    bool attention_bias;
    float eps;
    double logit_cap; /* 0: none */
    dti_rope global, local;

    dt_layer *embed, *norm, *head;
    gemma3_block *blocks; /* [n_layers] */
} gemma3;

/* config.json of model_type "gemma3_text", or the text_config of a "gemma3". */
dt_status dti_gemma3_read_config(void *self, const dt_config *config,
                                 dt_model_info *info) DT_MUST_USE;

#endif
