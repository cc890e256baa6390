/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/counting.h"

#include "mesh/runtime.h"

enum { MAX_COMMS = 512 };

/* Of this thread, which is a rank: the communicators that are counted, and their back end. */
static _Thread_local struct {
    dt_counted counted;
    dti_comm_ops ops;             /* the back end's, with a start that counts */
    const dti_comm_ops *back_end; /* NULL: nothing is counted yet */
    int n;
    dti_comm *comms[MAX_COMMS];
} mine;

static int64_t boxes_bytes(const dti_comm *c, const dti_box *boxes, int64_t each)
{
    int64_t n = 0;

    for (int r = 0; r < c->size; r++) {
        int64_t count = 1;
        for (int a = 0; a < boxes[r].n_axes; a++) count *= boxes[r].extent[a];
        if (r != c->rank) n += count;
    }
    return n * each;
}

static dt_status counting_start(dti_comm *c, dti_comm_request *request)
{
    const dti_comm_call *call = &request->call;
    const int64_t each = (int64_t)dt_dtype_size(call->dtype), p = c->size;

    switch (call->op) {
    case DTI_COMM_EXCHANGE:
        mine.counted.sent += boxes_bytes(c, call->send_boxes, each);
        mine.counted.received += boxes_bytes(c, call->recv_boxes, each);
        break;
    case DTI_COMM_REDUCE_SCATTER:
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) mine.counted.sent += call->counts[r] * each;
        mine.counted.received += (p - 1) * call->counts[c->rank] * each;
        break;
    case DTI_COMM_ALL_REDUCE:
        mine.counted.sent += 2 * (p - 1) * call->counts[0] * each / p;
        mine.counted.received += 2 * (p - 1) * call->counts[0] * each / p;
        break;
    case DTI_COMM_ALL_GATHER:
        mine.counted.sent += (p - 1) * call->counts[c->rank] * each;
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) mine.counted.received += call->counts[r] * each;
        break;
    default: /* the library moves tensors by no other operation: this makes a test fail */
        mine.counted.sent += INT64_MAX / 4;
        break;
    }
    return mine.back_end->start(c, request);
}

void dt_count_comm(dti_comm *comm)
{
    if (comm->ops == &mine.ops) return;
    if (mine.back_end == NULL) {
        mine.back_end = comm->ops;
        mine.ops = *comm->ops;
        mine.ops.start = counting_start;
    }
    if (mine.n == MAX_COMMS) return;
    comm->ops = &mine.ops;
    mine.comms[mine.n++] = comm;
}

/* The next numbers of neighbours, divisors of the dims from 2 on; false after the last. */
static bool next_along(const dt_mesh *mesh, uint32_t dims, int *along)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const int size = dt_mesh_dim_size(mesh, m);
        if ((dims >> m & 1u) == 0 || size == 1) continue;
        do along[m] = along[m] == size ? 2 : along[m] + 1;
        while (size % along[m] != 0);
        if (along[m] != size) return true; /* whole dims come first */
    }
    return false;
}

dt_status dt_count_mesh(dt_mesh *mesh)
{
    for (uint32_t dims = 1; dims < 1u << dt_mesh_n_dims(mesh); dims++) {
        int along[DT_MAX_DIMS];
        for (int m = 0; m < dt_mesh_n_dims(mesh); m++) along[m] = dt_mesh_dim_size(mesh, m);
        do {
            dti_comm *comm;
            DT_TRY(dti_mesh_comm_along(mesh, dims, along, &comm));
            dt_count_comm(comm);
        } while (next_along(mesh, dims, along));
    }
    return DT_OK;
}

dt_counted dt_counted_take(void)
{
    const dt_counted now = mine.counted;

    mine.counted = (dt_counted){ 0, 0 };
    return now;
}

void dt_count_end(void)
{
    for (int i = 0; i < mine.n; i++) mine.comms[i]->ops = mine.back_end;
    mine.n = 0;
    mine.back_end = NULL;
    mine.counted = (dt_counted){ 0, 0 };
}
