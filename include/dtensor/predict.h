/* SPDX-License-Identifier: Apache-2.0
 *
 * How a model would lie on a mesh, and what a run would send, hold and compute: found by dry passes
 * from config.json alone, so the numbers are those that a run counts. Meshes may be of any size. */
#ifndef DT_PREDICT_H
#define DT_PREDICT_H

#include <dtensor/generation.h>
#include <dtensor/model_training.h>
#include <dtensor/optimizers.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_predict_options {
    size_t size;      /* sizeof(dt_predict_options) */
    const char *mesh; /* "dp=4,tp=8" */
    int64_t batch;    /* sequences; 1 */
    int64_t sequence; /* tokens of each: at once in the prompt's pass, and room in the caches; 0:
                                  * the model's context, 2048 of it at most */
    const dt_load_options *load; /* NULL: defaults */
    dt_log_fn log;               /* what a load says; may be NULL */
    void *log_arg;
    const dt_option_names *names; /* of mesh, batch and sequence in messages; NULL: the fields' */
    const char *device; /* "cuda": what is offloaded to "host" is not in the device's memory */
} dt_predict_options;
#define DT_PREDICT_OPTIONS_INIT                                                \
    {                                                                          \
        sizeof(dt_predict_options), "tp=1", 1, 0, NULL, NULL, NULL, NULL, NULL \
    }

/* Collectives of one kind over the same mesh dims, made inside one layer. */
typedef struct dt_traffic {
    const char *layer; /* or the block or model around it; NULL: the choice of the next token */
    dt_comm_kind kind;
    uint32_t dims;         /* bit m: mesh dim m */
    dt_comm_counter count; /* bytes that the rank receives */
    int64_t most_bytes;    /* the same, but of tokens that go to the ranks of their experts: the
                            * average is counted, and at most it is so much */
} dt_traffic;

/* One pass, as one rank makes it. */
typedef struct dt_pass_cost {
    dt_traffic *items; /* [n] in the order in which they first happen */
    size_t n;
    size_t capacity; /* the library's */
    dt_comm_counter total[DT_N_COMM_KINDS];
    dt_op_work work; /* of the rank's kernels */
} dt_pass_cost;

/* What a rank would hold, and receive in the prompt's pass and in a step of one token. */
typedef struct dt_rank_cost {
    int64_t weight_bytes; /* without those that are offloaded */
    int64_t cache_bytes;
    int64_t activation_bytes; /* what it takes from the system for temporaries, without the scratch
                               * memory of kernels */
    int64_t prompt_bytes;
    int64_t step_bytes;
} dt_rank_cost;

/* What a pass sends for its mixtures whose experts lie whole on ranks, as rank 0 receives it, in
 * either form: terms of all tokens are summed by all ("moe_tp_experts"), or tokens go to the ranks
 * of their experts and come back ("ep_dispatch_experts"). `bytes` of tokens that are sent are the
 * average of those that choose all experts alike, `most_bytes` what they are at most. */
typedef enum dt_expert_form {
    DT_EXPERTS_SUMMED,
    DT_EXPERTS_SENT,
    DT_N_EXPERT_FORMS
} dt_expert_form;
typedef struct dt_expert_bytes {
    int64_t bytes, most_bytes;
} dt_expert_bytes;
typedef struct dt_expert_forms {
    uint32_t dims;       /* bit m: mesh dim m; 0: there are no such mixtures */
    dt_expert_form form; /* what the plan says */
    dt_expert_bytes prompt[DT_N_EXPERT_FORMS], step[DT_N_EXPERT_FORMS];
} dt_expert_forms;

typedef struct dt_prediction dt_prediction;

/**
 * Predicts a run of the model in `dir`: one pass over a prompt, logits of its last token and the
 * best next one, then a step of one more token, the caches being as long as before it. Ranks that
 * cost the same are passed through once. A plan that cannot work is refused, as dt_model_check()
 * does.
 *
 *   rt       whose registries hold, of a run or dry; NULL: the built-in ones alone
 *   options  start from DT_PREDICT_OPTIONS_INIT
 *
 * Not collective.
 * Ownership   *out is released with dt_prediction_release().
 * Errors      DT_ERR_ARG     NULL, a bad mesh, a batch below 1, a sequence beyond the model's
 *                            context, more bytes than can be counted
 *             as dt_model_check(); DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_predict(dt_runtime *rt, const char *dir,
                                        const dt_predict_options *options, dt_prediction **out);
DT_API void dt_prediction_release(dt_prediction **prediction); /* accepts NULL */

/* What was predicted; borrowed. The model is dry: names, styles and layouts, as rank 0 has them.
 * Passes are rank 0's. NULL for a rank out of range. Not collective, no errors. */
DT_API dt_model *dt_prediction_model(const dt_prediction *prediction);
DT_API int64_t dt_prediction_batch(const dt_prediction *prediction);
DT_API int64_t dt_prediction_sequence(const dt_prediction *prediction);
DT_API const dt_pass_cost *dt_prediction_prompt(const dt_prediction *prediction);
DT_API const dt_pass_cost *dt_prediction_step(const dt_prediction *prediction);
DT_API const dt_rank_cost *dt_prediction_rank(const dt_prediction *prediction, int rank);
DT_API const dt_expert_forms *dt_prediction_experts(const dt_prediction *prediction);

/**
 * Writes a prediction: as text three tables, of parameters (dt_layers_print()), collectives and
 * ranks, in which what repeats is one line, and one of both forms of mixtures whose experts lie
 * whole on ranks; or as a JSON object with the members of dt_layers_print(), "prompt", "step",
 * "experts" (of such mixtures), "whole_batches_over" (mesh dims that would cut batches, but for
 * styles that lay out values there), "nothing_cut_over" (dims whose ranks hold and compute the
 * same) and "ranks".
 *
 * Returns the length as snprintf() does.
 *
 * Not collective.
 * Errors      none; text that has no room is cut
 */
DT_API int dt_prediction_print(const dt_prediction *prediction, bool json, char *text,
                               size_t bytes);

/* --- a training step -------------------------------------------------------------------------- */

/* Collectives of one kind over the same mesh dims, of a whole step. */
typedef struct dt_dims_traffic {
    uint32_t dims; /* bit m: mesh dim m */
    dt_comm_kind kind;
    dt_comm_counter count;
    int64_t most_bytes; /* as of dt_traffic */
} dt_dims_traffic;

enum { DT_MAX_DIMS_TRAFFIC = 48 }; /* kinds that there are more of are added to the last one */

/* A step as one rank makes it. */
typedef struct dt_training_cost {
    int64_t sequence;                     /* tokens of each sequence */
    int64_t weight_bytes, gradient_bytes; /* gradients are f32, and as they lie before the step */
    int64_t state_bytes;                  /* of the optimizer, masters included */
    int64_t kept_bytes;                   /* what the way back of one pass needs */
    /* Of all tensors, without scratch of kernels, from the second step on: the first one begins
     * less of fully sharded layers ahead. Of a pipeline a run may hold a message less, or those
     * besides that other ranks have not asked for yet. */
    int64_t peak_bytes;
    dt_training_part forward, backward; /* of all passes */
    dt_training_part gradients; /* without an optimizer: reductions of parameters' gradients */
    dt_training_part update;    /* the optimizer's step: those, the norm, what is gathered again */
    dt_dims_traffic traffic[DT_MAX_DIMS_TRAFFIC]; /* [n_traffic] all of the parts by mesh dims */
    int n_traffic;
} dt_training_cost;

/* What a kernel takes, in seconds: of the operator of that name, or "adamw", "sgd", "norm", whose
 * first operand is of `dtype`, for so much work. */
typedef double (*dt_kernel_seconds)(void *arg, const char *kernel, dt_dtype dtype,
                                    const dt_op_work *work);

typedef struct dt_step_options {
    size_t size;                           /* sizeof(dt_step_options) */
    const dt_loss_options *loss;           /* how blocks and the head are run; NULL: defaults */
    const dt_optimizer_options *optimizer; /* NULL: dt_gradients_settle() in its place */
    int64_t microbatches;                  /* passes that the batch is divided into; 1 */
    dt_pipeline_schedule *schedule;        /* of a model in stages, with an optimizer; NULL: none */
    dt_kernel_seconds seconds; /* added up in dt_training_part.seconds; NULL: nothing is */
    void *seconds_arg;
} dt_step_options;

#define DT_STEP_OPTIONS_INIT                                     \
    {                                                            \
        sizeof(dt_step_options), NULL, NULL, 1, NULL, NULL, NULL \
    }

/**
 * Predicts a step of training: a dry run of the real one, so the numbers are those that a run
 * counts from its second step on.
 *
 *   options  mesh, batch, sequence and load count; 0 tokens: the model's context, 2048 at most
 *   step     NULL for defaults
 *   rank     whose step it is
 *
 * Not collective.
 * Errors      as dt_predict(); those of dt_model_loss(), dt_backward() and dt_optimizer_create();
 *             DT_ERR_ARG for a batch that its microbatches do not divide
 */
DT_API DT_MUST_USE dt_status dt_predict_training(dt_runtime *rt, const char *dir,
                                                 const dt_predict_options *options,
                                                 const dt_step_options *step, int rank,
                                                 dt_training_cost *out);

#ifdef __cplusplus
}
#endif
#endif
