/* SPDX-License-Identifier: Apache-2.0
 *
 * What went wrong, in words: the last failure of each thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/device/cuda/module_parts.h"

static _Thread_local char text[DTI_CUDA_TEXT_BYTES];

const char *dti_cuda_why(void)
{
    return text;
}

int dti_cuda_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return -1;
}

int dti_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return 0;
    (void)cudaGetLastError(); /* said here, so the next launch need not */
    return dti_cuda_fail("%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

int dti_cuda_launched(const char *kernel)
{
    const cudaError_t error = cudaGetLastError();

    if (error == cudaSuccess) return 0;
    return dti_cuda_fail("launch of %s: %s (%s)", kernel, cudaGetErrorName(error),
                         cudaGetErrorString(error));
}
