/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives on plain memory, over any dims of a mesh: what operators and moves are made of, for
 * those who move bytes of their own.
 *
 *   dims   names of mesh dims in mesh order, "tp" or "dp,tp"; NULL or "": all of the mesh. The
 *          ranks that differ from this one in these dims alone are its group; places in it are
 *          row-major, and a peer or root is such a place
 *   send, recv   memory of this rank's device, where dt_tensor_local() lies: row-major elements of
 *          `dtype`. Zero elements are allowed everywhere, and need no memory
 *
 * Reductions add in the order of places, f16 and bf16 in f32 with one rounding at the end, and give
 * every rank the same bits. DT_AVG divides the sum by the size of the group; u8 is not reduced.
 *
 * For all functions here but the first two:
 *
 * Collective  yes, over the group, whose ranks issue the same calls in the same order; messages
 *             concern their two ranks alone. Ranks outside the mesh do not call.
 * Errors      DT_ERR_ARG     NULL, an unknown dim, dtype or reduction, a bad count, place or dims
 *                            out of order; or peers call something else, or with other counts, a
 *                            dtype, reduction or root of their own, which is found out where bytes
 *                            would move; between processes two ranks that both take themselves for
 *                            the root only where agreement is checked (dt_run_options.check), or
 *                            by the next call of the group
 *             DT_ERR_COMM    another rank failed, left or timed out
 *             DT_ERR_MEMORY, DT_ERR_DEVICE
 *             After an error of the last three kinds, or of peers that disagree, the run is
 *             aborted on all ranks. */
#ifndef DT_COLLECTIVES_H
#define DT_COLLECTIVES_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks of the group, and this rank's place in it; -1 for an unknown dim and for outsiders. Not
 * collective. Errors: none. */
DT_API int dt_group_size(const dt_mesh *mesh, const char *dims);
DT_API int dt_group_place(const dt_mesh *mesh, const char *dims);

/* --- one call each: even counts --------------------------------------------------------------- */

/** Returns when every rank of the group has called it; of hosts, also where tensors lie on GPUs. */
DT_API DT_MUST_USE dt_status dt_barrier(dt_mesh *mesh, const char *dims);

/** n elements from `root` to all, in place. */
DT_API DT_MUST_USE dt_status dt_broadcast(dt_mesh *mesh, const char *dims, void *data, int64_t n,
                                          dt_dtype dtype, int root);

/** recv[i] = all ranks' send[i] reduced; recv may be send. */
DT_API DT_MUST_USE dt_status dt_all_reduce(dt_mesh *mesh, const char *dims, const void *send,
                                           void *recv, int64_t n, dt_dtype dtype, dt_reduce op);

/** n elements of each rank, one rank after the other in recv; send may be its own part of recv. */
DT_API DT_MUST_USE dt_status dt_all_gather(dt_mesh *mesh, const char *dims, const void *send,
                                           void *recv, int64_t n, dt_dtype dtype);

/** send has n elements for each rank; recv[i] = all ranks' i-th element for this one, reduced. */
DT_API DT_MUST_USE dt_status dt_reduce_scatter(dt_mesh *mesh, const char *dims, const void *send,
                                               void *recv, int64_t n, dt_dtype dtype, dt_reduce op);

/** send has n elements for each rank, recv gets n from each. */
DT_API DT_MUST_USE dt_status dt_all_to_all(dt_mesh *mesh, const char *dims, const void *send,
                                           void *recv, int64_t n, dt_dtype dtype);

/** n elements to or from the rank at place `peer`, whose other call says as many of the same
 * dtype. dt_send() returns when they were received: two ranks that send to each other first wait
 * for ever, or until the deadline; start one of the messages instead, or let one of the
 * two receive first, as has to be on GPUs. Tensors, whose layouts may differ on both sides, go by
 * channels (<dtensor/channels.h>). */
DT_API DT_MUST_USE dt_status dt_send(dt_mesh *mesh, const char *dims, const void *data, int64_t n,
                                     dt_dtype dtype, int peer);
DT_API DT_MUST_USE dt_status dt_recv(dt_mesh *mesh, const char *dims, void *data, int64_t n,
                                     dt_dtype dtype, int peer);

/* --- counts per rank, start and wait ---------------------------------------------------------- */

typedef enum dt_collective_op {
    DT_CALL_BARRIER,
    DT_CALL_BROADCAST,
    DT_CALL_ALL_GATHER,
    DT_CALL_ALL_REDUCE,
    DT_CALL_REDUCE_SCATTER,
    DT_CALL_ALL_TO_ALL,
    DT_CALL_SEND,
    DT_CALL_RECV,
    DT_N_CALLS
} dt_collective_op;

/* One call; zeros are defaults. counts[r] elements go between this rank and the rank at place r:
 * those that rank r gives (all_gather), gets (reduce_scatter), or sends here (all_to_all, where
 * send_counts[r] go there). They lie in the longer buffer at displs[r] elements, send_displs[r] in
 * that of an all_to_all that is sent; without displacements one after the other. */
typedef struct dt_collective {
    dt_collective_op op;
    dt_dtype dtype;
    dt_reduce reduce; /* all_reduce, reduce_scatter */
    int peer;         /* broadcast: its root, whose recv is sent if send is NULL; send, recv */
    const void *send;
    void *recv;
    int64_t count;         /* of each rank, if counts is NULL; of the call, where there is one */
    const int64_t *counts; /* [size of the group] or NULL */
    const int64_t *displs; /* likewise */
    const int64_t *send_counts;
    const int64_t *send_displs;
    bool on_host; /* send and recv are memory of the host, whatever this rank's device is */
} dt_collective;

/* A collective under way. */
typedef struct dt_request dt_request;

/**
 * Starts a call and returns: any number may be under way, on one group or on several, and they may
 * be waited for in any order. send and recv belong to the call until its wait has returned; the
 * struct and its arrays do not. Bytes move while ranks are inside calls of this library; what
 * travels while a rank computes is a dt_redistribute_begin(). On memory of a GPU each call
 * waits on the stream for those before it: two ranks that both start a send and then a receive wait
 * for each other as with dt_send(); one of them has to start its receive first.
 *
 * Ownership   *out is ended by dt_collective_wait(), always, before rank_main returns.
 */
DT_API DT_MUST_USE dt_status dt_collective_start(dt_mesh *mesh, const char *dims,
                                                 const dt_collective *call, dt_request **out);

/** Returns when recv is complete and send may be overwritten, on a GPU when its stream has come to
 * its end, so not in a recorded pass (DT_ERR_UNSUPPORTED); frees *request and sets it to NULL, also
 * on error. NULL is no error. */
DT_API DT_MUST_USE dt_status dt_collective_wait(dt_request **request);

/** Starts and waits. */
DT_API DT_MUST_USE dt_status dt_collective_run(dt_mesh *mesh, const char *dims,
                                               const dt_collective *call);

#ifdef __cplusplus
}
#endif
#endif
