/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with weights of few bits: y[m, o] = sum_i x[m, i] s[o, i / G] (q[o, i] - z[o, i / G]),
 * i / G rounded down. Codes q of 4 or 8 bits lie in the order of inputs, the lowest bits first;
 * those of 8 may be floats, e4m3, which have no z.
 *
 * One order of sums for every number of rows. Inputs are taken in blocks; each belongs to one lane
 * of a vector, those of a lane in a block to one group. Lane l of an output's sum gets block after
 * block s (sum of its (q - z) x), then the lanes are added in a tree. So the bits of an output
 * depend on its rows of x and w alone. A tile is some rows and some outputs: the first one of these
 * outputs makes numbers of codes and keeps them, in level 1, for the others. */
#ifndef DTI_PACKED_H
#define DTI_PACKED_H

#include <dtensor/base.h>

/* Groups are not longer for kernels; floats behind the last scale; a zero point of 1 of kernels on
 * whole numbers: 1 and 128 in a word. */
enum { DTI_PACKED_GROUP = 128, DTI_PACKED_PAD = 16, DTI_PACKED_ZERO = 0x00800001 };

/* What codes are. */
typedef struct dti_packed_form {
    int64_t group;
    int bits;
    bool floats; /* e4m3 */
    bool zeros;  /* there are zero points; otherwise they are the middle of all codes */
} dti_packed_form;

typedef struct dti_packed_tile {
    dti_packed_form form;
    int64_t n_rows, n_outputs, depth; /* inputs: all, or a part, of whole blocks but for the last */
    const void *x;                    /* as dti_packed_ops.pack made it */
    const uint8_t *codes;             /* outputs are codes_stride bytes apart */
    int64_t codes_stride, ahead;      /* codes so many bytes on will be wanted next */
    const float *scales;              /* outputs are scales_stride apart; PAD more can be read */
    const float *shifts;              /* zeros: middle - z, as scales; whole: the word of z */
    int64_t scales_stride;
    bool kept;         /* the numbers that codes stand for are what another tile kept, */
    void *keep;        /* here, unless it was NULL */
    float *lanes;      /* the sums between one depth and the next */
    bool begins, ends; /* with the first depth, with the last one */
    float *y;          /* where it ends: [n_rows, y_stride], room for all outputs */
    int64_t y_stride;
} dti_packed_tile;

typedef struct dti_packed_ops {
    int rows, outputs; /* of a tile, at most; of fewer outputs the last one is computed again */
    int vector;        /* bytes */
    int64_t depth;     /* inputs at a time where they are cut */
    int lanes;         /* bytes of the sums between depths, of a row and an output */
    bool widens;       /* pack takes floats, otherwise x as it is */
    bool whole;        /* sums are of whole numbers */
    bool keeps; /* a tile that is alone with its outputs keeps numbers too, and needs lanes */
    int64_t (*row_bytes)(const dti_packed_form *f, int64_t depth); /* of a packed row */
    /* A row of a tile, its vectors `step` bytes apart, 64-byte aligned. */
    void (*pack)(void *to, int64_t step, const void *x, const dti_packed_form *f, int64_t depth);
    void (*multiply)(const dti_packed_tile *t);
} dti_packed_ops;

extern const dti_packed_ops dti_packed_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_packed_ops dti_packed_avx2;
extern const dti_packed_ops dti_packed_avx512;
extern const dti_packed_ops dti_packed_avx512_bf16; /* x of bf16 only, codes that are floats */
extern const dti_packed_ops dti_packed_vnni;        /* x of bf16 only, whole codes: up to 4 rows */
extern const dti_packed_ops dti_packed_vnni_rows;   /* and some more; the same bits */
extern const dti_packed_ops dti_packed_vnni_many;   /* and many; the same */
#endif

#endif
