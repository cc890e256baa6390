/* SPDX-License-Identifier: Apache-2.0
 *
 * Models as training and scoring run them: whole sequences, no caches, logits or a loss that
 * gradients flow back from (<dtensor/gradients.h>). */
#ifndef DT_MODEL_TRAINING_H
#define DT_MODEL_TRAINING_H

#include <dtensor/gradients.h>
#include <dtensor/models.h>
#include <dtensor/pipeline_training.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What of a pass is run again on its way back instead of being kept. */
typedef enum dt_recomputed {
    DT_RECOMPUTED_NOTHING,
    DT_RECOMPUTED_CHEAP, /* what dt_tape_set_thrifty() says: norms, activations, gathers */
    DT_RECOMPUTED_BLOCKS /* of each block its input is kept alone */
} dt_recomputed;

typedef struct dt_loss_options {
    size_t size; /* sizeof(dt_loss_options) */
    dt_recomputed recompute;
    int64_t chunk;  /* tokens of each sequence whose logits exist at a time; 0: all. Fewer hold less
                     * memory: the head runs again on the way back. Where n ranks cut the tokens, a
                     * chunk is as many of each rank's: a multiple of n, n at least */
    double n_valid; /* what the sum is divided by: targets of the whole step that count; 0: those of
                     * this call */
    const int32_t *starts; /* [batch, tokens] as given to dt_model_ids(), of sequences that are made
                            * of documents: index in its sequence of the first token of each
                            * token's document. Positions begin anew there, and attention sees
                            * nothing before it: as if each document were a sequence. NULL: whole
                            * sequences. On a dry mesh it is not read */
} dt_loss_options;

#define DT_LOSS_OPTIONS_INIT                                         \
    {                                                                \
        sizeof(dt_loss_options), DT_RECOMPUTED_NOTHING, 0, 0.0, NULL \
    }

/**
 * Token ids as a tensor: the batch is cut over the mesh dim that cuts the model's batches.
 *
 *   ids  [batch, tokens] row-major, the same on every rank; NULL on a dry mesh
 *
 * Collective  no communication.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched: DT_ERR_ARG for NULL, extents below 1 or more than 2^31 - 1 positions
 */
DT_API dt_tensor *dt_model_ids(dt_tape *tape, dt_model *model, const int32_t *ids, int64_t batch,
                               int64_t tokens);

/**
 * Logits of whole sequences: position j of each sees those up to j.
 *
 *   ids      [batch, tokens] i32, of dt_model_ids() or laid out like them; an id outside the
 *            vocabulary embeds as zeros
 *   options  NULL for defaults
 *
 * Returns [batch, tokens, vocab] in the model's dtype, cut as dt_model_forward() says.
 *
 * Collective  over the model's mesh.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched: DT_ERR_ARG NULL, more tokens than the model's max_positions, starts that
 *             are none; DT_ERR_UNSUPPORTED a tape that records, and a model in stages:
 *             <dtensor/pipeline_training.h> trains these; those of operators
 */
DT_API dt_tensor *dt_model_logits(dt_tape *tape, dt_model *model, dt_tensor *ids,
                                  const dt_loss_options *options);

/**
 * The mean cross entropy of what each position predicts.
 *
 *   ids, targets  [batch, tokens] i32, alike; a target of -100 does not count
 *
 * Returns one f32 without axes, whole on every rank.
 *
 * Collective  over the model's mesh.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched: those of dt_model_logits() and dt_cross_entropy()
 */
DT_API dt_tensor *dt_model_loss(dt_tape *tape, dt_model *model, dt_tensor *ids, dt_tensor *targets,
                                const dt_loss_options *options);

/**
 * One stage of dt_model_loss(), of a model in stages (dt_load_options.stage_dim): what a
 * dt_stage_fn of a pipeline calls.
 *
 *   x             what the stage before made, on this rank's stage mesh; NULL for the first stage
 *   ids, targets  as for dt_model_loss(); targets are read by the last stage alone
 *
 * Returns [batch, tokens, hidden]; of the last stage the loss.
 *
 * Collective  over the stage's mesh.
 * Ownership   borrowed from the tape; NULL after an error.
 * Errors      latched: those of dt_model_loss(); DT_ERR_ARG for a stage that there is not, or not
 *             of this rank, x in the first stage, none in others
 */
DT_API dt_tensor *dt_model_stage(dt_tape *tape, dt_model *model, int stage, dt_tensor *x,
                                 dt_tensor *ids, dt_tensor *targets,
                                 const dt_loss_options *options);

/** What x of dt_model_stage() is, of `batch` sequences: for pipelines on a dry mesh. Not
 * collective. Errors: none. */
DT_API dt_tensor_kind dt_model_stage_input(const dt_model *model, int64_t batch, int64_t tokens);

/**
 * dt_layers_write_gradients() under the names, and with the shapes, that the parameters have in the
 * folder that the model was loaded from: where files hold each expert apart, so are its gradients.
 *
 *   path  NULL: no file, `told` alone
 *   told  NULL: nobody
 *
 * Collective, Errors as there.
 */
DT_API DT_MUST_USE dt_status dt_model_write_gradients(dt_model *model,
                                                      const dt_gradients *gradients,
                                                      const char *path, dt_gradient_fn told,
                                                      void *told_arg);

#ifdef __cplusplus
}
#endif
#endif
