/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that do the work of several rows, with the bits of the rows one after the other. Which
 * calls come to them is decided where calls are held back (dtensor/ops/fusion.c). C11 and C++14. */
#ifndef DTI_FUSED_H
#define DTI_FUSED_H

#include <dtensor/op_rows.h>

typedef enum dti_fused {
    DTI_FUSED_ADD_NORM, /* a sum and the norm of it */
    DTI_FUSED_HEADS,    /* heads on their way into attention: queries, keys, values */
    DTI_N_FUSED
} dti_fused;

enum {
    DTI_FUSED_CHAINS = 3, /* side by side */
    DTI_FUSED_STAGES = 3,

    DTI_ADD_STAGE = 0, /* of DTI_FUSED_ADD_NORM, one chain */
    DTI_ADD_NORM_STAGE = 1,

    DTI_HEADS_NORM_STAGE = 0, /* of DTI_FUSED_HEADS */
    DTI_HEADS_ROPE_STAGE = 1,
    DTI_HEADS_WRITE_STAGE = 2,
    DTI_FUSED_HEAD_BYTES = 1024 /* of a head at most: what a warp keeps in registers */
};

/* Which norm a stage does. */
typedef enum dti_norm_form { DTI_RMS, DTI_RMS_ONCE, DTI_RMS_1P, DTI_LAYER } dti_norm_form;

/* What happens to one tensor: calls by stage, each with the result of the one before as its first
 * operand. All results are written. A result may lie exactly where an operand or an earlier result
 * of its chain does; otherwise nothing that is written overlaps anything else of the group, and
 * chains share only what all of them read. All floats are of one dtype.
 *
 *   DTI_FUSED_ADD_NORM  add of tensors as large as the sum; a norm of any form
 *   DTI_FUSED_HEADS     of heads x [B, T, H, E], one stage or more: an RMS norm of each head; rope;
 *                       kv_write */
typedef struct dti_fused_chain {
    const dt_kargs *call[DTI_FUSED_STAGES]; /* NULL: does not happen */
    int form[DTI_FUSED_STAGES];             /* dti_norm_form, of a norm */
} dti_fused_chain;

#endif
