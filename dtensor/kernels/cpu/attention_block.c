/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of queries that share tiles of keys: which keys their rows see, on the way forward and on
 * the way back. */
#include "dtensor/kernels/cpu/attention.h"

enum { R = DTI_TILE_ROWS };

int64_t dti_attention_row(const dti_attention_block *block, int64_t i, int64_t at[3])
{
    const dti_attention *a = block->a;

    at[0] = block->b;
    at[1] = block->first_head + i % block->n_heads;
    at[2] = block->first_query + i / block->n_heads;
    return (block->b * a->n_tokens + at[2]) * a->n_heads + at[1];
}

/* The first row from `begin` on whose segment is not below `segment`. */
static int64_t segment_begin(const int32_t *segments, int64_t begin, int64_t end, int64_t segment)
{
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (segments[middle] < segment)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

void dti_attention_range(const dti_attention *a, int64_t b, int64_t t, int64_t *first,
                         int64_t *last)
{
    const int32_t position = a->positions[b * a->n_tokens + t];

    *first = dti_attention_first(a, position);
    *last = dti_attention_last(a, position);
    if (a->segments != NULL) {
        const int32_t *segments = a->segments + b * a->n_rows;
        const int64_t own = segments[position];
        const int64_t begin = segment_begin(segments, 0, position, own);
        const int64_t end = segment_begin(segments, position, a->n_rows, own + 1);
        *first = begin > *first ? begin : *first;
        *last = end - 1 < *last ? end - 1 : *last;
    }
}

void dti_attention_see(const dti_attention_block *block)
{
    int64_t first = 0, last = -1;

    for (int64_t i = 0; i < dti_padded(block->n_rows); i++) {
        if (i >= block->n_rows)
            last = -1;
        else if (i % block->n_heads == 0)
            dti_attention_range(block->a, block->b, block->first_query + i / block->n_heads, &first,
                                &last);
        block->first[i] = (int32_t)first;
        block->last[i] = (int32_t)last;
    }
}

bool dti_attention_columns(const dti_attention_block *block, int64_t key, int64_t n, int64_t *begin,
                           int64_t *end, bool *masked)
{
    int64_t first = R, last = 0;

    *masked = false;
    for (int64_t i = 0; i < block->n_rows; i++) {
        if (block->last[i] < key || block->first[i] >= key + n) continue;
        if (first == R) first = i;
        last = i + 1;
    }
    *begin = first / DTI_PAD * DTI_PAD;
    *end = dti_padded(last);
    for (int64_t i = *begin; i < *end; i++)
        *masked |= block->first[i] > key || block->last[i] < key + n - 1;
    return first < last;
}

void dti_attention_drop(const dti_attention_block *block, float *weights, int64_t step, int64_t i,
                        int64_t key, int64_t n)
{
    const dti_attention *a = block->a;
    const dti_random_fill uniform = {
        .kind = DTI_RANDOM_UNIFORM, .dtype = DT_F32, .key = a->key, .scale = 1.0
    };
    float u[DTI_TILE_KEYS];
    int64_t at[3];

    (void)dti_attention_row(block, i, at);
    const int64_t head = (a->b_offset + at[0]) * a->all_heads + a->q_offset + at[1];
    a->cpu->random(&uniform, u, (head * a->n_tokens + at[2]) * a->n_rows + key, n);
    for (int64_t j = 0; j < n; j++) weights[j * step] *= u[j] < a->dropout ? 0.0f : a->kept;
}
