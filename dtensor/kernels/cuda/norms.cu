/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms over the last axis: x [..., d], w [d], b [d] -> y [..., d], of f32, bf16 or f16; formulas
 * and roundings are those of dtensor/kernels/cpu/rows.inc.c, the order of sums is this file's:
 * lanes of packs, a butterfly over each warp, then the warps in order. y may be x.
 *
 * A row belongs to a warp, or to a block where it is longer than what a warp keeps in registers, so
 * that x is read once: 2 packs of 16 bytes per thread, or 4 of long rows, all of them on their way
 * before the first is used. With 2, four blocks fit on a multiprocessor. What is longer still is
 * read again, from a cache.
 *
 * The sum of two operands that is normed is made on the way, rounded and written: its rows need not
 * be read. Each element is read, summed and written by one thread, so results may lie where the
 * operands do. */
#include "dtensor/kernels/cuda/norms.cuh"

namespace
{

enum { THREADS = 256 };

template <typename T> struct norm_rows {
    T *y;
    const T *x, *w, *b;
    const T *z; /* x + z is normed, and put into `sum`; else NULL */
    T *sum;
    int64_t n_rows, n;
    float eps;
    int form;
    bool aligned;
};

/* The sum of (x[i] - shift)^p over a row, of which the first packs are in `kept`; p is 2, or 1
 * where `square` is false. */
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
        sums[p] = dti_moment<T, N>(0.0f, kept[p], r.n - (p * G + lane) * N, shift, square);
    for (int64_t at = (KEPT * G + lane) * N; at < r.n; at += G * N) {
        dti_load_pack<T, N>(&pack, x + at, r.n - at, r.aligned);
        sums[0] = dti_moment<T, N>(sums[0], pack, r.n - at, shift, square);
    }
    DTI_UNROLL
    for (int p = 1; p < KEPT; p++) sums[0] += sums[p];
    return dti_row_sum<G>(sums[0], shared);
}

/* One pack of y, from one of x. */
template <typename T, int N>
__device__ inline void put(const norm_rows<T> &r, T *y, const dti_pack<T, N> &x, int64_t at,
                           float mean, float scale)
{
    const int64_t left = r.n - at;
    float v[N], w[N], b[N] = {};

    if (left <= 0) return;
    dti_load<T, N>(w, r.w + at, left, r.aligned);
    if (r.form == DTI_LAYER) dti_load<T, N>(b, r.b + at, left, r.aligned);
    DTI_UNROLL
    for (int i = 0; i < N; i++)
        v[i] = dti_normed<T>(r.form, dti_widen(x.v[i]), mean, scale, w[i], b[i]);
    dti_store<T, N>(y + at, v, left, r.aligned);
}

/* x += z, rounded; written to `sum`. */
template <typename T, int N>
__device__ inline void add_pack(const norm_rows<T> &r, dti_pack<T, N> *x, const dti_pack<T, N> &z,
                                T *sum, int64_t left)
{
    DTI_UNROLL
    for (int i = 0; i < N; i++) dti_narrow(&x->v[i], dti_widen(x->v[i]) + dti_widen(z.v[i]));
    if (left > 0) dti_store_pack<T, N>(sum, *x, left, r.aligned);
}

/* The sum of a row: its first packs are kept. Elements beyond the row are zeros, and stay so. */
template <typename T, int G, int KEPT, int N>
__device__ inline void add_row(const norm_rows<T> &r, int64_t row, dti_pack<T, N> (&kept)[KEPT])
{
    const T *x = r.x + row * r.n, *z = r.z + row * r.n;
    T *sum = r.sum + row * r.n;
    const int64_t lane = threadIdx.x % G;
    dti_pack<T, N> others[KEPT] = {}, one = {}, other = {};

    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) {
        const int64_t at = (p * G + lane) * N;
        dti_load_pack<T, N>(&others[p], z + at, r.n - at, r.aligned);
    }
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) {
        const int64_t at = (p * G + lane) * N;
        add_pack<T, N>(r, &kept[p], others[p], sum + at, r.n - at);
    }
    for (int64_t at = (KEPT * G + lane) * N; at < r.n; at += G * N) {
        dti_load_pack<T, N>(&one, x + at, r.n - at, r.aligned);
        dti_load_pack<T, N>(&other, z + at, r.n - at, r.aligned);
        add_pack<T, N>(r, &one, other, sum + at, r.n - at);
    }
}

/* G threads for each row, KEPT packs of it in each. */
template <typename T, int G, int KEPT, bool SUM>
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
    if (SUM) {
        add_row<T, G, KEPT, N>(r, row, kept);
        x = r.sum + row * r.n; /* what is read again is what this thread has written */
    }
    if (r.form == DTI_LAYER)
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
    const dim3 grid((unsigned)((r.n_rows + rows - 1) / rows));
    const size_t shared = THREADS / DTI_WARP * sizeof(float);

    if (r.z != NULL) return DTI_LAUNCH(c, (norm<T, G, KEPT, true>), grid, dim3(THREADS), shared, r);
    return DTI_LAUNCH(c, (norm<T, G, KEPT, false>), grid, dim3(THREADS), shared, r);
}

/* add: of its result, or NULL */
template <typename T>
int run_norm(dti_cuda *c, const dt_kargs *a, dti_norm_form form, const dt_kargs *add)
{
    enum { N = 16 / sizeof(T) };
    const int64_t n = a->in[0].shape[a->in[0].n_axes - 1], count = dti_cuda_count(&a->in[0]);
    norm_rows<T> r = {};
    uintptr_t all;

    if (count == 0) return 0;
    r.y = (T *)a->out[0].data;
    r.x = (const T *)(add != NULL ? add : a)->in[0].data;
    r.w = (const T *)a->in[1].data;
    r.b = (const T *)(form == DTI_LAYER ? a->in[2].data : NULL);
    r.z = (const T *)(add != NULL ? add->in[1].data : NULL);
    r.sum = (T *)(add != NULL ? add->out[0].data : NULL);
    r.n_rows = count / n;
    r.n = n;
    r.eps = ((const dti_norm_attr *)a->attr)->eps;
    r.form = form;
    all = (uintptr_t)r.y | (uintptr_t)r.x | (uintptr_t)r.w | (uintptr_t)r.b | (uintptr_t)r.z |
          (uintptr_t)r.sum;
    r.aligned = all % 16 == 0 && (n % N == 0 || r.n_rows == 1);
    if (n <= 2 * DTI_WARP * N) return launch<T, DTI_WARP, 2>(c, r);
    if (n <= 2 * THREADS * N) return launch<T, THREADS, 2>(c, r);
    return launch<T, THREADS, 4>(c, r);
}

int by_dtype(dti_cuda *c, const dt_kargs *a, const char *op, dti_norm_form form,
             const dt_kargs *add)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_norm<float>(c, a, form, add);
    case DT_BF16:
        return run_norm<dti_bf16>(c, a, form, add);
    case DT_F16:
        return run_norm<dti_f16>(c, a, form, add);
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
}

} /* namespace */

extern "C" {

int dti_rms_norm_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm", DTI_RMS, NULL);
}

int dti_rms_norm_once_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm_once", DTI_RMS_ONCE, NULL);
}

int dti_rms_norm_1p_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm_1p", DTI_RMS_1P, NULL);
}

int dti_layer_norm_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "layer_norm", DTI_LAYER, NULL);
}

int dti_add_norm_cuda(dti_cuda *c, const dti_fused_chain *chains, int n)
{
    const dti_fused_chain *sum = &chains[0];

    (void)n;
    return by_dtype(c, sum->call[DTI_ADD_NORM_STAGE], "add with a norm",
                    (dti_norm_form)sum->form[DTI_ADD_NORM_STAGE], sum->call[DTI_ADD_STAGE]);
}
} /* extern "C" */
