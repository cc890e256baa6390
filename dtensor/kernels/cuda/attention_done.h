/* SPDX-License-Identifier: Apache-2.0
 *
 * What has to be found on the device around a call of cuDNN: positions lie there, and so do results
 * that are compared. */
#ifndef DTI_ATTENTION_DONE_H
#define DTI_ATTENTION_DONE_H

#include "dtensor/kernels/cuda/attention_spans.h"
#include "dtensor/kernels/cuda/cuda_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DTI_LENGTH_STRIDE = 4, /* i32 from a length to the next: tensors of cuDNN are aligned */
    DTI_TILE_BEYOND = 256  /* keys behind the last length that a tile of it may have */
};

/* Spans as dti_attention_spans() has them, alike for each of `batch` sequences. */
typedef struct dti_span_job {
    const int32_t *positions; /* [batch, n_tokens] */
    const void *k, *v;        /* rows of n_kv heads' columns, k_stride elements apart */
    int64_t batch, n_tokens, n_keys;
    int64_t k_columns, k_stride, cache_rows; /* cache_rows: from a sequence to the next */
    int dtype;
    int n_spans;
    dti_attention_span spans[DTI_MOST_SPANS];
    int32_t *lengths; /* [batch, n_spans, 2, DTI_LENGTH_STRIDE]: of queries, of keys */
    int32_t *done;    /* [batch] */
    int32_t *junk;    /* [batch]: whether there is some behind the last query */
} dti_span_job;

/* A span can be described by two lengths if, from its first query to the last of the call, each
 * stands right behind the one before, in the first n_keys rows of the cache, and if rows of k and v
 * behind the last one are finite: they may get a weight of zero, which does not silence a NaN.
 * done[b] is the first query of the first such span, n_tokens if there is none. The others, whose
 * results nobody will use, get lengths of 1. */
int dti_attention_find_done(dti_cuda *c, const dti_span_job *job);

/* How far results [batch, n_tokens, n_heads, width] lie from those of our kernel. */
typedef struct dti_span_check {
    const dti_span_job *job;
    const void *got, *want;
    int64_t n_heads;
    int width, dtype;
    float *worst; /* [n_spans], zeros before: the largest |got - want|^2 / |want|^2 of a row */
} dti_span_check;

int dti_attention_compare(dti_cuda *c, const dti_span_check *check);

#ifdef __cplusplus
}
#endif
#endif
