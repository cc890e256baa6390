/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of a storage that others hold as well, who may give them back on any thread and after the
 * run. Whoever is last frees them: the storage as ever, into its pool; others to where they came
 * from, which for a lender's bytes is the rank's own thread while there is one. */
#ifndef DTI_LEASE_H
#define DTI_LEASE_H

#include "dtensor/device/device_memory.h"

typedef struct dti_lease dti_lease;
typedef struct dti_lease_post dti_lease_post;

/* One more holder of the storage's bytes, which are the host's. */
dt_status dti_storage_lease(dti_storage *s, dti_lease **out) DT_MUST_USE;

/* A holder gives them back; any thread. */
void dti_lease_return(dti_lease *lease);

/* --- for device_memory.c --------------------------------------------------------------------- */

/* The storage is done with its bytes. True if nobody else holds them, so that they are its to free;
 * the lease is gone then. */
bool dti_lease_end(dti_lease *lease);

/* Where bytes of lenders wait that came back on other threads. */
dt_status dti_lease_post_create(dti_lease_post **out) DT_MUST_USE;
void dti_lease_collect(dti_lease_post *post);     /* gives them to their lenders */
void dti_lease_post_close(dti_lease_post **post); /* the same, and from now on at once */

#endif
