/* SPDX-License-Identifier: Apache-2.0
 *
 * Links that are slower than those of the machine (dt_run_options.simulated_link): a wait returns
 * no sooner than latency + bytes / bandwidth after the start, and sleeps until then, so that it
 * takes no core. Over any back end. */
#ifndef DTI_SLOW_LINK_H
#define DTI_SLOW_LINK_H

#include <dtensor/mesh.h>

#include "mesh/comm/comm.h"

dt_status dti_slow_link_check(const dt_link *link) DT_MUST_USE;

/* Bytes that this rank receives in a call, as dt_redistribute() counts them. */
int64_t dti_call_received(const dti_comm *c, const dti_comm_call *call);

/* Sleeps until the request would have come over the link of c. */
void dti_slow_link_wait(const dti_comm *c, const dti_comm_request *r);

#endif
