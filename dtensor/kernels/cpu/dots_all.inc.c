/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of one instruction set. Before including, define DT_SIMD, DT_DOTS (the name of the
 * array) and R_MAX: R_MAX times O_MAX sums, and some vectors more, fit into the registers. */
#include "dtensor/kernels/cpu/dots.h"

#include "dtensor/kernels/cpu/simd.inc.c"

enum { O_MAX = 4, COLUMNS = 2 * VW };

/* Of 32-bit words the even elements are the lower halves, the odd ones the upper: cheaper than
 * widening in order. */
static inline vf part_of_bf16(const uint16_t *p, int h)
{
    vu both;

    memcpy(&both, p, sizeof both);
    return (vf)((__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) == (h == 0) ? both << 16
                                                                        : both & 0xffff0000u);
}

static inline vf part_of_f16(const uint16_t *p, int h)
{
    vh half;

    memcpy(&half, p + h * VW, sizeof half);
    return vf_of_f16(half);
}

#define T              float
#define P              float
#define V              vf
#define LANES          VW
#define PARTS          2
#define UNPACKED(p, h) vf_load((p) + (h)*VW)
#define FMA            vf_fma
#define FN(name)       name##_of_f32
#include "dtensor/kernels/cpu/dots.inc.c"

#define T              uint16_t
#define P              float
#define V              vf
#define LANES          VW
#define PARTS          2
#define UNPACKED(p, h) part_of_bf16((p), (h))
#define FMA            vf_fma
#define FN(name)       name##_of_bf16
#include "dtensor/kernels/cpu/dots.inc.c"

#define T              uint16_t
#define P              float
#define V              vf
#define LANES          VW
#define PARTS          2
#define UNPACKED(p, h) part_of_f16((p), (h))
#define FMA            vf_fma
#define FN(name)       name##_of_f16
#include "dtensor/kernels/cpu/dots.inc.c"

#define OPS(dtype)                                                                          \
    {                                                                                       \
        .rows = R_MAX, .outputs = O_MAX, .columns = COLUMNS, .x_bytes = sizeof(float),      \
        .lane_bytes = sizeof(vf), .pack = pack_of_##dtype, .multiply = multiply_of_##dtype, \
    }

const dti_dots_ops DT_DOTS[DTI_N_DOTS_DTYPES] = {
    [DT_F32] = OPS(f32),
    [DT_BF16] = OPS(bf16),
    [DT_F16] = OPS(f16),
};
