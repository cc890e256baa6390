/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that treat elements alone, of f32, bf16 or f16; formulas and roundings are those of
 * dtensor/kernels/formulas.h and dtensor/kernels/cpu/rows.inc.c. Outputs may be inputs.
 *
 * A thread takes two packs of 16 bytes of each operand, a block apart, and loads both before it
 * computes: at full occupancy 64 KiB of loads per multiprocessor and operand are on their way,
 * three times what hides the latency of the memory of an H200. */
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/cuda/spread.cuh"
#include "dtensor/kernels/formulas.h"

namespace
{

enum { THREADS = 256, PACKS = 2 };

/* --- formulas: of one element, in float; the kernel rounds what they return ------------------- */

template <typename T> struct add {
    __device__ float operator()(float x, float z) const
    {
        return x + z;
    }
};

template <typename T> struct mul {
    __device__ float operator()(float x, float z) const
    {
        return x * z;
    }
};

template <typename T> struct difference {
    __device__ float operator()(float x, float z) const
    {
        return x - z;
    }
};

template <typename T> struct quotient {
    __device__ float operator()(float x, float z) const
    {
        return x / z;
    }
};

/* Functions of one element (formulas.h), and what they are written with. */
#define EXP(x)          dti_exp(x)
#define LOG(x)          dti_log(x)
#define SQRT(x)         sqrtf(x)
#define TANH(x)         dti_tanh(x)
#define ERF(x)          dti_erf(x)
#define SILU(x)         dti_silu(x)
#define GELU_TANH(x)    dti_gelu_tanh(x)
#define SELECT(c, a, b) ((c) ? (a) : (b))
#define SET(c)          (c)
#define RN(x)           dti_rounded<T>(x)
#define F(name, formula, slope)                           \
    template <typename T> struct formula_##name {         \
        __device__ float operator()(float x, float) const \
        {                                                 \
            return formula;                               \
        }                                                 \
    };
DTI_FORMULAS(F)
#undef F

template <typename T> struct silu_mul {
    __device__ float operator()(float g, float u) const
    {
        return dti_rounded<T>(dti_silu(g)) * u;
    }
};

template <typename T> struct gelu_tanh_mul {
    __device__ float operator()(float g, float u) const
    {
        return dti_rounded<T>(dti_gelu_tanh(g)) * u;
    }
};

/* cap tanh(x / cap), every operation rounds */
template <typename T> struct soft_cap {
    float cap;

    __device__ float operator()(float x, float) const
    {
        return dti_rounded<T>(dti_tanh(dti_rounded<T>(x / cap))) * cap;
    }
};

/* Gradients: dy times the slope at x, or at what y tells of it. */
#define F(name, formula, slope)                              \
    template <typename T> struct slope_##name {              \
        __device__ float operator()(float dy, float x) const \
        {                                                    \
            return dy * (slope);                             \
        }                                                    \
    };
DTI_CURVES(F)
#undef F

template <typename T> struct soft_cap_backward {
    float cap;

    __device__ float operator()(float dy, float y) const
    {
        const float t = y / cap;

        return dy * (1.0f - t * t);
    }
};

/* Of f(g) u: what dy u and dy are multiplied by. */
struct silu_gate {
    __device__ static void at(float x, float *slope, float *value)
    {
        *slope = DTI_SWISH_SLOPE(x, 1.0f);
        *value = dti_silu(x);
    }
};

struct gelu_tanh_gate {
    __device__ static void at(float x, float *slope, float *value)
    {
        *slope = DTI_GELU_TANH_SLOPE(x);
        *value = dti_gelu_tanh(x);
    }
};

/* x factor + term in f64, rounded to f32 and then to T */
template <typename T> struct scalar {
    double factor, term;

    __device__ float operator()(float x, float) const
    {
        return (float)((double)x * factor + term);
    }
};

/* --- the kernel ------------------------------------------------------------------------------- */

/* y[i] = f(x[i], z[i]); z NULL: of x alone. */
template <typename T, typename F>
__global__ void __launch_bounds__(THREADS)
    map(T *y, const T *x, const T *z, int64_t n, F f, bool aligned)
{
    enum { N = 16 / sizeof(T) };
    const int64_t first = ((int64_t)blockIdx.x * PACKS * THREADS + threadIdx.x) * N;
    float a[PACKS][N], b[PACKS][N] = { { 0.0f } };

    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = first + p * THREADS * N;
        dti_load<T, N>(a[p], x + at, n - at, aligned);
        if (z != NULL) dti_load<T, N>(b[p], z + at, n - at, aligned);
    }
    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = first + p * THREADS * N;
        if (at >= n) return;
        DTI_UNROLL
        for (int i = 0; i < N; i++) a[p][i] = f(a[p][i], b[p][i]);
        dti_store<T, N>(y + at, a[p], n - at, aligned);
    }
}

/* The same for operands that are spread: a thread has an element. */
template <typename T, typename F>
__global__ void __launch_bounds__(THREADS)
    map_spread(T *y, const T *x, const T *z, const __grid_constant__ dti_spread s, F f)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t at[DTI_SPREAD_MAX_IN];

    if (i >= s.n) return;
    dti_spread_at(s, i, at);
    dti_narrow(y + i, f(dti_widen(x[at[0]]), dti_widen(z[at[1]])));
}

unsigned blocks_of(int64_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

/* A choice between two, by a mask of bytes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    choose_spread(T *y, const uint8_t *mask, const T *x, const T *z,
                  const __grid_constant__ dti_spread s)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t at[DTI_SPREAD_MAX_IN];

    if (i >= s.n) return;
    dti_spread_at(s, i, at);
    y[i] = mask[at[0]] != 0 ? x[at[1]] : z[at[2]];
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    compare_spread(uint8_t *y, const T *x, const T *z, const __grid_constant__ dti_spread s,
                   int relation)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t at[DTI_SPREAD_MAX_IN];

    if (i >= s.n) return;
    dti_spread_at(s, i, at);
    const float a = dti_widen(x[at[0]]), b = dti_widen(z[at[1]]);
    y[i] = relation == DT_LESS ? a < b : relation == DT_LESS_EQUAL ? a <= b : a == b;
}

template <typename T> int run_compare(dti_cuda *c, const dt_kargs *a)
{
    const dti_spread s = dti_spread_all(a);

    if (s.n == 0) return 0;
    return DTI_LAUNCH(c, compare_spread<T>, dim3(blocks_of(s.n)), dim3(THREADS), 0,
                      (uint8_t *)a->out[0].data, (const T *)a->in[0].data, (const T *)a->in[1].data,
                      s, (int)((const dti_compare_attr *)a->attr)->relation);
}

template <typename T, typename F> int run_map(dti_cuda *c, const dt_kargs *a, F f)
{
    const int64_t n = dti_cuda_count(&a->in[0]), per_block = THREADS * PACKS * 16 / sizeof(T);
    const void *z = a->n_in > 1 ? a->in[1].data : NULL;
    const uintptr_t all = (uintptr_t)a->out[0].data | (uintptr_t)a->in[0].data | (uintptr_t)z;

    if (a->n_in > 1) {
        const dti_spread s = dti_spread_all(a);
        if (s.n == 0) return 0;
        if (!s.plain)
            return DTI_LAUNCH(c, (map_spread<T, F>), dim3(blocks_of(s.n)), dim3(THREADS), 0,
                              (T *)a->out[0].data, (const T *)a->in[0].data, (const T *)z, s, f);
    }
    if (n == 0) return 0;
    return DTI_LAUNCH(c, (map<T, F>), dim3((unsigned)((n + per_block - 1) / per_block)),
                      dim3(THREADS), 0, (T *)a->out[0].data, (const T *)a->in[0].data, (const T *)z,
                      n, f, all % 16 == 0);
}

/* y[i] += x[i] */
template <typename T>
__global__ void __launch_bounds__(THREADS) add_into(float *y, const T *x, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n) y[i] += dti_widen(x[i]);
}

template <typename T> int run_add_into(dti_cuda *c, const dt_kargs *a)
{
    const int64_t n = dti_cuda_count(&a->in[0]);

    if (n == 0) return 0;
    return DTI_LAUNCH(c, add_into<T>, dim3(blocks_of(n)), dim3(THREADS), 0, (float *)a->out[0].data,
                      (const T *)a->in[0].data, n);
}

/* Gradients of f(g) u. Operands and results, which may lie where they do. */
template <typename T> struct gated {
    T *dg, *du;
    const T *dy, *g, *u;
    int64_t n;
    bool aligned;
};

template <typename T, typename F>
__global__ void __launch_bounds__(THREADS) open_gates(const gated<T> j)
{
    enum { N = 16 / sizeof(T) };
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float dy[N], g[N], u[N];

    if (at >= j.n) return;
    dti_load<T, N>(dy, j.dy + at, j.n - at, j.aligned);
    dti_load<T, N>(g, j.g + at, j.n - at, j.aligned);
    dti_load<T, N>(u, j.u + at, j.n - at, j.aligned);
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        float slope, value;
        F::at(g[i], &slope, &value);
        g[i] = dy[i] * u[i] * slope;
        u[i] = dy[i] * value;
    }
    dti_store<T, N>(j.dg + at, g, j.n - at, j.aligned);
    dti_store<T, N>(j.du + at, u, j.n - at, j.aligned);
}

template <typename T, typename F> int run_gated(dti_cuda *c, const dt_kargs *a)
{
    const int64_t n = dti_cuda_count(&a->in[0]), per_block = THREADS * 16 / sizeof(T);
    gated<T> j = { (T *)a->out[0].data,
                   (T *)a->out[1].data,
                   (const T *)a->in[0].data,
                   (const T *)a->in[1].data,
                   (const T *)a->in[2].data,
                   n,
                   false };

    j.aligned =
        ((uintptr_t)j.dg | (uintptr_t)j.du | (uintptr_t)j.dy | (uintptr_t)j.g | (uintptr_t)j.u) %
            16 ==
        0;
    if (n == 0) return 0;
    return DTI_LAUNCH(c, (open_gates<T, F>), dim3((unsigned)((n + per_block - 1) / per_block)),
                      dim3(THREADS), 0, j);
}

template <typename F> int gated_by_dtype(dti_cuda *c, const dt_kargs *a, const char *op)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_gated<float, F>(c, a);
    case DT_BF16:
        return run_gated<dti_bf16, F>(c, a);
    case DT_F16:
        return run_gated<dti_f16, F>(c, a);
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
}

/* By the dtype of operand 0; `...` initialises the formula. */
template <template <typename> class F, typename... Constants>
int by_dtype(dti_cuda *c, const dt_kargs *a, const char *op, Constants... constants)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_map<float>(c, a, F<float>{ constants... });
    case DT_BF16:
        return run_map<dti_bf16>(c, a, F<dti_bf16>{ constants... });
    case DT_F16:
        return run_map<dti_f16>(c, a, F<dti_f16>{ constants... });
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
}

double value_of(const dt_kargs *a)
{
    return ((const dti_scalar_attr *)a->attr)->value;
}

} /* namespace */

extern "C" {

int dti_add_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<add>(c, a, "add");
}

int dti_mul_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<mul>(c, a, "mul");
}

#define F(name, formula, slope)                           \
    int dti_##name##_cuda(dti_cuda *c, const dt_kargs *a) \
    {                                                     \
        return by_dtype<formula_##name>(c, a, #name);     \
    }
DTI_FORMULAS(F)
#undef F

int dti_sub_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<difference>(c, a, "sub");
}

int dti_div_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<quotient>(c, a, "div");
}

int dti_where_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_spread s = dti_spread_all(a);
    const dt_local *x = &a->in[1], *z = &a->in[2], *y = &a->out[0];
    const uint8_t *mask = (const uint8_t *)a->in[0].data;

    if (x->dtype != DT_F32 && x->dtype != DT_BF16 && x->dtype != DT_F16)
        return dti_refuse_dtype("where", x->dtype);
    if (s.n == 0) return 0;
    if (x->dtype == DT_F32)
        return DTI_LAUNCH(c, choose_spread<uint32_t>, dim3(blocks_of(s.n)), dim3(THREADS), 0,
                          (uint32_t *)y->data, mask, (const uint32_t *)x->data,
                          (const uint32_t *)z->data, s);
    return DTI_LAUNCH(c, choose_spread<uint16_t>, dim3(blocks_of(s.n)), dim3(THREADS), 0,
                      (uint16_t *)y->data, mask, (const uint16_t *)x->data,
                      (const uint16_t *)z->data, s);
}

int dti_compare_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_compare<float>(c, a);
    case DT_BF16:
        return run_compare<dti_bf16>(c, a);
    case DT_F16:
        return run_compare<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("compare", a->in[0].dtype);
    }
}

int dti_silu_mul_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<silu_mul>(c, a, "silu_mul");
}

int dti_gelu_tanh_mul_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<gelu_tanh_mul>(c, a, "gelu_tanh_mul");
}

int dti_soft_cap_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<soft_cap>(c, a, "soft_cap", (float)value_of(a));
}

#define F(name, formula, slope)                                    \
    int dti_##name##_backward_cuda(dti_cuda *c, const dt_kargs *a) \
    {                                                              \
        return by_dtype<slope_##name>(c, a, #name "_backward");    \
    }
DTI_CURVES(F)
#undef F

int dti_soft_cap_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<soft_cap_backward>(c, a, "soft_cap_backward", (float)value_of(a));
}

int dti_silu_mul_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return gated_by_dtype<silu_gate>(c, a, "silu_mul_backward");
}

int dti_gelu_tanh_mul_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return gated_by_dtype<gelu_tanh_gate>(c, a, "gelu_tanh_mul_backward");
}

int dti_accumulate_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_add_into<float>(c, a);
    case DT_BF16:
        return run_add_into<dti_bf16>(c, a);
    case DT_F16:
        return run_add_into<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("accumulate", a->in[0].dtype);
    }
}

int dti_add_scalar_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<scalar>(c, a, "add_scalar", 1.0, value_of(a));
}

int dti_mul_scalar_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<scalar>(c, a, "mul_scalar", value_of(a), -0.0);
}
} /* extern "C" */
