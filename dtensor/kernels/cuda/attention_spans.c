/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cuda/attention_spans.h"

enum { STEPS_PER_OCTAVE = 8, LEAST_STEP = 64 };

#define START_NS          5e3
#define SAVED_NS_PER_FLOP (1e9 / 250e12 - 1e9 / 500e12)
#define FLOPS_PER_PRODUCT 4 /* of q and k, of a weight and v: a product and a sum each */

static int64_t power_of_two_below(int64_t n)
{
    int64_t power = 1;

    while (2 * power <= n) power *= 2;
    return power;
}

int dti_attention_spans(int64_t n_tokens, dti_attention_span spans[DTI_MOST_SPANS])
{
    int n = 0;

    while (n_tokens >= DTI_SPAN_LEAST && n < DTI_MOST_SPANS) {
        const int64_t rows =
            power_of_two_below(n_tokens < DTI_SPAN_MOST ? n_tokens : DTI_SPAN_MOST);
        n_tokens -= rows;
        spans[n++] = (dti_attention_span){ .begin = n_tokens, .n_rows = rows };
    }
    return n;
}

int64_t dti_attention_plan_keys(int64_t n_keys, int64_t n_tokens)
{
    const int64_t even = power_of_two_below(n_keys) / STEPS_PER_OCTAVE;
    const int64_t step = even < LEAST_STEP ? LEAST_STEP : even, down = n_keys / step * step;

    return down >= n_tokens ? down : n_keys;
}

double dti_attention_gain_ns(const dti_attention_span *span, int64_t window, int64_t n_heads,
                             int64_t width)
{
    const double n = (double)span->n_rows, begin = (double)span->begin;
    double growing = n, pairs, gain; /* rows that do not fill the window yet */

    if (window > 0 && begin + n > (double)window)
        growing = (double)window > begin ? (double)window - begin : 0.0;
    pairs = growing * begin + growing * (growing + 1.0) / 2.0 + (n - growing) * (double)window;
    gain =
        FLOPS_PER_PRODUCT * pairs * (double)n_heads * (double)width * SAVED_NS_PER_FLOP - START_NS;
    return gain > 0.0 ? gain : 0.0;
}
