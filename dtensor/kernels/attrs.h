/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes of operators: constants of a call that are not tensors. All are plain values without
 * padding surprises (zero-initialise them), because the decision cache compares their bytes. */
#ifndef DTI_ATTRS_H
#define DTI_ATTRS_H

#include <dtensor/base.h>

typedef struct dti_norm_attr {
    float eps;
} dti_norm_attr;

/* Output dtype of linear, add_bias, cast, rope_table. */
typedef struct dti_dtype_attr {
    dt_dtype dtype;
} dti_dtype_attr;

typedef struct dti_rope_table_attr {
    dt_dtype dtype; /* of the table: the model's dtype */
    float factor;   /* attention factor on cos and sin, 1 for most */
} dti_rope_table_attr;

typedef struct dti_heads_attr {
    int64_t head_dim;
} dti_heads_attr;

typedef struct dti_attention_attr {
    int64_t n_heads;    /* global query heads */
    int64_t n_kv_heads; /* global kv heads; divides n_heads */
    int64_t window;     /* keys visible including self; 0: all */
    float scale;        /* on q k^T */
} dti_attention_attr;

typedef struct dti_slice_attr {
    int64_t axis;
    int64_t begin; /* negative counts from the end */
    int64_t count;
} dti_slice_attr;

/* The same of a packed axis: whole blocks, rows begin .. begin + count - 1 of the global axis. In
 * this rank's piece they begin at local_begin. */
typedef struct dti_blocks_attr {
    int64_t axis;
    int64_t begin;
    int64_t count;
    int64_t local_begin;
} dti_blocks_attr;

typedef struct dti_route_attr {
    int64_t k;         /* experts per token (route_ids) */
    int64_t normalise; /* 1: weights of the chosen experts add up to 1 (route_weights) */
} dti_route_attr;

typedef struct dti_top_k_attr {
    int64_t k;
    int64_t pieces; /* top_k_keys: into how many the mesh cuts the axis */
} dti_top_k_attr;

typedef struct dti_experts_attr {
    int64_t n_experts; /* of all ranks together */
} dti_experts_attr;

/* sum, max, min: begins with the dtype of the result. */
typedef struct dti_reduce_attr {
    dt_dtype dtype;
    int32_t axis; /* -1: all */
} dti_reduce_attr;

typedef struct dti_scalar_attr {
    double value;
} dti_scalar_attr;

#endif
