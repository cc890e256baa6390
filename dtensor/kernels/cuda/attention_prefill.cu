/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of many rows, 16 bits, on the tensor cores: bound by the products. A block has 64 M
 * rows, a warp 16 M of them, and goes through the keys that any of its rows sees, 32 at a time,
 * with the softmax updated tile by tile. The next tile comes into shared memory beside them.
 *
 * Scores, softmax and sums are f32; weights are rounded to 16 bits for their product with the
 * values (their total is not), and the result is rounded. */
#include "dtensor/kernels/cuda/attention_tiles.cuh"

namespace
{

/* Of each 16 rows, as attention_mma.cuh says. */
template <int N, int M> struct softmax_state {
    float sums[M][8 * N][4];
    float largest[M][2], total[M][2];
};

/* s = q k of the warp's rows and a tile of keys. */
template <typename T, int N, int M>
__device__ inline void multiply_keys(float (&s)[M][KEYS / 8][4], const uint4 *q, const uint4 *k)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int row = place<N>(warp * 16 * M + lane % 16, lane / 16);
    const int key = place<N>(lane / 16 * 8 + lane % 8, lane / 8 % 2);

    DTI_UNROLL
    for (int c = 0; c < 4 * N; c++) {
        uint32_t A[M][4];
        DTI_UNROLL
        for (int i = 0; i < M; i++) dti_ldmatrix_x4(A[i], q + (row ^ 2 * c) + 16 * i * 8 * N);
        DTI_UNROLL
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t B[4];
            dti_ldmatrix_x4(B, k + (key ^ 2 * c) + 16 * j * 8 * N);
            DTI_UNROLL
            for (int i = 0; i < 2 * M; i++)
                dti_mma(s[i / 2][2 * j + i % 2], A[i / 2], B + i % 2 * 2, T());
        }
    }
}

/* sums += s v, s being weights now. */
template <typename T, int N, int M>
__device__ inline void multiply_values(softmax_state<N, M> &state, const float (&s)[M][KEYS / 8][4],
                                       const uint4 *v)
{
    const int lane = (int)threadIdx.x % DTI_WARP, key = place<N>(lane % 16, lane / 16);

    DTI_UNROLL
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t A[M][4];
        DTI_UNROLL
        for (int i = 0; i < 4 * M; i++) {
            const float *const pair = s[i / 4][2 * j + i % 4 / 2] + i % 2 * 2;
            A[i / 4][i % 4] = dti_pair(pair[0], pair[1], T());
        }
        DTI_UNROLL
        for (int c = 0; c < 4 * N; c++) {
            uint32_t B[4];
            dti_ldmatrix_x4_trans(B, v + (key ^ 2 * c) + 16 * j * 8 * N);
            DTI_UNROLL
            for (int i = 0; i < 2 * M; i++)
                dti_mma(state.sums[i / 2][2 * c + i % 2], A[i / 2], B + i % 2 * 2, T());
        }
    }
}

template <typename T, int N, int M>
__device__ inline void walk(softmax_state<N, M> &state, block_memory<N, M> &m,
                            const dti_attention_call &a, const dti_attention_rows &r,
                            const warp_keys &keys, int lo, int hi)
{
    const tile_source from = { static_cast<const uint16_t *>(a.k) + dti_attention_key_at(a, r),
                               static_cast<const uint16_t *>(a.v) + dti_attention_key_at(a, r),
                               a.n_kv * a.width,
                               a.width,
                               lo,
                               hi };
    const int row = (int)threadIdx.x / DTI_WARP * 16 * M + (int)threadIdx.x % DTI_WARP / 4;
    int key = lo / KEYS * KEYS;

    if (key <= hi) start_tile<N, M>(m, 0, from, key);
    dti_cp_async_commit();
    for (int stage = 0; key <= hi; key += KEYS, stage ^= 1) {
        const bool hides = key < keys.all_lo || key + KEYS - 1 > keys.all_hi;
        float s[M][KEYS / 8][4] = {};
        dti_cp_async_wait<0>();
        __syncthreads(); /* the tile is there, and nobody reads the one before it any more */
        if (key + KEYS <= hi) start_tile<N, M>(m, stage ^ 1, from, key + KEYS);
        dti_cp_async_commit();
        if (key > keys.hi || key + KEYS <= keys.lo) continue;
        multiply_keys<T, N, M>(s, m.q, m.k[stage]);
        DTI_UNROLL
        for (int i = 0; i < M; i++) dti_scale_scores(s[i], a.scale);
        DTI_UNROLL
        for (int i = 0; i < 2 * M; i++) {
            if (hides)
                dti_hide_keys(s[i / 2], i % 2, key, m.first[row + 8 * i], m.last[row + 8 * i]);
            const float factor = dti_soften_row(s[i / 2], i % 2, state.largest[i / 2][i % 2],
                                                state.total[i / 2][i % 2]);
            if (!__any_sync(0xffffffffu, factor != 1.0f)) continue; /* most often */
            DTI_UNROLL
            for (int x = 0; x < 16 * N; x++) state.sums[i / 2][x / 2][i % 2 * 2 + x % 2] *= factor;
        }
        multiply_values<T, N, M>(state, s, m.v[stage]);
    }
}

/* Divides, rounds, and stores whole pieces, by way of the warp's rows of q. */
template <typename T, int N, int M>
__device__ inline void store_result(const softmax_state<N, M> &state, block_memory<N, M> &m,
                                    const dti_attention_call &a, const dti_attention_rows &r,
                                    int row)
{
    const int lane = (int)threadIdx.x % DTI_WARP, first = (int)threadIdx.x / DTI_WARP * 16 * M;
    uint32_t *const words = reinterpret_cast<uint32_t *>(m.q);
    uint16_t *const y = static_cast<uint16_t *>(a.y);

    DTI_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const float total = state.total[i / 2][i % 2], factor = total == 0.0f ? 0.0f : 1.0f / total;
        DTI_UNROLL
        for (int c = 0; c < 8 * N; c++) {
            const float *const pair = state.sums[i / 2][c] + i % 2 * 2;
            words[4 * place<N>(first + 8 * i + lane / 4, c) + lane % 4] =
                dti_pair(pair[0] * factor, pair[1] * factor, T());
        }
    }
    __syncwarp();
    for (int i = lane; i < 16 * M * 8 * N; i += DTI_WARP) {
        const int j = first + i / (8 * N), piece = i % (8 * N);
        if (row + j < r.n && 8 * piece < a.width)
            *reinterpret_cast<uint4 *>(y + dti_attention_at(a, r, row + j) + 8 * piece) =
                m.q[place<N>(j, piece)];
    }
}

/* What is merged later. part counts blocks and their parts. */
template <int N, int M>
__device__ inline void store_part(const softmax_state<N, M> &state, const dti_attention_call &a,
                                  int n_left, int64_t part)
{
    const int lane = (int)threadIdx.x % DTI_WARP, first = (int)threadIdx.x / DTI_WARP * 16 * M;

    DTI_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        const int row = first + 8 * i + lane / 4;
        const int64_t at = part * a.n_rows + row;
        if (row >= n_left) continue;
        if (lane % 4 == 0)
            a.state[at] = make_float2(state.largest[i / 2][i % 2], state.total[i / 2][i % 2]);
        DTI_UNROLL
        for (int c = 0; c < 8 * N; c++) {
            const float *const pair = state.sums[i / 2][c] + i % 2 * 2;
            const int d = 8 * c + lane % 4 * 2;
            if (d < a.width)
                *reinterpret_cast<float2 *>(a.sums + at * a.width + d) =
                    make_float2(pair[0], pair[1]);
        }
    }
}

/* Grid: blocks of rows, those of the last queries, which see most, first; in each the parts of the
 * keys; in each sequence and kv head. 128 threads. */
template <typename T, int N, int M>
__global__ void __launch_bounds__(DTI_ATTENTION_THREADS, 2) many_rows(const dti_attention_call a)
{
    typedef block_memory<N, M> memory;
    DTI_SHARED(memory, m);
    const int64_t n_pairs = a.batch * a.n_used, pair = blockIdx.x % n_pairs;
    const int64_t rest = blockIdx.x / n_pairs, block = a.n_blocks - 1 - rest / a.n_parts;
    const int part = (int)(rest % a.n_parts), row = (int)block * 64 * M;
    const dti_attention_rows r = dti_attention_rows_of(a, pair);
    softmax_state<N, M> state = {};
    int lo = INT32_MAX, hi = -1, begin, end;

    if (row >= r.n) return; /* a kv head whose group this rank holds in part */
    if (dti_attention_is_done(a, r, row)) return;
    start_q<N, M>(*m, a, r, row);
    const warp_keys keys = find_keys<N, M>(*m, a, r, row);
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        lo = min(lo, m->lo[w]);
        hi = max(hi, m->hi[w]);
    }
    dti_attention_part(a, part, lo, hi, &begin, &end);
    for (int i = 0; i < 2 * M; i++) state.largest[i / 2][i % 2] = -INFINITY;
    walk<T, N, M>(state, *m, a, r, keys, max(lo, begin * KEYS), min(hi, end * KEYS - 1));
    dti_cp_async_wait<0>();
    __syncthreads(); /* q is there even if no key was */
    DTI_UNROLL
    for (int i = 0; i < 2 * M; i++) {
        float &total = state.total[i / 2][i % 2];
        total = dti_row_sum(total);
    }
    if (a.n_parts == 1)
        store_result<T, N, M>(state, *m, a, r, row);
    else
        store_part<N, M>(state, a, r.n - row, (pair * a.n_blocks + block) * a.n_parts + part);
}

template <typename T, int N, int M> int start(dti_cuda *c, const dti_attention_call &a)
{
    const unsigned grid = (unsigned)(a.batch * a.n_used * a.n_parts * a.n_blocks);
    const size_t shared = sizeof(block_memory<N, M>);

    if (dti_cuda_check(cudaFuncSetAttribute(many_rows<T, N, M>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared),
                       "attention: shared memory") != 0)
        return -1;
    return DTI_LAUNCH(c, (many_rows<T, N, M>), grid, DTI_ATTENTION_THREADS, shared, a);
}

template <typename T> int start_width(dti_cuda *c, const dti_attention_call &a)
{
    if (a.width <= 64) return start<T, 1, 2>(c, a);
    return a.width <= 128 ? start<T, 2, 2>(c, a) : start<T, 4, 1>(c, a);
}

} // namespace

extern "C" int dti_attention_many(dti_cuda *c, const dti_attention_call *a, int dtype)
{
    return dtype == DT_BF16 ? start_width<dti_bf16>(c, *a) : start_width<dti_f16>(c, *a);
}
