/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows of bf16 on tiles: 16 rows of w, as they lie in memory, times up to 16 rows
 * of x in the order that the instruction wants, x being the small operand that is cheap to reorder.
 * So little time goes into arithmetic that up to 31 rows cost not much more than reading w.
 *
 * An output is a chain of f32 additions along i, the same for every M >= 2; one row goes to the dot
 * products of skinny_avx512_bf16.c, which are faster there and round in another order. */
#include "dtensor/kernels/cpu/skinny.h"

#ifdef DT_HAVE_X86_KERNELS

#include <string.h>

#include "dtensor/kernels/cpu/tiles_amx.h"

enum { SIDE = DTI_TILE_SIDE, CHUNK = DTI_TILE_CHUNK };

typedef struct scratch {
    _Alignas(64) uint16_t w[SIDE * CHUNK];
    _Alignas(64) float sum[2][SIDE * SIDE];
} scratch;

static int64_t n_chunks(int64_t n_in)
{
    return (n_in + CHUNK - 1) / CHUNK;
}

static size_t packed_bytes(int64_t n_rows, int64_t n_in)
{
    if (n_rows == 1) return dti_skinny_bf16_avx512_bf16.packed_bytes(n_rows, n_in);
    return (size_t)(n_rows > SIDE ? 2 : 1) * (size_t)n_chunks(n_in) * SIDE * CHUNK *
           sizeof(uint16_t);
}

/* Row m of x goes to half m / 16; there element i of it is [i / 32][i % 32 / 2][m % 16][i % 2]. */
static void pack(void *to_, const void *x_, int64_t n_rows, int64_t n_in)
{
    const int64_t half = n_chunks(n_in) * SIDE * CHUNK;

    if (n_rows == 1) {
        dti_skinny_bf16_avx512_bf16.pack(to_, x_, n_rows, n_in);
        return;
    }
    memset(to_, 0, packed_bytes(n_rows, n_in));
    for (int64_t m = 0; m < n_rows; m++) {
        const uint16_t *x = (const uint16_t *)x_ + m * n_in;
        uint16_t *to = (uint16_t *)to_ + m / SIDE * half + m % SIDE * 2;
        for (int64_t i = 0; i < n_in; i++) to[i / 2 * 2 * SIDE + i % 2] = x[i];
    }
}

/* Tiles 0 and 1: sums [16 outputs, rows of x]; 2: w; 3 and 4: x [16 pairs, rows of x]. */
DTI_USES_TILES static void configure(int64_t n_rows)
{
    dti_tile_config config = dti_tile_full();
    const int64_t first = n_rows < SIDE ? n_rows : SIDE;
    const int64_t second = n_rows > SIDE ? n_rows - SIDE : 1;

    config.row_bytes[0] = config.row_bytes[3] = (uint16_t)(first * 4);
    config.row_bytes[1] = config.row_bytes[4] = (uint16_t)(second * 4);
    dti_tile_configure(&config);
}

/* Tile 2 = rows o .. o + n - 1 of w, elements i .. i + left - 1; zeros beyond. */
DTI_USES_TILES static void load_edge(const dti_skinny_args *a, scratch *s, int64_t o, int64_t n,
                                     int64_t i)
{
    const int64_t left = a->n_in - i < CHUNK ? a->n_in - i : CHUNK;

    memset(s->w, 0, sizeof s->w);
    for (int64_t r = 0; r < n; r++)
        memcpy(s->w + r * CHUNK, (const uint16_t *)a->w + (o + r) * a->n_in + i,
               (size_t)left * sizeof *s->w);
    _tile_loadd(2, s->w, CHUNK * sizeof(uint16_t));
}

/* Outputs o .. o + n - 1, n <= 16, of all rows of x. */
DTI_USES_TILES static void outputs(const dti_skinny_args *a, scratch *s, int64_t o, int64_t n)
{
    const uint16_t *w = (const uint16_t *)a->w + o * a->n_in, *x = a->x;
    const int64_t half = n_chunks(a->n_in) * SIDE * CHUNK;
    const size_t x_bytes = sizeof(uint16_t) * SIDE * 2;
    const bool two = a->n_rows > SIDE;

    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < a->n_in; i += CHUNK) {
        if (n == SIDE && i + CHUNK <= a->n_in)
            _tile_loadd(2, w + i, (size_t)a->n_in * sizeof *w);
        else
            load_edge(a, s, o, n, i);
        _tile_loadd(3, x + i * SIDE, x_bytes);
        _tile_dpbf16ps(0, 2, 3);
        if (!two) continue;
        _tile_loadd(4, x + half + i * SIDE, x_bytes);
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, s->sum[0], SIDE * sizeof(float));
    if (two) _tile_stored(1, s->sum[1], SIDE * sizeof(float));
    for (int64_t m = 0; m < a->n_rows; m++)
        for (int64_t j = 0; j < n; j++)
            a->y[m * a->y_stride + o + j] = s->sum[m / SIDE][j * SIDE + m % SIDE];
}

DTI_USES_TILES static void dot(const dti_skinny_args *a, int64_t begin, int64_t end)
{
    scratch s;

    if (a->n_rows == 1) {
        dti_skinny_bf16_avx512_bf16.dot(a, begin, end);
        return;
    }
    configure(a->n_rows);
    for (int64_t o = begin; o < end; o += SIDE) outputs(a, &s, o, end - o < SIDE ? end - o : SIDE);
    _tile_release(); /* the system need not save them any more */
}

const dti_skinny_ops dti_skinny_bf16_amx = { packed_bytes, pack, dot };

#endif
