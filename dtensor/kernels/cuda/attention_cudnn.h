/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of many queries by cuDNN, where it is asked for (docs/cuda.md). What it does
 * not take is left to our kernels, and counted. */
#ifndef DTI_ATTENTION_CUDNN_H
#define DTI_ATTENTION_CUDNN_H

#include "dtensor/kernels/cuda/cuda_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* B batch, T tokens, H query heads, S rows of the cache, e columns, all of this rank. 16 bits;
 * pointers and rows are multiples of 16 bytes. */
typedef struct dti_cudnn_attention {
    const void *q, *k, *v; /* [B, T, H, e], [B, S, k_stride]: k and v of the first kv head read */
    void *y;               /* [B, T, H, e] */
    const int32_t *positions;               /* [B, T] */
    int64_t batch, n_tokens, n_heads, n_kv; /* n_kv: heads that are read */
    int64_t n_keys, k_stride, window;
    int width, dtype;
    float scale;
} dti_cudnn_attention;

/* What was started. */
typedef struct dti_cudnn_start {
    const int32_t *done; /* [B] on the device: of sequence b, queries from done[b] on; NULL: none */
    void *check; /* our kernel's y is wanted here, for dti_attention_cudnn_check(); or NULL */
    size_t kept; /* first bytes of the scratch memory, which both lie in */
} dti_cudnn_start;

#ifdef DTI_WITH_CUDNN

/* As the slot of the module's table (base/cuda_api.h); c->cudnn stays NULL if it is off. */
int dti_cudnn_ask(dti_cuda *c, const char *how);
void dti_cudnn_close(dti_cuda *c);
bool dti_cudnn_use_read(const dti_cuda *c, dti_cuda_cudnn_use *out);

/* Starts what cuDNN takes of a call. 0, or -1: the device failed. */
int dti_attention_cudnn(dti_cuda *c, const dti_cudnn_attention *a, dti_cudnn_start *out);

/* Waits for the last start, and compares its results with start->check. Plans whose results differ
 * are dropped, and *same is false: y has to be computed anew. */
int dti_attention_cudnn_check(dti_cuda *c, const dti_cudnn_start *start, bool *same);

#else

static inline int dti_cudnn_ask(dti_cuda *c, const char *how)
{
    (void)c;
    return dti_cuda_fail(
        "cuDNN is asked for (\"%s\"), but this build found no cudnn_graph.h of 9.10 "
        "or newer: configure it with CUDNN_ROOT",
        how);
}

static inline void dti_cudnn_close(dti_cuda *c)
{
    (void)c;
}

static inline bool dti_cudnn_use_read(const dti_cuda *c, dti_cuda_cudnn_use *out)
{
    (void)c;
    (void)out;
    return false;
}

#endif

#ifdef __cplusplus
}
#endif
#endif
