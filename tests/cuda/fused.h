/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls one after the other, with rows fused and without: the same bytes everywhere, and as many
 * kernels as expected. Operands and results are places in one buffer of floats, so that any two of
 * them may overlap. */
#ifndef DT_TEST_FUSED_H
#define DT_TEST_FUSED_H

#include "tests/cuda/rows.h"

enum { FU_ELEMENTS = 1 << 16, FU_POSITIONS = 64, FU_MAX_CALLS = 8, FU_GUARD = 64 };

/* A place: elements from `at` on. i32 are positions, in a buffer of their own. */
static inline dt_local fu_at(int64_t at, int n_axes, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (dt_local){ .data = (void *)(intptr_t)at, .n_axes = n_axes, .shape = { a, b, c, d } };
}

static inline dt_local fu_positions(int64_t b, int64_t t)
{
    return (dt_local){ .dtype = DT_I32, .n_axes = 2, .shape = { b, t } };
}

typedef struct fu_call {
    const char *row;
    int n_in;
    dt_local in[3], out;
} fu_call;

/* Element a is at index skew of a row of 256 bytes. */
typedef struct fu_run {
    const cr_device *d;
    dt_dtype dtype;
    int64_t skew;
    const fu_call *calls;
    int n_calls;
    int64_t positions[FU_POSITIONS]; /* of the tokens; those not given are 0 */
} fu_run;

typedef struct fu_memory {
    unsigned char *floats;
    int32_t *positions;
    size_t bytes;
} fu_memory;

static inline fu_memory fu_open(const fu_run *r)
{
    const int64_t n = FU_ELEMENTS;
    fu_memory m = { .bytes = FU_ELEMENTS * dt_dtype_size(r->dtype) };
    dt_local values = kt_filled(r->dtype, 1, &n, KT_UNIFORM, 77);
    int32_t positions[FU_POSITIONS];

    for (int i = 0; i < FU_POSITIONS; i++) positions[i] = (int32_t)r->positions[i];
    DT_ASSERT_CUDA(r->d->m, r->d->m->alloc(r->d->c, m.bytes, DTI_CUDA_DEVICE, (void **)&m.floats));
    DT_ASSERT_CUDA(
        r->d->m, r->d->m->alloc(r->d->c, sizeof positions, DTI_CUDA_DEVICE, (void **)&m.positions));
    DT_ASSERT_CUDA(r->d->m, r->d->m->copy(r->d->c, m.floats, values.data, m.bytes, DTI_CUDA_UP));
    DT_ASSERT_CUDA(r->d->m,
                   r->d->m->copy(r->d->c, m.positions, positions, sizeof positions, DTI_CUDA_UP));
    kt_release(&values);
    return m;
}

static inline void fu_close(const fu_run *r, fu_memory *m)
{
    r->d->m->release(r->d->c, DTI_CUDA_DEVICE, m->floats);
    r->d->m->release(r->d->c, DTI_CUDA_DEVICE, m->positions);
}

static inline dt_local fu_resolve(const fu_run *r, const fu_memory *m, const dt_local *x)
{
    dt_local y = *x;

    if (y.dtype == DT_I32) {
        y.data = m->positions;
        return y;
    }
    y.dtype = r->dtype;
    y.data = m->floats + ((size_t)(intptr_t)x->data + (size_t)r->skew) * dt_dtype_size(r->dtype);
    return y;
}

/* One call; attributes are those of norms. */
static inline int fu_start(const fu_run *r, const fu_memory *m, const fu_call *call)
{
    static const dti_norm_attr attr = { 1e-5f };
    dt_local in[3], out = fu_resolve(r, m, &call->out);
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = call->n_in, .n_out = 1 };

    for (int i = 0; i < call->n_in; i++) in[i] = fu_resolve(r, m, &call->in[i]);
    return dt_test_cuda_row(r->d->m, call->row)(r->d->c, &args);
}

/* Runs the calls; `got` gets the buffer. The number of kernels. */
static inline int64_t fu_run_once(const fu_run *r, bool fused, unsigned char *got)
{
    const dti_cuda_module *m = r->d->m;
    fu_memory memory = fu_open(r);
    int64_t before;

    DT_ASSERT_CUDA(m, m->fuse(r->d->c, fused));
    before = m->launches(r->d->c);
    for (int i = 0; i < r->n_calls; i++) DT_ASSERT_CUDA(m, fu_start(r, &memory, &r->calls[i]));
    DT_ASSERT_CUDA(m, m->copy(r->d->c, got, memory.floats, memory.bytes, DTI_CUDA_DOWN));
    before = m->launches(r->d->c) - before;
    DT_ASSERT_CUDA(m, m->fuse(r->d->c, true));
    fu_close(r, &memory);
    return before;
}

/* Fused they are n_kernels and leave the bytes that a kernel for each leaves. */
static inline void fu_check(const fu_run *r, int64_t n_kernels, const char *what)
{
    const size_t bytes = FU_ELEMENTS * dt_dtype_size(r->dtype);
    unsigned char *got, *want;
    int64_t n;

    DT_ASSERT_OK(dti_alloc(bytes, (void **)&got));
    DT_ASSERT_OK(dti_alloc(bytes, (void **)&want));
    n = fu_run_once(r, false, want);
    if (n != r->n_calls)
        dt_test_fail(__FILE__, __LINE__, "%s: %lld kernels for %d calls", what, (long long)n,
                     r->n_calls);
    n = fu_run_once(r, true, got);
    if (n != n_kernels)
        dt_test_fail(__FILE__, __LINE__, "%s of %s: %lld kernels, not %lld", what,
                     dt_dtype_name(r->dtype), (long long)n, (long long)n_kernels);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            dt_test_fail(__FILE__, __LINE__, "%s of %s, skew %lld: element %zu differs", what,
                         dt_dtype_name(r->dtype), (long long)r->skew, i / dt_dtype_size(r->dtype));
    dti_free(got);
    dti_free(want);
}

#endif
