/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of few rows, 16 bits: bound by the reading of the cache, which is read once for up to
 * 16 rows, all heads of a group. A block takes a part of the keys; its four warps take turns, 16
 * keys each. Products run on the tensor cores, so that they never hold the reading up.
 *
 * Nothing is rearranged between memory and registers: a lane loads 16 bytes of a key, whose columns
 * are then taken in the order that fits (see mma.cuh; q lies in the same order), and 16 bytes of
 * four values, whose columns are those of eight products. Scores, softmax and sums are f32; weights
 * enter their products as two numbers of 16 bits, a rounded one and what it lacks. One rounding at
 * the end. */
#include "dtensor/kernels/cuda/attention_mma.cuh"

namespace
{

enum { ROWS = DTI_ATTENTION_ROWS, WARPS = DTI_ATTENTION_WARPS, STEP = DTI_ATTENTION_STEP };

/* With g = lane / 4 and t = lane % 4 a lane has rows g and g + 8: of the columns 64 j .. 64 j + 63
 * those from 16 t on, sums[8 j + i] being columns 16 t + i and 16 t + 8 + i of each row. */
template <int N> struct softmax_state {
    float sums[8 * N][4];
    float largest[2], total[2];
};

/* A step's keys: 16 bytes of columns 32 c + 8 t of key g, and of key g + 8. */
template <int N> struct key_step {
    uint4 piece[2][2 * N];
};

/* What a block keeps. Rows of sums are not a power of two apart, for the banks. */
template <int N> struct block_memory {
    uint4 q[4 * N * DTI_WARP];
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

/* s[n]: scores of rows g and g + 8 with keys 8 n + 2t and 8 n + 2t + 1. q as by store_q(). */
template <typename T, int N>
__device__ inline void multiply_keys(float (&s)[2][4], const key_step<N> &keys, const uint4 *q,
                                     int lane)
{
    DTI_UNROLL
    for (int k = 0; k < 4 * N; k++) {
        const uint4 rows = q[k * DTI_WARP + lane];
        const uint32_t A[4] = { rows.x, rows.y, rows.z, rows.w };
        DTI_UNROLL
        for (int n = 0; n < 2; n++) {
            const uint4 &piece = keys.piece[n][k / 2];
            const uint32_t B[2] = { k % 2 == 0 ? piece.x : piece.z,
                                    k % 2 == 0 ? piece.y : piece.w };
            dti_mma(s[n], A, B, T());
        }
    }
}

/* The step's weights as A of products: rounded, and what that lacks. */
template <typename T>
__device__ inline void split_weights(uint32_t (&A)[2][4], const float (&s)[2][4])
{
    DTI_UNROLL
    for (int i = 0; i < 4; i++) {
        const float x = s[i / 2][2 * (i % 2)], y = s[i / 2][2 * (i % 2) + 1];
        A[0][i] = dti_pair(x, y, T());
        A[1][i] = dti_pair(x - dti_rounded<T>(x), y - dti_rounded<T>(y), T());
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
__device__ inline void multiply_values(float (*sums)[4], const uint32_t (&A)[2][4],
                                       const uint4 (&piece)[4])
{
    DTI_UNROLL
    for (int i = 0; i < 8; i++) {
        const uint32_t select = i % 2 == 0 ? 0x5410u : 0x7632u; /* column i of two keys */
        const uint32_t B[2] = {
            __byte_perm(dti_word(piece[0], i / 2), dti_word(piece[1], i / 2), select),
            __byte_perm(dti_word(piece[2], i / 2), dti_word(piece[3], i / 2), select)
        };
        dti_mma(sums[i], A[0], B, T());
        dti_mma(sums[i], A[1], B, T());
    }
}

/* Every WARPS-th step from `step` on. Up to 128 columns its values and the next step's keys are
 * under way at a time; for more of them registers do not suffice. */
template <typename T, int N>
__device__ inline void walk(softmax_state<N> &state, const dti_attention_call &a,
                            const cache_view &cache, const block_memory<N> &m, int step, int end)
{
    enum { AHEAD = N <= 2, AT_ONCE = AHEAD ? N : 1 };
    const int lane = (int)threadIdx.x % DTI_WARP;
    key_step<N> keys;

    if (AHEAD && step < end) load_keys(keys, cache, step * STEP, lane);
    for (; step < end; step += WARPS) {
        const int key = step * STEP;
        float s[2][4] = {};
        uint32_t A[2][4];
        uint4 values[AT_ONCE][4];
        if (!AHEAD) load_keys(keys, cache, key, lane);
        DTI_UNROLL
        for (int j = 0; j < AT_ONCE; j++) load_values(values[j], cache, key, j, lane);
        multiply_keys<T, N>(s, keys, m.q, lane);
        if (AHEAD && step + WARPS < end) load_keys(keys, cache, key + WARPS * STEP, lane);
        dti_scale_scores(s, a.scale);
        DTI_UNROLL
        for (int r = 0; r < 2; r++) {
            dti_hide_keys(s, r, key, m.first[lane / 4 + 8 * r], m.last[lane / 4 + 8 * r]);
            dti_soften_row(s, state.sums, r, state.largest[r], state.total[r]);
        }
        split_weights<T>(A, s);
        DTI_UNROLL
        for (int j = 0; j < N; j++) {
            multiply_values<T>(state.sums + 8 * j, A, values[j % AT_ONCE]);
            if (j + AT_ONCE < N) load_values(values[j % AT_ONCE], cache, key, j + AT_ONCE, lane);
        }
    }
}

/* q in the order of multiply_keys(): columns 32 c + 8 t .. of rows g and g + 8 are two products. */
template <int N>
__device__ inline void store_q(block_memory<N> &m, const dti_attention_call &a,
                               const dti_attention_rows &r, int row)
{
    const int lane = (int)threadIdx.x % DTI_WARP, g = lane / 4;

    for (int c = (int)threadIdx.x / DTI_WARP; c < 2 * N; c += WARPS) {
        const int d = 32 * c + 8 * (lane % 4);
        uint4 x[2];
        DTI_UNROLL
        for (int i = 0; i < 2; i++) {
            const bool there = row + g + 8 * i < r.n && d < a.width;
            const uint16_t *from = static_cast<const uint16_t *>(a.q) + d;
            x[i] = make_uint4(0, 0, 0, 0);
            if (there)
                x[i] = *reinterpret_cast<const uint4 *>(from +
                                                        dti_attention_at(a, r, row + g + 8 * i));
        }
        m.q[2 * c * DTI_WARP + lane] = make_uint4(x[0].x, x[1].x, x[0].y, x[1].y);
        m.q[(2 * c + 1) * DTI_WARP + lane] = make_uint4(x[0].z, x[1].z, x[0].w, x[1].w);
    }
}

/* The warps' sums, one after the other, into shared memory. */
template <int N> __device__ inline void add_warps(block_memory<N> &m, softmax_state<N> &state)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    float factor[2];

    DTI_UNROLL
    for (int r = 0; r < 2; r++) {
        const float total = dti_row_sum(state.total[r]);
        if (lane % 4 != 0) continue;
        m.largest[warp][lane / 4 + 8 * r] = state.largest[r];
        m.total[warp][lane / 4 + 8 * r] = total;
    }
    __syncthreads();
    DTI_UNROLL
    for (int r = 0; r < 2; r++) {
        float most = -INFINITY;
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, m.largest[w][lane / 4 + 8 * r]);
        factor[r] = most == -INFINITY ? 0.0f : exp2f(state.largest[r] - most);
    }
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) DTI_UNROLL
        for (int i = 0; i < 8 * N; i++) DTI_UNROLL
        for (int x = 0; x < 4; x++) {
            const int d = 64 * (i / 8) + 16 * (lane % 4) + 8 * (x % 2) + i % 8;
            float *to = &m.sums[lane / 4 + 8 * (x / 2)][d];
            const float add = state.sums[i][x] * factor[x / 2];
            *to = w == 0 ? add : *to + add;
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
    state.largest[0] = state.largest[1] = -INFINITY;
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
