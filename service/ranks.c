/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank does from its start to its end: it waits for an order and obeys. Rank 0 takes orders
 * from the schedule and hands them to the others, so all carry out the same in the same order; what
 * they wait for without a deadline is the next order alone, asleep. */
#include "service/ranks.h"
#include "service/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"

/* --- what it shows ---------------------------------------------------------------------------- */

void dti_rank_beat(dti_rank *r)
{
    dti_view *v = r->view;

    atomic_store_explicit(&v->beat_ns, dti_now_ns(), memory_order_relaxed);
    if (r->memory == NULL) return;
    for (int i = 0; i < DTI_N_MEMORY; i++) {
        const size_t bytes = i == 0   ? dti_memory_used(r->memory)
                             : i == 1 ? dti_memory_peak(r->memory)
                             : i == 2 ? dti_memory_held(r->memory)
                                      : dti_memory_of_kind(r->memory, (dti_memory_kind)(i - 3));
        atomic_store_explicit(&v->memory[i], (int64_t)bytes, memory_order_relaxed);
    }
}

void dti_rank_show(dti_rank *r, dti_doing doing, int64_t number)
{
    dti_rank_beat(r);
    if (number > 0) atomic_store(&r->view->number, number);
    atomic_store(&r->view->doing, (int)doing);
}

bool dti_job_goes_on(dti_job *j)
{
    dti_rank *r = j->rank;
    char over = j->ticket != NULL && dti_ticket_is_over(j->ticket);
    int64_t n = 1;

    dti_rank_beat(r);
    if (j->said.code == DT_OK && dt_mesh_broadcast_work(r->mesh, 0, &over, 1, &n) != DT_OK)
        j->said = *dt_last_error();
    j->broken = j->broken || (j->said.code == DT_OK && over != 0);
    return j->said.code == DT_OK && !j->broken;
}

/* The ranks of a crew whose communication broke have nothing to say to each other; nor has one that
 * failed alone anything to wait for. */
dt_status dti_job_survives(const dti_job *j, dt_status st)
{
    if (j->said.code != DT_OK) {
        dti_error_restore(&j->said); /* the pass that it broke off has said something since */
        return j->said.code;
    }
    if (st == DT_ERR_COMM) return st;
    if (st == DT_ERR_MEMORY || st == DT_ERR_IO || st == DT_ERR_DEVICE || st == DT_ERR_INTERNAL)
        return dti_runtime_alone(j->rank->rt, st);
    return DT_OK;
}

/* --- a model ---------------------------------------------------------------------------------- */

static void on_load(void *arg, int64_t done, int64_t all)
{
    dti_job *j = arg;
    dti_crew *c = j->rank->crew;

    dti_rank_beat(j->rank);
    (void)pthread_mutex_lock(&c->lock);
    j->ticket->progress[0] = done;
    j->ticket->progress[1] = all;
    if (c->host != NULL) dti_host_progress(c->host, j->ticket);
    (void)pthread_cond_broadcast(&j->ticket->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

/* The model's lists are gone before its handle is. */
static dt_status keep_defaults(dti_crew *c, const dt_model *model)
{
    dti_packet *p = &c->defaults_packet;
    dt_generate_options o;

    if (dt_model_generate_options(model, &o) != DT_OK) {
        c->defaults_error = *dt_last_error(); /* that of whoever asks for them */
        return DT_OK;
    }
    DT_TRY(dti_packet_put_options(p, &o));
    c->defaults_lists = (dti_unpacking){ p->bytes, p->bytes + p->n, DTI_ARENA_INIT };
    DT_TRY(dti_unpack_options(&c->defaults_lists, &c->defaults));
    return DT_OK;
}

/* What callers ask of a model without asking its ranks. */
static dt_status publish(dti_rank *r, const dt_rank_memory *memory)
{
    dti_crew *c = r->crew;
    dt_status st;

    (void)pthread_mutex_lock(&c->lock);
    c->info = *dt_model_info_of(r->model);
    for (int i = 0; i < c->run.n_ranks; i++) {
        c->views[i].cut_bytes = memory[i].cut_bytes;
        c->views[i].whole_bytes = memory[i].whole_bytes;
        if (!c->launched || atomic_load(&c->views[i].beat_ns) != 0) continue;
        atomic_store(&c->views[i].memory[0], memory[i].allocated_bytes); /* of another process */
        atomic_store(&c->views[i].memory[1], memory[i].peak_bytes);
        atomic_store(&c->views[i].memory[2], memory[i].reserved_bytes);
    }
    c->in_stages = dt_model_n_stages(r->model) > 1;
    c->takes_turns = r->takes_turns;
    st = keep_defaults(c, r->model);
    if (st == DT_OK && c->host != NULL) st = dti_host_loaded(c->host);
    (void)pthread_mutex_unlock(&c->lock);
    return st;
}

/* What to load and how: as the caller has it or, where ranks are in several processes, as the
 * request says, which is kept as long as the model. */
static dt_status read_how(dti_job *j, const char **dir, dt_parallelize_options *how)
{
    const size_t n = (size_t)(j->from.end - j->from.at);
    dti_rank *r = j->rank;

    *dir = r->crew->dir;
    *how = r->crew->how;
    if (!r->crew->far && !r->crew->launched) return DT_OK;
    DT_TRY(dti_alloc(n, (void **)&r->loaded));
    memcpy(r->loaded, j->from.at, n);
    r->loaded_from = (dti_unpacking){ r->loaded, r->loaded + n, DTI_ARENA_INIT };
    DT_TRY(dti_unpack_text(&r->loaded_from, dir));
    DT_TRY(dti_unpack_how(&r->loaded_from, how));
    return r->crew->far ? dti_crew_keep_folder(r->crew, *dir) : DT_OK;
}

static dt_status load(dti_job *j)
{
    dti_rank *r = j->rank;
    dt_parallelize_options how;
    dt_rank_memory *memory = NULL;
    dti_device *device;
    const char *dir;
    dt_status st = DT_OK;

    DT_TRY(read_how(j, &dir, &how));
    how.progress = j->ticket != NULL ? on_load : NULL;
    how.progress_arg = j;
    DT_TRY(dt_parallelize(r->rt, dir, &how, &r->model));
    DT_TRY(dti_device_of(r->rt, &device));
    r->memory = device->memory;
    DT_TRY(dti_alloc_array((size_t)r->crew->run.n_ranks, sizeof *memory, (void **)&memory));
    DT_TRY_TO(done, st, dt_model_memory(r->model, memory));
    dti_rank_beat(r);
    if (r->crew->engine.size > 0) DT_TRY_TO(done, st, dti_together_open(r));
    if (j->ticket != NULL) DT_TRY_TO(done, st, publish(r, memory));
    DT_TRY_TO(done, st, dti_all_say(r->mesh, DT_OK)); /* all show what they hold */
    if (j->ticket != NULL) dti_ticket_finish(j->ticket, DT_OK);
done:
    dti_free(memory);
    return st;
}

/* --- requests --------------------------------------------------------------------------------- */

static void free_job(dti_rank *r, int slot)
{
    dti_job *j = r->jobs[slot];

    r->jobs[slot] = NULL;
    if (j == NULL) return;
    dti_making_end(&j->making);
    dt_generated_release(&j->made);
    dti_free(j->rooms);
    dti_arena_free(&j->from.arena);
    dti_free(j->told);
    if (r->number > 0) dti_free(j->bytes);
    dti_free(j);
}

/* The caller hears it when no rank holds anything of the request. */
dt_status dti_job_end(dti_rank *r, int slot, dt_status st)
{
    dti_job *j = r->jobs[slot];
    dt_ticket *t = j->ticket;
    const bool late = j->broken && t != NULL && dti_now_ns() >= t->deadline_ns;

    if (st == DT_OK && t != NULL && !late) DT_TRY(dti_texts_tell_all(j));
    free_job(r, slot);
    dti_rank_beat(r);
    if (dti_all_say(r->mesh, DT_OK) != DT_OK) return DT_ERR_COMM;
    if (t == NULL) return DT_OK;
    if (st == DT_OK && late)
        st = dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                        "request %lld was not done by its deadline", (long long)t->number);
    dti_ticket_finish(t, st);
    dti_crew_free_slot(r->crew, slot);
    return DT_OK;
}

/* What one rank alone has to say against a request, all hear, and go on if they can. */
dt_status dti_job_settle(dti_rank *r, int slot, dt_status st)
{
    dti_job *j = r->jobs[slot];

    DT_TRY(dti_job_survives(j, st));
    st = j->broken ? DT_OK : dti_all_say(r->mesh, st);
    return st == DT_ERR_COMM ? st : dti_job_end(r, slot, st);
}

static dt_status receive(dti_rank *r, const dti_order *o, dti_job **out)
{
    dti_job *j;
    int64_t n = o->n_bytes;
    dt_status st;

    DT_TRY(dti_new(sizeof *j, &j));
    j->rank = r;
    j->number = o->number;
    r->jobs[o->slot] = *out = j;
    if (r->number == 0) {
        (void)pthread_mutex_lock(&r->crew->lock);
        j->ticket = r->crew->running[o->slot];
        (void)pthread_mutex_unlock(&r->crew->lock);
        j->bytes = j->ticket->packet.bytes;
    } else {
        DT_TRY(dti_alloc((size_t)n, (void **)&j->bytes));
    }
    st = n > 0 ? dt_mesh_broadcast_work(r->mesh, 0, j->bytes, n, &n) : DT_OK;
    if (st == DT_OK && r->crew->far && o->what == DTI_TICKET_TEXTS)
        st = dti_crew_put_tokenizer(r->crew, j->bytes);
    j->from = (dti_unpacking){ j->bytes, j->bytes + n, DTI_ARENA_INIT };
    return st;
}

static dt_status begin(dti_rank *r, const dti_order *o)
{
    dti_job *j;
    dt_status st;

    DT_TRY(receive(r, o, &j));
    if (o->what == DTI_TICKET_LOAD) {
        dti_rank_show(r, DTI_DOING_LOAD, o->number);
        DT_TRY(load(j));
        free_job(r, o->slot);
        if (r->number == 0) dti_crew_free_slot(r->crew, o->slot);
        return DT_OK;
    }
    if (o->what == DTI_TICKET_CALL) {
        dti_rank_show(r, DTI_DOING_CALL, o->number);
        return dti_job_settle(r, o->slot, dti_call_run(j));
    }
    st = dti_all_say(r->mesh, dti_texts_begin(j)); /* memory, too: nobody has begun */
    if (st == DT_ERR_COMM) return st;
    if (st == DT_OK && r->number == 0) {
        (void)pthread_mutex_lock(&r->crew->lock);
        r->crew->together[o->slot] = j->request > 0;
        r->crew->takes_turns = r->takes_turns;
        (void)pthread_mutex_unlock(&r->crew->lock);
    }
    return st == DT_OK ? DT_OK : dti_job_end(r, o->slot, st);
}

static dt_status step(dti_rank *r, const dti_order *o)
{
    dti_job *j = r->jobs[o->slot];
    bool over = false;
    dt_status st;

    atomic_store(&r->view->step, ++j->n_steps);
    st = dti_texts_step(j, &over);
    if (st != DT_OK) return dti_job_settle(r, o->slot, st);
    return over ? dti_job_end(r, o->slot, DT_OK) : DT_OK;
}

static dt_status obey(dti_rank *r, const dti_order *o)
{
    switch ((dti_order_kind)o->kind) {
    case DTI_ORDER_QUIT:
        return DT_OK;
    case DTI_ORDER_BEGIN:
        dti_rank_show(r, DTI_DOING_BEGIN, o->number);
        return begin(r, o);
    case DTI_ORDER_STEP:
        dti_rank_show(r, DTI_DOING_STEP, o->number);
        return step(r, o);
    case DTI_ORDER_PASS:
        dti_rank_show(r, DTI_DOING_STEP, o->number);
        return dti_together_pass(r, o->number);
    case DTI_ORDER_DROP:
        r->jobs[o->slot]->broken = true;
        DT_TRY(dti_together_drop(r->jobs[o->slot]));
        return dti_job_end(r, o->slot, DT_OK);
    }
    return DT_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

/* Not inlined: what handlers of a thread's end jump over keeps its variables. */
__attribute__((noinline)) static dt_status serve(dti_rank *r)
{
    dti_crew *c = r->crew;

    for (;;) {
        dti_order o = { 0 };
        int64_t n = sizeof o, began;

        if (r->number == 0) dti_crew_next(c, &o);
        if (o.kind == DTI_ORDER_BEGIN && c->host != NULL) dti_host_begun(c->host, o.number);
        DT_TRY(dt_mesh_broadcast_work(r->mesh, 0, &o, sizeof o, &n));
        if (o.kind == DTI_ORDER_QUIT) return DT_OK;
        began = dti_now_ns();
        DT_TRY(obey(r, &o));
        dti_rank_show(r, DTI_DOING_NOTHING, 0);
        if (r->number > 0) continue;
        (void)pthread_mutex_lock(&c->lock);
        c->counts.busy_s += (double)(dti_now_ns() - began) * 1e-9;
        if (c->host != NULL) dti_host_show(c->host);
        (void)pthread_mutex_unlock(&c->lock);
    }
}

/* Peers that read what this rank has are waited for before it is freed. */
static void end_rank(dti_rank *r, dt_status st)
{
    dti_crew *c = r->crew;

    if (st != DT_OK) {
        (void)pthread_mutex_lock(&c->lock);
        dti_crew_fail(c, r->number, dt_last_error());
        (void)pthread_mutex_unlock(&c->lock);
        dti_runtime_abort(r->rt);
    }
    atomic_store(&r->view->left, true);
    dt_engine_release(&r->engine);
    for (int i = 0; i < DTI_MAX_RUNNING; i++) free_job(r, i);
    dt_model_release(&r->model);
    dt_mesh_release(&r->mesh);
    dti_arena_free(&r->loaded_from.arena);
    dti_free(r->loaded);
}

/* The thread is ending inside a function of the user's. */
static void leave(void *arg)
{
    dti_rank *r = arg;

    end_rank(r, dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                           "rank %d has left: its thread ended inside a function", r->number));
}

/* Of processes that a launcher has started none sees what another shows: that a mesh of all ranks
 * was made has to do. Under the lock. */
static void show_ready(dti_rank *r)
{
    dti_crew *c = r->crew;

    for (int i = 0; i < c->run.n_ranks; i++)
        if (i == r->number || (c->launched && r->number == 0))
            c->n_ready += !atomic_exchange(&c->views[i].ready, true);
}

dt_status dti_crew_rank_main(dt_runtime *rt, void *arg)
{
    dti_crew *c = arg;
    dti_rank r = { .crew = c, .rt = rt, .number = dt_runtime_rank(rt) };
    char spec[32];
    dt_status st;

    r.view = &c->views[r.number];
    (void)snprintf(spec, sizeof spec, "ranks=%d", c->run.n_ranks);
    DT_TRY(dt_mesh_create(rt, spec, &r.mesh));
    dti_rank_beat(&r);
    (void)pthread_mutex_lock(&c->lock);
    show_ready(&r);
    if (c->host != NULL) dti_host_ready(c->host, r.number);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    pthread_cleanup_push(leave, &r);
    st = serve(&r);
    pthread_cleanup_pop(0);
    end_rank(&r, st);
    return st;
}
