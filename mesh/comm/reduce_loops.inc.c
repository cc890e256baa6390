/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of all types for one instruction set. Defined by the includer: LOOPS, the name of the
 * table. Every set gives the same bits: the loops work element by element. */
#include "mesh/comm/reduce_loops.h"
#include "base/dtype.h"

/* Integer sums and products wrap, as in PyTorch; unsigned arithmetic makes that defined. */

#define T          float
#define NAME(stem) stem##_f32
#define ADD(a, b)  ((a) + (b))
#define MUL(a, b)  ((a) * (b))
#define IS_NAN(a)  ((a) != (a))
#include "mesh/comm/reduce.inc.c"

#define T          double
#define NAME(stem) stem##_f64
#define ADD(a, b)  ((a) + (b))
#define MUL(a, b)  ((a) * (b))
#define IS_NAN(a)  ((a) != (a))
#include "mesh/comm/reduce.inc.c"

#define T          int32_t
#define NAME(stem) stem##_i32
#define ADD(a, b)  ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define MUL(a, b)  ((int32_t)((uint32_t)(a) * (uint32_t)(b)))
#define IS_NAN(a)  false
#include "mesh/comm/reduce.inc.c"

#define T          int64_t
#define NAME(stem) stem##_i64
#define ADD(a, b)  ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define MUL(a, b)  ((int64_t)((uint64_t)(a) * (uint64_t)(b)))
#define IS_NAN(a)  false
#include "mesh/comm/reduce.inc.c"

static void into(void *acc, const void *x, int64_t n, dt_dtype t, dt_reduce op)
{
    switch (t) {
    case DT_F32:
        into_f32(acc, x, n, op);
        break;
    case DT_F64:
        into_f64(acc, x, n, op);
        break;
    case DT_I32:
        into_i32(acc, x, n, op);
        break;
    case DT_I64:
        into_i64(acc, x, n, op);
        break;
    default:
        DT_ASSERT(t == DT_F32); /* the others have none of their own */
        break;
    }
}

static void pair(void *sum, const void *x, const void *y, int64_t n, dt_dtype t, dt_reduce op)
{
    switch (t) {
    case DT_F32:
        pair_f32(sum, x, y, n, op);
        break;
    case DT_F64:
        pair_f64(sum, x, y, n, op);
        break;
    case DT_I32:
        pair_i32(sum, x, y, n, op);
        break;
    default:
        pair_i64(sum, x, y, n, op);
        break;
    }
}

static void divide(void *acc, int64_t n, dt_dtype t, int divisor)
{
    switch (t) {
    case DT_F32:
        divide_f32(acc, n, divisor);
        break;
    case DT_F64:
        divide_f64(acc, n, divisor);
        break;
    case DT_I32:
        divide_i32(acc, n, divisor);
        break;
    default:
        divide_i64(acc, n, divisor);
        break;
    }
}

const dti_reduce_loops LOOPS = { into, pair, divide };
