/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel is handed (dt_kargs, dt_local are public: users write kernels too). It only
 * computes: it never allocates except scratch, never communicates, never logs. */
#ifndef DTI_KERNEL_H
#define DTI_KERNEL_H

#include <dtensor/ops.h>

#include "base/error.h"
#include "base/pool.h"

/* State of the CPU kernels of one rank (dtensor/kernels/cpu/cpu.h). */
typedef struct dti_cpu dti_cpu;

static inline int64_t dti_local_count(const dt_local *x)
{
    int64_t n = 1;

    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    return n;
}

/* Rows of the last axis: the product of all axes before it. */
static inline int64_t dti_rows(const dt_local *x)
{
    int64_t n = 1;

    for (int a = 0; a < x->n_axes - 1; a++) n *= x->shape[a];
    return n;
}

#endif
