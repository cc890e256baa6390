/* SPDX-License-Identifier: Apache-2.0
 *
 * A tensor's piece as the host sees it: the piece itself on the CPU, elsewhere a copy. */
#ifndef DTI_HOST_H
#define DTI_HOST_H

#include <dtensor/tensor.h>

#include "base/error.h"

typedef enum dti_host_use {
    DTI_HOST_READS, /* contents are there */
    DTI_HOST_WRITES /* contents are undefined, and all are written */
} dti_host_use;

typedef struct dti_host {
    dt_local local; /* as dt_tensor_local(), data for the host; NULL of a dry tensor */
    dt_tensor *x;
    dti_host_use use;
    bool copied;
} dti_host;

/* Waits for what is computed before. x outlives the view. */
dt_status dti_host_open(dt_tensor *x, dti_host_use use, dti_host *out) DT_MUST_USE;

/* Brings what was written to the device, unless `st`, which it hands back, is an error; frees the
 * copy in any case. */
dt_status dti_host_close(dti_host *host, dt_status st) DT_MUST_USE;

#endif
