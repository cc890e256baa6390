/* SPDX-License-Identifier: Apache-2.0
 *
 * Choices: the first largest element of rows that lie on several ranks, and the experts of a token
 * with their weights. Both order elements by their keys (keys.cuh); a maximum of integers is the
 * same in any order, so nothing depends on how rows are divided among threads. */
#include "dtensor/kernels/cuda/keys.cuh"
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP, PACKS = 4 };

/* --- argmax ----------------------------------------------------------------------------------- */

struct argmax_job {
    const void *x;
    int64_t *keys;    /* [n_rows, n_chunks] */
    int64_t n, first; /* elements of a row; the global index of its first */
    int64_t n_chunks;
    bool aligned;
};

/* The largest key of a chunk of a row, a block for each. */
template <typename T> __global__ void __launch_bounds__(THREADS) argmax_chunks(const argmax_job j)
{
    enum { N = 16 / sizeof(T) };
    const int64_t row = blockIdx.x / j.n_chunks, chunk = blockIdx.x % j.n_chunks;
    const T *x = (const T *)j.x + row * j.n;
    int64_t best = INT64_MIN;
    float v[PACKS][N];
    DTI_SHARED(int64_t, shared);

    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = ((chunk * PACKS + p) * THREADS + threadIdx.x) * N;
        dti_load<T, N>(v[p], x + at, j.n - at, j.aligned);
    }
    DTI_UNROLL
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = ((chunk * PACKS + p) * THREADS + threadIdx.x) * N;
        DTI_UNROLL
        for (int i = 0; i < N; i++)
            if (at + i < j.n) best = dti_larger(best, dti_key_of(v[p][i], j.first + at + i));
    }
    best = dti_warp_largest(best);
    if (threadIdx.x % DTI_WARP == 0) shared[threadIdx.x / DTI_WARP] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) best = dti_larger(best, shared[w]);
    j.keys[blockIdx.x] = best;
}

/* keys [n_rows, n_chunks] -> [n_rows], a warp for each row */
__global__ void __launch_bounds__(THREADS)
    argmax_rows(int64_t *to, const int64_t *keys, int64_t n_rows, int64_t n_chunks)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / DTI_WARP;
    int64_t best = INT64_MIN;

    if (row >= n_rows) return;
    for (int64_t i = threadIdx.x % DTI_WARP; i < n_chunks; i += DTI_WARP)
        best = dti_larger(best, keys[row * n_chunks + i]);
    best = dti_warp_largest(best);
    if (threadIdx.x % DTI_WARP == 0) to[row] = best;
}

template <typename T> int run_argmax(dti_cuda *c, const dt_kargs *a, int64_t n_rows)
{
    enum { N = 16 / sizeof(T), CHUNK = THREADS * PACKS * N };
    const dt_local *x = &a->in[0];
    const int64_t n = x->shape[x->n_axes - 1];
    int64_t *keys = (int64_t *)a->out[0].data;
    argmax_job j = { x->data,
                     keys,
                     n,
                     x->offset[x->n_axes - 1],
                     n > CHUNK ? (n + CHUNK - 1) / CHUNK : 1,
                     (uintptr_t)x->data % 16 == 0 && (n % N == 0 || n_rows == 1) };

    if (n_rows == 0) return 0;
    if (j.n_chunks > 1) {
        void *scratch;
        if (dti_cuda_scratch(c, (size_t)(n_rows * j.n_chunks) * sizeof *keys, &scratch) != 0)
            return -1;
        j.keys = (int64_t *)scratch;
    }
    if (DTI_LAUNCH(c, argmax_chunks<T>, dim3((unsigned)(n_rows * j.n_chunks)), dim3(THREADS),
                   WARPS * sizeof *keys, j) != 0)
        return -1;
    return j.n_chunks == 1
               ? 0
               : DTI_LAUNCH(c, argmax_rows, dim3((unsigned)((n_rows + WARPS - 1) / WARPS)),
                            dim3(THREADS), 0, keys, (const int64_t *)j.keys, n_rows, j.n_chunks);
}

/* key -> index; -1 for the key of an empty row */
__global__ void __launch_bounds__(THREADS) argmax_ids(int32_t *ids, const int64_t *keys, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n) ids[i] = keys[i] == INT64_MIN ? -1 : dti_key_index(keys[i]);
}

/* --- routes ----------------------------------------------------------------------------------- */

struct route_job {
    const void *x;     /* [n_rows, n] */
    const float *bias; /* [n] or NULL */
    int32_t *ids;      /* [n_rows, k] */
    void *weights;     /* [n_rows, k]; on the way back their gradient */
    void *dx;          /* [n_rows, n], there */
    dti_cuda_fault_word *fault;
    int64_t n_rows, n, k;
    int n_groups, n_best; /* 0: no groups */
    float scale;
    bool normalise, sigmoid;
};

/* What softmaxes of a row are made with, by all lanes of its warp. */
template <typename T>
__device__ inline void sums_of(const route_job &j, const T *x, int lane, float *largest, float *sum)
{
    *largest = -INFINITY;
    *sum = 0.0f;
    for (int64_t e = lane; e < j.n; e += DTI_WARP) *largest = fmaxf(*largest, dti_widen(x[e]));
    *largest = dti_warp_max(*largest);
    for (int64_t e = lane; e < j.n; e += DTI_WARP) *sum += dti_exp(dti_widen(x[e]) - *largest);
    *sum = dti_warp_sum(*sum);
}

__device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + dti_exp(-x));
}

/* What experts of a row are chosen by. */
template <typename T> struct chooser {
    const route_job &j;
    const T *x;
    float largest, sum;
    bool scored;
    unsigned groups; /* bit g: its experts count */

    __device__ float score(int64_t e) const
    {
        const float x_e = dti_widen(x[e]);

        if (!scored) return x_e;
        return (j.sigmoid ? sigmoid(x_e) : dti_exp(x_e - largest) / sum) +
               (j.bias != NULL ? j.bias[e] : 0.0f);
    }

    /* The largest key below `last` of experts begin .. end - 1 whose groups count. */
    __device__ int64_t next(int64_t begin, int64_t end, int64_t last, int lane) const
    {
        int64_t best = INT64_MIN;

        for (int64_t e = begin + lane; e < end; e += DTI_WARP) {
            const int64_t key = dti_key_of(score(e), e);
            const bool counts = j.n_groups == 0 || groups >> (e / (j.n / j.n_groups)) & 1u;
            if (key < last && counts) best = dti_larger(best, key);
        }
        return dti_warp_largest(best);
    }

    /* Leaves the groups whose two largest scores add up to the most. Lane g has the sum of group g.
     */
    __device__ void choose_groups(int lane)
    {
        const int64_t size = j.n / j.n_groups;
        unsigned best = 0;
        float own = 0.0f;

        groups = ~0u;
        for (int g = 0; g < j.n_groups; g++) {
            const int64_t first = next(g * size, (g + 1) * size, INT64_MAX, lane);
            const int64_t second = next(g * size, (g + 1) * size, first, lane);
            const float both = score(dti_key_index(first)) + score(dti_key_index(second));
            if (lane == g) own = both;
        }
        for (int i = 0; i < j.n_best; i++) {
            const bool left = lane < j.n_groups && !(best >> lane & 1u);
            best |= 1u << dti_key_index(dti_warp_largest(left ? dti_key_of(own, lane) : INT64_MIN));
        }
        groups = best;
    }
};

/* The k largest of a row in falling order, a warp for each row: a round finds the largest key below
 * the last one. Rows are read k times, the first time from memory. */
template <typename T> __global__ void __launch_bounds__(THREADS) route_ids(const route_job j)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / DTI_WARP;
    const int lane = (int)threadIdx.x % DTI_WARP;
    chooser<T> c = { j,    (const T *)j.x + row * j.n,       0.0f,
                     1.0f, j.bias != NULL || j.n_groups > 0, ~0u };
    int64_t last = INT64_MAX;

    if (row >= j.n_rows) return;
    if (c.scored && !j.sigmoid) sums_of(j, c.x, lane, &c.largest, &c.sum);
    if (j.n_groups > 0) c.choose_groups(lane);
    for (int64_t i = 0; i < j.k; i++) {
        last = c.next(0, j.n, last, lane);
        if (lane == 0) j.ids[row * j.k + i] = last == INT64_MIN ? -1 : dti_key_index(last);
    }
}

/* The score of slot i's expert. */
template <typename T>
__device__ inline float weight_of(const route_job &j, const T *x, int32_t e, float largest,
                                  float sum)
{
    if (e >= 0 && e < j.n)
        return j.sigmoid ? sigmoid(dti_widen(x[e])) : dti_exp(dti_widen(x[e]) - largest) / sum;
    dti_report(j.fault, DTI_CUDA_BAD_EXPERT, e, j.n);
    return 0.0f;
}

/* What scores of chosen experts are divided by: a sum of sigmoids may be 0. */
__device__ inline float chosen_of(const route_job &j, float sum)
{
    return dti_warp_sum(sum) + (j.sigmoid ? 1e-20f : 0.0f);
}

/* softmax over all experts of a row in f32, or sigmoids, of the chosen ones; divided by their sum
 * if `normalise` says so; rounds once. A warp for each row. */
template <typename T> __global__ void __launch_bounds__(THREADS) route_weights(const route_job j)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / DTI_WARP;
    const int lane = (int)threadIdx.x % DTI_WARP;
    const T *x = (const T *)j.x + row * j.n;
    float largest = 0.0f, sum = 1.0f, chosen = 0.0f;

    if (row >= j.n_rows) return;
    if (!j.sigmoid) sums_of(j, x, lane, &largest, &sum);
    for (int64_t i = lane; i < j.k && j.normalise; i += DTI_WARP)
        chosen += weight_of(j, x, j.ids[row * j.k + i], largest, sum);
    chosen = j.normalise ? chosen_of(j, chosen) : 1.0f;
    for (int64_t i = lane; i < j.k; i += DTI_WARP) {
        const float w = weight_of(j, x, j.ids[row * j.k + i], largest, sum);
        dti_narrow((T *)j.weights + row * j.k + i, w / chosen * j.scale);
    }
}

/* Of p, the softmax over all experts or over the chosen ones: p_e (sum of dy at e - sum of dy p),
 * of chosen ones alone if they are `normalise`d; of sigmoids each has its own slope. A lane adds
 * what the slots of its experts have, in their order. A warp for each row. */
template <typename T> __global__ void __launch_bounds__(THREADS) slope_weights(const route_job j)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / DTI_WARP;
    const int lane = (int)threadIdx.x % DTI_WARP;
    const T *x = (const T *)j.x + row * j.n, *dy = (const T *)j.weights + row * j.k;
    const int32_t *ids = j.ids + row * j.k;
    float largest = 0.0f, sum = 1.0f, chosen = 0.0f, along = 0.0f;

    if (row >= j.n_rows) return;
    if (!j.sigmoid) sums_of(j, x, lane, &largest, &sum);
    for (int64_t i = lane; i < j.k; i += DTI_WARP) chosen += weight_of(j, x, ids[i], largest, 1.0f);
    if (j.normalise) sum = chosen_of(j, chosen);
    for (int64_t i = lane; i < j.k; i += DTI_WARP)
        along += dti_widen(dy[i]) * (weight_of(j, x, ids[i], largest, 1.0f) / sum);
    along = dti_warp_sum(along);
    for (int64_t e = lane; e < j.n; e += DTI_WARP) {
        const float s = weight_of(j, x, (int32_t)e, largest, 1.0f), p = s / sum;
        const float own = p * (j.sigmoid ? 1.0f - s : 1.0f);
        float dx = j.normalise || j.sigmoid ? 0.0f : -p * along;
        for (int64_t i = 0; i < j.k; i++)
            if (ids[i] == e)
                dx += own * (j.normalise ? dti_widen(dy[i]) - along : dti_widen(dy[i]));
        dti_narrow((T *)j.dx + row * j.n + e, dx * j.scale);
    }
}

dim3 warps_of(int64_t n_rows)
{
    return dim3((unsigned)((n_rows + WARPS - 1) / WARPS));
}

/* Of k choices a row, of which y has as many. */
route_job route_of(dti_cuda *c, const dt_kargs *a, const dt_local *x, const dt_local *y)
{
    const dti_route_attr *attr = (const dti_route_attr *)a->attr;
    route_job j = {};

    j.x = x->data;
    j.fault = c->fault;
    j.n_rows = 1;
    j.n = x->shape[x->n_axes - 1];
    j.k = y->shape[y->n_axes - 1];
    for (int b = 0; b < x->n_axes - 1; b++) j.n_rows *= x->shape[b];
    j.n_groups = attr->n_groups > 1 ? attr->n_groups : 0;
    j.n_best = attr->n_chosen_groups;
    j.scale = attr->scale != 0.0f ? attr->scale : 1.0f;
    j.normalise = attr->normalise != 0;
    j.sigmoid = attr->scores == DT_ROUTE_SIGMOID;
    return j;
}

} /* namespace */

extern "C" {

int dti_argmax_key_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int64_t n_rows = dti_cuda_count(&a->out[0]);

    switch (a->in[0].dtype) {
    case DT_F32:
        return run_argmax<float>(c, a, n_rows);
    case DT_BF16:
        return run_argmax<dti_bf16>(c, a, n_rows);
    case DT_F16:
        return run_argmax<dti_f16>(c, a, n_rows);
    default:
        return dti_refuse_dtype("argmax_key", (int)a->in[0].dtype);
    }
}

int dti_argmax_id_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int64_t n = dti_cuda_count(&a->in[0]);

    if (n == 0) return 0;
    return DTI_LAUNCH(c, argmax_ids, dim3((unsigned)((n + THREADS - 1) / THREADS)), dim3(THREADS),
                      0, (int32_t *)a->out[0].data, (const int64_t *)a->in[0].data, n);
}

int dti_route_ids_cuda(dti_cuda *c, const dt_kargs *a)
{
    route_job j = route_of(c, a, &a->in[0], &a->out[0]);

    j.ids = (int32_t *)a->out[0].data;
    j.bias = a->n_in > 1 ? (const float *)a->in[1].data : NULL;
    if (j.n_rows * j.k == 0) return 0;
    switch (a->in[0].dtype) {
    case DT_F32:
        return DTI_LAUNCH(c, route_ids<float>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_BF16:
        return DTI_LAUNCH(c, route_ids<dti_bf16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_F16:
        return DTI_LAUNCH(c, route_ids<dti_f16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    default:
        return dti_refuse_dtype("route_ids", (int)a->in[0].dtype);
    }
}

int dti_route_ids_bias_cuda(dti_cuda *c, const dt_kargs *a)
{
    return dti_route_ids_cuda(c, a);
}

int dti_route_weights_cuda(dti_cuda *c, const dt_kargs *a)
{
    route_job j = route_of(c, a, &a->in[0], &a->out[0]);

    j.ids = (int32_t *)a->in[1].data;
    j.weights = a->out[0].data;
    if (j.n_rows * j.k == 0) return 0;
    switch (a->in[0].dtype) {
    case DT_F32:
        return DTI_LAUNCH(c, route_weights<float>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_BF16:
        return DTI_LAUNCH(c, route_weights<dti_bf16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_F16:
        return DTI_LAUNCH(c, route_weights<dti_f16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    default:
        return dti_refuse_dtype("route_weights", (int)a->in[0].dtype);
    }
}

int dti_route_weights_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    route_job j = route_of(c, a, &a->in[1], &a->in[0]);

    j.weights = a->in[0].data;
    j.ids = (int32_t *)a->in[2].data;
    j.dx = a->out[0].data;
    if (j.n_rows * j.n == 0) return 0;
    switch (a->in[1].dtype) {
    case DT_F32:
        return DTI_LAUNCH(c, slope_weights<float>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_BF16:
        return DTI_LAUNCH(c, slope_weights<dti_bf16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    case DT_F16:
        return DTI_LAUNCH(c, slope_weights<dti_f16>, warps_of(j.n_rows), dim3(THREADS), 0, j);
    default:
        return dti_refuse_dtype("route_weights_backward", (int)a->in[1].dtype);
    }
}
} /* extern "C" */
