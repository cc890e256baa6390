/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors as later rooms make them: with a layout that is interned already, and no bytes to copy.
 */
#ifndef DTI_CREATE_H
#define DTI_CREATE_H

#include <dtensor/tensor.h>

#include "base/error.h"
#include "dtensor/device/device_memory.h"

/* A tensor with uninitialised bytes from the pool. */
dt_status dti_tensor_create(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                            const int64_t *shape, dt_tensor **out) DT_MUST_USE;

/* A zeroed tensor with an exact block of its own: weights and caches. */
dt_status dti_tensor_create_exact(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                                  const int64_t *shape, dt_tensor **out) DT_MUST_USE;

/* The same in `memory`, of the rank's device (away.h); NULL: its own. */
dt_status dti_tensor_create_in(dti_memory *memory, dt_mesh *mesh, const dt_layout *layout,
                               dt_dtype dtype, const int64_t *shape, dt_tensor **out) DT_MUST_USE;

/* What its bytes count as; values to begin with. */
void dti_tensor_set_kind(dt_tensor *x, dti_memory_kind kind);

/* Copies bytes of this rank's pieces, which do not overlap, within the device. */
dt_status dti_tensor_copy_bytes(dt_tensor *to, int64_t to_at, const dt_tensor *from,
                                int64_t from_at, int64_t bytes) DT_MUST_USE;

/* The mesh dims (bits) on which x is Partial over more than one rank. */
uint32_t dti_tensor_partial_dims(const dt_tensor *x);

/* x, which is no Partial, as a sum over the ranks of the mesh dims in `dims`, on which it is whole:
 * a view of x on the first of them, zeros on the others. Communicates nothing. */
dt_status dti_tensor_as_term(dt_tensor *x, uint32_t dims, dt_tensor **out) DT_MUST_USE;

/* Tells a tape that records that y is x, elsewhere or in another dtype; y may have been another
 * value before. */
dt_status dti_graph_move(dt_tape *tape, dt_tensor *x, dt_tensor *y) DT_MUST_USE;

/* The innermost open scope, or the one in which the tape's error happened; NULL outside all. */
const char *dti_tape_scope(const dt_tape *tape);
int dti_tape_n_scopes(const dt_tape *tape); /* that are open */

bool dti_tape_goes_back(const dt_tape *tape); /* a backward pass runs */

/* Takes over a reference of `x`; NULL after an error. */
dt_tensor *dti_tape_push(dt_tape *tape, dt_tensor *x);

/* Latches the thread's error record, with the innermost scope's name before the message. Errors
 * that this rank alone can have (memory, files, device, internal) free the other ranks. Returns
 * NULL. */
dt_tensor *dti_tape_latch(dt_tape *tape, dt_status status);

#endif
