/* SPDX-License-Identifier: Apache-2.0
 *
 * Services and the models that they have loaded. */
#include "service/waiter.h"

#include <dtensor/modules.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "dtensor/device/device_memory.h"
#include "mesh/launch.h"
#include "service/served.h"
#include "service/workers.h"

/* --- services --------------------------------------------------------------------------------- */

static void release_service(dt_service *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1) return;
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->loaded);
    dti_free(s);
}

dt_status dti_modules_add(dt_runtime *rt, const char *const *paths, int n)
{
    for (int i = 0; i < n; i++) {
        dt_module *m;
        dt_status st;
        DT_TRY(dt_module_open(paths[i], &m));
        st = dt_module_add(rt, m);
        dt_module_release(&m);
        DT_TRY(st);
    }
    return DT_OK;
}

/* What ranks have that are threads. */
static dt_status set_up(dt_runtime *rt, void *arg)
{
    const dt_service *s = arg;

    DT_TRY(dti_modules_add(rt, s->options.modules, s->options.n_modules));
    return s->setup != NULL ? s->setup(rt, s->setup_arg) : DT_OK;
}

static dt_status check_processes(const dt_service_options *o, const dt_run_options *run)
{
    DT_CHECK(o->processes >= 0 && o->processes <= run->n_ranks, DT_ERR_ARG,
             "processes is %d, not in 0..%d (n_ranks)", o->processes, run->n_ranks);
    DT_CHECK(o->n_modules >= 0 && (o->n_modules == 0 || o->modules != NULL), DT_ERR_ARG,
             "%d modules at %p", o->n_modules, (const void *)o->modules);
    DT_CHECK(
        o->processes == 0 || run->setup == NULL || o->worker != NULL, DT_ERR_ARG,
        "dt_run_options.setup is a function of this process, which the program of workers does "
        "not have: put what it registers into a module (dt_service_options.modules), or let "
        "this program be its own worker (dt_service_options.worker, dt_service_work())");
    DT_CHECK(!dti_launch_is_worker(), DT_ERR_UNSUPPORTED,
             "this program was started as the worker of a service, but does not call "
             "dt_service_work()");
    return DT_OK;
}

/* Ranks of several processes are as many as dt_run() makes of them. */
static dt_status check_launch(const dt_service_options *o, dt_run_options *run)
{
    const int n = dt_launch_size();

    DT_CHECK(n == 1 || o->launched, DT_ERR_UNSUPPORTED,
             "this program is one of %d processes that a launcher started: set "
             "dt_service_options.launched, so that their ranks serve, or start it alone",
             n);
    DT_CHECK(!o->launched || o->processes == 0, DT_ERR_ARG,
             "launched is set, and processes is %d: the launcher's processes are the ranks'",
             o->processes);
    if (n > 1 && run->n_ranks == 1) run->n_ranks = n;
    return DT_OK;
}

/* Whose place among the processes of the launcher is the first. */
static dt_status check_place(bool leads)
{
    dti_launch launch;

    DT_TRY(dti_launch_read(&launch));
    DT_CHECK(launch.n_processes == 1 || (launch.process == 0) == leads, DT_ERR_ARG,
             "this is process %d of %d: process 0 calls dt_service_start(), the others "
             "dt_service_follow()",
             launch.process, launch.n_processes);
    return DT_OK;
}

static dt_status read_options(const dt_service_options *options, dt_service *s)
{
    static const dt_service_options by_default = DT_SERVICE_OPTIONS_INIT;
    static const dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_service_options *o = &s->options;

    *o = by_default;
    s->run = run;
    DT_TRY(dti_options_read("dt_service_options", "start from DT_SERVICE_OPTIONS_INIT", options, o,
                            sizeof *o));
    DT_TRY(dti_options_read("dt_run_options", "start from DT_RUN_OPTIONS_INIT", o->run, &s->run,
                            sizeof s->run));
    o->run = &s->run;
    s->engine = (dt_engine_options)DT_ENGINE_OPTIONS_INIT;
    DT_TRY(dti_options_read("dt_engine_options", "start from DT_ENGINE_OPTIONS_INIT", o->engine,
                            &s->engine, sizeof s->engine));
    if (o->engine != NULL) o->engine = &s->engine;
    DT_CHECK(s->run.n_ranks >= 1, DT_ERR_ARG, "n_ranks is %d", s->run.n_ranks);
    DT_CHECK(o->max_queued >= 1, DT_ERR_ARG, "max_queued is %lld", (long long)o->max_queued);
    DT_CHECK(o->max_running >= 1 && o->max_running <= DTI_MAX_RUNNING, DT_ERR_ARG,
             "max_running is %d, not in 1..%d", o->max_running, (int)DTI_MAX_RUNNING);
    DT_CHECK(o->start_ms >= 1, DT_ERR_ARG, "start_ms is %lld", (long long)o->start_ms);
    DT_TRY(check_processes(o, &s->run));
    if (o->n_modules > 0 && o->processes == 0) {
        s->setup = s->run.setup;
        s->setup_arg = s->run.setup_arg;
        s->run.setup = set_up;
        s->run.setup_arg = s;
    }
    return check_launch(o, &s->run);
}

dt_status dt_service_start(const dt_service_options *options, dt_service **out)
{
    dt_status st = DT_OK;
    dt_service *s;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_new(sizeof *s, &s));
    s->refs = 1;
    (void)pthread_mutex_init(&s->lock, NULL);
    dti_cond_init(&s->loaded);
    DT_TRY_TO(fail, st, read_options(options, s));
    DT_TRY_TO(fail, st, check_place(true));
    DT_TRY_TO(fail, st, dti_crew_start(&s->options, &s->spare));
    *out = s;
    return DT_OK;

fail:
    release_service(s);
    return st;
}

dt_status dt_service_follow(const dt_service_options *options)
{
    dt_status st = DT_OK;
    dt_service *s;

    DT_TRY(dti_new(sizeof *s, &s));
    s->refs = 1;
    (void)pthread_mutex_init(&s->lock, NULL);
    dti_cond_init(&s->loaded);
    DT_TRY_TO(done, st, read_options(options, s));
    DT_CHECK_TO(done, st, s->options.launched && dt_launch_size() > 1, DT_ERR_ARG,
                "dt_service_follow() is for processes that a launcher started, with "
                "dt_service_options.launched");
    DT_TRY_TO(done, st, check_place(false));
    DT_TRY_TO(done, st, dti_crew_follow(&s->options));
done:
    release_service(s);
    return st;
}

static dti_crew *take_crew(dt_served *m)
{
    dti_crew *c;

    (void)pthread_mutex_lock(&m->lock);
    c = m->crew;
    m->crew = NULL;
    (void)pthread_mutex_unlock(&m->lock);
    return c;
}

/* A crew of the service; NULL: it has no more. */
static dti_crew *take_any(dt_service *s)
{
    dti_crew *c;

    (void)pthread_mutex_lock(&s->lock);
    c = s->spare;
    s->spare = NULL;
    for (dt_served *m = s->models; m != NULL && c == NULL; m = m->next) c = take_crew(m);
    (void)pthread_mutex_unlock(&s->lock);
    return c;
}

/* All are asked before one is waited for; a crew that is being loaded is ended by who loads. */
dt_status dt_service_stop(dt_service **service)
{
    dt_service *s = service != NULL ? *service : NULL;
    dt_error first = { .code = DT_OK };

    if (s == NULL) return DT_OK;
    *service = NULL;
    (void)pthread_mutex_lock(&s->lock);
    s->stopped = true;
    for (dt_served *m = s->models; m != NULL; m = m->next) {
        (void)pthread_mutex_lock(&m->lock);
        if (m->crew != NULL) dti_crew_quit(m->crew);
        if (m->loading != NULL) dti_crew_quit(m->loading);
        (void)pthread_mutex_unlock(&m->lock);
    }
    while (s->n_loading > 0) dti_cond_wait(&s->loaded, &s->lock, INT64_MAX);
    (void)pthread_mutex_unlock(&s->lock);
    for (dti_crew *c; (c = take_any(s)) != NULL;)
        if (dti_crew_end(&c) != DT_OK && first.code == DT_OK) first = *dt_last_error();
    release_service(s);
    if (first.code != DT_OK) dti_error_restore(&first);
    return first.code;
}

int dt_service_n_ranks(const dt_service *s)
{
    return s != NULL ? s->run.n_ranks : 0;
}

/* --- models ----------------------------------------------------------------------------------- */

static void release_served(dt_served *m)
{
    if (m == NULL) return;
    dt_tokenizer_release(&m->tokenizer);
    dt_chat_release(&m->chat);
    (void)pthread_mutex_destroy(&m->lock);
    (void)pthread_mutex_destroy(&m->restarting);
    release_service(m->service);
    dti_free(m->dir);
    dti_free(m);
}

static dt_status create_served(dt_service *s, const char *dir, const dt_parallelize_options *how,
                               dt_served **out)
{
    dt_served *m;

    DT_TRY(dti_new(sizeof *m, &m));
    m->service = s;
    (void)atomic_fetch_add(&s->refs, 1);
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_mutex_init(&m->restarting, NULL);
    m->how = *how;
    *out = m;
    return dti_strdup(dir, &m->dir);
}

static bool has_died(dti_crew *c)
{
    bool died;

    (void)pthread_mutex_lock(&c->lock);
    died = c->failing_ns != 0;
    (void)pthread_mutex_unlock(&c->lock);
    return died;
}

/* A crew that has no model: the one that the service was started with, or a new one. */
static dt_status take_spare(dt_service *s, dti_crew **out)
{
    (void)pthread_mutex_lock(&s->lock);
    *out = s->spare;
    s->spare = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    if (*out != NULL && has_died(*out)) (void)dti_crew_end(out); /* it had nothing to lose */
    if (*out != NULL) return DT_OK;
    DT_CHECK(!s->options.launched, DT_ERR_UNSUPPORTED,
             "a service over the processes of a launcher has one model, once: stop it, and start "
             "another with dt_service_follow() in the other processes");
    return dti_crew_start(&s->options, out);
}

/* Of a crew whose ranks are elsewhere: wherever this process is, they were started before. */
static dt_status put_load(const dti_crew *c, dti_packet *p)
{
    char folder[PATH_MAX];
    size_t n;

    if (c->workers == NULL && !c->launched) return DT_OK;
    if (c->dir[0] == '/' || getcwd(folder, sizeof folder) == NULL) folder[0] = '\0';
    n = strlen(folder);
    if (n > 0) (void)snprintf(folder + n, sizeof folder - n, "/%s", c->dir);
    DT_TRY(dti_packet_put_text(p, n > 0 ? folder : c->dir));
    return dti_packet_put_how(p, &c->how);
}

static dt_status load_on(dti_crew *c, const dt_served *m)
{
    static const dt_request_options by_default = DT_REQUEST_OPTIONS_INIT;
    dt_ticket *t = NULL;
    dt_status st;

    DT_TRY(dti_strdup(m->dir, &c->dir));
    c->how = m->how;
    DT_TRY(dti_ticket_create(c, DTI_TICKET_LOAD, &by_default, &t));
    DT_TRY_TO(done, st, dti_waiter_create(&by_default, 0, &t->waiter));
    t->waiter->progress = m->how.progress;
    t->waiter->progress_arg = m->how.progress_arg;
    DT_TRY_TO(done, st, put_load(c, &t->packet));
    DT_TRY_TO(done, st, dti_ticket_queue(t));
    DT_TRY_TO(done, st, dti_ticket_wait(t));
done:
    dti_ticket_release(&t);
    return st;
}

/* From here to the end of it, a stop waits. Errors: there was one. */
static dt_status begin_loading(dt_service *s)
{
    bool stopped;

    (void)pthread_mutex_lock(&s->lock);
    stopped = s->stopped;
    s->n_loading += !stopped;
    (void)pthread_mutex_unlock(&s->lock);
    DT_CHECK(!stopped, DT_ERR_COMM, "the service was stopped");
    return DT_OK;
}

static void end_loading(dt_service *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->n_loading--;
    (void)pthread_cond_broadcast(&s->loaded);
    (void)pthread_mutex_unlock(&s->lock);
}

/* Which crew a stop asks to end while it loads (NULL: none), and which one serves. */
static dt_status set_crews(dt_served *m, dti_crew *loading, dti_crew *crew)
{
    dt_service *s = m->service;
    bool stopped;

    (void)pthread_mutex_lock(&s->lock);
    (void)pthread_mutex_lock(&m->lock);
    stopped = s->stopped;
    m->loading = loading;
    if (!stopped) m->crew = crew;
    (void)pthread_mutex_unlock(&m->lock);
    (void)pthread_mutex_unlock(&s->lock);
    DT_CHECK(!stopped, DT_ERR_COMM, "the service was stopped");
    return DT_OK;
}

/* A new crew for the model, unless the service is stopped meanwhile. */
static dt_status start_model(dt_served *m)
{
    dti_crew *c = NULL;
    dt_error why;
    dt_status st;

    DT_TRY(begin_loading(m->service));
    DT_TRY_TO(fail, st, take_spare(m->service, &c));
    DT_TRY_TO(fail, st, set_crews(m, c, NULL));
    DT_TRY_TO(fail, st, load_on(c, m));
    DT_TRY_TO(fail, st, set_crews(m, NULL, c));
    end_loading(m->service);
    return DT_OK;

fail:
    why = *dt_last_error();
    (void)set_crews(m, NULL, NULL);
    (void)dti_crew_end(&c);
    end_loading(m->service);
    dti_error_restore(&why);
    return st;
}

static void list(dt_served *m)
{
    dt_service *s = m->service;

    (void)pthread_mutex_lock(&s->lock);
    m->next = s->models;
    s->models = m;
    (void)pthread_mutex_unlock(&s->lock);
}

static void unlist(const dt_served *m)
{
    dt_service *s = m->service;
    dt_served **at = &s->models;

    (void)pthread_mutex_lock(&s->lock);
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    (void)pthread_mutex_unlock(&s->lock);
}

dt_status dt_service_load(dt_service *service, const char *dir,
                          const dt_parallelize_options *options, dt_served **out)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    dt_served *m = NULL;
    dt_status st = DT_OK;

    DT_CHECK(service != NULL && dir != NULL && out != NULL, DT_ERR_ARG,
             "service, dir or out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_parallelize_options", "start from DT_PARALLELIZE_OPTIONS_INIT",
                            options, &how, sizeof how));
    DT_TRY_TO(fail, st, create_served(service, dir, &how, &m));
    list(m);
    DT_TRY_TO(listed, st, start_model(m));
    *out = m;
    return DT_OK;

listed:
    unlist(m);
fail:
    release_served(m);
    return st;
}

dt_status dt_service_unload(dt_served **model)
{
    dt_served *m = model != NULL ? *model : NULL;
    dti_crew *c;
    dt_status st;

    if (m == NULL) return DT_OK;
    *model = NULL;
    unlist(m);
    c = take_crew(m);
    st = dti_crew_end(&c);
    release_served(m);
    return st;
}

dt_status dt_service_restart(dt_served *m)
{
    dti_crew *c;
    dt_status st;

    DT_CHECK(m != NULL, DT_ERR_ARG, "model is NULL");
    DT_TRY(begin_loading(m->service)); /* a stop waits for the end of the old crew, too */
    (void)pthread_mutex_lock(&m->restarting);
    c = take_crew(m);
    (void)dti_crew_end(&c); /* a rank that hangs stays behind */
    st = start_model(m);
    (void)pthread_mutex_unlock(&m->restarting);
    end_loading(m->service);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_served_crew(dt_served *m, dti_crew **out)
{
    dti_crew *c;
    dt_status st;

    DT_CHECK(m != NULL, DT_ERR_ARG, "model is NULL");
    (void)pthread_mutex_lock(&m->lock);
    c = m->crew != NULL ? dti_crew_retain(m->crew) : NULL;
    (void)pthread_mutex_unlock(&m->lock);
    DT_CHECK(c != NULL, DT_ERR_COMM, "the model was not restarted, or its service was stopped");
    (void)pthread_mutex_lock(&c->lock);
    st = dti_crew_check(c);
    (void)pthread_mutex_unlock(&c->lock);
    *out = c;
    if (st != DT_OK) dti_crew_release(c);
    return st;
}

dt_status dti_served_open(dt_served *m, dt_tokenizer **tokenizer, dt_chat **chat)
{
    dt_status st = DT_OK;

    (void)pthread_mutex_lock(&m->lock);
    if (m->tokenizer == NULL) DT_TRY_TO(done, st, dt_tokenizer_open(m->dir, &m->tokenizer));
    if (chat != NULL && m->chat == NULL) DT_TRY_TO(done, st, dt_chat_open(m->dir, &m->chat));
    *tokenizer = dt_tokenizer_retain(m->tokenizer);
    if (chat != NULL) *chat = dt_chat_retain(m->chat);
done:
    (void)pthread_mutex_unlock(&m->lock);
    return st;
}

/* --- reports ---------------------------------------------------------------------------------- */

dt_status dt_service_info(dt_served *m, dt_model_info *out)
{
    dti_crew *c;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    DT_TRY(dti_served_crew(m, &c));
    *out = c->info;
    dti_crew_release(c);
    return DT_OK;
}

dt_status dt_service_count(dt_served *m, dt_service_counts *out)
{
    dti_crew *c;

    DT_CHECK(m != NULL && out != NULL, DT_ERR_ARG, "model or out is NULL");
    *out = (dt_service_counts){ .failed = true };
    (void)pthread_mutex_lock(&m->lock);
    c = m->crew;
    if (c != NULL) {
        (void)pthread_mutex_lock(&c->lock);
        *out = c->counts;
        if (c->workers != NULL) {
            const dti_board *b = c->workers->board;
            int64_t words[DT_COUNT(b->engine)];
            for (size_t i = 0; i < DT_COUNT(words); i++) words[i] = atomic_load(&b->engine[i]);
            memcpy(&out->engine, words, sizeof words);
            out->steps = atomic_load(&b->steps);
            out->new_tokens = atomic_load(&b->new_tokens);
            out->busy_s = (double)atomic_load(&b->busy_ns) * 1e-9;
        }
        (void)pthread_mutex_unlock(&c->lock);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return DT_OK;
}

static int64_t shown(const dti_view *v, int i)
{
    return atomic_load_explicit(&v->memory[i], memory_order_relaxed);
}

/* Adds what a crew's ranks show. */
static void add_memory(dti_crew *c, dt_rank_memory *ranks, dt_rank_memory_kinds *kinds)
{
    (void)pthread_mutex_lock(&c->lock);
    for (int r = 0; r < c->run.n_ranks; r++) {
        const dti_view *v = &c->views[r];
        if (ranks != NULL) {
            ranks[r].cut_bytes += v->cut_bytes;
            ranks[r].whole_bytes += v->whole_bytes;
            ranks[r].allocated_bytes += shown(v, 0);
            ranks[r].peak_bytes += shown(v, 1);
            ranks[r].reserved_bytes += shown(v, 2);
        }
        if (kinds == NULL) continue;
        kinds[r].values_bytes += shown(v, 3 + DTI_KIND_VALUES);
        kinds[r].weights_bytes += shown(v, 3 + DTI_KIND_WEIGHTS);
        kinds[r].caches_bytes += shown(v, 3 + DTI_KIND_CACHES);
        kinds[r].states_bytes += shown(v, 3 + DTI_KIND_STATES);
        kinds[r].recorded_bytes += shown(v, 3 + DTI_KIND_RECORDED);
        kinds[r].gathered_bytes += shown(v, 3 + DTI_KIND_GATHERED);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

dt_status dt_service_memory(dt_service *s, dt_served *model, dt_rank_memory *ranks,
                            dt_rank_memory_kinds *kinds)
{
    bool found = model == NULL;

    _Static_assert(3 + DTI_N_KINDS == DTI_N_MEMORY, "three sums, and all kinds");
    DT_CHECK(s != NULL && (ranks != NULL || kinds != NULL), DT_ERR_ARG,
             "service is NULL, or both ranks and kinds are");
    for (int r = 0; r < s->run.n_ranks; r++) {
        if (ranks != NULL) ranks[r] = (dt_rank_memory){ .rank = r };
        if (kinds != NULL) kinds[r] = (dt_rank_memory_kinds){ .rank = r };
    }
    (void)pthread_mutex_lock(&s->lock);
    for (dt_served *m = s->models; m != NULL; m = m->next) {
        if (model != NULL && m != model) continue;
        found = true;
        (void)pthread_mutex_lock(&m->lock);
        if (m->crew != NULL) add_memory(m->crew, ranks, kinds);
        (void)pthread_mutex_unlock(&m->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    DT_CHECK(found, DT_ERR_ARG, "the model is of another service");
    return DT_OK;
}
