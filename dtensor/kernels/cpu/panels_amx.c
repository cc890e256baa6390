/* SPDX-License-Identifier: Apache-2.0
 *
 * Panels of bf16 for AMX: 32 outputs and 32 rows of x are a square of four tiles of sums, each
 * [16 outputs, 16 rows]; a step of 32 columns loads two tiles of either operand for four products.
 * w is the first operand, whose tiles are pieces of its rows as they lie in memory: packing it,
 * the larger operand, is a copy. */
#include "dtensor/kernels/cpu/panels.h"

#ifdef DT_HAVE_X86_KERNELS

#include "dtensor/kernels/cpu/tiles_amx.h"
#include "dtensor/kernels/cpu/transpose_avx512.h"

enum {
    SIDE = DTI_TILE_SIDE,
    CHUNK = DTI_TILE_CHUNK,
    PANEL = 2 * SIDE, /* rows, and outputs */
    DEPTH = 256,
    TILE = SIDE * CHUNK, /* elements of bf16 */
    SUMS = SIDE * SIDE
};

/* Elements i .. i + 31 of row r, as 16 pairs; zeros where there is nothing. */
__attribute__((target("avx512f,avx512bw"))) static inline __m512i
load_pairs(const dti_panel_source *from, int64_t r, int64_t i)
{
    const int64_t left = from->depth - i;
    const uint16_t *row = (const uint16_t *)from->first + r * from->stride + i;

    if (r >= from->n_rows) return _mm512_setzero_si512();
    if (left >= CHUNK) return _mm512_loadu_si512(row);
    return _mm512_maskz_loadu_epi16((1u << left) - 1, row);
}

/* Columns i to i + 31 of 16 rows from r of a source that lies turned: [pair][row]. */
__attribute__((target("avx512f,avx512bw"))) static inline void
load_turned(__m512i square[SIDE], const dti_panel_source *from, int64_t r, int64_t i)
{
    const int64_t left = from->n_rows - r;
    const __mmask32 rows = left >= SIDE ? 0xffff : left > 0 ? (1u << left) - 1 : 0;
    const uint16_t *at = (const uint16_t *)from->first + i * from->stride + r;

    for (int64_t k = 0; k < SIDE; k++, at += 2 * from->stride) {
        const __mmask32 one = i + 2 * k < from->depth ? rows : 0;
        const __mmask32 two = i + 2 * k + 1 < from->depth ? rows : 0;
        const __m512i low = _mm512_maskz_loadu_epi16(one, at);
        const __m512i high = _mm512_maskz_loadu_epi16(two, at + (two != 0 ? from->stride : 0));
        square[k] = _mm512_or_si512(
            _mm512_cvtepu16_epi32(_mm512_castsi512_si256(low)),
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16));
    }
}

/* [chunk][half][pair][row], a pair being two elements of a row. */
__attribute__((target("avx512f,avx512bw"))) static void pack_x(void *to,
                                                               const dti_panel_source *from)
{
    for (int64_t i = 0; i < from->depth; i += CHUNK)
        for (int64_t half = 0; half < 2; half++) {
            uint16_t *tile = (uint16_t *)to + (i / CHUNK * 2 + half) * TILE;
            __m512i square[SIDE];
            for (int64_t k = 0; k < SIDE && !from->turned; k++)
                square[k] = load_pairs(from, half * SIDE + k, i);
            if (from->turned)
                load_turned(square, from, half * SIDE, i);
            else
                dti_transpose_16(square);
            for (int64_t k = 0; k < SIDE; k++) _mm512_store_si512(tile + k * CHUNK, square[k]);
        }
}

__attribute__((target("avx512f,avx512bw"))) static void pack_w_turned(void *to,
                                                                      const dti_panel_source *from)
{
    for (int64_t i = 0; i < from->depth; i += CHUNK)
        for (int64_t half = 0; half < 2; half++) {
            uint16_t *tile = (uint16_t *)to + (i / CHUNK * 2 + half) * TILE;
            __m512i square[SIDE];
            load_turned(square, from, half * SIDE, i);
            dti_transpose_16(square);
            for (int64_t k = 0; k < SIDE; k++) _mm512_store_si512(tile + k * CHUNK, square[k]);
        }
}

/* [chunk][half][row][element] */
__attribute__((target("avx512f,avx512bw"))) static void pack_w(void *to,
                                                               const dti_panel_source *from)
{
    if (from->turned) {
        pack_w_turned(to, from);
        return;
    }
    for (int64_t r = 0; r < PANEL; r++)
        for (int64_t i = 0; i < from->depth; i += CHUNK)
            _mm512_store_si512((uint16_t *)to + (i / CHUNK * 2 + r / SIDE) * TILE +
                                   r % SIDE * CHUNK,
                               load_pairs(from, r, i));
}

DTI_USES_TILES static void begin(void)
{
    const dti_tile_config config = dti_tile_full();

    dti_tile_configure(&config);
}

/* The system need not save the tiles of this thread any more. */
DTI_USES_TILES static void end(void)
{
    _tile_release();
}

/* Tiles 0 to 3: sums [half of the outputs][half of the rows]; 4, 5: w; 6, 7: x. */
DTI_USES_TILES static void multiply(const dti_panel_product *p)
{
    const uint16_t *x = p->x, *w = p->w;
    float *sums = p->sums;

    if (p->add) {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + SUMS, 64);
        _tile_loadd(2, sums + 2 * SUMS, 64);
        _tile_loadd(3, sums + 3 * SUMS, 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < p->depth; i += CHUNK, x += 2 * TILE, w += 2 * TILE) {
        DTI_PANEL_PREFETCH(&p->ahead, i / CHUNK);
        _tile_loadd(4, w, 64);
        _tile_loadd(6, x, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, x + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, w + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + SUMS, 64);
    _tile_stored(2, sums + 2 * SUMS, 64);
    _tile_stored(3, sums + 3 * SUMS, 64);
}

__attribute__((target("avx512f"))) static void unpack(float *to, int64_t stride, const float *sums)
{
    for (int64_t t = 0; t < 4; t++) {
        float *corner = to + t % 2 * SIDE * stride + t / 2 * SIDE;
        __m512i square[SIDE];
        for (int64_t k = 0; k < SIDE; k++)
            square[k] = _mm512_load_si512(sums + t * SUMS + k * SIDE);
        dti_transpose_16(square);
        for (int64_t k = 0; k < SIDE; k++) _mm512_storeu_si512(corner + k * stride, square[k]);
    }
}

const dti_panel_ops dti_panels_amx = {
    .rows = PANEL,
    .outputs = PANEL,
    .columns = CHUNK,
    .depth = DEPTH,
    .x_bytes = PANEL * sizeof(uint16_t),
    .w_bytes = PANEL * sizeof(uint16_t),
    .begin = begin,
    .end = end,
    .pack_x = pack_x,
    .pack_w = pack_w,
    .multiply = multiply,
    .unpack = unpack,
};

#endif
