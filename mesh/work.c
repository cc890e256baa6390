/* SPDX-License-Identifier: Apache-2.0
 *
 * How long ranks of a mesh wait for each other, and the one wait that has no end: for work. */
#include "mesh/mesh_internal.h"

dt_status dt_mesh_set_timeout(dt_mesh *mesh, int64_t timeout_ms)
{
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_CHECK(timeout_ms >= 1, DT_ERR_ARG, "timeout_ms is %lld; a wait needs at least 1",
             (long long)timeout_ms);
    mesh->timeout_ms = timeout_ms;
    return DT_OK;
}

int64_t dt_mesh_timeout(const dt_mesh *mesh)
{
    return mesh != NULL ? mesh->timeout_ms : -1;
}

static dt_status check_work(const dt_mesh *mesh, int root, const void *data, int64_t capacity,
                            const int64_t *bytes)
{
    DT_CHECK(mesh != NULL && bytes != NULL, DT_ERR_ARG, "mesh or bytes is NULL");
    DT_CHECK(mesh->place >= 0, DT_ERR_ARG, "rank %d is not a member of the mesh that gets work",
             dt_runtime_rank(mesh->rt));
    DT_CHECK(root >= 0 && root < mesh->n_ranks, DT_ERR_ARG, "root is %d; the mesh has places 0..%d",
             root, mesh->n_ranks - 1);
    DT_CHECK(capacity >= 0, DT_ERR_ARG, "capacity is %lld", (long long)capacity);
    DT_CHECK(data != NULL || capacity == 0, DT_ERR_ARG, "data is NULL for %lld bytes",
             (long long)capacity);
    DT_CHECK(mesh->place != root || (*bytes >= 0 && *bytes <= capacity), DT_ERR_ARG,
             "work of %lld bytes, not in 0..%lld (capacity)", (long long)*bytes,
             (long long)capacity);
    return DT_OK;
}

/* The size comes first and takes however long it takes; then the bytes are there. */
dt_status dt_mesh_broadcast_work(dt_mesh *mesh, int root, void *data, int64_t capacity,
                                 int64_t *bytes)
{
    int64_t head[2]; /* bytes, the root's capacity */
    dt_status st = DT_OK;
    dti_comm *c;
    int64_t n;

    DT_TRY(check_work(mesh, root, data, capacity, bytes));
    DT_TRY(dti_mesh_comm(mesh, (1u << mesh->n_dims) - 1, &c));
    head[0] = *bytes;
    head[1] = capacity;
    DT_TRY(dti_broadcast_work(c, head, 2, DT_I64, root));
    n = head[0];
    DT_CHECK_TO(
        fail, st, head[1] == capacity, DT_ERR_ARG,
        "rank %d has room for %lld bytes of work, the root for %lld; give all ranks the same "
        "capacity",
        dt_runtime_rank(mesh->rt), (long long)capacity, (long long)head[1]);
    if (n > 0) DT_TRY(dti_broadcast(c, data, n, DT_U8, root));
    *bytes = n;
    return DT_OK;

fail:
    dti_runtime_abort(mesh->rt); /* the others go on, to where they would wait for this rank */
    return st;
}
