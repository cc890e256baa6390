/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/reduce.h"

#include <string.h>

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

void dti_reduce_into(void *acc, const void *x, int64_t n, dt_dtype t, dt_reduce op)
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
        DT_ASSERT(t == DT_F32); /* the others have no reduction of their own */
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

static bool is_half(dt_dtype t)
{
    return t == DT_BF16 || t == DT_F16;
}

void dti_reducer_first(dti_reducer *r, const void *x, int64_t n)
{
    r->n_sources = 1;
    if (is_half(r->dtype))
        dti_convert(r->acc, DT_F32, x, r->dtype, n);
    else
        memcpy(r->acc, x, (size_t)n * dt_dtype_size(r->dtype));
}

void dti_reducer_add(dti_reducer *r, const void *x, int64_t n)
{
    r->n_sources++;
    if (is_half(r->dtype)) {
        dti_convert(r->half, DT_F32, x, r->dtype, n);
        dti_reduce_into(r->acc, r->half, n, DT_F32, r->op);
    } else {
        dti_reduce_into(r->acc, x, n, r->dtype, r->op);
    }
}

const void *dti_reducer_finish(dti_reducer *r, int64_t n)
{
    const dt_dtype acc_dtype = is_half(r->dtype) ? DT_F32 : r->dtype;

    if (r->op == DT_AVG) divide(r->acc, n, acc_dtype, r->n_sources);
    if (!is_half(r->dtype)) return r->acc;
    dti_convert(r->half, r->dtype, r->acc, DT_F32, n);
    return r->half;
}
