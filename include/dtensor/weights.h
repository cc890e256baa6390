/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of layers: from a key, from safetensors files, from layers that lie otherwise. A model
 * needs no Hugging Face folder for them: a table of dt_layer_spec gives the layers
 * (dt_layers_create()), these functions give them their values.
 *
 * Names in files are those of the layers: layer "mlp.up" has tensors "mlp.up.weight" and
 * "mlp.up.bias". A tied weight is stored, read and initialised once, under the name of the layer
 * that owns it. */
#ifndef DT_WEIGHTS_H
#define DT_WEIGHTS_H

#include <dtensor/gradients.h>
#include <dtensor/parallel_styles.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Told on rank 0 of a run while something long goes on: how much of it is done, and all. */
typedef void (*dt_progress_fn)(void *arg, int64_t done, int64_t total);

/* Another way to write the beginning of a tensor's name: base models leave a prefix out, others
 * have more. With a "." before it, a part anywhere in the name, which may differ as well; these
 * stand behind those of beginnings. */
typedef struct dt_spelling {
    const char *ours;   /* "model."; ".mlp." */
    const char *theirs; /* ""; ".block_sparse_moe." */
} dt_spelling;

/* --- from a key ----------------------------------------------------------------------------- */

typedef enum dt_init_kind {
    DT_INIT_CONSTANT, /* a everywhere */
    DT_INIT_NORMAL,   /* mean a, deviation b */
    DT_INIT_UNIFORM,  /* in [a, b) */
    DT_INIT_FAN_IN    /* uniform within a / sqrt(n) of 0, n elements in a row: what one output sums
                       * over; with a 1 as PyTorch's nn.Linear begins */
} dt_init_kind;

/* Parameters whose name ("model.layers.3.mlp.up_proj.weight") matches `pattern` begin so: "*" is
 * any one component of a name, "**" any number of them. The first rule that matches counts. */
typedef struct dt_init_rule {
    const char *pattern;
    dt_init_kind kind;
    double a, b;
} dt_init_rule;

/**
 * Gives every parameter new values, each rank making its own pieces. An element depends on the
 * seed, the parameter's name and its global index alone: the same on every mesh, with every plan,
 * and whatever other layers there are.
 *
 *   dtype  of the parameters: f32, bf16 or f16
 *   rules  n_rules of them, may be NULL; what none matches begins as Transformers does: norms with
 *          1, biases with 0, everything else normal with deviation 0.02
 *
 * Collective  every rank of the mesh passes the same; no communication, but for weights that two
 *             stages of a pipeline share, which one of them gets from the other.
 * Errors      DT_ERR_ARG     NULL, a dtype that parameters do not have, an interval without values
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_layers_init(dt_layers *layers, dt_dtype dtype, uint64_t seed,
                                            const dt_init_rule *rules, int n_rules);

/* --- from files ----------------------------------------------------------------------------- */

typedef struct dt_read_options {
    size_t size;     /* sizeof(dt_read_options) */
    bool keep_dtype; /* as the file has them; default */
    dt_dtype dtype;  /* otherwise in this one: f32, bf16 or f16 */
    bool strict;     /* a tensor that no layer asks for is an error; default: a warning */
    const dt_spelling *spellings; /* tried in order after the layers' own names; the last has ours
                                   * NULL; or NULL */
    dt_progress_fn progress;      /* bytes of the files' tensors */
    void *progress_arg;
    uint64_t seed; /* of adapters that the files lack, as of dt_layers_init() */
} dt_read_options;

#define DT_READ_OPTIONS_INIT                                              \
    {                                                                     \
        sizeof(dt_read_options), true, DT_F32, false, NULL, NULL, NULL, 0 \
    }

/**
 * Reads every parameter, each rank only its slices, straight into place. An adapter that the files
 * lack begins as dt_layers_init() has it.
 *
 *   path     a safetensors file, or a folder with model.safetensors or model.safetensors.index.json
 *   options  NULL for defaults
 *
 * Collective  every rank of the mesh calls it with the same path, which all hosts can read.
 * Errors      DT_ERR_IO      a file cannot be read
 *             DT_ERR_FORMAT  a malformed file, a missing tensor, a wrong shape, numbers that the
 *                            dtype cannot hold; strict: a tensor that no layer asks for
 *             DT_ERR_ARG     NULL, a dtype that parameters do not have
 *             DT_ERR_MEMORY, DT_ERR_DEVICE
 *             The layer that failed has no values then; those after it keep theirs.
 */
DT_API DT_MUST_USE dt_status dt_layers_read(dt_layers *layers, const char *path,
                                            const dt_read_options *options);

/* --- into files ----------------------------------------------------------------------------- */

typedef struct dt_save_options {
    size_t size;            /* sizeof(dt_save_options) */
    bool keep_dtype;        /* store what the model computes in; default */
    dt_dtype dtype;         /* otherwise this: f32, bf16 or f16 */
    int64_t max_file_bytes; /* tensors of one file; a larger tensor is alone. Default 5 * 10^9 */
    dt_progress_fn progress;
    void *progress_arg;
    bool merged; /* adapters become part of the weights beside which they stand, as their kind says:
                  * files of a plain model. What the layers hold stays as it is */
    bool finite; /* numbers that are NaN or infinite are refused, and nothing is written */
} dt_save_options;

#define DT_SAVE_OPTIONS_INIT                                                                 \
    {                                                                                        \
        sizeof(dt_save_options), true, DT_F32, (int64_t)5000000000, NULL, NULL, false, false \
    }

/**
 * Writes all parameters into a folder: model.safetensors, or several files with their index. Every
 * rank writes what it owns, each byte is written once, tied weights are stored once. Values that
 * keep their dtype keep their bits; others round to nearest even.
 *
 * Files have temporary names until they are complete and on the disk; the index comes last. Nobody
 * else saves into the folder meanwhile: ".dtensor-save" in it is locked, and lists what is made, so
 * that the next save removes what one that was killed has left.
 *
 *   dir      made if it is not there (its parent has to be); must hold no weights, in whatever
 *            format. On several hosts all of them see it
 *   options  NULL for defaults
 *
 * Collective  every rank of the mesh, with the same arguments. Outsiders do nothing.
 * Errors      DT_ERR_ARG  NULL, a parameter without value; `dir` holds weights already; dry layers;
 *                         options that make no sense; numbers beyond 65504 to be saved as f16;
 *                         with `finite` numbers that are not
 *             DT_ERR_IO   a file cannot be written, or another save writes into `dir`: what was
 *                         begun is removed again
 *             DT_ERR_UNSUPPORTED  packed weights that files cannot hold
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_layers_write(dt_layers *layers, const char *dir,
                                             const dt_save_options *options);

/* --- from other layers ---------------------------------------------------------------------- */

/**
 * Copies the values of layers that lie otherwise: under another plan, on another mesh of the same
 * run, or both. Layers are found by name, with parameters of the same names and shapes; they get
 * the dtype of the others. The layer that failed has no values then.
 *
 * Collective  over the union of both meshes: members of either call it, and have both lists (a
 *             mesh that one is no member of is made on it too).
 * Errors      DT_ERR_ARG     NULL, or a layer, parameter or value that `from` does not have
 *             DT_ERR_SHAPE   a parameter of another shape
 *             as dt_redistribute() and dt_copy_to()
 */
DT_API DT_MUST_USE dt_status dt_layers_copy(dt_layers *layers, const dt_layers *from);

/** Bytes of this rank's pieces of all parameters that have values; a tied weight counts once. Not
 * collective. Errors: none. */
DT_API int64_t dt_layers_local_bytes(const dt_layers *layers);

/**
 * Watches every parameter but frozen ones: dt_gradient(gradients, dt_layer_param(layer, p)) is its
 * gradient after a backward pass. Tied layers share one.
 *
 * Not collective.
 * Errors      DT_ERR_ARG for NULL or a parameter without value; those of dt_gradients_watch()
 */
DT_API DT_MUST_USE dt_status dt_layers_watch(dt_layers *layers, dt_gradients *gradients);

/* A gradient as a file names and shapes it. */
typedef struct dt_gradient_facts {
    const char *name; /* while a call lasts */
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t n;           /* elements */
    double largest, rms; /* max |g|; sqrt(mean g^2) */
} dt_gradient_facts;

typedef void (*dt_gradient_fn)(void *arg, const dt_gradient_facts *facts);

typedef struct dt_gradient_file_options {
    size_t size;      /* sizeof(dt_gradient_file_options) */
    const char *like; /* names and shapes are those of the tensors in this folder, or safetensors
                       * file, that the parameters were read from; NULL: those that
                       * dt_layers_write() gives them */
    const dt_spelling *spellings; /* of names in `like`, as in dt_read_options */
    dt_gradient_fn told; /* of each, in the order of the layers, on the mesh's first rank */
    void *told_arg;
} dt_gradient_file_options;

#define DT_GRADIENT_FILE_OPTIONS_INIT                            \
    {                                                            \
        sizeof(dt_gradient_file_options), NULL, NULL, NULL, NULL \
    }

/**
 * Writes the gradients of all parameters as one safetensors file, in f32. One that no backward pass
 * has reached is zeros.
 *
 *   path     of the file, which gets its name when it is complete; one that is there is replaced.
 *            The mesh's first rank writes. NULL: no file, `told` alone
 *   options  NULL for defaults
 *
 * Collective  every rank of the mesh, after dt_gradients_settle(). Outsiders do nothing. Every rank
 *             holds one whole gradient at a time.
 * Errors      DT_ERR_ARG  NULL, a dry mesh
 *             DT_ERR_IO   the file cannot be written, what was there stays; `like` cannot be read
 *             DT_ERR_UNSUPPORTED  layers that lie on the stages of a pipeline
 *             DT_ERR_FORMAT, DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_layers_write_gradients(dt_layers *layers,
                                                       const dt_gradients *gradients,
                                                       const char *path,
                                                       const dt_gradient_file_options *options);

/**
 * What dt_layers_write_gradients() would refuse of its path, before anything is computed: a file is
 * begun beside it and removed again.
 *
 * Not collective.
 * Errors      DT_ERR_ARG  NULL, a folder or anything else that is no file
 *             DT_ERR_IO   no file can be made there
 */
DT_API DT_MUST_USE dt_status dt_gradients_check_file(const char *path);

#ifdef __cplusplus
}
#endif
#endif
