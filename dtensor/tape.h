/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind dt_tape, for this room only. */
#ifndef DTI_TAPE_H
#define DTI_TAPE_H

#include <dtensor/tensor.h>

#include "dtensor/create.h"
#include "dtensor/device/device.h"

enum { DTI_MAX_SCOPES = 16 };

typedef struct dti_scope {
    const char *name;
    size_t first; /* entry of `owned` at which the scope's tensors begin */
} dti_scope;

struct dt_tape {
    dt_runtime *rt;
    dti_device *device;
    struct dti_op_cache *ops; /* decisions of this rank */
    dt_status status;
    dt_moves moves;
    int n_scopes;
    dti_scope scopes[DTI_MAX_SCOPES];
    dt_tensor **owned; /* one reference each, oldest first */
    size_t n_owned;
    size_t owned_capacity;
    dt_comm_counter comm[DT_N_COMM_KINDS];
    dt_error error; /* valid if status is not DT_OK */
};

#endif
