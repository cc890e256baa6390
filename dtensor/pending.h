/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves under way, as the tape and the device see them. */
#ifndef DTI_PENDING_H
#define DTI_PENDING_H

#include <dtensor/async.h>

#include "dtensor/device/device.h"

/* Begins n moves that travel together (dti_redistribute_all()), of tensors of one rank; at least
 * one. counters may be NULL. */
dt_status dti_moves_begin(int n, dt_tensor *const *x, const dt_layout *const *want,
                          dt_comm_counter *counters, dt_pending **out) DT_MUST_USE;

/* The same; what is made lies in `memory`, which begun moves alone use. NULL: in theirs. */
dt_status dti_moves_begin_in(dti_memory *memory, int n, dt_tensor *const *x,
                             const dt_layout *const *want, dt_comm_counter *counters,
                             dt_pending **out) DT_MUST_USE;

/* Waits for them and frees *pending, also on error; y[0 .. n - 1] are new references. */
dt_status dti_moves_wait(dt_pending **pending, dt_tensor **y) DT_MUST_USE;

/* Drops what the tape has begun and not waited for. */
void dti_pending_drop_all(dt_pending **of_tape);

/* dt_move_begin() to a layout. What is made lies in `memory`, as above. The pending move is the
 * tape's. */
dt_status dti_move_begin(dt_tape *t, dt_tensor *x, const dt_layout *want, dti_memory *memory,
                         dt_pending **out) DT_MUST_USE;

/* The end of a run: what was dropped and has now come to its end. */
void dti_pending_end(dti_device *d);

#endif
