/* SPDX-License-Identifier: Apache-2.0
 *
 * dti_convert() at the speed of a disk: the same bits, in loops that the compiler vectorises. */
#ifndef DTI_CHECKPOINT_CONVERT_H
#define DTI_CHECKPOINT_CONVERT_H

#include <dtensor/base.h>

/* n elements between any two float dtypes, or a copy of one dtype. Buffers do not overlap. */
void dti_convert_many(void *restrict to, dt_dtype to_dtype, const void *restrict from,
                      dt_dtype from_dtype, int64_t n);

/* One instruction set's loops. f16 and bf16 convert to each other through float. */
typedef struct dti_convert_loops {
    void (*f32_from_bf16)(float *restrict to, const uint16_t *restrict from, int64_t n);
    void (*f32_from_f16)(float *restrict to, const uint16_t *restrict from, int64_t n);
    void (*bf16_from_f32)(uint16_t *restrict to, const float *restrict from, int64_t n);
    void (*f16_from_f32)(uint16_t *restrict to, const float *restrict from, int64_t n);
} dti_convert_loops;

extern const dti_convert_loops dti_convert_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_convert_loops dti_convert_avx2;
#endif

/* How many of n numbers are infinite in f16 or bf16 and were not before: f16 ends at 65504, bf16 at
 * 3.3895e38, a little before f32 does. */
int64_t dti_count_overflows(const void *halves, dt_dtype dtype, const void *from,
                            dt_dtype from_dtype, int64_t n);

/* The largest number of one of them, for messages. */
const char *dti_largest_text(dt_dtype dtype);

#endif
