/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine: the schedule's decisions become passes, their logits become tokens, these events. */
#ifndef DTI_ENGINE_PARTS_H
#define DTI_ENGINE_PARTS_H

#include <dtensor/engine.h>

#include "models/engine/schedule.h"
#include "models/generation/text_rules.h"
#include "models/run/ragged.h"

/* A request that is not over. */
typedef struct dti_request {
    struct dti_request *next;
    int64_t number;
    dti_text_rules rules;     /* n_new: of the text that is looked at */
    int64_t n_return, n_left; /* texts of each prompt; texts that go on */
    bool failed;
} dti_request;

/* A token that is to be chosen: text i of those that a part's next token makes. */
typedef struct dti_pick {
    dti_request *request;
    const dti_sequence *of;
    int64_t text;
    int64_t row; /* of the logits of all replicas */
    int64_t at;  /* its place among the choices */
    int replica;
    int group;        /* picks of one group have the same probabilities made of their scores */
    int64_t key;      /* what was chosen (dtensor/argmax.h) */
    int64_t logprobs; /* its first among all */
} dti_pick;

/* What choices are made with. */
typedef struct dti_choosing {
    dti_scores taken;  /* as logits gave them, row by row */
    dti_scores scores; /* [picks] */
    dti_top *tops;     /* [rows] */
    int64_t *keys;     /* [picks] */
    float *whole;      /* [vocab] for who asks */
    dti_pick *picks;   /* [n_picks] by replica and group */
    int64_t n_picks;
    float *raw;            /* rows that log-probabilities are of */
    dti_candidate *ranked; /* of one of them */
    dt_logprob *logprobs;  /* of all picks, each n_logprobs + 1 */
    size_t tops_room, keys_room, whole_room, picks_room, raw_room, ranked_room, logprobs_room;
} dti_choosing;

/* Arrays of a dti_ragged. */
typedef struct dti_pass_arrays {
    int32_t *ids, *positions, *sequence, *table, *slots, *out_rows;
    size_t ids_room, positions_room, sequence_room, table_room, slots_room, out_room;
} dti_pass_arrays;

/* t = pass_ns + rows * row_ns, fitted to passes of which older ones count less and less: sums. */
typedef struct dti_cost_line {
    double weight, rows, ns, rows_rows, rows_ns;
} dti_cost_line;

/* What passes take: all, and those in which a text waited for a token. */
typedef struct dti_pass_costs {
    dti_cost_line all, waited;
    double least_row_ns; /* a row of the pass in which rows cost least */
} dti_pass_costs;

struct dt_engine {
    dt_model *model;
    dt_engine_options o;
    dti_kv_pool *pool;
    int64_t replicas;
    dti_schedule *schedule;
    dti_request *requests; /* by number */
    int64_t n_requests, n_new;
    dt_tape *tape;
    dti_pass_arrays pass;
    dti_pass_costs costs;
    dti_choosing choosing;
    dti_choice *choices;
    dt_engine_event *events; /* [n_events] */
    dt_error *errors;        /* [n_errors] that events point to */
    int64_t n_events, n_errors;
    size_t choices_room, events_room, errors_room;
    bool broken; /* a pass has failed */
};

/* Requests (requests.c): its request of a number, NULL; adds, and takes away. */
dti_request *dti_engine_find(const dt_engine *e, int64_t number);
void dti_engine_forget(dt_engine *e, dti_request *r);

/* The passes of a step (engine_pass.c); logits [replicas * n_out, 1, vocab], NULL: no token is
 * chosen. Collective. */
dt_status dti_engine_pass(dt_engine *e, dt_tensor **logits) DT_MUST_USE;

/* Chooses the next tokens from logits (choices.c): keys of all picks. Collective. */
dt_status dti_engine_choose(dt_engine *e, dt_tensor *logits) DT_MUST_USE;
void dti_choosing_free(dti_choosing *c);

/* Rows first .. first + n - 1 of this rank's by themselves. */
dti_scores dti_scores_view(const dti_scores *s, int64_t first, int64_t n);

/* Log-probabilities (choice_logprobs.c): of scores that nothing was done to, and then of what was
 * chosen. Collective. */
dt_status dti_choosing_keep_logprobs(dti_choosing *c) DT_MUST_USE;
dt_status dti_choosing_logprobs(dti_choosing *c) DT_MUST_USE;

/* pass_cost.c */
void dti_pass_costs_add(dti_pass_costs *c, int64_t rows, int64_t ns, bool waited);
dti_pass_cost dti_pass_costs_now(const dti_pass_costs *c);

#endif
