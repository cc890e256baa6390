/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of one instruction set. Before including, define DT_SIMD, DT_SKINNY (the name of the
 * array) and R_MAX: R_MAX times O_MAX sums fit into the registers. */
#include "dtensor/kernels/cpu/skinny.h"

#include "dtensor/kernels/cpu/simd.inc.c"

/* Below SEVERAL_FROM rows one stream of w is faster, above it the reading of x would dominate. */
enum { CHUNK = 2 * VW, O_MAX = 4, SEVERAL_FROM = 4 };

/* Floats of a packed row: whole chunks, and a line more, so that rows of a power of two do not all
 * fall into the same sets of the cache. */
static inline int64_t packed_stride(int64_t n_in)
{
    return (n_in + CHUNK - 1) / CHUNK * CHUNK + 16;
}

static size_t packed_bytes(int64_t n_rows, int64_t n_in)
{
    return (size_t)(n_rows * packed_stride(n_in)) * sizeof(float);
}

static inline void pair_of_f32(const float *p, int64_t left, vf *v0, vf *v1)
{
    *v0 = load_f32(p, left);
    *v1 = left > VW ? load_f32(p + VW, left - VW) : vf_set(0.0f);
}

/* A vector of 32-bit words holds the even elements in its lower, the odd ones in its upper halves:
 * cheaper than widening in order. Both conversions are exact. */
static inline void pair_of_bf16(const uint16_t *p, int64_t left, vf *v0, vf *v1)
{
    vu both = { 0 };

    memcpy(&both, p, left >= CHUNK ? sizeof both : (size_t)left * sizeof *p);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    *v0 = (vf)(both << 16);
    *v1 = (vf)(both & 0xffff0000u);
#else
    *v1 = (vf)(both << 16);
    *v0 = (vf)(both & 0xffff0000u);
#endif
}

static inline void pair_of_f16(const uint16_t *p, int64_t left, vf *v0, vf *v1)
{
    *v0 = vf_of_f16(load_half(p, left));
    *v1 = left > VW ? vf_of_f16(load_half(p + VW, left - VW)) : vf_set(0.0f);
}

#define T                     float
#define PAIR(p, left, v0, v1) pair_of_f32((p), (left), &(v0), &(v1))
#define FN(name)              name##_of_f32
#include "dtensor/kernels/cpu/skinny.inc.c"

#define T                     uint16_t
#define PAIR(p, left, v0, v1) pair_of_bf16((p), (left), &(v0), &(v1))
#define FN(name)              name##_of_bf16
#include "dtensor/kernels/cpu/skinny.inc.c"

#define T                     uint16_t
#define PAIR(p, left, v0, v1) pair_of_f16((p), (left), &(v0), &(v1))
#define FN(name)              name##_of_f16
#include "dtensor/kernels/cpu/skinny.inc.c"

const dti_skinny_ops DT_SKINNY[DTI_N_SKINNY_DTYPES] = {
    [DT_F32] = { packed_bytes, pack_of_f32, dot_of_f32 },
    [DT_BF16] = { packed_bytes, pack_of_bf16, dot_of_bf16 },
    [DT_F16] = { packed_bytes, pack_of_f16, dot_of_f16 },
};
