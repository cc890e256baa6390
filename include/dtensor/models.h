/* SPDX-License-Identifier: Apache-2.0
 *
 * Models from Hugging Face checkpoint folders: load them onto a mesh, run them, save them. What is
 * made of their logits is in <dtensor/generation.h>. */
#ifndef DT_MODELS_H
#define DT_MODELS_H

#include <dtensor/policy.h>
#include <dtensor/weights.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A loaded model: layers with their parameters, each rank holding its shards. */
typedef struct dt_model dt_model;

/* The KV caches of a batch of sequences, and how long they are. */
typedef struct dt_state dt_state;

enum { DT_MAX_EOS = 32 };

/* What a checkpoint's config.json says, in the terms all architectures share. */
typedef struct dt_model_info {
    char model_type[32]; /* "llama", "qwen2", "gpt_neo", ... */
    dt_dtype dtype;      /* of the checkpoint's weights, as config.json or the file says */
    int64_t vocab_size;
    int64_t hidden_size;
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t max_positions; /* longest sequence */
    bool tied;             /* the head shares the embedding's weight */
    bool packed;           /* linear layers have weights of 8 or 4 bits, which have no gradients */
    int32_t bos;           /* -1: none */
    int n_eos;             /* -1: generation_config.json cannot be read */
    int32_t eos[DT_MAX_EOS];
    int64_t cached; /* numbers that a token leaves in the caches of all layers; 0: a key and a value
                     * of each kv head in each layer */
    int64_t carried_bytes; /* that layers carry of a text besides, however long it is, at most:
                            * counted as if all were f32 */
} dt_model_info;

typedef struct dt_load_options {
    size_t size;         /* sizeof(dt_load_options) */
    bool keep_dtype;     /* compute in the checkpoint's dtype; default */
    dt_dtype dtype;      /* otherwise in this one: f32, bf16 or f16 */
    const char *dim;     /* mesh dim that the styles speak of; default "tp" */
    const dt_plan *plan; /* over the architecture's built-in plan; NULL: the plan that config.json
                          * holds, if there is one and tokens are not cut; one without rules: the
                          * built-in plan alone */
    dt_progress_fn progress; /* bytes of the whole model */
    void *progress_arg;
    bool sequence_parallel; /* the built-in plan with tokens cut over `dim` between blocks */
    const dt_policy *const *policies; /* a list of policies; their rules come before the plan's */
    int n_policies;
    const char *batch_dim;   /* mesh dims that batches are cut over, outer ones first: those of the
                            * list that the mesh has and whose styles lay out no values; default
                            * "dp,dp_replicate,dp_shard". NULL: none, each rank has all sequences */
    const char *plan_name;   /* in the place of `plan`: one that the architecture has by name, as
                            * "nemo" (dt_named_plan_at()); or NULL */
    const char *fully_shard; /* mesh dims, "dp" or "dp_shard", over which every layer's parameters
                              * are cut beside the plan (style "fully_shard"); batches may be cut
                              * over the same dims. NULL: none */
    const char *weights;   /* linear layers become layers of packed weights: "int8" or "int4", then
                            * words: "group=64" inputs that have a scale in common (default 128;
                            * less where the inputs ask for it), "asymmetric" (with zero points),
                            * "head" (it too, unless it shares the embedding's weight),
                            * "keep=PATTERN" layers that stay as they are (more than once). NULL: as
                            * they are */
    const char *offload;   /* where the parameters lie that are fully sharded: dt_layers_offload();
                            * NULL: with the others */
    const char *stage_dim; /* mesh dim over which the model is cut to the stages of a pipeline, if
                            * there is one; default "pp" */
    int n_stages;          /* a multiple of its ranks; 0: one for each */
    const char *stages;    /* how many blocks each has, "4,4,3,3"; the first has the embedding as
                            * well and the last the head, and may have no block. NULL: so that the
                            * busiest does least, then the largest holds least */
    bool stages_turn; /* stages run to and fro: of p ranks the one with stage s has 2 p - 1 - s too,
                       * as the schedules "zbv" and "dualpipev" want it; else s + p */
} dt_load_options;

#define DT_LOAD_OPTIONS_INIT                                                           \
    {                                                                                  \
        sizeof(dt_load_options), true, DT_F32, "tp", NULL, NULL, NULL, false, NULL, 0, \
            "dp,dp_replicate,dp_shard", NULL, NULL, NULL, NULL, "pp", 0, NULL, false   \
    }

/**
 * Reads what a checkpoint folder is, without reading weights and without a runtime: config.json is
 * parsed, every tensor that the model needs is looked up and its shape checked.
 *
 *   n_params, bytes  of the checkpoint's tensors that the model uses; may be NULL
 *
 * Not collective.
 * Errors      DT_ERR_IO           a file cannot be read
 *             DT_ERR_FORMAT       malformed JSON or safetensors, missing tensor, wrong shape
 *             DT_ERR_UNSUPPORTED  unknown architecture, unread quantised weights or variant
 */
DT_API DT_MUST_USE dt_status dt_model_inspect(const char *dir, dt_model_info *info,
                                              int64_t *n_params, int64_t *bytes);

/**
 * Reads what only generation needs: generation_config.json, which says what ends a text. Where
 * there is none config.json does. dt_model_inspect() and dt_model_load() go on without a file that
 * cannot be read, because logits do not need it; dt_generate() then wants ignore_eos.
 *
 *   info  as dt_model_inspect() gave it; its n_eos and eos are settled
 *
 * Not collective.
 * Errors      DT_ERR_ARG, DT_ERR_IO, DT_ERR_FORMAT, DT_ERR_UNSUPPORTED (too many tokens)
 */
DT_API DT_MUST_USE dt_status dt_model_inspect_generation(const char *dir, dt_model_info *info);

/**
 * Judges whether a model can run on a mesh under the plan of the options: config.json is read, the
 * layers are laid out, and passes over a prompt and over one new token are made without bytes, on a
 * dry copy of the mesh. What fails then would fail in a run. No file of weights is looked at.
 *
 *   mesh     of a run, or of a dry runtime for any number of ranks
 *   options  as for dt_model_load(); NULL for defaults
 *
 * Collective  no communication; all ranks find the same.
 * Errors      as dt_model_inspect() for config.json; those of dt_layers_create(); DT_ERR_LAYOUT or
 *             DT_ERR_SHAPE for styles that do not fit together. The message names the plan's source
 *             and rule, a parameter with its sizes, the mesh dim, and styles or sizes that fit.
 */
DT_API DT_MUST_USE dt_status dt_model_check(dt_mesh *mesh, const char *dir,
                                            const dt_load_options *options);

/**
 * dt_model_check() without ranks: on a dry mesh that is made for it, with the architectures, styles
 * and operators of `rt`.
 *
 *   rt    a runtime with registries, of a run or dry; NULL: the built-in ones alone
 *   mesh  "dp=2,tp=4", as for dt_mesh_create()
 *
 * Collective  no.
 * Errors      as dt_model_check() and dt_mesh_create()
 */
DT_API DT_MUST_USE dt_status dt_model_check_dry(dt_runtime *rt, const char *dir, const char *mesh,
                                                const dt_load_options *options);

/**
 * Whether a load would use every dim of a mesh, before there is one, and over how many of its ranks
 * batches would be cut.
 *
 *   mesh         "dp=2,tp=4", as for dt_mesh_create()
 *   options      as for dt_model_load(); NULL for defaults
 *   batch_ranks  ranks along the dim that cuts batches, 1 without one; may be NULL
 *
 * Not collective.
 * Errors      DT_ERR_ARG  NULL; `mesh` is no mesh; nothing uses one of its dims of several ranks
 */
DT_API DT_MUST_USE dt_status dt_load_check_mesh(const char *mesh, const dt_load_options *options,
                                                int64_t *batch_ranks);

/**
 * Loads a model from a Hugging Face folder (config.json and model.safetensors, or its sharded
 * index). The plan is judged as by dt_model_check() before weights are read, by the first rank of
 * the mesh, whose answer holds for all; every rank reads only its slices.
 *
 *   mesh  layers are cut over the dim "tp", batches over "dp" and those like it (options.dim,
 *         batch_dim); a plan may name more dims. One of several ranks that nothing uses is refused.
 *         On a mesh of a dry runtime parameters have no bytes and only config.json is needed; if
 *         there are weights, their headers are read
 *
 * Collective  every rank of the mesh calls it with the same options, and for the same files.
 * Ownership   *out is released with dt_model_release().
 * Errors      as dt_model_inspect() and dt_model_check(); DT_ERR_ARG, also where ranks have other
 *             files; DT_ERR_MEMORY; DT_ERR_COMM;
 *             DT_ERR_FORMAT also for weights beyond 65504, the largest number of f16, where that is
 *             the dtype asked for; DT_ERR_DEVICE
 */
DT_API DT_MUST_USE dt_status dt_model_load(dt_mesh *mesh, const char *dir,
                                           const dt_load_options *options, dt_model **out);

/**
 * A model with random weights, from config.json alone: to run and measure a shape without its
 * checkpoint. Matrices and biases are normal with deviation 0.02 (Transformers' initializer_range),
 * norms are ones; a seed gives the same model on every mesh and device. It computes what the
 * checkpoint would, in the same time, and says nothing sensible.
 *
 *   dir      a folder with config.json; weights that lie there are not looked at
 *   options  as for dt_model_load(); a dtype that neither they nor the configuration name is f32
 *
 * Collective  every rank of the mesh calls it with the same options and seed.
 * Ownership   *out is released with dt_model_release().
 * Errors      as dt_model_load() without those of weights
 */
DT_API DT_MUST_USE dt_status dt_model_create_random(dt_mesh *mesh, const char *dir,
                                                    const dt_load_options *options, uint64_t seed,
                                                    dt_model **out);
DT_API void dt_model_release(dt_model **model); /* accepts NULL */

/**
 * Saves a model as a Hugging Face folder: weights in one safetensors file, or in several with their
 * index; config.json, generation_config.json and the tokenizer's files from the folder that it was
 * loaded from. Every rank writes what it owns, each byte is written once, tied weights are stored
 * once. Values that keep their dtype keep their bits; others round to nearest even.
 *
 * Files come to be as dt_layers_write() says.
 *
 *   dir  made if it is not there (its parent has to be); must hold no weights, in whatever format,
 *        and no other model's configuration or tokenizer. On several hosts all of them see it
 *
 * Collective  every rank of the model's mesh, with the same arguments. Outsiders do nothing.
 * Errors      DT_ERR_ARG  `dir` holds weights, or another model's files, already; a dry model;
 *                         options that make no sense; numbers beyond 65504 to be saved as f16
 *             DT_ERR_UNSUPPORTED  the model is the text part of a multimodal checkpoint, or has
 *                                 experts that files hold transposed
 *             DT_ERR_IO   a file cannot be written, or another save writes into `dir`: what was
 *                         begun is removed again; a file to be copied is a link out of its folder
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_model_save(dt_model *model, const char *dir,
                                           const dt_save_options *options);

/**
 * What dt_model_save() would refuse of its folder, before a model is loaded: `dir` cannot be
 * written, or holds weights; and what lies in `from` beside its weights cannot be read, or would
 * take the place of another model's files.
 *
 *   from   the folder that the model will be loaded from; NULL: only `dir` is looked at
 *   dir    NULL: only `from` is
 *   dtype  that will be saved
 *
 * Not collective.
 * Errors      as dt_model_save()
 */
DT_API DT_MUST_USE dt_status dt_save_check(const char *from, const char *dir, dt_dtype dtype);

/** Bytes of what caches hold of n tokens, on all ranks together where none has what another has:
 * dt_model_info.cached, in the dtype that the model computes in. Not collective. Errors: none. */
DT_API int64_t dt_model_cache_bytes(const dt_model_info *info, dt_dtype dtype, int64_t n_tokens);

/* Queries. Not collective, no errors. */
DT_API const dt_model_info *dt_model_info_of(const dt_model *model); /* dtype: the run's */
DT_API dt_layers *dt_model_layers(const dt_model *model);
DT_API dt_mesh *dt_model_mesh(const dt_model *model);
DT_API int dt_model_n_stages(const dt_model *model);               /* 1: it is in one piece */
DT_API int dt_model_stage_place(const dt_model *model, int stage); /* of its ranks on stage_dim */
DT_API dt_mesh *dt_model_stage_mesh(const dt_model *model); /* of this rank's stages; borrowed */
DT_API int64_t dt_model_local_bytes(const dt_model *model); /* weights on this rank */

/**
 * Empty KV caches for `batch` sequences of up to `capacity` tokens. Over the mesh dim that cuts
 * batches each rank has caches of its part of the sequences, the first of them some more; a rank
 * may have none, and then computes nothing.
 *
 * Collective  no communication; every rank makes the same.
 * Ownership   *out is released with dt_state_release(); it keeps the model alive until then.
 * Errors      DT_ERR_ARG     batch or capacity below 1, capacity above the model's max_positions
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_state_create(dt_model *model, int64_t batch, int64_t capacity,
                                             dt_state **out);
DT_API void dt_state_release(dt_state **state);        /* accepts NULL */
DT_API int64_t dt_state_length(const dt_state *state); /* tokens seen; the longest's */

/**
 * Lets the caches of a new state begin with room for `first` tokens, and grow as they fill: each
 * time they get twice the room, up to the state's capacity. For a conversation, whose length nobody
 * knows, in a model whose whole context may be more than there is memory. A state that has seen
 * tokens stays as it is.
 *
 * Collective  no communication; every rank makes the same call.
 * Errors      none; passes that need room then have DT_ERR_MEMORY, and DT_ERR_UNSUPPORTED under a
 *             plan that cuts the tokens of caches
 */
DT_API void dt_state_grow_from(dt_state *state, int64_t first);

/** Where a device can, passes over one token per sequence are recorded once and then played, which
 * costs the host one launch; on: they may be, which is the default. Whether the next of them will
 * be played. Every rank makes the same call. Not collective. Errors: none. */
DT_API void dt_state_set_recording(dt_state *state, bool on);
DT_API bool dt_state_is_recorded(const dt_state *state);

/* Forgets tokens from `length` on; all of them in a model whose layers carry state, which knows no
 * earlier token. Not collective, no errors. */
DT_API void dt_state_rewind(dt_state *state, int64_t length);

/**
 * Keeps what the state has read of these ids and forgets the rest: of a prompt that begins as the
 * last one did, or goes on where its answer ended, only the end has to be read. The next pass
 * begins at ids[returned].
 *
 *   ids  [n_ids] what the sequence will have read after the next pass, which needs one token: at
 *        most n_ids - 1 of them are kept
 *
 * Returns how many are kept. None are where keys that were read before do not fit a sequence of
 * another length (dynamic rotary scaling beyond its limit), where layers carry state that has read
 * more, of a state of several sequences, of a dry one, and if an argument is NULL. Logits are those
 * of reading everything as far as arithmetic allows: passes of one token and of many round
 * differently.
 *
 * Collective  no communication; every rank makes the same call.
 * Errors      none
 */
DT_API int64_t dt_state_keep(dt_state *state, const int32_t *ids, int64_t n_ids);

/* Asked before each layer of a pass over several tokens; false breaks it off. */
typedef bool (*dt_go_on_fn)(void *arg);

/** Who hears of a state's passes over several tokens: how many layers are done of how many; and who
 * may break such a pass off, by the same answer on every rank, as one that failed, with
 * DT_ERR_ARG. NULL: nobody. Not collective. Errors: none. */
DT_API void dt_state_set_progress(dt_state *state, dt_progress_fn progress, void *arg);
DT_API void dt_state_set_go_on(dt_state *state, dt_go_on_fn go_on, void *arg);

/* Shown hidden states x [batch, tokens, hidden] before layer i = 0, 1, ..., and with i the number
 * of layers what leaves the last one, before the last norm; they are the tape's, lying as the plan
 * says. */
typedef void (*dt_hidden_fn)(void *arg, dt_tape *tape, int64_t i, dt_tensor *x);

/** Who sees hidden states of a state's passes; of a model in stages each rank those of its own
 * layers. NULL: nobody. Not collective; the function is called on every rank. Errors: none. */
DT_API void dt_state_set_hidden(dt_state *state, dt_hidden_fn see, void *arg);

/* Tokens that one sequence of the batch has seen; 0 for a number out of range. Not collective, no
 * errors. */
DT_API int64_t dt_state_length_of(const dt_state *state, int64_t sequence);

/**
 * Says how many leading tokens of each sequence are padding in the next pass: sequences of
 * different lengths are padded on the left, so that their last tokens stand together. Padding is
 * seen by no token and counts for no position; each sequence gets the logits that it gets alone.
 *
 *   n_pads  [batch], each less than the tokens of that pass
 *
 * Collective  no communication; every rank says the same.
 * Errors      DT_ERR_ARG          NULL or a negative number
 *             DT_ERR_UNSUPPORTED  padding, where layers carry state
 */
DT_API DT_MUST_USE dt_status dt_state_pad(dt_state *state, const int64_t *n_pads);

typedef enum dt_logits_rows { DT_LOGITS_ALL, DT_LOGITS_LAST } dt_logits_rows;

/**
 * Runs n_tokens new tokens per sequence through the model after those that the state has seen.
 *
 *   ids  [batch, n_tokens] row-major, the same on every rank; on a dry mesh not looked at
 *
 * Returns logits [batch, n_tokens or 1, vocab] in the model's dtype, cut over the batch (see
 * dt_state_create()) and over the vocabulary as the plan says, borrowed from the tape; NULL after
 * an error. The state grows by n_tokens.
 *
 * A model with longrope scaling runs a sequence that grows past the length of its short factors
 * once again from the first token, since all its keys rotate otherwise then.
 *
 * Collective  over the model's mesh.
 * Errors      latched: DT_ERR_ARG for n_tokens below 1, ids outside the vocabulary or no room in
 *             the state; those of operators
 */
DT_API dt_tensor *dt_model_forward(dt_tape *tape, dt_model *model, dt_state *state,
                                   const int32_t *ids, int64_t n_tokens, dt_logits_rows rows);

/**
 * The two halves of dt_model_forward(), for a model in stages: the first runs what this rank has of
 * the model and hands it on, the second waits for the logits. Between them passes of other states
 * may begin, so that all stages have something to do. Of a model in one piece the first half does
 * all there is. Each state has one pass under way at most, and so has each tape.
 *
 *   begin(tape0, state0), begin(tape1, state1);
 *   for (;;) for each i: logits = end(tape i, state i), choose, begin(tape i, state i)
 *
 * Long prompts go through the stages in chunks, one after the other: with the same bits, but for
 * what dt_run_options.products allows.
 *
 * Collective  over the model's mesh, in the same order; the second half goes on by itself.
 * Errors      latched: as dt_model_forward(), and DT_ERR_ARG for a second pass of a state, and for
 *             an end without a begin on this tape
 */
DT_API void dt_model_forward_begin(dt_tape *tape, dt_model *model, dt_state *state,
                                   const int32_t *ids, int64_t n_tokens, dt_logits_rows rows);
DT_API dt_tensor *dt_model_forward_end(dt_tape *tape, dt_model *model, dt_state *state);

/** In how many groups, each with a state of its own, a batch of sequences keeps all stages busy; 1
 * for a model in one piece. Not collective. Errors: none. */
DT_API int dt_model_groups(const dt_model *model, int64_t batch);

#ifdef __cplusplus
}
#endif

#include <dtensor/generation.h> /* it has stood here before it had a header of its own */

#endif
