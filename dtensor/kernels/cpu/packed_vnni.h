/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with codes of whole numbers and x of bf16, by dot products of bytes. A group of x is
 * taken as t X: t a power of two, X whole numbers of 16 bits, X = 256 hi + lo of signed bytes. So
 * sum_k (q - z) X is exact, in whatever order it is made, and only t s times it is a float. Group g
 * of an output is added to sum g % 4, group after group, and in the end (0 + 1) + (2 + 3): all
 * numbers of rows do that, by different loops.
 *
 * A span is four groups, or eight of 8 bytes: whole chunks of 64 bytes of codes. A packed row of x
 * is for each span the vectors of its chunks, hi and then lo, each one for codes of bytes, of even
 * and of odd inputs for those of half a byte; then for each four groups 16 bytes of each: -sum X,
 * its lower 7 bits and the rest as two numbers of 16 bits, and 16 bytes of each: t. */
#ifndef DTI_PACKED_VNNI_H
#define DTI_PACKED_VNNI_H

#include <immintrin.h>

#include "dtensor/kernels/cpu/packed.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef struct dti_code_span {
    int bits, bytes;   /* of a code, of a group of codes */
    int per, chunks;   /* vectors of x for one of codes, chunks of 64 bytes */
    int fours, inputs; /* of groups */
} dti_code_span;

static inline __attribute__((always_inline)) dti_code_span dti_code_span_of(const int bits,
                                                                            const int bytes)
{
    const int chunks = bytes <= 16 ? 1 : bytes / 16;

    return (
        dti_code_span){ bits, bytes, 8 / bits, chunks, bytes < 16 ? 2 : 1, chunks * 512 / bits };
}

/* Vectors of a row's span. */
static inline __attribute__((always_inline)) int64_t dti_code_span_vectors(const dti_code_span *s)
{
    return 2 * (s->chunks * s->per + s->fours);
}

/* sum + u x. The compiler's own form of it moves sums about, and out of registers. */
static inline __attribute__((always_inline)) __m512i dti_dot_bytes(__m512i sum, __m512i u,
                                                                   __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
    return sum;
}

/* The same of pairs of numbers of 16 bits. */
static inline __attribute__((always_inline)) __m512i dti_dot_pairs(__m512i sum, __m512i u,
                                                                   __m512i x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
    return sum;
}

/* A group of x as whole numbers, their sum, and the power of two that they are multiples of. */
void dti_packed_vnni_fix(int16_t *to, const uint16_t *x, int64_t group, int32_t *sum, float *unit);

int64_t dti_packed_vnni_row_bytes(const dti_packed_form *f, int64_t depth);
void dti_packed_vnni_pack(void *to, int64_t step, const void *x, const dti_packed_form *f,
                          int64_t depth);

#endif
