/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives other than small sums, recorded between kernels that wait for each other: a rank puts
 * what it sends into the room of its area, one slot per member, all meet, each takes its own, and
 * all meet again. Slots are alike on all ranks, so no host asks another where something lies. */
#ifndef DTI_SPIN_MOVES_H
#define DTI_SPIN_MOVES_H

#include "mesh/comm/cuda_comm.h"

/* Whether it is one of these operations; whether what goes and comes fits into the slots. */
bool dti_spin_is_move(const dti_comm_call *call);
bool dti_spin_can_move(const dti_comm *c, const dti_comm_call *call);

/* Puts all of it on the stream, for a call that can_move() has taken. */
dt_status dti_spin_record_move(dti_comm *c, const dti_cuda_circle *with, const dti_comm_call *call,
                               int64_t limit_ms) DT_MUST_USE;

#endif
