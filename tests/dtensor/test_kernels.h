/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of CPU kernels share. A kernel is run on every instruction set of the machine with
 * 1, 2 and 3 threads: the result is compared with one computed in float64, must be the same bits
 * for every number of threads, and must leave the bytes around its output alone. */
#ifndef DT_TEST_KERNELS_H
#define DT_TEST_KERNELS_H

#include "tests/support/dt_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/kernels/cpu/cpu.h"

enum { KT_MAX_IN = 8, KT_GUARD_BYTES = 128, KT_MAX_THREADS = 3 };

/* Values of inputs. */
typedef enum kt_fill {
    KT_UNIFORM, /* in -1 .. 1 */
    KT_EQUAL,   /* all 0.75 */
    KT_MIXED,   /* magnitudes from 1e-4 to 1e4 side by side */
    KT_ZERO
} kt_fill;

static const dt_dtype kt_floats[] = { DT_F32, DT_BF16, DT_F16 };
static const int64_t kt_sizes[] = { 0, 1, 7, 31, 33, 250, 257 };

/* One call of a kernel and what it should give. `want` and `slack` are per element of `out`, which
 * is result `which` of n_out (0 for 1); `others` are the other results, in their places:
 * |got - want| <= slack + unit(dtype) |want|, unit being half an ulp of the output's dtype. */
typedef struct kt_case {
    const char *name;
    dt_kernel kernel;
    int n_in;
    dt_local in[KT_MAX_IN];
    dt_local out;
    int n_out, which;
    dt_local others[DT_OP_MAX_OUT];
    const void *attr;
    double *want;  /* NULL: the caller looks at the bits itself */
    double *slack; /* NULL: zero */
    void (*check)(const struct kt_case *c, const void *got); /* in place of want */
} kt_case;

static inline uint32_t kt_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static inline double kt_value(kt_fill fill, uint32_t *state)
{
    const double u = kt_random(state) / 8388608.0 - 1.0;

    switch (fill) {
    case KT_EQUAL:
        return 0.75;
    case KT_MIXED:
        return u * pow(10.0, (double)(kt_random(state) % 9) - 4.0);
    case KT_ZERO:
        return 0.0;
    default:
        return u;
    }
}

/* A zeroed tensor of n_axes extents; bytes are owned by the case. */
static inline dt_local kt_local(dt_dtype dtype, int n_axes, const int64_t *shape)
{
    dt_local x = { .dtype = dtype, .n_axes = n_axes };
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= x.shape[a] = shape[a];
    DT_ASSERT_OK(dti_big_alloc((size_t)n * dt_dtype_size(dtype) + 64, &x.data));
    return x;
}

static inline int64_t kt_count(const dt_local *x)
{
    return dti_local_count(x);
}

static inline void kt_release(dt_local *x)
{
    dti_big_free(x->data, (size_t)kt_count(x) * dt_dtype_size(x->dtype) + 64);
    x->data = NULL;
}

/* A tensor of floats with values. */
static inline dt_local kt_filled(dt_dtype dtype, int n_axes, const int64_t *shape, kt_fill fill,
                                 uint32_t seed)
{
    dt_local x = kt_local(dtype, n_axes, shape);
    const int64_t n = kt_count(&x);

    for (int64_t i = 0; i < n; i++) dti_store_f32(x.data, dtype, i, (float)kt_value(fill, &seed));
    return x;
}

static inline double kt_get(const dt_local *x, int64_t i)
{
    return (double)dti_load_f32(x->data, x->dtype, i);
}

static inline double kt_round(dt_dtype dtype, double value)
{
    uint64_t bytes;

    dti_store_f32(&bytes, dtype, 0, (float)value);
    return (double)dti_load_f32(&bytes, dtype, 0);
}

/* Half an ulp, relative. */
static inline double kt_unit(dt_dtype dtype)
{
    return dtype == DT_BF16 ? 0x1p-8 : dtype == DT_F16 ? 0x1p-11 : 0x1p-24;
}

/* Room for `want` and `slack` of the output. */
static inline void kt_expect(kt_case *c)
{
    const size_t n = (size_t)kt_count(&c->out) + 1;

    DT_ASSERT_OK(dti_alloc_array(n, sizeof(double), (void **)&c->want));
    DT_ASSERT_OK(dti_alloc_array(n, sizeof(double), (void **)&c->slack));
}

static inline void kt_compare(const kt_case *c, const void *got, const char *isa)
{
    const int64_t n = kt_count(&c->out);
    const double smallest = c->out.dtype == DT_F16 ? 0x1p-25 : 0x1p-126; /* subnormals may flush */

    for (int64_t i = 0; i < n; i++) {
        const double g = (double)dti_load_f32(got, c->out.dtype, i), w = c->want[i];
        const double allowed = c->slack[i] + 1.01 * kt_unit(c->out.dtype) * fabs(w) + smallest;
        if (g == w || (isnan(g) && isnan(w)) || fabs(g - w) <= allowed) continue;
        dt_test_fail(__FILE__, __LINE__,
                     "%s %s on %s: element %lld of %lld is %.9g, not %.9g (%.3g is allowed)",
                     c->name, dt_dtype_name(c->out.dtype), isa, (long long)i, (long long)n, g, w,
                     allowed);
    }
}

/* Runs the case once into `bytes` that lie between two guards. */
static inline void kt_run_once(const kt_case *c, dti_cpu *cpu, unsigned char *raw, size_t bytes)
{
    dt_local out[DT_OP_MAX_OUT];
    const dt_kargs args = { c->in, out, c->attr, cpu, c->n_in, c->n_out > 0 ? c->n_out : 1, NULL };

    memset(raw, 0xa5, bytes + 2 * KT_GUARD_BYTES);
    memcpy(out, c->others, sizeof out);
    out[c->which] = c->out;
    out[c->which].data = raw + KT_GUARD_BYTES;
    DT_ASSERT_OK(c->kernel(&args));
    for (size_t i = 0; i < KT_GUARD_BYTES; i++)
        if (raw[i] != 0xa5 || raw[KT_GUARD_BYTES + bytes + i] != 0xa5)
            dt_test_fail(__FILE__, __LINE__, "%s wrote outside its output", c->name);
}

/* Runs the case everywhere, checks it, and frees what it holds. */
static inline void kt_run(kt_case *c)
{
    const size_t bytes = (size_t)kt_count(&c->out) * dt_dtype_size(c->out.dtype);
    unsigned char *raw[KT_MAX_THREADS + 1] = { NULL };

    for (int t = 1; t <= KT_MAX_THREADS; t++)
        DT_ASSERT_OK(dti_alloc(bytes + 2 * KT_GUARD_BYTES, (void **)&raw[t]));
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (int t = 1; t <= KT_MAX_THREADS; t++) {
            dti_pool *pool;
            dti_cpu *cpu;
            DT_ASSERT_OK(dti_pool_create(t, false, NULL, NULL, &pool));
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &cpu));
            kt_run_once(c, cpu, raw[t], bytes);
            if (t == 1 && c->want != NULL)
                kt_compare(c, raw[t] + KT_GUARD_BYTES, dti_isa_name((dti_isa)isa));
            if (t == 1 && c->check != NULL) c->check(c, raw[t] + KT_GUARD_BYTES);
            if (memcmp(raw[1], raw[t], bytes + 2 * KT_GUARD_BYTES) != 0)
                dt_test_fail(__FILE__, __LINE__, "%s on %s: %d threads give other bits than one",
                             c->name, dti_isa_name((dti_isa)isa), t);
            dti_cpu_destroy(&cpu);
            dti_pool_destroy(&pool);
        }
    for (int t = 1; t <= KT_MAX_THREADS; t++) dti_free(raw[t]);
    for (int i = 0; i < c->n_in; i++) kt_release(&c->in[i]);
    for (int r = 0; r < c->n_out; r++)
        if (r != c->which) kt_release(&c->others[r]);
    dti_free(c->want);
    dti_free(c->slack);
    c->want = c->slack = NULL;
}

#endif
