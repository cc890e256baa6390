/* SPDX-License-Identifier: Apache-2.0
 *
 * A move that is begun runs through dtensor/redistribute.c as ever, but with a device that writes
 * down what it is asked for (lane.h), and in memory of its own: blocks that a plan is done with are
 * used again by what is written down later, which is done later. */
#include <dtensor/async.h>

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/channels_internal.h"
#include "dtensor/graph.h"
#include "dtensor/lane.h"
#include "dtensor/move_steps.h"
#include "dtensor/pending.h"
#include "dtensor/tape.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

static const dti_live pending_moves = { "pending move", "pending moves" };

struct dt_pending {
    dti_device *device;
    int n;
    dt_tensor **x;             /* [n], read until the job is done */
    dt_tensor **y;             /* [n] */
    dti_job *job;              /* NULL: y is there */
    bool waited;               /* of a tape's, which has it until it is reset */
    dt_pending *next, **place; /* among those of its tape, or those that were dropped */
};

static void link_to(dt_pending **list, dt_pending *p)
{
    p->next = *list;
    p->place = list;
    if (*list != NULL) (*list)->place = &p->next;
    *list = p;
}

static void unlink_pending(dt_pending *p)
{
    if (p->place == NULL) return;
    *p->place = p->next;
    if (p->next != NULL) p->next->place = p->place;
    p->place = NULL;
}

static bool is_done(const dt_pending *p)
{
    return p->job == NULL || p->device->lane == NULL || dti_lane_is_done(p->device->lane, p->job);
}

/* Counts p among the moves that read its operands, or, once it is done, no longer. */
static void count_readers(dt_pending *p, int more)
{
    for (int i = 0; i < p->n; i++) p->x[i]->storage->moving += more;
}

static void let_go(dt_pending *p)
{
    if (p->job != NULL) count_readers(p, -1);
    dti_job_free(&p->job);
    for (int i = 0; i < p->n; i++) {
        dt_tensor_release(&p->x[i]);
        dt_tensor_release(&p->y[i]);
    }
}

static void free_pending(dt_pending *p)
{
    dt_runtime *rt = p->device->rt;

    unlink_pending(p);
    let_go(p);
    dti_free(p);
    dti_runtime_count(rt, &pending_moves, -1);
}

/* Of those that were dropped, what has come to its end. */
static void reap(dti_device *d)
{
    for (dt_pending *p = d->dropped, *next; p != NULL; p = next) {
        next = p->next;
        if (is_done(p)) free_pending(p);
    }
}

void dti_pending_end(dti_device *d)
{
    DT_ASSERT(d->lane == NULL); /* so all are done */
    reap(d);
}

/* --- begin ------------------------------------------------------------------------------------ */

/* What lies elsewhere and goes nowhere: computations get bytes of the device all the same. */
static dt_status copy_here(const dt_tensor *x, dt_tensor **y)
{
    dt_tensor *copy;
    dt_status st;

    if ((*y)->storage != x->storage || !dti_tensor_is_away(x)) return DT_OK;
    DT_TRY(dti_tensor_create(x->mesh, (*y)->layout, x->local.dtype, x->shape, &copy));
    st = dti_tensor_copy_bytes(copy, 0, x, 0, (int64_t)dti_tensor_bytes(x));
    dt_tensor_release(y);
    *y = copy;
    return st;
}

static dt_status move_all(dt_pending *p, const dt_layout *const *want, dt_comm_counter *counters)
{
    if (p->n == 1)
        DT_TRY(dti_redistribute(p->x[0], want[0], counters, &p->y[0]));
    else
        DT_TRY(dti_redistribute_all(p->n, p->x, want, counters, p->y));
    for (int i = 0; i < p->n; i++) DT_TRY(copy_here(p->x[i], &p->y[i]));
    return DT_OK;
}

static dt_status write_down(dt_pending *p, const dt_layout *const *want, dt_comm_counter *counters)
{
    dti_device *d = p->device;
    const dti_device_ops *ops = d->ops;
    dt_status st;

    DT_TRY(dti_job_create(&p->job));
    count_readers(p, 1);
    d->job = p->job;
    d->ops = &dti_device_later;
    st = move_all(p, want, counters);
    d->ops = ops;
    d->job = NULL;
    return st;
}

/* Where begun moves go on whose caller names no memory. */
static dt_status moving_of(dti_device *d, dti_memory **out)
{
    if (d->moving == NULL) {
        DT_TRY(dti_memory_create(false, &d->allocator, &d->moving));
        dti_memory_part_of(d->moving, d->memory, DTI_KIND_VALUES);
    }
    *out = d->moving;
    return DT_OK;
}

static dt_status move_in(dti_memory *memory, dt_pending *p, const dt_layout *const *want,
                         dt_comm_counter *counters, dti_lane *lane)
{
    dti_memory *const own = p->device->memory;
    dt_status st;

    if (lane != NULL && memory == NULL) DT_TRY(moving_of(p->device, &memory));
    if (memory != NULL) p->device->memory = memory;
    st = lane == NULL ? move_all(p, want, counters) : write_down(p, want, counters);
    p->device->memory = own;
    return st;
}

static dt_status new_pending(int n, dt_tensor *const *x, dt_pending **out)
{
    dt_pending *p;

    DT_TRY(dti_new(sizeof *p + 2 * (size_t)n * sizeof *x, &p));
    p->device = x[0]->device;
    p->n = n;
    p->x = (dt_tensor **)(void *)(p + 1);
    p->y = p->x + n;
    for (int i = 0; i < n; i++) p->x[i] = dt_tensor_retain(x[i]);
    dti_runtime_count(p->device->rt, &pending_moves, 1);
    *out = p;
    return DT_OK;
}

static bool lie_so(int n, dt_tensor *const *x, const dt_layout *const *want)
{
    for (int i = 0; i < n; i++)
        if (x[i]->layout != want[i] || dti_tensor_is_away(x[i])) return false;
    return true;
}

/* A dry rank has no lane, but holds what a run whose rank has one would. */
static bool holds_dry(const dti_device *d)
{
    return d->dry && !dti_runtime_is_on_gpu(d->rt);
}

dt_status dti_moves_begin_in(dti_memory *memory, int n, dt_tensor *const *x,
                             const dt_layout *const *want, dt_comm_counter *counters,
                             dt_pending **out)
{
    dt_status st = DT_OK;
    bool lies;
    dti_lane *lane;
    dt_pending *p;

    *out = NULL;
    reap(x[0]->device);
    DT_TRY(dti_lane_of(x[0]->device, &lane));
    DT_TRY(new_pending(n, x, &p));
    lies = lie_so(n, x, want);
    if (lies) lane = NULL;
    DT_TRY_TO(fail, st, move_in(memory, p, want, counters, lane));
    if (lane != NULL) DT_TRY_TO(fail, st, dti_lane_do(lane, p->job));
    if (lies || (lane == NULL && !holds_dry(p->device)))
        for (int i = 0; i < n; i++) dt_tensor_release(&p->x[i]);
    *out = p;
    return DT_OK;

fail:
    free_pending(p);
    return st;
}

dt_status dti_moves_begin(int n, dt_tensor *const *x, const dt_layout *const *want,
                          dt_comm_counter *counters, dt_pending **out)
{
    DT_TRY(dti_moves_begin_in(NULL, n, x, want, counters, out));
    return DT_OK;
}

dt_status dt_redistribute_begin(dt_tensor *x, const dt_placement *want, dt_pending **out)
{
    const dt_layout *layout;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(x != NULL && want != NULL, DT_ERR_ARG, "x or want is NULL");
    DT_TRY(dti_tensor_layout(x, want, &layout));
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), dti_moves_begin(1, &x, &layout, NULL, out)));
    return DT_OK;
}

/* --- wait ------------------------------------------------------------------------------------- */

bool dt_pending_is_done(const dt_pending *p)
{
    return p == NULL || is_done(p);
}

static dt_status await(dt_pending *p, dt_tensor **y)
{
    dt_status st = DT_OK;

    for (int i = 0; i < p->n; i++) y[i] = NULL;
    DT_CHECK_TO(done, st, !p->device->ended, DT_ERR_ARG,
                "the run that this move belongs to has ended");
    if (p->job != NULL) DT_TRY_TO(done, st, dti_lane_await(p->device->lane, p->job));
    for (int i = 0; i < p->n; i++) {
        y[i] = p->y[i];
        p->y[i] = NULL;
    }
    reap(p->device);
done:
    return dti_runtime_alone(p->device->rt, st);
}

dt_status dti_moves_wait(dt_pending **pending, dt_tensor **y)
{
    dt_pending *p = *pending;
    const dt_status st = await(p, y);

    *pending = NULL;
    free_pending(p);
    return st;
}

dt_status dt_pending_wait(dt_pending **pending, dt_tensor **y)
{
    if (y == NULL) dt_pending_release(pending);
    DT_CHECK(pending != NULL && *pending != NULL && y != NULL, DT_ERR_ARG,
             "the pending move or y is NULL");
    DT_TRY(dti_moves_wait(pending, y));
    return DT_OK;
}

void dt_pending_release(dt_pending **pending)
{
    dt_pending *p = pending ? *pending : NULL;

    if (p == NULL) return;
    *pending = NULL;
    unlink_pending(p);
    link_to(&p->device->dropped, p);
    reap(p->device);
}

/* A peer that reads the bytes has its turn when the rank's own job does, and lets go of them before
 * that is done. */
void dti_tensor_begin_write(dt_tensor *x)
{
    dti_lane *lane = x->device->lane;

    if (x->storage->moving > 0 && lane != NULL) dti_lane_drain(lane);
    if (x->storage->moving > 0 && x->device->channels != NULL)
        dti_channels_let_go(x->device->channels, x->storage);
    x->storage->version++;
    dti_tensor_forget_reduced(x);
}

/* --- the tape --------------------------------------------------------------------------------- */

void dti_pending_drop_all(dt_pending **of_tape)
{
    while (*of_tape != NULL) {
        dt_pending *p = *of_tape;
        dt_pending_release(&p);
    }
}

dt_status dti_move_begin(dt_tape *t, dt_tensor *x, const dt_layout *want, dti_memory *memory,
                         dt_pending **out)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_status st;

    DT_TRY(dti_moves_begin_in(memory, 1, &x, &want, moved, out));
    st = dti_tape_count(t, t->reason != NULL ? t->reason : "move", moved);
    if (st == DT_OK)
        link_to(&t->pending, *out);
    else
        dt_pending_release(out);
    return st;
}

dt_pending *dt_move_begin(dt_tape *t, dt_tensor *x, const dt_placement *want)
{
    const dt_layout *layout;
    dt_pending *p = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL || want == NULL) {
        dt_tape_fail(t, DT_ERR_ARG, "dt_move_begin: x or want is NULL");
        return NULL;
    }
    st = dti_tensor_layout(x, want, &layout);
    if (st == DT_OK) st = dti_move_begin(t, x, layout, NULL, &p);
    if (st == DT_OK) {
        if (p->x[0] == NULL) p->x[0] = dt_tensor_retain(x); /* for the record */
        return p;
    }
    dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
    return NULL;
}

dt_tensor *dt_move_wait(dt_tape *t, dt_pending *p)
{
    dt_tensor *x, *y;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL; /* the tape drops it */
    if (p == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_move_wait: the pending move is NULL");
    if (p->waited)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_move_wait: this move was waited for already; its result is what "
                            "the first wait gave");
    p->waited = true;
    x = dt_tensor_retain(p->x[0]);
    st = await(p, &y);
    let_go(p);
    if (st == DT_OK) st = dti_graph_move(t, x, y);
    dt_tensor_release(&x);
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
