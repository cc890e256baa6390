/* SPDX-License-Identifier: Apache-2.0
 *
 * sum, max and min over an axis or over all: x [outer, k, inner] -> y [outer, inner]. Sums are
 * taken in f64 in the order of dtensor/kernels/cpu/sums.c, so that both give the same bits: where
 * elements of a row lie side by side, pieces of PIECE elements, LANES chains through each, chains
 * and then pieces in their order; else one chain per column. A thread has a chain. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, LANES = 8, AHEAD = 16 };
const int64_t PIECE = 8192;
enum reduction { SUM, MAX, MIN };

struct reduce_job {
    void *y;
    const void *x;
    int y_dtype, how;
    int64_t outer, k, inner;
    int64_t n_pieces; /* of a row, where inner is 1 */
    double *partial;  /* [outer, n_pieces]; NULL if a row is one piece */
};

__device__ inline double start_of(int how)
{
    return how == SUM ? 0.0 : how == MAX ? -(double)INFINITY : (double)INFINITY;
}

/* acc and x; a NaN wins. */
__device__ inline double take(int how, double acc, double x)
{
    if (how == SUM) return acc + x;
    return (how == MAX ? x > acc : x < acc) || x != x ? x : acc;
}

__device__ inline double wide(double x)
{
    return x;
}

template <typename T> __device__ inline double wide(T x)
{
    return (double)dti_widen(x);
}

/* acc and every step-th of n elements from x on, in their order, AHEAD of them on their way. */
template <typename T>
__device__ inline double chain(int how, double acc, const T *x, int64_t n, int64_t step)
{
    double v[AHEAD];

    for (int64_t i = 0; i < n; i += AHEAD) {
        DTI_UNROLL
        for (int j = 0; j < AHEAD; j++) v[j] = i + j < n ? wide(x[(i + j) * step]) : 0.0;
        DTI_UNROLL
        for (int j = 0; j < AHEAD; j++)
            if (i + j < n) acc = take(how, acc, v[j]);
    }
    return acc;
}

__device__ inline void store(const reduce_job &r, int64_t i, double value)
{
    if (r.y_dtype == DT_F32)
        ((float *)r.y)[i] = (float)value;
    else if (r.y_dtype == DT_BF16)
        dti_narrow((dti_bf16 *)r.y + i, (float)value);
    else
        dti_narrow((dti_f16 *)r.y + i, (float)value);
}

/* LANES threads beside each other have a piece. */
template <typename T> __global__ void __launch_bounds__(THREADS) reduce_rows(const reduce_job r)
{
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t piece = thread / LANES, n_all = r.outer * r.n_pieces;
    const int lane = (int)(thread % LANES), first_lane = (int)threadIdx.x / LANES * LANES;
    const int64_t row = piece / r.n_pieces, at = piece % r.n_pieces * PIECE;
    const int64_t n = r.k - at < PIECE ? r.k - at : PIECE;
    double mine = start_of(r.how), all = mine;

    if (piece < n_all && lane < n)
        mine = chain(r.how, mine, (const T *)r.x + row * r.k + at + lane,
                     (n - lane + LANES - 1) / LANES, LANES);
    for (int l = 0; l < LANES; l++)
        all = take(r.how, all, __shfl_sync(0xffffffffu, mine, (first_lane + l) % DTI_WARP));
    if (piece >= n_all || lane > 0) return;
    if (r.partial != NULL)
        r.partial[piece] = all;
    else
        store(r, row, all);
}

__global__ void __launch_bounds__(THREADS) reduce_pieces(const reduce_job r)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (row < r.outer)
        store(r, row, chain(r.how, start_of(r.how), r.partial + row * r.n_pieces, r.n_pieces, 1));
}

template <typename T> __global__ void __launch_bounds__(THREADS) reduce_columns(const reduce_job r)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < r.outer * r.inner)
        store(r, i,
              chain(r.how, start_of(r.how),
                    (const T *)r.x + i / r.inner * r.k * r.inner + i % r.inner, r.k, r.inner));
}

dim3 blocks_of(int64_t n_threads)
{
    return dim3((unsigned)((n_threads + THREADS - 1) / THREADS));
}

template <typename T> int run(dti_cuda *c, reduce_job *r)
{
    void *partial = NULL;

    if (r->outer * r->inner == 0) return 0;
    if (r->inner > 1)
        return DTI_LAUNCH(c, reduce_columns<T>, blocks_of(r->outer * r->inner), dim3(THREADS), 0,
                          *r);
    r->n_pieces = r->k > PIECE ? (r->k + PIECE - 1) / PIECE : 1;
    if (r->n_pieces > 1 &&
        dti_cuda_scratch(c, (size_t)(r->outer * r->n_pieces) * sizeof(double), &partial) != 0)
        return -1;
    r->partial = (double *)partial;
    if (DTI_LAUNCH(c, reduce_rows<T>, blocks_of(r->outer * r->n_pieces * LANES), dim3(THREADS), 0,
                   *r) != 0)
        return -1;
    return partial == NULL
               ? 0
               : DTI_LAUNCH(c, reduce_pieces, blocks_of(r->outer), dim3(THREADS), 0, *r);
}

int reduce(dti_cuda *c, const dt_kargs *a, reduction how)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int axis = ((const dti_reduce_attr *)a->attr)->axis;
    reduce_job r = { y->data, x->data, (int)y->dtype, how, 1, 1, 1, 1, NULL };

    for (int b = 0; b < x->n_axes; b++)
        *(axis < 0 || b == axis ? &r.k : b < axis ? &r.outer : &r.inner) *= x->shape[b];
    if (y->dtype != DT_F32 && y->dtype != DT_BF16 && y->dtype != DT_F16)
        return dti_refuse_dtype("a reduction", (int)y->dtype);
    switch (x->dtype) {
    case DT_F32:
        return run<float>(c, &r);
    case DT_BF16:
        return run<dti_bf16>(c, &r);
    case DT_F16:
        return run<dti_f16>(c, &r);
    default:
        return dti_refuse_dtype("a reduction", (int)x->dtype);
    }
}

} /* namespace */

extern "C" {

int dti_sum_cuda(dti_cuda *c, const dt_kargs *a)
{
    return reduce(c, a, SUM);
}

int dti_max_cuda(dti_cuda *c, const dt_kargs *a)
{
    return reduce(c, a, MAX);
}

int dti_min_cuda(dti_cuda *c, const dt_kargs *a)
{
    return reduce(c, a, MIN);
}
} /* extern "C" */
