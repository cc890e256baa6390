/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention as a graph of cuDNN, and the plan that it makes of one. Nothing here starts anything on
 * a device, so plans for a GPU can be made where there is none.
 *
 * One sequence: n_rows queries that follow each other, over the first rows of a cache. Query i sees
 * keys up to its own position i + len_kv - len_q, the last `window` of them if window > 0. */
#ifndef DTI_ATTENTION_GRAPH_H
#define DTI_ATTENTION_GRAPH_H

#include <stdbool.h>

#include "dtensor/kernels/cuda/cudnn_calls.h"

/* What a plan depends on. Zero it before filling it in: keys are compared byte by byte. */
typedef struct dti_attention_key {
    int64_t n_rows, n_keys; /* queries; rows of the cache that it may read */
    int64_t q_stride;       /* elements from a token to the next, of q and of y */
    int64_t k_stride;       /* of k and v */
    int64_t window;         /* 0: none */
    int32_t n_heads, n_kv, width;
    int32_t is_bf16; /* else f16 */
} dti_attention_key;

/* The tensors of the graph, as an execution names them. Lengths are one i32 each, on the device;
 * the last four are numbers of the host, which the execution reads when it is started. */
typedef enum dti_attention_id {
    DTI_GRAPH_Q = 1,
    DTI_GRAPH_K,
    DTI_GRAPH_V,
    DTI_GRAPH_Y,
    DTI_GRAPH_LEN_Q,
    DTI_GRAPH_LEN_KV,
    DTI_GRAPH_SCALE,    /* f32 */
    DTI_GRAPH_MINUS,    /* f32: minus infinity */
    DTI_GRAPH_WINDOW,   /* i32; only with a window */
    DTI_GRAPH_FIRST_OWN /* of those that nobody sees */
} dti_attention_id;

typedef struct dti_attention_graph {
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
    bool has_window;        /* an execution names DTI_GRAPH_WINDOW */
    int n_nodes, n_configs; /* of the graph; ways to compute it that cuDNN had */
} dti_attention_graph;

/* A plan for a device: `json` has its properties, or is NULL, then it is device number `device`.
 * 0, or -1 with the reason: cuDNN cannot compute it so that it repeats bit for bit, or failed. */
int dti_attention_graph_make(const dti_cudnn_calls *d, const dti_attention_key *key, int device,
                             const char *json, dti_attention_graph *out,
                             char why[DTI_CUDNN_TEXT_BYTES]);
void dti_attention_graph_free(const dti_cudnn_calls *d, dti_attention_graph *graph);

#endif
