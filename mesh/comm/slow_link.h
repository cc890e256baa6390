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

/* Links by mesh dim. */
enum { DTI_MAX_SLOW_LINKS = DT_MAX_DIMS + 1 };
typedef struct dti_slow_links {
    int n;
    bool unbuffered; /* sends wait for their receivers */
    struct {
        char dim[DT_DIM_NAME_BYTES]; /* "": every other */
        dt_link link;
    } of[DTI_MAX_SLOW_LINKS];
} dti_slow_links;

/* As dt_run_options.links says. */
dt_status dti_slow_links_parse(const char *text, dti_slow_links *out) DT_MUST_USE;

/* The link of a communicator of that name, of several dims ("dp,tp") the one over which a megabyte
 * takes longest; NULL: the machine's. */
const dt_link *dti_slow_link_of(const dti_slow_links *links, const char *name);

/* Bytes that this rank receives in a call, as dt_redistribute() counts them. */
int64_t dti_call_received(const dti_comm *c, const dti_comm_call *call);

/* Sleeps until the request would have come over the link of c. */
void dti_slow_link_wait(const dti_comm *c, const dti_comm_request *r);

#endif
