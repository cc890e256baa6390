/* SPDX-License-Identifier: Apache-2.0
 *
 * Telling a communicator which tensor the next operation moves. */
#ifndef DTI_AGREE_H
#define DTI_AGREE_H

#include "dtensor/tensor_internal.h"
#include "mesh/comm/comm.h"

/* dti_mesh_comm() of x's mesh. If ranks check that they agree, its next operation is described in
 * `note` (which lives until that has started) as one that moves x to layout `to`; NULL: hands x
 * out. */
dt_status dti_agree_comm(const dt_tensor *x, const dt_layout *to, uint32_t dims,
                         dti_comm_note *note, dti_comm **out) DT_MUST_USE;

/* The same for a communicator that is there already. */
void dti_agree_about(const dt_tensor *x, const dt_layout *to, dti_comm *comm, dti_comm_note *note);

#endif
