/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes of operators: constants of a call that are not tensors. All are plain values without
 * padding surprises (zero-initialise them), because the decision cache compares their bytes. */
#ifndef DTI_ATTRS_H
#define DTI_ATTRS_H

#include <dtensor/ops.h>

typedef struct dti_norm_attr {
    float eps;
} dti_norm_attr;

/* Gradients of norms: which results are computed, bit r. Others keep what their memory held. */
typedef struct dti_norm_backward_attr {
    float eps;
    uint32_t want;
} dti_norm_backward_attr;

/* cross_entropy and what belongs to it. */
typedef struct dti_cross_entropy_attr {
    int64_t vocabulary, ignore_index; /* the vocabulary of all ranks together */
    double label_smoothing, z_loss;
} dti_cross_entropy_attr;

typedef struct dti_count_attr {
    int64_t ignore_index;
} dti_count_attr;

/* embedding and its gradient: the id whose row takes no gradient; -1: none. */
typedef struct dti_embedding_attr {
    int64_t padding;
} dti_embedding_attr;

/* Output dtype of linear, add_bias, cast, rope_table. */
typedef struct dti_dtype_attr {
    dt_dtype dtype;
} dti_dtype_attr;

/* linear_packed: codes of 4 or 8 bits, and how many inputs have a scale in common. */
typedef struct dti_packed_attr {
    dt_dtype dtype; /* of the result */
    int32_t bits;
    int64_t group;
} dti_packed_attr;

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
    float soft_cap;     /* scores become cap tanh(score / cap); 0: they stay */
    uint32_t flags;
    uint32_t pad;
} dti_attention_attr;

/* The same of a row that is trained: weight (b, h, t, j) of the global [B, H, T, S] is dropped as
 * the element of that index of dti_dropout_attr is. */
typedef struct dti_attention_train_attr {
    dti_attention_attr of;
    uint64_t seed, stream; /* values, as what follows them */
    double dropout;
} dti_attention_train_attr;

/* Operands that follow positions: a bias, sinks and segments in that order; which axes of the bias
 * have one element; keys behind a query are seen too. */
enum {
    DTI_ATTENTION_BIAS = 1,
    DTI_ATTENTION_SINKS = 2,
    DTI_ATTENTION_BOTH_WAYS = 4,
    DTI_ATTENTION_ONE_BATCH = 8,
    DTI_ATTENTION_ONE_HEAD = 16,
    DTI_ATTENTION_ONE_TOKEN = 32,
    DTI_ATTENTION_SEGMENTS = 64
};

/* What scores are raised to, so that a row of which nothing is seen has finite ones. */
#define DTI_ATTENTION_LOWEST (-1e30f)

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

enum { DTI_ROUTE_GROUPS = 32 }; /* of experts, at most */

typedef struct dti_route_attr {
    int64_t k;         /* experts per token (route_ids) */
    int64_t normalise; /* 1: weights of the chosen experts add up to 1 (route_weights), or to */
    float scale;       /* that they are multiplied by; 0: 1 */
    int32_t scores;    /* dt_route_scores */
    int32_t n_groups, n_chosen_groups; /* as in dt_routing (route_ids) */
} dti_route_attr;

typedef struct dti_top_k_attr {
    int64_t k;
    int64_t pieces; /* top_k_keys: into how many the mesh cuts the axis */
} dti_top_k_attr;

typedef struct dti_experts_attr {
    int64_t n_experts; /* of all ranks together */
} dti_experts_attr;

/* Begins as the one before. */
typedef struct dti_experts_clamped_attr {
    int64_t n_experts;
    float limit, alpha; /* as in dt_clamp */
} dti_experts_clamped_attr;

/* experts_packed: of gate and up, and of down, as dti_packed_attr. */
typedef struct dti_experts_packed_attr {
    int64_t n_experts; /* of all ranks together */
    int32_t bits[2];
    int64_t group[2];
} dti_experts_packed_attr;

/* Gradients of experts: which results are computed, bit r. Others keep what their memory held. */
typedef struct dti_experts_backward_attr {
    int64_t n_experts; /* of all ranks together */
    int64_t want;
} dti_experts_backward_attr;

/* Begins as the one before. */
typedef struct dti_experts_clamped_backward_attr {
    int64_t n_experts;
    int64_t want;
    float limit, alpha; /* as in dt_clamp */
} dti_experts_clamped_backward_attr;

/* sum, max, min: begins with the dtype of the result. */
typedef struct dti_reduce_attr {
    dt_dtype dtype;
    int32_t axis; /* -1: all */
} dti_reduce_attr;

typedef struct dti_scalar_attr {
    double value;
} dti_scalar_attr;

typedef struct dti_compare_attr {
    dt_relation relation;
    int32_t pad;
} dti_compare_attr;

/* softmax, log_softmax, cumsum, index_select and their gradients */
typedef struct dti_axis_attr {
    int64_t axis;
} dti_axis_attr;

/* The gradient of index_select: how long the axis was that was selected from. */
typedef struct dti_select_backward_attr {
    int64_t axis;
    int64_t extent;
} dti_select_backward_attr;

/* Row-major products of matrices, either of which may lie transposed. */
typedef struct dti_matmul_attr {
    dt_dtype dtype; /* of the result */
    int32_t transposed_a, transposed_b;
    int32_t pad;
} dti_matmul_attr;

/* Axis a of the result is axis[a] of the operand. */
typedef struct dti_permute_attr {
    int8_t axis[DT_MAX_AXES];
} dti_permute_attr;

/* How a view changes axes, one step: see dt_reshape(). */
typedef enum dti_view_step {
    DTI_VIEW_MERGE,  /* `axis` and the next one, which has `inner` elements, become one */
    DTI_VIEW_SPLIT,  /* `axis` becomes two, of which the second has `inner` elements */
    DTI_VIEW_INSERT, /* an axis of one element before `axis` */
    DTI_VIEW_DROP    /* `axis`, which has one element, goes */
} dti_view_step;

typedef struct dti_view_attr {
    int32_t step, axis;
    int64_t outer, inner; /* the two extents, of merge and split */
} dti_view_attr;

enum { DTI_CONCAT_MAX = 6 }; /* operands of a row that joins them */

/* extent: of operands along the axis; all zeros where it is not cut. */
typedef struct dti_concat_attr {
    int32_t axis;
    int32_t extent[DTI_CONCAT_MAX];
    int32_t pad;
} dti_concat_attr;

/* bits: the new elements, in the operand's dtype; extent: of the operand along the axis, 0 where it
 * is not cut. */
typedef struct dti_pad_attr {
    int32_t axis, pad;
    uint64_t bits;
    int64_t before, after, extent;
} dti_pad_attr;

/* The element of global index i, row-major in `shape`, is dropped if uniform number i of (seed,
 * stream) is below p. */
typedef struct dti_dropout_attr {
    uint64_t seed, stream;
    double p;
    int64_t shape[DT_MAX_AXES];
} dti_dropout_attr;

#endif
