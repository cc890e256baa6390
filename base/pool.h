/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker threads of one rank. A kernel hands over a function and gets it run once per worker;
 * worker 0 is the calling thread, so a pool of one costs a function call. */
#ifndef DTI_POOL_H
#define DTI_POOL_H

#include "base/error.h"

typedef struct dti_pool dti_pool;

/* One share of a parallel kernel: `worker` of `n_workers`. Never blocks, never fails. */
typedef void (*dti_pool_fn)(void *arg, int worker, int n_workers);

/* Starts n_threads - 1 threads. Each calls on_start(start_arg, worker) first (to bind itself to a
 * core); on_start may be NULL. Idle workers spin briefly (not at all when `spin` is false: more
 * threads than cores), then sleep on a futex. */
dt_status dti_pool_create(int n_threads, bool spin, void (*on_start)(void *start_arg, int worker),
                          void *start_arg, dti_pool **out) DT_MUST_USE;
void dti_pool_destroy(dti_pool **pool); /* accepts NULL */

int dti_pool_size(const dti_pool *pool); /* a NULL pool has size 1 */

/* Runs fn on every worker and returns when all are done. No malloc, no lock. A NULL pool runs fn
 * on the caller alone. Called by the rank's thread only, never from inside fn. */
void dti_pool_run(dti_pool *pool, dti_pool_fn fn, void *arg);

/* The half-open share [*begin, *end) of n items for `worker`, in multiples of `grain`. */
void dti_pool_share(int64_t n, int64_t grain, int worker, int n_workers, int64_t *begin,
                    int64_t *end);

#endif
