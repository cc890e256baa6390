/* SPDX-License-Identifier: Apache-2.0
 *
 * From a thread that calls dt_run() to its end. */
#include "service/worker.h"
#include "service/workers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/numbers.h"
#include "base/text.h"

/* What an end takes longer than a collective may, in nanoseconds; in milliseconds the longest wait
 * for one that has failed, and when it is looked at again. */
enum { GRACE = 2000000000, LAST_GRACE = 10000, TICK = 100 };

/* --- waiting ---------------------------------------------------------------------------------- */

int64_t dti_after(int64_t ns, int64_t ms)
{
    int64_t more;

    return dti_mul_i64(ms, 1000000, &more) && more < INT64_MAX - ns ? ns + more : INT64_MAX;
}

void dti_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

void dti_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns)
{
    struct timespec until = { (time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000) };

    if (until_ns == INT64_MAX)
        (void)pthread_cond_wait(cond, lock);
    else
        (void)pthread_cond_timedwait(cond, lock, &until);
}

/* --- failures --------------------------------------------------------------------------------- */

const char *dti_crew_busy_text(const dti_crew *c, int rank, char text[DTI_BUSY_BYTES])
{
    const dti_view *v = &c->views[rank];
    const long long number = atomic_load(&v->number), step = atomic_load(&v->step);

    switch ((dti_doing)atomic_load(&v->doing)) {
    case DTI_DOING_NOTHING:
        (void)snprintf(text, DTI_BUSY_BYTES, "waiting for work");
        break;
    case DTI_DOING_LOAD:
        (void)snprintf(text, DTI_BUSY_BYTES, "loading");
        break;
    case DTI_DOING_BEGIN:
        (void)snprintf(text, DTI_BUSY_BYTES, "begin of request %lld", number);
        break;
    case DTI_DOING_STEP:
        (void)snprintf(text, DTI_BUSY_BYTES, "step %lld of request %lld", step, number);
        break;
    case DTI_DOING_CALL:
        (void)snprintf(text, DTI_BUSY_BYTES, "call of request %lld", number);
        break;
    }
    return text;
}

/* A record that names the model, the rank and what it did. */
static void describe(dti_crew *c, int rank, const dt_error *why)
{
    char busy[DTI_BUSY_BYTES], shown[DTI_SHOWN_BYTES];

    c->error = *why;
    if (c->dir == NULL || rank < 0) return;
    (void)snprintf(c->error.message, sizeof c->error.message, "%s: rank %d, %s: %.*s",
                   dti_printable(c->dir, shown, sizeof shown), rank,
                   dti_crew_busy_text(c, rank, busy),
                   (int)(sizeof c->error.message - sizeof shown - sizeof busy - 32), why->message);
}

void dti_crew_wake(dti_crew *c)
{
    (void)pthread_cond_broadcast(&c->changed);
    if (c->workers != NULL) dti_pipe_wake(c->workers->wake);
}

/* Of a rank that was cut short and the one that did it the latter has more to say. */
void dti_crew_fail(dti_crew *c, int rank, const dt_error *why)
{
    if (c->host != NULL) dti_host_failed(c->host, rank, why);
    if (c->failing_ns == 0 || (c->error.code == DT_ERR_COMM && why->code != DT_ERR_COMM))
        describe(c, rank, why);
    if (c->failing_ns != 0) return;
    c->failing_ns = dti_now_ns();
    c->counts.failed = true;
    dti_crew_wake(c);
    for (int i = 0; i < DTI_MAX_RUNNING; i++)
        if (c->running[i] != NULL) (void)pthread_cond_broadcast(&c->running[i]->changed);
    for (dt_ticket *t = c->queue; t != NULL; t = t->next) (void)pthread_cond_broadcast(&t->changed);
}

void dti_crew_give_up(dti_crew *c)
{
    dt_error how = c->error;

    if (c->failing_ns == 0) {
        how = (dt_error){ .code = DT_ERR_COMM, .rank = -1 };
        (void)snprintf(
            how.message, sizeof how.message,
            "the model was unloaded, or its service stopped, before the request was over");
    }
    while (c->queue != NULL) {
        dt_ticket *t = c->queue;
        c->queue = t->next;
        c->counts.queued--;
        dti_ticket_finish_locked(t, &how);
        dti_ticket_release(&t);
    }
    for (int i = 0; i < DTI_MAX_RUNNING; i++)
        if (c->running[i] != NULL) dti_ticket_finish_locked(c->running[i], &how);
}

dt_status dti_crew_check(const dti_crew *c)
{
    if (c->failing_ns != 0) {
        dti_error_restore(&c->error);
        return dti_error_frame(c->error.code, __func__, __FILE__, __LINE__);
    }
    DT_CHECK(!atomic_load(&c->quits) && !c->ended, DT_ERR_COMM,
             "the model was unloaded, or its service stopped");
    return DT_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

dti_crew *dti_crew_retain(dti_crew *c)
{
    (void)atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void dti_crew_release(dti_crew *c)
{
    if (c == NULL || atomic_fetch_sub(&c->refs, 1) != 1) return;
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->changed);
    dti_crew_forget_folder(c);
    dti_free(c->defaults_packet.bytes);
    dti_arena_free(&c->defaults_lists.arena);
    if (c->workers != NULL)
        dti_workers_free(c->workers);
    else
        dti_big_free(c->views, dti_views_bytes(c->run.n_ranks));
    dti_free(c->dir);
    dti_free(c);
}

static void *crew_main(void *arg)
{
    dti_crew *c = arg;
    const dt_status st =
        c->workers != NULL ? dti_workers_run(c) : dt_run(&c->run, dti_crew_rank_main, c);

    (void)pthread_mutex_lock(&c->lock);
    if (st != DT_OK) dti_crew_fail(c, dt_last_error()->rank, dt_last_error());
    c->ended = true;
    dti_crew_give_up(c);
    for (int i = 0; i < DTI_MAX_RUNNING; i++) dti_ticket_release(&c->running[i]);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    dti_crew_release(c);
    return NULL;
}

/* The host's signals are for its own threads. */
static dt_status start_thread(dti_crew *c)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGSEGV);
    (void)sigdelset(&all, SIGBUS);
    (void)sigdelset(&all, SIGFPE);
    (void)sigdelset(&all, SIGILL);
    (void)sigdelset(&all, SIGABRT);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&c->thread, NULL, crew_main, dti_crew_retain(c));
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        c->thread_runs = true;
        return DT_OK;
    }
    dti_crew_release(c);
    DT_FAIL(DT_ERR_MEMORY, "the thread of a model's ranks could not be started (%s)",
            strerror(error));
}

static dt_status check_ready(const dti_crew *c, int64_t start_ms)
{
    char text[128] = "";
    size_t n = 0;
    int missing = 0;

    DT_TRY(dti_crew_check(c));
    for (int r = 0; r < c->run.n_ranks; r++) {
        if (atomic_load(&c->views[r].ready)) continue;
        missing++;
        if (n < sizeof text - 16)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", n > 0 ? ", " : "", r);
    }
    DT_CHECK(missing == 0, DT_ERR_COMM, "%d of %d ranks not ready after %lld ms: rank %s", missing,
             c->run.n_ranks, (long long)start_ms, text);
    return DT_OK;
}

static dt_status make_crew(const dt_service_options *options, dti_crew **out)
{
    dti_crew *c;
    dt_status st;

    DT_TRY(dti_new(sizeof *c, &c));
    c->refs = 1;
    c->run = *options->run;
    c->max_queued = options->max_queued;
    c->max_running = options->max_running;
    c->launched = options->launched;
    if (options->engine != NULL) c->engine = *options->engine;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->far_lock, NULL);
    dti_cond_init(&c->changed);
    st = options->processes > 0
             ? dti_workers_create(c, options)
             : dti_big_alloc(dti_views_bytes(c->run.n_ranks), (void **)&c->views);
    *out = c;
    if (st != DT_OK) dti_crew_release(c);
    return st;
}

dt_status dti_crew_follow(const dt_service_options *options)
{
    dti_crew *c;
    dt_status st;

    DT_TRY(make_crew(options, &c));
    c->far = true;
    st = dt_run(&c->run, dti_crew_rank_main, c);
    dti_crew_release(c);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_crew_start(const dt_service_options *options, dti_crew **out)
{
    const int64_t until = dti_after(dti_now_ns(), options->start_ms);
    dt_error why;
    dti_crew *c;
    dt_status st;

    DT_TRY(make_crew(options, &c));
    st = start_thread(c);
    if (st != DT_OK) {
        dti_crew_release(c);
        return st;
    }
    (void)pthread_mutex_lock(&c->lock);
    while (c->n_ready < c->run.n_ranks && !c->ended && dti_now_ns() < until)
        dti_cond_wait(&c->changed, &c->lock, until);
    st = check_ready(c, options->start_ms);
    (void)pthread_mutex_unlock(&c->lock);
    *out = c;
    if (st == DT_OK) return DT_OK;
    why = *dt_last_error();
    (void)pthread_mutex_lock(&c->lock);
    dti_crew_fail(c, -1, &why); /* a rank that is not ready may never be */
    (void)pthread_mutex_unlock(&c->lock);
    (void)dti_crew_end(out);
    dti_error_restore(&why);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

/* --- far from who waits ----------------------------------------------------------------------- */

dt_status dti_crew_keep_folder(dti_crew *c, const char *dir)
{
    dt_status st;

    (void)pthread_mutex_lock(&c->far_lock);
    st = c->far_dir == NULL ? dti_strdup(dir, &c->far_dir) : DT_OK;
    (void)pthread_mutex_unlock(&c->far_lock);
    return st;
}

dt_status dti_crew_put_tokenizer(dti_crew *c, char *bytes)
{
    dt_tokenizer *tokenizer;
    dt_status st = DT_OK;

    memcpy(&tokenizer, bytes + offsetof(dt_generate_options, tokenizer), sizeof tokenizer);
    if (tokenizer == NULL) return DT_OK;
    (void)pthread_mutex_lock(&c->far_lock);
    if (c->far_tokenizer == NULL) st = dt_tokenizer_open(c->far_dir, &c->far_tokenizer);
    tokenizer = c->far_tokenizer;
    (void)pthread_mutex_unlock(&c->far_lock);
    memcpy(bytes + offsetof(dt_generate_options, tokenizer), &tokenizer, sizeof tokenizer);
    return st;
}

void dti_crew_forget_folder(dti_crew *c)
{
    dt_tokenizer_release(&c->far_tokenizer);
    dti_free(c->far_dir);
    c->far_dir = NULL;
    (void)pthread_mutex_destroy(&c->far_lock);
}

/* --- end -------------------------------------------------------------------------------------- */

void dti_crew_quit(dti_crew *c)
{
    (void)pthread_mutex_lock(&c->lock);
    atomic_store(&c->quits, true);
    dti_crew_wake(c);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Until when an end is waited for: as long as ranks show that they are alive. */
static int64_t patience(const dti_crew *c, int64_t asked_ns)
{
    int64_t beat = dti_max(c->failing_ns, asked_ns);

    if (c->failing_ns != 0)
        return dti_min(dti_after(beat, LAST_GRACE), dti_after(beat + GRACE, c->run.timeout_ms));
    for (int r = 0; r < c->run.n_ranks; r++)
        beat = dti_max(beat, atomic_load(&c->views[r].beat_ns));
    return dti_after(beat + GRACE, c->run.timeout_ms);
}

static dt_status wait_for_end(dti_crew *c)
{
    const int64_t asked = dti_now_ns();
    char busy[DTI_BUSY_BYTES];
    int64_t now;
    int stuck = 0;

    while (!c->ended && (now = dti_now_ns()) < patience(c, asked))
        dti_cond_wait(&c->changed, &c->lock, dti_after(now, TICK));
    if (c->ended) return DT_OK;
    for (int r = c->run.n_ranks - 1; r >= 0; r--)
        if (!atomic_load(&c->views[r].left) &&
            (atomic_load(&c->views[r].doing) != DTI_DOING_NOTHING ||
             !atomic_load(&c->views[r].ready)))
            stuck = r;
    dti_crew_give_up(c);
    DT_FAIL(DT_ERR_COMM,
            "%s: rank %d does not return (%s): its threads and memory stay until it does",
            c->dir != NULL ? c->dir : "a service", stuck,
            atomic_load(&c->views[stuck].ready) ? dti_crew_busy_text(c, stuck, busy)
                                                : "it is not ready");
}

dt_status dti_crew_end(dti_crew **crew)
{
    dti_crew *c = *crew;
    dt_status st;

    *crew = NULL;
    if (c == NULL) return DT_OK;
    dti_crew_quit(c);
    (void)pthread_mutex_lock(&c->lock);
    st = wait_for_end(c);
    (void)pthread_mutex_unlock(&c->lock);
    if (st == DT_OK)
        (void)pthread_join(c->thread, NULL);
    else
        (void)pthread_detach(c->thread);
    dti_crew_release(c);
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    return st;
}
