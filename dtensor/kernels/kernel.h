/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel is handed. Shapes, dtypes and placements were checked before it is called: it only
 * computes. It never allocates except scratch, never communicates, never logs. */
#ifndef DTI_KERNEL_H
#define DTI_KERNEL_H

#include <dtensor/placements.h>

#include "base/error.h"
#include "base/pool.h"

/* This rank's piece of a tensor: contiguous, row-major. offset[a] is where the piece starts on
 * global axis a, so that a kernel can tell global heads, rows or vocabulary ids. */
typedef struct dt_local {
    void *data;
    dt_dtype dtype;
    int n_axes;
    int64_t shape[DT_MAX_AXES];
    int64_t offset[DT_MAX_AXES];
} dt_local;

/* State of the CPU kernels of one rank (dtensor/kernels/cpu/cpu.h). */
typedef struct dti_cpu dti_cpu;

typedef struct dt_kargs {
    const dt_local *in;
    dt_local *out;
    const void *attr; /* the operator's attributes, see attrs.h */
    dti_cpu *cpu;
    int n_in;
    int n_out;
} dt_kargs;

typedef dt_status (*dt_kernel)(const dt_kargs *args);

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
