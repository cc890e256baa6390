/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions: a table of cosines and sines per token, and the rotation of heads by it.
 * B batch, T tokens, H heads, e head width, r <= e rotated columns.
 *
 * A block has a token; a thread rotates 16 bytes of the first half of a head with 16 of the second.
 * The token's row of the table comes from a cache for all heads but the first. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256 };

/* --- the table -------------------------------------------------------------------------------- */

/* positions [B, T] i32, inv_freq [r/2] f32 -> table [B, T, r]. The angle is the f32 product; its
 * cosine and sine are taken in f64 and rounded to f32, which is what a good f32 function gives. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rope_table(T *y, const int32_t *positions, const float *inv_freq, int64_t n, int64_t half,
               float factor)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t token = i / half, column = i % half;

    if (i < n) {
        const float angle = (float)positions[token] * inv_freq[column];
        T *row = y + 2 * half * token;
        dti_narrow(&row[column], (float)cos((double)angle) * factor);
        dti_narrow(&row[column + half], (float)sin((double)angle) * factor);
    }
}

template <typename T> int run_table(dti_cuda *c, const dt_kargs *a)
{
    const int64_t half = dti_cuda_count(&a->in[1]), n = dti_cuda_count(&a->in[0]) * half;

    if (n == 0) return 0;
    return DTI_LAUNCH(c, rope_table<T>, dim3((unsigned)((n + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, (T *)a->out[0].data, (const int32_t *)a->in[0].data,
                      (const float *)a->in[1].data, n, half,
                      ((const dti_rope_table_attr *)a->attr)->factor);
}

/* --- the rotation ----------------------------------------------------------------------------- */

template <typename T> struct rope_heads {
    T *y;
    const T *x, *table;
    int n_heads, width, half;
    bool aligned;
};

/* y[i] = x[i] cos[i] - x[half + i] sin[i], y[half + i] = x[half + i] cos[i] + x[i] sin[i]; each
 * product rounds, each sum rounds. BACK: by the negative angle. */
template <typename T, bool BACK>
__global__ void __launch_bounds__(THREADS) rope(const rope_heads<T> r)
{
    enum { N = 16 / sizeof(T) };
    const int packs = (r.half + N - 1) / N, rest = r.width - 2 * r.half;
    const int64_t first = (int64_t)blockIdx.x * r.n_heads * r.width;
    const T *cosines = r.table + (int64_t)blockIdx.x * 2 * r.half;

    for (int j = (int)threadIdx.x; j < r.n_heads * packs; j += (int)blockDim.x) {
        const int i = j % packs * N, left = r.half - i;
        const int64_t at = first + (int64_t)(j / packs) * r.width + i;
        float c[N], s[N], low[N], high[N], a[N], b[N];
        dti_load<T, N>(low, r.x + at, left, r.aligned);
        dti_load<T, N>(high, r.x + at + r.half, left, r.aligned);
        dti_load<T, N>(c, cosines + i, left, r.aligned);
        dti_load<T, N>(s, cosines + r.half + i, left, r.aligned);
        DTI_UNROLL
        for (int k = 0; k < N; k++) {
            if (BACK) s[k] = -s[k];
            a[k] = dti_rounded<T>(low[k] * c[k]) - dti_rounded<T>(high[k] * s[k]);
            b[k] = dti_rounded<T>(high[k] * c[k]) + dti_rounded<T>(low[k] * s[k]);
        }
        dti_store<T, N>(r.y + at, a, left, r.aligned);
        dti_store<T, N>(r.y + at + r.half, b, left, r.aligned);
    }
    if (r.y == r.x) return;
    for (int j = (int)threadIdx.x; j < r.n_heads * rest; j += (int)blockDim.x) {
        const int64_t at = first + (int64_t)(j / rest) * r.width + 2 * r.half + j % rest;
        r.y[at] = r.x[at];
    }
}

template <typename T, bool BACK> int run_rope(dti_cuda *c, const dt_kargs *a)
{
    enum { N = 16 / sizeof(T) };
    const dt_local *x = &a->in[0], *table = &a->in[1];
    const uintptr_t all = (uintptr_t)a->out[0].data | (uintptr_t)x->data | (uintptr_t)table->data;
    const int64_t n_tokens = x->shape[0] * x->shape[1], per_token = x->shape[2] * x->shape[3];
    rope_heads<T> r = { (T *)a->out[0].data,
                        (const T *)x->data,
                        (const T *)table->data,
                        (int)x->shape[2],
                        (int)x->shape[3],
                        (int)(table->shape[2] / 2),
                        false };
    const int64_t max = THREADS;
    int64_t wanted;

    if (n_tokens * per_token == 0) return 0;
    if (per_token > INT32_MAX / 2)
        return dti_cuda_fail("rope on CUDA takes tokens of at most %d elements, not %lld",
                             INT32_MAX / 2, (long long)per_token);
    r.aligned = all % 16 == 0 && r.half % N == 0 && r.width % N == 0;
    wanted = (per_token / (2 * N) + DTI_WARP) / DTI_WARP * DTI_WARP;
    return DTI_LAUNCH(c, (rope<T, BACK>), dim3((unsigned)n_tokens),
                      dim3((unsigned)(wanted < max ? wanted : max)), 0, r);
}

template <bool BACK> int run_rope_of(dti_cuda *c, const char *row, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_rope<float, BACK>(c, a);
    case DT_BF16:
        return run_rope<dti_bf16, BACK>(c, a);
    case DT_F16:
        return run_rope<dti_f16, BACK>(c, a);
    default:
        return dti_refuse_dtype(row, a->in[0].dtype);
    }
}

} /* namespace */

extern "C" {

int dti_rope_table_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->out[0].dtype) {
    case DT_F32:
        return run_table<float>(c, a);
    case DT_BF16:
        return run_table<dti_bf16>(c, a);
    case DT_F16:
        return run_table<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("rope_table", a->out[0].dtype);
    }
}

int dti_rope_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run_rope_of<false>(c, "rope", a);
}

int dti_rope_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run_rope_of<true>(c, "rope_backward", a);
}
} /* extern "C" */
