/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole tensor in one place becomes a distributed one. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/agree.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

/* Where the piece of the rank at row-major `place` lies in the whole tensor. */
static void piece_of(const dt_tensor *x, int place, dti_box *box)
{
    int coord[DT_MAX_DIMS];
    int64_t stride = 1;

    for (int m = x->layout->n_dims - 1; m >= 0; m--) {
        coord[m] = place % x->layout->dim_size[m];
        place /= x->layout->dim_size[m];
    }
    *box = (dti_box){ .n_axes = x->n_axes };
    for (int a = x->n_axes - 1; a >= 0; a--) {
        int64_t begin, end;
        dti_layout_axis_range(x->layout, a, x->shape[a], coord, &begin, &end);
        box->extent[a] = end - begin;
        box->stride[a] = stride;
        box->offset += begin * stride;
        stride *= x->shape[a];
    }
}

/* The whole of this rank's own piece. */
static dti_box own_box(const dt_tensor *x)
{
    dti_box box = { .n_axes = x->n_axes };
    int64_t stride = 1;

    for (int a = x->n_axes - 1; a >= 0; a--) {
        box.extent[a] = x->local.shape[a];
        box.stride[a] = stride;
        stride *= x->local.shape[a];
    }
    return box;
}

/* The root sends every rank its piece. */
static dt_status scatter(dt_tensor *x, const void *full, int root)
{
    const uint32_t all = ((uint32_t)1 << x->layout->n_dims) - 1;
    const dti_box empty = { .n_axes = 1 };
    dt_status st = DT_OK;
    dti_box *sent = NULL;
    dti_comm_note note;
    dti_comm *comm;

    DT_TRY(dti_agree_comm(x, NULL, all, &note, &comm));
    DT_TRY(dti_alloc_array(2 * (size_t)comm->size, sizeof *sent, (void **)&sent));
    for (int r = 0; r < comm->size; r++) {
        sent[r] = sent[comm->size + r] = empty;
        if (comm->rank == root) piece_of(x, r, &sent[r]);
    }
    sent[comm->size + root] = own_box(x);
    st = dti_exchange(comm, full, sent, x->local.data, sent + comm->size, x->local.dtype);
    dti_free(sent);
    return st;
}

dt_status dt_distribute(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                        const int64_t *shape, dt_source source, dt_tensor **out)
{
    const void *full = source.full;
    const int root = source.root;
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    dti_box box;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(root >= DT_EQUAL_COPIES && root < dt_mesh_n_ranks(mesh), DT_ERR_ARG,
             "root %d: the mesh has places 0 to %d, or DT_EQUAL_COPIES", root,
             dt_mesh_n_ranks(mesh) - 1);
    DT_TRY(dt_zeros(mesh, place, dtype, n_axes, shape, &x));
    if (dt_mesh_is_member(mesh)) {
        const bool mine = root == DT_EQUAL_COPIES || dti_mesh_place(mesh) == root;
        bool empty = x->device->dry;
        for (int a = 0; a < n_axes; a++) empty = empty || shape[a] == 0;
        DT_CHECK_TO(fail, st, !mine || full != NULL || empty, DT_ERR_ARG,
                    "this rank has to pass the whole tensor, but full is NULL");
        if (root == DT_EQUAL_COPIES && !empty) {
            const dti_box own = own_box(x);
            piece_of(x, dti_mesh_place(mesh), &box);
            dti_box_copy(x->local.data, &own, full, &box, dt_dtype_size(dtype));
        } else if (root >= 0) {
            DT_TRY_TO(fail, st, scatter(x, full, root));
        }
    }
    *out = x;
    return DT_OK;

fail:
    /* The root alone finds that it has nothing to send, and the others wait for it. */
    if (root >= 0) dti_runtime_abort(dt_mesh_runtime(mesh));
    dt_tensor_release(&x);
    return st;
}
