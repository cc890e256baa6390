/* SPDX-License-Identifier: Apache-2.0
 *
 * Send and receive: one stream per pair of ranks and direction, messages in the order of their
 * numbers. A send is over when its receiver has come, as in the local back end. */
#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

static dt_status mail_of(dti_mpi_comm *c, int member, bool sends, dti_mpi_mail **out)
{
    dt_status st = DT_OK;
    dti_mpi_peer *peer;
    dti_mpi_mail *mail;

    DT_TRY(dti_mpi_peer_of(c, member, &peer));
    *out = peer->mail[sends];
    if (*out != NULL) return DT_OK;
    DT_TRY(dti_new(sizeof *mail, &mail));
    DT_TRY_TO(fail, st, dti_mpi_stream_open(c, member, DTI_MPI_LANE_MESSAGE, sends, &mail->stream));
    mail->stream->matched = sends;
    *out = peer->mail[sends] = mail;
    return DT_OK;

fail:
    dti_free(mail->stream);
    dti_free(mail);
    return st;
}

/* Both sides call it the same. */
static void begin(dti_mpi_mail *mail, uint64_t seq)
{
    const size_t k = seq % DTI_MPI_RING;
    const dti_comm_call kind = { .op = DTI_COMM_RECV, .dtype = mail->messages[k].dtype };
    const dti_mpi_header header = { .group = mail->stream->comm->group,
                                    .seq = seq,
                                    .n = mail->messages[k].n,
                                    .count = mail->messages[k].n,
                                    .kind = dti_mpi_kind_of(&kind) };

    dti_mpi_stream_begin(mail->stream, &header,
                         &(dti_mpi_transfer){ .how = DTI_MPI_COPY,
                                              .data = mail->messages[k].data,
                                              .n = header.n,
                                              .element_bytes = dt_dtype_size(kind.dtype) },
                         NULL);
}

/* Sends or receives what has been started, one message after the other. */
static dt_status advance(dti_mpi_mail *mail, bool *moved)
{
    dti_mpi_stream *s = mail->stream;
    bool again = true;

    while (again && mail->done < mail->started) {
        again = false;
        if (s->n_segments == 0) begin(mail, mail->done + 1);
        if (s->sends)
            DT_TRY(dti_mpi_stream_push(s, &again));
        else
            DT_TRY(dti_mpi_stream_pull(s, &again));
        *moved = *moved || again;
        if (!dti_mpi_stream_is_done(s)) continue;
        s->n_segments = 0;
        mail->done++;
        s->comm->n_messages--;
        *moved = again = true;
    }
    return DT_OK;
}

dt_status dti_mpi_p2p_advance(dti_mpi_comm *c, bool *moved)
{
    for (const dti_mpi_peer *p = c->known; p != NULL; p = p->next)
        for (int sends = 0; sends < 2; sends++)
            if (p->mail[sends] != NULL) DT_TRY(advance(p->mail[sends], moved));
    return DT_OK;
}

static const dti_mpi_mail *mail_to_wait_for(const dti_mpi_comm *c, const dti_comm_request *r)
{
    return c->peers[r->call.root]->mail[r->call.op == DTI_COMM_SEND];
}

static int has_room(dti_mpi_comm *c, const dti_comm_request *r)
{
    return r->seq <= mail_to_wait_for(c, r)->done + DTI_MPI_RING ? DTI_MPI_READY : r->call.root;
}

static int is_done(dti_mpi_comm *c, const dti_comm_request *r)
{
    return r->seq <= mail_to_wait_for(c, r)->done ? DTI_MPI_READY : r->call.root;
}

static const char *verb_of(const dti_comm_request *r)
{
    return r->call.op == DTI_COMM_SEND ? "received" : "sent";
}

dt_status dti_mpi_p2p_start(dti_mpi_comm *c, dti_comm_request *r)
{
    const bool sends = r->call.op == DTI_COMM_SEND;
    dti_mpi_mail *mail;
    size_t k;

    DT_TRY(mail_of(c, r->call.root, sends, &mail));
    r->seq = mail->started + 1;
    DT_TRY(dti_mpi_arrive(c, r));
    DT_TRY(dti_mpi_await(c, r, has_room, verb_of(r)));
    k = r->seq % DTI_MPI_RING;
    mail->messages[k].data = sends ? (void *)r->call.send : r->call.recv;
    mail->messages[k].n = r->call.counts[0];
    mail->messages[k].dtype = r->call.dtype;
    mail->started = r->seq;
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
