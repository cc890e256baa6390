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

/* What happens to heads x [B, T, H, E] on their way into attention, in this order; what is NULL
 * does not happen, and something does:
 *   weight [E]             rms_norm or rms_norm_1p of each head -> normed
 *   table [B, T, 2 half]   rope -> rotated
 *   positions [B, T] i32   kv_write -> rows of cache [B, n_rows, H, E]
 * All of one dtype. A result may lie exactly where x or an earlier result of the chain does. */
typedef struct dti_head_chain {
    dt_local x;
    const void *weight, *table, *positions;
    void *normed, *rotated, *cache;
    int64_t half, n_rows;
    float eps;
    dti_norm_form form;
} dti_head_chain;

enum {
    DTI_MAX_HEAD_CHAINS = 3,  /* queries, keys, values */
    DTI_MAX_HEAD_BYTES = 1024 /* of a head: what a warp keeps in registers */
};

/* n chains that touch nothing of each other's but what all of them read. */
int dti_heads_cuda(dti_cuda *c, const dti_head_chain *chains, int n);

#ifdef __cplusplus
}
#endif
#endif
