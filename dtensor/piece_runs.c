/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/piece_runs.h"

#include "dtensor/optimize.h"

dti_piece_map dti_piece_of(const dt_tensor *x)
{
    dti_piece_map p = { .x = x, .axis = x->n_axes - 1, .inner = 1 };
    int coord[DT_MAX_DIMS];

    while (p.axis >= 0 && x->local.shape[p.axis] == x->shape[p.axis]) p.inner *= x->shape[p.axis--];
    for (int m = 0; m < x->layout->n_dims; m++) coord[m] = dt_mesh_coord(x->mesh, m);
    for (int a = 0; a <= p.axis; a++)
        dti_layout_axis_runs(x->layout, a, x->shape[a], coord, &p.runs[a]);
    return p;
}

/* The run that row `at` of a piece lies in; *at becomes its number there. */
static const dt_rows *run_of(const dti_runs *runs, int64_t *at)
{
    const dt_rows *run = runs->run;

    for (; *at >= run->end - run->begin; run++) *at -= run->end - run->begin;
    return run;
}

int64_t dti_piece_global_run(const dti_piece_map *p, int64_t i, int64_t *left)
{
    const dt_tensor *x = p->x;
    int64_t rest = p->axis < 0 ? 0 : i / p->inner, global = 0, stride = p->inner;

    *left = p->inner - i % p->inner;
    if (p->axis < 0) return i;
    for (int a = p->axis; a >= 0; a--) {
        int64_t at = rest % x->local.shape[a];
        const dt_rows *run = run_of(&p->runs[a], &at);
        global += (run->begin + at) * stride;
        if (a == p->axis) *left += (run->end - run->begin - at - 1) * p->inner;
        stride *= x->shape[a];
        rest /= x->local.shape[a];
    }
    return global + i % p->inner;
}

dti_box dti_piece_box(const dti_piece_map *p, int64_t i, int64_t *skip, int64_t *left)
{
    const dt_tensor *x = p->x;
    dti_box box = { .n_axes = p->axis + 1 };
    int64_t stride = p->inner, count = p->inner, rest = i / p->inner, before = i % p->inner;
    int packed = 0; /* the last axis of several runs: the box has one of them, and of axes before
                     * it one row each */

    for (int a = 1; a <= p->axis; a++)
        if (p->runs[a].n > 1) packed = a;
    for (int a = p->axis; a >= 0; a--) {
        int64_t at = rest % x->local.shape[a];
        const dt_rows *run = run_of(&p->runs[a], &at);
        box.stride[a] = stride;
        box.extent[a] = a < packed ? 1 : run->end - run->begin;
        box.offset += (a < packed ? run->begin + at : run->begin) * stride;
        if (a >= packed) before += at * count;
        count *= box.extent[a];
        stride *= x->shape[a];
        rest /= x->local.shape[a];
    }
    if (box.n_axes == 0) {
        box.n_axes = 1;
        box.extent[0] = p->inner;
        box.stride[0] = 1;
    } else if (p->inner > 1) { /* rows of the last axis that is cut follow each other */
        box.extent[p->axis] *= p->inner;
        box.stride[p->axis] = 1;
    }
    *skip = before;
    *left = count - before;
    return box;
}

int64_t dti_piece_global(const dt_tensor *x, int64_t i)
{
    const dti_piece_map p = dti_piece_of(x);
    int64_t left;

    return dti_piece_global_run(&p, i, &left);
}
