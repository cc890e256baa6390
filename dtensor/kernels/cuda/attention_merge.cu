/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a row's keys, merged: y = sum_i w_i sums_i / sum_i w_i total_i, w_i being 2 to the
 * distance of part i's largest score from the largest of all. One rounding.
 *
 * A step of decoding waits for this, so it takes two trips to memory: one for the largest scores
 * and totals, one for the sums. Eight warps have every eighth part each, 16 bytes of a row to a
 * lane, all of them under way at once; the warps' sums are added in order. */
#include "dtensor/kernels/cuda/attention.cuh"

namespace
{

enum {
    WARPS = 8,
    THREADS = WARPS * DTI_WARP,
    AT_ONCE = 8, /* parts of a warp */
    ROUND = WARPS * AT_ONCE
};

struct block_memory {
    float weights[DTI_ATTENTION_MAX_PARTS]; /* 0: has no sums */
    float sums[WARPS][DTI_ATTENTION_WIDEST];
};
static_assert(DTI_ATTENTION_MAX_PARTS % ROUND == 0, "weights have room for whole rounds");

/* Each warp finds the same total. */
__device__ inline float find_weights(block_memory &m, const dti_attention_call &a,
                                     const float2 *state)
{
    const int lane = (int)threadIdx.x % DTI_WARP, n = (a.n_parts + ROUND - 1) / ROUND * ROUND;
    float largest = -INFINITY, total = 0.0f;

    for (int i = lane; i < a.n_parts; i += DTI_WARP)
        largest = fmaxf(largest, state[(int64_t)i * a.n_rows].x);
    largest = dti_warp_max(largest);
    if (largest == -INFINITY) largest = 0.0f; /* no key seen */
    for (int i = lane; i < n; i += DTI_WARP) {
        const float2 s =
            i < a.n_parts ? state[(int64_t)i * a.n_rows] : make_float2(-INFINITY, 0.0f);
        const float weight = exp2f(s.x - largest);
        total += weight * s.y;
        if (threadIdx.x < DTI_WARP) m.weights[i] = weight;
    }
    return dti_warp_sum(total);
}

/* The warp's parts of the row, in pieces of type P, which has EACH columns. */
template <typename P, int EACH>
__device__ inline void add_parts(block_memory &m, const dti_attention_call &a, const float *sums)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int64_t stride = (int64_t)a.n_rows * a.width;

    for (int d = EACH * lane; d < a.width; d += EACH * DTI_WARP) {
        float sum[EACH] = {};
        for (int i = warp; i < a.n_parts; i += ROUND) {
            union {
                P piece;
                float x[EACH];
            } at[AT_ONCE] = {};
            DTI_UNROLL
            for (int j = 0; j < AT_ONCE; j++)
                if (m.weights[i + j * WARPS] != 0.0f)
                    at[j].piece = *reinterpret_cast<const P *>(sums + (i + j * WARPS) * stride + d);
            DTI_UNROLL
            for (int j = 0; j < AT_ONCE * EACH; j++)
                sum[j % EACH] = dti_add_product(sum[j % EACH], m.weights[i + j / EACH * WARPS],
                                                at[j / EACH].x[j % EACH]);
        }
        DTI_UNROLL
        for (int j = 0; j < EACH; j++) m.sums[warp][d + j] = sum[j];
    }
}

/* Grid: rows of y, [B, T, H]. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 2) merge_parts(const dti_attention_call a)
{
    DTI_SHARED(block_memory, m);
    const int64_t h = blockIdx.x % a.n_heads, token = blockIdx.x / a.n_heads;
    const int64_t u = (h - a.first_head) / a.group, pair = token / a.n_tokens * a.n_used + u;
    const dti_attention_rows r = dti_attention_rows_of(a, pair);
    const int row = (int)(token % a.n_tokens) * r.n_heads + (int)(h - r.first_head);
    const int64_t block = pair * a.n_blocks + row / a.n_rows;
    const int64_t at = block * a.n_parts * a.n_rows + row % a.n_rows;

    if (dti_attention_is_done(a, r, row)) return;
    const float total = find_weights(*m, a, a.state + at);
    __syncthreads();
    if (a.width % 4 == 0)
        add_parts<float4, 4>(*m, a, a.sums + at * a.width);
    else
        add_parts<float, 1>(*m, a, a.sums + at * a.width);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < a.width; d += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += m->sums[w][d];
        dti_narrow(static_cast<T *>(a.y) + (int64_t)blockIdx.x * a.width + d,
                   total == 0.0f ? 0.0f : sum / total);
    }
}

} // namespace

extern "C" int dti_attention_merge(dti_cuda *c, const dti_attention_call *a, int dtype)
{
    const unsigned grid = (unsigned)(a->batch * a->n_tokens * a->n_heads);

    switch (dtype) {
    case DT_BF16:
        return DTI_LAUNCH(c, merge_parts<dti_bf16>, grid, THREADS, sizeof(block_memory), *a);
    case DT_F16:
        return DTI_LAUNCH(c, merge_parts<dti_f16>, grid, THREADS, sizeof(block_memory), *a);
    default:
        return DTI_LAUNCH(c, merge_parts<float>, grid, THREADS, sizeof(block_memory), *a);
    }
}
