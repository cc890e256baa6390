/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that ranks hold cut and gather for the moment of their use: parameters of fully sharded
 * layers. A record keeps none of what is gathered; the way back gathers it again.
 *
 * What was gathered is remembered in order, the way there and the way back apart, so that the next
 * pass begins each move while the unit before it is computed (async.h). So at most 1 + `ahead`
 * units are there at a time: the one in use, and those that are on their way. A pass that takes
 * another way begins nothing ahead until it has been seen once.
 *
 * All ranks gather the same in the same order. Each move carries a few bits of a hash of all before
 * it, which back ends compare: ranks that have gone apart fail by name instead of mixing units. */
#ifndef DTI_GATHER_H
#define DTI_GATHER_H

#include <dtensor/op_rows.h>

#include "base/error.h"

typedef struct dti_gathers dti_gathers;

/* What may be gathered, by number. */
typedef struct dti_gathers_of {
    int n;
    int ahead; /* units begun before their turn */
    /* Value number i as it is stored, and as computations get it; false: there is none now. */
    bool (*value)(const void *arg, int i, dt_tensor **x, const dt_layout **whole);
    int (*unit)(const void *arg, int i); /* of values that are used together, ascending; -1: this
                                          * one is not gathered ahead in a first pass */
    const char *(*name)(const void *arg, int i); /* lives as long as `arg` */
    const void *arg;
} dti_gathers_of;

dt_status dti_gathers_create(const dti_gathers_of *of, dti_gathers **out) DT_MUST_USE;
void dti_gathers_release(dti_gathers **g); /* accepts NULL */
void dti_gathers_set_ahead(dti_gathers *g, int units);

/* Value number i for the calls on the tape that follow: a tensor of its innermost scope. Collective
 * over the mesh dims that it is gathered over; errors are latched. */
dt_tensor *dti_gather(dt_tape *t, dti_gathers *g, int i);

/* The same without a record: for what a record lacks. */
dt_tensor *dti_gather_again(dt_tape *t, dti_gathers *g, int i);

/* x, which is a part of value number i, as `whole` says, and not ahead of its turn. A record keeps
 * no more of it than dti_graph_again() has left of x, on the way back neither. */
dt_tensor *dti_gather_tile(dt_tape *t, dti_gathers *g, int i, dt_tensor *x, const dt_layout *whole);
dt_tensor *dti_gather_tile_again(dt_tape *t, dti_gathers *g, int i, dt_tensor *x,
                                 const dt_layout *whole);

/* Bytes that are gathered or on their way on this rank, and the most there ever were. */
void dti_gathered_bytes(dt_runtime *rt, int64_t *now, int64_t *most);

#endif
