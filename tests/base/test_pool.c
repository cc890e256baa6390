/* SPDX-License-Identifier: Apache-2.0
 *
 * Races show under ThreadSanitizer only: all data here is plain, so that the pool alone orders it.
 */
#include "tests/support/dt_test.h"

#include "base/memory.h"
#include "base/pool.h"
#include "base/sync.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MAX_WORKERS = 8, N = 1000 };

typedef struct sum_job {
    const int *x;
    int64_t n;
    int64_t part[MAX_WORKERS][16]; /* a cache line each */
    int calls[MAX_WORKERS][16];
} sum_job;

static void sum_share(void *arg, int worker, int n_workers)
{
    sum_job *job = arg;
    int64_t begin, end;

    dti_pool_share(job->n, 1, worker, n_workers, &begin, &end);
    job->part[worker][0] = 0;
    for (int64_t i = begin; i < end; i++) job->part[worker][0] += job->x[i];
    job->calls[worker][0]++;
}

static void check_sums(dti_pool *pool, int rounds)
{
    sum_job job = { .n = N };
    int x[N];
    const int n_workers = dti_pool_size(pool);

    job.x = x;
    for (int r = 0; r < rounds; r++) {
        int64_t sum = 0;
        for (int i = 0; i < N; i++) x[i] = i + r;
        dti_pool_run(pool, sum_share, &job);
        for (int w = 0; w < n_workers; w++) sum += job.part[w][0];
        DT_ASSERT_EQ_INT(sum, (int64_t)N * (N - 1) / 2 + (int64_t)r * N);
    }
    for (int w = 0; w < n_workers; w++) DT_ASSERT_EQ_INT(job.calls[w][0], rounds);
}

DT_TEST(pool, every_worker_runs_its_share_once_per_round)
{
    for (int n = 1; n <= MAX_WORKERS; n *= 2) {
        for (int spin = 0; spin <= 1; spin++) {
            dti_pool *pool;
            DT_ASSERT_OK(dti_pool_create(n, spin != 0, NULL, NULL, &pool));
            DT_ASSERT_EQ_INT(dti_pool_size(pool), n);
            check_sums(pool, 200);
            dti_pool_destroy(&pool);
            DT_ASSERT(pool == NULL);
        }
    }
}

DT_TEST(pool, no_pool_is_a_pool_of_the_caller)
{
    DT_ENDS(dti_pool_destroy) dti_pool *none = NULL;

    DT_ASSERT_EQ_INT(dti_pool_size(NULL), 1);
    check_sums(NULL, 2);
}

static void pause_ns(long ns)
{
    const struct timespec t = { 0, ns };

    (void)nanosleep(&t, NULL);
}

/* Pauses longer than the spinning: workers sleep on the futex and have to be woken. */
DT_TEST(pool, workers_that_sleep_are_woken)
{
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;

    DT_ASSERT_OK(dti_pool_create(3, true, NULL, NULL, &pool));
    for (int i = 0; i < 20; i++) {
        pause_ns(i % 2 ? 3000000 : 200000); /* also about the moment when they fall asleep */
        check_sums(pool, 3);
    }
}

DT_TEST(pool, a_round_costs_no_malloc)
{
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;
    uint64_t count;

    DT_ASSERT_OK(dti_pool_create(2, false, NULL, NULL, &pool));
    count = dti_alloc_count();
    check_sums(pool, 10);
    DT_ASSERT_EQ_INT(dti_alloc_count(), count);
}

static void mark_started(void *arg, int worker)
{
    int(*started)[16] = arg;

    started[worker][0] = worker;
}

static void nothing(void *arg, int worker, int n_workers)
{
    (void)arg;
    (void)worker;
    (void)n_workers;
}

DT_TEST(pool, on_start_runs_on_each_started_thread_before_its_first_share)
{
    int started[4][16] = { { 0 } };
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;

    DT_ASSERT_OK(dti_pool_create(4, false, mark_started, started, &pool));
    dti_pool_run(pool, nothing, NULL);
    for (int w = 1; w < 4; w++) DT_ASSERT_EQ_INT(started[w][0], w);
}

DT_TEST(pool, a_pool_without_threads_is_refused)
{
    dti_pool *pool = NULL;

    DT_ASSERT_STATUS(dti_pool_create(0, false, NULL, NULL, &pool), DT_ERR_ARG, "0 threads");
    DT_ASSERT(pool == NULL);
}

/* Shares follow each other without a gap, begin at multiples of the grain, and differ by at most
 * one grain. */
DT_TEST(pool, shares_cover_everything_once)
{
    for (int64_t n = 0; n < 70; n++) {
        for (int64_t grain = 1; grain <= 16; grain *= 2) {
            for (int workers = 1; workers <= 9; workers++) {
                int64_t at = 0;
                for (int w = 0; w < workers; w++) {
                    int64_t begin, end;
                    dti_pool_share(n, grain, w, workers, &begin, &end);
                    DT_ASSERT_EQ_INT(begin, at);
                    DT_ASSERT(begin == n || begin % grain == 0);
                    DT_ASSERT(end - begin <= (n / grain / workers + 1) * grain + grain);
                    at = end;
                }
                DT_ASSERT_EQ_INT(at, n);
            }
        }
    }
}

static void *wake_later(void *arg)
{
    _Atomic uint32_t *word = arg;

    pause_ns(2000000);
    atomic_store(word, 1);
    dti_futex_wake_all(word);
    return NULL;
}

DT_TEST(sync, a_futex_wait_ends_by_value_timeout_or_wake)
{
    _Atomic uint32_t word = 0;
    pthread_t thread;
    const int64_t start = dti_now_ns();

    dti_futex_wait(&word, 5, -1); /* another value: returns at once */
    dti_futex_wait(&word, 0, 3000000);
    DT_ASSERT(dti_now_ns() - start < 10000000000);
    DT_ASSERT_EQ_INT(pthread_create(&thread, NULL, wake_later, &word), 0);
    while (atomic_load(&word) == 0) dti_futex_wait(&word, 0, -1);
    DT_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
}
