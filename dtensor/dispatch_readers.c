/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/numbers.h"
#include "dtensor/dispatch.h"
#include "dtensor/move_cache.h"
#include "mesh/runtime.h"

static void coords_of(const dt_mesh *mesh, int dim, int r, int *coord)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
    coord[dim] = r;
}

bool dti_dispatch_cuts_layout(const dt_layout *experts, int dim)
{
    const dt_placement p = dt_layout_placement(experts, dim);

    return p.kind == DT_PLACE_SHARD && p.axis == 0 && p.replicas == 1 &&
           (experts->packed_axes & 1u) == 0;
}

bool dti_dispatch_cuts(const dt_tensor *experts, int dim)
{
    return dti_dispatch_cuts_layout(experts->layout, dim);
}

/* Experts of the rank at coordinate r of the dim. */
static void experts_of(const dt_tensor *experts, int dim, int r, int64_t *first, int64_t *n)
{
    int coord[DT_MAX_DIMS];

    coords_of(experts->mesh, dim, r, coord);
    dti_layout_axis_extent(experts->layout, 0, experts->shape[0], coord, first, n);
}

/* Experts that no rank of the dim holds, as another dim cuts them too, are nobody's. */
static void find_owners(dti_readers *w)
{
    for (int64_t e = 0; e < w->n_experts; e++) w->owner[e] = -1;
    for (int r = 0; r < w->p; r++) {
        experts_of(w->experts, w->dim, r, &w->first[r], &w->held[r]);
        for (int64_t e = 0; e < w->held[r]; e++) w->owner[w->first[r] + e] = r;
    }
}

/* Are parts that `cut` has along its axis of one frame each, and ids of its rows? Layouts say so,
 * the same to every rank. */
static bool fit(const dti_readers *w, const dt_layout *frame, const dt_layout *cut)
{
    int dims[DT_MAX_DIMS];
    const int axis = cut->place[w->dim].axis, n = dti_layout_cuts(cut, axis, dims);
    const uint32_t rows = (1u << (w->x->n_axes - 1)) - 1;

    if (n == 0 || dims[n - 1] != w->dim || (cut->packed_axes & rows) != 0) return false;
    for (int a = 0; a < w->x->n_axes - 1; a++)
        if (!dti_layout_same_cuts(w->ids->layout, a, frame, a)) return false;
    return true;
}

static void find_parts(dti_readers *w, const dt_layout *frame, const dt_layout *cut)
{
    const dt_tensor *x = w->x;
    const int axis = cut->place[w->dim].axis;
    dt_local whole = { .n_axes = x->n_axes };
    int64_t at = 0;

    dti_tensor_local_shape(x->mesh, frame, x->n_axes, x->shape, &whole);
    w->outer = w->inner = 1;
    for (int a = 0; a < axis; a++) w->outer *= whole.shape[a];
    for (int a = axis + 1; a < x->n_axes - 1; a++) w->inner *= whole.shape[a];
    w->length = whole.shape[axis];
    w->n_rows = w->outer * w->length * w->inner;
    for (int r = 0; r < w->p; r++) {
        int coord[DT_MAX_DIMS];
        int64_t begin, n;
        coords_of(x->mesh, w->dim, r, coord);
        dti_layout_axis_extent(cut, axis, x->shape[axis], coord, &begin, &n);
        w->begin[r] = at;
        w->end[r] = at += n;
    }
    DT_ASSERT(at == w->length);
}

static dt_status check_ids(const dti_readers *w)
{
    for (int64_t i = 0; i < w->n_rows * w->k; i++)
        DT_CHECK(w->chosen[i] >= 0 && w->chosen[i] < w->n_experts, DT_ERR_ARG,
                 "expert %d for token %lld; there are 0 to %lld", w->chosen[i],
                 (long long)(i / w->k), (long long)w->n_experts - 1);
    return DT_OK;
}

dt_status dti_readers_find(dti_readers *w, const dt_layout *frame, const dt_layout *cut, bool *fits)
{
    const size_t p = (size_t)dt_mesh_dim_size(w->x->mesh, w->dim);
    int64_t *room;

    *fits = fit(w, frame, cut);
    if (!*fits) return DT_OK;
    DT_TRY(dti_mesh_comm(w->x->mesh, 1u << w->dim, &w->comm));
    w->p = w->comm->size;
    w->me = w->comm->rank;
    w->n_experts = w->experts->shape[0];
    w->k = w->ids->shape[w->ids->n_axes - 1];
    w->chosen = w->ids->local.data;
    DT_TRY(dti_move_room(w->x->device,
                         7 * p * sizeof *room + (size_t)w->n_experts * sizeof *w->owner,
                         (void **)&room));
    w->begin = room;
    w->end = room + p;
    w->first = room + 2 * p;
    w->held = room + 3 * p;
    w->out = room + 4 * p;
    w->in = room + 5 * p;
    w->at = room + 6 * p;
    w->owner = (int32_t *)(void *)(room + 7 * p);
    find_owners(w);
    find_parts(w, frame, cut);
    if (!w->x->device->dry) DT_TRY(check_ids(w));
    return DT_OK;
}

/* --- before anything is known of the tokens --------------------------------------------------- */

/* How probable it is that one of k different experts is among `held` of n. */
static double share_of(int64_t held, int64_t n, int64_t k)
{
    double none = 1.0;

    for (int64_t i = 0; i < k; i++) none *= fmax(0.0, (double)(n - held - i)) / (double)(n - i);
    return 1.0 - none;
}

double dti_readers_there(const dti_readers *w)
{
    const int64_t others = w->n_rows - dti_readers_part(w, w->me);

    return (double)others * share_of(w->held[w->me], w->n_experts, w->k);
}

double dti_readers_back(const dti_readers *w)
{
    double shares = 0.0;

    for (int r = 0; r < w->p; r++)
        if (r != w->me) shares += share_of(w->held[r], w->n_experts, w->k);
    return (double)dti_readers_part(w, w->me) * shares;
}

int64_t dti_readers_most_there(const dti_readers *w)
{
    return w->held[w->me] > 0 ? w->n_rows - dti_readers_part(w, w->me) : 0;
}

int64_t dti_readers_most_back(const dti_readers *w)
{
    int64_t others = 0;

    for (int r = 0; r < w->p; r++) others += r != w->me && w->held[r] > 0;
    return dti_readers_part(w, w->me) * dti_min(others, w->k);
}

int dti_dispatch_axis(const dt_tensor *y)
{
    int dims[DT_MAX_DIMS], longest = -1;

    for (int a = 0; a < y->n_axes - 1; a++)
        if (dti_layout_cuts(y->layout, a, dims) == 0 &&
            (longest < 0 || y->shape[a] > y->shape[longest]))
            longest = a;
    return longest;
}

bool dti_dispatch_pays(const dt_tensor *y, int64_t k, const dt_tensor *experts, int dim, int axis,
                       dt_dtype dtype)
{
    const dt_placement chunks = { .kind = DT_PLACE_SHARD, .unit = 1, .replicas = 1 };
    const double f32 = (double)sizeof(float), each = (double)dt_dtype_size(dtype);
    const int64_t n = experts->shape[0], length = y->shape[axis];
    const int p = dt_mesh_dim_size(y->mesh, dim);
    double rows = 1.0, all = 0.0, most = 0.0;
    int64_t first, held, begin, end;

    if (y->device->gathers_tokens) return false;
    for (int a = 0; a < y->n_axes - 1; a++) rows *= (double)y->local.shape[a];
    for (int r = 0; r < p; r++) {
        experts_of(experts, dim, r, &first, &held);
        all += share_of(held, n, k);
    }
    for (int r = 0; r < p && length > 0; r++) {
        experts_of(experts, dim, r, &first, &held);
        dti_shard_range(&chunks, length, p, r, &begin, &end);
        const double part = rows * (double)(end - begin) / (double)length;
        most = fmax(most, part * (all - share_of(held, n, k)) * f32 + (rows - part) * each);
    }
    return most < 2.0 * (p - 1) / p * rows * f32;
}
