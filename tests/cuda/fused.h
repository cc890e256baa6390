/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls one after the other, with a kernel for each row and with a fused one: the same bytes
 * everywhere. Operands and results are places in one buffer of floats, so that any two of them may
 * lie in one place. Which calls come together is tested in test_cuda_fusion.c. */
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
    dti_fused which;
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

/* The stage of a row and the form of a norm. */
static inline int fu_stage(dti_fused which, const char *row, int *form)
{
    static const char *const norms[] = { "rms_norm", "rms_norm_once", "rms_norm_1p", "layer_norm" };

    for (*form = 0; *form < 4; (*form)++)
        if (strcmp(row, norms[*form]) == 0)
            return which == DTI_FUSED_HEADS ? DTI_HEADS_NORM_STAGE : DTI_ADD_NORM_STAGE;
    *form = 0;
    if (which == DTI_FUSED_ADD_NORM) return DTI_ADD_STAGE;
    return strcmp(row, "rope") == 0 ? DTI_HEADS_ROPE_STAGE : DTI_HEADS_WRITE_STAGE;
}

/* All calls by one kernel: each goes on with the chain whose result it takes, or begins one. */
static inline int fu_start_fused(const fu_run *r, const fu_memory *m)
{
    static const dti_norm_attr attr = { 1e-5f };
    dti_fused_chain chains[DTI_FUSED_CHAINS] = { { { NULL }, { 0 } } };
    struct {
        dt_local in[3], out;
        dt_kargs args;
    } calls[FU_MAX_CALLS];
    int ends[DTI_FUSED_CHAINS], n = 0;

    for (int i = 0; i < r->n_calls; i++) {
        int form, k = 0, s = fu_stage(r->which, r->calls[i].row, &form);
        for (int o = 0; o < r->calls[i].n_in; o++)
            calls[i].in[o] = fu_resolve(r, m, &r->calls[i].in[o]);
        calls[i].out = fu_resolve(r, m, &r->calls[i].out);
        calls[i].args = (dt_kargs){ .in = calls[i].in,
                                    .out = &calls[i].out,
                                    .attr = &attr,
                                    .n_in = r->calls[i].n_in,
                                    .n_out = 1 };
        while (k < n &&
               (ends[k] >= s || chains[k].call[ends[k]]->out[0].data != calls[i].in[0].data))
            k++;
        if (k == n) n++;
        DT_ASSERT(n <= DTI_FUSED_CHAINS);
        chains[k].call[s] = &calls[i].args;
        chains[k].form[s] = form;
        ends[k] = s;
    }
    return r->d->m->kernels->fused[r->which](r->d->c, chains, n);
}

/* Runs the calls; `got` gets the buffer. The number of kernels. */
static inline int64_t fu_run_once(const fu_run *r, bool fused, unsigned char *got)
{
    const dti_cuda_module *m = r->d->m;
    fu_memory memory = fu_open(r);
    int64_t before = m->launches(r->d->c);

    if (fused) DT_ASSERT_CUDA(m, fu_start_fused(r, &memory));
    for (int i = 0; i < r->n_calls && !fused; i++)
        DT_ASSERT_CUDA(m, fu_start(r, &memory, &r->calls[i]));
    DT_ASSERT_CUDA(m, m->copy(r->d->c, got, memory.floats, memory.bytes, DTI_CUDA_DOWN));
    before = m->launches(r->d->c) - before;
    fu_close(r, &memory);
    return before;
}

/* Fused they are one kernel and leave the bytes that a kernel for each leaves. */
static inline void fu_check(const fu_run *r, const char *what)
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
    if (n != 1)
        dt_test_fail(__FILE__, __LINE__, "%s of %s: %lld kernels, not one", what,
                     dt_dtype_name(r->dtype), (long long)n);
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            dt_test_fail(__FILE__, __LINE__, "%s of %s, skew %lld: element %zu differs", what,
                         dt_dtype_name(r->dtype), (long long)r->skew, i / dt_dtype_size(r->dtype));
    dti_free(got);
    dti_free(want);
}

#endif
