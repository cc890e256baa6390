/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms over the last axis: x [..., d], w [d], b [d] -> y [..., d], of f32, bf16 or f16; formulas
 * and roundings are those of dtensor/kernels/cpu/rows.inc.c, the order of sums is this file's:
 * lanes of packs, a butterfly over each warp, then the warps in order. y may be x.
 *
 * A row belongs to a warp, or to a block where it is longer than what a warp keeps in registers, so
 * that x is read once: 2 packs of 16 bytes per thread, or 4 of long rows, all of them on their way
 * before the first is used. With 2, four blocks fit on a multiprocessor. What is longer still is
 * read again, from a cache. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256 };
enum norm_form { RMS, RMS_1P, LAYER };

template <typename T> struct norm_rows {
    T *y;
    const T *x, *w, *b;
    int64_t n_rows, n;
    float eps;
    int form;
    bool aligned;
};

/* The sum over the G threads of a row, the same bits in each. */
template <int G> __device__ inline float row_sum(float x, float *shared)
{
    float sum = dti_warp_sum(x);

    if (G == DTI_WARP) return sum;
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % DTI_WARP == 0) shared[threadIdx.x / DTI_WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < G / DTI_WARP; warp++) sum += shared[warp];
    return sum;
}

/* sum + (x[i] - shift)^p over the first `left`; p is 2, or 1 where `square` is false. */
template <typename T, int N>
__device__ inline float moment(float sum, const dti_pack<T, N> &x, int64_t left, float shift,
                               bool square)
{
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        const float v = i < left ? dti_widen(x.v[i]) - shift : 0.0f;
        sum = square ? fmaf(v, v, sum) : sum + v;
    }
    return sum;
}

/* The same over a row, of which the first packs are in `kept`. */
template <typename T, int G, int KEPT, int N>
__device__ inline float row_moment(const norm_rows<T> &r, const T *x,
                                   const dti_pack<T, N> (&kept)[KEPT], float shift, bool square,
                                   float *shared)
{
    const int64_t lane = threadIdx.x % G;
    dti_pack<T, N> pack = {};
    float sums[KEPT];

    DTI_UNROLL
    for (int p = 0; p < KEPT; p++)
        sums[p] = moment<T, N>(0.0f, kept[p], r.n - (p * G + lane) * N, shift, square);
    for (int64_t at = (KEPT * G + lane) * N; at < r.n; at += G * N) {
        dti_load_pack<T, N>(&pack, x + at, r.n - at, r.aligned);
        sums[0] = moment<T, N>(sums[0], pack, r.n - at, shift, square);
    }
    DTI_UNROLL
    for (int p = 1; p < KEPT; p++) sums[0] += sums[p];
    return row_sum<G>(sums[0], shared);
}

/* One pack of y, from one of x. */
template <typename T, int N>
__device__ inline void put(const norm_rows<T> &r, T *y, const dti_pack<T, N> &x, int64_t at,
                           float mean, float scale)
{
    const int64_t left = r.n - at;
    float v[N], w[N], b[N];

    if (left <= 0) return;
    dti_load<T, N>(w, r.w + at, left, r.aligned);
    if (r.form == LAYER) dti_load<T, N>(b, r.b + at, left, r.aligned);
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        v[i] = dti_widen(x.v[i]);
        if (r.form == LAYER)
            v[i] = (v[i] - mean) * scale * w[i] + b[i];
        else if (r.form == RMS_1P)
            v[i] = v[i] * scale * (1.0f + w[i]);
        else
            v[i] = dti_rounded<T>(v[i] * scale) * w[i];
    }
    dti_store<T, N>(y + at, v, left, r.aligned);
}

/* G threads for each row, KEPT packs of it in each. */
template <typename T, int G, int KEPT>
__global__ void __launch_bounds__(THREADS) norm(const norm_rows<T> r)
{
    enum { N = 16 / sizeof(T) };
    const int64_t row = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
    const int64_t lane = threadIdx.x % G;
    const T *x = r.x + row * r.n;
    T *y = r.y + row * r.n;
    dti_pack<T, N> kept[KEPT] = {}, pack = {};
    float mean = 0.0f, scale;
    DTI_SHARED(float, shared);

    if (row >= r.n_rows) return; /* whole warps; a block has more than one row only then */
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) {
        const int64_t at = (p * G + lane) * N;
        dti_load_pack<T, N>(&kept[p], x + at, r.n - at, r.aligned);
    }
    if (r.form == LAYER)
        mean = row_moment<T, G, KEPT, N>(r, x, kept, 0.0f, false, shared) / (float)r.n;
    scale = row_moment<T, G, KEPT, N>(r, x, kept, mean, true, shared) / (float)r.n + r.eps;
    scale = 1.0f / sqrtf(scale);
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) put<T, N>(r, y, kept[p], (p * G + lane) * N, mean, scale);
    for (int64_t at = (KEPT * G + lane) * N; at < r.n; at += G * N) {
        dti_load_pack<T, N>(&pack, x + at, r.n - at, r.aligned);
        put<T, N>(r, y, pack, at, mean, scale);
    }
}

template <typename T, int G, int KEPT> int launch(dti_cuda *c, const norm_rows<T> &r)
{
    const int64_t rows = THREADS / G;

    return DTI_LAUNCH(c, (norm<T, G, KEPT>), dim3((unsigned)((r.n_rows + rows - 1) / rows)),
                      dim3(THREADS), THREADS / DTI_WARP * sizeof(float), r);
}

template <typename T> int run_norm(dti_cuda *c, const dt_kargs *a, norm_form form)
{
    enum { N = 16 / sizeof(T) };
    const int64_t n = a->in[0].shape[a->in[0].n_axes - 1], count = dti_cuda_count(&a->in[0]);
    const void *b = form == LAYER ? a->in[2].data : NULL;
    const uintptr_t all = (uintptr_t)a->out[0].data | (uintptr_t)a->in[0].data |
                          (uintptr_t)a->in[1].data | (uintptr_t)b;
    norm_rows<T> r = { (T *)a->out[0].data,
                       (const T *)a->in[0].data,
                       (const T *)a->in[1].data,
                       (const T *)b,
                       0,
                       n,
                       0.0f,
                       form,
                       false };

    if (count == 0) return 0;
    r.n_rows = count / n;
    r.eps = ((const dti_norm_attr *)a->attr)->eps;
    r.aligned = all % 16 == 0 && (n % N == 0 || r.n_rows == 1);
    if (n <= 2 * DTI_WARP * N) return launch<T, DTI_WARP, 2>(c, r);
    if (n <= 2 * THREADS * N) return launch<T, THREADS, 2>(c, r);
    return launch<T, THREADS, 4>(c, r);
}

int by_dtype(dti_cuda *c, const dt_kargs *a, const char *op, norm_form form)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_norm<float>(c, a, form);
    case DT_BF16:
        return run_norm<dti_bf16>(c, a, form);
    case DT_F16:
        return run_norm<dti_f16>(c, a, form);
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
}

} /* namespace */

extern "C" {

int dti_rms_norm_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm", RMS);
}

int dti_rms_norm_1p_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm_1p", RMS_1P);
}

int dti_layer_norm_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "layer_norm", LAYER);
}
} /* extern "C" */
