/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules on one piece. What they compute stands in <dtensor/optimizers.h>. */
#ifndef DTI_UPDATE_H
#define DTI_UPDATE_H

#include <dtensor/optimizers.h>

#include "base/error.h"
#include "training/optimizer.h"

/* A rule's numbers at one step for one parameter. */
typedef struct dti_update {
    dt_optimizer_rule rule;
    float scale; /* of gradients: clip factor over loss scale */
    float decay; /* AdamW: 1 - lr wd; SGD: wd */
    float beta1_rest, beta2, beta2_rest;
    float step;  /* -lr, AdamW: over 1 - beta1^k */
    float root2; /* sqrt(1 - beta2^k) */
    float eps;
    float momentum, undamped;
    bool nesterov, first;
} dti_update;

dti_update dti_update_of(const dt_optimizer *opt, const dti_trained *p, double lr,
                         double clip_factor);

/* x, f32, by g and the state, all of which lie alike. FLOPs and bytes are counted on the tape. */
dt_status dti_update_run(const dti_update *how, dt_tape *tape, dt_tensor *x, dt_tensor *g,
                         dt_tensor *const state[DTI_N_SLOTS]) DT_MUST_USE;

/* to = x in bf16, rounded to nearest or, with noise (f32 in [0, 1), a multiple of 2^-16 counts), at
 * random. */
dt_status dti_round_at_random(dt_tape *tape, dt_tensor *x, dt_tensor *noise,
                              dt_tensor *to) DT_MUST_USE;

#endif
