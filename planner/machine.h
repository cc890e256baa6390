/* SPDX-License-Identifier: Apache-2.0
 *
 * What the planner asks a machine. */
#ifndef DTI_PLANNER_MACHINE_H
#define DTI_PLANNER_MACHINE_H

#include <dtensor/planner.h>

/* Devices of all nodes. */
int64_t dti_machine_ranks(const dt_machine *m);

#endif
