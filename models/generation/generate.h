/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of generation: a pass, and what is made of its scores. */
#ifndef DTI_GENERATE_H
#define DTI_GENERATE_H

#include "models/generation/text_rules.h"
#include "models/run/state.h"

typedef struct dti_step {
    dt_state *state;       /* borrowed */
    dti_text_rules *rules; /* borrowed */
    dt_tape *tape;
    int64_t times;    /* copies of each sequence to make after the first pass; 0: none */
    const bool *done; /* [batch] rows that need no choice any more; NULL: all do */
    dti_scores scores;
    int64_t *keys;
    float *whole;
    size_t keys_room, whole_room;
} dti_step;

dt_status dti_step_begin(dti_step *step, dt_state *state, dti_text_rules *rules) DT_MUST_USE;
void dti_step_end(dti_step *step); /* accepts a zeroed one */

/* Reads n tokens of each sequence, ids [batch, n]; on several stages other steps may be entered
 * before this one goes on. */
dt_status dti_step_enter(dti_step *step, const int32_t *ids, int64_t n) DT_MUST_USE;

/* Chooses the next token of each, out [batch]. In the first step of several texts of a prompt, out
 * has their number. */
dt_status dti_step_next(dti_step *step, int32_t *out) DT_MUST_USE;

/* The parts of it: the scores of the next token, unprocessed; showing processed ones to the caller
 * if that was asked for. */
dt_status dti_step_scores(dti_step *step) DT_MUST_USE;
dt_status dti_step_show(dti_step *step) DT_MUST_USE;
dt_status dti_step_not_numbers(const dti_step *step); /* the error */

dti_history dti_history_of(const dt_state *s);

#endif
