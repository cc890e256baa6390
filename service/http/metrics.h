/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures of a model's requests, for /metrics. Atomics: whoever reads them stops nobody. */
#ifndef DTI_HTTP_METRICS_H
#define DTI_HTTP_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { DTI_N_BUCKETS = 16 };

/* Times in seconds, counted by the bounds of metrics.c. */
typedef struct dti_histogram {
    _Atomic int64_t buckets[DTI_N_BUCKETS + 1]; /* the last: above all bounds */
    _Atomic int64_t sum_us;
} dti_histogram;

typedef struct dti_http_metrics {
    _Atomic int64_t answered, refused, failed, gone; /* requests by how they ended */
    _Atomic int64_t prompt_tokens, new_tokens;
    dti_histogram first_token, per_token, whole;
} dti_http_metrics;

void dti_histogram_add(dti_histogram *h, double seconds);

struct dti_exchange;

/* Answers GET /metrics, in Prometheus' text format. */
void dti_metrics_answer(struct dti_exchange *x);

#endif
