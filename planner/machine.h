/* SPDX-License-Identifier: Apache-2.0
 *
 * What the planner asks a machine. */
#ifndef DTI_PLANNER_MACHINE_H
#define DTI_PLANNER_MACHINE_H

#include <dtensor/planner.h>

#include "base/writer.h"
#include "files/json.h"

/* Devices of all nodes. */
int64_t dti_machine_ranks(const dt_machine *m);

/* Ranks of a node that have a core among them; 1: none has less than one. */
double dti_machine_crowd(const dt_machine *m);

/* --- what was measured (rates.c) -------------------------------------------------------------- */

/* "kernels" and "links" of a file; both may be missing. */
dt_status dti_rates_read(const dti_json *root, dt_machine *m) DT_MUST_USE;
void dti_rates_put(dti_writer *w, const dt_machine *m);

/* Whether calls of a kernel were measured, and what one takes, by those that are like it, if need
 * be of other kernels. */
bool dti_kernel_is_known(const dt_machine *m, const char *kernel, dt_dtype dtype);
double dti_kernel_seconds(const dt_machine *m, const char *kernel, dt_dtype dtype,
                          const dt_op_work *work);

/* Latency of a collective's call among so many ranks, and bandwidth, between nodes of one rank
 * while all send; `kind` DT_N_COMM_KINDS: the best of any. Measured, or the machine's figures. */
void dti_link_seconds(const dt_machine *m, dt_comm_kind kind, int ranks, bool between,
                      double *latency, double *bandwidth);

#endif
