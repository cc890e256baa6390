/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a training run: parameters, the optimizer's state and how far the run has come, in
 * a folder that is whole at any moment.
 *
 *   RUN/latest                            "step-00001000": what a run goes on from
 *   RUN/step-00001000/training.json       step, mesh, files with their checksums, tensors
 *   RUN/step-00001000/model-rank-00000.safetensors    what rank 0 holds of the parameters
 *   RUN/step-00001000/optim-rank-00000.safetensors    and of the optimizer's state
 *
 *   dt_run_folder_open(mesh, "RUN", NULL, &run);
 *   for (step = 0; step < n; step++) {
 *       ... a step ...
 *       dt_run_folder_check(run);                                        fails if a save has failed
 *       if (step % 500 == 499) dt_run_folder_save(run, layers, optimizer, &progress, NULL);
 *   }
 *   dt_run_folder_wait(run);
 *   dt_run_folder_release(&run);
 *
 * A save copies the values to memory of the host and returns; each rank has a thread that writes
 * its files behind. The folder has the name "step-00001000.tmp" until every byte of it is on the
 * disk; then it gets its name, then `latest` names it, then old steps are deleted. Whoever is
 * killed, or finds the disk full, at whatever moment, leaves a folder that `latest` names whole.
 *
 * Each element is written once, by the first rank that holds it. A checkpoint is read on any mesh
 * and for any cut of parameters and state, bit by bit. docs/checkpoints.md has the format. */
#ifndef DT_TRAINING_CHECKPOINTS_H
#define DT_TRAINING_CHECKPOINTS_H

#include <dtensor/optimizers.h>
#include <dtensor/weights.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A folder of checkpoints, opened on every rank of a mesh. Belongs to its rank's thread. */
typedef struct dt_run_folder dt_run_folder;

typedef enum dt_run_folder_mode {
    DT_RUN_FOLDER_NEW,      /* the folder holds no checkpoint yet; it is made if it is not there */
    DT_RUN_FOLDER_RESUME,   /* it holds one */
    DT_RUN_FOLDER_CONTINUE, /* either */
    DT_RUN_FOLDER_READ      /* to load only: nothing is written, and a run may be writing it */
} dt_run_folder_mode;

typedef struct dt_run_folder_options {
    size_t size; /* sizeof(dt_run_folder_options) */
    dt_run_folder_mode mode;
    int keep;    /* newest checkpoints that stay; 0: all. Default 2 */
    bool direct; /* a save writes from where the values lie, and returns when they are on the disk:
                  * no copy of them, and the step waits. Default false: behind */
    const dt_asked *facts; /* n_facts of them, may be NULL: what a checkpoint is good with, such as
                            * { "tokenizer", its hash }. Written beside it, compared when one is
                            * loaded. Read while dt_run_folder_open() lasts */
    int n_facts;
} dt_run_folder_options;

#define DT_RUN_FOLDER_OPTIONS_INIT                                          \
    {                                                                       \
        sizeof(dt_run_folder_options), DT_RUN_FOLDER_NEW, 2, false, NULL, 0 \
    }

/* How far a run has come: it goes on with step number `step`, sample number `samples`. */
typedef struct dt_run_progress {
    int64_t step;    /* steps done; the number in the folder's name */
    int64_t samples; /* consumed since the run's beginning, the data's cursor on any mesh */
    int64_t tokens;
    uint64_t seed;
} dt_run_progress;

/**
 * Opens a folder of checkpoints. The first rank of the mesh locks it for writing, and removes what
 * a save that was killed has left; on several hosts all of them see it under the same name.
 *
 *   options  NULL for defaults
 *
 * Collective  over the mesh, with the same arguments. Outsiders get NULL and DT_OK, and need not
 *             make the calls below.
 * Ownership   *out is released with dt_run_folder_release(). It keeps a reference of the mesh.
 * Errors      DT_ERR_ARG     NULL, a dry mesh, options that make no sense; mode NEW and the folder
 *                            holds a run; RESUME or READ and it holds none
 *             DT_ERR_IO      it cannot be made, read or written; another run has it
 *             DT_ERR_FORMAT  `latest` names what is no checkpoint
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_run_folder_open(dt_mesh *mesh, const char *dir,
                                                const dt_run_folder_options *options,
                                                dt_run_folder **out);

/** Waits for a save under way; if that fails the log says so. Collective over the mesh, unless a
 * rank has failed. Accepts NULL; sets *run to NULL. Errors: none. */
DT_API void dt_run_folder_release(dt_run_folder **run);

/** The step that `latest` names; -1: the folder has no checkpoint yet. Not collective. Errors:
 * none; -1 for NULL. */
DT_API int64_t dt_run_folder_latest(const dt_run_folder *run);

/**
 * Begins to save: waits for a save that is under way, copies all values to memory of the host, and
 * returns. They may change afterwards; dt_run_folder_check() and dt_run_folder_wait() tell what
 * became of it.
 *
 *   optimizer  of these layers; NULL: parameters alone
 *   json       the caller's own facts, an object, which dt_run_folder_load() gives back; NULL: none
 *
 * A step that is there already is replaced, whole by whole.
 *
 * Collective  over the mesh, with the same arguments.
 * Errors      DT_ERR_ARG     NULL, a parameter without value, an optimizer of other layers, numbers
 *                            below 0; the run was opened to be read
 *             DT_ERR_FORMAT  text that is no JSON object
 *             DT_ERR_IO      the folder cannot be made; with `direct` as dt_run_folder_wait()
 *             DT_ERR_MEMORY  for the copies
 *             DT_ERR_COMM, DT_ERR_DEVICE; those of dt_run_folder_wait() for the save before
 */
DT_API DT_MUST_USE dt_status dt_run_folder_save(dt_run_folder *run, dt_layers *layers,
                                                dt_optimizer *optimizer,
                                                const dt_run_progress *progress, const char *json);

/**
 * Brings a save under way further without waiting for any disk, and tells whether it has failed:
 * call it once per step. Where nothing is under way it is free; otherwise one all-gather of some
 * bytes.
 *
 * Collective  over the mesh.
 * Errors      as dt_run_folder_wait(); each failure is told once
 */
DT_API DT_MUST_USE dt_status dt_run_folder_check(dt_run_folder *run);

/**
 * Returns when the save under way, if any, is what `latest` names and on the disk.
 *
 * Collective  over the mesh.
 * Errors      DT_ERR_IO    a rank could not write: the words are that rank's. What was begun is
 *                          removed, `latest` is as before, and the next save may succeed
 *             DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_run_folder_wait(dt_run_folder *run);

typedef struct dt_run_load_options {
    size_t size;          /* sizeof(dt_run_load_options) */
    int64_t step;         /* which one; -1, the default: what `latest` names */
    bool fresh_optimizer; /* the optimizer stays as it is: its state is not read. Default false */
} dt_run_load_options;

#define DT_RUN_LOAD_OPTIONS_INIT               \
    {                                          \
        sizeof(dt_run_load_options), -1, false \
    }

/**
 * Reads a checkpoint into layers and optimizer, which may lie otherwise than those that were saved:
 * on another mesh, with another plan, cut over data parallel ranks or not. Equal bit by bit.
 *
 * Before a value is written it is checked that all files are there, have their sizes and checksums,
 * that each element of each tensor is in them exactly once, that names, shapes and dtypes are those
 * of the layers and of the optimizer's state, and that a model's layers are of the model that was
 * saved: what its config.json says comes to the same.
 *
 *   options    NULL for defaults
 *   layers     those without values get them, in the dtypes of the checkpoint
 *   optimizer  of these layers; NULL: its state is left unread
 *   progress   may be NULL
 *   json       the caller's object of the save, written anew, "{}" if there was none; borrowed
 *              until the next load or the release. May be NULL
 *
 * Collective  over the mesh, with the same arguments. On error every rank has the same record, that
 *             of the first rank that found one.
 * Errors      DT_ERR_ARG     NULL, no such step; a fact, a key of config.json, a name, a shape or a
 *                            dtype is another; no state in the checkpoint, or that of another rule
 *             DT_ERR_IO      a file is missing or cannot be read
 *             DT_ERR_FORMAT  a file is cut off, has other bytes than were written, or contradicts
 *                            another; elements that are missing or there twice
 *             DT_ERR_MEMORY, DT_ERR_COMM, DT_ERR_DEVICE
 *             Values are as before, unless a disk failed while they were read.
 */
DT_API DT_MUST_USE dt_status dt_run_folder_load(dt_run_folder *run,
                                                const dt_run_load_options *options,
                                                dt_layers *layers, dt_optimizer *optimizer,
                                                dt_run_progress *progress, const char **json);

/** What a checkpoint says of the run, without its values: as dt_run_folder_load() with neither
 * layers nor optimizer. */
DT_API DT_MUST_USE dt_status dt_run_folder_peek(dt_run_folder *run, int64_t step,
                                                dt_run_progress *progress, const char **json);

#ifdef __cplusplus
}
#endif
#endif
