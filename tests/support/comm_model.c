/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "tests/support/dt_test.h"

enum { GAP = 3, GUARD_BYTE = 0xa5 };

uint64_t comm_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a * 0x9e3779b97f4a7c15u ^ b * 0xbf58476d1ce4e5b9u ^ c * 0x94d049bb133111ebu;

    h = (h ^ h >> 31) * 0xd6e8feb86659fd93u;
    h = (h ^ h >> 29) * 0xa0761d6478bd642fu;
    return h ^ h >> 32;
}

/* Whoever adds in another order gets these sums only if none of them is rounded. */
static bool any_order(void)
{
    const char *sums = getenv("DTENSOR_MPI_SUMS");

    return sums != NULL && strcmp(sums, "mpi") == 0;
}

/* Element i of what `rank` sends: about -2..2 in floats, all bits in integers. */
static void put_input(void *to, int64_t at, dt_dtype t, uint32_t salt, int rank, int64_t i)
{
    const uint64_t h = comm_hash(salt, (uint64_t)rank + 1, (uint64_t)i);
    char *p = (char *)to + (size_t)at * dt_dtype_size(t);

    if (dt_dtype_is_float(t) && any_order())
        dti_store_f32(to, t, at, (float)((double)(h >> 54) * 0x1p-8 - 2.0));
    else if (dt_dtype_is_float(t))
        dti_store_f32(to, t, at, (float)((double)(h >> 40) * 0x1p-22 - 2.0));
    else
        memcpy(p, &h, dt_dtype_size(t));
}

static double reduce_two(double a, double b, dt_reduce op)
{
    if (op == DT_MIN) return b < a ? b : a;
    if (op == DT_MAX) return b > a ? b : a;
    return op == DT_PROD ? a * b : a + b;
}

/* In double for f64, with a rounding to f32 after each step otherwise: exactly f32 arithmetic. */
static double step(double a, double b, const comm_case *k)
{
    const double sum = reduce_two(a, b, k->reduce);

    return k->dtype == DT_F64 ? sum : (double)(float)sum;
}

/* Between processes more than eight ranks are added host by host, and then the hosts. */
static int host_of(const comm_case *k, int n_ranks, int rank)
{
    const int n = k->n_hosts > 0 && n_ranks > 8 ? k->n_hosts : 1;
    const int all = k->n_world;
    int h = 0;

    if (n == 1) return 0;
    while (rank >= (h + 1) * (all / n) + (h + 1 < all % n ? h + 1 : all % n)) h++;
    return h;
}

/* Neighbours first; of a number that is no power of two, as many at the front as are too many. */
static double add_hosts(double *sums, int n, const comm_case *k)
{
    int nodes = 1, pairs;

    while (2 * nodes <= n) nodes *= 2;
    pairs = n - nodes;
    for (int i = 0; i < nodes; i++)
        sums[i] = i < pairs ? step(sums[2 * i], sums[2 * i + 1], k) : sums[i + pairs];
    for (; nodes > 1; nodes /= 2)
        for (int i = 0; i < nodes / 2; i++) sums[i] = step(sums[2 * i], sums[2 * i + 1], k);
    return sums[0];
}

static double sum_of_terms(const comm_case *k, int n_ranks, const int *ranks, int64_t i)
{
    enum { MOST = 1024 };
    double sums[MOST], x;
    int n = 0, hosts[MOST];

    for (int r = 0; r < n_ranks; r++) {
        const int host = host_of(k, n_ranks, ranks[r]);
        uint64_t place;
        int h = 0;
        put_input(&place, 0, k->dtype, k->salt, ranks[r], i);
        if (k->dtype == DT_F64)
            memcpy(&x, &place, sizeof x);
        else
            x = (double)dti_load_f32(&place, k->dtype, 0);
        while (h < n && hosts[h] != host) h++;
        sums[h] = h < n ? step(sums[h], x, k) : x;
        if (h < n) continue;
        hosts[n++] = host;
    }
    return add_hosts(sums, n, k);
}

static void put_reduced_float(void *to, int64_t at, const comm_case *k, int n_ranks,
                              const int *ranks, int64_t i)
{
    const double acc = sum_of_terms(k, n_ranks, ranks, i);
    double wide;
    float one;

    wide = k->reduce == DT_AVG ? acc / n_ranks : acc;
    if (k->dtype == DT_F64) {
        memcpy((char *)to + (size_t)at * 8, &wide, 8);
        return;
    }
    one = k->reduce == DT_AVG ? (float)acc / (float)n_ranks : (float)acc;
    dti_store_f32(to, k->dtype, at, one);
}

static void put_reduced_int(void *to, int64_t at, const comm_case *k, int n_ranks, const int *ranks,
                            int64_t i)
{
    const size_t bytes = dt_dtype_size(k->dtype);
    int64_t acc = 0;

    for (int r = 0; r < n_ranks; r++) {
        uint64_t place = 0;
        int64_t x;
        put_input(&place, 0, k->dtype, k->salt, ranks[r], i);
        x = bytes == 4 ? (int32_t)(uint32_t)place : (int64_t)place;
        if (r == 0)
            acc = x;
        else if (k->reduce == DT_MIN)
            acc = x < acc ? x : acc;
        else if (k->reduce == DT_MAX)
            acc = x > acc ? x : acc;
        else if (k->reduce == DT_PROD)
            acc = (int64_t)((uint64_t)acc * (uint64_t)x);
        else
            acc = (int64_t)((uint64_t)acc + (uint64_t)x);
        if (bytes == 4) acc = (int32_t)(uint32_t)(uint64_t)acc;
    }
    if (k->reduce == DT_AVG) acc /= n_ranks;
    memcpy((char *)to + (size_t)at * bytes, &acc, bytes);
}

static void put_reduced(void *to, int64_t at, const comm_case *k, const dti_comm *c, int64_t i)
{
    if (dt_dtype_is_float(k->dtype))
        put_reduced_float(to, at, k, c->size, c->world_ranks, i);
    else
        put_reduced_int(to, at, k, c->size, c->world_ranks, i);
}

/* Elements that go from member `from` to member `to`, or that a block has (to = 0). */
static int64_t count_of(const comm_case *k, int from, int to)
{
    const uint64_t h = comm_hash(k->salt + 1, (uint64_t)from, (uint64_t)to);

    if (!k->uneven) return k->n;
    return h % 4 == 0 ? 0 : (int64_t)(h >> 8) % (k->n + 1);
}

/* Displacements of blocks; returns the elements that they span. */
static int64_t place_blocks(const comm_case *k, const int64_t *counts, int n, int64_t *displs)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        const int m = k->displaced ? n - 1 - i : i;
        displs[m] = at;
        at += counts[m] + (k->displaced ? GAP : 0);
    }
    return at;
}

/* What a block of inputs of `rank` is, numbered from `first`. */
static void put_inputs(void *to, int64_t at, const comm_case *k, int rank, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put_input(to, at + i, k->dtype, k->salt, rank, first + i);
}

static dt_status buffers(comm_trial *t, int64_t send_n, int64_t recv_n)
{
    const size_t bytes = dt_dtype_size(t->kase.dtype);

    t->send_bytes = ((size_t)send_n + GAP) * bytes;
    t->recv_bytes = ((size_t)recv_n + GAP) * bytes;
    DT_TRY(dti_alloc(t->send_bytes, &t->send));
    DT_TRY(dti_alloc(t->recv_bytes, &t->recv));
    DT_TRY(dti_alloc(t->recv_bytes, &t->want));
    memset(t->send, GUARD_BYTE, t->send_bytes);
    memset(t->recv, GUARD_BYTE, t->recv_bytes);
    memset(t->want, GUARD_BYTE, t->recv_bytes);
    return DT_OK;
}

static dt_status prepare_broadcast(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const int64_t n = t->counts[0] = k->n;

    DT_TRY(buffers(t, n, n));
    if (k->in_place) put_inputs(t->recv, 0, k, c->world_ranks[c->rank], 0, n);
    put_inputs(t->send, 0, k, c->world_ranks[c->rank], 0, n);
    put_inputs(t->want, 0, k, c->world_ranks[k->root], 0, n);
    return DT_OK;
}

static dt_status prepare_all_reduce(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const int64_t n = t->counts[0] = k->n;

    DT_TRY(buffers(t, n, n));
    put_inputs(k->in_place ? t->recv : t->send, 0, k, c->world_ranks[c->rank], 0, n);
    for (int64_t i = 0; i < n; i++) put_reduced(t->want, i, k, c, i);
    return DT_OK;
}

static dt_status prepare_all_gather(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    int64_t span;

    for (int m = 0; m < c->size; m++) t->counts[m] = count_of(k, m, 0);
    span = place_blocks(k, t->counts, c->size, t->displs);
    DT_TRY(buffers(t, t->counts[c->rank], span));
    put_inputs(k->in_place ? t->recv : t->send, k->in_place ? t->displs[c->rank] : 0, k,
               c->world_ranks[c->rank], 0, t->counts[c->rank]);
    for (int m = 0; m < c->size; m++)
        put_inputs(t->want, t->displs[m], k, c->world_ranks[m], 0, t->counts[m]);
    return DT_OK;
}

/* Terms for a member: rows [a, b] with gaps of a length that all ranks have alike, or, displaced,
 * each its own; long rows and, by the salt, short ones. */
static int64_t make_terms(const comm_case *k, int rank, int member, int64_t at, dti_box *box)
{
    const int64_t n = count_of(k, member, 0), short_row = 1 + k->salt % 5;
    const int64_t b = k->salt % 2 ? short_row : n / 3 + 1, a = n / b;
    const int64_t gap = k->displaced ? rank % 3 : 2;

    *box = (dti_box){ .n_axes = 3,
                      .offset = at,
                      .extent = { a, 1, b },
                      .stride = { b + gap, 1 + (int64_t)k->salt, 1 } };
    return a * (b + gap);
}

static dt_status prepare_boxed_reduce_scatter(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    int64_t first = 0, at = 1;

    for (int m = 0; m < c->size; m++) {
        at += make_terms(k, c->rank, m, at, &t->send_boxes[m]);
        t->counts[m] = dti_box_count(&t->send_boxes[m]);
    }
    DT_TRY(buffers(t, at, t->counts[c->rank]));
    for (int m = 0; m < c->size; m++) {
        const dti_box *box = &t->send_boxes[m];
        for (int64_t row = 0; row < box->extent[0]; row++)
            put_inputs(t->send, box->offset + row * box->stride[0], k, c->world_ranks[c->rank],
                       first + row * box->extent[2], box->extent[2]);
        for (int64_t i = 0; m == c->rank && i < t->counts[m]; i++)
            put_reduced(t->want, i, k, c, first + i);
        first += t->counts[m];
    }
    return DT_OK;
}

static dt_status prepare_reduce_scatter(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    int64_t first = 0;

    if (k->in_place) return prepare_boxed_reduce_scatter(c, t);
    for (int m = 0; m < c->size; m++) t->counts[m] = count_of(k, m, 0);
    DT_TRY(buffers(t, place_blocks(k, t->counts, c->size, t->displs), t->counts[c->rank]));
    for (int m = 0; m < c->size; m++) {
        put_inputs(t->send, t->displs[m], k, c->world_ranks[c->rank], first, t->counts[m]);
        for (int64_t i = 0; m == c->rank && i < t->counts[m]; i++)
            put_reduced(t->want, i, k, c, first + i);
        first += t->counts[m];
    }
    return DT_OK;
}

/* Inputs of an exchange are numbered from a start that depends on the receiver. */
static int64_t first_for(int member)
{
    return (int64_t)member * 1000003;
}

static dt_status prepare_all_to_all(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const int me = c->rank;
    int64_t send_span, recv_span;

    for (int m = 0; m < c->size; m++) {
        t->send_counts[m] = count_of(k, me, m);
        t->counts[m] = count_of(k, m, me);
    }
    send_span = place_blocks(k, t->send_counts, c->size, t->send_displs);
    recv_span = place_blocks(k, t->counts, c->size, t->displs);
    DT_TRY(buffers(t, send_span, recv_span));
    for (int m = 0; m < c->size; m++) {
        put_inputs(t->send, t->send_displs[m], k, c->world_ranks[me], first_for(m),
                   t->send_counts[m]);
        put_inputs(t->want, t->displs[m], k, c->world_ranks[m], first_for(me), t->counts[m]);
    }
    return DT_OK;
}

/* A box [a, b, 2]: rows with a gap on the sending side, transposed on the receiving side. */
static int64_t make_box(const comm_case *k, int from, int to, bool sends, int64_t at, dti_box *box)
{
    const uint64_t h = comm_hash(k->salt + 2, (uint64_t)from, (uint64_t)to);
    const int64_t side = k->n > 24 ? 24 : k->n;
    const int64_t a = k->uneven ? (int64_t)(h & 0xff) % (side + 1) : side;
    const int64_t b = k->uneven ? (int64_t)(h >> 8 & 0xff) % (side + 1) : side;

    *box = (dti_box){ .n_axes = 3, .offset = at, .extent = { a, b, 2 } };
    if (sends) {
        box->stride[0] = 2 * b + 2;
        box->stride[1] = 2;
        box->stride[2] = 1;
        return a * (2 * b + 2);
    }
    box->stride[0] = 1;
    box->stride[1] = 2 * a;
    box->stride[2] = a;
    return 2 * a * b;
}

static void put_box(void *to, const dti_box *b, const comm_case *k, int rank, int64_t first)
{
    int64_t i = first;

    for (int64_t x = 0; x < b->extent[0]; x++)
        for (int64_t y = 0; y < b->extent[1]; y++)
            for (int64_t z = 0; z < b->extent[2]; z++)
                put_input(to, b->offset + x * b->stride[0] + y * b->stride[1] + z * b->stride[2],
                          k->dtype, k->salt, rank, i++);
}

static dt_status prepare_exchange(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const int me = c->rank;
    int64_t send_at = 0, recv_at = 1;

    for (int m = 0; m < c->size; m++) {
        send_at += make_box(k, me, m, true, send_at, &t->send_boxes[m]);
        recv_at += make_box(k, m, me, false, recv_at, &t->recv_boxes[m]);
    }
    DT_TRY(buffers(t, send_at, recv_at));
    for (int m = 0; m < c->size; m++) {
        put_box(t->send, &t->send_boxes[m], k, c->world_ranks[me], first_for(m));
        put_box(t->want, &t->recv_boxes[m], k, c->world_ranks[m], first_for(me));
    }
    return DT_OK;
}

static dt_status prepare_message(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const int before = (c->rank + c->size - 1) % c->size;

    t->send_counts[0] = count_of(k, c->rank, 0);
    t->counts[0] = count_of(k, before, 0);
    DT_TRY(buffers(t, t->send_counts[0], t->counts[0]));
    put_inputs(t->send, 0, k, c->world_ranks[c->rank], 0, t->send_counts[0]);
    put_inputs(t->want, 0, k, c->world_ranks[before], 0, t->counts[0]);
    return DT_OK;
}

static dt_status prepare(dti_comm *c, comm_trial *t)
{
    switch (t->kase.op) {
    case DTI_COMM_BARRIER:
        return buffers(t, 0, 0);
    case DTI_COMM_BROADCAST:
        return prepare_broadcast(c, t);
    case DTI_COMM_ALL_GATHER:
        return prepare_all_gather(c, t);
    case DTI_COMM_ALL_REDUCE:
        return prepare_all_reduce(c, t);
    case DTI_COMM_REDUCE_SCATTER:
        return prepare_reduce_scatter(c, t);
    case DTI_COMM_ALL_TO_ALL:
        return prepare_all_to_all(c, t);
    case DTI_COMM_EXCHANGE:
        return prepare_exchange(c, t);
    default:
        return prepare_message(c, t);
    }
}

static const void *send_buffer(const dti_comm *c, const comm_trial *t)
{
    const size_t bytes = dt_dtype_size(t->kase.dtype);

    if (!t->kase.in_place) return t->send;
    if (t->kase.op == DTI_COMM_ALL_GATHER)
        return (const char *)t->recv + (size_t)t->displs[c->rank] * bytes;
    if (t->kase.op == DTI_COMM_ALL_REDUCE || t->kase.op == DTI_COMM_BROADCAST) return t->recv;
    return t->send;
}

/* Buffers as they are, guards and all, on the device. */
static dt_status move_up(comm_trial *t)
{
    const dti_cuda_place *p = t->kase.place;
    const dti_cuda_module *m = p->module;

    DT_EXPECT(m->alloc(p->cuda, t->send_bytes, DTI_CUDA_DEVICE, &t->send_there) == 0 &&
                  m->alloc(p->cuda, t->recv_bytes, DTI_CUDA_DEVICE, &t->recv_there) == 0 &&
                  m->copy(p->cuda, t->send_there, t->send, t->send_bytes, DTI_CUDA_UP) == 0 &&
                  m->copy(p->cuda, t->recv_there, t->recv, t->recv_bytes, DTI_CUDA_UP) == 0,
              "%s", m->why());
    return DT_OK;
}

/* What was sent may be overwritten now. */
static dt_status move_down(dti_comm *c, comm_trial *t)
{
    const dti_cuda_place *p = t->kase.place;
    const dti_cuda_module *m = p->module;

    DT_EXPECT(m->clear(p->cuda, t->send_there, t->send_bytes) == 0, "%s", m->why());
    DT_TRY(dti_cuda_world_sync(c->cuda));
    DT_EXPECT(m->copy(p->cuda, t->recv, t->recv_there, t->recv_bytes, DTI_CUDA_DOWN) == 0, "%s",
              m->why());
    return DT_OK;
}

/* Where a pointer into a buffer lies there. */
static void *there(const comm_trial *t, const void *at)
{
    const char *p = at, *send = t->send, *recv = t->recv;

    if (p >= send && p < send + t->send_bytes) return (char *)t->send_there + (p - send);
    return (char *)t->recv_there + (p - recv);
}

static dt_status put_on_device(comm_trial *t)
{
    dti_comm_call *call = &t->requests[0].call;

    if (t->kase.place == NULL) return DT_OK;
    DT_TRY(move_up(t));
    call->send = there(t, call->send);
    call->recv = there(t, call->recv);
    call->stream = t->kase.place->module->stream(t->kase.place->cuda);
    return DT_OK;
}

static dt_status start_message(dti_comm *c, comm_trial *t)
{
    dti_comm_call *send = &t->requests[0].call;
    dti_comm_call *recv = &t->requests[1].call;

    *recv = *send;
    send->op = DTI_COMM_SEND;
    send->root = (c->rank + 1) % c->size;
    send->counts = t->send_counts;
    recv->op = DTI_COMM_RECV;
    recv->root = (c->rank + c->size - 1) % c->size;
    DT_TRY(dti_comm_start(c, &t->requests[0]));
    DT_TRY(dti_comm_start(c, &t->requests[1]));
    return DT_OK;
}

dt_status comm_trial_start(dti_comm *c, const comm_case *kase, comm_trial *t)
{
    const size_t n = (size_t)c->size;
    const bool boxed = kase->op == DTI_COMM_EXCHANGE || kase->in_place;

    *t = (comm_trial){ .kase = *kase };
    if (kase->op == DTI_COMM_SEND && c->size == 1) t->kase.op = DTI_COMM_BARRIER;
    if (kase->op == DTI_COMM_RECV) t->kase.op = DTI_COMM_BARRIER;
    DT_TRY(dti_alloc_array(n, sizeof(int64_t), (void **)&t->counts));
    DT_TRY(dti_alloc_array(n, sizeof(int64_t), (void **)&t->displs));
    DT_TRY(dti_alloc_array(n, sizeof(int64_t), (void **)&t->send_counts));
    DT_TRY(dti_alloc_array(n, sizeof(int64_t), (void **)&t->send_displs));
    DT_TRY(dti_alloc_array(n, sizeof(dti_box), (void **)&t->send_boxes));
    DT_TRY(dti_alloc_array(n, sizeof(dti_box), (void **)&t->recv_boxes));
    DT_TRY(prepare(c, t));
    t->requests[0].call = (dti_comm_call){ .op = t->kase.op,
                                           .dtype = kase->dtype,
                                           .reduce = kase->reduce,
                                           .root = kase->root,
                                           .send = send_buffer(c, t),
                                           .recv = t->recv,
                                           .counts = t->counts,
                                           .displs = kase->displaced ? t->displs : NULL,
                                           .send_counts = t->send_counts,
                                           .send_displs = kase->displaced ? t->send_displs : NULL,
                                           .send_boxes = boxed ? t->send_boxes : NULL,
                                           .recv_boxes = t->recv_boxes };
    DT_TRY(put_on_device(t));
    if (t->kase.op == DTI_COMM_SEND) return start_message(c, t);
    return dti_comm_start(c, &t->requests[0]);
}

dt_status comm_trial_finish(dti_comm *c, comm_trial *t)
{
    const comm_case *k = &t->kase;
    const size_t bytes = dt_dtype_size(k->dtype);
    size_t i = 0;

    DT_TRY(dti_comm_wait(c, &t->requests[0]));
    DT_TRY(dti_comm_wait(c, &t->requests[0])); /* a second wait is a no-op */
    DT_TRY(dti_comm_wait(c, &t->requests[1]));
    if (k->place != NULL) DT_TRY(move_down(c, t));
    while (i < t->recv_bytes && ((char *)t->recv)[i] == ((char *)t->want)[i]) i++;
    DT_EXPECT(i == t->recv_bytes,
              "%s%s on %d ranks, %s, reduce %d, n %" PRId64
              ", uneven %d, displaced %d, in place %d, "
              "salt %u: element %zu of %zu differs on rank %d",
              dti_comm_op_name(k->op), k->place != NULL ? " of devices" : "", c->size,
              dt_dtype_name(k->dtype), (int)k->reduce, k->n, k->uneven, k->displaced, k->in_place,
              k->salt, i / bytes, t->recv_bytes / bytes, c->rank);
    comm_trial_free(t);
    return DT_OK;
}

void comm_trial_free(comm_trial *t)
{
    const dti_cuda_place *p = t->kase.place;

    if (t->send_there != NULL) p->module->release(p->cuda, DTI_CUDA_DEVICE, t->send_there);
    if (t->recv_there != NULL) p->module->release(p->cuda, DTI_CUDA_DEVICE, t->recv_there);
    dti_free(t->counts);
    dti_free(t->displs);
    dti_free(t->send_counts);
    dti_free(t->send_displs);
    dti_free(t->send_boxes);
    dti_free(t->recv_boxes);
    dti_free(t->send);
    dti_free(t->recv);
    dti_free(t->want);
    *t = (comm_trial){ .send = NULL };
}

dt_status comm_trial_run(dti_comm *c, const comm_case *kase)
{
    dt_status st = DT_OK;
    comm_trial t = { .send = NULL };

    DT_TRY_TO(fail, st, comm_trial_start(c, kase, &t));
    DT_TRY_TO(fail, st, comm_trial_finish(c, &t));
    return DT_OK;

fail:
    comm_trial_free(&t);
    return st;
}
