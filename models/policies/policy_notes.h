/* SPDX-License-Identifier: Apache-2.0
 *
 * What policies say of a model, as its description keeps it. */
#ifndef DTI_POLICY_NOTES_H
#define DTI_POLICY_NOTES_H

#include <dtensor/architectures.h>

#include "base/memory.h"

/* An attribute of a block's module as a policy says that one rank holds it; models/policies/. */
typedef struct dti_claim {
    char policy[96]; /* for messages */
    const char *blocks;
    const char *module;    /* "self_attn" */
    const char *attribute; /* "num_heads" */
    int64_t value;
} dti_claim;

/* What policies come to for one model on one mesh. */
typedef struct dti_policy_notes {
    dti_arena arena;
    dt_plan plan; /* their rules; `more` is the caller's plan */
    dt_plan_rule *rules;
    size_t rules_capacity;
    dti_claim *claims;
    size_t n_claims, claims_capacity;
    const char *changed; /* `policy "x" set rope_theta to 100`, for messages; NULL: nothing */
} dti_policy_notes;

#endif
