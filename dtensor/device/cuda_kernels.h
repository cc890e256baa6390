/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels that a module for CUDA brings along, behind dti_cuda_module.kernels. */
#ifndef DTI_CUDA_KERNELS_H
#define DTI_CUDA_KERNELS_H

#include "base/cuda_api.h"
#include "dtensor/kernels/fused.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dti_random_fill; /* dtensor/kernels/random_fill.h */

typedef int (*dti_cuda_kernel)(dti_cuda *c, const dt_kargs *args);
typedef int (*dti_cuda_fused)(dti_cuda *c, const dti_fused_chain *chains, int n);

/* A row of the operator table that has a kernel. args hold device pointers; what a kernel finds in
 * the contents of tensors (a position outside the cache) is reported by sync(). */
typedef struct dti_cuda_row {
    const char *name; /* as in dtensor/ops/table.c */
    dti_cuda_kernel run;
} dti_cuda_row;

typedef struct dti_cuda_kernels {
    const dti_cuda_row *rows; /* [n_rows] */
    int n_rows;
    dti_cuda_fused fused[DTI_N_FUSED];
    /* Random values by global element index, with the bits of dtensor/kernels/random.h: local
     * row-major element i of the extents of `global` is element offset + strides . i of it. */
    int (*fill_random)(dti_cuda *c, void *to, const dti_cuda_box *global,
                       const struct dti_random_fill *how);
} dti_cuda_kernels;

#ifdef __cplusplus
}
#endif
#endif
