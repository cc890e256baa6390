/* SPDX-License-Identifier: Apache-2.0
 *
 * Products on packed operands: y[m, o] = sum_i x[m, i] w[o, i] of operands that lie turned, and of
 * many rows with AMX. Rows of x are packed into panels of `rows`, rows of w into panels of
 * `outputs`; a tile is the product of two panels. An element is one chain of f32 additions along i
 * from 0, however the work is cut. */
#ifndef DTI_PANELS_H
#define DTI_PANELS_H

#include <dtensor/base.h>

/* Columns begin .. begin + depth - 1 of some rows of a matrix, `stride` elements apart; of one that
 * lies turned the columns are. The other rows of a panel, and columns up to a multiple of what an
 * instruction takes, become zeros. */
typedef struct dti_panel_source {
    const void *first; /* row 0, column begin */
    int64_t n_rows, stride, depth;
    bool turned;
    void (*load)(float *y, const void *x, int64_t n); /* of the dtype; NULL for f32 */
    int64_t element_bytes;
} dti_panel_source;

/* Weights that will be packed next, to be called into level 2 while a tile is computed; with every
 * `columns` of the tile, as many of those rows. The columns are one line, or less, of memory. Where
 * they lie turned the rows here are columns, of which a panel takes some lines. */
typedef struct dti_panel_ahead {
    const char *first;
    int64_t n_rows, stride; /* bytes */
    int64_t step;           /* bytes of `columns` */
    int64_t bytes;          /* of a row: 64, or more where they lie turned */
} dti_panel_ahead;

/* A macro, since gcc takes a function that only prefetches for one without effect and drops its
 * calls. s: which step. */
#define DTI_PANEL_PREFETCH(ahead, s)                           \
    for (int64_t row_ = 0; row_ < (ahead)->n_rows; row_++)     \
        for (int64_t at_ = 0; at_ < (ahead)->bytes; at_ += 64) \
    __builtin_prefetch((ahead)->first + row_ * (ahead)->stride + (s) * (ahead)->step + at_, 0, 2)

typedef struct dti_panel_product {
    float *sums; /* [rows * outputs] in the kernel's own order */
    const void *x, *w;
    int64_t depth;
    bool add;  /* to sums, else they are overwritten */
    float *to; /* not NULL: the result goes there instead, [rows, outputs], rows `stride` apart */
    int64_t stride;
    dti_panel_ahead ahead;
} dti_panel_product;

typedef struct dti_panel_ops {
    int64_t rows, outputs;
    int64_t columns; /* of a step of dti_panel_ahead */
    int64_t depth;   /* columns at a time, some steps: level 1 holds a panel of w */
    int64_t x_bytes; /* of a column of a panel; of a step of columns, a multiple of 64 */
    int64_t w_bytes;
    bool stores_rows;                  /* multiply takes `to` */
    void (*begin)(void), (*end)(void); /* around the work of a thread; NULL: nothing to do */
    void (*pack_x)(void *to, const dti_panel_source *from); /* to: 64-byte aligned */
    void (*pack_w)(void *to, const dti_panel_source *from);
    void (*multiply)(const dti_panel_product *p); /* sums = or += the product of two panels */
    /* sums -> to [rows, outputs], rows `stride` apart */
    void (*unpack)(float *to, int64_t stride, const float *sums);
} dti_panel_ops;

#ifdef DT_HAVE_X86_KERNELS
extern const dti_panel_ops dti_panels_avx512; /* any dtype, through f32 */
extern const dti_panel_ops dti_panels_amx;    /* bf16 */
#endif

#endif
