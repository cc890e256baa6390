/* SPDX-License-Identifier: Apache-2.0
 *
 * A row's CUDA kernel beside its CPU kernel: both get the same bytes, and what they make is
 * compared. Buffers on the device begin `skew` elements behind an address of 256 bytes and lie
 * between guards; every case runs twice and must give the same bits again. */
#ifndef DT_TEST_ROWS_H
#define DT_TEST_ROWS_H

#include "tests/dtensor/test_kernels.h"
#include "tests/support/cuda.h"

/* A rank's hold of the device that tests use. */
typedef struct cr_device {
    const dti_cuda_module *m;
    dti_cuda *c;
} cr_device;

static inline cr_device cr_open(void)
{
    const dti_cuda_module *m = dt_test_cuda_module();

    return (cr_device){ m, dt_test_cuda_open(m) };
}

static inline void cr_close(cr_device *d)
{
    d->m->close(d->c);
}

/* CR_DEVICE d = cr_open(): closed where its scope ends. */
#define CR_DEVICE __attribute__((cleanup(cr_close))) cr_device

typedef struct cr_case {
    const char *row;
    dt_kernel cpu;
    int n_in;
    dt_local in[KT_MAX_IN];
    dt_local out; /* dtype and shape: of result `which` of n_out (0 for 1) */
    int n_out, which;
    dt_local others[DT_OP_MAX_OUT]; /* the other results, in their places */
    const void *attr;
    int64_t skew;
    int in_place; /* out is this operand: 1 the first, 2 the second; 0 none of them */
    double ulps;  /* how far results may lie apart, in units of the last place of the output */
    double slack; /* or by how much, in absolute terms */
    const double *slacks; /* and by how much more each element; NULL: by nothing */
} cr_case;

static const int64_t cr_skews[] = { 0, 1 };

static inline size_t cr_bytes(const dt_local *x)
{
    return (size_t)kt_count(x) * dt_dtype_size(x->dtype);
}

/* A device buffer with guards and a copy of x. */
static inline void *cr_up(const cr_device *d, const dt_local *x, int64_t skew)
{
    const size_t bytes = cr_bytes(x), first = (size_t)skew * dt_dtype_size(x->dtype);
    unsigned char *host, *data;

    DT_ASSERT_OK(dti_alloc(bytes + first + 2 * KT_GUARD_BYTES, (void **)&host));
    memset(host, 0xa5, bytes + first + 2 * KT_GUARD_BYTES);
    if (x->data != NULL) memcpy(host + KT_GUARD_BYTES + first, x->data, bytes);
    DT_ASSERT_CUDA(d->m, d->m->alloc(d->c, bytes + first + 2 * KT_GUARD_BYTES, DTI_CUDA_DEVICE,
                                     (void **)&data));
    DT_ASSERT_CUDA(d->m,
                   d->m->copy(d->c, data, host, bytes + first + 2 * KT_GUARD_BYTES, DTI_CUDA_UP));
    dti_free(host);
    return data + KT_GUARD_BYTES + first;
}

static inline void cr_release(const cr_device *d, const dt_local *x, void *data, int64_t skew)
{
    d->m->release(d->c, DTI_CUDA_DEVICE,
                  (unsigned char *)data - KT_GUARD_BYTES - (size_t)skew * dt_dtype_size(x->dtype));
}

/* Brings the output down to `got` and looks at its guards. */
static inline void cr_down(const cr_case *c, const cr_device *d, const void *data, void *got)
{
    const size_t bytes = cr_bytes(&c->out);
    unsigned char *host;

    DT_ASSERT_OK(dti_alloc(bytes + 2 * KT_GUARD_BYTES, (void **)&host));
    DT_ASSERT_CUDA(d->m, d->m->copy(d->c, host, (const unsigned char *)data - KT_GUARD_BYTES,
                                    bytes + 2 * KT_GUARD_BYTES, DTI_CUDA_DOWN));
    DT_ASSERT_CUDA(d->m, d->m->sync(d->c));
    for (size_t i = 0; i < KT_GUARD_BYTES; i++)
        if (host[i] != 0xa5 || host[KT_GUARD_BYTES + bytes + i] != 0xa5)
            dt_test_fail(__FILE__, __LINE__, "%s wrote outside its output", c->row);
    memcpy(got, host + KT_GUARD_BYTES, bytes);
    dti_free(host);
}

/* Runs the CUDA kernel; got has room for the output. */
static inline void cr_run_cuda(const cr_case *c, const cr_device *d, void *got)
{
    dt_local in[KT_MAX_IN], out[DT_OP_MAX_OUT];
    const int n_out = c->n_out > 0 ? c->n_out : 1;
    const dt_kargs args = {
        .in = in, .out = out, .attr = c->attr, .n_in = c->n_in, .n_out = n_out
    };
    void *data;

    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i];
        in[i].data = cr_up(d, &c->in[i], c->skew);
    }
    data = c->in_place > 0 ? in[c->in_place - 1].data : cr_up(d, &c->out, c->skew);
    for (int r = 0; r < n_out; r++) {
        out[r] = r == c->which ? c->out : c->others[r];
        out[r].data = r == c->which ? data : cr_up(d, &c->others[r], c->skew);
    }
    DT_ASSERT_CUDA(d->m, dt_test_cuda_row(d->m, c->row)(d->c, &args));
    cr_down(c, d, data, got);
    if (c->in_place == 0) cr_release(d, &c->out, data, c->skew);
    for (int r = 0; r < n_out; r++)
        if (r != c->which) cr_release(d, &out[r], out[r].data, c->skew);
    for (int i = 0; i < c->n_in; i++) cr_release(d, &c->in[i], in[i].data, c->skew);
}

static inline void cr_run_cpu(const cr_case *c, void *want)
{
    dt_local out[DT_OP_MAX_OUT];
    const size_t bytes = cr_bytes(&c->out);
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
    dt_kargs args = { .in = c->in,
                      .out = out,
                      .attr = c->attr,
                      .n_in = c->n_in,
                      .n_out = c->n_out > 0 ? c->n_out : 1 };

    memcpy(out, c->others, sizeof out);
    out[c->which] = c->out;
    out[c->which].data = want;
    if (c->in_place > 0 && bytes > 0) memcpy(want, c->in[c->in_place - 1].data, bytes);
    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    args.cpu = cpu;
    DT_ASSERT_OK(c->cpu(&args));
}

/* The place of a float in the order of floats of its dtype. */
static inline int64_t cr_order(const void *data, dt_dtype dtype, int64_t i)
{
    int64_t bits = dtype == DT_F32 ? ((const int32_t *)data)[i] : ((const int16_t *)data)[i];

    return bits >= 0 ? bits : (dtype == DT_F32 ? INT32_MIN : INT16_MIN) - bits;
}

static inline bool cr_is_float(dt_dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

/* Bits, or floats within the case's bounds; any NaN is as good as another. */
static inline void cr_compare(const cr_case *c, const unsigned char *got, const unsigned char *want)
{
    const dt_dtype t = c->out.dtype;
    const size_t bytes = dt_dtype_size(t);
    const int64_t n = kt_count(&c->out);

    for (int64_t i = 0; i < n; i++) {
        double g, w;
        if (memcmp(got + (size_t)i * bytes, want + (size_t)i * bytes, bytes) == 0) continue;
        if (!cr_is_float(t))
            dt_test_fail(__FILE__, __LINE__, "%s: element %lld of %lld has other bits", c->row,
                         (long long)i, (long long)n);
        g = (double)dti_load_f32(got, t, i);
        w = (double)dti_load_f32(want, t, i);
        if (isnan(g) && isnan(w)) continue;
        if (!isnan(g) && !isnan(w) &&
            (fabs(g - w) <= c->slack + (c->slacks != NULL ? c->slacks[i] : 0.0) ||
             llabs(cr_order(got, t, i) - cr_order(want, t, i)) <= (int64_t)c->ulps))
            continue;
        dt_test_fail(__FILE__, __LINE__,
                     "%s of %s, skew %lld: element %lld of %lld is %.9g on the device, %.9g on the "
                     "CPU (%g ulp or %.3g are allowed)",
                     c->row, dt_dtype_name(t), (long long)c->skew, (long long)i, (long long)n, g, w,
                     c->ulps, c->slack);
    }
}

/* Compares, and frees the operands. */
static inline void cr_run(cr_case *c, const cr_device *d)
{
    const size_t bytes = cr_bytes(&c->out);
    unsigned char *got, *again, *want;

    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&got));
    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&again));
    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&want));
    cr_run_cpu(c, want);
    cr_run_cuda(c, d, got);
    cr_compare(c, got, want);
    cr_run_cuda(c, d, again);
    if (memcmp(got, again, bytes) != 0)
        dt_test_fail(__FILE__, __LINE__, "%s gives other bits in a second run", c->row);
    dti_big_free(got, bytes + 64);
    dti_big_free(again, bytes + 64);
    dti_big_free(want, bytes + 64);
    for (int i = 0; i < c->n_in; i++) kt_release(&c->in[i]);
    for (int r = 0; r < c->n_out; r++)
        if (r != c->which) kt_release(&c->others[r]);
}

/* How far functions of e^x may lie apart: the CPU's vectors have the device's fused steps, the
 * portable form rounds each of them twice. */
static inline double cr_function_ulps(void)
{
    return dti_isa_detect() == DTI_ISA_PORTABLE ? 4.0 : 0.0;
}

#endif
