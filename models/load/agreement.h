/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of a run tell each other before and after dt_parallelize() loads a model, so that
 * no rank goes on alone or with another layout. */
#ifndef DTI_AGREEMENT_H
#define DTI_AGREEMENT_H

#include "models/model.h"

enum { DTI_ASKED_BYTES = 224 };

/* Whether a rank goes on, and what it was asked. */
typedef struct dti_word {
    int32_t status;
    uint64_t hash;
    char asked[DTI_ASKED_BYTES]; /* the same in words */
    char message[DT_ERROR_MESSAGE_BYTES];
} dti_word;

/* Of the options' plans and policies, as far as they are data. */
uint64_t dti_hash_plans(const dt_load_options *o);

/* All ranks hear all others: the first that refuses, or the first that was asked something else.
 * Collective over the world. */
dt_status dti_agree_on_words(dt_runtime *rt, const dti_word *mine) DT_MUST_USE;

/* After loading, which went as `st` says: whether all ranks have a model and laid it out alike.
 * What plans, policies and registered styles come to is compared, layer by layer. Collective over
 * the world, unless `st` is an error that has freed the other ranks. */
dt_status dti_agree_on_model(dt_runtime *rt, dt_status st, const dt_model *model) DT_MUST_USE;

#endif
