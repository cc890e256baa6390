/* SPDX-License-Identifier: Apache-2.0
 *
 * Versions of the libraries that this module was built with and has found. */
#include "dtensor/device/cuda/module_parts.h"

#ifdef DTI_WITH_CUBLASLT
#include <cublasLt.h>
#endif
#ifdef DTI_WITH_NCCL
#include <nccl.h>
#endif

void dti_cuda_libraries_read(dti_cuda_versions *out)
{
    (void)out;
#ifdef DTI_WITH_CUBLASLT
    out->cublas_lt = (int)cublasLtGetVersion();
#endif
#ifdef DTI_WITH_NCCL
    out->nccl_built = NCCL_VERSION_CODE;
    if (ncclGetVersion(&out->nccl_loaded) != ncclSuccess) out->nccl_loaded = 0;
#endif
}
