/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of several tensors together. They go in step: the first steps of all, the second ones, and
 * so on; of each what the same ranks reduce is packed side by side and reduced in one collective.
 * Elements are added in rank order wherever they lie, so the bits are those of single moves. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/claims.h"
#include "dtensor/exchange.h"
#include "dtensor/move_cache.h"
#include "dtensor/move_steps.h"
#include "mesh/runtime.h"

/* A tensor on its way. */
typedef struct traveller {
    dt_tensor *now;
    dt_dtype dtype;
    int me[DT_MAX_DIMS];
    dti_move plan;
    dti_comm *comm; /* of the step that is next, if it may be joined; NULL: it goes alone */
    bool gone;      /* in this round */
} traveller;

static const dti_move_step *next_of(const traveller *a, int round)
{
    return round < a->plan.n_steps ? &a->plan.step[round] : NULL;
}

static dt_status find_group(traveller *a, int round)
{
    const dti_move_step *s = next_of(a, round);

    a->gone = s == NULL;
    a->comm = NULL;
    if (s == NULL || a->now->local.dtype != DT_F32) return DT_OK;
    if (s->kind != DTI_MOVE_ALL_REDUCE && s->kind != DTI_MOVE_REDUCE_SCATTER) return DT_OK;
    return dti_step_group(s, a->now->mesh, &a->comm);
}

/* Whether b's step can be one collective with a's. */
static bool joins(const traveller *a, const traveller *b, int round)
{
    const dti_move_step *s = next_of(a, round), *with = next_of(b, round);

    return !b->gone && a->comm != NULL && b->comm == a->comm && with->kind == s->kind &&
           with->reduce == s->reduce;
}

/* Those that travel together: of `all` which have comm, in their order. */
typedef struct party {
    traveller **who;
    int n, round;
    dti_comm *comm;
    dti_storage *packed, *reduced;
    int64_t *counts; /* [comm->size] of a reduce-scatter, [1] of an all-reduce: elements */
} party;

static dt_status copy(const party *p, const traveller *a, int64_t at)
{
    dti_device *d = a->now->device;
    const size_t bytes = dti_tensor_bytes(a->now);

    if (d->dry || bytes == 0) return DT_OK;
    DT_TRY(d->ops->copy(d, (float *)p->packed->data + at, a->now->local.data, bytes));
    return DT_OK;
}

static dt_status pack_all_reduce(party *p)
{
    p->counts[0] = 0;
    for (int i = 0; i < p->n; i++) p->counts[0] += dti_tensor_count(p->who[i]->now);
    DT_TRY(dti_storage_create(p->who[0]->now->device->memory, (size_t)p->counts[0] * sizeof(float),
                              true, &p->packed));
    for (int64_t i = 0, at = 0; i < p->n; at += dti_tensor_count(p->who[i++]->now))
        DT_TRY(copy(p, p->who[i], at));
    p->reduced = dti_storage_retain(p->packed);
    return DT_OK;
}

/* For each member the terms of its pieces of all tensors, in their order. */
static dt_status pack_reduce_scatter(party *p)
{
    dti_device *d = p->who[0]->now->device;
    int64_t at = 0, all = 0;

    for (int i = 0; i < p->n; i++) all += dti_tensor_count(p->who[i]->now);
    DT_TRY(dti_storage_create(d->memory, (size_t)all * sizeof(float), true, &p->packed));
    for (int r = 0; r < p->comm->size; r++) {
        p->counts[r] = -at;
        for (int i = 0; i < p->n; i++) {
            const traveller *a = p->who[i];
            const dti_move_step *s = next_of(a, p->round);
            int member[DT_MAX_DIMS];
            dti_overlap o;
            if (d->dry && r != p->comm->rank) continue; /* one's own part alone takes memory */
            dti_move_member(s, a->me, r, member);
            if (!dti_move_overlap(s, a->now->shape, member, a->me, &o)) continue;
            if (!d->dry)
                DT_TRY(dti_overlap_copy(d, &o, a->now->local.data, (float *)p->packed->data + at,
                                        sizeof(float)));
            at += o.count;
        }
        p->counts[r] += at;
    }
    DT_TRY(dti_storage_create(d->memory, (size_t)p->counts[p->comm->rank] * sizeof(float), true,
                              &p->reduced));
    return DT_OK;
}

static dt_status reduce(const party *p)
{
    const traveller *first = p->who[0];
    const dti_move_step *s = next_of(first, p->round);
    dti_comm_note note;
    dti_comm_call call = { .op = s->kind == DTI_MOVE_ALL_REDUCE ? DTI_COMM_ALL_REDUCE
                                                                : DTI_COMM_REDUCE_SCATTER,
                           .dtype = DT_F32,
                           .reduce = s->reduce,
                           .send = p->packed->data,
                           .recv = p->reduced->data,
                           .counts = p->counts };

    call.about = dti_agree_about(first->now, s->to, p->comm, &note);
    for (int i = 1; i < p->n && call.about != NULL; i++)
        dti_agree_also(p->who[i]->now, next_of(p->who[i], p->round)->to, &note);
    DT_TRY(first->now->device->ops->communicate(first->now->device, p->comm, &call));
    return DT_OK;
}

/* What was reduced, piece by piece. */
static dt_status hand_out(party *p, dt_comm_counter *counters)
{
    int64_t at = 0;

    for (int i = 0; i < p->n; i++) {
        traveller *a = p->who[i];
        const dti_move_step *s = next_of(a, p->round);
        dt_tensor *y;
        DT_TRY(dti_tensor_header(a->now->mesh, s->to, DT_F32, a->now->shape, &y));
        y->storage = dti_storage_retain(p->reduced);
        y->local.data = p->reduced->data != NULL ? (float *)p->reduced->data + at : NULL;
        at += dti_tensor_count(y);
        dti_step_count(s, a->now, a->me, i == 0, counters);
        dt_tensor_release(&a->now);
        a->now = y;
        DT_TRY(dti_step_divide(y, s->divisor));
    }
    return DT_OK;
}

static dt_status travel_together(party *p, dt_comm_counter *counters)
{
    const bool whole = next_of(p->who[0], p->round)->kind == DTI_MOVE_ALL_REDUCE;
    dt_status st = DT_OK;

    p->packed = p->reduced = NULL;
    DT_TRY(dti_alloc_array((size_t)p->comm->size, sizeof *p->counts, (void **)&p->counts));
    DT_TRY_TO(done, st, (whole ? pack_all_reduce : pack_reduce_scatter)(p));
    DT_TRY_TO(done, st, reduce(p));
    DT_TRY_TO(done, st, hand_out(p, counters));
done:
    dti_storage_release(p->packed);
    dti_storage_release(p->reduced);
    dti_free(p->counts);
    return st;
}

static dt_status take_round(traveller *all, int n, int round, traveller **who,
                            dt_comm_counter *counters)
{
    for (int i = 0; i < n; i++) DT_TRY(find_group(&all[i], round));
    for (int i = 0; i < n; i++) {
        party p = { .who = who, .round = round, .comm = all[i].comm };
        if (all[i].gone) continue;
        for (int k = i; k < n; k++)
            if (joins(&all[i], &all[k], round)) who[p.n++] = &all[k];
        for (int k = 0; k < p.n; k++) who[k]->gone = true;
        if (p.n > 1)
            DT_TRY(travel_together(&p, counters));
        else
            DT_TRY(dti_step_take(next_of(&all[i], round), all[i].me, all[i].dtype, counters,
                                 &all[i].now));
    }
    return DT_OK;
}

/* Outsiders of a mesh, and tensors that lie right, are there at once. */
static dt_status set_out(traveller *a, dt_tensor *x, const dt_layout *want)
{
    const dti_move *plan;

    a->plan.n_steps = 0;
    a->dtype = x->local.dtype;
    if (want == x->layout || !dt_mesh_is_member(x->mesh)) {
        DT_TRY(dti_redistribute(x, want, NULL, &a->now));
        return DT_OK;
    }
    if (want->table_axes != 0) DT_TRY(dti_layout_check_shape(want, x->shape));
    DT_TRY(dti_move_cache_plan(x, want, &plan));
    a->plan = *plan;
    dti_step_coords(x->mesh, a->me);
    a->now = dt_tensor_retain(x);
    return DT_OK;
}

dt_status dti_redistribute_all(int n, dt_tensor *const *x, const dt_layout *const *want,
                               dt_comm_counter *counters, dt_tensor **y)
{
    traveller *all = NULL, **who = NULL;
    dt_status st = DT_OK;
    int rounds = 0;

    for (int i = 0; i < n; i++) y[i] = NULL;
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *who, (void **)&who));
    for (int i = 0; i < n; i++) all[i].now = NULL;
    for (int i = 0; i < n; i++) {
        DT_TRY_TO(done, st, set_out(&all[i], x[i], want[i]));
        if (all[i].plan.n_steps > rounds) rounds = all[i].plan.n_steps;
    }
    for (int round = 0; round < rounds; round++)
        DT_TRY_TO(done, st, take_round(all, n, round, who, counters));
    for (int i = 0; i < n; i++) {
        y[i] = all[i].now;
        all[i].now = NULL;
    }
done:
    for (int i = 0; i < n && all != NULL; i++) dt_tensor_release(&all[i].now);
    dti_free(who);
    dti_free(all);
    return st;
}
