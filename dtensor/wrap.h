/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors over memory that is somebody else's: what dt_wrap_local() and dt_from_dlpack() share. */
#ifndef DTI_WRAP_H
#define DTI_WRAP_H

#include <dtensor/tensor.h>

#include "base/error.h"
#include "dtensor/device/device_memory.h"

/* Can bytes of the host's memory be those of x's piece? */
dt_status dti_check_lent(const dt_tensor *x, const void *data) DT_MUST_USE;

/* Gives x that memory. The lender has it back also when this fails. */
dt_status dti_tensor_lend(dt_tensor *x, void *data, dti_lender lender) DT_MUST_USE;

#endif
