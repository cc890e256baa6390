/* SPDX-License-Identifier: Apache-2.0
 *
 * One call on its own: is it well formed, and what does it do on a communicator of one rank. */
#ifndef DTI_CALL_H
#define DTI_CALL_H

#include "mesh/comm/comm.h"

/* Mistakes that the caller can see alone. Nothing was sent when it fails. */
dt_status dti_call_check(const dti_comm *c, const dti_comm_call *call) DT_MUST_USE;

/* Serves a checked call of the only rank. */
void dti_call_alone(const dti_comm_call *call);

bool dti_box_same_extents(const dti_box *a, const dti_box *b);

#endif
