/* SPDX-License-Identifier: Apache-2.0
 *
 * Telling a communicator which tensor an operation moves. */
#ifndef DTI_CLAIMS_H
#define DTI_CLAIMS_H

#include "dtensor/tensor_internal.h"
#include "mesh/comm/comm.h"

/* What ranks that check their agreement say of an operation that moves x to layout `to` (NULL: that
 * hands x out), for dti_comm_call.about: made in `room`, which lives until the operation has
 * started. NULL if they do not check. */
const dti_comm_note *dti_agree_about(const dt_tensor *x, const dt_layout *to, const dti_comm *comm,
                                     dti_comm_note *room);

/* The same of a move that joins those that the note is about already. */
void dti_agree_also(const dt_tensor *x, const dt_layout *to, dti_comm_note *note);

#endif
