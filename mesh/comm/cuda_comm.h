/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives on memory of GPUs: calls with a stream, on the communicators that are there.
 *
 * A rank of a run has one device or none. What carries the bytes of devices is one of four, chosen
 * once for a world:
 *   cuda_local  ranks are threads: kernels read and write the memory of other ranks, between events
 *               (local_cuda.c)
 *   cuda_local_spin  the same, but sums over ranks are kernels that wait for each other
 *               (local_spin.c); never unless it is wished for by name
 *   nccl        one GPU per rank, in any processes (nccl.c)
 *   staged      through memory of the hosts and the back end that joins them (cuda_staged.c)
 * All of them stand on the communicator of the hosts, which carries what ranks tell each other, and
 * has the deadlines, aborts and names of culprits. */
#ifndef DTI_CUDA_COMM_H
#define DTI_CUDA_COMM_H

#include "base/cuda_api.h"
#include "mesh/comm/comm.h"

/* A rank's device, which outlives its part in communication. */
typedef struct dti_cuda_place {
    const dti_cuda_module *module;
    dti_cuda *cuda;
    int device;      /* its number in this process */
    bool loads_late; /* kernels are loaded when they are first launched */
    int n_queues;    /* streams that a device runs side by side; 0: as many as there are */
    bool fuses;      /* one kernel may do the work of several operators */
} dti_cuda_place;

typedef struct dti_cuda_world dti_cuda_world;

/* Gives this rank's part of `world` a device. Collective over world; every rank comes with a place
 * before any of its communicators has seen a call with a stream. `wish` is the name of a carrier,
 * the same on all ranks; NULL or "auto": the best that all ranks can have. From then on world and
 * the groups made from it take calls with a stream; older groups are given *out by the caller.
 * Errors: DT_ERR_ARG, an unknown name or wishes that differ; DT_ERR_UNSUPPORTED, a wish that
 * cannot be had, with the reason; DT_ERR_DEVICE; DT_ERR_COMM. */
dt_status dti_cuda_world_open(dti_comm *world, const dti_cuda_place *place, const char *wish,
                              dti_cuda_world **out) DT_MUST_USE;
void dti_cuda_world_close(
    dti_cuda_world **w); /* after dti_cuda_comm_close() of all; accepts NULL */

/* "cuda_local: 4 ranks are threads on 1 GPU", for reports. */
const char *dti_cuda_world_text(const dti_cuda_world *w);

/* Whether operations may be recorded in graphs (capture_begin): not by carriers whose hosts take
 * part in each, unless there is but one rank. */
bool dti_cuda_world_records(const dti_cuda_world *w);

/* What this rank is about: what it starts between set(REHEARSES) and set(RUNS) will be recorded
 * later; between set(RECORDS_GRAPH) and set(RUNS) nothing runs. */
typedef enum dti_cuda_stage {
    DTI_CUDA_RUNS,
    DTI_CUDA_REHEARSES,
    DTI_CUDA_RECORDS_GRAPH
} dti_cuda_stage;
void dti_cuda_world_set(dti_cuda_world *w, dti_cuda_stage stage);

/* Whether this call can be recorded. Ranks may answer differently, so no host takes part in what
 * is recorded, and they agree afterwards. */
bool dti_cuda_can_record(const dti_comm *c, const dti_comm_call *call);

/* Around the launch of a graph that all members of c have recorded and play now. */
dt_status dti_cuda_before_play(dti_comm *c) DT_MUST_USE;
dt_status dti_cuda_after_play(dti_comm *c) DT_MUST_USE;

/* Waits until all that was started on this rank's stream is done. Where kernels wait for other
 * ranks it looks after these, so it ends by an abort or by the deadline of the communicator whose
 * operation is stuck, and the error names the rank that is missing. Use it in place of the
 * module's sync(), which would wait for ever; call that afterwards for what kernels have found. */
dt_status dti_cuda_world_sync(dti_cuda_world *w) DT_MUST_USE;

/* This rank's part in the run is over: its stream is freed of all that waits for other ranks, so
 * that its memory can be given back. Accepts NULL. */
void dti_cuda_world_abort(dti_cuda_world *w);

/* Not collective, unless the carrier is nccl and nobody has failed. */
void dti_cuda_comm_close(dti_comm *c);

/* A call of the only rank. */
dt_status dti_cuda_alone(const dti_comm *c, const dti_comm_call *call) DT_MUST_USE;

/* --- for carriers -------------------------------------------------------------------------------
 */

/* start and wait are as in dti_comm_ops, for calls with a stream on communicators of several ranks;
 * the rest may be NULL. */
typedef struct dti_cuda_carrier {
    const char *name;
    const char *remedy; /* what to do about streams that are stuck with all ranks there; not NULL
                         * where they are watched */
    bool records;
    /* Of what is numbered apart from the hosts' operations; else ++c->seq. */
    uint64_t (*next_number)(dti_comm *c, const dti_comm_request *r);
    dt_status (*start)(dti_comm *c, dti_comm_request *r);
    dt_status (*wait)(dti_comm *c, dti_comm_request *r);
    dt_status (*sync)(dti_cuda_world *w);
    dt_status (*look)(dti_cuda_world *w); /* what has gone wrong on the stream, while it runs */
    bool (*have_left)(const dti_comm *c); /* members of c */
    bool (*can_record)(const dti_comm *c, const dti_comm_call *call); /* NULL: everything */
    void (*abort)(dti_cuda_world *w);
    dt_status (*before_wait)(dti_cuda_world *w, const dti_comm_request *r); /* of hosts */
    void (*close)(dti_comm *c);
    void (*close_world)(dti_cuda_world *w);
} dti_cuda_carrier;

extern const dti_cuda_carrier dti_cuda_local, dti_cuda_spin, dti_cuda_nccl, dti_cuda_staged;

/* Memory of a place that grows as it is needed; all zero but for its kind: none yet. It at least
 * doubles, and what it has outgrown stays, since streams and recorded graphs may still use it. */
typedef struct dti_cuda_room {
    dti_cuda_memory kind;
    void *data;
    size_t bytes;
    int n_old;
    void *old[48];
} dti_cuda_room;

struct dti_staged_op;
struct dti_nccl_rank;
struct dti_spin_rank;

/* An operation on the stream, so that what is stuck can be told. */
typedef struct dti_cuda_record {
    dti_cuda_event *done;
    dti_comm *comm; /* NULL: closed since */
    dti_comm_op op;
    uint64_t seq;
    int64_t timeout_ms;
} dti_cuda_record;

enum { DTI_CUDA_RECORDS = 64 };

struct dti_cuda_world {
    const dti_cuda_carrier *carrier;
    dti_cuda_place place;
    dti_comm *host;               /* the world's */
    dti_cuda_room room;           /* of the device: packed parts, in order of the stream */
    struct dti_staged_op *staged; /* cuda_staged.c */
    struct dti_nccl_rank *nccl;   /* nccl.c */
    struct dti_spin_rank *spin;   /* local_spin.c */
    bool crowded;                 /* ranks share devices */
    dti_cuda_stage stage;
    uint64_t n_played;  /* graphs */
    uint64_t n_records; /* ever made */
    dti_cuda_record records[DTI_CUDA_RECORDS];
    char text[320];
};

const dti_cuda_carrier *dti_cuda_carrier_of(const dti_cuda_world *w); /* NULL: w is NULL */
const dti_cuda_place *dti_cuda_place_of(const dti_comm *c);

/* Makes it at least `bytes` long; its contents are lost if it has to grow. */
dt_status dti_cuda_room_for(const dti_cuda_place *place, dti_cuda_room *room,
                            size_t bytes) DT_MUST_USE;
void dti_cuda_room_free(const dti_cuda_place *place, dti_cuda_room *room);

/* DT_OK for 0; else DT_ERR_DEVICE with the module's reason behind `what`. */
dt_status dti_cuda_check_call(const dti_cuda_place *place, int failed,
                              const char *what) DT_MUST_USE;

/* cuda_watch.c: for streams whose kernels wait for other ranks. start(): an operation was put on
 * it; forget(): its communicator is closed; sync(): as dti_cuda_world_sync(). check(): whether
 * ranks have failed, in words of what was put on it last. fail_stuck(): it has waited for too long;
 * names who is missing. */
dt_status dti_cuda_watch_start(dti_comm *c, const dti_comm_request *r) DT_MUST_USE;
void dti_cuda_watch_forget(const dti_comm *c);
void dti_cuda_watch_close(dti_cuda_world *w);
dt_status dti_cuda_watch_sync(dti_cuda_world *w) DT_MUST_USE;
dt_status dti_cuda_watch_check(dti_cuda_world *w) DT_MUST_USE;
dt_status dti_cuda_fail_stuck(dti_comm *c, const dti_comm_request *r,
                              int64_t waited_ms) DT_MUST_USE;

/* A barrier of the hosts, with the request's note if it has one: what they are about to do on their
 * devices is compared. */
dt_status dti_cuda_hosts_meet(dti_comm *c, const dti_comm_request *r) DT_MUST_USE;

/* What a call takes to `member` (sends), or brings from it, as a box in send or recv; empty:
 * nothing. all_reduce and reduce_scatter bring nothing: their results are made. */
dti_box dti_cuda_part(const dti_comm *c, const dti_comm_call *call, bool sends, int member);

/* Copies a box on the device; pack and unpack: from or to a place where its elements lie side by
 * side. */
dt_status dti_cuda_copy_box(const dti_cuda_place *place, void *to, const dti_box *to_box,
                            const void *from, const dti_box *from_box,
                            size_t element_bytes) DT_MUST_USE;
dt_status dti_cuda_pack(const dti_cuda_place *place, void *to, const void *from, const dti_box *box,
                        size_t element_bytes) DT_MUST_USE;
dt_status dti_cuda_unpack(const dti_cuda_place *place, void *to, const dti_box *box,
                          const void *from, size_t element_bytes) DT_MUST_USE;

dti_cuda_box dti_cuda_box_of(const dti_box *box);
dti_cuda_box dti_cuda_row_of(int64_t n); /* n elements side by side */

#endif
