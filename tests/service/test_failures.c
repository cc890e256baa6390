/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that fail, hang and leave: who waits hears which one, in time; the rest goes on. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/served.h"

static const char neo[] = "gpt_neo/base";
static const int32_t ids[] = { 5, 17, 3, 88, 42 };
static const dt_ids prompt = { ids, 5 };

enum { TIMEOUT = 600 };

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    (void)nanosleep(&t, NULL);
}

/* --- what goes wrong -------------------------------------------------------------------------- */

typedef enum fate { FAIL, HANG, LEAVE } fate;

/* Which rank does what. */
typedef struct wrong {
    int rank;
    fate fate;
} wrong;

/* Until when ranks hang; those in worker processes until they are killed. */
static _Atomic bool over;

static dt_status go_wrong(dt_call *call, void *arg)
{
    wrong w;

    (void)arg;
    memcpy(&w, dt_call_input(call, 0)->data, sizeof w);
    if (dt_runtime_rank(dt_mesh_runtime(dt_model_mesh(dt_call_model(call)))) != w.rank)
        return DT_OK;
    if (w.fate == FAIL) return dt_fail(DT_ERR_MEMORY, "no memory for me");
    if (w.fate == LEAVE) pthread_exit(NULL);
    while (!over) nap(5);
    return DT_OK;
}

static dt_status add_wrong(dt_runtime *rt, void *arg)
{
    return dt_function_register(rt, "go_wrong", go_wrong, arg);
}

/* A thread that asks for a text, or for what goes wrong. */
typedef struct asker {
    dt_served *model;
    wrong *wrong; /* NULL: a text */
    pthread_t thread;
    dt_status st;
    double took_s;
    char message[DT_ERROR_MESSAGE_BYTES];
} asker;

static void *ask(void *arg)
{
    asker *a = arg;
    const dt_piece input = { .data = a->wrong, .n_bytes = sizeof *a->wrong };
    const double begin = now_s();
    dt_generated *g = NULL;

    a->st = a->wrong != NULL ? dt_service_call(a->model, "go_wrong", &input, 1, NULL, NULL)
                             : dt_service_generate(a->model, &prompt, 1, NULL, NULL, &g);
    if (a->st != DT_OK)
        (void)snprintf(a->message, sizeof a->message, "%s", dt_last_error()->message);
    a->took_s = now_s() - begin;
    dt_generated_release(&g);
    return NULL;
}

static void begin_to_ask(asker *a, dt_served *model, wrong *w)
{
    *a = (asker){ .model = model, .wrong = w };
    DT_ASSERT(pthread_create(&a->thread, NULL, ask, a) == 0);
}

static void expect_text(dt_served *m)
{
    dt_generated *g;

    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, NULL, NULL, &g));
    dt_generated_release(&g);
}

static void wait_for_threads(int n)
{
    for (int i = 0; i < 1000 && served_threads() > n; i++) nap(10);
    DT_ASSERT_EQ_INT(served_threads(), n);
}

/* One asks for what goes wrong, others wait behind it: all hear of it in time, by these words.
 * Another model goes on, and a restart makes the model well. */
static void try_fate(int n_ranks, int rank, fate what, const char *said)
{
    enum { N = 4 };
    const int threads = served_threads();
    dt_service *s = served_start(n_ranks, TIMEOUT, add_wrong);
    dt_served *m = served_load(s, neo), *other = served_load(s, neo);
    wrong w = { rank, what };
    dt_service_counts counts;
    dt_generated *g;
    asker a[N];

    over = false;
    begin_to_ask(&a[0], m, &w);
    do {
        nap(1);
        DT_ASSERT_OK(dt_service_count(m, &counts));
    } while (counts.running == 0 && !counts.failed);
    for (int i = 1; i < N; i++) begin_to_ask(&a[i], m, NULL);
    for (int i = 0; i < N; i++) {
        (void)pthread_join(a[i].thread, NULL);
        DT_ASSERT_EQ_INT(a[i].st, what == FAIL ? DT_ERR_MEMORY : DT_ERR_COMM);
        if (strstr(a[i].message, said) == NULL || strstr(a[i].message, neo) == NULL ||
            strstr(a[i].message, "call of request 1") == NULL)
            dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", said, a[i].message);
        DT_ASSERT(a[i].took_s < TIMEOUT * 1e-3 + 3);
    }
    expect_text(other);
    DT_ASSERT(dt_service_generate(m, &prompt, 1, NULL, NULL, &g) != DT_OK);
    DT_ASSERT_OK(dt_service_count(m, &counts));
    DT_ASSERT(counts.failed && counts.failures >= 1);
    DT_ASSERT_OK(dt_service_restart(m)); /* the one that hangs stays behind */
    expect_text(m);
    DT_ASSERT_OK(dt_service_count(m, &counts));
    DT_ASSERT(!counts.failed && counts.done == 1);
    over = true;
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_unload(&other));
    DT_ASSERT_OK(dt_service_stop(&s));
    wait_for_threads(threads);
}

DT_TEST(failures, a_rank_that_fails_is_named_to_all_who_wait)
{
    try_fate(2, 1, FAIL, "rank 1, call of request 1: no memory for me");
    try_fate(3, 0, FAIL, "rank 0, call of request 1: no memory for me");
    try_fate(1, 0, FAIL, "no memory for me");
}

DT_TEST(failures, a_rank_that_leaves_is_named_to_all_who_wait)
{
    try_fate(2, 1, LEAVE, "rank 1 has left: its thread ended");
}

DT_TEST(failures, a_rank_that_hangs_is_named_to_all_who_wait)
{
    try_fate(2, 1, HANG, "rank 1 has not arrived");
}

DT_TEST(failures, one_of_more_ranks_that_hangs_is_named)
{
    dt_test_long();
    try_fate(3, 2, HANG, "rank 2 has not arrived");
}

DT_TEST(failures, that_the_first_rank_hangs_is_noticed_by_who_waits)
{
    dt_test_long();
    try_fate(1, 0, HANG, "rank 0, call of request 1: it has shown no sign of life");
}

DT_TEST(failures, a_stop_names_the_rank_that_does_not_return)
{
    const int threads = served_threads();
    wrong w = { 1, HANG };
    dt_service *s;
    dt_served *m;
    double begin;
    asker a;

    dt_test_long();
    s = served_start(2, TIMEOUT, add_wrong);
    m = served_load(s, neo);
    begin_to_ask(&a, m, &w);
    (void)pthread_join(a.thread, NULL);
    begin = now_s();
    if (getenv("DTENSOR_TEST_PROCESSES") != NULL) /* which can be killed */
        DT_ASSERT_OK(dt_service_stop(&s));
    else
        DT_ASSERT_STATUS(dt_service_stop(&s), DT_ERR_COMM, "rank 1 does not return");
    DT_ASSERT(now_s() - begin < 10);
    DT_ASSERT_OK(dt_service_unload(&m));
    over = true;
    wait_for_threads(threads);
}

/* --- a stop in the middle --------------------------------------------------------------------- */

DT_TEST(failures, a_stop_ends_requests_under_way)
{
    for (int i = 0; i < 6; i++) {
        dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
        dt_service *s = served_start(2, 20000, NULL);
        dt_served *m = served_load(s, neo);
        dt_generated *g;
        dt_ticket *t[6];

        o.max_new_tokens = 55;
        o.ignore_eos = true;
        for (int k = 0; k < 6; k++) DT_ASSERT_OK(dt_service_submit(m, &prompt, 1, &o, NULL, &t[k]));
        nap(i);
        if (i % 2 == 0) DT_ASSERT_OK(dt_service_unload(&m));
        DT_ASSERT_OK(dt_service_stop(&s));
        for (int k = 5; k >= 0; k--) {
            if (dt_ticket_wait(t[k], &g) != DT_OK)
                DT_ASSERT_EQ_INT(dt_last_error()->code, DT_ERR_COMM);
            dt_generated_release(&g);
            dt_ticket_release(&t[k]);
        }
        if (m != NULL)
            DT_ASSERT_STATUS(dt_service_generate(m, &prompt, 1, NULL, NULL, &g), DT_ERR_COMM,
                             "stopped");
        DT_ASSERT_OK(dt_service_unload(&m));
    }
}

typedef struct late_load {
    dt_service *service;
    _Atomic bool loads, stops, goes_on, stopped;
    dt_status st;
    dt_error why;
} late_load;

static void hold_up(void *arg, int64_t done, int64_t all)
{
    late_load *l = arg;

    (void)done;
    (void)all;
    l->loads = true;
    while (!l->stops) nap(1);
    nap(50);
    l->goes_on = true;
}

static void *load_late(void *arg)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    late_load *l = arg;
    dt_served *m;

    how.progress = hold_up;
    how.progress_arg = l;
    l->st =
        dt_service_load(l->service, dt_test_source_path(folder, "tests/golden/%s", neo), &how, &m);
    l->why = *dt_last_error();
    while (!l->stopped) nap(1);
    return NULL;
}

DT_TEST(failures, a_stop_finds_a_model_that_is_being_loaded)
{
    const int threads = served_threads();
    late_load l = { .service = served_start(2, 20000, NULL) };
    pthread_t loader;

    DT_ASSERT_EQ_INT(pthread_create(&loader, NULL, load_late, &l), 0);
    while (!l.loads) nap(1);
    l.stops = true;
    DT_ASSERT_OK(dt_service_stop(&l.service));
    DT_ASSERT(l.goes_on);          /* the stop has waited for it */
    wait_for_threads(threads + 1); /* the loader itself */
    l.stopped = true;
    DT_ASSERT_EQ_INT(pthread_join(loader, NULL), 0);
    DT_ASSERT_EQ_INT(l.st, DT_ERR_COMM);
    DT_ASSERT(strstr(l.why.message, "stopped") != NULL);
}

/* --- all at once ------------------------------------------------------------------------------ */

typedef struct user {
    dt_service *service;
    dt_served *model;
    uint32_t seed;
    int n;
    bool restarts;
    bool odd; /* something other than an end that there may be */
} user;

static uint32_t draw(user *u, uint32_t below)
{
    u->seed = u->seed * 1664525u + 1013904223u;
    return (u->seed >> 8) % below;
}

/* Asks, cancels, leaves; what ends under a restart says so. */
static void *use(void *arg)
{
    user *u = arg;

    for (int i = 0; i < u->n; i++) {
        dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
        dt_request_options how = DT_REQUEST_OPTIONS_INIT;
        dt_rank_memory ranks[2];
        dt_generated *g = NULL;
        dt_ticket *t = NULL;
        dt_status st;

        o.max_new_tokens = 1 + draw(u, 12);
        o.num_beams = draw(u, 5) == 0 ? 2 : 1;
        how.priority = (int)draw(u, 3);
        how.deadline_ms = draw(u, 4) == 0 ? 1 + draw(u, 20) : 0;
        st = dt_service_submit(u->model, &prompt, 1, &o, &how, &t);
        if (st == DT_OK && draw(u, 3) == 0) dt_ticket_cancel(t);
        if (st == DT_OK && draw(u, 3) > 0) st = dt_ticket_wait(t, &g);
        if (u->restarts && i % 10 == 5) st = dt_service_restart(u->model);
        if (st != DT_OK && st != DT_ERR_COMM) u->odd = true;
        if (g != NULL && dt_generated_ids(g, 0).n > o.max_new_tokens) u->odd = true;
        if (dt_service_memory(u->service, NULL, ranks, NULL) != DT_OK) u->odd = true;
        dt_generated_release(&g);
        dt_ticket_release(&t);
    }
    return NULL;
}

static void use_from_many(int n_each)
{
    enum { N = 4 };
    const int threads = served_threads();
    dt_service *s = served_start(2, 20000, add_wrong);
    dt_served *m = served_load(s, neo);
    pthread_t thread[N];
    user u[N];

    for (int i = 0; i < N; i++) {
        u[i] = (user){ s, m, (uint32_t)i, n_each, i == 0, false };
        DT_ASSERT(pthread_create(&thread[i], NULL, use, &u[i]) == 0);
    }
    for (int i = 0; i < n_each / 10; i++) {
        nap(5);
        DT_ASSERT_OK(dt_service_restart(m));
    }
    for (int i = 0; i < N; i++) {
        (void)pthread_join(thread[i], NULL);
        DT_ASSERT(!u[i].odd);
    }
    expect_text(m);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
    wait_for_threads(threads);
}

DT_TEST(failures, threads_ask_and_cancel_while_a_model_is_restarted)
{
    use_from_many(30);
}

DT_TEST(failures, threads_ask_and_cancel_for_long)
{
    dt_test_long();
    use_from_many(1000);
}

/* --- at each collective ----------------------------------------------------------------------- */

/* A rank fails at its n-th collective, wherever that is: in the load, in a prompt, in a step, in a
 * call. Everything ends, and what ends badly names the rank. */
DT_TEST(failures, a_rank_may_fail_at_each_collective)
{
    const int threads = served_threads();
    char folder[DT_TEST_PATH_BYTES];
    bool reached = true;
    int n = 0;

    (void)dt_test_source_path(folder, "tests/golden/%s", neo);
    for (int at = 1; reached; at += getenv("DTENSOR_LONG") != NULL ? 1 : 1 + at / 3, n++) {
        dt_service_options o = DT_SERVICE_OPTIONS_INIT;
        dt_run_options run = DT_TEST_RUN_OPTIONS;
        char fault[64];
        dt_service *s;
        dt_served *m = NULL;
        dt_generated *g = NULL;
        dt_status st;

        (void)snprintf(fault, sizeof fault, "rank=1,op=any,call=%d", at);
        run.n_ranks = 2;
        run.fault = fault;
        run.timeout_ms = 5000;
        o.run = &run;
        (void)served_place(&o, &run);
        st = dt_service_start(&o, &s);
        if (st == DT_OK) st = dt_service_load(s, folder, NULL, &m);
        if (st == DT_OK) st = dt_service_generate(m, &prompt, 1, NULL, NULL, &g);
        reached = st != DT_OK;
        if (st != DT_OK && strstr(dt_last_error()->message, "rank 1") == NULL)
            dt_test_fail(__FILE__, __LINE__, "call %d: %s", at, dt_last_error()->message);
        dt_generated_release(&g);
        DT_ASSERT_OK(dt_service_unload(&m));
        DT_ASSERT_OK(dt_service_stop(&s));
    }
    DT_ASSERT(n > 5);
    wait_for_threads(threads);
}
