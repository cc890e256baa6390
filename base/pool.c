/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"

/* A round is announced by raising `round`; a worker answers by raising its own `done`. */
enum { SPIN_NS = 200000, SPINS_PER_CLOCK = 64, MAX_DONE_SPINS = 20000 };

typedef struct pool_worker {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t done;
    dti_pool *pool;
    pthread_t thread;
    int index;
} pool_worker;

struct dti_pool {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t round;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Alignas(DTI_LINE_BYTES) dti_pool_fn fn;
    void *arg;
    int n_threads;   /* started, the caller included */
    int n_allocated; /* entries of workers */
    bool spin;
    void (*on_start)(void *start_arg, int worker);
    void *start_arg;
    pool_worker *workers; /* [n_threads], entry 0 unused */
};

/* Returns when *word differs from `old`. */
static void wait_for_change(dti_pool *p, _Atomic uint32_t *word, uint32_t old)
{
    const int64_t start = dti_now_ns();

    for (;;) {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) return;
            if (p->spin)
                dti_cpu_relax();
            else
                (void)sched_yield();
        }
        if (dti_now_ns() - start < SPIN_NS) continue;
        atomic_fetch_add(&p->sleepers, 1);
        dti_futex_wait(word, old, -1);
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

static void *worker_main(void *arg)
{
    pool_worker *w = arg;
    dti_pool *p = w->pool;

    if (p->on_start != NULL) p->on_start(p->start_arg, w->index);
    for (uint32_t round = 0;; round++) {
        wait_for_change(p, &p->round, round);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->arg, w->index, p->n_threads);
        atomic_store_explicit(&w->done, round + 1, memory_order_release);
    }
}

static void announce(dti_pool *p)
{
    atomic_fetch_add(&p->round, 1); /* sequentially consistent with the sleepers count below */
    if (atomic_load(&p->sleepers) > 0) dti_futex_wake_all(&p->round);
}

dt_status dti_pool_create(int n_threads, bool spin, void (*on_start)(void *start_arg, int worker),
                          void *start_arg, dti_pool **out)
{
    dt_status st = DT_OK;
    dti_pool *p = NULL;

    *out = NULL;
    DT_CHECK(n_threads >= 1, DT_ERR_ARG, "a pool of %d threads", n_threads);
    DT_TRY(dti_big_alloc(sizeof *p, (void **)&p));
    p->spin = spin;
    p->on_start = on_start;
    p->start_arg = start_arg;
    p->n_threads = 1;
    DT_TRY_TO(fail, st,
              dti_big_alloc((size_t)n_threads * sizeof *p->workers, (void **)&p->workers));
    p->n_allocated = n_threads;
    for (int i = 1; i < n_threads; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
    }
    for (int i = 1; i < n_threads; i++) {
        const int error = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        DT_CHECK_TO(fail, st, error == 0, DT_ERR_MEMORY, "thread %d of %d could not be started: %s",
                    i, n_threads, strerror(error));
        p->n_threads = i + 1;
    }
    *out = p;
    return DT_OK;

fail:
    dti_pool_destroy(&p);
    return st;
}

void dti_pool_destroy(dti_pool **pool)
{
    dti_pool *p = *pool;

    if (p == NULL) return;
    *pool = NULL;
    atomic_store(&p->stop, true);
    announce(p);
    for (int i = 1; i < p->n_threads; i++) (void)pthread_join(p->workers[i].thread, NULL);
    dti_big_free(p->workers, (size_t)p->n_allocated * sizeof *p->workers);
    dti_big_free(p, sizeof *p);
}

int dti_pool_size(const dti_pool *p)
{
    return p == NULL ? 1 : p->n_threads;
}

/* Shares are equal, so the wait is short, unless somebody else's thread has taken the worker's
 * core: then spinning would keep the worker from finding another one. */
static void wait_for_done(const dti_pool *p, pool_worker *w, uint32_t round)
{
    int spins = p->spin ? MAX_DONE_SPINS : 0;

    while (atomic_load_explicit(&w->done, memory_order_acquire) != round) {
        if (spins > 0) {
            spins--;
            dti_cpu_relax();
        } else {
            (void)sched_yield();
        }
    }
}

void dti_pool_run(dti_pool *p, dti_pool_fn fn, void *arg)
{
    uint32_t round;

    if (dti_pool_size(p) == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    announce(p);
    round = atomic_load_explicit(&p->round, memory_order_relaxed);
    fn(arg, 0, p->n_threads);
    for (int i = 1; i < p->n_threads; i++) wait_for_done(p, &p->workers[i], round);
}

void dti_pool_share(int64_t n, int64_t grain, int worker, int n_workers, int64_t *begin,
                    int64_t *end)
{
    const int64_t grains = (n + grain - 1) / grain;
    const int64_t first = grains * worker / n_workers * grain;
    const int64_t last = grains * (worker + 1) / n_workers * grain;

    *begin = first < n ? first : n;
    *end = last < n ? last : n;
}
