/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of Llama and its kin: RMS norms before attention and before a gated feed-forward,
 * rotary positions, grouped key-value heads. An architecture of this family is what it reads
 * from its configuration. */
#ifndef DTI_BLOCK_DECODER_H
#define DTI_BLOCK_DECODER_H

#include "models/architectures/builder.h"
#include "models/architectures/named_plans.h"
#include "models/architectures/rotary.h"

/* One block. Layers that an architecture has no row for stay NULL. */
typedef struct dti_block {
    dt_layer *norm1, *attn, *q, *k, *v, *q_norm, *k_norm, *o;
    dt_layer *norm2, *mlp, *gate, *up, *down;
    dt_layer *qkv, *gate_up; /* in place of q, k, v and of gate, up, where they are packed */
    dt_layer *router, *experts, *experts_down; /* with gate_up in place of gate, up, down: moe.c */
    bool sparse;                               /* it has experts */
    dt_attention_options attention;            /* window 0: all keys */
} dti_block;

#define DTI_BLOCK(field) offsetof(dti_block, field)

/* The mixture of experts of sparse blocks. */
typedef struct dti_moe {
    int64_t n_experts, n_chosen, ff;
    bool normalise; /* weights of the chosen experts add up to 1 */
} dti_moe;

/* `self` of these architectures. The first half is filled by their read_config(). */
typedef struct dti_decoder {
    dt_model_info info;
    dti_rope rope;
    int64_t ff;
    int64_t padding; /* of the embedding, as its spec has it */
    const dt_activation *activation;
    bool qkv_bias;
    bool out_bias;
    bool mlp_bias;
    bool packed;     /* q, k and v are one matrix, gate and up another */
    bool head_norms; /* every query and key head is normed before the rotation */
    float eps;
    dti_moe moe; /* of sparse blocks */

    dt_layer *embed, *norm, *head;
    dti_block *blocks; /* [n_layers] */
} dti_decoder;

/* What holds where config.json has no such key. */
typedef struct dti_decoder_defaults {
    dt_config_defaults shared;
    int64_t ff;
    int64_t padding; /* one more than pad_token_id; 0: none */
    double eps;
    const dti_rope_keys *rope; /* NULL: those of Llama */
} dti_decoder_defaults;

/* What the configurations of all of them have, and blocks with full attention. What is an
 * architecture's own comes after it. */
dt_status dti_decoder_read(dti_decoder *m, const dt_config *config,
                           const dti_decoder_defaults *defaults, dt_model_info *info) DT_MUST_USE;

/* "attention_bias": of queries, keys, values and of what comes out. */
dt_status dti_decoder_read_biases(dti_decoder *m, const dt_config *config) DT_MUST_USE;

/* The windows of Qwen2 and Qwen3: sliding_window counts where use_sliding_window is true, for the
 * layers that layer_types names, or else from layer max_window_layers on. After
 * dti_decoder_read(). */
dt_status dti_decoder_read_windows(dti_decoder *m, const dt_config *config) DT_MUST_USE;

/* A block's mixture of experts (moe.c): its layers, and what it makes of n [B, T, D]. */
dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b) DT_MUST_USE;
dt_tensor *dti_moe_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n);

/* What these architectures share of a dt_arch. */
dt_status dti_decoder_add_layers(void *self, const dt_model_info *info,
                                 dt_builder *builder) DT_MUST_USE;
dt_status dti_decoder_prepare(void *self, dt_mesh *mesh, const dt_model_info *info) DT_MUST_USE;
dt_tensor *dti_decoder_embed(const void *self, dt_tape *t, const dt_model_pass *pass);
void dti_decoder_tables(const void *self, dt_tape *t, const dt_model_pass *pass,
                        dt_tensor **tables);
dt_tensor *dti_decoder_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                             const dt_flow *in);
dt_tensor *dti_decoder_head(const void *self, dt_tape *t, dt_tensor *x);
void dti_decoder_release(void *self);
int64_t dti_decoder_turn(const void *self);
bool dti_decoder_repeats(const void *self);
extern const char *const dti_decoder_ignored[], *const dti_decoder_unlaid[];
extern const dt_spelling dti_decoder_spellings[];

/* An architecture of this family: its model_type, the classes of model and block as Transformers
 * names them, and its read_config(). */
#define DTI_DECODER_ARCH(type, class, block_class_, read, plans_)                                  \
    {                                                                                              \
        .size = sizeof(dt_arch), .model_type = (type), .class_name = (class),                      \
        .self_bytes = sizeof(dti_decoder), .spellings = dti_decoder_spellings,                     \
        .ignored = dti_decoder_ignored, .read_config = (read),                                     \
        .add_layers = dti_decoder_add_layers, .prepare = dti_decoder_prepare,                      \
        .embed = dti_decoder_embed, .tables = dti_decoder_tables, .block = dti_decoder_block,      \
        .head = dti_decoder_head, .release = dti_decoder_release, .turn = dti_decoder_turn,        \
        .repeats = dti_decoder_repeats, .block_class = (block_class_), .blocks = "model.layers.*", \
        .plans = (plans_), .unlaid = dti_decoder_unlaid                                            \
    }

#endif
