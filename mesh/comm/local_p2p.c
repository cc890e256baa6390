/* SPDX-License-Identifier: Apache-2.0
 *
 * Send and receive: the receiver copies straight from the sender's buffer. */
#include <stdlib.h>
#include <string.h>

#include "mesh/comm/local_internal.h"

/* The channels of a source are made by whoever first uses one of them, either end. */
static dt_status channel_row(dti_local_group *g, pthread_mutex_t *lock, int from,
                             dti_local_channel **out)
{
    dti_local_channel *row = atomic_load_explicit(&g->channels[from], memory_order_acquire);

    if (row == NULL) {
        (void)pthread_mutex_lock(lock);
        row = atomic_load(&g->channels[from]);
        if (row == NULL) {
            const size_t bytes = (size_t)g->n * sizeof *row;
            row = aligned_alloc(DTI_LINE_BYTES, bytes);
            if (row != NULL) memset(row, 0, bytes);
            atomic_store_explicit(&g->channels[from], row, memory_order_release);
        }
        (void)pthread_mutex_unlock(lock);
    }
    DT_CHECK(row != NULL, DT_ERR_MEMORY, "channels of %d ranks could not be allocated", g->n);
    *out = row;
    return DT_OK;
}

static dt_status channel_of(dti_local_comm *c, const dti_comm_call *call, dti_local_channel **out)
{
    const bool sends = call->op == DTI_COMM_SEND;
    dti_local_channel *row;

    DT_TRY(channel_row(c->group, &c->world->lock, sends ? c->head.rank : call->root, &row));
    *out = &row[sends ? call->root : c->head.rank];
    return DT_OK;
}

/* The channel of a request under way. */
static dti_local_channel *channel_at(dti_local_comm *c, int from, int to)
{
    return &atomic_load_explicit(&c->group->channels[from], memory_order_acquire)[to];
}

static dt_status copy_message(dti_local_comm *c, int from, dti_local_channel *ch, uint64_t seq)
{
    const dti_local_end *sent = &ch->sends[seq % DTI_LOCAL_RING];
    const dti_local_end *wanted = &ch->recvs[seq % DTI_LOCAL_RING];

    DT_CHECK(sent->n == wanted->n && sent->dtype == wanted->dtype, DT_ERR_ARG,
             "recv on \"%s\": rank %d sends %lld elements of %s but rank %d receives %lld of %s",
             c->head.name, c->head.world_ranks[from], (long long)sent->n,
             dt_dtype_name(sent->dtype), c->head.world_ranks[c->head.rank], (long long)wanted->n,
             dt_dtype_name(wanted->dtype));
    DT_CHECK(sent->on_device == wanted->on_device, DT_ERR_ARG,
             "recv on \"%s\": rank %d sends from memory of %s but rank %d receives into memory of "
             "%s; both have to be of the same kind",
             c->head.name, c->head.world_ranks[from], sent->on_device ? "a device" : "the host",
             c->head.world_ranks[c->head.rank], wanted->on_device ? "a device" : "the host");
    if (sent->on_device) return dti_local_cuda_take(c, ch, seq);
    if (sent->n > 0) memcpy(wanted->recv, sent->send, (size_t)sent->n * dt_dtype_size(sent->dtype));
    return DT_OK;
}

/* Serves the receives from one source that can be served. */
static int try_receive(dti_local_comm *c, int from)
{
    dti_local_channel *ch = channel_at(c, from, c->head.rank);
    uint64_t seq = atomic_load_explicit(&ch->taken, memory_order_relaxed);
    dt_status st;

    while (seq < ch->wanted) {
        seq++;
        if (atomic_load_explicit(&ch->posted, memory_order_acquire) < seq) return from;
        if (!dti_local_enter(c)) return from;
        st = copy_message(c, from, ch, seq);
        dti_local_exit(c);
        if (st != DT_OK) {
            dti_local_abort(&c->head, c->head.world_ranks[c->head.rank], dt_last_error()->message);
            return DTI_LOCAL_FAILED;
        }
        c->n_recvs--;
        c->self->n_due--;
        atomic_store_explicit(&ch->taken, seq, memory_order_release);
        dti_local_wake_members(c);
    }
    return DTI_LOCAL_READY;
}

void dti_local_p2p_progress(dti_local_comm *c)
{
    for (int from = 0; from < c->head.size; from++)
        if (atomic_load_explicit(&c->group->channels[from], memory_order_acquire) != NULL)
            (void)try_receive(c, from);
}

int dti_local_p2p_pending(dti_local_comm *c)
{
    for (int from = 0; from < c->head.size; from++) {
        int member = DTI_LOCAL_READY;
        if (atomic_load_explicit(&c->group->channels[from], memory_order_acquire) != NULL)
            member = try_receive(c, from);
        if (member != DTI_LOCAL_READY) return member;
    }
    return DTI_LOCAL_READY;
}

static int is_received(dti_local_comm *c, const dti_comm_request *r)
{
    const int from = r->call.root;
    const int member = try_receive(c, from);

    if (member == DTI_LOCAL_FAILED) return member;
    return atomic_load(&channel_at(c, from, c->head.rank)->taken) >= r->seq ? DTI_LOCAL_READY
                                                                            : from;
}

static int is_sent(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_channel *ch = channel_at(c, c->head.rank, r->call.root);

    return atomic_load_explicit(&ch->taken, memory_order_acquire) >= r->seq ? DTI_LOCAL_READY
                                                                            : r->call.root;
}

static int send_has_room(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_channel *ch = channel_at(c, c->head.rank, r->call.root);

    return atomic_load_explicit(&ch->taken, memory_order_acquire) + DTI_LOCAL_RING >= r->seq
               ? DTI_LOCAL_READY
               : r->call.root;
}

static int recv_has_room(dti_local_comm *c, const dti_comm_request *r)
{
    const int from = r->call.root;
    const int member = try_receive(c, from);

    if (member == DTI_LOCAL_FAILED) return member;
    return atomic_load(&channel_at(c, from, c->head.rank)->taken) + DTI_LOCAL_RING >= r->seq
               ? DTI_LOCAL_READY
               : from;
}

dt_status dti_local_p2p_start(dti_local_comm *c, dti_comm_request *r)
{
    const bool sends = r->call.op == DTI_COMM_SEND;
    dti_local_channel *ch;
    dti_local_end *end;

    DT_TRY(channel_of(c, &r->call, &ch));
    r->seq = (sends ? atomic_load(&ch->posted) : ch->wanted) + 1;
    DT_TRY(dti_local_check_abort(c, r));
    DT_TRY(
        dti_local_await(c, r, sends ? send_has_room : recv_has_room, sends ? "received" : "sent"));
    end = sends ? &ch->sends[r->seq % DTI_LOCAL_RING] : &ch->recvs[r->seq % DTI_LOCAL_RING];
    *end = (dti_local_end){ r->call.send, r->call.recv, r->call.counts[0], r->call.dtype,
                            r->call.stream != NULL };
    if (sends) {
        if (end->on_device) DT_TRY(dti_local_cuda_post(c, ch, r->seq));
        atomic_store_explicit(&ch->posted, r->seq, memory_order_release);
        dti_local_wake_members(c);
    } else {
        ch->wanted = r->seq;
        c->n_recvs++;
        c->self->n_due++;
    }
    c->self->n_under_way++;
    return DT_OK;
}

dt_status dti_local_p2p_wait(dti_local_comm *c, const dti_comm_request *r)
{
    if (r->call.op == DTI_COMM_RECV) {
        DT_TRY(dti_local_await(c, r, is_received, "sent"));
        return DT_OK;
    }
    DT_TRY(dti_local_await(c, r, is_sent, "received"));
    if (r->call.stream != NULL)
        DT_TRY(dti_local_cuda_taken(c, channel_at(c, c->head.rank, r->call.root), r->seq));
    return DT_OK;
}

/* A message that failed is over, too: its wait says how. */
bool dti_local_p2p_is_over(dti_local_comm *c, const dti_comm_request *r)
{
    return (r->call.op == DTI_COMM_RECV ? is_received(c, r) : is_sent(c, r)) < 0;
}
