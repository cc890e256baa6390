/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves that travel while a rank computes: begin one, compute, wait for it.
 *
 *   dt_redistribute_begin(grads, shards, &pending);
 *   ... kernels ...
 *   dt_pending_wait(&pending, &reduced);
 *
 * Each rank, a thread or a process, has a helper thread from its first begin on, which sleeps
 * unless something travels, and runs on any core of the process: where all of them compute, what is
 * won is the time that ranks would wait for each other and for links. On GPUs, and under an MPI
 * that makes the sums or allows one thread, a begin does what dt_redistribute() does, and the wait
 * hands the result over: the same program is right there, and no faster than without.
 *
 * Begins are collectives: all ranks of the mesh issue them in the same order among themselves, and
 * among all other calls. Any number may be under way, on any meshes; they travel one after the
 * other, in that order, beside the collectives of the ranks, and have no place in a rank's flight
 * record. Waits may come in any order, and need not come: what was begun cannot be called back,
 * since other ranks count on it, but a pending move that is released before its wait goes on by
 * itself and its result is dropped. */
#ifndef DT_ASYNC_H
#define DT_ASYNC_H

#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A move under way. Belongs to its rank's thread. */
typedef struct dt_pending dt_pending;

/**
 * Begins what dt_redistribute(x, want, ...) does, and returns. It keeps a reference of x.
 * Reading x is fine meanwhile; what the library writes to it waits for the move; memory that was
 * lent to x must not be written past the library before the wait has returned.
 *
 * Collective  as dt_redistribute(), at the begin. Deadlines count while peers are awaited, from
 *             when the move's turn has come.
 * Ownership   *out ends by dt_pending_wait() or dt_pending_release().
 * Errors      as dt_redistribute(), as far as they are known now; the others by the wait
 */
DT_API DT_MUST_USE dt_status dt_redistribute_begin(dt_tensor *x, const dt_placement *want,
                                                   dt_pending **out);

/** True if dt_pending_wait() would not wait; NULL is done. Not collective. Errors: none. */
DT_API bool dt_pending_is_done(const dt_pending *pending);

/**
 * Waits for a move, frees *pending and sets it to NULL, also on error.
 *
 * Collective  no: each rank waits when it likes. A rank that waits does its part in collectives
 *             that it has started.
 * Ownership   *y is a new reference.
 * Errors      DT_ERR_ARG   NULL; the run has ended
 *             DT_ERR_COMM  another rank failed, left or timed out, in this move or in another
 *                          call meanwhile
 *             others of dt_redistribute(). On error *y is NULL
 */
DT_API DT_MUST_USE dt_status dt_pending_wait(dt_pending **pending, dt_tensor **y);

/** Drops the result of a move, which goes on. Accepts NULL; sets *pending to NULL. At the end of a
 * run what is under way is awaited. Not collective. Errors: none. */
DT_API void dt_pending_release(dt_pending **pending);

/**
 * The recorded form: bytes are counted on the tape at the begin, errors latch, the result of the
 * wait belongs to the tape's scope at the time of the wait. The pending move belongs to the tape:
 * dt_tape_reset() and dt_tape_release() drop those that were not waited for. Scopes may end
 * between begin and wait. NULL after an error, such as a wait for NULL.
 *
 * Collective, Errors  as dt_redistribute_begin() and dt_pending_wait(), latched
 * Ownership           borrowed from the tape; a move is waited for once, a second wait before the
 *                     reset is DT_ERR_ARG
 */
DT_API dt_pending *dt_move_begin(dt_tape *tape, dt_tensor *x, const dt_placement *want);
DT_API dt_tensor *dt_move_wait(dt_tape *tape, dt_pending *pending);

#ifdef __cplusplus
}
#endif
#endif
