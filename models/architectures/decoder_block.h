/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of Llama, of GPT-2 and of their kin: norms around attention and a feed-forward, gated
 * or plain, one after the other or side by side; rotary or learned positions, grouped key-value
 * heads. An architecture of this family is what it reads from its configuration: what they differ
 * in are fields. */
#ifndef DTI_BLOCK_DECODER_H
#define DTI_BLOCK_DECODER_H

#include "models/architectures/builder.h"
#include "models/architectures/named_plans.h"
#include "models/architectures/rotary.h"

enum { DTI_MAX_ROPES = 2, DTI_NO_ROPE = -1 };

/* Where norms stand: before attention and feed-forward, behind them, or both. */
typedef enum dti_norm_places {
    DTI_NORMS_BEFORE,
    DTI_NORMS_AROUND,
    DTI_NORMS_BEHIND
} dti_norm_places;

/* How queries, keys and values lie in weights: each in its own; all in one, q | k | v; or all in
 * one, the query heads of a key-value head followed by it, q q k v q q k v. */
typedef enum dti_qkv { DTI_QKV_APART, DTI_QKV_BLOCKS, DTI_QKV_GROUPS } dti_qkv;

/* What an architecture calls its layers; NULL is as Llama has it. */
typedef struct dti_names {
    const char *embed, *positions, *norm, *head;
    const char *blocks; /* "model.layers", before a block's number */
    const char *norm1, *attn, *q, *k, *v, *qkv, *o, *q_norm, *k_norm, *out_norm1;
    const char *norm2, *mlp, *gate, *up, *down, *out_norm2;
} dti_names;

/* How heads rotate: halves by each other, or neighbouring columns; rounding each product, as the
 * model's table does, or in f32 to the end, by a table of either. */
typedef enum dti_turning {
    DTI_TURNS_HALVES = 0,
    DTI_TURNS_PAIRS = 1,
    DTI_TURNS_WIDE = 2,
    DTI_TURNS_BY_F32 = 4
} dti_turning;

/* One block. Layers that an architecture has no row for stay NULL. */
typedef struct dti_block {
    dt_layer *norm1, *attn, *q, *k, *v, *q_norm, *k_norm, *o, *out_norm1;
    dt_layer *norm2, *mlp, *gate, *up, *down, *out_norm2;
    dt_layer *qkv, *gate_up; /* in place of q, k, v and of gate, up, where they are packed */
    dt_layer *branches;      /* around attention and feed-forward that are side by side */
    dt_layer *router, *experts, *experts_down; /* with gate_up in place of gate, up, down: moe.c */
    dt_layer *gate_up_bias, *down_bias;        /* of experts that are clamped: gpt_oss.c */
    dt_layer *q_a, *q_a_norm, *kv_a, *kv_a_norm, *kv_b; /* of latent attention: mla_block.c */
    dt_layer *qkvz, *ba, *conv, *y_norm; /* with attn and o, of linear attention: delta_net.c */
    dt_layer *shared_gate; /* of gate, up and down, which every token passes beside the experts */
    bool linear;           /* its attention is */
    bool sparse;           /* it has experts */
    bool slides;           /* it has the window, if there is one */
    int rope;              /* how it rotates: of the decoder's ropes, or
                                                * DTI_NO_ROPE */
    dt_attention_options attention; /* window 0: all keys */
} dti_block;

#define DTI_BLOCK(field) offsetof(dti_block, field)

/* The mixture of experts of sparse blocks. */
typedef struct dti_moe {
    int64_t n_experts, n_chosen, ff;
    bool normalise;                /* weights of the chosen experts add up to 1 */
    bool corrected;                /* its router has f32 logits and a bias for choices, */
    dt_routing routing;            /* and more is said here than those two */
    const char *key;               /* in config.json of n_experts, "num_experts"; and of ff, */
    const char *ff_key, *both_key; /* "moe_intermediate_size", "2 * ..." */
    const char *parts[3];    /* gate, up and down of one expert in files; NULL: as they are here */
    int64_t shared;          /* width of what every token passes beside them; 0: nothing */
    const char *shared_name; /* "mlp.shared_experts"; NULL: mlp.shared_expert, which has a gate */
    double limit, alpha;     /* of gate and up, as in dt_clamp; 0: none */
} dti_moe;

/* Latent attention (mla_block.c). */
typedef struct dti_mla {
    int64_t latent;               /* columns that keys and values are made of; 0: there is none */
    int64_t queries;              /* that queries are made of; 0: of x itself */
    int64_t still, turned, value; /* of a head: that stand still, that turn, of its values */
} dti_mla;

/* Linear attention of some blocks (delta_net.c). */
typedef struct dti_delta {
    int64_t heads, group; /* of queries and keys; of values for each of them */
    int64_t key, value;   /* columns of theirs */
    int64_t taps;         /* tokens that a convolution adds up */
} dti_delta;

/* What DeepSeek-V3's kind of mixture has where config.json has no such key. */
typedef struct dti_moe_defaults {
    int64_t n_experts, n_chosen, ff, n_groups, n_chosen_groups;
    int64_t dense; /* blocks before the first that has experts */
    double scale;  /* of weights */
} dti_moe_defaults;

/* What holds where config.json has no such key, and how it spells some. */
typedef struct dti_decoder_defaults {
    dt_config_defaults shared;
    int64_t ff;          /* 0: four times the model's width, also where the key is null */
    const char *ff_key;  /* NULL: intermediate_size */
    const char *qkv_key; /* of q | k | v in one weight, for messages; NULL: in words */
    int64_t padding; /* one more than pad_token_id; 0: none; or DTI_NO_PADDING, whatever it is */
    double eps;
    const char *eps_key;                     /* NULL: rms_norm_eps */
    const dti_rope_keys *rope;               /* NULL: those of Llama */
    const dti_rope_keys *local_rope;         /* of blocks that slide; NULL: the same */
    const char *activation_key, *activation; /* NULL: hidden_act, silu */
    bool learned;                            /* positions are rows of a table, not rotations */
} dti_decoder_defaults;

enum { DTI_NO_PADDING = -1 };

/* `self` of these architectures. The first half is filled by their read_config(). */
typedef struct dti_decoder {
    dt_model_info info;
    const dti_decoder_defaults *from;
    const dti_names *names;
    dti_rope rope[DTI_MAX_ROPES];
    int n_ropes;
    int64_t ff;
    int64_t padding; /* of the embedding, as its spec has it */
    const dt_activation *activation;
    const dt_layer_kind *norm_kind; /* of all norms; NULL: RMS norms */
    dti_norm_places norms;
    bool qkv_bias;
    bool out_bias;
    bool mlp_bias;
    bool head_bias;
    dti_qkv qkv;
    bool gate_up;    /* gate and up are one matrix */
    bool plain;      /* the feed-forward has no gate */
    bool reversed;   /* files hold weights of blocks [in, out] */
    bool parallel;   /* attention and feed-forward are side by side: their sum joins x */
    bool one_norm;   /* of blocks, for both of them */
    int turning;     /* dti_turning, together */
    bool gated;      /* what heads give is multiplied by sigmoids, made beside their queries */
    bool sinks;      /* heads have scores that take weight and give nothing */
    bool head_norms; /* every query and key head is normed before the rotation; */
    bool row_norms;  /* all of a token's together */
    float eps;
    double embed_scale, residual_scale, logit_scale; /* products; 0: none */
    bool embed_scale_rounds;                         /* to the dtype, before the product */
    double logit_cap;                                /* 0: none */
    dti_moe moe;                                     /* of sparse blocks */
    dti_mla mla;                                     /* in place of q, k and v */
    dti_delta delta;                                 /* of blocks with linear attention */

    dt_layer *embed, *positions, *norm, *head;
    dti_block *blocks; /* [n_layers] */
} dti_decoder;

/* How blocks come to their windows. */
typedef struct dti_windows {
    int64_t fallback; /* sliding_window where config.json has no such key; 0: none */
    bool asked;       /* it counts only with use_sliding_window */
    bool typed;       /* layer_types says which blocks have it, and without it `slides` of blocks
                       * does; false: all have it */
    bool needed;      /* there must be one where a block slides */
} dti_windows;

/* What the configurations of all of them have, and blocks with full attention. What is an
 * architecture's own comes after it. */
dt_status dti_decoder_read(dti_decoder *m, const dt_config *config,
                           const dti_decoder_defaults *defaults, dt_model_info *info) DT_MUST_USE;

/* "attention_bias": of queries, keys, values and of what comes out. */
dt_status dti_decoder_read_biases(dti_decoder *m, const dt_config *config) DT_MUST_USE;

/* sliding_window, use_sliding_window and layer_types: the window of each block, and whether it
 * slides. After dti_decoder_read(), which lets all slide. */
dt_status dti_decoder_windows(dti_decoder *m, const dt_config *config,
                              const dti_windows *rule) DT_MUST_USE;

/* Those of Qwen2 and Qwen3: without layer_types they begin at layer max_window_layers. */
dt_status dti_qwen_windows(dti_decoder *m, const dt_config *config) DT_MUST_USE;

/* "num_experts_per_tok" of the experts that `key` counts. */
dt_status dti_moe_read(dti_moe *moe, const dt_config *config, const char *key, int64_t n_experts,
                       int64_t n_chosen) DT_MUST_USE;

/* The mixture of DeepSeek-V3 and its kin: sigmoids of f32 logits, a bias that corrects choices,
 * groups, experts beside them that every token passes; which blocks have it. */
dt_status dti_moe_read_corrected(dti_decoder *m, const dt_config *config,
                                 const dti_moe_defaults *defaults) DT_MUST_USE;

/* Latent attention: its keys, after dti_decoder_read(), which has read rotations; `info` then has
 * the one key head of caches. Its layers in a block, and what attention makes of n [B, T, D]. */
dt_status dti_mla_read(dti_decoder *m, const dt_config *config, dt_model_info *info) DT_MUST_USE;
dt_status dti_mla_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b) DT_MUST_USE;
dt_tensor *dti_mla_attention(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                             dt_tensor *n);

/* Linear attention: its keys, after dti_decoder_read(); its point and that one's axis; its layers
 * behind it; what it makes of n [B, T, D]. */
dt_status dti_delta_read(dti_decoder *m, const dt_config *config) DT_MUST_USE;
extern const dt_layer_kind dti_delta_kind;
dt_extent dti_delta_heads(const dti_decoder *m);
dt_status dti_delta_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                               dti_block *b) DT_MUST_USE;
dt_tensor *dti_delta_attention(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                               dt_tensor *n);

/* Heads x [B, T, H, E] turned by their positions, all columns that the table has. */
dt_tensor *dti_decoder_turned(const dti_decoder *m, dt_tape *t, dt_tensor *x, dt_tensor *table);

/* A block's mixture of experts (moe.c): its layers, and what it makes of n [B, T, D]. */
dt_status dti_moe_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b) DT_MUST_USE;
dt_tensor *dti_moe_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n);

/* The same of experts with limits, and the point of attention with sinks (gpt_oss.c). */
dt_status dti_clamped_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                                 dti_block *b) DT_MUST_USE;
dt_tensor *dti_clamped_forward(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n);
extern const dt_layer_kind dti_sinks_kind;

/* What branches of a block give, a and b, together: terms of a sum, which `point` reduces when it
 * is left; by a plan of the user's that sums one of them alone each by itself. */
dt_tensor *dti_decoder_join(dt_tape *t, const dt_layer *point, dt_tensor *a, dt_tensor *b);

/* Layer norms without a bias; RMS norms of rows that ranks may have pieces of, rounded once. */
extern const dt_layer_kind dti_plain_layer_norm_kind, dti_row_norm_kind;

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

/* The same of the text part of models that see images. */
extern const char *const dti_wrapped_ignored[];
extern const dt_spelling dti_wrapped_spellings[];

/* An architecture of this family: its model_type, the classes of model and block as Transformers
 * names them, and its read_config(). What is given behind these overrides: of a text part
 * DTI_WRAPPED. */
#define DTI_DECODER_ARCH(type, class, block_class_, read, ...)                                \
    {                                                                                         \
        .size = sizeof(dt_arch), .model_type = (type), .class_name = (class),                 \
        .self_bytes = sizeof(dti_decoder), .read_config = (read),                             \
        .add_layers = dti_decoder_add_layers, .prepare = dti_decoder_prepare,                 \
        .embed = dti_decoder_embed, .tables = dti_decoder_tables, .block = dti_decoder_block, \
        .head = dti_decoder_head, .release = dti_decoder_release, .turn = dti_decoder_turn,   \
        .repeats = dti_decoder_repeats, .block_class = (block_class_),                        \
        .unlaid = dti_decoder_unlaid, __VA_ARGS__                                             \
    }
#define DTI_LAYERS .blocks = "model.layers.*", .ignored = dti_decoder_ignored
#define DTI_PLAIN  DTI_LAYERS, .spellings = dti_decoder_spellings
#define DTI_WRAPPED \
    .blocks = "model.layers.*", .spellings = dti_wrapped_spellings, .ignored = dti_wrapped_ignored

#endif
