/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind dt_tape, for this room only. */
#ifndef DTI_TAPE_H
#define DTI_TAPE_H

#include <dtensor/op_rows.h>

#include "dtensor/comm_log.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"

enum { DTI_MAX_SCOPES = 16 };

typedef struct dti_scope {
    const char *name;
    size_t first;     /* entry of `owned` at which the scope's tensors begin */
    int node;         /* of the log, -1 until something is communicated inside */
    int64_t begin_ns; /* 0: nobody notes it */
} dti_scope;

struct dt_tape {
    dt_runtime *rt;
    dti_device *device;
    struct dti_op_cache *ops; /* decisions of this rank */
    struct dti_track *track;  /* the rank's time line */
    dt_status status;
    dt_moves moves;
    int n_scopes;
    dti_scope scopes[DTI_MAX_SCOPES];
    struct dt_pending *pending; /* begun and not waited for */
    struct dti_graph *graph;    /* what is recorded; NULL: nothing ever was */
    dt_tensor **owned;          /* one reference each, oldest first */
    size_t n_owned;
    size_t owned_capacity;
    dt_comm_counter comm[DT_N_COMM_KINDS];
    dt_op_work work;    /* of all operators */
    double seconds;     /* that they took, where the device has a meter */
    dti_comm_log log;   /* the same by scope and reason */
    uint32_t run;       /* a number that no other tape has, nor this one after a reset */
    const char *reason; /* of the caller's moves; NULL: "move" */
    dt_scope_fn see;    /* NULL: nobody looks on */
    void *see_arg;
    dt_error error; /* valid if status is not DT_OK */
};

/* Nothing is done any more: the tape has failed, or is NULL, which becomes the thread's error. */
static inline bool dti_tape_is_down(dt_tape *tape)
{
    return tape == NULL ? dt_tape_status(NULL) != DT_OK : tape->status != DT_OK;
}

/* Takes over a reference of `y`, which is to live as long as the tape's `x` does: to the end of its
 * scope; of a tensor that is not the tape's, to the reset. NULL after an error. */
dt_tensor *dti_tape_push_beside(dt_tape *tape, const dt_tensor *x, dt_tensor *y);

/* Counts what a move has communicated, here and in the node of the innermost scope. */
dt_status dti_tape_count(dt_tape *tape, const char *reason,
                         const dt_comm_counter counters[DT_N_COMM_KINDS]) DT_MUST_USE;

#endif
