/* SPDX-License-Identifier: Apache-2.0
 *
 * Architectures: what the library needs to run a kind of model from its checkpoint folder. The
 * built-in ones are made of what is here; a program may register its own. An architecture reads its
 * keys of config.json, lists its layers as rows of a table, and computes one pass as an expression
 * over a tape. It never asks how many ranks there are. docs/adding_a_model.md walks through one. */
#ifndef DT_ARCHITECTURES_H
#define DT_ARCHITECTURES_H

#include <dtensor/config.h>
#include <dtensor/models.h>
#include <dtensor/ops.h>
#include <dtensor/weights.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Configuration -------------------------------------------------------------------------- */

/* Values where config.json has none, and how it spells some keys. */
typedef struct dt_config_defaults {
    int64_t vocab;          /* vocab_size */
    int64_t hidden;         /* hidden_size */
    int64_t layers;         /* num_hidden_layers */
    int64_t heads;          /* num_attention_heads */
    int64_t kv_heads;       /* num_key_value_heads; 0: as many as heads */
    int64_t head_dim;       /* 0: hidden / heads */
    int64_t positions;      /* max_position_embeddings */
    bool tied;              /* tie_word_embeddings */
    int32_t bos, eos;       /* bos_token_id, eos_token_id; 0: none */
    bool plain_heads;       /* knows neither num_key_value_heads nor head_dim */
    const char *layers_key; /* NULL: num_hidden_layers, which is read too where this is absent */
    const char *heads_key;  /* NULL: num_attention_heads, which is read too; so of the following */
    const char *hidden_key; /* NULL: hidden_size */
    const char *kv_heads_key;  /* NULL: num_key_value_heads */
    const char *positions_key; /* NULL: max_position_embeddings */
} dt_config_defaults;

/**
 * Reads the keys that all decoders share into `info` (all but its model_type) and refuses quantised
 * checkpoints.
 *
 * Not collective.
 * Errors      DT_ERR_FORMAT, DT_ERR_UNSUPPORTED: file, key, what is there and what must be
 */
DT_API DT_MUST_USE dt_status dt_config_decoder(const dt_config *config,
                                               const dt_config_defaults *defaults,
                                               dt_model_info *info);

/**
 * One key: `fallback` where it is absent; null is refused, as Transformers 5 refuses it. A number
 * may be written as an integer.
 *
 * Not collective.
 * Ownership   a string lives as long as read_config() runs.
 * Errors      DT_ERR_FORMAT  of another kind or outside of min .. max; says file, key and value
 *             DT_ERR_ARG     config, key or out is NULL
 */
DT_API DT_MUST_USE dt_status dt_config_int(const dt_config *config, const char *key,
                                           int64_t fallback, int64_t min, int64_t max,
                                           int64_t *out);
DT_API DT_MUST_USE dt_status dt_config_number(const dt_config *config, const char *key,
                                              double fallback, double min, double max, double *out);
DT_API DT_MUST_USE dt_status dt_config_bool(const dt_config *config, const char *key, bool fallback,
                                            bool *out);
DT_API DT_MUST_USE dt_status dt_config_string(const dt_config *config, const char *key,
                                              const char *fallback, const char **out);

/**
 * Refuses a key of config.json: "FILE: KEY is WHAT IT IS, must be WHAT". Returns `code`.
 *
 * Not collective.
 * Errors      it is one
 */
DT_API dt_status dt_config_refuse(const dt_config *config, const char *key, dt_status code,
                                  const char *what);

/**
 * The activation that a configuration names ("hidden_act", "hidden_activation", ...): any of
 * Transformers' but those with weights of their own (dt_activation_at() lists them).
 *
 *   fallback  its name where the key is missing
 *
 * Not collective.
 * Errors      those of dt_config_string(); DT_ERR_UNSUPPORTED for another name, listing the names
 */
DT_API DT_MUST_USE dt_status dt_config_activation(const dt_config *config, const char *key,
                                                  const char *fallback, const dt_activation **out);

/** Full causal attention of the heads of `info`, scores times 1 / sqrt(head_dim). Not collective.
 * Errors: none. */
DT_API dt_attention_options dt_config_attention(const dt_model_info *info);

/* --- Layers as rows ------------------------------------------------------------------------- */

/* An axis of a weight, and the keys of config.json that its extent comes from, for messages. */
typedef struct dt_extent {
    int64_t extent;
    dt_axis_unit unit;
    const char *keys; /* "intermediate_size", "num_attention_heads * head_dim" */
} dt_extent;

/* One layer of a block: the field (a dt_layer *) of the caller's struct that will point to it, its
 * name in the checkpoint after the block's, and what it is. Axes of a weight [out, in]; a norm has
 * one, a point none. */
typedef struct dt_layer_row {
    size_t field;
    const char *name;
    const dt_layer_kind *kind;
    dt_extent out;
    dt_extent in;
    bool bias;           /* it has the parameter called so, where its kind leaves that open */
    const char *style;   /* in the architecture's own plan, on the mesh dim that options name */
    const char *tied_to; /* full name of an earlier layer with the same weight, or NULL */
} dt_layer_row;

/* What all rows of an architecture share. */
typedef struct dt_row_settings {
    dt_head_counts heads; /* of axes that count heads */
    float eps;            /* of norms */
} dt_row_settings;

typedef struct dti_builder dt_builder; /* collects rows */

/** Sets what the rows added from now on share. Not collective. Errors: none. */
DT_API void dt_builder_settings(dt_builder *builder, const dt_row_settings *settings);

/**
 * Adds rows: "prefix.name", or "name" with an empty prefix. Their fields are set when the model's
 * layers are made, before prepare().
 *
 *   block  the struct that holds the fields; it must not move afterwards
 *
 * Not collective.
 * Errors      DT_ERR_ARG  NULL, a row without a name
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_builder_add(dt_builder *builder, const char *prefix,
                                            const dt_layer_row *rows, int n, void *block);

/**
 * The layer added last whose name ends with `name`, to say more of it than a row does: that its
 * axes are made of blocks (q | k | v in one weight), that files hold it transposed.
 *
 * Not collective.
 * Ownership   the builder's; valid until the next row is added.
 * Errors      none; NULL if there is no such layer
 */
DT_API dt_layer_spec *dt_builder_spec(dt_builder *builder, const char *name);

/* --- One pass ------------------------------------------------------------------------------- */

/* What the functions of a pass are given. */
typedef struct dt_model_pass {
    dt_tensor *ids;       /* [batch, tokens] i32 */
    dt_tensor *positions; /* [batch, tokens] i32 */
    int64_t length;       /* of the sequences, with these tokens */
    dt_logits_rows rows;
    int64_t n_layers;
    struct dti_kv *kv; /* of all layers: dt_cached_attention(); NULL: the sequences are whole */
    dt_progress_fn progress; /* of a pass over a prompt: layers done, for who waits; or NULL */
    void *progress_arg;
    dt_go_on_fn go_on; /* asked before each layer of such a pass, by every rank alike: false
                               * breaks it off, and the state stays as it was; NULL: always */
    void *go_on_arg;
    dt_tensor *segments; /* of sequences made of documents: what dt_attention() sees as such, for
                          * dt_cached_attention(); positions count in documents then. Or NULL */
    dt_tensor *rows_of;  /* [batch, tokens] i32: 0, 1, ... along each sequence; with segments */
    dt_hidden_fn see;    /* shown what enters each layer and what leaves the last one; or NULL */
    void *see_arg;
    const struct dti_paged *paged; /* each row is one token of some sequence, whose keys lie in
                                    * blocks: dt_cached_attention() knows; or NULL */
} dt_model_pass;

/**
 * Attention of new tokens to all that the state has seen: k and v go into the cache of layer
 * number `layer` at their positions, q attends to the cache up to its own position, heads are
 * joined.
 *
 *   q        [batch, tokens, heads, head_dim]; k, v with the kv heads: from dt_heads(). Where v is
 *            k itself one cache has both
 *   layer    0 .. n_layers - 1, each once per pass
 *
 * Returns [batch, tokens, heads * head_dim], borrowed from the tape; NULL after an error.
 *
 * Collective  no communication.
 * Errors      latched: those of dt_kv_write() and dt_attention(); DT_ERR_MEMORY
 */
DT_API dt_tensor *dt_cached_attention(dt_tape *tape, const dt_model_pass *pass, int64_t layer,
                                      dt_tensor *q, dt_tensor *k, dt_tensor *v,
                                      const dt_attention_options *options);

/* State number `state` of a layer, which its kind says to have slots (dt_kind_state). */
typedef struct dt_carried {
    const dt_layer *layer;
    int state;
} dt_carried;

/**
 * Linear attention of new tokens behind all that the state has seen: dt_causal_conv() of x, and
 * dt_gated_delta(), whose `state` is not looked at. What they leave the next pass goes on from: of
 * each sequence of a batch, or in the slot of each one of an engine.
 *
 *   x     [batch, tokens, channels], the state [window, channels]; w [channels, window + 1]
 *   rule  as for dt_gated_delta(); the state [heads, group, key columns, value columns]
 *
 * Collective  as dt_layer_state().
 * Errors      latched: DT_ERR_ARG NULL, those of the operators and of dt_layer_state()
 */
DT_API dt_tensor *dt_carried_conv(dt_tape *tape, const dt_model_pass *pass, dt_carried of,
                                  dt_tensor *x, dt_tensor *w);
DT_API dt_tensor *dt_carried_delta(dt_tape *tape, const dt_model_pass *pass, dt_carried of,
                                   const dt_delta *rule);

enum { DT_MAX_TABLES = 4 };

/* What a block is given. x is all that passes from one to the next. The tables are what all blocks
 * of a pass share, and follow from ids and positions alone: who has some of the blocks makes them
 * anew instead of being sent them. */
typedef struct dt_flow {
    dt_tensor *x;                     /* hidden states [batch, tokens, hidden_size] */
    dt_tensor *tables[DT_MAX_TABLES]; /* as tables() made them */
} dt_flow;

/* Where a pass is: the context of the points that frame what a block is made of (dt_layer_block()),
 * so that functions in the place of an attention get it by dt_layer_context(). */
typedef struct dt_block_context {
    const void *self; /* of the architecture */
    const dt_model_pass *pass;
    int64_t i; /* the block's number */
    const dt_flow *in;
} dt_block_context;

/* --- Rotary positions ----------------------------------------------------------------------- */

/* Frequencies in any of the variants of Transformers: default, linear, dynamic, llama3, yarn,
 * longrope. */
typedef struct dti_rope dt_rotary;

/**
 * Reads rope_theta with rope_scaling (Transformers 4) or rope_parameters (5). `info` is complete;
 * where scaling lets sequences be longer its max_positions grows.
 *
 * Not collective.
 * Ownership   *out is released with dt_rotary_release(), from the architecture's release().
 * Errors      DT_ERR_FORMAT, DT_ERR_UNSUPPORTED, DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_rotary_read(const dt_config *config, dt_model_info *info,
                                            dt_rotary **out);

/**
 * The default variant without a configuration: all columns of heads of `info` rotate, by theta.
 *
 * Not collective.
 * Ownership   as dt_rotary_read()
 * Errors      DT_ERR_ARG  NULL, a theta that is not above 0; DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_rotary_create(const dt_model_info *info, double theta,
                                              dt_rotary **out);

/**
 * Makes the frequencies known to all ranks; from prepare().
 *
 * Collective  no communication; every rank makes the same.
 * Errors      DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_rotary_prepare(dt_rotary *rotary, dt_mesh *mesh);

/** Cosines and sines of the pass's tokens for dt_rope(), in `dtype`. Not collective. Errors:
 * latched, those of dt_rope_table(). */
DT_API dt_tensor *dt_rotary_table(dt_tape *tape, const dt_rotary *rotary, const dt_model_pass *pass,
                                  dt_dtype dtype);

/** The longest sequence that longrope's short factors are for. Of dynamic scaling, minus the length
 * beyond which positions rotate otherwise with every token; 0 for all other variants. Not
 * collective. Errors: none. */
DT_API int64_t dt_rotary_turn(const dt_rotary *rotary);
DT_API void dt_rotary_release(dt_rotary **rotary); /* accepts NULL */

/* --- An architecture ------------------------------------------------------------------------ */

/* A plan that an architecture has by name, beside its built-in one. */
typedef struct dt_named_plan {
    const char *name;    /* "nemo" */
    const char *summary; /* what it is, in a line */
    dt_plan plan;
} dt_named_plan;

/* One architecture. Functions run on every rank alike; `self` is the architecture's own struct of
 * self_bytes, zeroed before read_config(). The order of calls is read_config, add_layers, prepare,
 * passes, release; release also follows an error in between.
 *
 * A pass is embed, tables, block for i = 0 .. n_layers - 1, head. The library calls them, each
 * block in a scope of its name, and takes the rows that logits are wanted of before the head. What
 * they return belongs to the tape; a block may return in->x. Scopes that they begin they end. */
typedef struct dt_arch {
    size_t size;             /* sizeof(dt_arch) */
    const char *model_type;  /* in config.json; at most 31 bytes */
    const char *class_name;  /* of Transformers, as in "architectures"; NULL: not compared */
    const char *text_config; /* key of config.json under which the keys stand; NULL: at its root */
    const char *layers_key;  /* how config.json calls the number of layers, for messages; NULL:
                              * num_hidden_layers */
    const dt_spelling *spellings; /* of names in files, tried in order after the rows' own; the
                                   * last has ours NULL; or NULL */
    const char *const *ignored;   /* tensors that files may hold and nobody needs: endings of names,
                                   * or with a "." at the end beginnings; NULL ends; or NULL */
    size_t self_bytes;
    dt_status (*read_config)(void *self, const dt_config *config, dt_model_info *info);
    dt_status (*add_layers)(void *self, const dt_model_info *info, dt_builder *builder);
    /* constants; info is final. NULL: none */
    dt_status (*prepare)(void *self, dt_mesh *mesh, const dt_model_info *info);
    /* x [batch, tokens, hidden_size] of ids (and positions) */
    dt_tensor *(*embed)(const void *self, dt_tape *tape, const dt_model_pass *pass);
    /* what all blocks share, into tables [DT_MAX_TABLES], which are NULL before: rotations of the
     * pass's positions. NULL: nothing */
    void (*tables)(const void *self, dt_tape *tape, const dt_model_pass *pass, dt_tensor **tables);
    /* x after block i */
    dt_tensor *(*block)(const void *self, dt_tape *tape, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in);
    /* logits [batch, rows, vocab_size] of x [batch, rows, hidden_size] */
    dt_tensor *(*head)(const void *self, dt_tape *tape, dt_tensor *x);
    void (*release)(void *self); /* of what self points to; NULL: nothing */
    const char *blocks;          /* names of blocks, * for i: "model.layers.*"; or NULL */
    const char *block_class; /* of blocks in Transformers, for policies: "LlamaDecoderLayer"; NULL:
                              * policies cannot speak of it */
    int64_t (*turn)(const void *self); /* the length beyond which all positions of a sequence
                                        * rotate otherwise, dt_rotary_turn(): one that grows past
                                        * it is run again from its first token. Below 0: minus the
                                        * length beyond which they rotate otherwise in each length,
                                        * see dt_state_keep(); NULL: none */
    bool (*repeats)(const void *self); /* whether a pass over one token applies the same
                                        * operators with the same attributes and constants whatever
                                        * its position, so a GPU may record it once; NULL: no */
    const dt_named_plan *plans; /* for dt_load_options.plan_name; the last has no name; or NULL */
    const char *const *unlaid;  /* modules that plans written elsewhere speak of and that have
                                 * nothing to lay out here ("model.rotary_emb"): a rule for one is
                                 * passed over; NULL ends; or NULL */
} dt_arch;

/**
 * The plans that an architecture has by name, i = 0, 1, ...: built in, or registered in `rt`, which
 * may be NULL.
 *
 * Not collective.
 * Errors      none; NULL behind the last, or if there is no such architecture
 */
DT_API const dt_named_plan *dt_named_plan_at(dt_runtime *rt, const char *model_type, int i);

/**
 * Adds an architecture to those that this runtime loads. The struct is copied; what it points to
 * must live as long as the runtime.
 *
 * Collective  no communication; every rank registers the same.
 * Errors      DT_ERR_ARG  NULL, a missing function, a model_type that is empty, too long or taken
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_arch_register(dt_runtime *rt, const dt_arch *arch);

/** The i-th architecture that this runtime loads, registered ones first; NULL behind the last. rt
 * may be NULL: the built-in ones. Not collective. Errors: none. */
DT_API const dt_arch *dt_arch_at(dt_runtime *rt, int i);

/**
 * A model without a folder: of an architecture in C, which need be neither registered nor able to
 * read a config.json. Its parameters have no values yet: dt_layers_init(), dt_layers_read() or
 * dt_layers_copy() on dt_model_layers() give them. After that it runs, generates and is saved as
 * any other; the plan is judged before, as by dt_model_load().
 *
 *   arch     lives as long as the model
 *   self     what read_config() would have left: arch->self_bytes, copied for each model that is
 *            made, also those without bytes that judge the plan. So it has plain values; what it
 *            points to is made in add_layers() and prepare()
 *   info     complete but for model_type; dtype is that of the run
 *   options  as for dt_model_load(); NULL for defaults. Policies are refused
 *
 * Collective  every rank of the mesh calls it with the same arguments.
 * Ownership   *out is released with dt_model_release().
 * Errors      DT_ERR_ARG  NULL, sizes below 1, an architecture that lacks a function
 *             those of add_layers(), dt_layers_create() and dt_model_check()
 */
DT_API DT_MUST_USE dt_status dt_model_create(dt_mesh *mesh, const dt_arch *arch, const void *self,
                                             const dt_model_info *info,
                                             const dt_load_options *options, dt_model **out);

/**
 * dt_model_inspect() with the architectures of a runtime.
 *
 * Not collective.
 * Errors      as dt_model_inspect()
 */
DT_API DT_MUST_USE dt_status dt_model_inspect_with(dt_runtime *rt, const char *dir,
                                                   dt_model_info *info, int64_t *n_params,
                                                   int64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
