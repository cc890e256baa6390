/* SPDX-License-Identifier: Apache-2.0
 *
 * A gather that leaves out rows nobody reads, and a reduce-scatter that leaves out rows of zeros:
 * one all-to-all each. All ranks know all ids, so each knows what it sends and what it gets, and no
 * counts are sent before. Buffers are as large as the worst choice of tokens makes them, whole
 * values, so there is nothing to overflow, and rows lie where they lay. */
#include "dtensor/dispatch.h"

#include <dtensor/ops.h>
#include <math.h>
#include <string.h>

#include "dtensor/claims.h"
#include "dtensor/graph.h"
#include "dtensor/tape.h"
#include "placements/move.h"

/* One of the two moves. */
typedef struct passage {
    dti_readers w;
    const dt_tensor *x; /* w.x */
    dt_tensor *y;
    size_t row; /* bytes */
    int64_t d;
    int64_t most;            /* of a dry one: bytes that are received, at most */
    dti_storage *sent, *got; /* parcels, one rank's behind the other's */
} passage;

/* --- there ------------------------------------------------------------------------------------ */

static void count_there(const passage *g)
{
    const dti_readers *w = &g->w;

    for (int64_t n = 0; n < dti_readers_part(w, w->me); n++) {
        const int64_t row = dti_readers_row(w, w->me, n);
        for (int64_t s = 0; s < w->k; s++) {
            const int r = dti_readers_by(w, row, s);
            if (r >= 0 && r != w->me) w->out[r]++;
        }
    }
    for (int r = 0; r < w->p; r++)
        for (int64_t n = 0; n < dti_readers_part(w, r) && r != w->me; n++)
            w->in[r] += dti_readers_reads(w, dti_readers_row(w, r, n), w->me);
}

/* Own rows: to their places here, and into the parcels of who else reads them. */
static void pack_there(const passage *g)
{
    const dti_readers *w = &g->w;
    const char *x = g->x->local.data;
    char *y = g->y->local.data, *sent = g->sent->data;

    memset(y, 0, dti_tensor_bytes(g->y));
    for (int64_t n = 0; n < dti_readers_part(w, w->me); n++, x += g->row) {
        const int64_t row = dti_readers_row(w, w->me, n);
        for (int64_t s = 0; s < w->k; s++) {
            const int r = dti_readers_by(w, row, s);
            if (r < 0) continue;
            if (r == w->me)
                memcpy(y + (size_t)row * g->row, x, g->row);
            else
                memcpy(sent + (size_t)w->at[r]++ * g->row, x, g->row);
        }
    }
}

static void unpack_there(const passage *g)
{
    const dti_readers *w = &g->w;
    const char *from = g->got->data;
    char *y = g->y->local.data;

    for (int r = 0; r < w->p; r++)
        for (int64_t n = 0; n < dti_readers_part(w, r) && r != w->me; n++) {
            const int64_t row = dti_readers_row(w, r, n);
            if (!dti_readers_reads(w, row, w->me)) continue;
            memcpy(y + (size_t)row * g->row, from, g->row);
            from += g->row;
        }
}

/* --- back ------------------------------------------------------------------------------------- */

static void count_back(const passage *g)
{
    const dti_readers *w = &g->w;

    for (int r = 0; r < w->p; r++)
        for (int64_t n = 0; n < dti_readers_part(w, r) && r != w->me; n++)
            w->out[r] += dti_readers_reads(w, dti_readers_row(w, r, n), w->me);
    for (int64_t n = 0; n < dti_readers_part(w, w->me); n++)
        for (int r = 0; r < w->p; r++)
            w->in[r] += r != w->me && dti_readers_reads(w, dti_readers_row(w, w->me, n), r);
}

static void pack_back(const passage *g)
{
    const dti_readers *w = &g->w;
    const char *x = g->x->local.data;
    char *to = g->sent->data;

    for (int r = 0; r < w->p; r++)
        for (int64_t n = 0; n < dti_readers_part(w, r) && r != w->me; n++) {
            const int64_t row = dti_readers_row(w, r, n);
            if (!dti_readers_reads(w, row, w->me)) continue;
            memcpy(to, x + (size_t)row * g->row, g->row);
            to += g->row;
        }
}

/* Terms in the order of ranks. One that is left out is zero, and no sum that begins with zero ever
 * is -0, so that these are the bits of a reduction of all terms. */
static void unpack_back(const passage *g)
{
    const dti_readers *w = &g->w;
    const float *x = g->x->local.data, *got = g->got->data;
    float *y = g->y->local.data;

    memset(y, 0, dti_tensor_bytes(g->y));
    for (int64_t n = 0; n < dti_readers_part(w, w->me); n++, y += g->d) {
        const int64_t row = dti_readers_row(w, w->me, n);
        for (int r = 0; r < w->p; r++) {
            const float *term = r == w->me ? x + row * g->d : got + w->at[r] * g->d;
            if (!dti_readers_reads(w, row, r)) continue;
            w->at[r] += r != w->me;
            for (int64_t i = 0; i < g->d; i++) y[i] += term[i];
        }
    }
}

/* --- both ------------------------------------------------------------------------------------- */

typedef struct way {
    const char *name;
    double (*expect)(const dti_readers *w);
    int64_t (*most)(const dti_readers *w), (*most_sent)(const dti_readers *w);
    void (*count)(const passage *g);
    void (*pack)(const passage *g);
    void (*unpack)(const passage *g);
} way;

static const way there = { "dt_dispatch",         dti_readers_there, dti_readers_most_there,
                           dti_readers_most_back, count_there,       pack_there,
                           unpack_there };
static const way back = {
    "dt_combine", dti_readers_back, dti_readers_most_back, dti_readers_most_there, count_back,
    pack_back,    unpack_back
};

/* Begins of parcels, and rows of all of them. */
static int64_t begins(const dti_readers *w, const int64_t *rows)
{
    int64_t all = 0;

    for (int r = 0; r < w->p; r++) {
        w->at[r] = all;
        all += rows[r];
    }
    return all;
}

/* Ranks that compare what they do compare ids, too. */
static dt_status send(passage *g)
{
    dti_readers *w = &g->w;
    dti_comm_note room;
    const dti_comm_note *about = dti_agree_about(g->x, g->y->layout, w->comm, &room);

    if (about != NULL)
        room.hash =
            dti_hash_bytes(room.hash, w->chosen, (size_t)(w->n_rows * w->k) * sizeof *w->chosen);
    for (int r = 0; r < w->p; r++) {
        w->out[r] *= g->d;
        w->in[r] *= g->d;
    }
    DT_TRY(g->x->device->ops->communicate(g->x->device, w->comm,
                                          &(dti_comm_call){ .op = DTI_COMM_ALL_TO_ALL,
                                                            .dtype = g->x->local.dtype,
                                                            .send = g->sent->data,
                                                            .recv = g->got->data,
                                                            .counts = w->in,
                                                            .send_counts = w->out,
                                                            .about = about }));
    for (int r = 0; r < w->p; r++) w->in[r] /= g->d > 0 ? g->d : 1;
    return DT_OK;
}

static dt_status run(passage *g, const way *how, int64_t *rows)
{
    dti_memory *memory = g->x->device->memory;
    int64_t n;

    how->count(g);
    *rows = begins(&g->w, g->w.in);
    DT_TRY(dti_storage_create(memory, (size_t)*rows * g->row, true, &g->got));
    n = begins(&g->w, g->w.out);
    DT_TRY(dti_storage_create(memory, (size_t)n * g->row, true, &g->sent));
    how->pack(g);
    DT_TRY(send(g));
    (void)begins(&g->w, g->w.in);
    how->unpack(g);
    return DT_OK;
}

/* Bytes are those of what is received on the average, memory is what may be needed at the most; no
 * rows are named. */
static dt_status run_dry(passage *g, const way *how, int64_t *rows)
{
    dti_memory *memory = g->x->device->memory;

    g->most = how->most(&g->w) * (int64_t)g->row;
    *rows = llround(how->expect(&g->w));
    DT_TRY(dti_storage_create(memory, (size_t)g->most, true, &g->got));
    DT_TRY(dti_storage_create(memory, (size_t)how->most_sent(&g->w) * g->row, true, &g->sent));
    DT_TRY(g->x->device->ops->communicate(g->x->device, g->w.comm,
                                          &(dti_comm_call){ .op = DTI_COMM_ALL_TO_ALL,
                                                            .dtype = g->x->local.dtype,
                                                            .counts = g->w.in,
                                                            .send_counts = g->w.out }));
    return DT_OK;
}

static void count_bytes(const passage *g, int64_t bytes, dt_comm_counter *counters)
{
    const dti_observer *observer = g->x->device->observer;
    const dti_move_step step = { .kind = DTI_MOVE_EXCHANGE,
                                 .dims = 1u << g->w.dim,
                                 .divisor = 1,
                                 .most = g->most,
                                 .from = g->x->layout,
                                 .to = g->y->layout };

    counters[DT_COMM_ALL_TO_ALL] = (dt_comm_counter){ 1, bytes };
    if (observer != NULL)
        observer->moved(observer->arg, &step, g->x->shape, DT_COMM_ALL_TO_ALL,
                        &counters[DT_COMM_ALL_TO_ALL]);
}

static dt_status check_call(const char *name, const dti_readers *w)
{
    const dt_tensor *x = w->x, *ids = w->ids;
    char text[DTI_PLACEMENT_BYTES];
    dt_placement now;

    DT_CHECK(x != NULL && ids != NULL && w->experts != NULL, DT_ERR_ARG,
             "%s: tokens, ids or experts are NULL", name);
    DT_CHECK(dt_mesh_equal(x->mesh, ids->mesh) && dt_mesh_equal(x->mesh, w->experts->mesh),
             DT_ERR_LAYOUT, "%s: tokens, ids and experts lie on different meshes", name);
    DT_CHECK(w->dim >= 0 && w->dim < x->layout->n_dims, DT_ERR_ARG,
             "%s: mesh dim %d of a mesh that has %d", name, w->dim, x->layout->n_dims);
    DT_CHECK(x->n_axes >= 2 && ids->n_axes == x->n_axes && ids->local.dtype == DT_I32 &&
                 memcmp(x->shape, ids->shape, (size_t)(x->n_axes - 1) * sizeof *x->shape) == 0,
             DT_ERR_SHAPE, "%s: tokens are [..., d], and their ids [..., k] in i32", name);
    if (dt_mesh_dim_size(x->mesh, w->dim) == 1) return DT_OK;
    now = dt_layout_placement(ids->layout, w->dim);
    DT_CHECK(now.kind == DT_PLACE_REPLICATE, DT_ERR_LAYOUT,
             "%s: ids are %s on mesh dim \"%s\", where every rank has to know all of them", name,
             dti_placement_words(&now, text), dt_mesh_dim_name(x->mesh, w->dim));
    now = dt_layout_placement(w->experts->layout, w->dim);
    DT_CHECK(dti_dispatch_cuts(w->experts, w->dim), DT_ERR_LAYOUT,
             "%s: experts are %s on mesh dim \"%s\": whole ones have to be cut there", name,
             dti_placement_words(&now, text), dt_mesh_dim_name(x->mesh, w->dim));
    return DT_OK;
}

/* g->w.x to `to` the way `how` says. NULL in *y: as all rows go. */
static dt_status pass(passage *g, const dt_layout *to, const way *how, dt_comm_counter *counters,
                      dt_tensor **y)
{
    const dt_tensor *x = g->x;
    const bool goes = how == &there;
    dt_status st = DT_OK;
    int64_t rows;
    bool fits;

    *y = NULL;
    if (!x->device->ops->host_visible || !dt_mesh_is_member(x->mesh)) return DT_OK;
    if (x->device->gathers_tokens) return DT_OK;
    if (!goes && x->local.dtype != DT_F32) return DT_OK;
    DT_TRY(dti_readers_find(&g->w, goes ? to : x->layout, goes ? x->layout : to, &fits));
    if (!fits) return DT_OK;
    DT_TRY(dti_tensor_create(x->mesh, to, x->local.dtype, x->shape, &g->y));
    g->d = x->shape[x->n_axes - 1];
    g->row = (size_t)g->d * dt_dtype_size(x->local.dtype);
    memset(g->w.out, 0, (size_t)g->w.p * sizeof *g->w.out);
    memset(g->w.in, 0, (size_t)g->w.p * sizeof *g->w.in);
    DT_TRY_TO(done, st, (x->device->dry ? run_dry : run)(g, how, &rows));
    count_bytes(g, rows * (int64_t)g->row, counters);
    *y = dt_tensor_retain(g->y);
done:
    dti_storage_release(g->sent);
    dti_storage_release(g->got);
    dt_tensor_release(&g->y);
    return st;
}

static bool is_sum(const dt_tensor *x, int dim)
{
    const dt_placement p = dt_layout_placement(x->layout, dim);

    return p.kind == DT_PLACE_PARTIAL && p.reduce == DT_SUM;
}

/* Tokens that a dim cuts in one piece each. */
static bool is_cut(const dt_layout *layout, int dim, int n_axes)
{
    const dt_placement p = dt_layout_placement(layout, dim);

    return p.kind == DT_PLACE_SHARD && p.axis < n_axes - 1 && p.replicas == 1 &&
           !dti_has(layout->packed_axes, p.axis);
}

dt_status dti_dispatch_back(dt_tape *t, const dti_readers *w, const dt_layout *to, const char *name,
                            dt_tensor **dx)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    passage g = { .w = *w, .x = w->x };
    const dt_layout *along;
    dt_placement want;
    const way *how;

    *dx = NULL;
    want = dt_layout_placement(to, w->dim);
    DT_TRY(dti_layout_with(w->x->layout, w->dim, &want, &along));
    if (along != to) return DT_OK;
    if (is_sum(w->x, w->dim) && is_cut(to, w->dim, w->x->n_axes))
        how = &back;
    else if (is_cut(w->x->layout, w->dim, w->x->n_axes) && want.kind == DT_PLACE_REPLICATE)
        how = &there;
    else
        return DT_OK;
    DT_TRY(pass(&g, to, how, counters, dx));
    if (*dx != NULL) DT_TRY(dti_tape_count(t, name, counters));
    return DT_OK;
}

/* On the tape: x as `want` on the mesh dim. */
static dt_tensor *move(dt_tape *t, dt_tensor *x, const dti_readers *readers, dt_placement want,
                       const way *how)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    passage g = { .w = *readers, .x = x };
    const dt_layout *to;
    dt_tensor *y = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    st = check_call(how->name, readers);
    if (st == DT_OK) st = dti_layout_with(x->layout, g.w.dim, &want, &to);
    if (st != DT_OK) return dti_tape_latch(t, st);
    if (dt_mesh_dim_size(x->mesh, g.w.dim) > 1) st = pass(&g, to, how, counters, &y);
    if (st == DT_OK && y == NULL) return dt_move_dim(t, x, g.w.dim, want);
    if (st == DT_OK) st = dti_tape_count(t, t->reason != NULL ? t->reason : how->name, counters);
    if (st == DT_OK) st = dti_graph_send(t, x, (dt_tensor *)g.w.ids, g.w.experts, g.w.dim, y);
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

dt_tensor *dt_dispatch(dt_tape *t, dt_tensor *x, dt_tensor *ids, dt_tensor *experts, int dim)
{
    const bool known = x != NULL && dim >= 0 && dim < x->layout->n_dims;

    if (known && !is_cut(x->layout, dim, x->n_axes)) return dt_move_dim(t, x, dim, DT_REPLICATE);
    return move(t, x, &(dti_readers){ .x = x, .ids = ids, .experts = experts, .dim = dim },
                DT_REPLICATE, &there);
}

dt_tensor *dt_combine(dt_tape *t, dt_tensor *y, dt_tensor *ids, dt_tensor *experts, int dim,
                      int axis)
{
    const bool known = y != NULL && dim >= 0 && dim < y->layout->n_dims;

    if (known && (axis < 0 || axis >= y->n_axes - 1 || !is_sum(y, dim)))
        return dt_move_dim(t, y, dim, DT_SHARD(axis));
    return move(t, y, &(dti_readers){ .x = y, .ids = ids, .experts = experts, .dim = dim },
                DT_SHARD(axis), &back);
}
