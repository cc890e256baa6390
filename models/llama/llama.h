/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama: what its config says and what a block and the model hold. Qwen3 shares both structs' shape
 * but for the norms of queries and keys, and has its own. */
#ifndef DTI_LLAMA_H
#define DTI_LLAMA_H

#include "models/blocks/rope.h"
#include "models/model.h"

typedef struct llama_config {
    int64_t hidden;
    int64_t ff;
    bool attention_bias;
    bool mlp_bias;
    float eps;
    dti_rope rope;
} llama_config;

typedef struct llama_block {
    dt_layer *norm1, *q, *k, *v, *o;
    dt_layer *norm2, *gate, *up, *down;
    char name[40]; /* "model.layers.3" */
} llama_block;

typedef struct llama {
    llama_config config;
    dt_model_info info;
    dt_attention_options attention;
    dt_layer *embed, *norm, *head;
    llama_block *blocks; /* [n_layers] */
    dt_tensor *inv_freq;
} llama;

#endif
