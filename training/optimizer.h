/* SPDX-License-Identifier: Apache-2.0
 *
 * What an optimizer knows. */
#ifndef DTI_OPTIMIZER_H
#define DTI_OPTIMIZER_H

#include <dtensor/optimizers.h>

#include "base/error.h"
#include "placements/layout.h"
#include "training/buckets.h"

/* Kinds of state, in the order in which a parameter's are listed. */
typedef enum dti_slot_kind {
    DTI_SLOT_MASTER,
    DTI_SLOT_EXP_AVG,
    DTI_SLOT_EXP_AVG_SQ,
    DTI_SLOT_MOMENTUM,
    DTI_N_SLOTS
} dti_slot_kind;

/* A parameter that is stepped. It is leaf number i of the collection, i being its place in the
 * list. */
typedef struct dti_trained {
    char *name; /* in full */
    const dt_layer *layer;
    int param;
    dt_tensor *x;            /* a reference */
    const dt_layout *layout; /* of gradient and state, when the step is done */
    double lr_factor, weight_decay;
    bool first_owner;  /* this rank counts what it holds of it */
    uint32_t slots;    /* bit s: it has state s */
    uint64_t stream;   /* of random rounding: follows from the name */
    char *state_names; /* of all its states, one after the other */
    dt_tensor *state[DTI_N_SLOTS];
} dti_trained;

struct dt_optimizer {
    dt_optimizer_options options; /* without what points to the caller's */
    dt_layers *layers;
    dt_mesh *mesh;
    dt_gradients *gradients;
    dt_tape *tape; /* counts a step */
    int64_t n;
    dti_trained *params;
    int64_t steps, good_steps;
    double loss_scale;
    dti_buckets *buckets;       /* gradients that travel while backward goes on; NULL: none do */
    dt_tensor *looks, *squares; /* counters (norm.h) */
    int64_t *looked;            /* what the host has read of looks */
    uint32_t clears;            /* of the collection, when looks were zero */
};

/* The layout of a parameter's gradient and state (layouts.c): its own, cut over the mesh dims
 * `dims` on which ranks hold copies. */
dt_status dti_optimizer_layout(const dt_tensor *x, uint32_t dims,
                               const dt_layout **out) DT_MUST_USE;

/* The mesh dims that options name (optimizer.c). */
dt_status dti_optimizer_dims(const dt_mesh *mesh, const dt_optimizer_options *o,
                             uint32_t *dims) DT_MUST_USE;

/* Checks options by themselves, and says what a group says of a parameter (groups.c). */
dt_status dti_optimizer_check(const dt_optimizer_options *o) DT_MUST_USE;
typedef struct dti_group_says {
    bool frozen;
    double lr_factor, weight_decay;
} dti_group_says;
dti_group_says dti_groups_of(const dt_optimizer_options *o, const char *name, int n_axes);

/* Every group matches one of the layers' parameters. */
dt_status dti_groups_check(const dt_optimizer_options *o, dt_layers *layers) DT_MUST_USE;

/* --- state (state.c) -------------------------------------------------------------------------- */

/* Makes the state of parameter i: zeros, and a master that is the parameter. */
dt_status dti_state_create(dt_optimizer *opt, int64_t i) DT_MUST_USE;
void dti_state_free(dti_trained *p);

/* The only way to state: what is fetched lies on the rank's device until it is put back, one
 * parameter after the other, in any order. state[s] is NULL of what it does not have. */
dt_status dti_state_fetch(dt_optimizer *opt, int64_t i, dt_tensor *state[DTI_N_SLOTS]) DT_MUST_USE;
dt_status dti_state_put_back(dt_optimizer *opt, int64_t i,
                             dt_tensor *state[DTI_N_SLOTS]) DT_MUST_USE;

/* --- gradients (gradients.c) ------------------------------------------------------------------ */

/* Brings gradient i to the layout of the state; counted on `tape`. */
dt_status dti_optimizer_reduce(dt_optimizer *opt, int64_t i, dt_tape *tape) DT_MUST_USE;

#endif
