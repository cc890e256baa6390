/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that treat heads one by one, gathered for one kernel (dti_heads_cuda): norms of queries and
 * keys, their rotations, rows written to a cache. A chain is what happens to a tensor of heads. */
#ifndef DTI_CUDA_HEAD_GROUP_H
#define DTI_CUDA_HEAD_GROUP_H

#include "dtensor/device/cuda/spans.h"
#include "dtensor/kernels/cuda/fused.h"

typedef struct dti_head_group {
    int n;
    dti_head_chain chains[DTI_MAX_HEAD_CHAINS];
    dti_spans spans;
} dti_head_group;

/* Whether the call goes with those that are there, and if so takes it. Operands are floats that are
 * there. `form`: DTI_RMS or DTI_RMS_1P. */
bool dti_head_group_norm(dti_head_group *g, const dt_kargs *a, dti_norm_form form);
bool dti_head_group_rope(dti_head_group *g, const dt_kargs *a);
bool dti_head_group_write(dti_head_group *g, const dt_kargs *a);

#endif
