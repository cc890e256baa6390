/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Hugging Face folder is, before a model is made of it: its configuration without its
 * weights, all that can be found out, all that is wrong. No mesh and no ranks are needed.
 *
 * `rt` is a runtime whose registries hold, of a run or dry: architectures that a program has
 * registered are known there. NULL: the built-in ones alone. */
#ifndef DT_CHECKPOINTS_H
#define DT_CHECKPOINTS_H

#include <dtensor/generation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- configuration ------------------------------------------------------------------------------
 */

/* config.json and generation_config.json, read and understood. */
typedef struct dt_checkpoint dt_checkpoint;

/**
 * Reads a folder's configuration; weights are not looked at, and need not be there.
 *
 * Not collective.
 * Ownership   *out is released with dt_checkpoint_close().
 * Errors      DT_ERR_ARG          NULL
 *             DT_ERR_IO           no such folder, or a file that cannot be read
 *             DT_ERR_FORMAT       no config.json in it, malformed JSON, a value out of its range
 *             DT_ERR_UNSUPPORTED  unknown architecture, unread quantised weights or variant
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_open(dt_runtime *rt, const char *dir,
                                                dt_checkpoint **out);
DT_API void dt_checkpoint_close(dt_checkpoint **checkpoint); /* accepts NULL */

/** What config.json says, as dt_model_inspect() has it, but where no dtype is named it is f32; NULL
 * of NULL. Borrowed. Not collective. Errors: none. */
DT_API const dt_model_info *dt_checkpoint_info(const dt_checkpoint *checkpoint);

/** dt_model_generate_options() without a model: what generation_config.json asks for, its lists
 * borrowed from the checkpoint. As dt_model_generate_options(). */
DT_API DT_MUST_USE dt_status dt_checkpoint_generate_options(const dt_checkpoint *checkpoint,
                                                            dt_generate_options *out);

/**
 * What a run would refuse that asks for nothing special: values of generation_config.json, which
 * the message names by file and key; the plan that config.json may hold, on one rank.
 *
 * Not collective.
 * Errors      what the run would end with
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_check_generation(const dt_checkpoint *checkpoint);
DT_API DT_MUST_USE dt_status dt_checkpoint_check_plan(const dt_checkpoint *checkpoint);

/* --- looking at all of it ----------------------------------------------------------------------
 */

/** Refuses what cannot be a Hugging Face folder at all. Not collective. Errors: DT_ERR_ARG NULL,
 * DT_ERR_IO no such folder, DT_ERR_FORMAT no config.json in it. */
DT_API DT_MUST_USE dt_status dt_checkpoint_check_folder(const char *dir);

/* One thing that is odd, but no error. */
typedef void (*dt_remark_fn)(void *arg, const char *text);

/**
 * Says what a folder is suspected of.
 *
 *   weights    look at tensors too: those that nobody uses, a class that contradicts model_type
 *   generates  look at what ends a text too, and at keys that are left out
 *
 * Not collective.
 * Errors      as dt_checkpoint_open(), with `weights` as dt_model_inspect()
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_remarks(dt_runtime *rt, const char *dir, bool weights,
                                                   bool generates, dt_remark_fn say, void *arg);

/**
 * Says what config.json asks of training and training here does not do: dropout, the loss and the
 * noise of routers. The model is the same with and without.
 *
 * Not collective.
 * Errors      DT_ERR_ARG NULL; as dt_checkpoint_check_folder(); DT_ERR_FORMAT no JSON
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_training_remarks(const char *dir, dt_remark_fn say,
                                                            void *arg);

/**
 * Says if weights are in files of another dtype than `dtype`: a load converts them, so that saving
 * them gives other bits. Not collective. Errors: as dt_checkpoint_open(); DT_ERR_FORMAT, DT_ERR_IO
 * files that are no checkpoint.
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_dtype_remarks(const char *dir, dt_dtype dtype,
                                                         dt_remark_fn say, void *arg);

/* What could be found out; zero and NULL where nothing could. Code DT_OK of an error: none. */
typedef struct dt_checkpoint_report {
    bool supported;       /* a model can be made of it */
    dt_error model_error; /* why none can */
    dt_model_info info;   /* if it is supported */
    int64_t n_params, bytes;
    char model_type[64]; /* as config.json says, known here or not */
    size_t n_files, n_tensors;
    int64_t file_bytes;
    const char *tokenizer; /* dt_tokenizer_files() */
    int32_t n_tokens;
    dt_error tokenizer_error;
    bool reads_generation; /* generation_config.json; what it asks for may be refused: ... */
    dt_error generation_error, plan_error;
    dt_error file_error; /* of a small file that cannot be read, if nothing else is wrong */
} dt_checkpoint_report;

/**
 * Looks at everything in a folder but the values of its weights, and goes on where something is
 * wrong. Warnings are said: dt_checkpoint_remarks(), a tokenizer that does not fit the model or
 * cannot write every text.
 *
 * Not collective.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY; what is wrong with the folder is in the report
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_inspect(dt_runtime *rt, const char *dir,
                                                   dt_remark_fn say, void *arg,
                                                   dt_checkpoint_report *out);

/* One finding. An error: the model cannot be run, or its numbers cannot be right. `tensor` is the
 * one that it is about, or NULL. */
typedef void (*dt_finding_fn)(void *arg, bool error, const char *tensor, const char *text);

typedef struct dt_verify_options {
    size_t size;             /* sizeof(dt_verify_options) */
    bool values;             /* read every number too: NaN, infinities, matrices of zeros */
    dt_progress_fn progress; /* bytes of values */
    void *progress_arg;
} dt_verify_options;
#define DT_VERIFY_OPTIONS_INIT                       \
    {                                                \
        sizeof(dt_verify_options), false, NULL, NULL \
    }

/* What was found out; zero where nothing could be. */
typedef struct dt_verified {
    char model_type[32];
    size_t n_files, n_tensors;
    int64_t bytes;
    int64_t n_values; /* read */
} dt_verified;

/**
 * Compares every tensor of a folder with config.json and the index, and reads configuration and
 * tokenizer. Where loading stops at the first fault this says all of them.
 *
 *   options  NULL for defaults
 *
 * Not collective.
 * Errors      DT_ERR_ARG, DT_ERR_MEMORY; whatever is wrong with the folder is said through `say`
 */
DT_API DT_MUST_USE dt_status dt_checkpoint_verify(dt_runtime *rt, const char *dir,
                                                  const dt_verify_options *options,
                                                  dt_finding_fn say, void *arg, dt_verified *out);

#ifdef __cplusplus
}
#endif
#endif
