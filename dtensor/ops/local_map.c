/* SPDX-License-Identifier: Apache-2.0
 *
 * A caller's function on local pieces: operands are moved, results made as they were described, and
 * nothing is decided or remembered. */
#include "dtensor/graph.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"
#include "dtensor/tensor_internal.h"

static dt_status check_call(const dt_local_call *c, dt_tensor *const *in, dt_tensor **out)
{
    DT_CHECK(c != NULL && in != NULL && out != NULL, DT_ERR_ARG,
             "dt_local_map: call, in or out is NULL");
    DT_CHECK(c->name != NULL && c->run != NULL, DT_ERR_ARG,
             "dt_local_map: a call needs a name and a function");
    DT_CHECK(c->n_in >= 1 && c->n_in <= DT_OP_MAX_IN && c->n_out >= 1 && c->n_out <= DT_OP_MAX_OUT,
             DT_ERR_ARG, "%s: %d operands and %d results: 1 to %d and 1 to %d are possible",
             c->name, c->n_in, c->n_out, DT_OP_MAX_IN, DT_OP_MAX_OUT);
    for (int i = 0; i < c->n_in; i++) {
        DT_CHECK(in[i] != NULL, DT_ERR_ARG, "%s: operand %d is NULL", c->name, i);
        DT_CHECK(dt_mesh_equal(in[i]->mesh, in[0]->mesh) && in[i]->device == in[0]->device,
                 DT_ERR_LAYOUT, "%s: operands 0 and %d lie on different meshes", c->name, i);
    }
    for (int r = 0; r < c->n_out; r++)
        DT_CHECK(c->out[r].place != NULL && (c->out[r].shape != NULL || c->out[r].n_axes == 0),
                 DT_ERR_ARG, "%s: result %d has no placements or no shape", c->name, r);
    return DT_OK;
}

static dt_status make_results(const dt_local_call *c, dt_mesh *mesh, dt_tensor **y)
{
    for (int r = 0; r < c->n_out; r++) {
        const dt_local_result *want = &c->out[r];
        const dt_layout *layout;
        dt_status st = dti_check_create(mesh, want->place, want->n_axes, want->shape, &layout);

        if (st == DT_OK) st = dti_tensor_create(mesh, layout, want->dtype, want->shape, &y[r]);
        if (st != DT_OK) dti_error_prefix("%s: result %d", c->name, r);
        DT_TRY(st);
    }
    return DT_OK;
}

/* The function, as the kernel of a row of its own. */
static dt_status run(const dt_local_call *c, dt_tensor *const *in, dt_tensor *const *y)
{
    const dt_op row = { .name = c->name, .cpu = c->run, .cuda = c->cuda };
    dt_local pieces[DT_OP_MAX_IN], results[DT_OP_MAX_OUT];
    dt_kargs args = {
        .in = pieces, .out = results, .attr = c->attr, .n_in = c->n_in, .n_out = c->n_out
    };
    dti_device *device = y[0]->device;

    if (device->dry || !dt_mesh_is_member(y[0]->mesh)) return DT_OK;
    for (int i = 0; i < c->n_in; i++) pieces[i] = in[i]->local;
    for (int r = 0; r < c->n_out; r++) results[r] = y[r]->local;
    DT_TRY(dti_kernel_said(row.name, device->ops->run(device, &row, &args)));
    return DT_OK;
}

/* Operands that lie otherwise are moved for the call's reason; their copies are the tape's. */
static dt_status move_all(dt_tape *t, const dt_local_call *c, dt_tensor **in)
{
    const char *before = dt_tape_because(t, c->name);

    for (int i = 0; i < c->n_in; i++)
        if (c->in_place[i] != NULL) in[i] = dt_move(t, in[i], c->in_place[i]);
    (void)dt_tape_because(t, before);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

void dt_local_map(dt_tape *t, const dt_local_call *c, dt_tensor *const *in, dt_tensor **out)
{
    dt_tensor *pieces[DT_OP_MAX_IN], *y[DT_OP_MAX_OUT] = { NULL };
    dt_status st;

    for (int r = 0; c != NULL && out != NULL && r < c->n_out && r < DT_OP_MAX_OUT; r++)
        out[r] = NULL;
    if (dti_tape_is_down(t)) return;
    DT_TRY_TO(fail, st, check_call(c, in, out));
    for (int i = 0; i < c->n_in; i++) pieces[i] = in[i];
    DT_TRY_TO(fail, st, move_all(t, c, pieces));
    DT_TRY_TO(fail, st, make_results(c, in[0]->mesh, y));
    DT_TRY_TO(fail, st, run(c, pieces, y));
    if (dti_graph_listens(t->graph))
        DT_TRY_TO(fail, st,
                  dti_graph_row(
                      t, &(dt_op){ .name = c->name, .backward = c->backward, .keeps = c->keeps },
                      NULL, c->n_in, pieces, c->n_out, y));
    for (int r = 0; r < c->n_out; r++) out[r] = dti_tape_push(t, y[r]);
    for (int r = 0; r < c->n_out && t->status != DT_OK; r++) out[r] = NULL; /* it could not grow */
    return;

fail:
    for (int r = 0; r < DT_OP_MAX_OUT; r++) dt_tensor_release(&y[r]);
    (void)dti_tape_latch(t, st);
}
