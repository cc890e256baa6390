/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run would cost one rank: its weights, caches and temporaries, and the collectives of a
 * prompt's pass and of a step. Found by dry passes, so the numbers are those that a run counts. */
#ifndef DTI_PREDICTION_H
#define DTI_PREDICTION_H

#include <dtensor/predict.h>

#include "models/model.h"

typedef struct dti_prediction {
    dt_runtime *rt;
    dt_mesh *mesh;
    dt_model *model;      /* dry; names and layouts of what is predicted */
    int64_t weight_bytes; /* without those that are offloaded */
    int64_t cache_bytes;
    int64_t activation_bytes; /* what the rank takes from the system for temporaries, without the
                               * scratch memory of kernels */
    dt_pass_cost prefill;     /* `sequence` tokens, logits of the last row, its greedy choice */
    dt_pass_cost decode;      /* one more token, the caches being as long as before it */
    double prefill_seconds, decode_seconds; /* by the meter; without one 0 */
} dti_prediction;

/* What the passes are run with. */
typedef struct dti_predict_options {
    const char *mesh; /* "dp=4,tp=8" */
    int rank;
    int64_t batch;
    int64_t
        sequence; /* tokens per sequence: at once in the prompt's pass, and room in the caches */
    const dt_load_options *load;
    dt_runtime *like; /* whose registries hold; NULL: nobody's */
    dt_log_fn log;    /* may be NULL */
    void *log_arg;
    const char *device;            /* where its tensors would lie; NULL: on the CPU */
    const struct dti_meter *meter; /* asked what kernels take; may be NULL */
} dti_predict_options;

/* Judges the options of a prediction, as dt_predict() says, and settles how many tokens. */
dt_status dti_predict_settle(dt_runtime *rt, const char *dir, dt_predict_options *o,
                             int *n_ranks) DT_MUST_USE;

/* Errors as dt_model_load() on a dry mesh; DT_ERR_ARG for a batch or sequence out of range. Freed
 * with dti_prediction_free(), also after an error. */
dt_status dti_predict(const char *dir, const dti_predict_options *options,
                      dti_prediction *out) DT_MUST_USE;
void dti_prediction_free(dti_prediction *p);

dt_rank_cost dti_prediction_cost(const dti_prediction *p);

/* dti_predict() for all ranks of the mesh (options->rank does not matter): one dry pass for each
 * class of ranks that cost the same, see rank_classes.h. `*first` is what rank 0 sees, `*ranks` one
 * cost per rank, freed with dti_free(); both are freed also after an error. */
dt_status dti_predict_ranks(const char *dir, const dti_predict_options *options,
                            dti_prediction *first, dt_rank_cost **ranks) DT_MUST_USE;

/* What mixtures of experts of `model`, which was predicted with these options, send in either form:
 * rank 0's passes once more, on a dry model of their own (expert_forms.c). */
dt_status dti_predict_experts(const char *dir, const dti_predict_options *options,
                              const dt_model *model, dt_expert_forms *out) DT_MUST_USE;

/* Opens a dry run of one rank: runtime, mesh and model of *out, which is freed also after an error;
 * nothing is passed through it yet. */
dt_status dti_predict_open(const char *dir, const dti_predict_options *options,
                           dti_prediction *out) DT_MUST_USE;

/* One pass as dti_predict() makes it, and its cost: n tokens of zeros per sequence. For dry models
 * and for real ones; `cost` zeroed before, its items freed with dti_free(). */
dt_status dti_measure_pass(dt_tape *t, dt_state *s, int64_t n, dt_pass_cost *cost) DT_MUST_USE;

/* Bytes of this rank's caches, and those it holds for tensors of any kind. */
int64_t dti_state_bytes(const dt_state *s);
dt_status dti_held_bytes(dt_runtime *rt, int64_t *out) DT_MUST_USE;

/* For all ranks, as a program has it. */
struct dt_prediction {
    dti_prediction first; /* as rank 0 sees it */
    int64_t batch, sequence;
    int n_ranks;
    dt_rank_cost *ranks; /* [n_ranks] */
    dt_expert_forms experts;
};

#endif
