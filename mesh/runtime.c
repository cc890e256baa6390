/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "mesh/runtime_internal.h"

enum { LOG_LINE_BYTES = 512 };

dt_status dti_runtime_create(const dt_run_options *options, dti_comm *world, dti_pool *pool,
                             const char *cores, dt_runtime **out)
{
    dt_runtime *rt = NULL;
    const dt_status st = dti_new(sizeof *rt, &rt);

    *out = NULL;
    if (st != DT_OK) {
        dti_pool_destroy(&pool);
        world->ops->close(world);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    rt->world = world;
    rt->pool = pool;
    rt->rank = world->rank;
    rt->size = world->size;
    rt->n_threads = dti_pool_size(pool);
    rt->log = options->log;
    rt->log_arg = options->log_arg;
    (void)snprintf(rt->isa, sizeof rt->isa, "%s", options->isa ? options->isa : "auto");
    (void)snprintf(rt->cores, sizeof rt->cores, "%s", cores);
    *out = rt;
    return DT_OK;
}

void dti_runtime_destroy(dt_runtime **runtime)
{
    dt_runtime *rt = *runtime;

    if (rt == NULL) return;
    *runtime = NULL;
    for (int i = rt->n_slots - 1; i >= 0; i--) {
        const dti_slot slot = rt->slot_order[i];
        if (rt->slot_destroy[slot] != NULL) rt->slot_destroy[slot](rt->slots[slot]);
    }
    dti_pool_destroy(&rt->pool);
    for (size_t i = rt->n_comms; i > 0; i--) rt->comms[i - 1]->ops->close(rt->comms[i - 1]);
    dti_free((void *)rt->comms);
    rt->world->ops->close(rt->world);
    dti_free(rt);
}

dt_status dti_runtime_slot(dt_runtime *rt, dti_slot slot, dti_slot_create create,
                           dti_slot_destroy destroy, void **out)
{
    if (rt->slots[slot] == NULL) {
        void *object = NULL;
        *out = NULL;
        DT_TRY(create(rt, &object)); /* may make other slots, which then outlive this one */
        rt->slots[slot] = object;
        rt->slot_destroy[slot] = destroy;
        rt->slot_order[rt->n_slots++] = slot;
    }
    *out = rt->slots[slot];
    return DT_OK;
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

    *out = c;
    if (c != NULL) return DT_OK;
    DT_TRY(dti_grow((void **)&rt->comms, &rt->comms_capacity, rt->n_comms + 1, sizeof(dti_comm *)));
    DT_TRY(rt->world->ops->group(rt->world, world_ranks, n, &c));
    (void)snprintf(c->name, sizeof c->name, "%s", name);
    rt->comms[rt->n_comms++] = c;
    *out = c;
    return DT_OK;
}

int dt_runtime_rank(const dt_runtime *rt)
{
    return rt->rank;
}

int dt_runtime_size(const dt_runtime *rt)
{
    return rt->size;
}

int dt_runtime_threads(const dt_runtime *rt)
{
    return rt->n_threads;
}

const char *dt_runtime_cores(const dt_runtime *rt)
{
    return rt->cores;
}

int64_t dt_runtime_live(const dt_runtime *rt)
{
    return atomic_load_explicit(&rt->live, memory_order_relaxed);
}

dti_comm *dti_runtime_world(dt_runtime *rt)
{
    return rt->world;
}

dti_pool *dti_runtime_pool(dt_runtime *rt)
{
    return rt->pool;
}

const char *dti_runtime_isa(const dt_runtime *rt)
{
    return rt->isa;
}

void dti_runtime_count(dt_runtime *rt, int64_t change)
{
    (void)atomic_fetch_add_explicit(&rt->live, change, memory_order_relaxed);
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

    rt->world->ops->abort(rt->world, rt->rank, e->code == DT_OK ? "it gave no reason" : e->message);
}

dt_status dti_runtime_alone(dt_runtime *rt, dt_status st)
{
    if (st == DT_ERR_MEMORY || st == DT_ERR_IO || st == DT_ERR_DEVICE || st == DT_ERR_INTERNAL)
        dti_runtime_abort(rt);
    return st;
}
