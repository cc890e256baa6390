/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/worker_deaths.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/served.h"

static const char neo[] = "gpt_neo/base";
static const int32_t ids[] = { 5, 17, 3, 88, 42 };
static const dt_ids prompt = { ids, 5 };

void nap_ms(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    (void)nanosleep(&t, NULL);
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- processes -------------------------------------------------------------------------------- */

/* Its name, state and parent; false: there is none. */
static bool read_process(pid_t pid, char name[32], char *state, pid_t *parent)
{
    char path[64];
    long long above = 0;
    bool is;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    f = fopen(path, "re");
    if (f == NULL) return false;
    is = fscanf(f, "%*d (%31[^)]) %c %lld", name, state, &above) == 3;
    (void)fclose(f);
    *parent = (pid_t)above;
    return is;
}

bool worker_is_alive(pid_t pid)
{
    char name[32], state;
    pid_t parent;

    return read_process(pid, name, &state, &parent) && state != 'Z' && state != 'X';
}

int worker_pids(pid_t program, pid_t pids[MOST_WORKERS])
{
    DIR *all = opendir("/proc");
    int n = 0;

    for (const struct dirent *e; all != NULL && (e = readdir(all)) != NULL;) {
        const pid_t pid = (pid_t)atoi(e->d_name);
        char name[32], state;
        pid_t parent;
        int at = n;
        if (pid <= 0 || !read_process(pid, name, &state, &parent) || parent != program) continue;
        if (n == MOST_WORKERS) break;
        for (; at > 0 && pids[at - 1] > pid; at--) pids[at] = pids[at - 1];
        pids[at] = pid;
        n++;
    }
    if (all != NULL) (void)closedir(all);
    return n;
}

/* --- callers ---------------------------------------------------------------------------------- */

/* Runs until nobody wants it any more. */
static dt_status wait_here(dt_call *call, void *arg)
{
    (void)arg;
    DT_TRY(dt_call_reply(call, &(dt_piece){ 0 }));
    while (dt_call_goes_on(call)) nap_ms(1);
    return DT_OK;
}

dt_status worker_setup(dt_runtime *rt, void *arg)
{
    return dt_function_register(rt, "wait", wait_here, arg);
}

typedef struct caller {
    dt_served *model;
    const worker_death *death; /* of which this one is the cause; NULL: it waits for a text */
    pid_t victim;
    pthread_t thread;
    dt_status st;
    double ended_s;
    char message[DT_ERROR_MESSAGE_BYTES];
} caller;

static _Atomic bool has_died;
static double died_s;

static void strike(pid_t victim, int signal)
{
    died_s = now_s();
    DT_ASSERT(kill(victim, signal) == 0);
    has_died = true;
}

static bool on_token(void *arg, int64_t text, int64_t n, int32_t id)
{
    const caller *c = arg;

    (void)text;
    (void)id;
    if (n == 2) strike(c->victim, c->death->signal);
    return true;
}

static bool on_piece(void *arg, const dt_piece *piece)
{
    const caller *c = arg;

    (void)piece;
    while (c->death != NULL && !has_died) { /* until the others wait behind it */
        dt_service_counts k;
        if (dt_service_count(c->model, &k) == DT_OK && k.queued == 2)
            strike(c->victim, c->death->signal);
        nap_ms(1);
    }
    return true;
}

static dt_status cause(caller *c, dt_request_options *how)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_ticket *t = NULL;
    dt_generated *g = NULL;
    int64_t n;
    dt_status st;

    o.max_new_tokens = 55;
    o.ignore_eos = true;
    how->arg = c;
    if (c->death->when == DIES_QUEUED) {
        how->on_piece = on_piece;
        return dt_service_call(c->model, "wait", NULL, 0, how, NULL);
    }
    if (c->death->when == DIES_DECODING) how->on_token = on_token;
    st = dt_service_submit(c->model, &prompt, 1, &o, how, &t);
    if (c->death->when == DIES_PROMPT) {
        while (st == DT_OK && dt_ticket_progress(t, &n) == DT_TICKET_QUEUED) nap_ms(0);
        strike(c->victim, c->death->signal);
    }
    if (st == DT_OK) st = dt_ticket_wait(t, &g);
    dt_generated_release(&g);
    dt_ticket_release(&t);
    return st;
}

static void *call(void *arg)
{
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    caller *c = arg;
    dt_generated *g = NULL;

    o.max_new_tokens = 55;
    o.ignore_eos = true;
    c->st =
        c->death != NULL ? cause(c, &how) : dt_service_generate(c->model, &prompt, 1, &o, NULL, &g);
    if (c->st != DT_OK)
        (void)snprintf(c->message, sizeof c->message, "%s", dt_last_error()->message);
    c->ended_s = now_s();
    dt_generated_release(&g);
    return NULL;
}

/* --- a death ---------------------------------------------------------------------------------- */

static void expect_text(dt_served *m)
{
    dt_generated *g;

    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, NULL, NULL, &g));
    dt_generated_release(&g);
}

/* In words and in time. Requests that were done before are well. */
static void expect_named(const worker_death *d, const caller *c)
{
    const int each = d->n_ranks / d->n_processes, more = d->n_ranks % d->n_processes;
    const int rank = d->process * each + (d->process < more ? d->process : more);
    const double limit = d->signal == SIGKILL ? 2 : HANG_MS * 1e-3 + 2;
    char words[64];

    if (c->st == DT_OK) {
        DT_ASSERT(d->when == DIES_PROMPT || d->when == DIES_DECODING);
        return;
    }
    (void)snprintf(words, sizeof words, "%s: rank %d, ", neo, rank);
    DT_ASSERT_EQ_INT(c->st, DT_ERR_COMM);
    if (strstr(c->message, words) == NULL ||
        strstr(c->message, d->signal == SIGKILL ? "was killed by signal 9" : "is stopped") == NULL)
        dt_test_fail(__FILE__, __LINE__, "point %d, process %d: %s", (int)d->when, d->process,
                     c->message);
    if (c->ended_s - died_s > limit)
        dt_test_fail(__FILE__, __LINE__, "point %d: after %.1f s", (int)d->when,
                     c->ended_s - died_s);
}

static void die_while_asked(const worker_death *d, dt_served *m, pid_t victim)
{
    enum { N = 3 };
    caller c[N];

    for (int i = 0; i < N; i++) {
        c[i] = (caller){ .model = m, .death = i == 0 ? d : NULL, .victim = victim };
        if (d->when == DIES_IDLE) c[i].death = NULL;
    }
    if (d->when == DIES_IDLE && !has_died) strike(victim, d->signal);
    for (int i = 0; i < N; i++) {
        dt_service_counts k = { 0 };
        DT_ASSERT(pthread_create(&c[i].thread, NULL, call, &c[i]) == 0);
        while (i == 0 && d->when == DIES_QUEUED && k.running == 0) {
            DT_ASSERT_OK(dt_service_count(m, &k));
            nap_ms(1);
        }
    }
    for (int i = 0; i < N; i++) (void)pthread_join(c[i].thread, NULL);
    for (int i = 0; i < N; i++) expect_named(d, &c[i]);
}

typedef struct striker {
    pid_t victim;
    int signal;
} striker;

static void on_progress(void *arg, int64_t done, int64_t all)
{
    const striker *s = arg;

    (void)done;
    (void)all;
    if (!has_died) strike(s->victim, s->signal);
}

/* What was too quick is well, and the next requests are not. */
static void die_later(const worker_death *d, dt_served *m, pid_t victim)
{
    worker_death idle = *d;

    idle.when = DIES_IDLE;
    died_s = now_s();
    die_while_asked(&idle, m, victim);
}

static void die_while_loaded(const worker_death *d, dt_service *s, pid_t victim, dt_served **m)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    striker at_first = { victim, d->signal };
    char folder[DT_TEST_PATH_BYTES];

    how.progress = on_progress;
    how.progress_arg = &at_first;
    (void)dt_test_source_path(folder, "tests/golden/%s", neo);
    if (d->when == DIES_BEFORE_LOAD) strike(victim, d->signal);
    if (dt_service_load(s, folder, &how, m) != DT_OK) {
        const caller c = { .st = dt_last_error()->code, .ended_s = now_s() };
        caller said = c;
        (void)snprintf(said.message, sizeof said.message, "%s", dt_last_error()->message);
        expect_named(d, &said);
        how.progress = NULL;
        DT_ASSERT_OK(dt_service_load(s, folder, &how, m));
    } else if (d->when == DIES_LOADING) {
        die_later(d, *m, victim);
        DT_ASSERT_OK(dt_service_restart(*m));
    }
}

void worker_dies(const worker_death *d)
{
    const bool asked = d->when != DIES_BEFORE_LOAD && d->when != DIES_LOADING;
    const int n_files = dt_test_count_files("/proc/self/fd", ""), n_threads = served_threads();
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    pid_t pids[MOST_WORKERS];
    dt_served *m = NULL, *other;
    dt_service_counts counts;
    dt_service *s;

    has_died = false;
    run.n_ranks = d->n_ranks;
    run.timeout_ms = d->signal == SIGKILL ? 20000 : HANG_MS;
    run.setup = worker_setup;
    o.run = &run;
    served_as_processes(&o, &run, d->n_processes);
    DT_ASSERT_OK(dt_service_start(&o, &s));
    DT_ASSERT_EQ_INT(worker_pids(getpid(), pids), d->n_processes);
    if (asked)
        m = served_load(s, neo);
    else
        die_while_loaded(d, s, pids[d->process], &m);
    other = served_load(s, neo);
    if (asked) die_while_asked(d, m, pids[d->process]);
    expect_text(other);
    DT_ASSERT_OK(dt_service_count(m, &counts));
    if (asked && !counts.failed) die_later(d, m, pids[d->process]);
    if (asked) DT_ASSERT_OK(dt_service_restart(m));
    expect_text(m);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
    DT_ASSERT_OK(dt_service_unload(&other));
    DT_ASSERT_EQ_INT(worker_pids(getpid(), pids), 0);
    DT_ASSERT_EQ_INT(dt_test_count_files("/proc/self/fd", ""), n_files);
    DT_ASSERT_EQ_INT(served_threads(), n_threads);
}
