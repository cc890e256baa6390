/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts being made for several prompts at once. */
#ifndef DTI_GENERATED_H
#define DTI_GENERATED_H

#include "models/generation/generate.h"

/* One text: its new tokens. */
typedef struct dti_new_text {
    int32_t *ids; /* room for all that may come */
    int64_t n;
    dt_end end;
    float score;          /* of beam search */
    int64_t found;        /* tokens of the prompt, see dt_generated_found() */
    dt_logprob *logprobs; /* [room, n_logprobs] of each token, see dt_generated_logprobs(); NULL */
    int64_t n_logprobs;
} dti_new_text;

struct dt_generated {
    dti_new_text *texts; /* [n] */
    int64_t n;
};

/* Prompts that are read together: all of a call, or on several stages a group of them, so that
 * groups follow each other through the stages. */
typedef struct dti_batch {
    dt_model *model;
    const dt_ids *prompts; /* [n_prompts] */
    int64_t n_prompts;
    int64_t first;   /* of the call's prompts */
    int64_t longest; /* prompt of the call */
    int64_t max_new;
    dti_text_rules rules;
    dt_state *state;
    dti_step step;
    int32_t *input;      /* [rows, n_input] what is read next */
    int64_t n_input;     /* longest, then 1 */
    dti_new_text *texts; /* [n_texts] of each prompt as many as are wanted */
    int64_t n_texts;
    int32_t *next;             /* [n_texts] */
    bool *done;                /* [n_texts] */
    struct dti_search *search; /* of beams; NULL: every text is made by itself */
    bool over;
    int32_t pad;
} dti_batch;

/* What dt_generate_batch() does, a step at a time. */
typedef struct dti_making {
    dti_batch all; /* the call as a whole */
    dt_generate_options o;
    dti_batch *groups; /* [n_groups] */
    int n_groups;
    bool entered, over;
    dt_generated *made; /* texts as far as they are; of beams when all is over */
    dt_go_on_fn go_on;  /* of the states, see dt_state_set_go_on(); set before, or NULL */
    void *go_on_arg;
} dti_making;

/* Everything that needs no other rank: checks, memory, caches. What it is given lives until the
 * end, `m` begins as zeros but for go_on and stays where it is. After an error nothing is there. */
dt_status dti_making_begin(dti_making *m, dt_model *model, const dt_ids *prompts, int64_t n_prompts,
                           const dt_generate_options *options) DT_MUST_USE;

/* One more token of each text, until `over`. Collective. */
dt_status dti_making_step(dti_making *m) DT_MUST_USE;

/* Hands the texts over; dt_generated_release(). */
dt_generated *dti_making_take(dti_making *m);
void dti_making_end(dti_making *m); /* accepts zeros */

/* What dt_generate_batch() asks of prompts, of which *longest is the longest; what its options mean
 * for them. Errors: as it has them. */
dt_status dti_prompts_check(const dt_ids *prompts, int64_t n_prompts, int64_t *longest) DT_MUST_USE;
dt_status dti_texts_rules(dti_text_rules *u, const dt_model_info *info,
                          const dt_generate_options *o, int64_t longest) DT_MUST_USE;

/* n texts with room for max_new tokens each, and so many log-probabilities of each token. */
dt_status dti_texts_make(int64_t n, int64_t max_new, int64_t n_logprobs,
                         dti_new_text **out) DT_MUST_USE;
void dti_texts_free(dti_new_text *texts, int64_t n); /* accepts NULL */

/* Beam search: what it needs; one step of what was entered; its texts, the best of each prompt. */
dt_status dti_beams_begin(dti_batch *b) DT_MUST_USE;
dt_status dti_beams_step(dti_batch *b) DT_MUST_USE;
dt_status dti_beams_end(dti_batch *b) DT_MUST_USE;
void dti_beams_free(dti_batch *b); /* accepts one that was not begun */

#endif
