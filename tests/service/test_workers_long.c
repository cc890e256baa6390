/* SPDX-License-Identifier: Apache-2.0
 *
 * Each worker dies at each point of a request's life, in either way. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/served.h"
#include "tests/support/worker_deaths.h"

static void die_everywhere(int n_ranks, int n_processes, int signal)
{
    for (int when = 0; when < N_WORKER_POINTS; when++)
        for (int process = 0; process < n_processes; process++)
            worker_dies(
                &(worker_death){ n_ranks, n_processes, process, signal, (worker_point)when });
}

DT_TEST(worker_deaths, killed_at_each_point)
{
    die_everywhere(1, 1, SIGKILL);
    die_everywhere(2, 2, SIGKILL);
    die_everywhere(3, 2, SIGKILL);
    die_everywhere(4, 4, SIGKILL);
}

DT_TEST(worker_deaths, stopped_at_each_point)
{
    die_everywhere(1, 1, SIGSTOP);
    die_everywhere(2, 2, SIGSTOP);
    die_everywhere(3, 3, SIGSTOP);
}

/* What is not seen at the first time. */
DT_TEST(worker_deaths, killed_again_and_again)
{
    for (int i = 0; i < 40; i++)
        worker_dies(&(worker_death){ 2, 2, i % 2, SIGKILL, (worker_point)(i % N_WORKER_POINTS) });
}

/* --- at random -------------------------------------------------------------------------------- */

static const int32_t ids[] = { 5, 17, 3, 88, 42 };
static const dt_ids prompt = { ids, 5 };

typedef struct user {
    dt_service *service;
    dt_served *model;
    uint32_t seed;
    int64_t n_well, n_ill;
    _Atomic bool *over;
    char wrong[256]; /* an end that there may not be */
} user;

static uint32_t draw(uint32_t *seed, uint32_t below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* Asks, cancels, leaves, restarts what has failed. */
static void *use(void *arg)
{
    user *u = arg;

    while (!*u->over && u->wrong[0] == '\0') {
        dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
        dt_request_options how = DT_REQUEST_OPTIONS_INIT;
        dt_generated *g = NULL;
        dt_ticket *t = NULL;
        dt_rank_memory ranks[2];
        dt_status st;

        o.max_new_tokens = 1 + draw(&u->seed, 12);
        o.ignore_eos = true;
        how.priority = (int)draw(&u->seed, 3);
        how.deadline_ms = draw(&u->seed, 4) == 0 ? 1 + draw(&u->seed, 20) : 0;
        st = dt_service_submit(u->model, &prompt, 1, &o, &how, &t);
        if (st == DT_OK && draw(&u->seed, 3) == 0) dt_ticket_cancel(t);
        if (st == DT_OK && draw(&u->seed, 3) > 0) st = dt_ticket_wait(t, &g);
        if (st == DT_OK) u->n_well++;
        if (st != DT_OK) u->n_ill++;
        if (st != DT_OK && st != DT_ERR_COMM)
            (void)snprintf(u->wrong, sizeof u->wrong, "%.250s", dt_last_error()->message);
        if (st != DT_OK && draw(&u->seed, 2) == 0) (void)!dt_service_restart(u->model);
        (void)!dt_service_memory(u->service, NULL, ranks, NULL);
        dt_generated_release(&g);
        dt_ticket_release(&t);
    }
    return NULL;
}

DT_TEST(worker_deaths, at_random_while_threads_ask)
{
    enum { N = 3, KILLS = 60 };
    const int n_files = dt_test_count_files("/proc/self/fd", ""), n_threads = served_threads();
    dt_service *s = NULL;
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    _Atomic bool over = false;
    pid_t pids[MOST_WORKERS];
    pthread_t thread[N];
    user u[N];
    dt_served *m[2];
    dt_generated *g;
    uint32_t seed = 7;

    run.n_ranks = 2;
    run.timeout_ms = 1000;
    o.run = &run;
    served_as_processes(&o, &run, 2);
    DT_ASSERT_OK(dt_service_start(&o, &s));
    for (int i = 0; i < 2; i++) m[i] = served_load(s, "gpt_neo/base");
    for (int i = 0; i < N; i++) {
        u[i] = (user){ .service = s, .model = m[i % 2], .seed = (uint32_t)i, .over = &over };
        DT_ASSERT(pthread_create(&thread[i], NULL, use, &u[i]) == 0);
    }
    for (int i = 0; i < KILLS; i++) {
        const int n = worker_pids(getpid(), pids);
        nap_ms((int)draw(&seed, 300));
        if (n > 0) (void)kill(pids[draw(&seed, (uint32_t)n)], i % 10 == 9 ? SIGSTOP : SIGKILL);
    }
    over = true;
    for (int i = 0; i < N; i++) {
        (void)pthread_join(thread[i], NULL);
        DT_ASSERT_EQ_STR(u[i].wrong, "");
        DT_ASSERT(u[i].n_well > 0 && u[i].n_ill > 0);
    }
    for (int i = 0; i < 2; i++) {
        DT_ASSERT_OK(dt_service_restart(m[i]));
        DT_ASSERT_OK(dt_service_generate(m[i], &prompt, 1, NULL, NULL, &g));
        dt_generated_release(&g);
        DT_ASSERT_OK(dt_service_unload(&m[i]));
    }
    DT_ASSERT_OK(dt_service_stop(&s));
    DT_ASSERT_EQ_INT(worker_pids(getpid(), pids), 0);
    DT_ASSERT_EQ_INT(dt_test_count_files("/proc/self/fd", ""), n_files);
    DT_ASSERT_EQ_INT(served_threads(), n_threads);
}
