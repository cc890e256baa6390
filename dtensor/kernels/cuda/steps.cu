/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers with the bits of the CPU (dtensor/kernels/step_elements.inc.c), and exact
 * sums of squares (dtensor/kernels/digits.h). Steps read and write each byte once: a thread has
 * four neighbours of every operand. */
#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/digits.h"
#include "dtensor/kernels/step_attrs.h"

#define FORMULA __device__ inline
#define V       float
#define SQRT(x) sqrtf(x)

namespace
{

#include "dtensor/kernels/step_elements.inc.c"

enum { THREADS = 256, N = 4 };

template <typename T> struct step_arrays {
    const float *g;
    T *p;
    float *master, *first, *second; /* NULL: none */
    int64_t n;
    bool aligned;
};

/* --- rounding by a uniform number (cpu/steps_all.inc.c) --------------------------------------- */

__device__ inline float uniform_of(dt_random key, int64_t at)
{
    return dti_uniform_f32(dti_shake(key.seed, key.stream, at), 24);
}

__device__ inline float shaken_by(float v, float u, uint32_t units)
{
    const uint32_t bits = __float_as_uint(v);

    if ((bits & 0x7f800000u) == 0x7f800000u) return v;
    return __uint_as_float((bits + (uint32_t)(int32_t)(u * (float)units)) & (0u - units));
}

__device__ inline float shaken(float v, float, float)
{
    return v;
}

__device__ inline float shaken(float v, float u, dti_bf16)
{
    return shaken_by(v, u, 1u << 16);
}

__device__ inline float shaken(float v, float u, dti_f16)
{
    const float size = fabsf(v), scaled = size * 0x1p24f;

    if (!(size < 0x1p-14f)) return shaken_by(v, u, 1u << 13);
    const float whole = (float)(int32_t)scaled;
    const float small = whole * 0x1p-24f + (u < scaled - whole ? 0x1p-24f : 0.0f);
    return __uint_as_float(__float_as_uint(small) | (__float_as_uint(v) & 0x80000000u));
}

/* --- steps ------------------------------------------------------------------------------------ */

template <typename T>
__device__ inline void load_params(float (&p)[N], const step_arrays<T> &a, int64_t at)
{
    if (a.master != NULL)
        dti_load<float, N>(p, a.master + at, a.n - at, a.aligned);
    else
        dti_load<T, N>(p, a.p + at, a.n - at, a.aligned);
}

template <typename T>
__device__ inline void store_params(const step_arrays<T> &a, float (&p)[N], int64_t at,
                                    const dti_step_rounding &r)
{
    if (a.master != NULL) dti_store<float, N>(a.master + at, p, a.n - at, a.aligned);
    if (r.stochastic) {
        DTI_UNROLL
        for (int i = 0; i < N; i++) {
            int64_t left;
            if (at + i < a.n)
                p[i] =
                    shaken(p[i], uniform_of(r.key, dti_step_global(&r.where, at + i, &left)), T());
        }
    }
    dti_store<T, N>(a.p + at, p, a.n - at, a.aligned);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    adamw_step(const step_arrays<T> a, const __grid_constant__ dti_adamw_attr how)
{
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float g[N], p[N], m[N], v[N];

    if (at >= a.n) return;
    dti_load<float, N>(g, a.g + at, a.n - at, a.aligned);
    dti_load<float, N>(m, a.first + at, a.n - at, a.aligned);
    dti_load<float, N>(v, a.second + at, a.n - at, a.aligned);
    load_params(p, a, at);
    DTI_UNROLL
    for (int i = 0; i < N; i++) adamw_element(&how, g[i], &m[i], &v[i], &p[i]);
    dti_store<float, N>(a.first + at, m, a.n - at, a.aligned);
    dti_store<float, N>(a.second + at, v, a.n - at, a.aligned);
    store_params(a, p, at, how.rounding);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    sgd_step(const step_arrays<T> a, const __grid_constant__ dti_sgd_attr how)
{
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    float g[N], p[N], b[N] = { 0.0f };

    if (at >= a.n) return;
    dti_load<float, N>(g, a.g + at, a.n - at, a.aligned);
    if (how.has_momentum && !how.first) dti_load<float, N>(b, a.first + at, a.n - at, a.aligned);
    load_params(p, a, at);
    DTI_UNROLL
    for (int i = 0; i < N; i++) sgd_element(&how, g[i], &b[i], &p[i]);
    if (how.has_momentum) dti_store<float, N>(a.first + at, b, a.n - at, a.aligned);
    store_params(a, p, at, how.rounding);
}

unsigned blocks_of(int64_t n)
{
    return (unsigned)((n + THREADS * N - 1) / (THREADS * N));
}

template <typename T>
step_arrays<T> arrays_of(const dt_kargs *a, bool master, bool first, bool second)
{
    step_arrays<T> s = {};
    uintptr_t all;

    s.g = (const float *)a->in[0].data;
    s.p = (T *)a->in[1].data;
    all = (uintptr_t)s.g | (uintptr_t)s.p * (16 / (N * sizeof(T)));
    if (first) s.first = (float *)a->in[2].data;
    if (second) s.second = (float *)a->in[3].data;
    if (master) s.master = (float *)a->in[a->n_in - 1].data;
    all |= (uintptr_t)s.first | (uintptr_t)s.second | (uintptr_t)s.master;
    s.n = dti_cuda_count(&a->in[1]);
    s.aligned = all % 16 == 0;
    return s;
}

template <typename T> int run_adamw(dti_cuda *c, const dt_kargs *a)
{
    const step_arrays<T> s = arrays_of<T>(a, a->n_in > 4, true, true);

    if (s.n == 0) return 0;
    return DTI_LAUNCH(c, adamw_step<T>, dim3(blocks_of(s.n)), dim3(THREADS), 0, s,
                      *(const dti_adamw_attr *)a->attr);
}

template <typename T> int run_sgd(dti_cuda *c, const dt_kargs *a)
{
    const dti_sgd_attr *how = (const dti_sgd_attr *)a->attr;
    const step_arrays<T> s = arrays_of<T>(a, how->has_master, how->has_momentum, false);

    if (s.n == 0) return 0;
    return DTI_LAUNCH(c, sgd_step<T>, dim3(blocks_of(s.n)), dim3(THREADS), 0, s, *how);
}

/* --- sums of squares -------------------------------------------------------------------------- */

/* Adds 32 bits of a sum. Digits wrap as signed ones do. */
__device__ inline void add_digit(unsigned long long *digit, uint64_t x)
{
    if (x != 0) atomicAdd(digit, (unsigned long long)x);
}

/* digits += (high 2^64 + low) 2^at, in units of 2^-298. */
__device__ void add_wide(unsigned long long *digits, uint64_t high, uint64_t low, int at)
{
    const int by = at % 32;
    uint64_t part = (low & 0xffffffffu) << by;

    digits += at / 32;
    add_digit(digits, part & 0xffffffffu);
    part = ((low >> 32) << by) + (part >> 32);
    add_digit(digits + 1, part & 0xffffffffu);
    part = ((high & 0xffffffffu) << by) + (part >> 32);
    if (part == 0 && high == 0) return; /* there may be no such digit */
    add_digit(digits + 2, part & 0xffffffffu);
    part = ((high >> 32) << by) + (part >> 32);
    if (part == 0) return;
    add_digit(digits + 3, part & 0xffffffffu);
    if (part >> 32 != 0) add_digit(digits + 4, part >> 32);
}

/* Squares that a thread has added: 128 bits from bit `base` on, which one square chooses for those
 * that follow. 256 squares below 2^120 fit. */
struct wide_sum {
    uint64_t high, low;
    int base, count;
};

enum { WINDOW = 72, BELOW = 40, MOST = 256 };

__device__ inline void empty(wide_sum &s, unsigned long long *digits)
{
    if (s.count > 0) add_wide(digits, s.high, s.low, s.base);
    s.high = s.low = 0;
    s.count = 0;
}

__device__ inline void add_square(wide_sum &s, float x, unsigned long long *digits)
{
    const uint32_t bits = __float_as_uint(x), field = bits >> 23 & 255u;
    const uint64_t whole = (bits & 0x7fffffu) | (field > 0 ? 0x800000u : 0u);
    const uint64_t square = whole * whole;
    const int at = field > 0 ? 2 * (int)(field - 1) : 0;

    if (square == 0) return;
    if (s.count == MOST || (s.count > 0 && at > s.base + WINDOW)) empty(s, digits);
    if (s.count == 0) s.base = at > BELOW ? at - BELOW : 0;
    if (at < s.base) { /* far smaller than those before */
        add_wide(digits, 0, square, at);
        return;
    }
    const int shift = at - s.base;
    const uint64_t low = shift < 64 ? square << shift : 0;
    const uint64_t high = shift == 0   ? 0
                          : shift < 64 ? square >> (64 - shift)
                                       : square << (shift - 64);
    s.low += low;
    s.high += high + (s.low < low ? 1u : 0u);
    s.count++;
}

/* bad: NULL, or how many are, and the first. */
__global__ void __launch_bounds__(THREADS)
    add_squares(unsigned long long *digits, unsigned long long *bad, const float *x, int64_t n,
                bool aligned)
{
    __shared__ unsigned long long sum[DTI_DIGITS_N];
    wide_sum own = { 0, 0, 0, 0 };

    if (threadIdx.x < DTI_DIGITS_N) sum[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; at < n;
         at += (int64_t)gridDim.x * THREADS * N) {
        float v[N];
        dti_load<float, N>(v, x + at, n - at, aligned);
        DTI_UNROLL
        for (int i = 0; i < N; i++) {
            if ((__float_as_uint(v[i]) & 0x7f800000u) != 0x7f800000u) {
                add_square(own, v[i], sum);
                continue;
            }
            atomicAdd(&sum[DTI_DIGITS_BAD], 1ull);
            if (bad != NULL) atomicMin(&bad[1], (unsigned long long)(at + i));
        }
    }
    empty(own, sum);
    __syncthreads();
    if (threadIdx.x >= DTI_DIGITS_N) return;
    add_digit(&digits[threadIdx.x], sum[threadIdx.x]);
    if (threadIdx.x == DTI_DIGITS_BAD && bad != NULL) add_digit(&bad[0], sum[DTI_DIGITS_BAD]);
}

/* None is bad so far. The first of none is -1, all bits, which is also the largest index. */
__global__ void forget_bad(unsigned long long *bad)
{
    bad[0] = 0;
    bad[1] = ~0ull;
}

int refuse(const dt_kargs *a, const char *row)
{
    return dti_refuse_dtype(row, a->in[1].dtype);
}

} /* namespace */

extern "C" {

int dti_adamw_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[1].dtype) {
    case DT_F32:
        return run_adamw<float>(c, a);
    case DT_BF16:
        return run_adamw<dti_bf16>(c, a);
    case DT_F16:
        return run_adamw<dti_f16>(c, a);
    default:
        return refuse(a, "adamw");
    }
}

int dti_sgd_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[1].dtype) {
    case DT_F32:
        return run_sgd<float>(c, a);
    case DT_BF16:
        return run_sgd<dti_bf16>(c, a);
    case DT_F16:
        return run_sgd<dti_f16>(c, a);
    default:
        return refuse(a, "sgd");
    }
}

/* Digits are not carried here: whoever reads them does. */
int dti_square_digits_cuda(dti_cuda *c, const dt_kargs *a)
{
    const float *x = (const float *)a->in[0].data;
    unsigned long long *bad = a->n_out > 1 ? (unsigned long long *)a->out[1].data : NULL;
    const int64_t n = dti_cuda_count(&a->in[0]), all = (n + THREADS * N - 1) / (THREADS * N);
    const int64_t most =
        8 * (int64_t)c->n_sms; /* full multiprocessors; each adds its digits once */

    if (bad != NULL && DTI_LAUNCH(c, forget_bad, dim3(1), dim3(1), 0, bad) != 0) return -1;
    if (n == 0) return 0;
    return DTI_LAUNCH(c, add_squares, dim3((unsigned)(all < most ? all : most)), dim3(THREADS), 0,
                      (unsigned long long *)a->out[0].data, bad, x, n, (uintptr_t)x % 16 == 0);
}
} /* extern "C" */
