/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with weights of few bits: y[m, o] = sum_i x[m, i] s[o, i / G] (q[o, i] - z[o, i / G]),
 * i / G rounded down. Codes q of 4 or 8 bits lie in the order of inputs, the lowest bits first;
 * those of 8 may be floats, e4m3, which have no z.
 *
 * One order of sums for every number of rows: a chunk is a vector of codes, word l of it holds
 * 32 / bits neighbouring inputs, all of one group. Lane l of an output's sum gets chunk after chunk
 * s (sum_k (q - mid) x + (mid - z) sum_k x), then the lanes are added in a tree. */
#ifndef DTI_PACKED_H
#define DTI_PACKED_H

#include <dtensor/base.h>

enum { DTI_PACKED_OUTPUTS = 4, DTI_PACKED_PAD = 16 };

typedef struct dti_packed_args {
    const void *x; /* rows as dti_packed_ops.pack made them, x_stride bytes apart */
    int64_t x_stride;
    const uint8_t *codes; /* of DTI_PACKED_OUTPUTS outputs at most, [O, I bits / 8] */
    const float *scales;  /* [O, I / G], and room for DTI_PACKED_PAD more */
    const float *shifts;  /* mid - z, as scales; or NULL: zeros */
    float *y;             /* [M, y_stride] */
    int64_t n_rows, n_in, group;
    int64_t y_stride;
    int bits;
    bool floats; /* codes are e4m3 */
} dti_packed_args;

typedef struct dti_packed_ops {
    int64_t (*stride)(int64_t n_in, int bits);                      /* bytes of a packed row */
    void (*pack)(void *to, const float *x, int64_t n_in, int bits); /* one row, 64-byte aligned */
    void (*dot)(const dti_packed_args *a, int n_out);               /* n_out outputs of all rows */
} dti_packed_ops;

extern const dti_packed_ops dti_packed_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_packed_ops dti_packed_avx2;
extern const dti_packed_ops dti_packed_avx512;
extern const dti_packed_ops dti_packed_avx512_bf16; /* x of bf16 only */
#endif

#endif
