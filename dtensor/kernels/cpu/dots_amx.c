/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows of bf16 on tiles (dots.h): 16 rows of w, as they lie in memory, times up to
 * 16 rows of x in the order that the instruction wants, x being the small operand that is cheap to
 * reorder. So little time goes into arithmetic that up to 31 rows cost not much more than reading
 * w. An output is a chain of f32 additions along i, that of panels_amx.c. */
#include "dtensor/kernels/cpu/dots.h"

#ifdef DT_HAVE_X86_KERNELS

#include <string.h>

#include "dtensor/kernels/cpu/tiles_amx.h"

/* Fewer rows than a tile of dots.h has: nothing is kept, and no depth follows another. */
enum { SIDE = DTI_TILE_SIDE, CHUNK = DTI_TILE_CHUNK, ROWS = 2 * SIDE };

typedef struct scratch {
    _Alignas(64) uint16_t w[SIDE * CHUNK];
    _Alignas(64) float sum[2][SIDE * SIDE];
} scratch;

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

/* Of a half: elements. */
static int64_t half_of(int64_t depth)
{
    return (depth + CHUNK - 1) / CHUNK * SIDE * CHUNK;
}

/* Row m of x goes to half m / 16; there element i of it is [i / 32][i % 32 / 2][m % 16][i % 2]. */
static void pack(void *to_, const void *x_, int64_t stride, int64_t n_rows, int64_t depth)
{
    const int64_t half = half_of(depth);

    memset(to_, 0, (size_t)((n_rows > SIDE ? 2 : 1) * half) * sizeof(uint16_t));
    for (int64_t m = 0; m < n_rows; m++) {
        const uint16_t *x = (const uint16_t *)(const void *)((const char *)x_ + m * stride);
        uint16_t *to = (uint16_t *)to_ + m / SIDE * half + m % SIDE * 2;
        for (int64_t i = 0; i < depth; i++) to[i / 2 * 2 * SIDE + i % 2] = x[i];
    }
}

/* Tile 2 = elements i .. of n rows of w from o on; zeros beyond. */
DTI_USES_TILES static void load_edge(const dti_dots_tile *t, scratch *s, int64_t o, int64_t n,
                                     int64_t i)
{
    const int64_t left = t->depth - i < CHUNK ? t->depth - i : CHUNK;
    const char *w = (const char *)t->w + o * t->w_stride + i * (int64_t)sizeof *s->w;

    memset(s->w, 0, sizeof s->w);
    for (int64_t r = 0; r < n; r++)
        memcpy(s->w + r * CHUNK, w + r * t->w_stride, (size_t)left * sizeof *s->w);
    _tile_loadd(2, s->w, CHUNK * sizeof *s->w);
}

/* Outputs o .. o + n - 1, n <= 16, of all rows. Tiles 0 and 1: sums [16 outputs, rows of x]; 2: w;
 * 3 and 4: x [16 pairs, rows of x]. */
DTI_USES_TILES static void outputs(const dti_dots_tile *t, scratch *s, int64_t o, int64_t n)
{
    const int64_t half = half_of(t->depth);
    const char *w = (const char *)t->w + o * t->w_stride;
    const uint16_t *x = t->x;
    const size_t x_bytes = sizeof *x * SIDE * 2;
    const bool two = t->n_rows > SIDE;

    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < t->depth; i += CHUNK) {
        if (n == SIDE && i + CHUNK <= t->depth)
            _tile_loadd(2, w + i * (int64_t)sizeof *x, (size_t)t->w_stride);
        else
            load_edge(t, s, o, n, i);
        _tile_loadd(3, x + i * SIDE, x_bytes);
        _tile_dpbf16ps(0, 2, 3);
        if (!two) continue;
        _tile_loadd(4, x + half + i * SIDE, x_bytes);
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, s->sum[0], SIDE * sizeof(float));
    if (two) _tile_stored(1, s->sum[1], SIDE * sizeof(float));
    for (int64_t m = 0; m < t->n_rows; m++)
        for (int64_t j = 0; j < n; j++)
            t->y[m * t->y_stride + o + j] = s->sum[m / SIDE][j * SIDE + m % SIDE];
}

DTI_USES_TILES static void multiply(const dti_dots_tile *t)
{
    scratch s;

    for (int64_t o = 0; o < t->n_outputs; o += SIDE)
        outputs(t, &s, o, t->n_outputs - o < SIDE ? t->n_outputs - o : SIDE);
}

const dti_dots_ops dti_dots_bf16_amx = {
    .rows = ROWS,
    .outputs = SIDE,
    .columns = CHUNK,
    .x_bytes = sizeof(uint16_t),
    .max_rows = ROWS - 1,
    .begin = begin,
    .end = end,
    .pack = pack,
    .multiply = multiply,
};

#endif
