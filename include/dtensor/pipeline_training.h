/* SPDX-License-Identifier: Apache-2.0
 *
 * Training in stages: each rank of a mesh dim has some stages of a model, and a schedule says which
 * of them it runs when (<dtensor/pipeline.h>).
 *
 *   dt_pipeline_create(mesh, "pp", schedule, optimizer, &options, &p);
 *   for each step:
 *       dt_pipeline_run(p, &result);               all microbatches, forward and backward
 *       dt_optimizer_step(optimizer, lr, &report);
 *
 * A stage is a function from a tensor to a tensor, with layers of its own: of a model from a folder
 * dt_model_stage(), of others whatever the caller writes. Its layers lie on its stage's mesh
 * (dt_mesh_stage(), dt_layer_spec.mesh), over whose other dims it is parallel as a model in one
 * piece is. What it makes goes to the next stage as it lies, whatever that is.
 *
 * Gradients are added in the order of microbatches, and a loss is scaled by whoever computes it,
 * once: losses, gradients and parameters have the same bits under every schedule, and those of a
 * run of the same microbatches without stages. Weights that two stages share are two copies
 * (dt_layer_spec.tied_to), whose gradients dt_optimizer_step() adds: the same bits under every
 * schedule, but in another order than that of a model in one piece. */
#ifndef DT_PIPELINE_TRAINING_H
#define DT_PIPELINE_TRAINING_H

#include <dtensor/optimizers.h>
#include <dtensor/pipeline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_pipeline dt_pipeline;

/* What a stage computes of a microbatch: x is what the stage before made of it, on this stage's
 * mesh; NULL in the first. Returns what the next one is given, any float; in the last one the loss,
 * one element, f32, of the step's microbatches together: what is averaged over a step is divided by
 * the step's count. It may be Partial, as the sum of a batch that is cut is. NULL after an error on
 * the tape. */
typedef dt_tensor *(*dt_stage_fn)(void *arg, dt_tape *tape, int stage, int microbatch,
                                  dt_tensor *x);

/* A tensor that is not there yet. */
typedef struct dt_tensor_kind {
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    dt_placement place[DT_MAX_DIMS];
} dt_tensor_kind;

typedef struct dt_pipeline_options {
    size_t size; /* sizeof(dt_pipeline_options) */
    dt_stage_fn forward;
    void *arg;
    /* What x of a stage is: on a dry mesh, where nothing comes. NULL: not on one */
    dt_tensor_kind (*input)(void *arg, int stage);
    /* Called by each rank as it begins an action of its row, and as it ends it. NULL: nobody is */
    void (*told)(void *arg, const dt_action *action, bool ends);
} dt_pipeline_options;

#define DT_PIPELINE_OPTIONS_INIT                            \
    {                                                       \
        sizeof(dt_pipeline_options), NULL, NULL, NULL, NULL \
    }

/**
 * Stages over a mesh dim under a schedule.
 *
 *   mesh       all of it: that of the optimizer's layers
 *   dim        whose coordinate r has the stages of the schedule's rank r
 *   schedule   a reference is kept
 *   optimizer  which gradients are for; lives as long as the pipeline
 *
 * Collective  every rank of the mesh passes the same. Outsiders get one that does nothing.
 * Ownership   *out is released with dt_pipeline_release().
 * Errors      DT_ERR_ARG     NULL, no such dim, a schedule for another number of ranks, a dry mesh
 *                            and no `input`
 *             DT_ERR_MEMORY, DT_ERR_COMM
 */
DT_API DT_MUST_USE dt_status dt_pipeline_create(dt_mesh *mesh, const char *dim,
                                                dt_pipeline_schedule *schedule,
                                                dt_optimizer *optimizer,
                                                const dt_pipeline_options *options,
                                                dt_pipeline **out);
DT_API void dt_pipeline_release(dt_pipeline **pipeline); /* accepts NULL; sets it to NULL */

/* What one part of a step communicates (bytes that the rank receives) and computes. */
typedef struct dt_training_part {
    dt_comm_counter comm[DT_N_COMM_KINDS];
    dt_op_work work;
    double seconds; /* of kernels, of a dry step that was told what they take; else 0 */
} dt_training_part;

/* What a run came to. */
typedef struct dt_pipeline_result {
    double loss;        /* the sum of what the last stage returned, in the order of microbatches */
    int live;           /* microbatches of a stage that this rank held at a time, at most: from the
                         * begin of F to the end of B or W */
    int postponed;      /* those among them whose W alone was to come */
    int64_t kept_bytes; /* that the records of all of them kept, at most */
    dt_training_part forward, backward; /* what came from other stages is DT_COMM_SEND */
} dt_pipeline_result;

/**
 * Runs this rank's row: all microbatches of a step forward and backward. The optimizer has their
 * gradients then.
 *
 *   result  its loss is the same on every rank, the rest is this rank's; may be NULL
 *
 * Collective  over the mesh.
 * Errors      those of the stages, with the cell of the row before the message: "rank 1 of the
 *             pipeline, cell 4, 1F2"; DT_ERR_COMM if another rank failed
 */
DT_API DT_MUST_USE dt_status dt_pipeline_run(dt_pipeline *pipeline, dt_pipeline_result *result);

#ifdef __cplusplus
}
#endif
#endif
