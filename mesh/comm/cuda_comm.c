/* SPDX-License-Identifier: Apache-2.0
 *
 * What carries bytes of devices: chosen for a world. */
#include "mesh/comm/cuda_comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "mesh/comm/local.h"

enum { WHY_BYTES = 120, WISH_BYTES = 16 };

/* What a rank tells the others. */
typedef struct facts {
    char wish[WISH_BYTES];
    char pci[32];
    uint64_t machine;
    int32_t device;
    int32_t nccl_built, nccl_loaded; /* 0: none */
    int32_t unused;
} facts;

/* What they conclude: all the same, since all know the same. */
typedef struct verdict {
    int n_devices;
    int most_on_one; /* ranks */
    bool threads;    /* of one process */
    bool reaches;
    char no_local[WHY_BYTES]; /* why not; empty: why not */
    char no_spin[WHY_BYTES];
    char no_nccl[WHY_BYTES];
} verdict;

const dti_cuda_carrier *dti_cuda_carrier_of(const dti_cuda_world *w)
{
    return w != NULL ? w->carrier : NULL;
}

const dti_cuda_place *dti_cuda_place_of(const dti_comm *c)
{
    return &c->cuda->place;
}

const char *dti_cuda_world_text(const dti_cuda_world *w)
{
    return w->text;
}

bool dti_cuda_world_records(const dti_cuda_world *w)
{
    return w->host->size == 1 || w->carrier->records;
}

/* --- cuda_local: the local back end does it all -------------------------------------------------
 */

static dt_status local_start(dti_comm *c, dti_comm_request *r)
{
    return c->ops->start(c, r);
}

static dt_status local_wait(dti_comm *c, dti_comm_request *r)
{
    return c->ops->wait(c, r);
}

const dti_cuda_carrier dti_cuda_local = {
    .name = "cuda_local",
    .start = local_start,
    .wait = local_wait,
};

/* --- facts --------------------------------------------------------------------------------------
 */

static uint64_t machine_number(void)
{
    char text[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = 0;

    if (file != NULL) {
        n = fread(text, 1, sizeof text, file);
        (void)fclose(file);
    }
    if (n == 0 && gethostname(text, sizeof text - 1) == 0) n = strlen(text);
    return dti_hash_bytes(1, text, n);
}

static dt_status look(const dti_cuda_place *place, const char *wish, facts *out)
{
    dti_cuda_properties p = { .name = "" };
    dti_cuda_versions v;

    *out = (facts){ .device = place->device };
    (void)snprintf(out->wish, sizeof out->wish, "%s", wish);
    DT_TRY(dti_cuda_check_call(place, place->module->properties(place->device, &p),
                               "looking at the device"));
    place->module->versions(&v);
    (void)snprintf(out->pci, sizeof out->pci, "%s", p.pci);
    out->machine = machine_number();
    if (place->module->nccl != NULL) {
        out->nccl_built = v.nccl_built;
        out->nccl_loaded = v.nccl_loaded;
    }
    return DT_OK;
}

static bool same_device(const facts *a, const facts *b)
{
    return a->machine == b->machine && strcmp(a->pci, b->pci) == 0;
}

/* The first reason is the one that is given. */
static void say(char why[WHY_BYTES], const char *format, ...) DT_PRINTF(2, 3);

static void say(char why[WHY_BYTES], const char *format, ...)
{
    va_list args;

    if (why[0] != '\0') return;
    va_start(args, format);
    (void)vsnprintf(why, WHY_BYTES, format, args);
    va_end(args);
}

static void judge_nccl(const facts *all, int n, verdict *v)
{
    for (int r = 0; r < n && v->no_nccl[0] == '\0'; r++) {
        const facts *f = &all[r];
        if (f->nccl_built == 0 || f->nccl_loaded == 0)
            say(v->no_nccl, "rank %d has no NCCL", r);
        else if (f->nccl_loaded < f->nccl_built)
            say(v->no_nccl, "rank %d found NCCL %d, older than %d that it was built with", r,
                f->nccl_loaded, f->nccl_built);
        else if (f->nccl_loaded != all[0].nccl_loaded)
            say(v->no_nccl, "rank 0 has NCCL %d, rank %d has %d", all[0].nccl_loaded, r,
                f->nccl_loaded);
        for (int other = 0; other < r && v->no_nccl[0] == '\0'; other++)
            if (same_device(f, &all[other]))
                say(v->no_nccl, "ranks %d and %d share a GPU, which NCCL refuses", other, r);
    }
}

/* Every rank tries for itself; that all can is found out by a minimum. */
static dt_status judge_local(dti_comm *world, const dti_cuda_place *place, const facts *all,
                             verdict *v)
{
    int32_t reaches = 1;

    v->threads = dti_local_is(world);
    if (!v->threads) {
        say(v->no_local, "ranks are in several processes");
        return DT_OK;
    }
    if (world->size > DTI_CUDA_MAX_PEERS) {
        say(v->no_local, "it joins %d ranks at most", (int)DTI_CUDA_MAX_PEERS);
        return DT_OK;
    }
    for (int r = 0; r < world->size && reaches; r++)
        reaches = place->module->reach(place->cuda, all[r].device) == 0;
    DT_TRY(dti_all_reduce(world, &reaches, &reaches, 1, DT_I32, DT_MIN));
    if (!reaches) say(v->no_local, "not all GPUs can read each other's memory");
    return DT_OK;
}

/* A kernel that is loaded at its first launch waits for those that spin, and so does a stream that
 * shares a queue with one of theirs. */
static void judge_spin(const dti_cuda_world *w, verdict *v)
{
    if (v->no_local[0] != '\0') say(v->no_spin, "%s", v->no_local);
    if (w->place.loads_late)
        say(v->no_spin, "kernels have to be loaded before they wait for each other: set "
                        "CUDA_MODULE_LOADING=EAGER");
    if (w->place.n_queues > 0 && v->most_on_one > w->place.n_queues)
        say(v->no_spin, "%d ranks share a GPU of %d queues: set CUDA_DEVICE_MAX_CONNECTIONS=%d",
            v->most_on_one, w->place.n_queues, v->most_on_one);
}

static void count_devices(const facts *all, int n, verdict *v)
{
    for (int r = 0; r < n; r++) {
        bool seen = false;
        int n_here = 0;
        for (int other = 0; other < n; other++) {
            const bool same = same_device(&all[r], &all[other]);
            seen = seen || (same && other < r);
            n_here += same;
        }
        v->n_devices += !seen;
        if (n_here > v->most_on_one) v->most_on_one = n_here;
    }
}

/* --- the choice ---------------------------------------------------------------------------------
 */

static dt_status check_wish(const char *wish, const dti_cuda_carrier *best, const verdict *v)
{
    const char *why = best == &dti_cuda_local  ? v->no_local
                      : best == &dti_cuda_spin ? v->no_spin
                      : best == &dti_cuda_nccl ? v->no_nccl
                                               : "";

    DT_CHECK(
        strcmp(wish, best->name) == 0, DT_ERR_ARG,
        "\"%s\" carries no memory of GPUs; choose cuda_local, cuda_local_spin, nccl, staged or "
        "auto",
        wish);
    DT_CHECK(why[0] == '\0', DT_ERR_UNSUPPORTED, "%s cannot join these ranks: %s; choose auto",
             best->name, why);
    return DT_OK;
}

/* NCCL where each rank has a GPU of its own: it knows the links between them. Kernels of ours that
 * wait for each other are for those who ask for them: whoever gives memory back while a peer's
 * kernel waits may have to wait for it in turn (docs/cuda.md). */
static dt_status choose(dti_cuda_world *w, const char *wish, const verdict *v)
{
    const dti_cuda_carrier *best = &dti_cuda_staged;
    const int n = w->host->size;

    w->crowded = v->n_devices < n;
    if (v->no_local[0] == '\0') best = &dti_cuda_local;
    if (v->no_nccl[0] == '\0' && n > 1) best = &dti_cuda_nccl;
    if (strcmp(wish, "auto") != 0) {
        const dti_cuda_carrier *const all[] = { &dti_cuda_local, &dti_cuda_spin, &dti_cuda_nccl,
                                                &dti_cuda_staged };
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (strcmp(wish, all[i]->name) == 0) best = all[i];
        DT_TRY(check_wish(wish, best, v));
    }
    w->carrier = best;
    if (best == &dti_cuda_staged)
        (void)snprintf(
            w->text, sizeof w->text, "staged through memory of hosts (cuda_local: %s; nccl: %s)",
            v->no_local[0] ? v->no_local : "not wished", v->no_nccl[0] ? v->no_nccl : "not wished");
    else
        (void)snprintf(w->text, sizeof w->text, "%s: %d rank%s on %d GPU%s", best->name, n,
                       n == 1 ? "" : "s", v->n_devices, v->n_devices == 1 ? "" : "s");
    return DT_OK;
}

static dt_status exchange_facts(dti_comm *world, const facts *mine, facts *all)
{
    dt_status st = DT_OK;
    int64_t *counts = NULL;

    DT_TRY(dti_alloc_array((size_t)world->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < world->size; r++) counts[r] = (int64_t)sizeof *mine;
    st = dti_all_gather(world, mine, all, counts, NULL, DT_U8);
    dti_free(counts);
    DT_TRY(st);
    for (int r = 0; r < world->size; r++)
        DT_CHECK(strcmp(all[r].wish, mine->wish) == 0, DT_ERR_ARG,
                 "rank %d wants memory of GPUs carried by \"%s\", rank %d by \"%s\"", r,
                 all[r].wish, world->rank, mine->wish);
    return DT_OK;
}

static dt_status open_world(dti_cuda_world *w, const char *wish, facts *all)
{
    verdict v = { .n_devices = 0 };
    facts mine;

    DT_TRY(look(&w->place, wish, &mine));
    DT_TRY(exchange_facts(w->host, &mine, all));
    DT_TRY(judge_local(w->host, &w->place, all, &v));
    judge_nccl(all, w->host->size, &v);
    count_devices(all, w->host->size, &v);
    judge_spin(w, &v);
    DT_TRY(choose(w, wish, &v));
    return DT_OK;
}

dt_status dti_cuda_world_open(dti_comm *world, const dti_cuda_place *place, const char *wish,
                              dti_cuda_world **out)
{
    dt_status st = DT_OK;
    dti_cuda_world *w = NULL;
    facts *all = NULL;

    *out = NULL;
    DT_TRY(dti_new(sizeof *w, &w));
    w->place = *place;
    w->host = world;
    w->room.kind = DTI_CUDA_SHARED;
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)world->size, sizeof *all, (void **)&all));
    DT_TRY_TO(fail, st, open_world(w, wish != NULL ? wish : "auto", all));
    dti_free(all);
    world->cuda = w;
    *out = w;
    return DT_OK;

fail:
    if (st == DT_ERR_DEVICE || st == DT_ERR_MEMORY) /* nobody else knows */
        world->ops->abort(world, world->world_ranks[world->rank], dt_last_error()->message);
    dti_free(all);
    dti_free(w);
    return st;
}

void dti_cuda_world_close(dti_cuda_world **world)
{
    dti_cuda_world *w = *world;

    if (w == NULL) return;
    *world = NULL;
    if (w->carrier->close_world != NULL) w->carrier->close_world(w);
    dti_cuda_watch_close(w);
    dti_cuda_room_free(&w->place, &w->room);
    w->host->cuda = NULL;
    dti_free(w);
}

void dti_cuda_comm_close(dti_comm *c)
{
    if (c->cuda_part != NULL) c->cuda->carrier->close(c);
    c->cuda_part = NULL;
}

static dt_status wait_for_stream(dti_cuda_world *w)
{
    return dti_cuda_check_call(&w->place, w->place.module->sync(w->place.cuda), "waiting");
}

void dti_cuda_world_abort(dti_cuda_world *w)
{
    if (w != NULL && w->carrier->abort != NULL) w->carrier->abort(w);
}

dt_status dti_cuda_world_sync(dti_cuda_world *w)
{
    return w->carrier->sync != NULL ? w->carrier->sync(w) : wait_for_stream(w);
}
