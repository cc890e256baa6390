/* SPDX-License-Identifier: Apache-2.0
 *
 * What only moves bytes is rows whose places are found in one way or another and whose bytes lie
 * side by side. They move in the widest words that all places and lengths allow, four on their way
 * in each thread. For one file's kernels: everything is in its unnamed namespace. */
#ifndef DTI_MOVES_CUH
#define DTI_MOVES_CUH

#include "dtensor/kernels/cuda/boxes.cuh"

namespace
{

enum { THREADS = 256, WORDS = 4 };

/* A word of B bytes. */
template <int B> struct word;
template <> struct alignas(16) word<16> {
    uint32_t v[4];
};
template <> struct alignas(8) word<8> {
    uint32_t v[2];
};
template <> struct word<4> {
    uint32_t v;
};
template <> struct word<2> {
    uint16_t v;
};
template <> struct word<1> {
    uint8_t v;
};

/* Where a row goes and comes from: to NULL, nowhere; from NULL, it is zeros. */
struct place {
    char *to;
    const char *from;
};

template <typename W, typename Places>
__global__ void __launch_bounds__(THREADS)
    move_rows(const Places places, int64_t n_rows, int64_t n_words, int shift)
{
    const int lanes = 1 << shift, lane = (int)threadIdx.x & (lanes - 1);
    const int64_t rows = THREADS >> shift, step = (int64_t)gridDim.y * WORDS * lanes;

    for (int64_t row = blockIdx.x * rows + ((int)threadIdx.x >> shift); row < n_rows;
         row += gridDim.x * rows) {
        const place p = places(row);
        W *to = reinterpret_cast<W *>(p.to);
        const W *from = reinterpret_cast<const W *>(p.from);
        if (to == NULL) continue;
        for (int64_t i = (int64_t)blockIdx.y * WORDS * lanes + lane; i < n_words; i += step) {
            W words[WORDS] = {};
            DTI_UNROLL
            for (int k = 0; k < WORDS; k++)
                if (from != NULL && i + k * lanes < n_words) words[k] = from[i + k * lanes];
            DTI_UNROLL
            for (int k = 0; k < WORDS; k++)
                if (i + k * lanes < n_words) to[i + k * lanes] = words[k];
        }
    }
}

template <typename W, typename Places>
int move_words(dti_cuda *c, const Places &places, int64_t n_rows, int64_t row_bytes)
{
    const int64_t n_words = row_bytes / (int64_t)sizeof(W);
    const dti_row_grid g = dti_row_grid_of(n_rows, n_words, THREADS, WORDS);

    return DTI_LAUNCH(c, (move_rows<W, Places>), g.grid, dim3(THREADS), 0, places, n_rows, n_words,
                      g.shift);
}

/* `unit`: dti_unit_of() all places and row_bytes. */
template <typename Places>
int move(dti_cuda *c, const Places &places, int64_t n_rows, int64_t row_bytes, int unit)
{
    if (n_rows == 0 || row_bytes == 0) return 0;
    switch (unit) {
    case 16:
        return move_words<word<16>>(c, places, n_rows, row_bytes);
    case 8:
        return move_words<word<8>>(c, places, n_rows, row_bytes);
    case 4:
        return move_words<word<4>>(c, places, n_rows, row_bytes);
    case 2:
        return move_words<word<2>>(c, places, n_rows, row_bytes);
    default:
        return move_words<word<1>>(c, places, n_rows, row_bytes);
    }
}

inline uint64_t bits_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

} /* namespace */

#endif
