/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of few rows, 16 bits: bound by the reading of the cache, which is read once for up to 8
 * rows, all heads of a group. A block takes a part of the keys; its four warps take turns, 16 keys
 * each. Products run on the tensor cores, so that they never hold the reading up.
 *
 * Nothing is rearranged between memory and registers: a lane loads 16 bytes of a key, whose columns
 * are then taken in the order that fits (see mma.cuh; q lies in the same order), and 16 bytes of
 * four values, whose columns are rows of four products. Rows of q are the first 8 of A in the
 * products with keys, and the columns in those with values, where sums of 8 rows take half the
 * registers that they would take as 16: with g = lane / 4 and t = lane % 4 a lane has scores of row
 * g, and sums of rows 2t and 2t + 1.
 *
 * Scores, softmax and sums are f32; weights enter their products as two numbers of 16 bits, a
 * rounded one and what it lacks. One rounding at the end. */
#include "dtensor/kernels/cuda/attention_mma.cuh"

namespace
{

enum { ROWS = DTI_ATTENTION_FEW_ROWS, WARPS = DTI_ATTENTION_WARPS, STEP = DTI_ATTENTION_STEP };

/* sums[4 j + i] has columns 64 j + 8g + 2i (elements 0, 1: rows 2t, 2t + 1) and the next one (2,
 * 3); the rest is row g's, total that of this lane's keys. */
template <int N> struct softmax_state {
    float sums[4 * N][4];
    float largest, total;
};

/* A step's keys: 16 bytes of columns 32 c + 8 t of key g, and of key g + 8. */
template <int N> struct key_step {
    uint4 piece[2][2 * N];
};

/* What a block keeps. Rows of sums are not a power of two apart, for the banks. */
template <int N> struct block_memory {
    uint4 q[2 * N * DTI_WARP];
    float sums[ROWS][64 * N + 4];
    float largest[WARPS][ROWS], total[WARPS][ROWS];
    int first[ROWS], last[ROWS];
};

/* A kv head's keys and values: key j lies at + j * stride elements into k and v. Those outside
 * lo .. hi are not read; heads narrower than 64 N columns have zeros there. */
struct cache_view {
    const dti_attention_call &a;
    int64_t at;
    int stride, lo, hi;
};

__device__ inline uint4 load_piece(const cache_view &cache, const void *from, int key, int d)
{
    const uint16_t *const head = static_cast<const uint16_t *>(from) + cache.at;

    if (key < cache.lo || key > cache.hi || d >= cache.a.width) return make_uint4(0, 0, 0, 0);
    return dti_load_once(head + (int64_t)key * cache.stride + d);
}

template <int N>
__device__ inline void load_keys(key_step<N> &keys, const cache_view &cache, int key, int lane)
{
    DTI_UNROLL
    for (int n = 0; n < 2; n++) {
        DTI_UNROLL
        for (int c = 0; c < 2 * N; c++)
            keys.piece[n][c] =
                load_piece(cache, cache.a.k, key + 8 * n + lane / 4, 32 * c + 8 * (lane % 4));
    }
}

/* s[n]: scores of row g with keys 8 n + 2t and 8 n + 2t + 1, in elements 0 and 1. */
template <typename T, int N>
__device__ inline void multiply_keys(float (&s)[2][4], const key_step<N> &keys, const uint4 *q,
                                     int lane)
{
    DTI_UNROLL
    for (int c = 0; c < 2 * N; c++) {
        const uint4 x = q[c * DTI_WARP + lane];
        const uint32_t A[2][4] = { { x.x, 0, x.y, 0 }, { x.z, 0, x.w, 0 } };
        DTI_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint4 &piece = keys.piece[i % 2][c];
            const uint32_t B[2] = { i < 2 ? piece.x : piece.z, i < 2 ? piece.y : piece.w };
            dti_mma(s[i % 2], A[i / 2], B, T());
        }
    }
}

/* The step's weights as B of products: rounded, and what that lacks. */
template <typename T>
__device__ inline void split_weights(uint32_t (&B)[2][2], const float (&s)[2][4])
{
    DTI_UNROLL
    for (int i = 0; i < 2; i++) {
        const float x = s[i][0], y = s[i][1];
        B[0][i] = dti_pair(x, y, T());
        B[1][i] = dti_pair(x - dti_rounded<T>(x), y - dti_rounded<T>(y), T());
    }
}

/* Columns 64 j .. 64 j + 63 of the step's values: 16 bytes of columns 8g of keys 2t, 2t + 1,
 * 2t + 8, 2t + 9. */
__device__ inline void load_values(uint4 (&piece)[4], const cache_view &cache, int key, int j,
                                   int lane)
{
    DTI_UNROLL
    for (int i = 0; i < 4; i++)
        piece[i] = load_piece(cache, cache.a.v, key + 2 * (lane % 4) + 8 * (i / 2) + i % 2,
                              64 * j + 8 * (lane / 4));
}

template <typename T>
__device__ inline void multiply_values(float (*sums)[4], const uint32_t (&B)[2][2],
                                       const uint4 (&piece)[4])
{
    DTI_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t x[4] = { dti_word(piece[0], i), dti_word(piece[1], i), dti_word(piece[2], i),
                                dti_word(piece[3], i) };
        const uint32_t A[4] = { /* columns 2i and 2i + 1 of two keys each */
                                __byte_perm(x[0], x[1], 0x5410u), __byte_perm(x[0], x[1], 0x7632u),
                                __byte_perm(x[2], x[3], 0x5410u), __byte_perm(x[2], x[3], 0x7632u)
        };
        dti_mma(sums[i], A, B[0], T());
        dti_mma(sums[i], A, B[1], T());
    }
}

/* The softmax goes on with the scores of a step, which become weights. */
template <int N> __device__ inline void soften(softmax_state<N> &state, float (&s)[2][4])
{
    const float factor = dti_soften_row(s, 0, state.largest, state.total);
    const int t = (int)threadIdx.x % 4;

    if (!__any_sync(0xffffffffu, factor != 1.0f)) return; /* most often */
    const float of[2] = { __shfl_sync(0xffffffffu, factor, 8 * t),
                          __shfl_sync(0xffffffffu, factor, 8 * t + 4) };
    DTI_UNROLL
    for (int i = 0; i < 16 * N; i++) state.sums[i / 4][i % 4] *= of[i % 2];
}

/* Every WARPS-th step from `step` on; its values and the next one's keys are under way at once. */
template <typename T, int N>
__device__ inline void walk(softmax_state<N> &state, const dti_attention_call &a,
                            const cache_view &cache, const block_memory<N> &m, int step, int end)
{
    const int lane = (int)threadIdx.x % DTI_WARP;
    key_step<N> keys;

    if (step < end) load_keys(keys, cache, step * STEP, lane);
    for (; step < end; step += WARPS) {
        const int key = step * STEP;
        float s[2][4] = {};
        uint32_t B[2][2];
        uint4 values[N][4];
        DTI_UNROLL
        for (int j = 0; j < N; j++) load_values(values[j], cache, key, j, lane);
        multiply_keys<T, N>(s, keys, m.q, lane);
        if (step + WARPS < end) load_keys(keys, cache, key + WARPS * STEP, lane);
        dti_scale_scores(s, a.scale);
        dti_hide_keys(s, 0, key, m.first[lane / 4], m.last[lane / 4]);
        soften<N>(state, s);
        split_weights<T>(B, s);
        DTI_UNROLL
        for (int j = 0; j < N; j++) multiply_values<T>(state.sums + 4 * j, B, values[j]);
    }
}

/* q as multiply_keys() takes it: a lane has columns 32 c + 8 t .. of row g. */
template <int N>
__device__ inline void store_q(block_memory<N> &m, const dti_attention_call &a,
                               const dti_attention_rows &r, int row)
{
    const int lane = (int)threadIdx.x % DTI_WARP;

    row += lane / 4;
    for (int c = (int)threadIdx.x / DTI_WARP; c < 2 * N; c += WARPS) {
        const int d = 32 * c + 8 * (lane % 4);
        const uint16_t *from = static_cast<const uint16_t *>(a.q) + d;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < r.n && d < a.width)
            x = *reinterpret_cast<const uint4 *>(from + dti_attention_at(a, r, row));
        m.q[c * DTI_WARP + lane] = x;
    }
}

/* The warps' sums, one after the other, into shared memory. */
template <int N> __device__ inline void add_warps(block_memory<N> &m, softmax_state<N> &state)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int g = lane / 4, t = lane % 4;
    const float total = dti_row_sum(state.total);
    float factor[2];

    if (t == 0) {
        m.largest[warp][g] = state.largest;
        m.total[warp][g] = total;
    }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, m.largest[w][2 * t + i]);
        factor[i] = most == -INFINITY ? 0.0f : exp2f(m.largest[warp][2 * t + i] - most);
    }
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) {
            DTI_UNROLL
            for (int i = 0; i < 16 * N; i++) {
                float *to = &m.sums[2 * t + i % 2][i / 16 * 64 + 8 * g + i % 16 / 2];
                const float add = state.sums[i / 4][i % 4] * factor[i % 2];
                *to = w == 0 ? add : *to + add;
            }
        }
        __syncthreads();
    }
}

/* Result, or what is merged later. */
template <typename T, int N>
__device__ inline void store(const block_memory<N> &m, const dti_attention_call &a,
                             const dti_attention_rows &r, int row, int64_t part)
{
    for (int i = 0; i < ROWS && row + i < r.n; i++) {
        float largest = -INFINITY, total = 0.0f;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, m.largest[w][i]);
        for (int w = 0; w < WARPS && largest > -INFINITY; w++)
            total += exp2f(m.largest[w][i] - largest) * m.total[w][i];
        if (a.n_parts > 1 && threadIdx.x == 0)
            a.state[part * ROWS + i] = make_float2(largest, total);
        for (int d = (int)threadIdx.x; d < a.width; d += DTI_ATTENTION_THREADS)
            if (a.n_parts > 1)
                a.sums[(part * ROWS + i) * a.width + d] = m.sums[i][d];
            else
                dti_narrow(static_cast<T *>(a.y) + dti_attention_at(a, r, row + i) + d,
                           total == 0.0f ? 0.0f : m.sums[i][d] / total);
    }
}

/* Grid: sequence and kv head, part, block of rows; blocks of the same keys side by side, for the
 * second-level cache. 128 threads. */
template <typename T, int N>
__global__ void __launch_bounds__(DTI_ATTENTION_THREADS) few_rows(const dti_attention_call a)
{
    DTI_SHARED(block_memory<N>, m);
    const int64_t block = blockIdx.x % a.n_blocks, rest = blockIdx.x / a.n_blocks;
    const int64_t pair = rest / a.n_parts, part = rest % a.n_parts;
    const dti_attention_rows r = dti_attention_rows_of(a, pair);
    const int row = (int)block * ROWS;
    cache_view cache = { a, dti_attention_key_at(a, r), (int)a.n_kv * a.width, INT32_MAX, -1 };
    softmax_state<N> state = {};
    int begin, end;

    if (row >= r.n) return; /* a kv head whose group this rank holds in part */
    if (threadIdx.x < ROWS)
        dti_attention_keys(a, r, row + (int)threadIdx.x, &m->first[threadIdx.x],
                           &m->last[threadIdx.x]);
    store_q<N>(*m, a, r, row);
    __syncthreads();
    for (int i = 0; i < ROWS; i++) {
        cache.lo = min(cache.lo, m->first[i]);
        cache.hi = max(cache.hi, m->last[i]);
    }
    dti_attention_part(a, (int)part, cache.lo, cache.hi, &begin, &end);
    state.largest = -INFINITY;
    walk<T, N>(state, a, cache, *m, begin + (int)threadIdx.x / DTI_WARP, end);
    add_warps<N>(*m, state);
    store<T, N>(*m, a, r, row, (pair * a.n_blocks + block) * a.n_parts + part);
}

template <typename T> int start(dti_cuda *c, const dti_attention_call &a)
{
    const unsigned grid = (unsigned)(a.batch * a.n_used * a.n_parts * a.n_blocks);

    if (a.width <= 64)
        return DTI_LAUNCH(c, (few_rows<T, 1>), grid, DTI_ATTENTION_THREADS, sizeof(block_memory<1>),
                          a);
    if (a.width <= 128)
        return DTI_LAUNCH(c, (few_rows<T, 2>), grid, DTI_ATTENTION_THREADS, sizeof(block_memory<2>),
                          a);
    return DTI_LAUNCH(c, (few_rows<T, 4>), grid, DTI_ATTENTION_THREADS, sizeof(block_memory<4>), a);
}

} // namespace

extern "C" int dti_attention_few(dti_cuda *c, const dti_attention_call *a, int dtype)
{
    return dtype == DT_BF16 ? start<dti_bf16>(c, *a) : start<dti_f16>(c, *a);
}
