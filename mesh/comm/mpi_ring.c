/* SPDX-License-Identifier: Apache-2.0
 *
 * The streams of ranks that share memory. A ring lies in the region of the sender's process. */
#include <string.h>

#include "mesh/comm/mpi_internal.h"

/* Segments that a sender may be ahead. */
enum { RING_SLOTS = 4, SMALL_BYTES = 192 };

/* Numbers begin with 1 and go on from operation to operation. Small data lies beside its flag, so
 * that a ring which carries nothing else takes two kilobytes. */
struct dti_mpi_ring_slot {
    char words[DTI_NOTE_BYTES];           /* of a note, if the header speaks of one */
    _Alignas(64) _Atomic uint64_t number; /* of the segment that is here: stored last */
    dti_mpi_header header;                /* of a first segment */
    int32_t bytes;
    _Alignas(64) char small[SMALL_BYTES];
};

struct dti_mpi_ring {
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t taken; /* segments, by the receiver */
    _Alignas(DTI_LINE_BYTES) struct dti_mpi_ring_slot slots[RING_SLOTS];
    uint64_t large; /* where larger data lies, from the ring on: there before any of it */
};

static struct dti_mpi_ring_slot *slot_of(const dti_mpi_stream *s, uint64_t number)
{
    return &s->ring->slots[(number - 1) % RING_SLOTS];
}

/* Offsets of slots differ in more than their high bits, so that they do not compete for the same
 * sets of a cache. */
static size_t large_bytes(const dti_mpi_comm *c)
{
    return (size_t)c->segment_bytes + DTI_LINE_BYTES;
}

static char *data_of(const dti_mpi_stream *s, uint64_t number, int64_t bytes)
{
    if (bytes <= SMALL_BYTES) return slot_of(s, number)->small;
    return (char *)s->ring + s->ring->large + (number - 1) % RING_SLOTS * large_bytes(s->comm);
}

/* --- where rings lie ----------------------------------------------------------------------------
 */

static uint64_t name_of(uint64_t group, dti_mpi_lane lane, int from, int to)
{
    const int64_t parts[] = { from, to, lane };

    return dti_mpi_hash(group, parts, sizeof parts);
}

bool dti_mpi_shares(const dti_mpi_world *w, int rank, int other)
{
    if (w->n_hosts > 0 && dti_mpi_host_of(w, rank) != dti_mpi_host_of(w, other)) return false;
    return dti_mpi_region_is_near(&w->region, dti_mpi_process_of(w, other));
}

dt_status dti_mpi_ring_open(dti_mpi_stream *s, dti_mpi_lane lane)
{
    const dti_mpi_comm *c = s->comm;
    dti_mpi_region *region = &c->port->world->region;
    const int me = c->port->rank, other = c->head.world_ranks[s->member];
    dti_mpi_ring *ring;
    char *large;

    if (dti_mpi_region_reach(region, s->process) != DT_OK) return dti_mpi_fail_unreached(c);
    s->ring_name = name_of(c->group, lane, s->sends ? me : other, s->sends ? other : me);
    if (!s->sends) return DT_OK;
    large = dti_mpi_region_large(region, RING_SLOTS * large_bytes(c));
    ring = large != NULL ? dti_mpi_region_lay(region, s->ring_name, sizeof *ring) : NULL;
    DT_CHECK(ring != NULL, DT_ERR_MEMORY,
             "\"%s\": the memory that this process shares with others is full; make fewer meshes, "
             "or set DTENSOR_MPI_SHARED=off",
             c->head.name);
    ring->large = (uint64_t)(large - (char *)ring);
    s->ring = ring;
    return DT_OK;
}

size_t dti_mpi_ring_bytes(const dti_mpi_stream *s)
{
    return s->shared && s->sends ? sizeof *s->ring : 0;
}

/* A receiver may come before its sender has made the communicator. */
static bool is_there(dti_mpi_stream *s)
{
    if (s->ring == NULL)
        s->ring = dti_mpi_region_find(&s->comm->port->world->region, s->process, s->ring_name);
    return s->ring != NULL;
}

/* --- bells --------------------------------------------------------------------------------------
 */

static uint64_t bell_of(int seat)
{
    return name_of(0, DTI_MPI_LANE_CONTROL, seat, DTI_MPI_NOBODY);
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

const dti_mpi_bell *dti_mpi_bell_of(const dti_mpi_world *w, int seat)
{
    if (!w->all_share) return NULL;
    return dti_mpi_region_find(&w->region, dti_mpi_process_of(w, seat % w->n_ranks), bell_of(seat));
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

char *dti_mpi_ring_next(dti_mpi_stream *s, int64_t bytes)
{
    return data_of(s, s->passed + 1, bytes);
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
    const uint64_t number = number_of(s, segment);

    return data_of(s, number, slot_of(s, number)->bytes);
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
