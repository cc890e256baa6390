/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole tensor in one place becomes a distributed one. */
#include "dtensor/claims.h"
#include "dtensor/exchange.h"
#include "dtensor/host.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

/* The tensor to distribute, and the layout of the whole in one place: x's without cuts. */
typedef struct source_pairs {
    const dt_tensor *x;
    dt_layout whole;
    int me;
    int root;
} source_pairs;

/* What the rank at row-major `place` holds of the whole. */
static bool piece_of(const source_pairs *p, int place, dti_overlap *out)
{
    const int origin[DT_MAX_DIMS] = { 0 };
    int coord[DT_MAX_DIMS];

    for (int m = p->whole.n_dims - 1; m >= 0; m--) {
        coord[m] = place % p->whole.dim_size[m];
        place /= p->whole.dim_size[m];
    }
    return dti_overlap_of(&p->whole, origin, p->x->layout, coord, p->x->shape, out);
}

static bool sent_to(const void *arg, int r, dti_overlap *out)
{
    const source_pairs *p = arg;

    return p->me == p->root && piece_of(p, r, out);
}

static bool received_from(const void *arg, int r, dti_overlap *out)
{
    const source_pairs *p = arg;

    return r == p->root && piece_of(p, p->me, out);
}

static source_pairs pairs_of(const dt_tensor *x, int root)
{
    source_pairs p = { .x = x, .whole = *x->layout, .me = dti_mesh_place(x->mesh), .root = root };

    p.whole.shard_dims = p.whole.packed_axes = 0;
    return p;
}

/* The root's whole tensor where its device can send it from. */
static dt_status bring_whole(dt_tensor *x, const void *full, dti_storage **out)
{
    size_t bytes = dt_dtype_size(x->local.dtype);
    dt_status st = DT_OK;

    for (int a = 0; a < x->n_axes; a++) bytes *= (size_t)x->shape[a];
    DT_TRY(dti_storage_create(x->device->memory, bytes, true, out));
    DT_TRY_TO(fail, st, x->device->ops->write(x->device, (*out)->data, full, bytes));
    return DT_OK;

fail:
    dti_storage_release(*out);
    *out = NULL;
    return st;
}

/* The root sends every rank its piece. */
static dt_status scatter(dt_tensor *x, const void *full, int root)
{
    const uint32_t all = ((uint32_t)1 << x->layout->n_dims) - 1;
    const source_pairs arg = pairs_of(x, root);
    dti_pairs pairs = { .sent = sent_to, .received = received_from, .arg = &arg };
    dti_storage *whole = NULL;
    dti_comm_note note;
    dti_comm *comm;
    dt_status st;

    DT_TRY(dti_mesh_comm(x->mesh, all, &comm));
    pairs.about = dti_agree_about(x, NULL, comm, &note);
    if (!x->device->ops->host_visible && arg.me == root) {
        DT_TRY(bring_whole(x, full, &whole));
        full = whole->data;
    }
    st = dti_exchange_pairs(x->device, comm, &pairs, full, x->local.data, x->local.dtype);
    dti_storage_release(whole);
    return st;
}

/* Every rank has the whole: its piece is copied, by the host. */
static dt_status take_piece(dt_tensor *x, const void *full)
{
    const source_pairs p = pairs_of(x, DT_EQUAL_COPIES);
    dti_device here = { .ops = &dti_device_cpu };
    dt_status st;
    dti_overlap o;
    dti_host host;

    if (x->device->dry || !piece_of(&p, p.me, &o)) return DT_OK;
    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &host));
    st = dti_overlap_copy(&here, &o, full, host.local.data, dt_dtype_size(x->local.dtype));
    return dti_host_close(&host, st);
}

dt_status dt_distribute(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                        const int64_t *shape, dt_source source, dt_tensor **out)
{
    const void *full = source.full;
    const int root = source.root;
    dt_status st = DT_OK;
    dt_tensor *x = NULL;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(root >= DT_EQUAL_COPIES && root < dt_mesh_n_ranks(mesh), DT_ERR_ARG,
             "root %d: the mesh has places 0 to %d, or DT_EQUAL_COPIES", root,
             dt_mesh_n_ranks(mesh) - 1);
    st = dt_zeros(mesh, place, dtype, n_axes, shape, &x);
    if (st == DT_ERR_MEMORY) goto fail; /* others may have found memory */
    DT_TRY(st);
    if (dt_mesh_is_member(mesh)) {
        const bool mine = root == DT_EQUAL_COPIES || dti_mesh_place(mesh) == root;
        bool empty = x->device->dry;
        for (int a = 0; a < n_axes; a++) empty = empty || shape[a] == 0;
        DT_CHECK_TO(fail, st, !mine || full != NULL || empty, DT_ERR_ARG,
                    "this rank has to pass the whole tensor, but full is NULL");
        if (root == DT_EQUAL_COPIES) {
            if (!empty) DT_TRY_TO(fail, st, take_piece(x, full));
        } else if (root >= 0) {
            DT_TRY_TO(fail, st, scatter(x, full, root));
        }
    }
    *out = x;
    return DT_OK;

fail:
    /* One rank alone has nothing to send, or no room: the others wait for it. */
    if (root >= 0) dti_runtime_abort(dt_mesh_runtime(mesh));
    dt_tensor_release(&x);
    return st;
}
