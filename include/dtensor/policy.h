/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies: plans in the words of Parallelformers. A policy names the weights of one class of block
 * by what they are for (attention's inputs and output, the MLP's inputs and output); from that
 * follows how they are cut. It is a second front to the same plan: before a weight is read it is
 * resolved to rules "pattern -> style", is judged as a plan is, and mixes with one. Layers that a
 * policy does not name keep the style of the model's built-in plan. docs/policies.md */
#ifndef DT_POLICY_H
#define DT_POLICY_H

#include <dtensor/parallel_styles.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parallelformers' Layer: one weight of a block. Paths begin at the block and end in the name of
 * the parameter; "layer[0].q.weight" and "layer.0.q.weight" are the same path. */
typedef struct dt_policy_layer {
    const char *weight;  /* "self_attn.q_proj.weight"; NULL if only a bias is named */
    const char *bias;    /* "self_attn.q_proj.bias", or NULL; the bias goes with its weight anyway:
                          * cut with the outputs, or whole and added once after the sum */
    int n_fused;         /* areas side by side in the axis that is cut, q|k|v: 3; 0 and 1: one. They
                          * may be of different sizes. The architecture knows them and compares */
    bool reversed;       /* the file holds [in, out], as GPT-2's Conv1D does; compared too */
    bool ignore_checker; /* a path that is not there is no error; nor, with n_fused 0, are areas */
    const char *replace; /* the style that takes the layer's place; NULL: "colwise" in attn_qkv and
                          * mlp_in, "rowwise" in attn_out and mlp_out, or its form for tokens that
                          * are cut between blocks ("rowwise_reduce_scatter"), or those for areas
                          * ("packed_colwise", "packed_rowwise") */
} dt_policy_layer;

typedef struct dt_policy_layers {
    const dt_policy_layer *layers;
    int n;
} dt_policy_layers;

/* The list that an array is: { DT_POLICY_LIST(my_layers) }. */
#define DT_POLICY_LIST(array) (array), (int)(sizeof(array) / sizeof((array)[0]))

/* A computation that takes the place of a layer's own; see dt_layer_set_forward(). */
typedef struct dt_policy_module {
    const char *name; /* a kind of layer, "linear", "embedding", "rms_norm", "layer_norm", of the
                       * policy's blocks; or the path of a layer in the block: "mlp.down_proj" */
    dt_layer_fn forward;
    void *arg; /* handed to `forward` on every rank */
} dt_policy_module;

/* The configuration of a model while a policy may change it. */
typedef struct dt_arguments dt_arguments;

typedef struct dt_policy dt_policy;

struct dt_policy {
    size_t size;      /* sizeof(dt_policy) */
    const char *name; /* for messages; NULL: its original_layer_class */

    /* The class of block that it is for, as Transformers calls it ("LlamaDecoderLayer"), or the
     * names of the blocks as a pattern ("model.layers.*"). */
    const char *original_layer_class;

    dt_policy_layers attn_qkv; /* cut over their outputs, in whole heads */
    dt_policy_layers attn_out; /* cut over their inputs; the sum is reduced, the bias stays whole */
    dt_policy_layers mlp_in;   /* cut over their outputs */
    dt_policy_layers mlp_out;  /* cut over their inputs */

    /* Computations that take the place of layers' own. */
    const dt_policy_module *replace_modules;
    int n_replace_modules;

    /* Changes the configuration by dt_arguments_set...() before layers are built; NULL: nothing.
     * Called several times with several sizes: a plan is judged on other meshes too. */
    dt_status (*replace_arguments)(const dt_policy *policy, dt_arguments *arguments,
                                   int world_size);
    const void *user; /* the policy's own */
};

/**
 * A whole number of the configuration: a key of config.json, "num_attention_heads", or, where the
 * file leaves it out, the value that the architecture takes. `key` may be a path,
 * "rope_scaling.factor"; of a multimodal folder keys are those of its text part, for the functions
 * that set as well, and "text_config.num_attention_heads" is the same.
 *
 * Collective  no.
 * Errors      DT_ERR_ARG  no such key, or it is no whole number
 */
DT_API DT_MUST_USE dt_status dt_arguments_get(const dt_arguments *arguments, const char *key,
                                              int64_t *value);

/**
 * Changes an argument. `path` is one of two things:
 *
 *   a key of config.json ("rope_theta", "rope_scaling.factor"): the model is built with that value.
 *   It is global, as the file is. A key that the architecture does not read is an error, and so is
 *   a size that the weights do not have.
 *
 *   an attribute of a module of the block ("self_attn.num_heads", "mlp.intermediate_size"): what
 *   one rank holds, as Parallelformers' policies say it. Ranks know that from the cut of the
 *   weights, so the value is checked, not used; one that the cut contradicts is an error that says
 *   what the ranks hold.
 *
 * Collective  no; every rank says the same.
 * Errors      DT_ERR_ARG     NULL; a path that is neither, an attribute that is not known; when the
 *                            model is built: a key that the architecture does not read, a value
 *                            that the cut contradicts
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_arguments_set(dt_arguments *arguments, const char *path,
                                              int64_t value);

/** dt_arguments_set() of a key whose value is a number, a truth, a text. */
DT_API DT_MUST_USE dt_status dt_arguments_set_number(dt_arguments *arguments, const char *path,
                                                     double value);
DT_API DT_MUST_USE dt_status dt_arguments_set_bool(dt_arguments *arguments, const char *path,
                                                   bool value);
DT_API DT_MUST_USE dt_status dt_arguments_set_text(dt_arguments *arguments, const char *path,
                                                   const char *value);

/**
 * The library's own policy for an architecture (AutoPolicy): its attention and MLP, cut as the
 * built-in plan cuts them.
 *
 *   name  "llama", "LlamaForCausalLM" or "LlamaDecoderLayer"
 *
 * Collective  no.
 * Ownership   borrowed; it lives as long as the program.
 * Errors      DT_ERR_ARG  no policy of that name; the message lists those there are
 */
DT_API DT_MUST_USE dt_status dt_policy_find(const char *name, const dt_policy **out);

#ifdef __cplusplus
}
#endif
#endif
