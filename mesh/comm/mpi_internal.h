/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI back end: who owns which memory, and how bytes travel.
 *
 * Ranks are threads of several processes; those of one process share a dti_mpi_world, and each has
 * a port: a queue of messages of its own. A collective is a set of streams, one per peer and
 * direction, each made when it is first used. A stream cuts its bytes into segments, copies each
 * into memory that belongs to MPI, and sends it on its own tag; at most two segments are under way,
 * so peers that are far behind cost no memory. That memory is the rank's: a stream borrows a
 * segment for as long as it is with MPI or waits to be summed. The first segment begins with a
 * header that says what the sender believes to be doing, and the receiver compares before it takes
 * a byte. A stream without bytes sends the header alone. So ranks that disagree are found out by
 * the collective itself, in every build.
 *
 * Between processes of one machine that can share memory (mpi_region.h), and between threads of
 * one, a stream is a ring of slots instead of messages; nothing else differs.
 *
 * Neither MPI nor another process sees a buffer of the caller: when a rank fails, nothing has to be
 * called back, and buffers may be freed at once. Sums are made from segments where they arrived.
 *
 * Operations of one communicator run one after the other, in the order of their numbers; those of
 * different communicators run side by side. Whoever waits moves everything that is due.
 *
 * A rank may have a helper, a thread beside it with a port and communicators of its own. So there
 * are seats: of n ranks 0 to n - 1, of their helpers n to 2 n - 1. What is said of a seat names the
 * rank; groups of helpers differ from those of ranks in their number, and so in tags and rings. */
#ifndef DTI_MPI_INTERNAL_H
#define DTI_MPI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sync.h"
#include "mesh/comm/fail_words.h"
#include "mesh/comm/mpi.h"
#include "mesh/comm/mpi_api.h"
#include "mesh/comm/mpi_bell.h"
#include "mesh/comm/mpi_region.h"

enum {
    DTI_MPI_DIRECT = 8,        /* ranks that tell each other everything */
    DTI_MPI_DEPTH = 2,         /* segments of a stream under way */
    DTI_MPI_SEGMENT = 8 << 10, /* the smallest, of which all are multiples */
    DTI_MPI_STOCKS = 17,
    DTI_MPI_RING = 16, /* operations of a communicator, or messages of a pair, not yet complete */
    DTI_MPI_SIDE_BYTES = DTI_NOTE_BYTES + 128
};

/* Collectives use two kinds of streams, since an all-reduce hands out sums while terms still come;
 * messages one; the last carries what processes tell each other. */
typedef enum dti_mpi_lane {
    DTI_MPI_LANE_FIRST,
    DTI_MPI_LANE_SECOND,
    DTI_MPI_LANE_MESSAGE,
    DTI_MPI_LANE_CONTROL
} dti_mpi_lane;

/* What the first segment of a stream begins with: equal on both sides. The words of a note follow
 * it if there is one. */
typedef struct dti_mpi_header {
    uint64_t group; /* of the communicator: its ranks, and which of several of them */
    uint64_t seq;
    int64_t n;     /* elements in this stream */
    int64_t count; /* elements of the call, for messages */
    uint32_t kind; /* operation, dtype and reduction */
    int32_t root;
    uint64_t note; /* hash of what else has to agree, 0: not checked */
} dti_mpi_header;

typedef enum dti_mpi_how {
    DTI_MPI_COPY, /* bytes that lie side by side */
    DTI_MPI_BOX,  /* a strided box */
    DTI_MPI_LIST, /* blocks of several members, one behind the other */
    DTI_MPI_HOLD  /* received segments wait in their slots to be summed */
} dti_mpi_how;

/* Blocks of all members in a buffer, or elements [at, at + each) of each of them. */
typedef struct dti_mpi_blocks {
    const int64_t *counts, *places; /* [size] */
    const dti_box *boxes;           /* [size] NULL: they lie side by side at their places */
    int size;
    int64_t at, each;
} dti_mpi_blocks;

/* Where the bytes of a stream come from or go to. */
typedef struct dti_mpi_transfer {
    dti_mpi_how how;
    void *data; /* COPY: the first byte; BOX: the buffer that the box lies in */
    const dti_box *box;
    int64_t n; /* elements */
    size_t element_bytes;
    const int64_t *available; /* of a sender: bytes that exist so far; NULL: all */

    /* LIST: `members`, or, without, `member` and those that follow it in steps; and how many
     * elements of the first of those that are left have been taken. */
    const dti_mpi_blocks *blocks;
    const int *members;
    int member, step;
    int64_t used;
} dti_mpi_transfer;

/* Where the members of a communicator are, and the tree over their hosts: 2^n_rounds nodes, of
 * which the first n_pairs are two hosts (mpi_layout.c). A rail is the rank of a host that makes a
 * share of its sums: of each host those at places below `least`. */
typedef struct dti_mpi_layout {
    int n_hosts, n_rounds, n_pairs;
    int least;             /* ranks of the host that has the fewest */
    int host, place, node; /* this rank's */
    bool is_second;        /* its host, of a pair */
    int *order, *begin;    /* [size] members by host, [n_hosts + 1] where each host begins */
    int *blocks, *rails;   /* [size] members by rail and by halves of it, [least + 1] */
} dti_mpi_layout;

/* Elements of a rail's share, in its order. */
typedef struct dti_mpi_span {
    int64_t begin, n;
} dti_mpi_span;

/* A sum in a tree, under way (mpi_tree.c). */
typedef struct dti_mpi_tree {
    bool active;
    bool halves; /* large */
    int n_rails;
    int step;
    int64_t all, each, at, n; /* elements: of the call, of a piece, and the piece */
    int from, to;             /* places of halves whose sums this rail has */
    dti_mpi_span keeps;       /* what is added to */
    bool is_lower;            /* this node, of two */
    int64_t taken;            /* segments of terms */
    dti_mpi_transfer own;     /* terms */
    char *sums;
    size_t sums_bytes;
} dti_mpi_tree;

typedef struct dti_mpi_slot {
    struct dti_mpi_stream *stream;
    char *data; /* borrowed while the slot is busy */
    int bytes;  /* that have come */
    bool busy;  /* with MPI, or received and not yet taken */
    bool done;
} dti_mpi_slot;

typedef struct dti_mpi_ring dti_mpi_ring;

typedef struct dti_mpi_stream {
    struct dti_mpi_comm *comm;
    bool sends;
    dti_mpi_lane lane;
    bool matched; /* the last segment waits for its receiver */
    bool shared;  /* through a ring, not through MPI */
    int member;
    int process;
    int tag;
    dti_mpi_header header;
    const char *words; /* of the note; NULL without */
    dti_mpi_transfer transfer;
    int64_t bytes;
    int64_t n_segments;  /* 0: idle */
    dti_mpi_header seen; /* of a receiver: the last that came, and which of all of this rank */
    uint64_t seen_as;
    int64_t head_bytes; /* before the elements of the first segment, of a receiver as they came */
    int64_t posted;     /* handed to MPI */
    int64_t arrived;    /* of a receiver: come, in order, and the header was right */
    int64_t finished;   /* sent, or taken */
    dti_mpi_slot slots[DTI_MPI_DEPTH];

    dti_mpi_ring *ring; /* NULL: not there yet */
    dti_mpi_bell *bell; /* of the member; NULL: not there yet */
    uint64_t ring_name;
    uint64_t passed; /* segments sent or taken on it, of all operations */
    uint64_t taken;  /* of a sender: as it saw last */
} dti_mpi_stream;

/* Messages of this rank to or from one other. */
typedef struct dti_mpi_mail {
    dti_mpi_stream *stream;
    struct {
        void *data;
        int64_t n;
        dt_dtype dtype;
    } messages[DTI_MPI_RING];
    uint64_t started, done;
} dti_mpi_mail;

/* What goes between this rank and a member of a communicator, each made when it is first used. */
typedef struct dti_mpi_peer {
    struct dti_mpi_peer *next;
    dti_mpi_stream *streams[2][2]; /* of lanes: received, sent */
    dti_mpi_mail *mail[2];         /* received, sent */
} dti_mpi_peer;

typedef struct dti_mpi_sums dti_mpi_sums;

typedef struct dti_mpi_comm {
    dti_comm head;
    struct dti_mpi_port *port;
    struct dti_mpi_comm *next;
    uint64_t group;
    int64_t segment_bytes;
    dti_mpi_peer **peers; /* [size] */
    dti_mpi_peer *known;  /* those that there are */
    dti_comm_call calls[DTI_MPI_RING];
    dti_comm_note notes[DTI_MPI_RING]; /* hash 0: none */
    int64_t counts[DTI_MPI_RING];      /* of the calls, also when they are over */
    uint64_t started, completed;
    int n_messages; /* started and not done */
    bool shared;    /* with somebody: rings have to be looked at */
    bool moved;     /* a message was done since somebody looked */

    /* Of operation completed + 1, if it has begun. */
    bool active;
    dti_mpi_stream **streams; /* [n_streams] that take part, in the order in which they began */
    int n_streams;
    size_t most_streams;
    dt_status begun;              /* how beginning them went */
    int round, n_rounds;          /* of headers: barrier, sums by MPI */
    int64_t reduced;              /* segments of this rank's share of a sum */
    int64_t reduced_bytes;        /* of it */
    int64_t taken_bytes;          /* broadcast: what may be passed on */
    int64_t agreed;               /* in headers of a sum by MPI; 0 otherwise */
    int64_t share_begin, share_n; /* of a sum: this rank's elements */
    dti_mpi_sums *sums;           /* made by MPI; NULL: none */
    dti_mpi_layout *layout;       /* NULL: not asked for */
    dti_mpi_tree tree;
    dti_mpi_blocks blocks;
    int64_t *places; /* [size] where blocks lie side by side; NULL: not needed yet */
} dti_mpi_comm;

/* Where a seat is, as far as it has told. */
typedef struct dti_mpi_place {
    int32_t waits_for; /* seat, or DTI_MPI_NOBODY */
    int32_t op;        /* last begun; -1: none */
    uint64_t seq;
    char comm[DTI_COMM_NAME_BYTES];
} dti_mpi_place;

/* One seat of this process. Belongs to its thread, but for what it tells. */
typedef struct dti_mpi_port {
    _Atomic int waits_for;       /* what others may ask; as in dti_mpi_place */
    _Atomic uint64_t reached;    /* operation and number << 8, of the next one */
    _Atomic(const char *) where; /* name of a communicator, or NULL */
    struct dti_mpi_world *world;
    dti_mpi_queue *queue;
    dti_mpi_bell *bell; /* NULL: nobody can ring */
    dti_mpi_comm *comms;
    dti_mpi_comm *closed; /* freed with the port: their slots may be with MPI */
    int rank;
    bool helps;                  /* the helper's of that rank */
    int n_under_way;             /* started here, not yet waited for */
    int n_sends;                 /* with MPI */
    void *stock[DTI_MPI_STOCKS]; /* segments that nobody has borrowed, by size */
    int64_t n_sent;              /* segments, of all streams */
    int n_sum_lanes;             /* communicators whose sums MPI makes */
    uint64_t n_headers;          /* seen */
    int64_t looked_ns;           /* when this rank last asked what other processes have to say */
    int64_t watched_ns; /* and began an operation and asked whether launcher and processes live */
} dti_mpi_port;

typedef enum dti_mpi_kind {
    DTI_MPI_CARD,   /* who takes part */
    DTI_MPI_LEFT,   /* a seat has ended well; it was at `place` */
    DTI_MPI_ABORT,  /* a rank has failed */
    DTI_MPI_ASK,    /* where are your ranks? */
    DTI_MPI_ANSWER, /* seat `rank` is at `place` */
    DTI_MPI_WATCH,  /* say when seat `rank` leaves */
    DTI_MPI_END,    /* of a process and all below it every rank has left */
    DTI_MPI_OVER    /* of all processes */
} dti_mpi_kind;

/* How far the end of a run has come here. */
typedef enum dti_mpi_end {
    DTI_MPI_GOES_ON,
    DTI_MPI_SAID,  /* to the process above that all below have ended */
    DTI_MPI_HEARD, /* that all have */
    DTI_MPI_ENDED  /* and passed it on */
} dti_mpi_end;

typedef struct dti_mpi_notice {
    int32_t kind;
    int32_t rank;    /* seat that left or is spoken of, rank to blame */
    int32_t process; /* that says so */
    dti_mpi_place place;
    int32_t code;        /* from here on ABORT only */
    int32_t record_rank; /* who noticed */
    char why[DTI_WHY_BYTES];
    char where[DT_ERROR_WHERE_BYTES];
    char message[DT_ERROR_MESSAGE_BYTES];
} dti_mpi_notice;

/* What a process tells of itself when a run begins. */
typedef struct dti_mpi_card {
    uint64_t protocol; /* hash of what has to be the same program */
    uint64_t machine;
    uint64_t pid_space; /* process numbers can be compared if this is equal */
    uint64_t space;     /* and memory may be opened */
    uint64_t cpus;      /* hash of those that the process may use */
    dti_mpi_region_card region;
    int32_t n_ranks; /* of the whole run */
    int32_t sums_by_mpi;
    int32_t n_hosts; /* that are simulated */
    int32_t agree;
    int32_t threads; /* several may call MPI at once */
} dti_mpi_card;

/* A notice on its way. */
typedef struct dti_mpi_letter {
    dti_mpi_notice notice;
    int n_pending; /* receivers that have not taken it */
} dti_mpi_letter;

struct dti_mpi_world {
    _Atomic uint32_t aborted;
    const dti_mpi_module *api;
    int process, n_processes;
    int n_ranks, first_rank, n_local;
    int n_hands;                /* seats of a rank: 2 where ranks may have helpers */
    int thread_bits, hash_bits; /* parts of a tag */
    uint64_t session;
    int64_t timeout_ms;
    bool spin;
    bool sums_by_mpi;
    bool threads;          /* several may call MPI at once */
    bool agree;            /* all processes compare what ranks agree on */
    bool all_share;        /* memory, so that all that comes for a rank can ring its bell */
    int n_hosts;           /* that are simulated; 0: as it is */
    dti_mpi_region region; /* memory that processes of this machine share */
    int *hosts;            /* [n_processes] machines, numbered as they come */
    dti_mpi_port *ports;   /* [2 n_local]: ranks, then helpers */
    int n_neighbours,
        n_before; /* ranks that may use the same cores, and of them before this one's */
    int n_before_on_machine;
    _Atomic uint8_t *left; /* [2 n_ranks], by seat: has left, is asked to say when it does */

    pthread_mutex_t asks; /* held by who asks where ranks are */
    pthread_mutex_t lock; /* what follows */
    dti_mpi_queue *control;
    dti_mpi_notice *inbox;
    dti_mpi_letter *outbox; /* [n_letters] */
    int n_letters;
    int n_notices; /* with MPI */
    dti_mpi_end end;
    int n_left;     /* seats of this process that have left */
    int n_children; /* processes below this one of which some rank has not */
    int n_asked;    /* seats elsewhere that are to say when they leave, and have not */
    struct {
        int seat, process;
    } * wishes; /* [n_wishes] seats of this process, and who is to be told */
    size_t n_wishes, most_wishes;
    int n_answers;         /* seats elsewhere that have said where they are */
    dti_mpi_place *places; /* [2 n_ranks], of seats elsewhere; NULL: nobody has asked */
    int parent;            /* the launcher's process number */
    struct {
        int life; /* descriptor, or -1 */
        int32_t pid;
    } * watched; /* [n_processes] of this machine */
    int culprit; /* this and the next two are written once, before `aborted` */
    char why[DTI_WHY_BYTES];
    dt_error record;
};

/* What a wait is for: DTI_MPI_READY, or the member that it still depends on. Called again and
 * again. */
enum { DTI_MPI_READY = -1, DTI_MPI_NOBODY = -1 };
typedef int (*dti_mpi_condition)(dti_mpi_comm *c, const dti_comm_request *r);

/* mpi_world.c: the layout of ranks on processes, block by block. */
int dti_mpi_process_of(const dti_mpi_world *w, int rank);
int dti_mpi_host_of(const dti_mpi_world *w, int rank);
int dti_mpi_seat(const dti_mpi_port *port, int rank);            /* of `rank`, of the port's kind */
dti_mpi_port *dti_mpi_port_of(const dti_mpi_world *w, int seat); /* of this process */
int dti_mpi_first_rank_of(const dti_mpi_world *w, int process);
int dti_mpi_tag(const dti_mpi_world *w, dti_mpi_lane lane, int from, int to, uint64_t group);
uint64_t dti_mpi_hash(uint64_t seed, const void *data, size_t bytes);

void dti_mpi_comm_free(dti_mpi_comm *c); /* mpi.c */

/* mpi_stream.c. `push` and `pull` move what can be moved and set *moved if something was. */
void dti_mpi_stream_begin(dti_mpi_stream *s, const dti_mpi_header *header,
                          const dti_mpi_transfer *transfer, const char *words);
dt_status dti_mpi_stream_push(dti_mpi_stream *s, bool *moved) DT_MUST_USE;
dt_status dti_mpi_stream_pull(dti_mpi_stream *s, bool *moved) DT_MUST_USE;
const void *dti_mpi_stream_held(const dti_mpi_stream *s, int64_t segment);
void dti_mpi_stream_release(dti_mpi_stream *s); /* the oldest segment that is held */
void dti_mpi_slot_sent(dti_mpi_slot *slot);     /* MPI has let go of it */
bool dti_mpi_stream_is_done(const dti_mpi_stream *s);
dt_status dti_mpi_peer_of(dti_mpi_comm *c, int member, dti_mpi_peer **out) DT_MUST_USE;
dt_status dti_mpi_stream_open(dti_mpi_comm *c, int member, dti_mpi_lane lane, bool sends,
                              dti_mpi_stream **out) DT_MUST_USE;
void dti_mpi_peers_free(dti_mpi_comm *c);

/* mpi_ring.c: streams that are `shared`. A sender fills `next` and puts it; a receiver takes what
 * has come, in order. */
bool dti_mpi_shares(const dti_mpi_world *w, int rank, int other);
dt_status dti_mpi_bell_open(dti_mpi_port *port) DT_MUST_USE;

/* That of another seat, if its process shares memory with this one and was reached; NULL: no. */
const dti_mpi_bell *dti_mpi_bell_of(const dti_mpi_world *w, int seat);
dt_status dti_mpi_ring_open(dti_mpi_stream *s, dti_mpi_lane lane) DT_MUST_USE;
size_t dti_mpi_ring_bytes(const dti_mpi_stream *s); /* without what is large */
bool dti_mpi_ring_has_room(dti_mpi_stream *s);
char *dti_mpi_ring_next(dti_mpi_stream *s, int64_t bytes);
void dti_mpi_ring_put(dti_mpi_stream *s, int64_t bytes);
bool dti_mpi_ring_is_empty(const dti_mpi_stream *s);
bool dti_mpi_ring_has_come(dti_mpi_stream *s);
int64_t dti_mpi_ring_arrival(const dti_mpi_stream *s, const dti_mpi_header **header,
                             const char **words); /* bytes of what has come */
const char *dti_mpi_ring_segment(const dti_mpi_stream *s, int64_t segment);
void dti_mpi_ring_release(dti_mpi_stream *s);

/* mpi_ops.c: brings operations of a communicator forward as far as messages have come; *moved is
 * set if one has. */
dt_status dti_mpi_advance(dti_mpi_comm *c, bool *moved) DT_MUST_USE;

/* A stream takes part in the operation that begins; `begun` says whether there was memory. Elements
 * side by side: `how` COPY, or HOLD, which needs no place. */
const dti_comm_call *dti_mpi_call_of(const dti_mpi_comm *c);
void dti_mpi_begin(dti_mpi_comm *c, dti_mpi_lane lane, bool sends, int member,
                   const dti_mpi_transfer *t);
dti_mpi_transfer dti_mpi_flat(const dti_mpi_comm *c, dti_mpi_how how, const void *data, int64_t n);
void dti_mpi_copy(void *to, const void *from, int64_t n, size_t bytes);

bool dti_mpi_streams_are_done(const dti_mpi_comm *c);

/* mpi_gather.c, and what of blocks it shares with mpi_tree.c */
void dti_mpi_gather_begin(dti_mpi_comm *c);
void dti_mpi_gather_advance(dti_mpi_comm *c, bool *moved);
dt_status dti_mpi_blocks_begin(dti_mpi_comm *c, const dti_comm_call *call) DT_MUST_USE;
int64_t dti_mpi_part(const dti_mpi_blocks *b, int64_t count); /* elements that count */
void dti_mpi_list_move(dti_mpi_transfer *t, char *packed, int64_t n, bool packs); /* the next n */

/* mpi_tree.c */
bool dti_mpi_tree_takes(dti_mpi_comm *c, const dti_comm_call *call);
void dti_mpi_tree_begin(dti_mpi_comm *c);
void dti_mpi_tree_advance(dti_mpi_comm *c, bool *moved);

/* mpi_layout.c */
dt_status dti_mpi_layout_create(dti_mpi_comm *c) DT_MUST_USE; /* fills c->layout */
void dti_mpi_layout_free(dti_mpi_layout *y);
int dti_mpi_host_of_node(const dti_mpi_layout *y, int node); /* the first of two */
int dti_mpi_reversed(const dti_mpi_layout *y, int node);     /* its place among halves, and back */
int dti_mpi_n_of_rail(const dti_mpi_layout *y, int host, int rail); /* blocks */
void dti_mpi_number_hosts(dti_mpi_world *w, const dti_mpi_card *cards);
uint32_t dti_mpi_kind_of(const dti_comm_call *call);
int dti_mpi_waits_for(const dti_mpi_comm *c); /* a member that the oldest operation misses */

/* mpi_sums.c. `begin` gives what ranks have to agree on before the sum `advances`. Once a sum is
 * with MPI all ranks have come, and some may be done and gone. */
dt_status dti_mpi_sums_join(dti_mpi_world *w) DT_MUST_USE;
dt_status dti_mpi_sums_create(dti_mpi_comm *c) DT_MUST_USE;
bool dti_mpi_sums_take(const dti_mpi_comm *c, const dti_comm_call *call);
int64_t dti_mpi_sums_begin(dti_mpi_comm *c, const dti_comm_call *call);
dt_status dti_mpi_sums_advance(dti_mpi_comm *c, const dti_comm_call *call, bool *moved) DT_MUST_USE;
bool dti_mpi_sums_are_active(const dti_mpi_comm *c);
bool dti_mpi_sums_are_with_mpi(const dti_mpi_comm *c);

/* mpi_p2p.c */
dt_status dti_mpi_p2p_start(dti_mpi_comm *c, dti_comm_request *r) DT_MUST_USE;
dt_status dti_mpi_p2p_wait(dti_mpi_comm *c, const dti_comm_request *r) DT_MUST_USE;
bool dti_mpi_p2p_is_over(dti_mpi_comm *c, const dti_comm_request *r);
dt_status dti_mpi_p2p_advance(dti_mpi_comm *c, bool *moved) DT_MUST_USE;

/* mpi_fail.c */
dt_status dti_mpi_check_abort(dti_mpi_comm *c, const dti_comm_request *r) DT_MUST_USE;
dt_status dti_mpi_fail_unreached(const dti_mpi_comm *c) DT_MUST_USE; /* keeps the error */
dt_status dti_mpi_fail_left(dti_mpi_comm *c, const dti_comm_request *r, int member) DT_MUST_USE;
dt_status dti_mpi_fail_expired(dti_mpi_comm *c, const dti_comm_request *r, int member,
                               const char *verb) DT_MUST_USE;

dt_status dti_mpi_fail_differs(const dti_mpi_stream *s, const dti_mpi_header *theirs,
                               const char *their_words) DT_MUST_USE;

/* What a rank tells of itself for those who may ask. */
dt_status dti_mpi_arrive(dti_mpi_comm *c, const dti_comm_request *r) DT_MUST_USE;
void dti_mpi_tell_wait(dti_mpi_port *port, int seat);

/* mpi_wait.c */
dt_status dti_mpi_await(dti_mpi_comm *c, const dti_comm_request *r, dti_mpi_condition ready,
                        const char *verb) DT_MUST_USE;
dt_status dti_mpi_progress(dti_mpi_port *port, bool *moved) DT_MUST_USE;
dt_status dti_mpi_push_on(dti_mpi_comm *c) DT_MUST_USE; /* something was started */

/* mpi_join.c: makes a process one of several, with all that mpi_control.c needs. */
dt_status dti_mpi_join(dti_mpi_world *w, bool share) DT_MUST_USE;

/* mpi_control.c */
int dti_mpi_control_tag(const dti_mpi_world *w, dti_mpi_kind kind);
void dti_mpi_abort(dti_mpi_world *w, int rank, const char *why);
void dti_mpi_look(dti_mpi_world *w);     /* takes what other processes have to say */
void dti_mpi_hear_out(dti_mpi_world *w); /* waits shortly for the last word of who has gone */
void dti_mpi_tell_left(dti_mpi_world *w, int seat);
void dti_mpi_watch(dti_mpi_world *w, int64_t timeout_ns); /* sleeps; wakes if a process dies */
void dti_mpi_ask(dti_mpi_world *w); /* where the ranks of other processes are */
dti_mpi_place dti_mpi_place_of(dti_mpi_world *w, int seat);
bool dti_mpi_has_left(dti_mpi_world *w, int seat, bool asks); /* asks to be told, if it has not */
bool dti_mpi_is_over(dti_mpi_world *w); /* all ranks of all processes have left, and know it */
void dti_mpi_watch_process(dti_mpi_world *w, int process, int64_t pid);
int dti_mpi_find_dead(const dti_mpi_world *w); /* a process that is watched, or NOBODY */
dt_status dti_mpi_control_open(dti_mpi_world *w) DT_MUST_USE;
void dti_mpi_control_close(dti_mpi_world *w);

#endif
