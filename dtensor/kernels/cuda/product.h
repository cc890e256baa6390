/* SPDX-License-Identifier: Apache-2.0
 *
 * Products on the device: which kernel computes one, and rows that are grouped by expert. */
#ifndef DTI_PRODUCT_H
#define DTI_PRODUCT_H

#include "dtensor/kernels/cuda/cuda_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows that a warp's tile of mma.sync takes at once: up to so many, weights are read once at the
 * speed of memory; beyond, products are bound by arithmetic. */
enum { DTI_SKINNY_MAX = 8 };

enum { DTI_PLAIN_ROWS = 64 }; /* of a tile of gemm_plain.cu */

typedef struct dti_row_tile {
    int32_t group, row, n_rows, pad;
} dti_row_tile;

/* Rows of y by group, as a kernel has sorted them on the device. Group e has matrix e of w [groups,
 * n, k]. All zeros: one group of all rows. */
typedef struct dti_row_groups {
    const dti_row_tile *tiles; /* of rows of one group; in experts.cu */
    const int32_t *n_tiles;
    int32_t max_tiles;    /* that there can be */
    int32_t n_slots;      /* row r of y has row slots[r] / n_slots of x; */
    const int32_t *slots; /* NULL: row r */
} dti_row_groups;

/* A product as kernels get it: by value. */
typedef struct dti_product_job {
    const void *x, *w, *bias; /* bias: or NULL */
    void *y;
    int64_t m, n, k;
    bool f32_out; /* else y is of x's type */
    dti_row_groups groups;
} dti_product_job;

/* Whether skinny.cu takes a product without groups: one of up to DTI_SKINNY_MAX rows, or of twice
 * as many if rows of 16-bit types are aligned. */
bool dti_is_skinny(int dtype, const dti_product_job *p);

/* Of as few rows, or of tiles of up to DTI_SKINNY_MAX (skinny.cu); of any number, or of tiles of
 * DTI_PLAIN_ROWS (gemm_plain.cu). dtype is x's, w's and bias's. Groups are read on the device. */
int dti_cuda_skinny(dti_cuda *c, int dtype, const dti_product_job *p);
int dti_cuda_gemm_plain(dti_cuda *c, int dtype, const dti_product_job *p);

/* A product by cuBLASLt (gemm_lt.c): 1; 0: it has no way to do it, and nothing was started; -1. */
int dti_gemm_lt(dti_cuda *c, const dti_cuda_product *p);

/* A product whose operands lie turned, in tiles: an element is one chain along k (matmul.cu). */
int dti_cuda_matmul_plain(dti_cuda *c, const dti_cuda_product *p);

/* Rows of the last axis: the product of all axes before it. */
static inline int64_t dti_product_rows(const dt_local *x)
{
    int64_t n = 1;

    for (int a = 0; a < x->n_axes - 1; a++) n *= x->shape[a];
    return n;
}

/* Whether 16 bytes can be read at a time from each row of `data`. */
static inline bool dti_rows_aligned(const void *data, int64_t row_bytes)
{
    return (uintptr_t)data % 16 == 0 && row_bytes % 16 == 0;
}

/* dt_kargs */
int dti_linear_cuda(dti_cuda *c, const dt_kargs *a);
int dti_linear_bias_cuda(dti_cuda *c, const dt_kargs *a);
int dti_linear_backward_x_cuda(dti_cuda *c, const dt_kargs *a);
int dti_linear_backward_w_cuda(dti_cuda *c, const dt_kargs *a);
int dti_experts_cuda(dti_cuda *c, const dt_kargs *a);

#ifdef __cplusplus
}
#endif
#endif
