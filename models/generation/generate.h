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
    /* with n_logprobs: of the raw scores, and what they come to */
    dti_scores raw;
    dti_candidate *ranked; /* [rows, n_logprobs] */
    dt_logprob *logprobs;  /* [rows, 1 + n_logprobs] of the step's choices */
    float *chosen;         /* [rows] */
    size_t ranked_room, logprobs_room, chosen_room;
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

/* Log-probabilities (logprobs.c): taken from scores that nothing has changed yet; then those of
 * what was chosen. Nothing without n_logprobs. Collective. */
dt_status dti_logprobs_take(dti_step *step) DT_MUST_USE;
dt_status dti_logprobs_choose(dti_step *step, const int32_t *chosen) DT_MUST_USE;
void dti_logprobs_free(dti_step *step);

/* The same of a text of so many tokens; and the token of a key (dtensor/argmax.h) that was chosen
 * for it, or what is wrong with it. */
dt_status dti_not_numbers(const dt_model_info *info, const dti_text_rules *rules, int64_t length);
dt_status dti_choice_of(const dt_model_info *info, const dti_text_rules *rules, int64_t key,
                        int64_t length, int64_t text, int32_t *out) DT_MUST_USE;

dti_history dti_history_of(const dt_state *s);

#endif
