/* SPDX-License-Identifier: Apache-2.0
 *
 * A weight that two stages of a pipeline share is a parameter of each, with a state of its own:
 * both begin alike and are stepped by the sum of both gradients, so they stay alike. */
#include <dtensor/factories.h>

#include "dtensor/copy_to.h"
#include "dtensor/create.h"
#include "dtensor/leaves.h"
#include "dtensor/tape.h"
#include "training/optimizer.h"

/* The gradient of parameter i as its state lies, a new reference: without bytes on ranks outside
 * its mesh, zeros where no pass has reached it. */
static dt_status gradient_of(dt_optimizer *opt, int64_t i, dt_tensor **out)
{
    const dti_trained *p = &opt->params[i];
    dt_tensor *g = dti_leaf_part(opt->gradients, i, 0);
    int64_t shape[DT_MAX_AXES];

    if (g != NULL) {
        *out = dt_tensor_retain(g);
        return DT_OK;
    }
    for (int a = 0; a < dt_tensor_n_axes(p->x); a++) shape[a] = dt_tensor_extent(p->x, a);
    DT_TRY(dti_tensor_create(dt_tensor_mesh(p->x), p->layout, DT_F32, shape, out));
    DT_TRY(dt_fill(*out, 0.0));
    return DT_OK;
}

static dt_status add_to(dt_optimizer *opt, int64_t i, dt_tensor *other)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    const dti_trained *p = &opt->params[i];
    dt_tensor *moved = NULL;
    dt_status st;

    DT_TRY(dti_copy_to(other, dt_tensor_mesh(p->x), p->layout->place, counters, &moved));
    st = dti_tape_count(opt->tape, "gradients", counters);
    if (st == DT_OK)
        st = dt_mesh_is_member(dt_tensor_mesh(p->x))
                 ? dti_leaf_add(opt->gradients, i, moved, opt->tape)
                 : DT_OK;
    dt_tensor_release(&moved);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_optimizer_add_copies(dt_optimizer *opt)
{
    for (int64_t i = 0; i < opt->n; i++) {
        const int64_t first = opt->params[i].copy_of;
        dt_tensor *a = NULL, *b = NULL;
        dt_status st = DT_OK;
        if (first < 0) continue;
        DT_TRY_TO(done, st, gradient_of(opt, first, &a));
        DT_TRY_TO(done, st, gradient_of(opt, i, &b));
        DT_TRY_TO(done, st, add_to(opt, first, b));
        DT_TRY_TO(done, st, add_to(opt, i, a));
    done:
        dt_tensor_release(&a);
        dt_tensor_release(&b);
        DT_TRY(st);
    }
    return DT_OK;
}
