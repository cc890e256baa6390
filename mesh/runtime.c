/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "base/writer.h"
#include "mesh/comm/dry.h"
#include "mesh/comm/mpi.h"
#include "mesh/comm/slow_link.h"
#include "mesh/gpu.h"
#include "mesh/runtime_internal.h"
#include "mesh/world.h"

enum { LOG_LINE_BYTES = 512, MAX_DRY_RANKS = 1 << 20 };

dt_status dti_check_isa(const char *isa)
{
    DT_CHECK(isa == NULL || strlen(isa) < DTI_ISA_BYTES, DT_ERR_ARG,
             "isa \"%s\" is no name of an instruction set; \"auto\" chooses the best", isa);
    return DT_OK;
}

dt_status dti_check_products(const char *products)
{
    DT_CHECK(products == NULL || strcmp(products, "one-order") == 0 ||
                 strcmp(products, "fastest") == 0,
             DT_ERR_ARG, "products is \"%s\"; choose \"one-order\" or \"fastest\"", products);
    return DT_OK;
}

dt_status dti_runtime_create(const dt_run_options *options, dti_comm *world, dti_pool *pool,
                             const char *cores, dt_runtime **out)
{
    dt_runtime *rt = NULL;
    const dt_status st = dti_new(sizeof *rt, &rt);

    *out = NULL;
    if (st != DT_OK) {
        dti_pool_destroy(&pool);
        dti_comm_close(world);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    dti_flight_open(&rt->flight, options->flight, world->rank, world->size);
    world->flight = &rt->flight;
    for (int lane = 0; lane < DT_N_LANES; lane++) dti_track_open(&rt->tracks[lane]);
    world->track = &rt->tracks[DT_LANE_RANK];
    world->agree = options->check != NULL && strcmp(options->check, "agree") == 0;
    atomic_init(&rt->live, 1);
    if (options->links != NULL && dti_slow_links_parse(options->links, &rt->links) != DT_OK)
        rt->links.n = 0; /* dt_run() has refused it */
    if (options->simulated_link != NULL) {
        rt->links.n = 1;
        rt->links.of[0].link = *options->simulated_link;
    }
    if (rt->links.n > 0) {
        world->links = &rt->links;
        world->link = dti_slow_link_of(&rt->links, world->name);
    }
    world->beside = &rt->beside;
    rt->world = world;
    rt->pool = pool;
    rt->rank = world->rank;
    rt->size = world->size;
    rt->n_threads = dti_pool_size(pool);
    rt->log = options->log;
    rt->log_arg = options->log_arg;
    (void)snprintf(rt->isa, sizeof rt->isa, "%s", options->isa ? options->isa : "auto");
    rt->any_order = options->products != NULL && strcmp(options->products, "fastest") == 0;
    (void)snprintf(rt->device, sizeof rt->device, "%s", options->device ? options->device : "cpu");
    (void)snprintf(rt->cores, sizeof rt->cores, "%s", cores);
    *out = rt;
    return DT_OK;
}

/* A test that injects a fault must not pass because nothing came to it. */
static void warn_of_unused_fault(dt_runtime *rt)
{
    const dti_fault *f = rt->world->fault;

    if (f == NULL || f->rank != rt->rank || f->seen >= f->call) return;
    dti_runtime_log(
        rt, DT_LOG_WARNING,
        "the injected fault did not happen: rank %d was to fail in call %lld of %s, and "
        "made %lld",
        f->rank, (long long)f->call,
        f->op < 0 ? "any operation" : dti_comm_op_name((dti_comm_op)f->op), (long long)f->seen);
}

/* Whoever asked for the record looks for it after the run. */
static void warn_of_lost_flight(dt_runtime *rt)
{
    const dti_flight *f = &rt->flight;

    if (f->error == 0) return;
    dti_runtime_log(rt, DT_LOG_WARNING,
                    "the record of the last collectives could not be written to %s.%d "
                    "(DTENSOR_FLIGHT): %s",
                    f->path, f->rank, strerror(f->error));
}

/* "1 mesh, 2 tensors" */
static void name_live(const dt_runtime *rt, int64_t n, char *text, size_t bytes)
{
    dti_writer w = { .text = text, .bytes = bytes };

    for (int k = 0; k < DTI_MAX_LIVE; k++) n -= rt->of_kind[k].n;
    if (n > 0) dti_put(&w, "%lld %s", (long long)n, n > 1 ? "meshes" : "mesh");
    for (int k = 0; k < DTI_MAX_LIVE && rt->of_kind[k].kind != NULL; k++) {
        const dti_live *kind = rt->of_kind[k].kind;
        n = rt->of_kind[k].n;
        if (n > 0)
            dti_put(&w, "%s%lld %s", w.used > 0 ? ", " : "", (long long)n,
                    n > 1 ? kind->several : kind->one);
    }
}

/* A rank that fails returns early: what it leaves behind is no news then. */
static void tell_of_live(dt_runtime *rt)
{
    const int64_t n = dt_runtime_live(rt);
    char text[LOG_LINE_BYTES / 2] = "";

    if (n == 0) return;
    name_live(rt, n, text, sizeof text);
    dti_runtime_log(rt, rt->failed ? DT_LOG_INFO : DT_LOG_WARNING,
                    "%s of rank %d outlive%s the run and lost %s memory; objects are to be "
                    "released before rank_main returns",
                    text, rt->rank, n == 1 ? "s" : "", n == 1 ? "its" : "their");
}

/* The last of the run and its objects. */
static void free_runtime(dt_runtime *rt)
{
    for (int i = rt->n_slots - 1; i >= 0; i--)
        if (rt->slots[i].slot->destroy != NULL) rt->slots[i].slot->destroy(rt->slots[i].object);
    dti_free(rt);
}

static void count_down(dt_runtime *rt, int64_t n)
{
    if (atomic_fetch_sub_explicit(&rt->live, n, memory_order_acq_rel) == n) free_runtime(rt);
}

void dti_runtime_destroy(dt_runtime **runtime)
{
    dt_runtime *rt = *runtime;

    if (rt == NULL) return;
    *runtime = NULL;
    warn_of_unused_fault(rt);
    warn_of_lost_flight(rt);
    while (rt->n_at_end > 0) {
        rt->n_at_end--;
        rt->at_end[rt->n_at_end].end(rt->at_end[rt->n_at_end].object);
    }
    if (rt->lanes != NULL) dti_world_leave_lane(rt->lanes, rt->rank);
    tell_of_live(rt);
    dti_gpu_close(rt);
    dti_pool_destroy(&rt->pool);
    for (size_t i = rt->n_comms; i > 0; i--) dti_comm_close(rt->comms[i - 1]);
    dti_free((void *)rt->comms);
    dti_comm_close(rt->world);
    for (int lane = 0; lane < DT_N_LANES; lane++) dti_track_close(&rt->tracks[lane]);
    rt->comms = NULL;
    rt->n_comms = 0;
    rt->world = NULL;
    rt->log = NULL;
    rt->ended = true;
    count_down(rt, 1);
}

dt_status dti_runtime_at_end(dt_runtime *rt, dti_slot_destroy end, void *object)
{
    DT_CHECK(rt->n_at_end < DTI_MAX_AT_END, DT_ERR_INTERNAL, "more than %d things end with a run",
             DTI_MAX_AT_END);
    rt->at_end[rt->n_at_end].end = end;
    rt->at_end[rt->n_at_end++].object = object;
    return DT_OK;
}

bool dti_runtime_has_lanes(const dt_runtime *rt)
{
    return rt->lanes != NULL;
}

void dti_runtime_free_core(const dt_runtime *rt)
{
    if (rt->bound_by != NULL) dti_topology_unbind(rt->bound_by);
}

dt_status dti_runtime_open_lane(dt_runtime *rt, dti_comm **out)
{
    dt_status st;

    dti_runtime_free_core(rt);
    st = dti_world_join_lane(rt->lanes, rt->rank, out);
    if (st != DT_OK) dti_world_abort(rt->lanes, rt->rank, dt_last_error()->message);
    DT_TRY(st);
    (*out)->agree = rt->world->agree;
    (*out)->track = &rt->tracks[DT_LANE_TRANSFERS];
    (*out)->links = rt->world->links;
    (*out)->link = rt->world->link;
    return DT_OK;
}

dti_beside *dti_runtime_beside(dt_runtime *rt)
{
    return &rt->beside;
}

const dt_link *dti_runtime_link(const dt_runtime *rt, const char *dim)
{
    return rt->links.n > 0 ? dti_slow_link_of(&rt->links, dim) : NULL;
}

bool dti_runtime_is_unbuffered(const dt_runtime *rt)
{
    return rt->links.unbuffered;
}

bool dti_runtime_has_ended(const dt_runtime *rt)
{
    return rt->ended;
}

dt_status dti_runtime_slot(dt_runtime *rt, const dti_slot *slot, void **out)
{
    void *object = NULL;

    for (int i = 0; i < rt->n_slots; i++)
        if (rt->slots[i].slot == slot) {
            *out = rt->slots[i].object;
            return DT_OK;
        }
    if (rt->like != NULL && slot->is_registry) return dti_runtime_slot(rt->like, slot, out);
    *out = NULL;
    DT_CHECK(!rt->ended, DT_ERR_ARG, "the run that this object belongs to has ended");
    DT_TRY(slot->create(rt, &object)); /* may make other slots, which then outlive this one */
    DT_ASSERT(rt->n_slots < DTI_MAX_SLOTS);
    rt->slots[rt->n_slots].slot = slot;
    rt->slots[rt->n_slots++].object = object;
    *out = object;
    return DT_OK;
}

dt_status dt_runtime_create_dry(const dt_run_options *options, int rank, dt_runtime *like,
                                dt_runtime **out)
{
    dt_run_options own = DT_RUN_OPTIONS_INIT;
    dti_comm *world;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(options != NULL, DT_ERR_ARG, "options is NULL; start from DT_RUN_OPTIONS_INIT");
    DT_TRY(dti_options_read("dt_run_options", "start from DT_RUN_OPTIONS_INIT", options, &own,
                            sizeof own));
    DT_CHECK(own.n_ranks >= 1 && own.n_ranks <= MAX_DRY_RANKS, DT_ERR_ARG,
             "n_ranks is %d, not in 1..%d", own.n_ranks, MAX_DRY_RANKS);
    DT_CHECK(rank >= 0 && rank < own.n_ranks, DT_ERR_ARG, "rank %d: a world of %d has ranks 0..%d",
             rank, own.n_ranks, own.n_ranks - 1);
    DT_TRY(dti_check_isa(own.isa));
    DT_TRY(dti_check_products(own.products));
    DT_TRY(dti_check_device(own.device));
    own.check = NULL; /* nobody to agree with */
    own.simulated_link = NULL;
    own.links = NULL;
    own.flight = NULL; /* the file is the run's: a plan that fails must not write over it */
    DT_TRY(dti_dry_open(rank, own.n_ranks, &world));
    world->timeout_ms = own.timeout_ms < 1 ? 1 : own.timeout_ms; /* meshes report it */
    DT_TRY(dti_runtime_create(&own, world, NULL, "", out));
    (*out)->dry = true;
    (*out)->like = like;
    if (own.setup != NULL && like == NULL) {
        const dt_status st = own.setup(*out, own.setup_arg);
        if (st != DT_OK) dt_runtime_release_dry(out);
        DT_TRY(st);
    }
    return DT_OK;
}

void dt_runtime_release_dry(dt_runtime **runtime)
{
    if (runtime != NULL && *runtime != NULL && (*runtime)->dry) dti_runtime_destroy(runtime);
}

bool dt_runtime_is_dry(const dt_runtime *rt)
{
    return rt != NULL && rt->dry;
}

bool dti_runtime_is_on_gpu(const dt_runtime *rt)
{
    return rt->gpu != NULL || (rt->dry && strncmp(rt->device, "cuda", 4) == 0);
}

static dti_comm *find_comm(const dt_runtime *rt, const int *world_ranks, int n)
{
    for (size_t i = 0; i < rt->n_comms; i++) {
        dti_comm *c = rt->comms[i];
        if (c->size == n && memcmp(c->world_ranks, world_ranks, (size_t)n * sizeof(int)) == 0)
            return c;
    }
    return NULL;
}

dt_status dti_runtime_comm(dt_runtime *rt, const int *world_ranks, int n, const char *name,
                           dti_comm **out)
{
    dti_comm *c = find_comm(rt, world_ranks, n);

    *out = NULL;
    DT_CHECK(!rt->ended, DT_ERR_ARG, "the run that this mesh belongs to has ended");
    *out = c;
    if (c != NULL) return DT_OK;
    DT_TRY(dti_grow((void **)&rt->comms, &rt->comms_capacity, rt->n_comms + 1, sizeof(dti_comm *)));
    DT_TRY(dti_comm_group(rt->world, world_ranks, n, name, &c));
    rt->comms[rt->n_comms++] = c;
    *out = c;
    return DT_OK;
}

int dt_runtime_rank(const dt_runtime *rt)
{
    return rt != NULL ? rt->rank : -1;
}

int dt_runtime_size(const dt_runtime *rt)
{
    return rt != NULL ? rt->size : -1;
}

int dt_runtime_threads(const dt_runtime *rt)
{
    return rt != NULL ? rt->n_threads : -1;
}

const char *dt_runtime_cores(const dt_runtime *rt)
{
    return rt != NULL ? rt->cores : NULL;
}

int64_t dt_runtime_live(const dt_runtime *rt)
{
    return rt != NULL ? atomic_load_explicit(&rt->live, memory_order_relaxed) - !rt->ended : 0;
}

dti_comm *dti_runtime_world(dt_runtime *rt)
{
    return rt->world;
}

dt_status dti_runtime_use_cuda(dt_runtime *rt, const dti_cuda_place *place, const char *wish)
{
    if (wish == NULL) wish = rt->cuda_wish;
    DT_CHECK(rt->cuda == NULL, DT_ERR_INTERNAL, "rank %d has a device already", rt->rank);
    DT_TRY(dti_cuda_world_open(rt->world, place, wish, &rt->cuda));
    for (size_t i = 0; i < rt->n_comms; i++) rt->comms[i]->cuda = rt->cuda;
    return DT_OK;
}

void dti_runtime_leave_cuda(dt_runtime *rt)
{
    for (size_t i = 0; i < rt->n_comms; i++) dti_cuda_comm_close(rt->comms[i]);
    dti_cuda_comm_close(rt->world);
    dti_cuda_world_close(&rt->cuda);
    for (size_t i = 0; i < rt->n_comms; i++) rt->comms[i]->cuda = NULL;
}

dti_cuda_world *dti_runtime_cuda(dt_runtime *rt)
{
    return rt->cuda;
}

dti_pool *dti_runtime_pool(dt_runtime *rt)
{
    return rt->pool;
}

const char *dti_runtime_isa(const dt_runtime *rt)
{
    return rt->isa;
}

bool dti_runtime_any_order(const dt_runtime *rt)
{
    return rt->any_order;
}

void dti_runtime_count(dt_runtime *rt, const dti_live *kind, int64_t change)
{
    int k = 0;

    if (kind != NULL) {
        while (rt->of_kind[k].kind != kind && rt->of_kind[k].kind != NULL && k < DTI_MAX_LIVE - 1)
            k++;
        if (rt->of_kind[k].kind == NULL) rt->of_kind[k].kind = kind;
        rt->of_kind[k].n += change;
    }
    if (change > 0)
        (void)atomic_fetch_add_explicit(&rt->live, change, memory_order_relaxed);
    else
        count_down(rt, -change);
}

void dti_runtime_log(dt_runtime *rt, dt_log_level level, const char *fmt, ...)
{
    char text[LOG_LINE_BYTES], line[LOG_LINE_BYTES];
    va_list args;

    if (rt->log == NULL) return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)dti_printable(text, line, sizeof line);
    rt->log(rt->log_arg, level, rt->rank, line);
}

void dti_runtime_abort(dt_runtime *rt)
{
    const dt_error *e = dt_last_error();

    if (rt->ended) return;
    rt->failed = true;
    dti_flight_dump(&rt->flight);
    dti_cuda_world_abort(rt->cuda);
    rt->world->ops->abort(rt->world, rt->rank, e->code == DT_OK ? "it gave no reason" : e->message);
}

void dti_runtime_poll(const dt_runtime *rt)
{
    dti_mpi_poll(rt->world);
}

void dti_runtime_doing(const dt_runtime *rt, const char *what)
{
    dti_mpi_tell_doing(rt->world, what);
}

dt_status dti_runtime_alone(dt_runtime *rt, dt_status st)
{
    if (st == DT_ERR_MEMORY || st == DT_ERR_IO || st == DT_ERR_DEVICE || st == DT_ERR_INTERNAL)
        dti_runtime_abort(rt);
    return st;
}
