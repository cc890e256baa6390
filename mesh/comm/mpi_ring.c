/* SPDX-License-Identifier: Apache-2.0
 *
 * The streams of ranks that share memory. A ring lies in the region of the sender's process. */
#include <string.h>

#include "mesh/comm/mpi_internal.h"

/* Segments that a sender may be ahead. Offsets of slots differ in more than their high bits, so
 * that they do not compete for the same sets of a cache. */
enum { RING_SLOTS = 4 };

/* Numbers begin with 1 and go on from operation to operation. Small data lies beside its flag. */
struct dti_mpi_ring_slot {
    char words[DTI_NOTE_BYTES];           /* of a note, if the header speaks of one */
    _Alignas(64) _Atomic uint64_t number; /* of the segment that is here: stored last */
    dti_mpi_header header;                /* of a first segment */
    int32_t bytes;
    _Alignas(64) char data[];
};

struct dti_mpi_ring {
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t taken; /* segments, by the receiver */
    _Alignas(DTI_LINE_BYTES) char slots[];
};

static size_t slot_bytes(const dti_mpi_comm *c)
{
    const size_t all = sizeof(struct dti_mpi_ring_slot) + (size_t)c->segment_bytes;

    return (all + DTI_LINE_BYTES - 1) / DTI_LINE_BYTES * DTI_LINE_BYTES;
}

static size_t ring_bytes(const dti_mpi_comm *c)
{
    return sizeof(struct dti_mpi_ring) + RING_SLOTS * slot_bytes(c);
}

static struct dti_mpi_ring_slot *slot_of(const dti_mpi_stream *s, uint64_t number)
{
    const size_t k = (size_t)((number - 1) % RING_SLOTS);

    return (struct dti_mpi_ring_slot *)(void *)(s->ring->slots + k * slot_bytes(s->comm));
}

/* --- where rings lie ----------------------------------------------------------------------------
 */

/* The rings of a rank in a communicator; of its messages to one rank. */
static uint64_t name_of(uint64_t group, int from, int to)
{
    const int64_t parts[] = { from, to };

    return dti_mpi_hash(group, parts, sizeof parts);
}

bool dti_mpi_shares(const dti_mpi_world *w, int process)
{
    return w->region.own != NULL && w->region.peers[process] != NULL;
}

static dt_status lay(dti_mpi_comm *c, uint64_t name, size_t bytes, char **out)
{
    *out = dti_mpi_region_lay(&c->port->world->region, name, bytes);
    DT_CHECK(*out != NULL, DT_ERR_MEMORY,
             "\"%s\": the memory that this process shares with others is full; make fewer meshes, "
             "or set DTENSOR_MPI_SHARED=off",
             c->head.name);
    return DT_OK;
}

/* One block per rank and communicator: a ring per lane and member. */
dt_status dti_mpi_rings_open(dti_mpi_comm *c)
{
    const int n = c->head.size;
    char *block = NULL;

    for (int i = 0; i < 4 * n; i++) {
        dti_mpi_stream *s = &c->streams[i];
        const size_t lane = (size_t)i / (2 * (size_t)n);
        if (!s->shared) continue;
        s->ring_name = name_of(c->group, c->head.world_ranks[s->sends ? c->head.rank : s->member],
                               DTI_MPI_NOBODY);
        s->ring_place =
            (lane * (size_t)n + (size_t)(s->sends ? s->member : c->head.rank)) * ring_bytes(c);
        if (!s->sends) continue;
        if (block == NULL) DT_TRY(lay(c, s->ring_name, 2 * (size_t)n * ring_bytes(c), &block));
        s->ring = (struct dti_mpi_ring *)(void *)(block + s->ring_place);
    }
    return DT_OK;
}

dt_status dti_mpi_ring_open(dti_mpi_stream *s)
{
    dti_mpi_comm *c = s->comm;
    const int me = c->port->rank, other = c->head.world_ranks[s->member];
    char *block;

    s->ring_name = name_of(c->group, s->sends ? me : other, s->sends ? other : me);
    if (!s->sends) return DT_OK;
    DT_TRY(lay(c, s->ring_name, ring_bytes(c), &block));
    s->ring = (struct dti_mpi_ring *)(void *)block;
    return DT_OK;
}

/* A receiver may come before its sender has made the communicator. */
static bool is_there(dti_mpi_stream *s)
{
    char *block;

    if (s->ring != NULL) return true;
    block = dti_mpi_region_find(&s->comm->port->world->region, s->process, s->ring_name);
    if (block == NULL) return false;
    s->ring = (struct dti_mpi_ring *)(void *)(block + s->ring_place);
    return true;
}

/* --- bells --------------------------------------------------------------------------------------
 */

static uint64_t bell_of(int seat)
{
    return name_of(0, seat, DTI_MPI_NOBODY);
}

/* Not where processes also have to ask MPI what has come. */
dt_status dti_mpi_bell_open(dti_mpi_port *port)
{
    dti_mpi_world *w = port->world;

    if (!w->all_share || w->sums_by_mpi) return DT_OK;
    port->bell =
        dti_mpi_region_lay(&w->region, bell_of(dti_mpi_seat(port, port->rank)), sizeof *port->bell);
    DT_CHECK(port->bell != NULL, DT_ERR_MEMORY, "no memory to share for rank %d", port->rank);
    return DT_OK;
}

static void ring_bell(dti_mpi_stream *s)
{
    const dti_mpi_comm *c = s->comm;

    if (s->bell == NULL)
        s->bell =
            dti_mpi_region_find(&c->port->world->region, s->process,
                                bell_of(dti_mpi_seat(c->port, c->head.world_ranks[s->member])));
    if (s->bell != NULL) dti_mpi_bell_ring(s->bell);
}

/* --- sending ------------------------------------------------------------------------------------
 */

bool dti_mpi_ring_has_room(dti_mpi_stream *s)
{
    if (s->passed - s->taken < RING_SLOTS) return true;
    s->taken = atomic_load_explicit(&s->ring->taken, memory_order_acquire);
    return s->passed - s->taken < RING_SLOTS;
}

char *dti_mpi_ring_next(dti_mpi_stream *s)
{
    return slot_of(s, s->passed + 1)->data;
}

void dti_mpi_ring_put(dti_mpi_stream *s, int64_t bytes)
{
    struct dti_mpi_ring_slot *slot = slot_of(s, s->passed + 1);

    if (s->posted == 0) {
        slot->header = s->header;
        if (s->words != NULL) memcpy(slot->words, s->words, sizeof slot->words);
    }
    slot->bytes = (int32_t)bytes;
    atomic_store_explicit(&slot->number, ++s->passed, memory_order_release);
    ring_bell(s);
}

bool dti_mpi_ring_is_empty(const dti_mpi_stream *s)
{
    return atomic_load_explicit(&s->ring->taken, memory_order_acquire) == s->passed;
}

/* --- receiving ----------------------------------------------------------------------------------
 */

/* The number of a segment of the operation under way. */
static uint64_t number_of(const dti_mpi_stream *s, int64_t segment)
{
    return s->passed + (uint64_t)(segment - s->finished) + 1;
}

bool dti_mpi_ring_has_come(dti_mpi_stream *s)
{
    const uint64_t number = number_of(s, s->arrived);

    return is_there(s) &&
           atomic_load_explicit(&slot_of(s, number)->number, memory_order_acquire) == number;
}

const char *dti_mpi_ring_segment(const dti_mpi_stream *s, int64_t segment)
{
    return slot_of(s, number_of(s, segment))->data;
}

int64_t dti_mpi_ring_arrival(const dti_mpi_stream *s, const dti_mpi_header **header,
                             const char **words)
{
    const struct dti_mpi_ring_slot *slot = slot_of(s, number_of(s, s->arrived));

    *header = &slot->header;
    *words = slot->words;
    return slot->bytes;
}

void dti_mpi_ring_release(dti_mpi_stream *s)
{
    atomic_store_explicit(&s->ring->taken, ++s->passed, memory_order_release);
    ring_bell(s);
}
