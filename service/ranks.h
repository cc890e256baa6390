/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's side of a crew: what orders are carried out with. */
#ifndef DTI_RANKS_H
#define DTI_RANKS_H

#include "dtensor/device/device_memory.h"
#include "models/generation/generated.h"
#include "service/crew.h"

typedef struct dti_rank {
    dti_crew *crew;
    dt_runtime *rt;
    dt_mesh *mesh; /* of all ranks */
    int number;    /* its own */
    dti_view *view;
    dt_model *model;
    const dti_memory *memory; /* its device's; NULL before there is a model */
    dt_engine *engine;        /* of passes that texts share; NULL: none was needed yet */
    bool takes_turns;         /* the model's texts cannot */
    struct dt_call *jobs[DTI_MAX_RUNNING];
    char *loaded; /* in one of several processes: what the model was loaded by */
    dti_unpacking loaded_from;
} dti_rank;

/* A request that ranks are busy with: as it came, and what has become of it. */
typedef struct dt_call dti_job;
struct dt_call {
    dti_rank *rank;
    dt_ticket *ticket; /* rank 0's; NULL on others */
    int64_t number;    /* the ticket's */
    char *bytes;       /* of the request; the ticket's on rank 0 */
    dti_unpacking from;
    bool broken;   /* a pass or a call was told to end; on every rank alike */
    dt_error said; /* of telling, or of asking whether it goes on: the crew cannot go on */
    int64_t n_steps;
    uint64_t salt; /* of texts: see dt_request_options */
    /* texts, by steps of their own */
    dti_making making;
    int64_t *told; /* tokens of each text that the caller has got */
    /* or in passes that they share */
    int64_t request;    /* the engine's number; 0: not so */
    dt_generated *made; /* as far as they are */
    size_t *rooms;      /* [texts, 2] of their ids and log-probabilities */
    int64_t n_left;     /* texts that go on */
    /* a call */
    const dt_piece *inputs;
    int64_t n_inputs;
};

/* Shows that the rank is alive, and what it holds. */
void dti_rank_beat(dti_rank *r);
void dti_rank_show(dti_rank *r, dti_doing doing, int64_t number);

/* Whether anybody still wants the answer. Collective; false after an error, which is in `said`. */
bool dti_job_goes_on(dti_job *j);

/* Not OK: the crew cannot go on after this error of a request, which one rank alone may have. */
dt_status dti_job_survives(const dti_job *j, dt_status st) DT_MUST_USE;

/* The request in a slot is over: well, with an error that all ranks have, or since nobody wants it
 * any more. The second: with what this rank has to say of it. Collective. */
dt_status dti_job_end(dti_rank *r, int slot, dt_status st) DT_MUST_USE;
dt_status dti_job_settle(dti_rank *r, int slot, dt_status st) DT_MUST_USE;

/* Texts that share passes (together.c): the engine, once it is needed or wanted; a request's begin,
 * *taken unless it needs steps of its own; a pass, which ends requests; a request's end before its
 * texts are over. All but the last are collective. */
dt_status dti_together_open(dti_rank *r) DT_MUST_USE;
dt_status dti_together_begin(dti_job *j, const dt_ids *prompts, int64_t n_prompts,
                             const dt_generate_options *o, bool *taken) DT_MUST_USE;
dt_status dti_together_pass(dti_rank *r, int64_t number) DT_MUST_USE;
dt_status dti_together_drop(dti_job *j) DT_MUST_USE;

/* Texts (texts.c): begin, one token more (*over: there are no more), and all to the caller. */
dt_status dti_texts_begin(dti_job *j) DT_MUST_USE;
dt_status dti_texts_step(dti_job *j, bool *over) DT_MUST_USE;
dt_status dti_texts_tell_all(dti_job *j) DT_MUST_USE;

/* A function from its begin to its end (functions.c). */
dt_status dti_call_run(dti_job *j) DT_MUST_USE;

/* The function that dt_service_forward() calls (forward.c). */
extern const char dti_forward_name[];
dt_status dti_forward(dt_call *call, void *arg) DT_MUST_USE;

#endif
