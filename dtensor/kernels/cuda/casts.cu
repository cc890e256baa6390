/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators whose operands have dtypes of their own: cast and add_bias. The dtype is a branch that
 * a whole launch takes alike, so one kernel serves all pairs of f32, bf16 and f16, four elements at
 * a time. f64 is rare and has a kernel of its own. */
#include "dtensor/kernels/cuda/boxes.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, N = 4, PACKS = 4, ROWS = 4 };

bool is_float(int dtype)
{
    return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16;
}

/* A buffer of f32, bf16 or f16. */
struct typed {
    void *data;
    int dtype;
};

typed typed_of(const dt_local *x)
{
    const typed t = { x->data, (int)x->dtype };

    return t;
}

__device__ inline void load(float (&to)[N], const typed &x, int64_t at, int64_t left, bool aligned)
{
    if (x.dtype == DT_F32)
        dti_load<float, N>(to, (const float *)x.data + at, left, aligned);
    else if (x.dtype == DT_BF16)
        dti_load<dti_bf16, N>(to, (const dti_bf16 *)x.data + at, left, aligned);
    else
        dti_load<dti_f16, N>(to, (const dti_f16 *)x.data + at, left, aligned);
}

__device__ inline void store(const typed &y, const float (&from)[N], int64_t at, int64_t left,
                             bool aligned)
{
    if (y.dtype == DT_F32)
        dti_store<float, N>((float *)y.data + at, from, left, aligned);
    else if (y.dtype == DT_BF16)
        dti_store<dti_bf16, N>((dti_bf16 *)y.data + at, from, left, aligned);
    else
        dti_store<dti_f16, N>((dti_f16 *)y.data + at, from, left, aligned);
}

/* Whether a buffer may be read and written N elements at a time. */
bool is_aligned(const dt_local *x)
{
    return (uintptr_t)x->data % (N * dti_cuda_dtype_bytes((int)x->dtype)) == 0;
}

/* --- cast ------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS)
    cast(const typed y, const typed x, int64_t n, bool aligned)
{
    const int64_t first = ((int64_t)blockIdx.x * PACKS * THREADS + threadIdx.x) * N;
    float v[PACKS][N];

    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = first + p * THREADS * N;
        load(v[p], x, at, n - at, aligned);
    }
    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = first + p * THREADS * N;
        store(y, v[p], at, n - at, aligned);
    }
}

/* The nearest f32 on the side of zero, odd if it is not exact: rounded again, to 22 bits or fewer,
 * it becomes what x does. As base/dtype.c. */
__device__ inline float odd_f32(double x)
{
    const float f = (float)x;
    uint32_t bits = __float_as_uint(f);

    if (!((double)f < x || (double)f > x)) return f; /* exact, or NaN */
    if (f < 0.0f ? (double)f < x : (double)f > x) bits--;
    return __uint_as_float(bits | 1u);
}

__global__ void __launch_bounds__(THREADS) cast_f64(const typed y, const typed x, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float one[N] = { 0.0f };

    if (i >= n) return;
    if (y.dtype == DT_F64) {
        load(one, x, i, 1, false);
        ((double *)y.data)[i] = (double)one[0];
    } else {
        const double value = ((const double *)x.data)[i];
        one[0] = y.dtype == DT_F32 ? (float)value : odd_f32(value);
        store(y, one, i, 1, false);
    }
}

/* --- add_bias --------------------------------------------------------------------------------- */

struct bias_rows {
    typed y, x, bias;
    int64_t n_rows, n;
    int shift; /* 2^shift threads beside each other have a row */
    bool aligned;
};

/* y[r, :] = x[r, :] + bias in f32, one rounding. A thread has the same columns of up to ROWS rows,
 * and reads their bias once; eight at once made sm_80 spill, and let fewer blocks run. */
__global__ void __launch_bounds__(THREADS) add_bias(const bias_rows b)
{
    const int lanes = 1 << b.shift, rows = THREADS >> b.shift;
    const int64_t at = ((int64_t)blockIdx.y * lanes + ((int)threadIdx.x & (lanes - 1))) * N;
    const int64_t first = (int64_t)blockIdx.x * rows * ROWS + ((int)threadIdx.x >> b.shift);
    const int64_t left = b.n - at;
    float bias[N], v[ROWS][N];

    if (left <= 0) return;
    load(bias, b.bias, at, left, b.aligned);
    DTI_UNROLL
    for (int k = 0; k < ROWS; k++) {
        const int64_t row = first + k * rows;
        load(v[k], b.x, row * b.n + at, row < b.n_rows ? left : 0, b.aligned);
    }
    DTI_UNROLL
    for (int k = 0; k < ROWS; k++) {
        const int64_t row = first + k * rows;
        DTI_UNROLL
        for (int i = 0; i < N; i++) v[k][i] += bias[i];
        store(b.y, v[k], row * b.n + at, row < b.n_rows ? left : 0, b.aligned);
    }
}

} /* namespace */

extern "C" {

int dti_cast_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int64_t n = dti_cuda_count(x), per_block = THREADS * PACKS * N;

    if ((!is_float(x->dtype) && x->dtype != DT_F64) || (!is_float(y->dtype) && y->dtype != DT_F64))
        return dti_cuda_fail("cast from %s to %s on CUDA: both must be floats",
                             dti_cuda_dtype_name((int)x->dtype),
                             dti_cuda_dtype_name((int)y->dtype));
    if (n == 0) return 0;
    if (x->dtype == y->dtype) {
        const size_t bytes = (size_t)n * dti_cuda_dtype_bytes((int)x->dtype);
        return x->data == y->data ? 0
                                  : dti_cuda_check(cudaMemcpyAsync(y->data, x->data, bytes,
                                                                   cudaMemcpyDefault, c->stream),
                                                   "cast");
    }
    if (x->dtype == DT_F64 || y->dtype == DT_F64)
        return DTI_LAUNCH(c, cast_f64, dim3((unsigned)((n + THREADS - 1) / THREADS)), dim3(THREADS),
                          0, typed_of(y), typed_of(x), n);
    return DTI_LAUNCH(c, cast, dim3((unsigned)((n + per_block - 1) / per_block)), dim3(THREADS), 0,
                      typed_of(y), typed_of(x), n, is_aligned(x) && is_aligned(y));
}

int dti_add_bias_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *bias = &a->in[1], *y = &a->out[0];
    const dt_local *all[] = { x, bias, y };
    bias_rows b = { typed_of(y), typed_of(x), typed_of(bias), 0, x->shape[x->n_axes - 1], 0, true };
    dti_row_grid g;

    for (int i = 0; i < 3; i++) {
        if (!is_float(all[i]->dtype)) return dti_refuse_dtype("add_bias", (int)all[i]->dtype);
        b.aligned = b.aligned && is_aligned(all[i]);
    }
    if (dti_cuda_count(x) == 0) return 0;
    b.n_rows = dti_cuda_count(x) / b.n;
    b.aligned = b.aligned && (b.n % N == 0 || b.n_rows == 1);
    g = dti_row_grid_of((b.n_rows + ROWS - 1) / ROWS, (b.n + N - 1) / N, THREADS, 1);
    if (g.grid.x == INT32_MAX || g.grid.y == 65535)
        return dti_cuda_fail("add_bias on CUDA: %lld rows of %lld are too many",
                             (long long)b.n_rows, (long long)b.n);
    b.shift = g.shift;
    return DTI_LAUNCH(c, add_bias, g.grid, dim3(THREADS), 0, b);
}
} /* extern "C" */
