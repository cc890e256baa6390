/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared memory of attention_prefill.cu: a block's rows of q, tiles of keys and values, which
 * rows see which keys. */
#ifndef DTI_ATTENTION_TILES_CUH
#define DTI_ATTENTION_TILES_CUH

#include "dtensor/kernels/cuda/attention_mma.cuh"

namespace
{

enum { WARPS = DTI_ATTENTION_WARPS, KEYS = DTI_ATTENTION_TILE };

/* What a block keeps, in pieces of 16 bytes: 64 N columns a row. */
template <int N, int M> struct block_memory {
    uint4 q[64 * M * 8 * N];
    uint4 k[2][KEYS * 8 * N], v[2][KEYS * 8 * N]; /* this tile and the next */
    int first[64 * M], last[64 * M];              /* keys of a row */
    int lo[WARPS], hi[WARPS];                     /* of the rows of a warp */
};

/* Where a piece lies: eight rows' pieces of one column are in different banks. Piece 2 c + b is
 * where place(row, b) ^ 2 c says, and 8 rows further, 64 N. */
template <int N> __device__ inline int place(int row, int piece)
{
    return row * 8 * N + (piece ^ (row & 7));
}

/* Keys that a warp's rows see: any of them lo .. hi, all of them all_lo .. all_hi. */
struct warp_keys {
    int lo, hi, all_lo, all_hi;
};

__device__ inline int warp_min(int x)
{
    for (int step = DTI_WARP / 2; step > 0; step /= 2)
        x = min(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

__device__ inline int warp_max(int x)
{
    return -warp_min(-x);
}

template <int N, int M>
__device__ inline warp_keys find_keys(block_memory<N, M> &m, const dti_attention_call &a,
                                      const dti_attention_rows &r, int row)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int i = warp * 16 * M + lane;
    const bool mine = lane < 16 * M, there = mine && row + i < r.n;
    int first = INT32_MAX, last = -1;
    warp_keys keys;

    if (there) dti_attention_keys(a, r, row + i, &first, &last);
    if (mine) {
        m.first[i] = first;
        m.last[i] = last;
    }
    keys.lo = warp_min(first);
    keys.hi = warp_max(last);
    keys.all_lo = warp_max(there ? first : 0);
    keys.all_hi = warp_min(there ? last : INT32_MAX);
    m.lo[warp] = keys.lo;
    m.hi[warp] = keys.hi;
    return keys;
}

/* Keys and values of one kv head; those outside lo .. hi are not read. */
struct tile_source {
    const uint16_t *k, *v;
    int64_t stride;
    int width, lo, hi;
};

/* Starts the copy of a tile's rows; zeros outside lo .. hi and beyond the width. */
template <int N, int M>
__device__ inline void start_tile(block_memory<N, M> &m, int stage, const tile_source &from,
                                  int key)
{
    enum { STEP = DTI_ATTENTION_THREADS / (8 * N) };
    const int piece = (int)threadIdx.x % (8 * N), row = (int)threadIdx.x / (8 * N);
    const bool inside = 8 * piece < from.width;

    DTI_UNROLL
    for (int i = 0; i < KEYS / STEP; i++) {
        const int j = key + row + i * STEP, to = place<N>(row + i * STEP, piece);
        const bool there = inside && j >= from.lo && j <= from.hi;
        const int64_t at = there ? j * from.stride + 8 * piece : 0;
        dti_cp_async_16(&m.k[stage][to], from.k + at, there ? 16 : 0);
        dti_cp_async_16(&m.v[stage][to], from.v + at, there ? 16 : 0);
    }
}

template <int N, int M>
__device__ inline void start_q(block_memory<N, M> &m, const dti_attention_call &a,
                               const dti_attention_rows &r, int row)
{
    const uint16_t *const q = static_cast<const uint16_t *>(a.q);

    for (int i = (int)threadIdx.x; i < 64 * M * 8 * N; i += DTI_ATTENTION_THREADS) {
        const int j = i / (8 * N), piece = i % (8 * N);
        const bool there = row + j < r.n && 8 * piece < a.width;
        dti_cp_async_16(m.q + place<N>(j, piece),
                        there ? q + dti_attention_at(a, r, row + j) + 8 * piece : q,
                        there ? 16 : 0);
    }
}

} // namespace

#endif
