/* SPDX-License-Identifier: Apache-2.0
 *
 * A world has one thread, that of the rank it is seen from, so nothing here is atomic. */
#include "mesh/comm/dry.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* What the communicators of one imagined world share; the world's own is closed last. */
typedef struct dry_world {
    bool aborted;
    int culprit;
    char why[256];
} dry_world;

typedef struct dry_comm {
    dti_comm head;
    dry_world *world;
    bool owns_world;
    int ranks[]; /* [size] world ranks */
} dry_comm;

static const dti_comm_ops dry_ops;

static dt_status make(const int *ranks, int n, int rank, dry_comm **out)
{
    dry_comm *d;

    *out = NULL;
    DT_TRY(dti_new(sizeof *d + (size_t)n * sizeof d->ranks[0], &d));
    d->head.ops = &dry_ops;
    d->head.rank = rank;
    d->head.size = n;
    d->head.dry = true;
    for (int i = 0; i < n; i++) d->ranks[i] = ranks != NULL ? ranks[i] : i;
    d->head.world_ranks = d->ranks;
    *out = d;
    return DT_OK;
}

static dt_status dry_group(dti_comm *c, const int *ranks, int n, const char *name, dti_comm **out)
{
    const dry_comm *parent = (const dry_comm *)c;
    int me = -1;
    dry_comm *d;

    *out = NULL;
    for (int i = 0; i < n; i++)
        if (ranks[i] == c->rank) me = i;
    DT_CHECK(me >= 0, DT_ERR_ARG, "rank %d makes a group of %d ranks that it is not in", c->rank,
             n);
    DT_TRY(make(NULL, n, me, &d));
    for (int i = 0; i < n; i++) d->ranks[i] = parent->ranks[ranks[i]];
    d->world = parent->world;
    (void)snprintf(d->head.name, sizeof d->head.name, "%s", name);
    *out = &d->head;
    return DT_OK;
}

static dt_status dry_wait(dti_comm *c, dti_comm_request *request)
{
    (void)c, (void)request;
    return DT_OK;
}

static dt_status dry_check(dti_comm *c, const dti_comm_request *request)
{
    const dry_comm *d = (const dry_comm *)c;

    DT_CHECK(!d->world->aborted, DT_ERR_COMM, "%s on \"%s\": rank %d failed: %s",
             dti_comm_op_name(request->call.op), c->name, d->world->culprit, d->world->why);
    return DT_OK;
}

static bool dry_is_over(dti_comm *c, const dti_comm_request *request)
{
    (void)c, (void)request;
    return true;
}

static dt_status dry_start(dti_comm *c, dti_comm_request *request)
{
    return dry_check(c, request);
}

static void dry_abort(dti_comm *c, int rank, const char *why)
{
    dry_world *w = ((dry_comm *)c)->world;

    if (w->aborted) return;
    w->aborted = true;
    w->culprit = rank;
    (void)snprintf(w->why, sizeof w->why, "%s", why);
}

static void dry_close(dti_comm *c)
{
    dry_comm *d = (dry_comm *)c;

    if (d->owns_world) dti_free(d->world);
    dti_free(d);
}

static const dti_comm_ops dry_ops = {
    .name = "dry",
    .group = dry_group,
    .start = dry_start,
    .wait = dry_wait,
    .check = dry_check,
    .is_over = dry_is_over,
    .abort = dry_abort,
    .close = dry_close,
};

dt_status dti_dry_open(int rank, int size, dti_comm **out)
{
    dt_status st = DT_OK;
    dry_comm *d;

    *out = NULL;
    DT_TRY(make(NULL, size, rank, &d));
    d->owns_world = true;
    DT_TRY_TO(fail, st, dti_new(sizeof *d->world, &d->world));
    (void)snprintf(d->head.name, sizeof d->head.name, "world");
    *out = &d->head;
    return DT_OK;

fail:
    dti_free(d);
    return st;
}
