/* SPDX-License-Identifier: Apache-2.0
 *
 * What a mixture of experts and its gradients share: tokens gathered by expert, and products with
 * the weights of one. */
#ifndef DTI_EXPERTS_H
#define DTI_EXPERTS_H

#include "dtensor/kernels/cpu/cpu_internal.h"

/* The slots of this rank's experts, in the order of experts and tokens. Others are left out. */
typedef struct dti_slots {
    const int32_t *ids; /* [n_tokens, n_slots], of all ranks' experts */
    int64_t n_tokens, n_slots;
    int64_t first, n_experts; /* this rank's */
    int64_t most;             /* tokens of the expert that has the most of them */
    int64_t *begin;           /* [n_experts + 2]: where an expert's slots begin in `order` */
    int32_t *order;           /* token * n_slots + slot, by expert */
} dti_slots;

/* Checks ids, which are contents of a tensor, so that no rule saw them. gate_up: of this rank;
 * n_experts: of all. */
dt_status dti_slots_open(dti_slots *s, dti_cpu *cpu, const dt_local *ids, const dt_local *gate_up,
                         int64_t n_experts) DT_MUST_USE;

/* Sorts, in memory of so many bytes. */
size_t dti_slots_bytes(const dti_slots *s);
void dti_slots_sort(dti_slots *s, void *memory);

/* Of n columns what clamped experts make of gate and up, which lie by turns, and of their biases;
 * all of `dtype`. */
void dti_clamp_row(const dti_experts_clamped_attr *clamp, dt_dtype dtype, const void *gate_up,
                   const void *bias, int64_t n, void *y);

static inline size_t dti_scratch_size(int64_t bytes)
{
    return ((size_t)bytes + 63) / 64 * 64;
}

/* Takes dti_scratch_size(bytes) from *at. */
static inline void *dti_scratch_take(char **at, int64_t bytes)
{
    void *taken = *at;

    *at += dti_scratch_size(bytes);
    return taken;
}

static inline dt_local dti_matrix(const void *data, dt_dtype dtype, int64_t rows, int64_t columns)
{
    return (dt_local){
        .data = (void *)(uintptr_t)data, .dtype = dtype, .n_axes = 2, .shape = { rows, columns }
    };
}

/* The matrix of expert e in weights [e, rows, columns]. */
static inline dt_local dti_expert_matrix(const dt_local *weights, int64_t e)
{
    const int64_t rows = weights->shape[1], columns = weights->shape[2];

    return dti_matrix((const char *)weights->data +
                          e * rows * columns * (int64_t)dt_dtype_size(weights->dtype),
                      weights->dtype, rows, columns);
}

#endif
