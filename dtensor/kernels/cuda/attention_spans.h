/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queries of a call cuDNN takes, and when a plan for them pays. Arithmetic alone.
 *
 * A plan is for one number of queries and costs half a second, so queries are cut into spans of a
 * power of two: from the last one backwards, the largest that fits first. What is left at the
 * front, where causal rows see least, is our kernel's. So queries are neither copied nor padded,
 * and texts of any length need few plans. */
#ifndef DTI_ATTENTION_SPANS_H
#define DTI_ATTENTION_SPANS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The simulated device is slow, so its tests make smaller ones. */
#ifndef DTI_SPAN_LEAST
#define DTI_SPAN_LEAST 512
#endif

enum { DTI_SPAN_MOST = 16384, DTI_MOST_SPANS = 32 };

#define DTI_CUDNN_PLAN_NS 5e8 /* what a plan costs */

typedef struct dti_attention_span {
    int64_t begin, n_rows; /* queries begin .. begin + n_rows - 1 */
} dti_attention_span;

/* The spans of n_tokens queries, the last ones first; how many. */
int dti_attention_spans(int64_t n_tokens, dti_attention_span spans[DTI_MOST_SPANS]);

/* The rows of a cache of n_keys that a plan for n_tokens queries is made with: n_keys rounded down
 * to one of eight steps an octave, so that caches of many sizes share plans; n_keys itself where
 * that would be too few. Never more, because cuDNN may read that far. */
int64_t dti_attention_plan_keys(int64_t n_keys, int64_t n_tokens);

/* What cuDNN saves in a span, in ns: its products at 500 TFLOP/s instead of our kernel's 250, less
 * the start of one more kernel. The span is thought to stand in a text that begins with the call,
 * since where it really stands is known to the device alone; so it is rather too little. */
double dti_attention_gain_ns(const dti_attention_span *span, int64_t window, int64_t n_heads,
                             int64_t width);

#ifdef __cplusplus
}
#endif
#endif
