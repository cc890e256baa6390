/* SPDX-License-Identifier: Apache-2.0
 *
 * The k largest elements of rows that lie on several ranks, by their keys (keys.cuh), as
 * dtensor/kernels/cpu/top_k.c. Keys are all different and only compared, so how rows are divided
 * among blocks makes no difference.
 *
 * A block sorts a chunk of a row and keeps the first k; what all chunks keep is cut into chunks
 * again, until one is left: three launches for 128 Ki elements and k = 100. Where a chunk would
 * keep more than half, a block takes the largest of the row, then the largest below that, and so
 * on: k rounds over the row. */
#include "dtensor/kernels/cuda/keys.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP, CHUNK = 2048 };

/* Elements of a row, or keys of one. */
template <typename T> __device__ inline int64_t key_at(const T *x, int64_t i, int64_t first)
{
    return dti_key_of(dti_widen(x[i]), first + i);
}

template <> __device__ inline int64_t key_at<int64_t>(const int64_t *x, int64_t i, int64_t)
{
    return x[i];
}

struct top_job {
    const void *x;    /* [n_rows, n] */
    int64_t *keys;    /* [n_rows, n_chunks, k] in falling order, then INT64_MIN */
    int64_t n, first; /* elements of a row; the global index of its first */
    int64_t n_chunks, k;
    int width; /* of what is sorted: a power of 2, all of a chunk's elements */
};

/* Bitonic, largest first. */
__device__ inline void sort_block(int64_t *keys, int width)
{
    for (int size = 2; size <= width; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int p = (int)threadIdx.x; p < width / 2; p += THREADS) {
                const int i = 2 * p - (p & (stride - 1));
                const int64_t a = keys[i], b = keys[i + stride];
                const bool falls = (i & size) == 0;
                if ((a < b) != falls) continue;
                keys[i] = b;
                keys[i + stride] = a;
            }
        }
    __syncthreads();
}

/* A block for each chunk of each row. */
template <typename T> __global__ void __launch_bounds__(THREADS) sort_chunks(const top_job j)
{
    const int64_t row = blockIdx.x / j.n_chunks, begin = blockIdx.x % j.n_chunks * CHUNK;
    const T *x = (const T *)j.x + row * j.n;
    DTI_SHARED(int64_t, shared);

    for (int i = (int)threadIdx.x; i < j.width; i += THREADS)
        shared[i] = begin + i < j.n ? key_at<T>(x, begin + i, j.first) : INT64_MIN;
    sort_block(shared, j.width);
    for (int64_t i = threadIdx.x; i < j.k; i += THREADS)
        j.keys[blockIdx.x * j.k + i] = i < j.width ? shared[i] : INT64_MIN;
}

/* A block for each row. */
template <typename T> __global__ void __launch_bounds__(THREADS) take_rounds(const top_job j)
{
    const T *x = (const T *)j.x + blockIdx.x * j.n;
    int64_t last = INT64_MAX;
    DTI_SHARED(int64_t, shared);

    for (int64_t round = 0; round < j.k; round++) {
        int64_t best = INT64_MIN;
        for (int64_t i = threadIdx.x; i < j.n; i += THREADS) {
            const int64_t key = key_at<T>(x, i, j.first);
            if (key < last) best = dti_larger(best, key);
        }
        best = dti_warp_largest(best);
        __syncthreads(); /* the round before was read */
        if (threadIdx.x % DTI_WARP == 0) shared[threadIdx.x / DTI_WARP] = best;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) best = dti_larger(best, shared[w]);
        last = best;
        if (threadIdx.x == 0) j.keys[blockIdx.x * j.k + round] = last;
    }
}

__global__ void __launch_bounds__(THREADS)
    split_keys(float *values, int32_t *indices, const int64_t *keys, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n) return;
    values[i] = keys[i] == INT64_MIN ? -INFINITY : dti_key_value(keys[i]);
    indices[i] = keys[i] == INT64_MIN ? -1 : dti_key_index(keys[i]);
}

/* --- launching -------------------------------------------------------------------------------- */

int64_t chunks_of(int64_t n)
{
    return n > CHUNK ? (n + CHUNK - 1) / CHUNK : 1;
}

bool takes_rounds(int64_t n, int64_t k)
{
    return n > CHUNK && k > CHUNK / 2;
}

/* Keys that one row's chunks keep at first and in the next step: all that is there at a time. */
int64_t room_of(int64_t n, int64_t k)
{
    const int64_t kept = chunks_of(n) * k;

    return chunks_of(n) == 1 || takes_rounds(n, k) ? 0 : kept + chunks_of(kept) * k;
}

template <typename T> int sort_once(dti_cuda *c, top_job *j, int64_t n_rows)
{
    j->n_chunks = chunks_of(j->n);
    for (j->width = 2; j->width < j->n && j->width < CHUNK;) j->width *= 2;
    return DTI_LAUNCH(c, sort_chunks<T>, dim3((unsigned)(n_rows * j->n_chunks)), dim3(THREADS),
                      (size_t)j->width * sizeof *j->keys, *j);
}

/* j has x, n, first, keys and k: the k largest of each row to j.keys. `scratch` has room_of() keys
 * for each row; NULL: none are needed. */
template <typename T> int run(dti_cuda *c, top_job j, int64_t n_rows, int64_t *scratch)
{
    const int64_t kept = n_rows * chunks_of(j.n) * j.k;
    int64_t *const to = j.keys;

    if (takes_rounds(j.n, j.k))
        return DTI_LAUNCH(c, take_rounds<T>, dim3((unsigned)n_rows), dim3(THREADS),
                          WARPS * sizeof *j.keys, j);
    if (chunks_of(j.n) > 1) j.keys = scratch;
    if (sort_once<T>(c, &j, n_rows) != 0) return -1;
    while (j.keys != to) {
        j.x = j.keys;
        j.n = j.n_chunks * j.k;
        j.keys = chunks_of(j.n) == 1 ? to : j.keys == scratch ? scratch + kept : scratch;
        if (sort_once<int64_t>(c, &j, n_rows) != 0) return -1;
    }
    return 0;
}

template <typename T> int run_keys(dti_cuda *c, const top_job &j, int64_t n_rows)
{
    void *scratch = NULL;

    if (room_of(j.n, j.k) > 0 &&
        dti_cuda_scratch(c, (size_t)(n_rows * room_of(j.n, j.k)) * sizeof *j.keys, &scratch) != 0)
        return -1;
    return run<T>(c, j, n_rows, (int64_t *)scratch);
}

} /* namespace */

extern "C" {

int dti_top_k_keys_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int64_t k = y->shape[y->n_axes - 1], n_rows = dti_cuda_count(y) / (k > 0 ? k : 1);
    top_job j = {
        x->data, (int64_t *)y->data, x->shape[x->n_axes - 1], x->offset[x->n_axes - 1], 0, k, 0
    };

    if (n_rows * k == 0) return 0;
    switch (x->dtype) {
    case DT_F32:
        return run_keys<float>(c, j, n_rows);
    case DT_BF16:
        return run_keys<dti_bf16>(c, j, n_rows);
    case DT_F16:
        return run_keys<dti_f16>(c, j, n_rows);
    default:
        return dti_refuse_dtype("top_k_keys", (int)x->dtype);
    }
}

int dti_top_k_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    const int64_t n = x->shape[x->n_axes - 1], count = dti_cuda_count(&a->out[0]);
    const int64_t k = a->out[0].shape[a->out[0].n_axes - 1];
    const int64_t n_rows = count / (k > 0 ? k : 1);
    top_job j = { x->data, NULL, n, 0, 0, k, 0 };
    void *scratch;

    if (count == 0) return 0;
    if (dti_cuda_scratch(c, (size_t)(count + n_rows * room_of(n, k)) * sizeof *j.keys, &scratch) !=
        0)
        return -1;
    j.keys = (int64_t *)scratch;
    if (run<int64_t>(c, j, n_rows, j.keys + count) != 0) return -1;
    return DTI_LAUNCH(c, split_keys, dim3((unsigned)((count + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, (float *)a->out[0].data, (int32_t *)a->out[1].data,
                      (const int64_t *)j.keys, count);
}
} /* extern "C" */
