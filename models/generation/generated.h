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
    float score; /* of beam search */
} dti_new_text;

struct dt_generated {
    dti_new_text *texts; /* [n] */
    int64_t n;
};

typedef struct dti_batch {
    dt_model *model;
    const dt_ids *prompts; /* [n_prompts] */
    int64_t n_prompts;
    int64_t longest; /* prompt */
    int64_t max_new;
    dti_text_rules rules;
    dt_state *state;
    dti_step step;
    int32_t *input; /* [rows, longest] what is read next */
    int32_t pad;
} dti_batch;

/* n texts with room for max_new tokens each. */
dt_status dti_texts_make(int64_t n, int64_t max_new, dti_new_text **out) DT_MUST_USE;
void dti_texts_free(dti_new_text *texts, int64_t n); /* accepts NULL */

/* Beam search. Texts are the best of each prompt, [n_prompts * num_return_sequences]. */
dt_status dti_beam_search(dti_batch *b, dti_new_text *texts) DT_MUST_USE;

#endif
