/* SPDX-License-Identifier: Apache-2.0
 *
 * Send and receive: one stream per pair of ranks and direction, messages in the order of their
 * numbers. A send is over when its receiver has come, as in the local back end. */
#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

static void describe_stream(dti_mpi_comm *c, dti_mpi_stream *s, int member, bool sends)
{
    const dti_mpi_world *w = c->port->world;
    const int me = c->port->rank, rank = c->head.world_ranks[member];

    s->comm = c;
    s->sends = s->matched = sends;
    s->member = member;
    s->process = dti_mpi_process_of(w, rank);
    s->shared = dti_mpi_shares(w, s->process);
    s->tag = dti_mpi_tag(w, DTI_MPI_LANE_MESSAGE, sends ? me : rank, sends ? rank : me, c->group);
}

static dt_status open_streams(dti_mpi_comm *c, dti_mpi_channel *ch)
{
    if (ch->send.shared) {
        DT_TRY(dti_mpi_ring_open(&ch->send));
        DT_TRY(dti_mpi_ring_open(&ch->recv));
    } else {
        DT_TRY(dti_mpi_streams_open(c, (dti_mpi_stream *[]){ &ch->send, &ch->recv }, 2));
    }
    return DT_OK;
}

static dt_status channel_of(dti_mpi_comm *c, int member, dti_mpi_channel **out)
{
    dt_status st = DT_OK;
    dti_mpi_channel *ch = c->channels[member];

    *out = ch;
    if (ch != NULL) return DT_OK;
    DT_TRY(dti_new(sizeof *ch, &ch));
    describe_stream(c, &ch->send, member, true);
    describe_stream(c, &ch->recv, member, false);
    DT_TRY_TO(fail, st, open_streams(c, ch));
    c->channels[member] = ch;
    *out = ch;
    return DT_OK;

fail:
    dti_free(ch);
    return st;
}

static void begin(dti_mpi_stream *s, const dti_comm_call *call, int64_t n, uint64_t seq)
{
    dti_comm_call kind = *call;
    dti_mpi_header header = { .group = s->comm->group, .seq = seq, .n = n, .count = n };

    kind.op = DTI_COMM_RECV; /* the same on both sides */
    header.kind = dti_mpi_kind_of(&kind);
    dti_mpi_stream_begin(s, &header,
                         &(dti_mpi_transfer){ .how = DTI_MPI_COPY,
                                              .data = s->sends ? (void *)call->send : call->recv,
                                              .n = n,
                                              .element_bytes = dt_dtype_size(call->dtype) },
                         NULL);
}

/* Sends or receives what has been started, one message after the other. */
static dt_status advance(dti_mpi_stream *s, const dti_comm_call *calls, const int64_t *counts,
                         uint64_t started, uint64_t *done, bool *moved)
{
    bool again = true;

    while (again && *done < started) {
        const uint64_t seq = *done + 1;
        again = false;
        if (s->n_segments == 0)
            begin(s, &calls[seq % DTI_MPI_RING], counts[seq % DTI_MPI_RING], seq);
        if (s->sends)
            DT_TRY(dti_mpi_stream_push(s, &again));
        else
            DT_TRY(dti_mpi_stream_pull(s, &again));
        *moved = *moved || again;
        if (!dti_mpi_stream_is_done(s)) continue;
        s->n_segments = 0;
        *done = seq;
        s->comm->n_messages--;
        *moved = again = true;
    }
    return DT_OK;
}

dt_status dti_mpi_p2p_advance(dti_mpi_comm *c, bool *moved)
{
    for (int m = 0; m < c->head.size; m++) {
        dti_mpi_channel *ch = c->channels[m];
        if (ch == NULL) continue;
        DT_TRY(advance(&ch->recv, ch->recvs, ch->recv_n, ch->recv_started, &ch->recv_done, moved));
        DT_TRY(advance(&ch->send, ch->sends, ch->send_n, ch->send_started, &ch->send_done, moved));
    }
    return DT_OK;
}

static int has_room(dti_mpi_comm *c, const dti_comm_request *r)
{
    const dti_mpi_channel *ch = c->channels[r->call.root];
    const uint64_t done = r->call.op == DTI_COMM_SEND ? ch->send_done : ch->recv_done;

    return r->seq <= done + DTI_MPI_RING ? DTI_MPI_READY : r->call.root;
}

static int is_done(dti_mpi_comm *c, const dti_comm_request *r)
{
    const dti_mpi_channel *ch = c->channels[r->call.root];
    const uint64_t done = r->call.op == DTI_COMM_SEND ? ch->send_done : ch->recv_done;

    return r->seq <= done ? DTI_MPI_READY : r->call.root;
}

static const char *verb_of(const dti_comm_request *r)
{
    return r->call.op == DTI_COMM_SEND ? "received" : "sent";
}

dt_status dti_mpi_p2p_start(dti_mpi_comm *c, dti_comm_request *r)
{
    const bool sends = r->call.op == DTI_COMM_SEND;
    dti_mpi_channel *ch;
    uint64_t *started;

    DT_TRY(channel_of(c, r->call.root, &ch));
    started = sends ? &ch->send_started : &ch->recv_started;
    r->seq = *started + 1;
    DT_TRY(dti_mpi_arrive(c, r));
    DT_TRY(dti_mpi_await(c, r, has_room, verb_of(r)));
    (sends ? ch->sends : ch->recvs)[r->seq % DTI_MPI_RING] = r->call;
    (sends ? ch->send_n : ch->recv_n)[r->seq % DTI_MPI_RING] = r->call.counts[0];
    *started = r->seq;
    c->n_messages++;
    c->port->n_under_way++;
    DT_TRY(dti_mpi_push_on(c));
    return DT_OK;
}

dt_status dti_mpi_p2p_wait(dti_mpi_comm *c, const dti_comm_request *r)
{
    DT_TRY(dti_mpi_await(c, r, is_done, verb_of(r)));
    return DT_OK;
}

bool dti_mpi_p2p_is_over(dti_mpi_comm *c, const dti_comm_request *r)
{
    return is_done(c, r) == DTI_MPI_READY;
}
