/* SPDX-License-Identifier: Apache-2.0
 *
 * What an optimizer knows. */
#ifndef DTI_OPTIMIZER_H
#define DTI_OPTIMIZER_H

#include <dtensor/optimizers.h>

#include "base/error.h"
#include "placements/layout.h"
#include "training/buckets.h"
#include "training/offload.h"

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
    int64_t copy_of;         /* of another stage's parameter of that number; -1: of none */
    double lr_factor, weight_decay;
    bool first_owner;              /* this rank counts what it holds of it */
    uint32_t slots;                /* bit s: it has state s */
    uint64_t stream;               /* of random rounding: follows from the name */
    char *state_names;             /* of all its states, one after the other */
    int64_t n;                     /* elements of each of them on this rank */
    dt_tensor *state[DTI_N_SLOTS]; /* NULL of what there is not, or lies elsewhere */
    int64_t item;                  /* its number there */
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
    int64_t skipped; /* steps that overflowed: with `steps` the number of the last one */
    double loss_scale;
    bool elsewhere;             /* the state is not with the parameters */
    dti_offload *offload;       /* but here; NULL in a dry run */
    dt_optimizer_state lent;    /* what dt_optimizer_state_at() has fetched from there; */
    int64_t lent_number;        /* and its number */
    dti_buckets *buckets;       /* gradients that travel while backward goes on; NULL: none do */
    dt_tensor *looks, *squares; /* counters (norm.h) */
    int64_t *looked;            /* what the host has read of looks */
    uint32_t clears;            /* of the collection, when looks were zero */
};

/* Steps that were asked for, this one included. */
static inline long long dti_optimizer_number(const dt_optimizer *opt)
{
    return (long long)(opt->steps + opt->skipped + 1);
}

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

/* Makes the state of all parameters: zeros, and masters that are the parameters. */
dt_status dti_state_create(dt_optimizer *opt) DT_MUST_USE;
void dti_state_free(dt_optimizer *opt);

/* Elements first .. first + n - 1 of this rank's piece of a parameter's state, in memory of its
 * device; slot[s] is NULL of what it does not have. */
typedef struct dti_state_window {
    int64_t first, n;
    float *slot[DTI_N_SLOTS];
    dti_window at; /* elsewhere */
} dti_state_window;

/* The way to state while a rule runs: the window of parameter i after w, which begins as
 * zeros. What w holds is put back, unless `reads`; n 0 after the last one. Parameters come in any
 * order. */
dt_status dti_state_next(dt_optimizer *opt, int64_t i, bool reads, dti_state_window *w) DT_MUST_USE;
dt_status dti_state_settle(dt_optimizer *opt) DT_MUST_USE; /* all that was put back is there */

/* State tensor number k, in the order of dt_optimizer_state_at(). */
typedef struct dti_state_ref {
    const char *name;
    int64_t param;
    int slot;
} dti_state_ref;
bool dti_state_find(const dt_optimizer *opt, int64_t k, dti_state_ref *out);

/* A reference of it, or a copy of what lies elsewhere; and back there, if it `was_written`. */
dt_status dti_state_open(dt_optimizer *opt, const dti_state_ref *ref, dt_tensor **x) DT_MUST_USE;
dt_status dti_state_close(dt_optimizer *opt, const dti_state_ref *ref, bool was_written,
                          dt_tensor **x) DT_MUST_USE;

/* What dt_optimizer_state_at() has lent goes back. */
dt_status dti_state_take_back(dt_optimizer *opt) DT_MUST_USE;

/* All of it is written anew: what a disk has lost is forgotten. */
void dti_state_renew(dt_optimizer *opt);

/* --- gradients (gradients.c) ------------------------------------------------------------------ */

/* Of parameters that are copies of each other: the gradients of both become their sum, in the same
 * bits (copies.c). After each lies as its state does. */
dt_status dti_optimizer_add_copies(dt_optimizer *opt) DT_MUST_USE;

/* Brings gradient i to the layout of the state; counted on `tape`. */
dt_status dti_optimizer_reduce(dt_optimizer *opt, int64_t i, dt_tape *tape) DT_MUST_USE;

#endif
