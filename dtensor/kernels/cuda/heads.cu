/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads on their way into attention: normed, rotated and written to the cache by one kernel, with
 * the bits of rms_norm, rope and kv_write one after the other (norms.cu, rope.cu, tables.cu).
 *
 * A group of L lanes has a head: a pack of 16 bytes in each, or two. It reads the head before it
 * writes any of it. A rotation pairs columns of two lanes, so heads pass through shared memory. The
 * blocks of a chain follow each other. */
#include "dtensor/kernels/cuda/norms.cuh"

namespace
{

enum { THREADS = 128 };

template <typename T> struct head_rows {
    const T *x, *weight, *table;
    T *normed, *rotated, *cache;
    const int32_t *positions;
    int64_t first_block, n_heads_all; /* heads of all tokens */
    int64_t n_tokens, n_rows;         /* of a sequence: tokens, rows of the cache */
    int n_heads, width, half, form;
    float eps;
    bool aligned;
};

template <typename T> struct head_group {
    head_rows<T> chains[DTI_FUSED_CHAINS];
    int n;
    dti_cuda_fault_word *fault;
};

/* Where the cache has head i; NULL: nowhere, or it is not written. A position outside is told. */
template <typename T>
__device__ inline T *cache_row(const head_rows<T> &r, int64_t i, bool tells,
                               dti_cuda_fault_word *fault)
{
    const int64_t token = i / r.n_heads, head = i % r.n_heads;
    int64_t at;

    if (r.cache == NULL) return NULL;
    at = r.positions[token];
    if (at >= 0 && at < r.n_rows)
        return r.cache + ((token / r.n_tokens * r.n_rows + at) * r.n_heads + head) * r.width;
    if (tells) dti_report(fault, DTI_CUDA_BAD_POSITION, at, r.n_rows);
    return NULL;
}

/* kept = its norm, rounded; all lanes of the warp come here. Lanes beyond the head add zeros, which
 * leaves the bits of a sum over more of them. */
template <typename T, int L, int KEPT, int N>
__device__ inline void norm_head(const head_rows<T> &r, dti_pack<T, N> (&kept)[KEPT], int lane)
{
    float sum = 0.0f, scale;

    DTI_UNROLL
    for (int p = 0; p < KEPT; p++)
        sum += dti_moment<T, N>(0.0f, kept[p], r.width - (p * L + lane) * N, 0.0f, true);
    for (int step = L / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    scale = 1.0f / sqrtf(sum / (float)r.width + r.eps);
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) {
        const int at = (p * L + lane) * N;
        float w[N];
        if (at >= r.width) continue;
        dti_load<T, N>(w, r.weight + at, r.width - at, r.aligned);
        DTI_UNROLL
        for (int i = 0; i < N; i++)
            dti_narrow(&kept[p].v[i],
                       dti_normed<T>(r.form, dti_widen(kept[p].v[i]), 0.0f, scale, w[i], 0.0f));
    }
}

/* y and, where it is not NULL, z get what lanes keep of a head. */
template <typename T, int L, int KEPT, int N>
__device__ inline void put_head(const head_rows<T> &r, T *y, const dti_pack<T, N> (&kept)[KEPT],
                                int lane)
{
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++) {
        const int at = (p * L + lane) * N;
        if (at < r.width) dti_store_pack<T, N>(y + at, kept[p], r.width - at, r.aligned);
    }
}

/* The head x, in shared memory, rotated by its token's row of the table: to y, and to z if it is
 * not NULL. The products round, and the sums. */
template <typename T, int L, int N>
__device__ inline void rotate_head(const head_rows<T> &r, const T *x, const T *cosines, T *y, T *z,
                                   int lane)
{
    const int packs = (r.half + N - 1) / N;

    for (int j = lane; j < packs; j += L) {
        const int i = j * N, left = r.half - i;
        float c[N], s[N], low[N], high[N], a[N], b[N];
        dti_load<T, N>(low, x + i, left, r.aligned);
        dti_load<T, N>(high, x + r.half + i, left, r.aligned);
        dti_load<T, N>(c, cosines + i, left, r.aligned);
        dti_load<T, N>(s, cosines + r.half + i, left, r.aligned);
        DTI_UNROLL
        for (int k = 0; k < N; k++) {
            a[k] = dti_rounded<T>(low[k] * c[k]) - dti_rounded<T>(high[k] * s[k]);
            b[k] = dti_rounded<T>(high[k] * c[k]) + dti_rounded<T>(low[k] * s[k]);
        }
        dti_store<T, N>(y + i, a, left, r.aligned);
        dti_store<T, N>(y + r.half + i, b, left, r.aligned);
        if (z == NULL) continue;
        dti_store<T, N>(z + i, a, left, r.aligned);
        dti_store<T, N>(z + r.half + i, b, left, r.aligned);
    }
    for (int i = 2 * r.half + lane; i < r.width; i += L) {
        y[i] = x[i];
        if (z != NULL) z[i] = x[i];
    }
}

template <typename T, int L, int KEPT>
__global__ void __launch_bounds__(THREADS) heads(const __grid_constant__ head_group<T> g)
{
    enum { N = 16 / sizeof(T) };
    const int lane = (int)threadIdx.x % L;
    int k = 0;
    DTI_SHARED(T, shared);
    T *const stage = shared + (int)threadIdx.x / L * (L * KEPT * N);

    while (k + 1 < g.n && blockIdx.x >= g.chains[k + 1].first_block) k++;
    const head_rows<T> &r = g.chains[k];
    const int64_t i = (blockIdx.x - r.first_block) * (THREADS / L) + (int)threadIdx.x / L;
    const bool is_head = i < r.n_heads_all; /* who has none goes along, for the shuffles */
    dti_pack<T, N> kept[KEPT] = {};
    T *cached = NULL;

    if (is_head) {
        cached = cache_row(r, i, lane == 0, g.fault);
        DTI_UNROLL
        for (int p = 0; p < KEPT; p++) {
            const int at = (p * L + lane) * N;
            dti_load_pack<T, N>(&kept[p], r.x + i * r.width + at, r.width - at, r.aligned);
        }
    }
    if (r.weight != NULL) {
        norm_head<T, L, KEPT, N>(r, kept, lane);
        if (is_head) put_head<T, L, KEPT, N>(r, r.normed + i * r.width, kept, lane);
    }
    if (r.table == NULL) {
        if (cached != NULL) put_head<T, L, KEPT, N>(r, cached, kept, lane);
        return;
    }
    DTI_UNROLL
    for (int p = 0; p < KEPT; p++)
        *reinterpret_cast<dti_pack<T, N> *>(stage + (p * L + lane) * N) = kept[p];
    __syncwarp(); /* and the head has been read, and written, by all of its lanes */
    if (is_head)
        rotate_head<T, L, N>(r, stage, r.table + i / r.n_heads * 2 * r.half,
                             r.rotated + i * r.width, cached, lane);
}

/* --- chains -----------------------------------------------------------------------------------*/

/* The heads that a chain begins with. */
const dt_local *heads_of(const dti_fused_chain *c)
{
    int s = 0;

    while (c->call[s] == NULL) s++;
    return &c->call[s]->in[0];
}

template <typename T> head_rows<T> rows_of(const dti_fused_chain *c)
{
    enum { N = 16 / sizeof(T) };
    const dt_kargs *norm = c->call[DTI_HEADS_NORM_STAGE], *rope = c->call[DTI_HEADS_ROPE_STAGE];
    const dt_kargs *write = c->call[DTI_HEADS_WRITE_STAGE];
    const dt_local *x = heads_of(c);
    head_rows<T> r = {};
    uintptr_t all;

    r.x = (const T *)x->data;
    r.n_heads_all = x->shape[0] * x->shape[1] * x->shape[2];
    r.n_tokens = x->shape[1];
    r.n_heads = (int)x->shape[2];
    r.width = (int)x->shape[3];
    if (norm != NULL) {
        r.weight = (const T *)norm->in[1].data;
        r.normed = (T *)norm->out[0].data;
        r.form = c->form[DTI_HEADS_NORM_STAGE];
        r.eps = ((const dti_norm_attr *)norm->attr)->eps;
    }
    if (rope != NULL) {
        r.table = (const T *)rope->in[1].data;
        r.rotated = (T *)rope->out[0].data;
        r.half = (int)(rope->in[1].shape[2] / 2);
    }
    if (write != NULL) {
        r.positions = (const int32_t *)write->in[1].data;
        r.cache = (T *)write->out[0].data;
        r.n_rows = write->out[0].shape[1];
    }
    all = (uintptr_t)r.x | (uintptr_t)r.weight | (uintptr_t)r.table | (uintptr_t)r.normed |
          (uintptr_t)r.rotated | (uintptr_t)r.cache;
    r.aligned = all % 16 == 0 && r.width % N == 0 && r.half % N == 0;
    return r;
}

template <typename T, int L, int KEPT> int launch(dti_cuda *c, head_group<T> &g)
{
    const int64_t per_block = THREADS / L;
    int64_t n_blocks = 0;

    for (int k = 0; k < g.n; k++) {
        g.chains[k].first_block = n_blocks;
        n_blocks += (g.chains[k].n_heads_all + per_block - 1) / per_block;
    }
    return DTI_LAUNCH(c, (heads<T, L, KEPT>), dim3((unsigned)n_blocks), dim3(THREADS),
                      THREADS * KEPT * 16, g);
}

template <typename T> int run(dti_cuda *c, const dti_fused_chain *chains, int n)
{
    enum { N = 16 / sizeof(T) };
    head_group<T> g = {};
    int widest = 0;

    g.n = n;
    g.fault = c->fault;
    for (int k = 0; k < n; k++) {
        g.chains[k] = rows_of<T>(&chains[k]);
        if (g.chains[k].width > widest) widest = g.chains[k].width;
    }
    if (widest <= 16 * N) return launch<T, 16, 1>(c, g);
    if (widest <= DTI_WARP * N) return launch<T, DTI_WARP, 1>(c, g);
    return launch<T, DTI_WARP, 2>(c, g);
}

} /* namespace */

extern "C" int dti_heads_cuda(dti_cuda *c, const dti_fused_chain *chains, int n)
{
    const dt_dtype dtype = heads_of(&chains[0])->dtype;

    switch (dtype) {
    case DT_F32:
        return run<float>(c, chains, n);
    case DT_BF16:
        return run<dti_bf16>(c, chains, n);
    case DT_F16:
        return run<dti_f16>(c, chains, n);
    default:
        return dti_refuse_dtype("a kernel for heads", dtype);
    }
}
