/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of any number of rows: y[m, o] = sum_i x[m, i] w[o, i], w being read as it lies. A tile
 * is some rows of x and some outputs. An output is a sum of lanes along the inputs, lane l of
 * inputs l, l + lanes, ..., and then one sum over the lanes in a fixed order (tiles of AMX: one
 * chain along the inputs). So its bits depend on its rows of x and w alone, whatever is computed
 * beside it and wherever the work is cut. */
#ifndef DTI_DOTS_H
#define DTI_DOTS_H

#include <dtensor/base.h>

/* Rows up to which outputs can be taken one at a time. */
enum { DTI_DOTS_SINGLE = 4 };

/* Inputs of a depth, all of them or a part. */
typedef struct dti_dots_tile {
    int64_t n_rows, n_outputs, depth;
    int64_t width; /* outputs at a time: 1 (of few rows), 2, or dti_dots_ops.outputs */
    const void *x; /* as dti_dots_ops.pack made it */
    const void *w; /* as it lies, rows w_stride bytes apart */
    int64_t w_stride;
    float *lanes;      /* the sums between one depth and the next */
    bool begins, ends; /* with the first depth, with the last one */
    float *y;          /* where it ends: [n_rows, outputs], rows y_stride floats apart */
    int64_t y_stride;
    const char *ahead; /* the weights that come later, to be called into level 2: */
    int64_t ahead_stride;
    int64_t n_ahead; /* while some inputs are multiplied, the bytes of so many rows */
} dti_dots_tile;

/* One weight dtype on one instruction set. */
typedef struct dti_dots_ops {
    int64_t rows, outputs; /* of a tile, at most; y takes outputs up to a multiple of these */
    int64_t columns;       /* inputs at a time: a depth that another one follows is some of them */
    int64_t x_bytes;       /* of an input of a row, packed */
    int64_t lane_bytes;    /* of `lanes`, of a row and an output */
    int64_t max_rows;      /* more are the work of panels (panels.h); 0: no bound */
    void (*begin)(void), (*end)(void); /* around the work of a thread; NULL: nothing to do */
    /* x of the weight's dtype, rows `stride` bytes apart -> that of a tile, 64-byte aligned */
    void (*pack)(void *to, const void *x, int64_t stride, int64_t n_rows, int64_t depth);
    void (*multiply)(const dti_dots_tile *t);
} dti_dots_ops;

/* Calls n times `bytes` at `at`, which goes on. A macro, since gcc takes a function that only
 * prefetches for one without effect and drops its calls. */
#define DTI_DOTS_PREFETCH(at, n, bytes)                             \
    do {                                                            \
        for (int64_t byte_ = 0; byte_ < (n) * (bytes); byte_ += 64) \
            __builtin_prefetch((at) + byte_, 0, 2);                 \
        (at) += (n) * (bytes);                                      \
    } while (0)

enum { DTI_N_DOTS_DTYPES = 3 }; /* DT_F32, DT_BF16, DT_F16 */
extern const dti_dots_ops dti_dots_portable[DTI_N_DOTS_DTYPES];
#ifdef DT_HAVE_X86_KERNELS
extern const dti_dots_ops dti_dots_avx2[DTI_N_DOTS_DTYPES];
extern const dti_dots_ops dti_dots_avx512[DTI_N_DOTS_DTYPES];
extern const dti_dots_ops dti_dots_bf16_avx512_bf16; /* weights of bf16 only */
extern const dti_dots_ops dti_dots_bf16_amx;
#endif

#endif
