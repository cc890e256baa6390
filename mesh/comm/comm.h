/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communication back end provides, and how the rest of the library calls it.
 *
 * A communicator joins `size` ranks; every operation is collective over them and issued in the
 * same order by all. A call is described by one dti_comm_call, so that counting, fault injection
 * and error texts stand in one place (comm.c) for every back end. */
#ifndef DTI_COMM_H
#define DTI_COMM_H

#include "base/error.h"

/* clang-format off */
#define DTI_COMM_OPS(X)                                                        \
    X(BARRIER,        barrier)                                                 \
    X(BROADCAST,      broadcast)      /* send on root -> recv on all         */ \
    X(ALL_GATHER,     all_gather)     /* send -> recv, counts[r] from rank r */ \
    X(ALL_REDUCE,     all_reduce)     /* send -> recv, counts[0] elements    */ \
    X(REDUCE_SCATTER, reduce_scatter) /* send (all) -> recv, counts[r] to r  */ \
    X(ALL_TO_ALL,     all_to_all)     /* send_counts[r] to r, counts[r] from */ \
    X(EXCHANGE,       exchange)       /* strided boxes between any two ranks */ \
    X(SEND,           send)           /* counts[0] elements to rank `root`   */ \
    X(RECV,           recv)           /* counts[0] elements from rank `root` */
/* clang-format on */

typedef enum dti_comm_op {
#define X(name, text) DTI_COMM_##name,
    DTI_COMM_OPS(X)
#undef X
        DTI_COMM_N_OPS
} dti_comm_op;

enum { DTI_BOX_MAX_AXES = 8 };

/* A strided box inside a buffer, in elements: MPI would call it a subarray type. n_axes == 0 is
 * one element; an extent of 0 makes the box empty. */
typedef struct dti_box {
    int n_axes;
    int64_t offset;
    int64_t extent[DTI_BOX_MAX_AXES];
    int64_t stride[DTI_BOX_MAX_AXES];
} dti_box;

enum { DTI_NOTE_BYTES = 256, DTI_COMM_NAME_BYTES = 48 };

/* What the ranks have to agree on besides counts, and how it is called in messages. */
typedef struct dti_comm_note {
    uint64_t hash;
    char text[DTI_NOTE_BYTES];
} dti_comm_note;

/* One collective. Counts and displacements are in elements of `dtype`, arrays have `size` entries
 * and are read until the wait has returned. Blocks lie in `recv` (all_gather, all_to_all) or `send`
 * (reduce_scatter, and all_to_all with send_counts) at their displacements, or back to back in rank
 * order when the displacements are NULL.
 *   Aliasing: all_reduce and broadcast allow recv == send; all_gather allows send to be its own
 *   block of recv. Reductions add in rank order, bf16 and f16 in f32 with one rounding at the end
 *   (DT_AVG divides the sum by size), and give every rank the same bits. Zero counts are allowed
 *   anywhere. */
typedef struct dti_comm_call {
    dti_comm_op op;
    dt_dtype dtype;
    dt_reduce reduce;
    int root; /* broadcast: the source; send and recv: the peer */
    const void *send;
    void *recv;
    const int64_t *counts;
    const int64_t *displs;
    const int64_t *send_counts; /* all_to_all only */
    union {
        const int64_t *send_displs;
        const char *what; /* exchange only: its name in messages, which outlives it; or NULL */
    };
    const dti_box *send_boxes;  /* exchange: [size], what goes to each rank. reduce_scatter: the
                                 * same, in row-major order, with equal extents on all ranks;
                                 * NULL: blocks */
    const dti_box *recv_boxes;  /* exchange only: [size], where it lands; same extents as sent */
    uint8_t tag;                /* exchange only: equal on all members, of which 7 bits count */
    bool for_work;              /* broadcast only: wait for the root without a deadline */
    void *stream;               /* not NULL: send and recv lie on this rank's device, and the
                                 * operation takes its place in the order of its stream; a barrier
                                 * is of hosts in any case */
    const dti_comm_note *about; /* what else has to agree, or NULL; read by start only */
} dti_comm_call;

typedef struct dti_comm dti_comm;

/* An operation under way; a value owned by the caller, filled by start. */
typedef struct dti_comm_request {
    dti_comm_call call;
    uint64_t seq;              /* 0: nothing under way */
    int64_t timeout_ms;        /* the communicator's when the operation was started */
    int64_t begun_ns;          /* when it was started, over a simulated link or on a time line */
    uint64_t flight;           /* its number in the flight recorder; 0: not recorded */
    const dti_comm_note *note; /* during start, if agreement is checked */
    const char *what;          /* of a message: which it is to those who know, or NULL */
    void *state;               /* the back end's, from start to the end of wait */
} dti_comm_request;

/* Every slot is filled; a back end without an operation answers DT_ERR_UNSUPPORTED.
 *   group  makes the communicator of `ranks` (numbers in c, distinct, in order, containing me).
 *          Involves members only; the order of calls with the same members is the same on all.
 *          Called through dti_comm_group(), which fills in what is common to all back ends.
 *   start  may block only as long as a peer is a bounded number of operations behind; the buffers
 *          belong to the operation until wait has returned. No malloc. With a note: keeps a copy
 *          where peers can compare it with theirs before any byte is moved.
 *   wait   returns when recv is complete here and send may be overwritten here; on a device, for
 *          what is started on its stream from then on. A second wait on the same request is a
 *          no-op. Watches the abort flag and the deadline of the request; a broadcast `for_work`
 *          has none until its root has come.
 *   check  for those who wait for something else than peers, again and again: does what peers wait
 *          for meanwhile, as every wait does. DT_ERR_COMM if somebody has aborted, naming the
 *          culprit, and the request as what it has cut short.
 *   is_over  whether wait would return without waiting. Does no more than it has to: who asks again
 *          and again calls check in between, or asks inside a wait (dti_beside).
 *   abort  from then on every pending and later call on any communicator of this world returns
 *          DT_ERR_COMM naming `rank` and `why` (the first abort wins). Safe from any thread;
 *          returns when no peer reads this rank's buffers any more.
 *   close  not collective. */
typedef struct dti_comm_ops {
    const char *name; /* "local", "dry" */
    dt_status (*group)(dti_comm *c, const int *ranks, int n, const char *name, dti_comm **out);
    dt_status (*start)(dti_comm *c, dti_comm_request *request);
    dt_status (*wait)(dti_comm *c, dti_comm_request *request);
    dt_status (*check)(dti_comm *c, const dti_comm_request *request);
    bool (*is_over)(dti_comm *c, const dti_comm_request *request);
    void (*abort)(dti_comm *c, int rank, const char *why);
    void (*close)(dti_comm *c);
} dti_comm_ops;

/* What a rank has to do whatever it waits for: `step` is called again and again by the waits and
 * checks of all its communicators, on its own thread; it starts operations, and waits for none.
 * `finish` is called when the rank's function has returned well, before the rank leaves. */
typedef struct dti_beside {
    void (*step)(void *arg); /* NULL: nothing */
    dt_status (*finish)(void *arg);
    void *arg;
    bool inside;
} dti_beside;

/* The head of every back end's communicator. */
struct dti_comm {
    const dti_comm_ops *ops;
    int rank; /* mine */
    int size;
    bool dry;           /* no peers and no bytes: buffers are not looked at (dry.h) */
    uint64_t seq;       /* operations started here */
    int64_t timeout_ms; /* longest wait for a peer; of the mesh that asked for it last */
    char name[DTI_COMM_NAME_BYTES];     /* mesh dim or "world": for error texts */
    const int *world_ranks;             /* [size] */
    struct dti_fault *fault;            /* injection of this rank, or NULL */
    struct dti_flight *flight;          /* this rank's recorder, or NULL */
    const struct dt_link *link;         /* simulated (slow_link.h), or NULL */
    struct dti_track *track;            /* what this thread's time line is (track.h), or NULL */
    const struct dti_slow_links *links; /* where groups find theirs, or NULL */
    bool agree;                         /* compare notes before each collective */
    dti_beside *beside;                 /* of this rank; NULL on a helper's thread */
    struct dti_cuda_world *cuda;        /* this rank's device, or NULL: calls have no stream */
    void *cuda_part;                    /* what carries their bytes keeps here (cuda_comm.h) */
};

const char *dti_comm_op_name(dti_comm_op op);

/* For back ends: the rank's step, unless it is inside of it. */
static inline void dti_beside_step(const dti_comm *c)
{
    dti_beside *b = c->beside;

    if (b == NULL || b->step == NULL || b->inside) return;
    b->inside = true;
    b->step(b->arg);
    b->inside = false;
}

void dti_comm_close(dti_comm *c);

/* The communicator of some ranks of c, with its deadline, recorder and checks. */
dt_status dti_comm_group(dti_comm *c, const int *ranks, int n, const char *name,
                         dti_comm **out) DT_MUST_USE;

/* start and wait with checks, sequence numbers, fault injection; the only way in. A communicator of
 * one rank is served here (copies), no back end sees it. Calls with a stream: cuda_comm.h. */
dt_status dti_comm_start(dti_comm *c, dti_comm_request *request) DT_MUST_USE;
dt_status dti_comm_wait(dti_comm *c, dti_comm_request *request) DT_MUST_USE;
dt_status dti_comm_run(dti_comm *c, const dti_comm_call *call) DT_MUST_USE;

/* The calls by name. */
dt_status dti_barrier(dti_comm *c) DT_MUST_USE;
dt_status dti_broadcast(dti_comm *c, void *buffer, int64_t n, dt_dtype t, int root) DT_MUST_USE;
dt_status dti_broadcast_work(dti_comm *c, void *buffer, int64_t n, dt_dtype t,
                             int root) DT_MUST_USE;
dt_status dti_all_reduce(dti_comm *c, const void *send, void *recv, int64_t n, dt_dtype t,
                         dt_reduce op) DT_MUST_USE;
dt_status dti_all_gather(dti_comm *c, const void *send, void *recv, const int64_t *counts,
                         const int64_t *displs, dt_dtype t) DT_MUST_USE;

int64_t dti_box_count(const dti_box *box); /* elements */
bool dti_box_is_block(const dti_box *box); /* they lie side by side, in row-major order */

/* Copies a box between two strided places of equal extents. */
void dti_box_copy(void *to, const dti_box *to_box, const void *from, const dti_box *from_box,
                  size_t element_bytes);

/* Fault injection: the `call`-th operation of kind `op` on this rank fails before it starts. */
typedef struct dti_fault {
    int rank;
    int op; /* dti_comm_op, or -1 for any */
    int64_t call;
    int64_t seen;
} dti_fault;

dt_status dti_fault_parse(const char *text, dti_fault *out) DT_MUST_USE;

#endif
