/* SPDX-License-Identifier: Apache-2.0
 *
 * The local back end: who owns which memory, and the protocol of an operation.
 *
 * Operation number s of a communicator uses slot s % 16 of each member. A member publishes its call
 * there (the number is stored last), and when all have, it does its share of the work straight from
 * and into the peers' buffers, then raises `done` to s. Its own buffers are free again when every
 * peer has raised `done` to s. So an operation costs two hand-overs of a cache line.
 *
 * Work happens in order of s, inside start and wait only; a rank that waits also does the work that
 * is due on its other communicators, so ranks may wait for outstanding operations in any order. */
#ifndef DTI_LOCAL_INTERNAL_H
#define DTI_LOCAL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/cuda_api.h"
#include "base/dtype.h"
#include "base/sync.h"
#include "mesh/comm/cuda_comm.h"
#include "mesh/comm/fail_words.h"
#include "mesh/comm/local.h"

enum { DTI_LOCAL_RING = 16, DTI_LOCAL_SHARED_BYTES = 256 << 10 };

/* A published call. What a reduction needs lies in the first cache line, beside the flag. */
typedef struct dti_local_slot {
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t seq;
    int64_t n;     /* the count that peers compare */
    uint32_t kind; /* operation, dtype and reduction packed: equal on all members */
    dti_comm_call call;
} dti_local_slot;

/* Of a member's stream, for memory of devices: when its buffers may be used, and when it has used
 * those of others. */
typedef struct dti_local_events {
    const dti_cuda_module *module;
    dti_cuda_event *ready[DTI_LOCAL_RING];
    dti_cuda_event *done[DTI_LOCAL_RING];
} dti_local_events;

typedef struct dti_local_member {
    dti_local_slot slots[DTI_LOCAL_RING];
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t done;
    dti_comm_note *notes; /* [DTI_LOCAL_RING] beside the slots, if agreement is checked */
    _Atomic(dti_local_events *) events; /* likewise, from the first call with a stream on */
} dti_local_member;

/* One end of a message. */
typedef struct dti_local_end {
    const void *send;
    void *recv;
    int64_t n;
    dt_dtype dtype;
    bool on_device;
} dti_local_end;

/* Messages from one member to another. The sender raises `posted`, the receiver `taken`. */
typedef struct dti_local_channel {
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t posted;
    dti_local_end sends[DTI_LOCAL_RING];
    _Alignas(DTI_LINE_BYTES) _Atomic uint64_t taken;
    uint64_t wanted; /* receives started; the receiver's own, as are recvs */
    dti_local_end recvs[DTI_LOCAL_RING];
    _Atomic(dti_local_events *) sent;     /* the sender's, of which it records ready */
    _Atomic(dti_local_events *) taken_at; /* the receiver's, of which it records done */
} dti_local_channel;

/* Members whose kernels wait for each other, under the world's lock: areas of those who have closed
 * their side (local_spin.c). */
typedef struct dti_local_spin {
    int n_opened, n_closed;
    void *areas[DTI_CUDA_SPIN_RANKS];
} dti_local_spin;

/* What the members of a communicator share. Lives as long as the world. */
typedef struct dti_local_group {
    struct dti_local_group *next;
    char name[DTI_COMM_NAME_BYTES]; /* as the first member calls it */
    int n;
    int *world_ranks;          /* [n] */
    bool *joined;              /* [n], under the world's lock */
    dti_local_member *members; /* [n] */
    dti_local_spin spin;
    _Atomic(dti_local_channel *) *channels; /* [n] by source, each [n] by destination; on demand */
} dti_local_group;

struct dti_local_comm;

/* One rank of the world. Below `left` the fields belong to the rank's own thread. */
typedef struct dti_local_rank {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t wake; /* futex word */
    _Atomic uint32_t asleep;
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t busy; /* inside peers' buffers */
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t left; /* its function has returned */
    _Atomic(dti_local_group *) reached_group; /* where it started a collective last, and which */
    _Atomic uint64_t reached;                 /* operation | number << 8 */
    uint32_t *stop;             /* ends kernels that wait, or NULL; under the world's lock */
    _Atomic uint32_t waits_for; /* 1 + a rank, once it has taken a while */
    struct dti_local_comm *comms;
    dti_pool *pool;
    int n_due;       /* started here, share of the work not yet done */
    int n_under_way; /* started here, not yet waited for */
} dti_local_rank;

struct dti_local_world {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t aborted;
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t sleepers;
    _Alignas(DTI_LINE_BYTES)
        pthread_mutex_t lock; /* groups, joined, channels, the abort's record */
    int n_ranks;
    bool spin;
    int64_t timeout_ms;    /* of the communicators that are opened */
    dti_local_rank *ranks; /* [n_ranks] */
    dti_local_group *groups;
    dti_local_world *twin; /* aborted together with this one, or NULL */
    int culprit;           /* written once, before `aborted` */
    char why[DTI_WHY_BYTES];
    dt_error record;
};

typedef struct dti_local_comm {
    dti_comm head;
    dti_local_world *world;
    dti_local_rank *self;
    dti_local_group *group; /* NULL for a communicator of one rank */
    struct dti_local_comm *next;
    uint64_t started;  /* collectives published by this rank */
    uint64_t worked;   /* share of the work done up to this one */
    uint64_t all_done; /* every peer is known to have done its share up to this one */
    int arrived;       /* peers below this one have published worked + 1 */
    bool failed;       /* this rank's share of worked + 1 has */
    int n_recvs;       /* receives started and not yet served */
} dti_local_comm;

/* clang-format off */
enum { DTI_LOCAL_READY = -1, DTI_LOCAL_FAILED = -2, DTI_LOCAL_NOBODY = -1 };
/* clang-format on */

/* What a wait is for: DTI_LOCAL_READY, DTI_LOCAL_FAILED (error set, world aborted), or the member
 * that it still depends on. Called again and again. */
typedef int (*dti_local_condition)(dti_local_comm *c, const dti_comm_request *r);

/* local_fail.c: how waits end for another reason. */
dt_status dti_local_check_abort(dti_local_comm *c, const dti_comm_request *r) DT_MUST_USE;
dt_status dti_local_fail_left(dti_local_comm *c, const dti_comm_request *r, int member) DT_MUST_USE;
dt_status dti_local_fail_expired(dti_local_comm *c, const dti_comm_request *r, int member,
                                 const char *verb) DT_MUST_USE;
void dti_local_tell_wait(dti_local_comm *c, int rank); /* whom this rank waits for, or NOBODY */
void dti_local_abort(dti_comm *head, int rank, const char *why);

/* local_wait.c */
dt_status dti_local_await(dti_local_comm *c, const dti_comm_request *r, dti_local_condition ready,
                          const char *verb) DT_MUST_USE;
void dti_local_wake_members(dti_local_comm *c);
void dti_local_progress(dti_local_comm *c);     /* what is due on all of the rank's communicators */
void dti_local_see_sleepers(dti_local_comm *c); /* before: misses nobody who sleeps for long */
void dti_local_wake_rank(dti_local_rank *rank);
bool dti_local_enter(dti_local_comm *c); /* before touching peers' buffers; false: aborted */
void dti_local_exit(dti_local_comm *c);

/* local_ops.c: the share of the work of the slot's operation. */
dt_status dti_local_work(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;

/* local_cuda.c: the same protocol for memory of devices. What a rank does to it is started on its
 * stream, between the events of its peers: those who publish a call record `ready` before, those
 * who raise `done` have recorded theirs, and who returns from a wait has awaited all of them. No
 * host waits for a device. */
dt_status dti_local_cuda_publish(dti_local_comm *c, const dti_comm_request *r) DT_MUST_USE;
dt_status dti_local_cuda_begin(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;
dt_status dti_local_cuda_end(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;
dt_status dti_local_cuda_await(dti_local_comm *c, const dti_comm_request *r) DT_MUST_USE;
dt_status dti_local_cuda_copy(dti_local_comm *c, void *to, const void *from,
                              size_t bytes) DT_MUST_USE;
dt_status dti_local_cuda_copy_box(dti_local_comm *c, void *to, const dti_box *to_box,
                                  const void *from, const dti_box *from_box,
                                  size_t element_bytes) DT_MUST_USE;
dt_status dti_local_cuda_spread(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;
dt_status dti_local_cuda_all_reduce(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;
dt_status dti_local_cuda_reduce_scatter(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;

/* One end of the seq-th message of a channel: the sender has it ready; the receiver takes it and
 * says so; the sender awaits that. */
dt_status dti_local_cuda_post(dti_local_comm *c, dti_local_channel *ch, uint64_t seq) DT_MUST_USE;
dt_status dti_local_cuda_take(dti_local_comm *c, dti_local_channel *ch, uint64_t seq) DT_MUST_USE;
dt_status dti_local_cuda_taken(dti_local_comm *c, dti_local_channel *ch, uint64_t seq) DT_MUST_USE;

/* After an abort: until no device is inside this rank's buffers on behalf of others. */
void dti_local_cuda_quiet(const dti_local_rank *self);
void dti_local_cuda_free_events(dti_local_events *e); /* accepts NULL */

/* local_spin.c: ends all kernels that wait for other ranks; under the world's lock. */
void dti_local_spin_stop_all(dti_local_world *w);

/* local_p2p.c */
int dti_local_p2p_pending(dti_local_comm *c); /* serves receives; who has not sent yet, or READY */
dt_status dti_local_p2p_start(dti_local_comm *c, dti_comm_request *r) DT_MUST_USE;
dt_status dti_local_p2p_wait(dti_local_comm *c, const dti_comm_request *r) DT_MUST_USE;
bool dti_local_p2p_is_over(dti_local_comm *c, const dti_comm_request *r);
void dti_local_p2p_progress(dti_local_comm *c);

/* local.c: does the next due collective if all have arrived; a dti_local_condition's answer. */
int dti_local_try_work(dti_local_comm *c);

/* A small broadcast: each rank takes it from the root alone and goes on. A large one is shared out
 * among all ranks, the root too, which then have to have come. */
static inline bool dti_local_is_from_root(const dti_comm_call *call)
{
    const int64_t bytes =
        call->op == DTI_COMM_BROADCAST ? call->counts[0] * (int64_t)dt_dtype_size(call->dtype) : 0;

    return call->op == DTI_COMM_BROADCAST && bytes < DTI_LOCAL_SHARED_BYTES;
}

/* Whether this rank does so. The root itself, which waits for all of them anyway, looks at what
 * each has called: of two ranks that both take themselves for the root nobody else sees both. */
static inline bool dti_local_takes_from_root(const dti_local_comm *c, const dti_comm_call *call)
{
    return dti_local_is_from_root(call) && call->root != c->head.rank;
}

static inline dti_local_slot *dti_local_slot_of(dti_local_comm *c, int member, uint64_t seq)
{
    return &c->group->members[member].slots[seq % DTI_LOCAL_RING];
}

#endif
