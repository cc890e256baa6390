/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that do the work of several rows, with the bits of the rows one after the other. Which
 * calls come to them is decided where calls are held back (dtensor/device/cuda/pending.c). */
#ifndef DTI_FUSED_H
#define DTI_FUSED_H

#include "dtensor/kernels/cuda/cuda_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dti_norm_form { DTI_RMS, DTI_RMS_1P, DTI_LAYER } dti_norm_form;

/* add, then a norm of its result, both of the same floats: the sum is written too. A result may lie
 * exactly where an operand of that many elements does; weights overlap no result. */
int dti_add_norm_cuda(dti_cuda *c, const dt_kargs *add, const dt_kargs *norm, dti_norm_form form);

#ifdef __cplusplus
}
#endif
#endif
