/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of tokens sorted by expert, by counting: an expert's slots lie side by side in the order of
 * tokens, and a list of tiles says which rows a block of a product has. The order is that of the
 * ids alone, not of who came first. */
#ifndef DTI_SORT_SLOTS_CUH
#define DTI_SORT_SLOTS_CUH

#include "dtensor/kernels/cuda/product.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP };

/* One pass: as many tokens as there is room for. */
struct pass {
    const int32_t *ids; /* [n_tokens, n_slots], global */
    int32_t n, n_slots; /* n = n_tokens n_slots */
    int32_t first, n_experts, n_all;
    int32_t per_tile;
    int32_t *counts;   /* [n_experts] slots of each */
    int32_t *places;   /* [n]: where a slot is among the sorted ones, or -1 */
    int32_t *sorted;   /* [n]: slots by expert */
    int32_t *n_sorted; /* [1], */
    int32_t *n_tiles;  /* [1]: how many there are */
    dti_row_tile *tiles;
    int64_t first_token; /* of the pass, for messages */
    dti_cuda_fault_word *fault;
};

/* The sum over a block of THREADS, to all. */
__device__ inline int32_t sum_block(int32_t x)
{
    __shared__ int32_t sums[WARPS];
    int32_t all = 0;

    for (int step = DTI_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads(); /* whoever called before has read them */
    if (threadIdx.x % DTI_WARP == 0) sums[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) all += sums[w];
    return all;
}

/* Ids are contents of a tensor, so no rule saw them. */
__device__ void check_slot(const pass &p, int32_t s)
{
    const int32_t id = p.ids[s];

    if (id < 0 || id >= p.n_all) {
        dti_report(p.fault, DTI_CUDA_BAD_EXPERT, id, p.n_all);
        return;
    }
    for (int32_t i = s / p.n_slots * p.n_slots; i < s; i++)
        if (p.ids[i] == id)
            dti_report(p.fault, DTI_CUDA_TWICE_EXPERT, id, p.first_token + s / p.n_slots);
}

/* A block for each expert, and more that look at the ids. */
__global__ void count_slots(pass p)
{
    const int32_t e = (int32_t)blockIdx.x;
    int32_t count = 0;

    if (e >= p.n_experts) {
        const int32_t s = (e - p.n_experts) * THREADS + (int32_t)threadIdx.x;
        if (s >= p.n) return;
        p.places[s] = -1;
        check_slot(p, s);
        return;
    }
    for (int32_t s = (int32_t)threadIdx.x; s < p.n; s += THREADS) count += p.ids[s] - p.first == e;
    count = sum_block(count);
    if (threadIdx.x == 0) p.counts[e] = count;
}

__device__ inline int32_t tiles_of(const pass &p, int32_t count)
{
    return (count + p.per_tile - 1) / p.per_tile;
}

/* Slots of expert e from `begin` on, in their order. */
__device__ void place_slots_of(const pass &p, int32_t e, int32_t begin)
{
    __shared__ int32_t found[WARPS];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;

    for (int32_t base = 0; base < p.n; base += THREADS) {
        const int32_t s = base + (int32_t)threadIdx.x;
        const bool mine = s < p.n && p.ids[s] - p.first == e;
        const unsigned who = __ballot_sync(0xffffffffu, mine);
        int32_t place = begin + __popc(who & ((1u << lane) - 1u));
        __syncthreads();
        if (lane == 0) found[warp] = __popc(who);
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) place += found[w];
            begin += found[w];
        }
        if (!mine) continue;
        p.sorted[place] = s;
        p.places[s] = place;
    }
}

/* A block for each expert. */
__global__ void place_slots(pass p)
{
    const int32_t e = (int32_t)blockIdx.x, count = p.counts[e];
    int32_t begin = 0, tile = 0;

    for (int32_t i = (int32_t)threadIdx.x; i < e; i += THREADS) {
        begin += p.counts[i];
        tile += tiles_of(p, p.counts[i]);
    }
    begin = sum_block(begin);
    tile = sum_block(tile);
    for (int32_t i = (int32_t)threadIdx.x; i < tiles_of(p, count); i += THREADS) {
        const int32_t row = i * p.per_tile, left = count - row;
        dti_row_tile t;
        t.group = e;
        t.row = begin + row;
        t.n_rows = left < p.per_tile ? left : p.per_tile;
        t.pad = 0;
        p.tiles[tile + i] = t;
    }
    if (e == p.n_experts - 1 && threadIdx.x == 0) {
        *p.n_sorted = begin + count;
        *p.n_tiles = tile + tiles_of(p, count);
    }
    place_slots_of(p, e, begin);
}

} // namespace

#endif
