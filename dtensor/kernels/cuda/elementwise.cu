/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that treat elements alone, of f32, bf16 or f16; formulas and roundings are those of
 * dtensor/kernels/cpu/rows.inc.c. Outputs may be inputs.
 *
 * A thread takes two packs of 16 bytes of each operand, a block apart, and loads both before it
 * computes: at full occupancy 64 KiB of loads per multiprocessor and operand are on their way,
 * three times what hides the latency of the memory of an H200. */
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

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

template <typename T> struct silu {
    __device__ float operator()(float x, float) const
    {
        return dti_silu(x);
    }
};

/* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), every operation rounds */
template <typename T> struct gelu_new {
    __device__ float operator()(float x, float) const
    {
        const float cube = dti_rounded<T>(dti_rounded<T>(x * x) * x);
        const float inner = dti_rounded<T>(x + dti_rounded<T>(cube * 0.044715f));
        const float th = dti_rounded<T>(dti_tanh(dti_rounded<T>(inner * 0.79788456080286536f)));

        return dti_rounded<T>(x * 0.5f) * dti_rounded<T>(th + 1.0f);
    }
};

template <typename T> struct gelu_tanh {
    __device__ float operator()(float x, float) const
    {
        return dti_gelu_tanh(x);
    }
};

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

template <typename T, typename F> int run_map(dti_cuda *c, const dt_kargs *a, F f)
{
    const int64_t n = dti_cuda_count(&a->in[0]), per_block = THREADS * PACKS * 16 / sizeof(T);
    const void *z = a->n_in > 1 ? a->in[1].data : NULL;
    const uintptr_t all = (uintptr_t)a->out[0].data | (uintptr_t)a->in[0].data | (uintptr_t)z;

    if (n == 0) return 0;
    return DTI_LAUNCH(c, (map<T, F>), dim3((unsigned)((n + per_block - 1) / per_block)),
                      dim3(THREADS), 0, (T *)a->out[0].data, (const T *)a->in[0].data, (const T *)z,
                      n, f, all % 16 == 0);
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

int dti_silu_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<silu>(c, a, "silu");
}

int dti_gelu_new_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<gelu_new>(c, a, "gelu_new");
}

int dti_gelu_tanh_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<gelu_tanh>(c, a, "gelu_tanh");
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

int dti_add_scalar_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<scalar>(c, a, "add_scalar", 1.0, value_of(a));
}

int dti_mul_scalar_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype<scalar>(c, a, "mul_scalar", value_of(a), -0.0);
}
} /* extern "C" */
