/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of terms that lie in boxes of several buffers, which is what reductions over ranks are made
 * of, and the division that an average ends in. Every element takes its terms in their order, so
 * the bits are those of mesh/comm/reduce.c and the same wherever it is computed. bf16 and f16 add
 * up in f32 and are rounded once. */
#include "dtensor/kernels/cuda/boxes.cuh"
#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/cuda/terms.cuh"

namespace
{

enum { THREADS = 256, BATCH = 4 };

/* --- the sum ---------------------------------------------------------------------------------- */

struct sum_job {
    dti_cuda_sum sum;
    dti_box_rows rows;
    int shift; /* 2^shift threads beside each other have a row */
    bool aligned;
};

/* Up to N elements of a row: all terms, BATCH of them on their way at a time, then all results. */
template <typename T, int N>
__device__ inline void sum_pack(const sum_job &j, int64_t to_at, int64_t from_at, int64_t left)
{
    typedef typename dti_term<T>::sum S;
    dti_pack<T, N> raw[BATCH] = {};
    S acc[N] = {};

    for (int k = 0; k < j.sum.n_terms; k += BATCH) {
        DTI_UNROLL
        for (int b = 0; b < BATCH; b++)
            if (k + b < j.sum.n_terms)
                dti_load_pack<T, N>(&raw[b], (const T *)j.sum.terms[k + b] + from_at, left,
                                    j.aligned);
        DTI_UNROLL
        for (int b = 0; b < BATCH; b++) {
            if (k + b >= j.sum.n_terms) continue;
            DTI_UNROLL
            for (int i = 0; i < N; i++) {
                const S x = dti_widen_term(raw[b].v[i]);
                acc[i] = k + b == 0 ? x : dti_take<S>(j.sum.reduce, acc[i], x);
            }
        }
    }
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        if (j.sum.reduce == DT_AVG) acc[i] = acc[i] / (S)j.sum.n_terms;
        dti_narrow_term(&raw[0].v[i], acc[i]);
    }
    for (int k = 0; k < j.sum.n_to; k++)
        dti_store_pack<T, N>((T *)j.sum.to[k] + to_at, raw[0], left, j.aligned);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) sum_boxes(const __grid_constant__ sum_job j)
{
    enum { N = 16 / sizeof(T) };
    const int lanes = 1 << j.shift, lane = (int)threadIdx.x & (lanes - 1);
    const int64_t rows = THREADS >> j.shift, step = (int64_t)gridDim.y * lanes * N;

    for (int64_t row = blockIdx.x * rows + ((int)threadIdx.x >> j.shift); row < j.rows.n_rows;
         row += gridDim.x * rows) {
        int64_t to_at, from_at;
        dti_box_row(j.rows, row, &to_at, &from_at);
        for (int64_t i = ((int64_t)blockIdx.y * lanes + lane) * N; i < j.rows.row; i += step)
            sum_pack<T, N>(j, to_at + i, from_at + i, j.rows.row - i);
    }
}

/* Whether every row begins at a multiple of 16 bytes, in every buffer. */
bool is_aligned(const sum_job *j, int64_t bytes)
{
    const dti_box_rows *r = &j->rows;
    uint64_t all = (uint64_t)(r->to_first | r->from_first);

    for (int a = 0; a < r->n_axes; a++) all |= (uint64_t)(r->to[a] | r->from[a]);
    all *= (uint64_t)bytes;
    for (int k = 0; k < j->sum.n_terms; k++) all |= (uint64_t)(uintptr_t)j->sum.terms[k];
    for (int k = 0; k < j->sum.n_to; k++) all |= (uint64_t)(uintptr_t)j->sum.to[k];
    return all % 16 == 0;
}

template <typename T> int run_sum(dti_cuda *c, sum_job *j)
{
    enum { N = 16 / sizeof(T) };
    const dti_row_grid g = dti_row_grid_of(j->rows.n_rows, (j->rows.row + N - 1) / N, THREADS, 1);

    if (j->rows.n_rows == 0) return 0;
    j->shift = g.shift;
    j->aligned = is_aligned(j, sizeof(T));
    return DTI_LAUNCH(c, sum_boxes<T>, g.grid, dim3(THREADS), 0, *j);
}

/* --- the division ----------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS) divide(T *x, int64_t n, int64_t divisor, bool aligned)
{
    enum { N = 16 / sizeof(T) };
    typedef typename dti_term<T>::sum S;
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    dti_pack<T, N> raw = {};

    dti_load_pack<T, N>(&raw, x + at, n - at, aligned);
    DTI_UNROLL
    for (int i = 0; i < N; i++)
        dti_narrow_term(&raw.v[i], (S)(dti_widen_term(raw.v[i]) / (S)divisor));
    dti_store_pack<T, N>(x + at, raw, n - at, aligned);
}

template <typename T> int run_divide(dti_cuda *c, void *x, int64_t n, int64_t divisor)
{
    const int64_t per_block = THREADS * 16 / sizeof(T);

    if (n == 0) return 0;
    return DTI_LAUNCH(c, divide<T>, dim3((unsigned)((n + per_block - 1) / per_block)),
                      dim3(THREADS), 0, (T *)x, n, divisor, (uintptr_t)x % 16 == 0);
}

} /* namespace */

extern "C" {

int dti_cuda_sum_boxes(dti_cuda *c, const dti_cuda_sum *sum)
{
    sum_job j = {};

    if (sum->n_terms < 1 || sum->n_terms > DTI_CUDA_MAX_PEERS || sum->n_to > DTI_CUDA_MAX_PEERS)
        return dti_cuda_fail("a sum of %d terms to %d places: CUDA takes 1 to %d", sum->n_terms,
                             sum->n_to, (int)DTI_CUDA_MAX_PEERS);
    j.sum = *sum;
    j.rows = dti_box_rows_of(&sum->to_box, &sum->box);
    switch (sum->dtype) {
    case DT_F32:
        return run_sum<float>(c, &j);
    case DT_BF16:
        return run_sum<dti_bf16>(c, &j);
    case DT_F16:
        return run_sum<dti_f16>(c, &j);
    case DT_F64:
        return run_sum<double>(c, &j);
    case DT_I32:
        return run_sum<int32_t>(c, &j);
    case DT_I64:
        return run_sum<int64_t>(c, &j);
    default:
        return dti_cuda_fail("a sum of %s on CUDA: of floats, i32 and i64 only",
                             dti_cuda_dtype_name(sum->dtype));
    }
}

int dti_cuda_divide(dti_cuda *c, void *x, int64_t n, int dtype, int64_t divisor)
{
    if (divisor == 0) return dti_cuda_fail("a division of %s by 0", dti_cuda_dtype_name(dtype));
    switch (dtype) {
    case DT_F32:
        return run_divide<float>(c, x, n, divisor);
    case DT_BF16:
        return run_divide<dti_bf16>(c, x, n, divisor);
    case DT_F16:
        return run_divide<dti_f16>(c, x, n, divisor);
    case DT_F64:
        return run_divide<double>(c, x, n, divisor);
    case DT_I32:
        return run_divide<int32_t>(c, x, n, divisor);
    case DT_I64:
        return run_divide<int64_t>(c, x, n, divisor);
    default:
        return dti_cuda_fail("a division of %s on CUDA: of floats, i32 and i64 only",
                             dti_cuda_dtype_name(dtype));
    }
}
} /* extern "C" */
