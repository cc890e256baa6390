/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes from one rank to another, in segments: through memory that belongs to MPI, or through a
 * ring that both processes have mapped. */
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/copy.h"
#include "mesh/comm/mpi_internal.h"

/* Memory of a slot: header, words, elements. */
enum { LINE = 64, HEAD_BYTES = LINE + DTI_NOTE_BYTES };

_Static_assert(sizeof(dti_mpi_header) <= LINE, "a header is a line, so that elements are aligned");

/* --- streams and their memory -------------------------------------------------------------------
 */

dt_status dti_mpi_peer_of(dti_mpi_comm *c, int member, dti_mpi_peer **out)
{
    if (c->peers[member] == NULL) {
        DT_TRY(dti_new(sizeof **out, &c->peers[member]));
        c->peers[member]->next = c->known;
        c->known = c->peers[member];
    }
    *out = c->peers[member];
    return DT_OK;
}

dt_status dti_mpi_stream_open(dti_mpi_comm *c, int member, dti_mpi_lane lane, bool sends,
                              dti_mpi_stream **out)
{
    const dti_mpi_world *w = c->port->world;
    const int me = c->port->rank, rank = c->head.world_ranks[member];
    dti_mpi_stream *s = NULL;

    DT_TRY(dti_new(sizeof *s, &s));
    *out = s;
    s->comm = c;
    s->sends = sends;
    s->lane = lane;
    s->member = member;
    s->process = dti_mpi_process_of(w, rank);
    s->tag = dti_mpi_tag(w, lane, sends ? me : rank, sends ? rank : me, c->group);
    s->shared = dti_mpi_shares(w, me, rank);
    c->shared = c->shared || s->shared;
    for (int k = 0; k < DTI_MPI_DEPTH; k++) s->slots[k].stream = s;
    if (s->shared) DT_TRY(dti_mpi_ring_open(s, lane));
    return DT_OK;
}

void dti_mpi_peers_free(dti_mpi_comm *c)
{
    while (c->known != NULL) {
        dti_mpi_peer *p = c->known;
        c->known = p->next;
        for (int i = 0; i < 4; i++) dti_free(p->streams[i / 2][i % 2]);
        for (int sends = 0; sends < 2; sends++) {
            if (p->mail[sends] != NULL) dti_free(p->mail[sends]->stream);
            dti_free(p->mail[sends]);
        }
        dti_free(p);
    }
}

/* A free segment begins with where the next one is. */
static dt_status borrow(dti_mpi_slot *slot)
{
    enum { AT_A_TIME = 4 };
    const dti_mpi_comm *c = slot->stream->comm;
    dti_mpi_port *port = c->port;
    void **stock = &port->stock[c->segment_bytes / DTI_MPI_SEGMENT];
    const size_t bytes = HEAD_BYTES + (size_t)c->segment_bytes;

    if (*stock == NULL) {
        char *memory = port->world->api->queue_memory(port->queue, AT_A_TIME * bytes);
        DT_CHECK(memory != NULL, DT_ERR_MEMORY,
                 "\"%s\": no memory for segments of %lld bytes that are on their way", c->head.name,
                 (long long)c->segment_bytes);
        for (int i = AT_A_TIME - 1; i >= 0; i--) {
            *(void **)(void *)(memory + (size_t)i * bytes) = *stock;
            *stock = memory + (size_t)i * bytes;
        }
    }
    slot->data = *stock;
    *stock = *(void **)(void *)slot->data;
    slot->busy = true;
    slot->done = false;
    return DT_OK;
}

static void give_back(dti_mpi_slot *slot)
{
    const dti_mpi_comm *c = slot->stream->comm;
    void **stock = &c->port->stock[c->segment_bytes / DTI_MPI_SEGMENT];

    slot->busy = false;
    if (slot->data == NULL) return; /* it stands for a sum by MPI */
    *(void **)(void *)slot->data = *stock;
    *stock = slot->data;
    slot->data = NULL;
}

void dti_mpi_slot_sent(dti_mpi_slot *slot)
{
    give_back(slot);
    slot->stream->comm->port->n_sends--;
}

void dti_mpi_stream_begin(dti_mpi_stream *s, const dti_mpi_header *header,
                          const dti_mpi_transfer *transfer, const char *words)
{
    const int64_t segment = s->comm->segment_bytes;

    s->header = *header;
    s->transfer = *transfer;
    s->bytes = transfer->n * (int64_t)transfer->element_bytes;
    s->n_segments = s->bytes > segment ? (s->bytes + segment - 1) / segment : 1;
    s->posted = s->arrived = s->finished = 0;
    s->words = words;
    s->head_bytes = words != NULL ? HEAD_BYTES : LINE;
}

/* A sender is done when nothing of the caller's is needed any more, or, if asked for, when the
 * receiver has come. */
bool dti_mpi_stream_is_done(const dti_mpi_stream *s)
{
    if (!s->sends) return s->finished == s->n_segments;
    if (s->posted < s->n_segments) return false;
    if (s->shared) return !s->matched || dti_mpi_ring_is_empty(s);
    for (int k = 0; s->matched && k < DTI_MPI_DEPTH; k++)
        if (s->slots[k].busy) return false;
    return true;
}

/* Bytes of a segment, and where in the stream it begins. */
static int64_t segment_at(const dti_mpi_stream *s, int64_t segment, int64_t *begin)
{
    *begin = segment * s->comm->segment_bytes;
    return s->bytes - *begin < s->comm->segment_bytes ? s->bytes - *begin : s->comm->segment_bytes;
}

/* --- sending ------------------------------------------------------------------------------------
 */

static void pack(dti_mpi_stream *s, char *to, int64_t begin, int64_t bytes)
{
    dti_mpi_transfer *t = &s->transfer;
    const int64_t each = (int64_t)t->element_bytes;

    if (bytes == 0) return;
    if (t->how == DTI_MPI_BOX)
        dti_box_pack(to, t->data, t->box, begin / each, bytes / each, t->element_bytes);
    else if (t->how == DTI_MPI_LIST)
        dti_mpi_list_move(t, to, bytes / each, true);
    else
        memcpy(to, (const char *)t->data + begin, (size_t)bytes);
}

/* Hands the next segment to MPI. The first one is led by the header; later ones begin where its
 * elements would. */
static dt_status send_segment(dti_mpi_stream *s, dti_mpi_slot *slot, int64_t begin, int64_t bytes)
{
    dti_mpi_port *port = s->comm->port;
    const dti_mpi_module *api = port->world->api;
    const int64_t head = s->posted == 0 ? s->head_bytes : 0;
    char *from;

    DT_TRY(borrow(slot));
    from = slot->data + HEAD_BYTES - head;
    if (head > 0) memcpy(from, &s->header, sizeof s->header);
    if (head > LINE) memcpy(from + LINE, s->words, DTI_NOTE_BYTES);
    pack(s, slot->data + HEAD_BYTES, begin, bytes);
    DT_CHECK(api->send(port->queue,
                       &(dti_mpi_message){ .data = from,
                                           .bytes = (int)(head + bytes),
                                           .process = s->process,
                                           .tag = s->tag,
                                           .matched = s->matched && s->posted + 1 == s->n_segments,
                                           .cookie = slot }) == 0,
             DT_ERR_COMM, "\"%s\": %s", s->comm->head.name, api->why(port->queue));
    port->n_sends++;
    port->n_sent++;
    s->posted++;
    return DT_OK;
}

/* Into the ring, where the receiver sees it at once. */
static void put_segment(dti_mpi_stream *s, int64_t begin, int64_t bytes)
{
    pack(s, dti_mpi_ring_next(s, bytes), begin, bytes);
    dti_mpi_ring_put(s, bytes);
    s->comm->port->n_sent++;
    s->posted++;
}

static bool has_room(dti_mpi_stream *s)
{
    return s->shared ? dti_mpi_ring_has_room(s) : !s->slots[s->posted % DTI_MPI_DEPTH].busy;
}

dt_status dti_mpi_stream_push(dti_mpi_stream *s, bool *moved)
{
    while (s->posted < s->n_segments) {
        int64_t begin;
        const int64_t bytes = segment_at(s, s->posted, &begin);
        if (!has_room(s)) return DT_OK;
        if (s->transfer.available != NULL && *s->transfer.available < begin + bytes) return DT_OK;
        if (s->shared)
            put_segment(s, begin, bytes);
        else
            DT_TRY(send_segment(s, &s->slots[s->posted % DTI_MPI_DEPTH], begin, bytes));
        *moved = true;
    }
    return DT_OK;
}

/* --- receiving ----------------------------------------------------------------------------------
 */

static dt_status post(dti_mpi_stream *s, bool *moved)
{
    dti_mpi_port *port = s->comm->port;
    const dti_mpi_module *api = port->world->api;

    while (s->posted < s->n_segments) {
        dti_mpi_slot *slot = &s->slots[s->posted % DTI_MPI_DEPTH];
        /* Room for any segment: a sender that disagrees is to be understood, not cut off. */
        const int head = s->posted == 0 ? HEAD_BYTES : 0;
        dti_mpi_message m = { .bytes = (int)s->comm->segment_bytes + head,
                              .process = s->process,
                              .tag = s->tag,
                              .cookie = slot };
        if (slot->busy) return DT_OK;
        DT_TRY(borrow(slot));
        m.data = slot->data + HEAD_BYTES - head;
        DT_CHECK(api->recv(port->queue, &m) == 0, DT_ERR_COMM, "\"%s\": %s", s->comm->head.name,
                 api->why(port->queue));
        s->posted++;
        *moved = true;
    }
    return DT_OK;
}

/* The header of the first segment, and what it says about the rest of it. */
static dt_status check_header(dti_mpi_stream *s, const dti_mpi_header *header, const char *words)
{
    const dti_mpi_header *ours = &s->header, theirs = *header;

    s->seen = theirs;
    s->seen_as = ++s->comm->port->n_headers;
    if (theirs.group != ours->group || theirs.seq != ours->seq || theirs.n != ours->n ||
        theirs.kind != ours->kind || theirs.root != ours->root ||
        (theirs.note != ours->note && theirs.note != 0 && ours->note != 0))
        return dti_mpi_fail_differs(s, &theirs, words);
    s->head_bytes = theirs.note != 0 ? HEAD_BYTES : LINE;
    return DT_OK;
}

/* The elements of the next segment, which has come. */
static dt_status check_segment(dti_mpi_stream *s)
{
    const bool first = s->arrived == 0;
    const dti_mpi_slot *slot = &s->slots[s->arrived % DTI_MPI_DEPTH];
    dti_mpi_header header = { 0 };
    const dti_mpi_header *theirs = &header;
    const char *words = slot->data + LINE;
    int64_t begin, bytes = slot->bytes;

    if (s->shared)
        bytes = dti_mpi_ring_arrival(s, &theirs, &words);
    else if (first && bytes >= LINE)
        memcpy(&header, slot->data, sizeof header);
    if (first) DT_TRY(check_header(s, theirs, words));
    if (first && !s->shared) bytes -= s->head_bytes;
    DT_CHECK(bytes == segment_at(s, s->arrived, &begin), DT_ERR_INTERNAL,
             "\"%s\": segment %lld of rank %d has %lld bytes", s->comm->head.name,
             (long long)s->arrived, s->comm->head.world_ranks[s->member], (long long)bytes);
    return DT_OK;
}

static void unpack(dti_mpi_stream *s, const char *from, int64_t begin, int64_t bytes)
{
    dti_mpi_transfer *t = &s->transfer;
    const int64_t each = (int64_t)t->element_bytes;

    if (bytes == 0) return;
    if (t->how == DTI_MPI_BOX)
        dti_box_unpack(t->data, t->box, from, begin / each, bytes / each, t->element_bytes);
    else if (t->how == DTI_MPI_LIST)
        dti_mpi_list_move(t, (char *)from, bytes / each, false);
    else
        dti_copy((char *)t->data + begin, from, (size_t)bytes, s->bytes >= DTI_STREAM_BYTES);
}

const void *dti_mpi_stream_held(const dti_mpi_stream *s, int64_t segment)
{
    const dti_mpi_slot *slot = &s->slots[segment % DTI_MPI_DEPTH];

    if (s->shared) return dti_mpi_ring_segment(s, segment);
    return slot->data + (segment == 0 ? s->head_bytes : HEAD_BYTES);
}

void dti_mpi_stream_release(dti_mpi_stream *s)
{
    if (s->shared)
        dti_mpi_ring_release(s);
    else
        give_back(&s->slots[s->finished % DTI_MPI_DEPTH]);
    s->finished++;
}

static bool has_come(dti_mpi_stream *s)
{
    if (s->shared) return dti_mpi_ring_has_come(s);
    return s->arrived < s->posted && s->slots[s->arrived % DTI_MPI_DEPTH].done;
}

dt_status dti_mpi_stream_pull(dti_mpi_stream *s, bool *moved)
{
    if (!s->shared) DT_TRY(post(s, moved));
    while (s->arrived < s->n_segments && has_come(s)) {
        int64_t begin;
        const int64_t bytes = segment_at(s, s->arrived, &begin);
        DT_TRY(check_segment(s));
        s->arrived++;
        *moved = true;
        if (s->transfer.how == DTI_MPI_HOLD) continue;
        unpack(s, dti_mpi_stream_held(s, s->arrived - 1), begin, bytes);
        if (s->bytes >= DTI_STREAM_BYTES) dti_copy_finish(true);
        dti_mpi_stream_release(s);
        if (!s->shared) DT_TRY(post(s, moved));
    }
    return DT_OK;
}
