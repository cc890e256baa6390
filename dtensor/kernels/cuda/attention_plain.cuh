/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention in f32 shares, forward and backward: rows in shared memory, `pitch` float4 apart
 * (an odd number, for the banks), and what a score becomes before the softmax. */
#ifndef DTI_ATTENTION_PLAIN_CUH
#define DTI_ATTENTION_PLAIN_CUH

#include "dtensor/kernels/cuda/attention.cuh"
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/random.h"

static __host__ __device__ inline int dti_attention_pitch(int width)
{
    return (width + 3) / 4 | 1;
}

/* `many` rows of keys or values, `stride` elements apart; zeros from the n-th on. */
template <typename T>
static __device__ inline void dti_attention_load_keys(float4 *to, const T *from, int64_t stride,
                                                      int many, int n, int width)
{
    const int pitch = 4 * dti_attention_pitch(width), columns = (width + 3) / 4 * 4;
    float *const out = reinterpret_cast<float *>(to);

    for (int i = (int)threadIdx.x; i < many * columns; i += (int)blockDim.x) {
        const int j = i / columns, d = i % columns;
        out[j * pitch + d] = j < n && d < width ? dti_widen(from[j * stride + d]) : 0.0f;
    }
}

/* The same of keys `key` and so on of a sequence whose keys lie in blocks. */
template <typename T>
static __device__ inline void
dti_attention_load_paged(float4 *to, const void *from, const dti_attention_call &a,
                         const dti_attention_rows &r, int key, int many, int n)
{
    const int pitch = 4 * dti_attention_pitch(a.width), columns = (a.width + 3) / 4 * 4;
    const int32_t *const blocks = dti_attention_blocks(a, r.b);
    float *const out = reinterpret_cast<float *>(to);

    for (int i = (int)threadIdx.x; i < many * columns; i += (int)blockDim.x) {
        const int j = i / columns, d = i % columns;
        const bool there = j < n && d < a.width;
        const int64_t at = there ? dti_attention_paged_at(a, blocks, r.kv, key + j) : -1;
        out[j * pitch + d] = at >= 0 ? dti_widen(static_cast<const T *>(from)[at + d]) : 0.0f;
    }
}

/* `many` rows of what lies as q does, from `row` on; zeros where there are none. */
template <typename T>
static __device__ inline void
dti_attention_load_rows(float4 *to, const void *from, const dti_attention_call &a,
                        const dti_attention_rows &r, int row, int many)
{
    const int pitch = 4 * dti_attention_pitch(a.width), columns = (a.width + 3) / 4 * 4;
    float *const out = reinterpret_cast<float *>(to);

    for (int i = (int)threadIdx.x; i < many * columns; i += (int)blockDim.x) {
        const int j = i / columns, d = i % columns;
        const bool there = row + j < r.n && d < a.width;
        out[j * pitch + d] =
            there ? dti_widen(static_cast<const T *>(from)[dti_attention_at(a, r, row + j) + d])
                  : 0.0f;
    }
}

/* A score as calls with extras have it: scaled, capped, biased. *slope: what the cap leaves of its
 * derivative. */
template <typename T>
static __device__ inline float dti_attention_adjusted(const dti_attention_call &a,
                                                      const dti_attention_rows &r, int row, int key,
                                                      float score, float *slope)
{
    const int64_t at[] = { r.b, r.first_head + row % r.n_heads, row / r.n_heads };
    int64_t place = key;

    score *= a.plain_scale;
    *slope = 1.0f;
    if (a.soft_cap > 0.0f) {
        const float part = dti_tanh(score / a.soft_cap);
        score = part * a.soft_cap;
        *slope = 1.0f - part * part;
    }
    if (a.bias != NULL) {
        for (int i = 0; i < 3; i++) place += at[i] * a.bias_step[i];
        score =
            fmaxf(score + dti_widen(static_cast<const T *>(a.bias)[place]), DTI_ATTENTION_LOWEST);
    }
    return score;
}

/* The factor of a weight that may be dropped, by its place in the global [B, H, T, S]. */
static __device__ inline float dti_attention_kept(const dti_attention_call &a,
                                                  const dti_attention_rows &r, int row, int key)
{
    const int64_t h = a.q_offset + r.first_head + row % r.n_heads, t = row / r.n_heads;
    const int64_t line = ((a.b_offset + r.b) * a.all_heads + h) * a.n_tokens + t;
    const uint64_t at = (uint64_t)(line * a.n_keys + key);
    uint32_t w[4] = { (uint32_t)(at / 4), (uint32_t)(at / 4 >> 32), (uint32_t)a.key.stream,
                      (uint32_t)(a.key.stream >> 32) };

    dti_philox(w, (uint32_t)a.key.seed, (uint32_t)(a.key.seed >> 32));
    return dti_uniform_f32(at % 4 == 0   ? w[0]
                           : at % 4 == 1 ? w[1]
                           : at % 4 == 2 ? w[2]
                                         : w[3],
                           24) < a.dropout
               ? 0.0f
               : a.kept;
}

#endif
