/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends what to whom, and how many bytes that makes. */
#include "placements/move.h"

#include <string.h>

bool dti_move_is_nearest(const dt_placement *place, int me, int peer)
{
    const int replicas = place->replicas;
    const int mine = me / replicas, theirs = peer / replicas;

    if (mine == theirs) return me == peer;
    return peer == (theirs < mine ? theirs * replicas + replicas - 1 : theirs * replicas);
}

int dti_move_along(const dti_move_step *step, int m)
{
    const bool reduces = step->kind == DTI_MOVE_REDUCE_SCATTER || step->kind == DTI_MOVE_ALL_REDUCE;

    return reduces && dti_has(dti_layout_terms(step->from), m) ? step->from->place[m].replicas
                                                               : step->from->dim_size[m];
}

bool dti_move_keeps(const dti_move_step *step, const int *me)
{
    const uint32_t terms = dti_layout_terms(step->to) & ~dti_layout_terms(step->from);

    for (int m = 0; m < step->to->n_dims; m++)
        if (dti_has(terms, m) && me[m] % step->to->place[m].replicas != 0) return false;
    return true;
}

static bool sends(const dti_move_step *step, const int *me, const int *peer)
{
    for (int m = 0; m < step->from->n_dims; m++) {
        if (!(step->dims >> m & 1u)) {
            if (peer[m] != me[m]) return false;
        } else if (step->kind == DTI_MOVE_EXCHANGE) {
            if (!dti_move_is_nearest(&step->from->place[m], me[m], peer[m])) return false;
        } else {
            const int n = dti_move_along(step, m);
            if (peer[m] / n != me[m] / n) return false;
        }
    }
    return step->kind != DTI_MOVE_KEEP_ONE || dti_move_keeps(step, me);
}

bool dti_move_overlap(const dti_move_step *step, const int64_t *shape, const int *me,
                      const int *peer, dti_overlap *out)
{
    out->n_axes = step->from->n_axes;
    out->n_boxes = 0;
    out->count = 0;
    return sends(step, me, peer) && dti_overlap_of(step->from, peer, step->to, me, shape, out);
}

int dti_move_group_size(const dti_move_step *step)
{
    int n = 1;

    for (int m = 0; m < step->from->n_dims; m++)
        if (step->dims >> m & 1u) n *= dti_move_along(step, m);
    return n;
}

void dti_move_member(const dti_move_step *step, const int *me, int i, int *coord)
{
    memmove(coord, me, (size_t)step->from->n_dims * sizeof *coord);
    for (int m = step->from->n_dims - 1; m >= 0; m--) {
        if (!(step->dims >> m & 1u)) continue;
        const int n = dti_move_along(step, m);
        coord[m] = me[m] / n * n + i % n;
        i /= n;
    }
}

/* n (p-1)/p times two, rounded down, without a product that could overflow. */
static int64_t all_reduce_bytes(int64_t n, int64_t p)
{
    return n / p * 2 * (p - 1) + n % p * 2 * (p - 1) / p;
}

int64_t dti_move_bytes(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                       const int *me)
{
    const int64_t each = (int64_t)dti_move_element_bytes(step, element_bytes);
    const int64_t p = dti_move_group_size(step);
    const int64_t after = dti_piece_count(step->to, me, shape);

    switch (step->kind) {
    case DTI_MOVE_LOCAL_SLICE:
    case DTI_MOVE_KEEP_ONE:
        return 0;
    case DTI_MOVE_REDUCE_SCATTER:
        return (p - 1) * each * after;
    case DTI_MOVE_ALL_REDUCE:
        return all_reduce_bytes(each * after, p);
    case DTI_MOVE_EXCHANGE: /* what I hold I read from myself */
        return each * (after - dti_overlap_count(step->from, me, step->to, me, shape));
    }
    return 0;
}

int64_t dti_move_bytes_sent(const dti_move_step *step, const int64_t *shape, size_t element_bytes,
                            const int *me)
{
    const int p = dti_move_group_size(step);
    int64_t n = 0;

    if (step->dims == 0) return 0;
    if (step->kind == DTI_MOVE_ALL_REDUCE) return dti_move_bytes(step, shape, element_bytes, me);
    for (int i = 0; i < p; i++) {
        int peer[DT_MAX_DIMS];
        bool self = true;
        dti_move_member(step, me, i, peer);
        for (int m = 0; m < step->from->n_dims; m++) self = self && peer[m] == me[m];
        if (!self && sends(step, peer, me))
            n += dti_overlap_count(step->from, me, step->to, peer, shape);
    }
    return n * (int64_t)dti_move_element_bytes(step, element_bytes);
}

bool dti_move_packs_terms(const dti_move_step *step)
{
    for (int m = 0; m < step->to->n_dims; m++)
        if (step->dims >> m & 1u && step->to->shard_dims >> m & 1u &&
            (step->from->packed_axes | step->to->packed_axes) >> step->to->place[m].axis & 1u)
            return true;
    return false;
}

/* The next coordinates on the dims that cut an axis, as an odometer; false after the last. */
static bool next_part(const dt_layout *l, const int *dims, int n, int *coord)
{
    for (int i = n - 1; i >= 0; i--) {
        if (++coord[dims[i]] < l->dim_size[dims[i]]) return true;
        coord[dims[i]] = 0;
    }
    return false;
}

bool dti_move_nests(const dt_layout *from, const dt_layout *to, const int64_t *shape)
{
    for (int axis = 0; axis < to->n_axes; axis++) {
        int dims[2 * DT_MAX_DIMS], coord[DT_MAX_DIMS] = { 0 }, n = dti_layout_cuts(to, axis, dims);
        if (dti_layout_same_cuts(from, axis, to, axis)) continue;
        for (int m = 0; m < from->n_dims; m++)
            if (dti_has(from->shard_dims, m) && from->place[m].axis == axis &&
                !(dti_has(to->shard_dims, m) && to->place[m].axis == axis))
                dims[n++] = m;
        do {
            int64_t begin, rows;
            dti_layout_axis_extent(to, axis, shape[axis], coord, &begin, &rows);
            if (dti_overlap_rows(from, coord, to, coord, axis, shape[axis]) != rows) return false;
        } while (next_part(to, dims, n, coord));
    }
    return true;
}

void dti_move_term_box(const dti_move_step *step, const int64_t *shape, const int *me,
                       const int *member, dti_box *out)
{
    int64_t stride = 1;

    *out = (dti_box){ .n_axes = step->from->n_axes };
    for (int a = out->n_axes - 1; a >= 0; a--) {
        int64_t begin, rows, to_begin;
        dti_layout_axis_extent(step->from, a, shape[a], me, &begin, &rows);
        dti_layout_axis_extent(step->to, a, shape[a], member, &to_begin, &out->extent[a]);
        out->stride[a] = stride;
        if (out->extent[a] < rows) out->offset += dti_min(to_begin - begin, rows) * stride;
        stride *= rows;
    }
}
