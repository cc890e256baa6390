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

static bool sends(const dti_move_step *step, const int *me, const int *peer)
{
    for (int m = 0; m < step->from->n_dims; m++) {
        if (!(step->dims >> m & 1u)) {
            if (peer[m] != me[m]) return false;
        } else if (step->kind == DTI_MOVE_EXCHANGE) {
            if (!dti_move_is_nearest(&step->from->place[m], me[m], peer[m])) return false;
        }
    }
    return true;
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
        if (step->dims >> m & 1u) n *= step->from->dim_size[m];
    return n;
}

void dti_move_member(const dti_move_step *step, const int *me, int i, int *coord)
{
    memmove(coord, me, (size_t)step->from->n_dims * sizeof *coord);
    for (int m = step->from->n_dims - 1; m >= 0; m--) {
        if (!(step->dims >> m & 1u)) continue;
        coord[m] = i % step->from->dim_size[m];
        i /= step->from->dim_size[m];
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

    if (step->kind == DTI_MOVE_LOCAL_SLICE) return 0;
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
            step->to->packed_axes >> step->to->place[m].axis & 1u)
            return true;
    return false;
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
        if (out->extent[a] < rows) out->offset += (to_begin - begin) * stride;
        stride *= rows;
    }
}
