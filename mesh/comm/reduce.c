/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/reduce.h"

#include <string.h>

#include "base/dtype.h"
#include "mesh/comm/reduce_loops.h"

static const dti_reduce_loops *loops(void)
{
#ifdef DT_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx2")) return &dti_reduce_avx2;
#endif
    return &dti_reduce_portable;
}

/* For f32, f64, i32, i64. */
void dti_reduce_into(void *acc, const void *x, int64_t n, dt_dtype t, dt_reduce op)
{
    loops()->into(acc, x, n, t, op);
}

static bool is_half(dt_dtype t)
{
    return t == DT_BF16 || t == DT_F16;
}

dt_dtype dti_reduce_dtype(dt_dtype dtype)
{
    return is_half(dtype) ? DT_F32 : dtype;
}

void dti_reducer_first(dti_reducer *r, const void *x, int64_t n)
{
    r->n_sources = 1;
    r->sum = r->acc;
    if (is_half(r->dtype))
        dti_convert(r->acc, DT_F32, x, r->dtype, n);
    else
        memcpy(r->acc, x, (size_t)n * dt_dtype_size(r->dtype));
}

void dti_reducer_first_two(dti_reducer *r, void *to, const void *x, const void *y, int64_t n)
{
    if (is_half(r->dtype)) {
        dti_reducer_first(r, x, n);
        dti_reducer_add(r, y, n);
        return;
    }
    r->n_sources = 2;
    r->sum = to != NULL ? to : r->acc;
    loops()->pair(r->sum, x, y, n, r->dtype, r->op);
}

void dti_reducer_add(dti_reducer *r, const void *x, int64_t n)
{
    r->n_sources++;
    if (is_half(r->dtype)) {
        dti_convert(r->half, DT_F32, x, r->dtype, n);
        dti_reduce_into(r->sum, r->half, n, DT_F32, r->op);
    } else {
        dti_reduce_into(r->sum, x, n, r->dtype, r->op);
    }
}

const void *dti_reducer_finish(dti_reducer *r, int64_t n)
{
    if (r->op == DT_AVG) loops()->divide(r->sum, n, dti_reduce_dtype(r->dtype), r->n_sources);
    if (!is_half(r->dtype)) return r->sum;
    dti_convert(r->half, r->dtype, r->sum, DT_F32, n);
    return r->half;
}
