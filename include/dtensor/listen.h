/* SPDX-License-Identifier: Apache-2.0
 *
 * Who listens to collectives: what a time line of a step is made of. */
#ifndef DT_LISTEN_H
#define DT_LISTEN_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A collective that this rank took part in; moves and operators make them too. */
typedef struct dt_comm_event {
    const char *op;    /* "all_reduce" */
    const char *group; /* "dp"; both hold during the call */
    int64_t count;     /* elements, as the call says them; 0: bytes of no single type */
    dt_dtype dtype;
    int64_t begin_ns, end_ns; /* monotonic clock; where work is queued for a GPU, the queueing */
    bool behind;              /* it travelled while the rank went on (<dtensor/async.h>) */
} dt_comm_event;

typedef void (*dt_comm_fn)(void *arg, const dt_comm_event *event);

/** Lets `told` hear of each collective of this rank that ends; NULL: nobody does, and no call is
 * under way any more. Called on the rank's thread, or, `behind`, on one that moves for it, maybe at
 * once. Not collective. Errors: none. */
DT_API void dt_comm_listen(dt_runtime *rt, dt_comm_fn told, void *arg);

#ifdef __cplusplus
}
#endif
#endif
