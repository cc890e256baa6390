/* SPDX-License-Identifier: Apache-2.0
 *
 * The dry back end: one rank's view of a world that is not there. Operations are checked and
 * numbered, nothing is moved and nobody is waited for; buffers may be NULL and stay as they are. */
#ifndef DTI_DRY_H
#define DTI_DRY_H

#include "mesh/comm/comm.h"

/* The communicator "world" of `rank` among `size` imagined ranks. */
dt_status dti_dry_open(int rank, int size, dti_comm **out) DT_MUST_USE;

#endif
