/* SPDX-License-Identifier: Apache-2.0
 *
 * Panels of f32 for AVX-512: 24 of the 32 registers hold a tile of 12 rows and 32 outputs; each
 * column costs two loads of w, 12 broadcasts of x and 24 multiply-adds. */
#include "dtensor/kernels/cpu/panels.h"

#include "dtensor/kernels/cpu/transpose_avx512.h"

enum { LANES = 16, ROWS = 12, VECTORS = 2, OUTPUTS = VECTORS * LANES, DEPTH = 256 };

/* 16 columns from i of up to n rows from r; zeros where there is nothing. */
static void load_edge(__m512i to[LANES], const dti_panel_source *from, int64_t r, int64_t i,
                      int64_t n)
{
    const int64_t left = from->depth - i < LANES ? from->depth - i : LANES;
    const __mmask16 mask = (__mmask16)((1u << left) - 1);

    for (int64_t k = 0; k < LANES; k++) {
        const char *row =
            (const char *)from->first + ((r + k) * from->stride + i) * from->element_bytes;
        float converted[LANES];
        to[k] = _mm512_setzero_si512();
        if (k >= n || r + k >= from->n_rows) continue;
        if (from->load != NULL) {
            from->load(converted, row, left);
            row = (const char *)converted;
        }
        to[k] = _mm512_maskz_loadu_epi32(mask, row);
    }
}

static inline void load_square(__m512i to[LANES], const dti_panel_source *from, int64_t r,
                               int64_t i, const int64_t n)
{
    if (from->load == NULL && r + n <= from->n_rows && i + LANES <= from->depth) {
        const float *row = (const float *)from->first + r * from->stride + i;
        for (int64_t k = 0; k < n; k++) to[k] = _mm512_loadu_si512(row + k * from->stride);
        for (int64_t k = n; k < LANES; k++) to[k] = _mm512_setzero_si512();
    } else {
        load_edge(to, from, r, i, n);
    }
}

/* Up to 16 rows from r of column i of a source that lies turned, zeros after the last. */
static inline __m512i load_turned(const dti_panel_source *from, int64_t r, int64_t i)
{
    const int64_t left = from->n_rows - r;
    const __mmask16 mask = (__mmask16)(left >= LANES ? 0xffffu : left > 0 ? (1u << left) - 1u : 0u);
    const char *at = (const char *)from->first + (i * from->stride + r) * from->element_bytes;
    float converted[LANES];

    if (from->load != NULL && left > 0) {
        from->load(converted, at, left < LANES ? left : LANES);
        at = (const char *)converted;
    }
    return _mm512_maskz_loadu_epi32(mask, at);
}

/* [column, ROWS] */
static void pack_x(void *to, const dti_panel_source *from)
{
    const __mmask16 mask = (1u << ROWS) - 1;

    for (int64_t i = 0; i < from->depth && from->turned; i++)
        _mm512_mask_storeu_epi32((float *)to + i * ROWS, mask, load_turned(from, 0, i));
    if (from->turned) return;
    for (int64_t i = 0; i < from->depth; i += LANES) {
        float *p = (float *)to + i * ROWS;
        __m512i square[LANES];
        load_square(square, from, 0, i, ROWS);
        dti_transpose_16(square);
        for (int k = 0; k < LANES; k++) _mm512_mask_storeu_epi32(p + k * ROWS, mask, square[k]);
    }
}

/* [column, OUTPUTS] */
static void pack_w(void *to, const dti_panel_source *from)
{
    for (int64_t i = 0; i < from->depth && from->turned; i++)
        for (int64_t v = 0; v < VECTORS; v++)
            _mm512_store_si512((float *)to + i * OUTPUTS + v * LANES,
                               load_turned(from, v * LANES, i));
    for (int64_t v = 0; v < VECTORS && !from->turned; v++)
        for (int64_t i = 0; i < from->depth; i += LANES) {
            float *p = (float *)to + i * OUTPUTS + v * LANES;
            __m512i square[LANES];
            load_square(square, from, v * LANES, i, LANES);
            dti_transpose_16(square);
            for (int k = 0; k < LANES; k++) _mm512_store_si512(p + k * OUTPUTS, square[k]);
        }
}

/* Constant loops that compilers unroll, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void
add_columns(__m512 sum[ROWS][VECTORS], const float *x, const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++, x += ROWS, w += OUTPUTS) {
        const __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + LANES);
        for (int r = 0; r < ROWS; r++) {
            const __m512 xr = _mm512_set1_ps(x[r]);
            sum[r][0] = _mm512_fmadd_ps(xr, w0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(xr, w1, sum[r][1]);
        }
    }
}

/* In steps of LANES columns: what comes next is asked for once a step, and the loop over columns
 * has a constant length. */
static void multiply(const dti_panel_product *p)
{
    const float *x = p->x, *w = p->w;
    const int64_t n_steps = p->depth / LANES;
    float *to = p->to != NULL ? p->to : p->sums;
    const int64_t stride = p->to != NULL ? p->stride : OUTPUTS;
    __m512 sum[ROWS][VECTORS];

    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] =
                p->add ? _mm512_load_ps(p->sums + r * OUTPUTS + v * LANES) : _mm512_setzero_ps();
    for (int64_t s = 0; s < n_steps; s++, x += LANES * ROWS, w += LANES * OUTPUTS) {
        DTI_PANEL_PREFETCH(&p->ahead, s);
        add_columns(sum, x, w, LANES);
    }
    add_columns(sum, x, w, p->depth % LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_ps(to + r * stride + v * LANES, sum[r][v]);
}

static void unpack(float *to, int64_t stride, const float *sums)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            _mm512_storeu_ps(to + r * stride + v * LANES,
                             _mm512_load_ps(sums + r * OUTPUTS + v * LANES));
}

const dti_panel_ops dti_panels_avx512 = {
    .rows = ROWS,
    .outputs = OUTPUTS,
    .columns = LANES,
    .depth = DEPTH,
    .x_bytes = ROWS * sizeof(float),
    .w_bytes = OUTPUTS * sizeof(float),
    .stores_rows = true,
    .pack_x = pack_x,
    .pack_w = pack_w,
    .multiply = multiply,
    .unpack = unpack,
};
