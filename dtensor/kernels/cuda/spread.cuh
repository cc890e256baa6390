/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the operands' elements lie that belong to one of the result (dtensor/kernels/spread.h). */
#ifndef DTI_SPREAD_CUH
#define DTI_SPREAD_CUH

#include "dtensor/kernels/cuda/device.cuh"
#include "dtensor/kernels/spread.h"

/* at[o] = the element of operand o for element i of the result. */
static __device__ inline void dti_spread_at(const dti_spread &s, int64_t i,
                                            int64_t (&at)[DTI_SPREAD_MAX_IN])
{
    DTI_UNROLL
    for (int o = 0; o < DTI_SPREAD_MAX_IN; o++) at[o] = 0;
    for (int axis = s.n_axes - 1; axis >= 0; axis--) {
        const int64_t index = i % s.extent[axis];
        DTI_UNROLL
        for (int o = 0; o < DTI_SPREAD_MAX_IN; o++) at[o] += index * s.step[o][axis];
        i /= s.extent[axis];
    }
}

/* dti_spread_of(), steps of operands that are not there being 0. */
static inline dti_spread dti_spread_all(const dt_kargs *a)
{
    dti_spread s;

    dti_spread_of(a, &s);
    for (int o = a->n_in; o < DTI_SPREAD_MAX_IN; o++)
        for (int axis = 0; axis < s.n_axes; axis++) s.step[o][axis] = 0;
    return s;
}

#endif
