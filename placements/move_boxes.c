/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends which box to whom, and how many bytes that makes. */
#include <string.h>

#include "placements/move.h"

/* A rank's piece of a tensor: [begin, end) of every axis. */
typedef struct piece {
    int64_t begin[DT_MAX_AXES];
    int64_t end[DT_MAX_AXES];
} piece;

static void piece_of(const dt_layout *l, const int64_t *shape, const int *coord, piece *out)
{
    for (int a = 0; a < l->n_axes; a++)
        dti_layout_axis_range(l, a, shape[a], coord, &out->begin[a], &out->end[a]);
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The part of a and b that both hold; returns its number of elements. */
static int64_t intersect(int n_axes, const piece *a, const piece *b, piece *out)
{
    int64_t n = 1;

    for (int i = 0; i < n_axes; i++) {
        out->begin[i] = max_of(a->begin[i], b->begin[i]);
        out->end[i] = max_of(out->begin[i], min_of(a->end[i], b->end[i]));
        n *= out->end[i] - out->begin[i];
    }
    return n;
}

/* `part` as a box inside the contiguous buffer of `whole`. */
static void box_in(int n_axes, const piece *whole, const piece *part, dti_box *box)
{
    int64_t stride = 1;

    box->n_axes = n_axes;
    box->offset = 0;
    for (int a = n_axes - 1; a >= 0; a--) {
        box->extent[a] = part->end[a] - part->begin[a];
        box->stride[a] = stride;
        box->offset += (part->begin[a] - whole->begin[a]) * stride;
        stride *= whole->end[a] - whole->begin[a];
    }
}

/* A box without axes is one element, so an empty one has an axis of extent 0. */
static void empty_box(dti_box *box)
{
    *box = (dti_box){ .n_axes = 1, .stride = { 1 } };
}

/* True if `peer` is the rank from which `me` reads what peer's coordinate on mesh dim m holds: me
 * for my own part, otherwise the first of its holders on the way. */
static bool is_nearest(const dt_placement *place, int me, int peer)
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
            if (!is_nearest(&step->from->place[m], me[m], peer[m])) return false;
        }
    }
    return true;
}

bool dti_move_boxes(const dti_move_step *step, const int64_t *shape, const int *me, const int *peer,
                    dti_box *sent, dti_box *received)
{
    const int n_axes = step->from->n_axes;
    piece theirs = { { 0 }, { 0 } }, mine = theirs, both;

    if (sends(step, me, peer)) {
        piece_of(step->from, shape, peer, &theirs);
        piece_of(step->to, shape, me, &mine);
        if (intersect(n_axes, &theirs, &mine, &both) > 0) {
            box_in(n_axes, &theirs, &both, sent);
            box_in(n_axes, &mine, &both, received);
            return true;
        }
    }
    empty_box(sent);
    empty_box(received);
    return false;
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
    const int n_axes = step->from->n_axes, p = dti_move_group_size(step);
    const int64_t each = (int64_t)element_bytes;
    piece before = { { 0 }, { 0 } }, after = before, both;

    piece_of(step->from, shape, me, &before);
    piece_of(step->to, shape, me, &after);
    switch (step->kind) {
    case DTI_MOVE_LOCAL_SLICE:
        return 0;
    case DTI_MOVE_REDUCE_SCATTER:
        return (p - 1) * each * intersect(n_axes, &after, &after, &both);
    case DTI_MOVE_ALL_REDUCE:
        return all_reduce_bytes(each * intersect(n_axes, &after, &after, &both), p);
    case DTI_MOVE_EXCHANGE: /* what I hold I read from myself */
        return each * (intersect(n_axes, &after, &after, &both) -
                       intersect(n_axes, &before, &after, &both));
    }
    return 0;
}
