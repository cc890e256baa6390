/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives of mesh/comm for users: dims by name, counts by default, arrays that are kept. */
#include <dtensor/collectives.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "mesh/runtime.h"

static const dti_live started = { "started collective", "started collectives" };

struct dt_request {
    dt_runtime *rt;
    dti_comm *comm;
    dti_comm_request request;
    dti_device *device; /* on whose stream it is; NULL: on none */
    int64_t room[];     /* counts, displs, send_counts, send_displs: [size] each */
};

static const dti_comm_op ops[DT_N_CALLS] = {
    [DT_CALL_BARRIER] = DTI_COMM_BARRIER,
    [DT_CALL_BROADCAST] = DTI_COMM_BROADCAST,
    [DT_CALL_ALL_GATHER] = DTI_COMM_ALL_GATHER,
    [DT_CALL_ALL_REDUCE] = DTI_COMM_ALL_REDUCE,
    [DT_CALL_REDUCE_SCATTER] = DTI_COMM_REDUCE_SCATTER,
    [DT_CALL_ALL_TO_ALL] = DTI_COMM_ALL_TO_ALL,
    [DT_CALL_SEND] = DTI_COMM_SEND,
    [DT_CALL_RECV] = DTI_COMM_RECV,
};

/* --- groups ----------------------------------------------------------------------------------- */

/* The dim that `text` begins with, up to a comma; -1: none. *rest is what follows. */
static int take_dim(const dt_mesh *mesh, const char *text, const char **rest)
{
    const size_t n = strcspn(text, ",");

    *rest = text[n] == ',' ? text + n + 1 : NULL;
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const char *name = dt_mesh_dim_name(mesh, d);
        if (strlen(name) == n && memcmp(name, text, n) == 0) return d;
    }
    return -1;
}

static dt_status find_dims(const dt_mesh *mesh, const char *text, uint32_t *dims)
{
    int last = -1;

    *dims = (1u << dt_mesh_n_dims(mesh)) - 1;
    if (text == NULL || text[0] == '\0') return DT_OK;
    *dims = 0;
    for (const char *at = text, *rest; at != NULL; at = rest) {
        const int d = take_dim(mesh, at, &rest);
        DT_CHECK(d >= 0, DT_ERR_ARG, "dims \"%s\": the mesh has no dim \"%.*s\"", text,
                 (int)strcspn(at, ","), at);
        DT_CHECK(d > last, DT_ERR_ARG,
                 "dims \"%s\": \"%s\" stands after \"%s\"; name each dim once, in the mesh's order",
                 text, dt_mesh_dim_name(mesh, d), dt_mesh_dim_name(mesh, last));
        *dims |= 1u << d;
        last = d;
    }
    return DT_OK;
}

/* As find_dims(), for queries, which have no errors. */
static bool has_dims(const dt_mesh *mesh, const char *text, uint32_t *dims)
{
    int last = -1;

    if (mesh == NULL) return false;
    *dims = (1u << dt_mesh_n_dims(mesh)) - 1;
    if (text == NULL || text[0] == '\0') return true;
    *dims = 0;
    for (const char *at = text, *rest; at != NULL; at = rest) {
        const int d = take_dim(mesh, at, &rest);
        if (d <= last) return false;
        *dims |= 1u << d;
        last = d;
    }
    return true;
}

int dt_group_size(const dt_mesh *mesh, const char *text)
{
    uint32_t dims;
    int n = 1;

    if (!has_dims(mesh, text, &dims)) return -1;
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if (dims >> d & 1u) n *= dt_mesh_dim_size(mesh, d);
    return n;
}

int dt_group_place(const dt_mesh *mesh, const char *text)
{
    uint32_t dims;
    int place = 0;

    if (!has_dims(mesh, text, &dims) || !dt_mesh_is_member(mesh)) return -1;
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if (dims >> d & 1u) place = place * dt_mesh_dim_size(mesh, d) + dt_mesh_coord(mesh, d);
    return place;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* The caller's array, or `count` each, or nothing, in the request's own memory. */
static const int64_t *keep(int64_t *room, int n, const int64_t *given, bool even, int64_t count)
{
    if (given == NULL && !even) return NULL;
    for (int i = 0; i < n; i++) room[i] = given != NULL ? given[i] : count;
    return room;
}

static dti_comm_call call_of(dt_request *r, const dt_collective *c)
{
    const bool single = c->op == DT_CALL_BROADCAST || c->op == DT_CALL_ALL_REDUCE ||
                        c->op == DT_CALL_SEND || c->op == DT_CALL_RECV;
    const bool from_recv = c->op == DT_CALL_BROADCAST && c->send == NULL;
    const int n = r->comm->size;
    int64_t *room = r->room;

    return (dti_comm_call){
        .op = ops[c->op],
        .dtype = c->dtype,
        .reduce = c->reduce,
        .root = c->peer,
        .send = from_recv ? c->recv : c->send,
        .recv = c->recv,
        .counts = keep(room, single ? 1 : n, single ? NULL : c->counts, true, c->count),
        .displs = keep(room + n, n, c->displs, false, 0),
        .send_counts = keep(room + 2 * n, n, c->send_counts, true, c->count),
        .send_displs = keep(room + 3 * n, n, c->send_displs, false, 0),
    };
}

static dt_status start(dt_request *r, bool on_host)
{
    dti_device *d;

    DT_TRY(dti_device_of(r->rt, &d));
    if (on_host || d->ops->host_visible || r->request.call.op == DTI_COMM_BARRIER) {
        DT_TRY(dti_comm_start(r->comm, &r->request));
        return DT_OK;
    }
    DT_TRY(d->ops->communicate(d, r->comm, &r->request.call));
    r->device = d;
    return DT_OK;
}

/* Who reads from a device waits for its stream. */
static dt_status finish(dt_request *r)
{
    if (dti_runtime_has_ended(r->rt)) return DT_OK;
    DT_TRY(dti_comm_wait(r->comm, &r->request));
    if (r->device != NULL) DT_TRY(r->device->ops->read(r->device, NULL, NULL, 0));
    return DT_OK;
}

dt_status dt_collective_start(dt_mesh *mesh, const char *text, const dt_collective *call,
                              dt_request **out)
{
    dt_status st = DT_OK;
    dt_request *r = NULL;
    uint32_t dims;
    dti_comm *comm;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && call != NULL, DT_ERR_ARG, "mesh or call is NULL");
    DT_CHECK((unsigned)call->op < DT_N_CALLS, DT_ERR_ARG, "operation %d is unknown", (int)call->op);
    DT_TRY(find_dims(mesh, text, &dims));
    DT_CHECK(dt_mesh_is_member(mesh), DT_ERR_ARG, "rank %d is not a member of the mesh",
             dt_runtime_rank(dt_mesh_runtime(mesh)));
    DT_TRY(dti_mesh_comm(mesh, dims, &comm));
    DT_TRY_TO(fail, st, dti_new(sizeof *r + 4 * (size_t)comm->size * sizeof r->room[0], &r));
    r->rt = dt_mesh_runtime(mesh);
    r->comm = comm;
    r->request.call = call_of(r, call);
    DT_TRY_TO(fail, st, start(r, call->on_host));
    dti_runtime_count(r->rt, &started, 1);
    *out = r;
    return DT_OK;

fail:
    dti_free(r);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

dt_status dt_collective_wait(dt_request **request)
{
    dt_request *r = request ? *request : NULL;
    dt_runtime *rt;
    dt_status st;

    if (r == NULL) return DT_OK;
    *request = NULL;
    rt = r->rt;
    st = dti_runtime_alone(rt, finish(r));
    dti_free(r);
    dti_runtime_count(rt, &started, -1);
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    return DT_OK;
}

dt_status dt_collective_run(dt_mesh *mesh, const char *dims, const dt_collective *call)
{
    dt_request *r;

    DT_TRY(dt_collective_start(mesh, dims, call, &r));
    DT_TRY(dt_collective_wait(&r));
    return DT_OK;
}

dt_status dt_barrier(dt_mesh *mesh, const char *dims)
{
    DT_TRY(dt_collective_run(mesh, dims, &(dt_collective){ .op = DT_CALL_BARRIER }));
    return DT_OK;
}

dt_status dt_broadcast(dt_mesh *mesh, const char *dims, void *data, int64_t n, dt_dtype dtype,
                       int root)
{
    const dt_collective call = {
        .op = DT_CALL_BROADCAST, .dtype = dtype, .peer = root, .recv = data, .count = n
    };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_all_reduce(dt_mesh *mesh, const char *dims, const void *send, void *recv, int64_t n,
                        dt_dtype dtype, dt_reduce op)
{
    const dt_collective call = { .op = DT_CALL_ALL_REDUCE,
                                 .dtype = dtype,
                                 .reduce = op,
                                 .send = send,
                                 .recv = recv,
                                 .count = n };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_all_gather(dt_mesh *mesh, const char *dims, const void *send, void *recv, int64_t n,
                        dt_dtype dtype)
{
    const dt_collective call = {
        .op = DT_CALL_ALL_GATHER, .dtype = dtype, .send = send, .recv = recv, .count = n
    };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_reduce_scatter(dt_mesh *mesh, const char *dims, const void *send, void *recv,
                            int64_t n, dt_dtype dtype, dt_reduce op)
{
    const dt_collective call = { .op = DT_CALL_REDUCE_SCATTER,
                                 .dtype = dtype,
                                 .reduce = op,
                                 .send = send,
                                 .recv = recv,
                                 .count = n };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_all_to_all(dt_mesh *mesh, const char *dims, const void *send, void *recv, int64_t n,
                        dt_dtype dtype)
{
    const dt_collective call = {
        .op = DT_CALL_ALL_TO_ALL, .dtype = dtype, .send = send, .recv = recv, .count = n
    };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_send(dt_mesh *mesh, const char *dims, const void *data, int64_t n, dt_dtype dtype,
                  int peer)
{
    const dt_collective call = {
        .op = DT_CALL_SEND, .dtype = dtype, .peer = peer, .send = data, .count = n
    };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}

dt_status dt_recv(dt_mesh *mesh, const char *dims, void *data, int64_t n, dt_dtype dtype, int peer)
{
    const dt_collective call = {
        .op = DT_CALL_RECV, .dtype = dtype, .peer = peer, .recv = data, .count = n
    };

    DT_TRY(dt_collective_run(mesh, dims, &call));
    return DT_OK;
}
