/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/gather.h"

#include "base/memory.h"
#include "base/numbers.h"
#include "dtensor/away.h"
#include "dtensor/graph.h"
#include "dtensor/pending.h"
#include "dtensor/tape.h"

/* One value; what is on its way belongs to the tape of this run. */
typedef struct gathered {
    dt_pending *pending;
    const dt_tensor *of; /* that is gathered, in the version that was begun with */
    uint32_t version;
} gathered;

/* Numbers of values in the order in which a run gathered them, as far as this one has come. */
typedef struct trace {
    int *at;
    size_t n, capacity, next;
} trace;

struct dti_gathers {
    dti_gathers_of of;
    gathered *value; /* [of.n] */
    uint32_t run;    /* of the tape that gathers now */
    trace way[2];    /* there, and back */
    uint64_t hash;   /* of all that was begun so far */
};

dt_status dti_gathers_create(const dti_gathers_of *of, dti_gathers **out)
{
    dt_status st = DT_OK;
    dti_gathers *g;
    trace *there;

    *out = NULL;
    DT_TRY(dti_new(sizeof *g, &g));
    g->of = *of;
    there = &g->way[0];
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)of->n, sizeof *g->value, (void **)&g->value));
    DT_TRY_TO(fail, st,
              dti_grow((void **)&there->at, &there->capacity, (size_t)of->n, sizeof *there->at));
    for (int i = 0; i < of->n; i++)
        if (of->unit(of->arg, i) >= 0)
            there->at[there->n++] = i; /* until a pass has shown better */
    *out = g;
    return DT_OK;

fail:
    dti_gathers_release(&g);
    return st;
}

void dti_gathers_release(dti_gathers **gathers)
{
    dti_gathers *g = *gathers;

    if (g == NULL) return;
    *gathers = NULL;
    for (int k = 0; k < 2; k++) dti_free(g->way[k].at);
    dti_free(g->value);
    dti_free(g);
}

void dti_gathers_set_ahead(dti_gathers *g, int units)
{
    if (g != NULL) g->of.ahead = units;
}

/* --- memory ----------------------------------------------------------------------------------- */

static dt_status memory_of(dti_device *d, dti_memory **out)
{
    if (d->gathering == NULL) {
        DT_TRY(dti_memory_create(d->dry, &d->allocator, &d->gathering));
        dti_memory_part_of(d->gathering, d->memory, DTI_KIND_GATHERED);
    }
    *out = d->gathering;
    return DT_OK;
}

void dti_gathered_bytes(dt_runtime *rt, int64_t *now, int64_t *most)
{
    dti_device *d;

    *now = *most = 0;
    if (dti_device_of(rt, &d) != DT_OK || d->gathering == NULL) return;
    *now = (int64_t)dti_memory_used(d->gathering);
    *most = (int64_t)dti_memory_peak(d->gathering);
}

/* --- order ------------------------------------------------------------------------------------ */

/* A tape that was reset has dropped what was on its way. */
static void enter_run(dti_gathers *g, const dt_tape *t)
{
    if (g->run == t->run) return;
    g->run = t->run;
    for (int i = 0; i < g->of.n; i++) g->value[i].pending = NULL;
    g->way[0].next = g->way[1].next = 0;
}

/* The run gathers i: as the last one did, or what that did behind this is forgotten. */
static dt_status follow(trace *way, int i)
{
    if (way->next < way->n && way->at[way->next] == i) {
        way->next++;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&way->at, &way->capacity, way->next + 1, sizeof *way->at));
    way->at[way->next++] = i;
    way->n = way->next;
    return DT_OK;
}

/* --- moves ------------------------------------------------------------------------------------ */

static bool is_stale(const gathered *v, const dt_tensor *x)
{
    return v->of != x || v->version != x->storage->version;
}

static dt_status begin(dt_tape *t, dti_gathers *g, int i, dt_tensor *x, const dt_layout *whole,
                       dt_pending **out)
{
    dti_device *d = t->device;
    dti_memory *memory;
    dt_status st;

    DT_TRY(memory_of(d, &memory));
    g->hash = dti_hash_word(g->hash, (uint64_t)i);
    d->claim = (dti_exchange_claim){ g->of.name(g->of.arg, i), (uint8_t)(g->hash >> 32) };
    dt_scope_begin(t, d->claim.name); /* whose bytes they are */
    st = dti_away_bring(x);
    if (st == DT_OK) st = dti_move_begin(t, x, whole, memory, out);
    (void)dt_scope_end(t, NULL);
    d->claim = (dti_exchange_claim){ NULL, 0 };
    if (st != DT_OK) dti_error_prefix("%s is gathered", g->of.name(g->of.arg, i));
    DT_TRY(st);
    return DT_OK;
}

static dt_status begin_value(dt_tape *t, dti_gathers *g, int i, dt_tensor *x,
                             const dt_layout *whole)
{
    gathered *v = &g->value[i];

    DT_TRY(begin(t, g, i, x, whole, &v->pending));
    v->of = x;
    v->version = x->storage->version;
    return DT_OK;
}

/* Begins what the last run gathered from here on, to the end of `ahead` units behind this one. A
 * disk is told of one unit more. */
static dt_status look_ahead(dt_tape *t, dti_gathers *g, const trace *way, int i)
{
    int unit = g->of.unit(g->of.arg, i), units = 0;

    for (size_t k = way->next; k < way->n && g->of.ahead > 0; k++) {
        const int next = way->at[k], its = g->of.unit(g->of.arg, next);
        const dt_layout *whole;
        dt_tensor *x;
        if (its != unit && ++units > g->of.ahead + 1) return DT_OK;
        unit = its;
        if (g->value[next].pending != NULL || !g->of.value(g->of.arg, next, &x, &whole)) continue;
        if (units > g->of.ahead)
            dti_away_soon(x);
        else
            DT_TRY(begin_value(t, g, next, x, whole));
    }
    return DT_OK;
}

/* A new reference to value i, whole, and what it is made of. */
static dt_status gather(dt_tape *t, dti_gathers *g, int i, dt_tensor **x, dt_tensor **y)
{
    trace *way = &g->way[dti_graph_goes_back(t->graph)];
    gathered *v = &g->value[i];
    const dt_layout *whole;
    dt_pending *p;
    dt_status st;

    *y = NULL;
    DT_CHECK(g->of.value(g->of.arg, i, x, &whole), DT_ERR_INTERNAL, "value %d has no value", i);
    enter_run(g, t);
    DT_TRY(follow(way, i));
    if (v->pending != NULL && is_stale(v, *x)) dt_pending_release(&v->pending);
    if (v->pending == NULL) DT_TRY(begin_value(t, g, i, *x, whole));
    DT_TRY(look_ahead(t, g, way, i));
    p = v->pending;
    v->pending = NULL;
    st = dt_pending_wait(&p, y);
    if (st == DT_OK) st = dti_away_leave(*x, false);
    if (st != DT_OK) dti_error_prefix("%s is gathered", g->of.name(g->of.arg, i));
    DT_TRY(st);
    return DT_OK;
}

static dt_tensor *finish(dt_tape *t, dt_status st, dt_tensor *y)
{
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

dt_tensor *dti_gather(dt_tape *t, dti_gathers *g, int i)
{
    dt_tensor *x, *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = gather(t, g, i, &x, &y);
    if (st == DT_OK) st = dti_graph_gather(t, x, y, g, i);
    return finish(t, st, y);
}

dt_tensor *dti_gather_again(dt_tape *t, dti_gathers *g, int i)
{
    dt_tensor *x, *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = gather(t, g, i, &x, &y);
    return finish(t, st, y);
}

static dt_status gather_tile(dt_tape *t, dti_gathers *g, int i, dt_tensor *x,
                             const dt_layout *whole, dt_tensor **y)
{
    dt_pending *p = NULL;

    *y = NULL;
    DT_TRY(begin(t, g, i, x, whole, &p));
    DT_TRY(dt_pending_wait(&p, y));
    DT_TRY(dti_away_leave(x, false));
    return DT_OK;
}

dt_tensor *dti_gather_tile(dt_tape *t, dti_gathers *g, int i, dt_tensor *x, const dt_layout *whole)
{
    dt_tensor *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = gather_tile(t, g, i, x, whole, &y);
    if (st == DT_OK) st = dti_graph_gather(t, x, y, g, -1 - i);
    return finish(t, st, y);
}

dt_tensor *dti_gather_tile_again(dt_tape *t, dti_gathers *g, int i, dt_tensor *x,
                                 const dt_layout *whole)
{
    dt_tensor *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = gather_tile(t, g, i, x, whole, &y);
    return finish(t, st, y);
}
