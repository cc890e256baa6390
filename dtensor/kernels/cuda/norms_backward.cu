/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of norms: dy, x [..., d] F, w [d] F -> dx [..., d] F, dw and db [d] f32; formulas are
 * those of dtensor/kernels/cpu/rows_backward.inc.c, the order of sums is this file's.
 *
 * A row belongs to a warp or, if it is longer than a warp's loads of one turn, to a block: it finds
 * mean and scale from x again, writes dx, and leaves both for the sums over rows. Those have a
 * thread for each column of each part of the rows, and then one for each column: parts in their
 * order, so that no timing changes a bit. */
#include "dtensor/kernels/cuda/norms.cuh"

namespace
{

enum { THREADS = 256, PART_ROWS = 64, MAX_PARTS = 256 };

struct row_moments {
    float mean, scale;
};

template <typename T> struct norm_slopes {
    const T *dy, *x, *w;
    T *dx;          /* or NULL */
    float *dw, *db; /* or NULL */
    row_moments *moments;
    float *terms; /* [n_parts, 2, n]: of dw and of db */
    int64_t n_rows, n, n_parts;
    float eps, plus;
    bool centred, aligned;
};

/* The sum of (x[i] - shift)^p over a row of G threads; p is 2, or 1 where `square` is false. */
template <typename T, int G, int N>
__device__ inline float moment_of(const norm_slopes<T> &r, const T *x, float shift, bool square,
                                  float *shared)
{
    float sum = 0.0f;

    for (int64_t at = threadIdx.x % G * N; at < r.n; at += G * N) {
        dti_pack<T, N> pack = {};
        dti_load_pack<T, N>(&pack, x + at, r.n - at, r.aligned);
        sum = dti_moment<T, N>(sum, pack, r.n - at, shift, square);
    }
    return dti_row_sum<G>(sum, shared);
}

template <typename T, int G>
__global__ void __launch_bounds__(THREADS) slope_rows(const norm_slopes<T> r)
{
    enum { N = 16 / sizeof(T) };
    const int64_t row = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
    const T *x = r.x + row * r.n, *dy = r.dy + row * r.n;
    float by_h = 0.0f, by_one = 0.0f, a[N], b[N], c[N];
    row_moments m = { 0.0f, 0.0f };
    DTI_SHARED(float, shared);

    if (row >= r.n_rows) return; /* whole warps; a block has more than one row only then */
    if (r.centred) m.mean = moment_of<T, G, N>(r, x, 0.0f, false, shared) / (float)r.n;
    m.scale = 1.0f / sqrtf(moment_of<T, G, N>(r, x, m.mean, true, shared) / (float)r.n + r.eps);
    if (threadIdx.x % G == 0) r.moments[row] = m;
    if (r.dx == NULL) return;
    for (int64_t at = threadIdx.x % G * N; at < r.n; at += G * N) {
        dti_load<T, N>(a, dy + at, r.n - at, r.aligned); /* zeros beyond the row */
        dti_load<T, N>(b, x + at, r.n - at, r.aligned);
        dti_load<T, N>(c, r.w + at, r.n - at, r.aligned);
        DTI_UNROLL
        for (int i = 0; i < N; i++) {
            const float dh = a[i] * (c[i] + r.plus);
            by_h = fmaf(dh, (b[i] - m.mean) * m.scale, by_h);
            by_one += dh;
        }
    }
    by_h = dti_row_sum<G>(by_h, shared) / (float)r.n;
    by_one = r.centred ? dti_row_sum<G>(by_one, shared) / (float)r.n : 0.0f;
    for (int64_t at = threadIdx.x % G * N; at < r.n; at += G * N) {
        dti_load<T, N>(a, dy + at, r.n - at, r.aligned);
        dti_load<T, N>(b, x + at, r.n - at, r.aligned);
        dti_load<T, N>(c, r.w + at, r.n - at, r.aligned);
        DTI_UNROLL
        for (int i = 0; i < N; i++) {
            const float h = (b[i] - m.mean) * m.scale;
            a[i] = (a[i] * (c[i] + r.plus) - h * by_h - by_one) * m.scale;
        }
        dti_store<T, N>(r.dx + row * r.n + at, a, r.n - at, r.aligned);
    }
}

/* A thread has a column of a part, whose index is blockIdx.y. */
template <typename T> __global__ void __launch_bounds__(THREADS) part_sums(const norm_slopes<T> r)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, part = blockIdx.y;
    const int64_t until = r.n_rows * (part + 1) / r.n_parts;
    float dw = 0.0f, db = 0.0f;

    if (i >= r.n) return;
    for (int64_t row = r.n_rows * part / r.n_parts; row < until; row++) {
        const row_moments m = r.moments[row];
        const float dy = dti_widen(r.dy[row * r.n + i]);
        dw += dy * ((dti_widen(r.x[row * r.n + i]) - m.mean) * m.scale);
        db += dy;
    }
    r.terms[2 * part * r.n + i] = dw;
    r.terms[(2 * part + 1) * r.n + i] = db;
}

template <typename T> __global__ void __launch_bounds__(THREADS) all_sums(const norm_slopes<T> r)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float dw = 0.0f, db = 0.0f;

    if (i >= r.n) return;
    for (int64_t part = 0; part < r.n_parts; part++) {
        dw += r.terms[2 * part * r.n + i];
        db += r.terms[(2 * part + 1) * r.n + i];
    }
    if (r.dw != NULL) r.dw[i] = dw;
    if (r.db != NULL) r.db[i] = db;
}

template <typename T, int G> int launch_rows(dti_cuda *c, const norm_slopes<T> &r)
{
    const int64_t rows = THREADS / G;

    return DTI_LAUNCH(c, (slope_rows<T, G>), dim3((unsigned)((r.n_rows + rows - 1) / rows)),
                      dim3(THREADS), THREADS / DTI_WARP * sizeof(float), r);
}

template <typename T> int launch(dti_cuda *c, norm_slopes<T> r)
{
    enum { N = 16 / sizeof(T) };
    const size_t moments = ((size_t)r.n_rows * sizeof(row_moments) + 255) / 256 * 256;
    const unsigned columns = (unsigned)((r.n + THREADS - 1) / THREADS);
    void *scratch = NULL;

    r.n_parts = (r.n_rows + PART_ROWS - 1) / PART_ROWS;
    if (r.n_parts > MAX_PARTS) r.n_parts = MAX_PARTS;
    if (dti_cuda_scratch(c, moments + (size_t)(2 * r.n_parts * r.n) * sizeof(float), &scratch) != 0)
        return -1;
    r.moments = (row_moments *)scratch;
    r.terms = (float *)((char *)scratch + moments);
    if (r.n_rows > 0 && (r.n <= 2 * DTI_WARP * N ? launch_rows<T, DTI_WARP>(c, r)
                                                 : launch_rows<T, THREADS>(c, r)) != 0)
        return -1;
    if (r.dw == NULL && r.db == NULL) return 0;
    if (r.n_rows > 0 &&
        DTI_LAUNCH(c, part_sums<T>, dim3(columns, (unsigned)r.n_parts), dim3(THREADS), 0, r) != 0)
        return -1;
    return DTI_LAUNCH(c, all_sums<T>, dim3(columns), dim3(THREADS), 0, r);
}

template <typename T> int run(dti_cuda *c, const dt_kargs *a, float plus, bool centred)
{
    enum { N = 16 / sizeof(T) };
    const dti_norm_backward_attr *attr = (const dti_norm_backward_attr *)a->attr;
    const dt_local *x = &a->in[1];
    norm_slopes<T> r = {};
    uintptr_t all;

    r.n = x->shape[x->n_axes - 1];
    if (r.n == 0) return 0;
    r.n_rows = dti_cuda_count(x) / r.n;
    r.dy = (const T *)a->in[0].data;
    r.x = (const T *)x->data;
    r.w = (const T *)a->in[2].data;
    r.dx = (T *)((attr->want & 1u) != 0 ? a->out[0].data : NULL);
    r.dw = (float *)((attr->want & 2u) != 0 ? a->out[1].data : NULL);
    r.db = (float *)(a->n_out > 2 && (attr->want & 4u) != 0 ? a->out[2].data : NULL);
    r.eps = attr->eps;
    r.plus = plus;
    r.centred = centred;
    all = (uintptr_t)r.dy | (uintptr_t)r.x | (uintptr_t)r.w | (uintptr_t)r.dx;
    r.aligned = all % 16 == 0 && (r.n % N == 0 || r.n_rows == 1);
    return launch<T>(c, r);
}

int by_dtype(dti_cuda *c, const dt_kargs *a, const char *op, float plus, bool centred)
{
    switch (a->in[1].dtype) {
    case DT_F32:
        return run<float>(c, a, plus, centred);
    case DT_BF16:
        return run<dti_bf16>(c, a, plus, centred);
    case DT_F16:
        return run<dti_f16>(c, a, plus, centred);
    default:
        return dti_refuse_dtype(op, a->in[1].dtype);
    }
}

} /* namespace */

extern "C" {

int dti_rms_norm_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm_backward", 0.0f, false);
}

int dti_rms_norm_1p_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "rms_norm_1p_backward", 1.0f, false);
}

int dti_layer_norm_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return by_dtype(c, a, "layer_norm_backward", 0.0f, true);
}
} /* extern "C" */
