/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a parameter's piece from a checkpoint. A piece is contiguous in memory; what it is of the
 * tensors in the file are one or several runs of rows per axis. */
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "placements/layout.h"
#include "weights/param_tensors.h"

typedef struct piece {
    int n_axes;
    dti_runs axis[DT_MAX_AXES]; /* of global rows */
    int64_t stride[DT_MAX_AXES];
    bool reversed; /* the file's last two axes stand the other way round */
} piece;

static void piece_of(const dt_tensor *x, bool reversed, piece *out)
{
    const dt_local *local = dt_tensor_local(x);
    int coord[DT_MAX_DIMS];
    int64_t stride = 1;

    out->n_axes = dt_tensor_n_axes(x);
    out->reversed = reversed;
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++)
        coord[m] = dt_mesh_coord(dt_tensor_mesh(x), m);
    for (int a = out->n_axes - 1; a >= 0; a--) {
        dti_layout_axis_runs(dt_tensor_layout(x), a, dt_tensor_extent(x, a), coord, &out->axis[a]);
        out->stride[a] = stride;
        stride *= local->shape[a];
    }
}

/* What `part` has of run[a] of every axis, as the file has it, and its first element in the part.
 * False if it has nothing of them. */
static bool box_of(const piece *p, const int *run, const dti_part *part, dti_st_box *box,
                   int64_t *first)
{
    *first = 0;
    for (int a = 0; a < p->n_axes; a++) {
        const bool swaps = p->reversed && a >= p->n_axes - 2;
        const int in_file = swaps ? 2 * p->n_axes - 3 - a : a;
        const dti_runs *r = &p->axis[a];
        int64_t at = 0, begin, end; /* rows of the piece */
        for (int i = 0; i < run[a]; i++) at += r->run[i].end - r->run[i].begin;
        begin = at > part->begin[a] ? at : part->begin[a];
        end = at + r->run[run[a]].end - r->run[run[a]].begin;
        if (end > part->end[a]) end = part->end[a];
        if (begin >= end) return false;
        box->begin[in_file] = r->run[run[a]].begin + begin - at;
        box->end[in_file] = r->run[run[a]].begin + end - at;
        box->stride[in_file] = p->stride[a];
        *first += (begin - part->begin[a]) * p->stride[a];
    }
    return true;
}

/* A box of the whole parameter as one of a tensor that has one expert and some of the rows, axes 0
 * and 1 of the parameter. False if they have nothing in common. */
static bool box_of_part(const dti_param_tensor *t, const int64_t *stride, dti_st_box *box,
                        int64_t *first)
{
    const int64_t end = t->first + t->shape[0];

    if (t->expert < box->begin[0] || t->expert >= box->end[0]) return false;
    *first += (t->expert - box->begin[0]) * stride[0];
    if (box->begin[1] < t->first) {
        *first += (t->first - box->begin[1]) * stride[1];
        box->begin[1] = t->first;
    }
    if (box->end[1] > end) box->end[1] = end;
    if (box->begin[1] >= box->end[1]) return false;
    *box = (dti_st_box){ .begin = { box->begin[1] - t->first, box->begin[2] },
                         .end = { box->end[1] - t->first, box->end[2] },
                         .stride = { box->stride[1], box->stride[2] } };
    return true;
}

dt_status dti_read_part(const dti_ckpt *ckpt, const dti_param_tensor *t, const dti_part *part,
                        const dti_st_stage *stage, void *to)
{
    const dt_local *local = dt_tensor_local(part->x);
    const int64_t size = (int64_t)dt_dtype_size(local->dtype);
    int run[DT_MAX_AXES] = { 0 };
    piece p;

    for (int a = 0; a < local->n_axes; a++)
        if (part->begin[a] >= part->end[a]) return DT_OK;
    if (t->block > 0 && t->part == DT_PACKED_SCALES) return DT_OK; /* read with their blocks */
    piece_of(part->x, part->reversed && t->block == 0, &p);
    for (int a = 0; a >= 0;) {
        dti_st_box box;
        int64_t first;
        if (box_of(&p, run, part, &box, &first) &&
            (t->whole || box_of_part(t, p.stride, &box, &first))) {
            void *at = (char *)to + first * size;
            if (t->block == 0)
                DT_TRY(dti_ckpt_read_strided(ckpt, t->entry->name, &box, local->dtype, stage, at));
            else if (t->form == DT_PACKED_MXFP4)
                DT_TRY(dti_read_mxfp4(ckpt, t, &box, local->dtype, stage, at));
            else
                DT_TRY(dti_read_e4m3(ckpt, t, &box, local->dtype, stage, at));
        }
        for (a = p.n_axes - 1; a >= 0; a--) {
            if (++run[a] < p.axis[a].n) break;
            run[a] = 0;
        }
    }
    return DT_OK;
}

dti_part dti_whole_part(const dt_tensor *x, bool reversed)
{
    const dt_local *local = dt_tensor_local(x);
    dti_part part = { .x = x, .reversed = reversed };

    for (int a = 0; a < local->n_axes; a++) part.end[a] = local->shape[a];
    return part;
}

dt_status dti_read_param(const dti_ckpt *ckpt, const dti_param_tensor *t, bool reversed,
                         const dti_host *to, const dti_st_stage *stage)
{
    const dti_part whole = dti_whole_part(to->x, reversed);

    DT_TRY(dti_read_part(ckpt, t, &whole, stage, to->local.data));
    return DT_OK;
}
