/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of f32, and of 16 bits where rows are not whole pieces of 16 bytes: multiply-adds in
 * f32 throughout, one rounding at the end. A block takes 16 rows and a part of their keys, 32 keys
 * at a time through shared memory; a warp has four of the rows. Of heads that are wider than other
 * kernels take, values come where keys were: the same tile where keys are values, as of latents. */
#include <stdio.h>

#include "dtensor/kernels/cuda/attention_plain.cuh"

namespace
{

enum {
    ROWS = DTI_ATTENTION_PLAIN_ROWS,
    WARPS = DTI_ATTENTION_WARPS,
    MINE = ROWS / WARPS,                     /* rows of a warp */
    KEYS = DTI_WARP,                         /* of a tile: one per lane */
    NARROW = DTI_ATTENTION_WIDTH / DTI_WARP, /* columns of a lane, at most: the parameter COLUMNS */
    WIDE = DTI_ATTENTION_WIDEST / DTI_WARP
};

const float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;

/* Lane i has columns i, i + 32, ... of the sums of its warp's rows. */
template <int COLUMNS> struct softmax_state {
    float sums[MINE][COLUMNS];
    float largest[MINE], total[MINE];
    int first[MINE], last[MINE];
};

/* What a block keeps, rows being `pitch` float4 apart: an odd number, for the banks. */
struct block_memory {
    float weights[WARPS][KEYS][MINE];
    int first[ROWS], last[ROWS];
    float4 rows[1]; /* q [ROWS, pitch], k [KEYS, pitch], v [KEYS, pitch] unless that is k's place */
};

/* s[i] = the warp's row i times the lane's key */
__device__ inline void multiply_key(float (&s)[MINE], const float4 *q, const float4 *k, int width)
{
    const int pitch = dti_attention_pitch(width);

    for (int d = 0; d < (width + 3) / 4; d++) {
        const float4 y = k[d];
        DTI_UNROLL
        for (int i = 0; i < MINE; i++) {
            const float4 x = q[i * pitch + d];
            s[i] = dti_add_product(s[i], x.x, y.x);
            s[i] = dti_add_product(s[i], x.y, y.y);
            s[i] = dti_add_product(s[i], x.z, y.z);
            s[i] = dti_add_product(s[i], x.w, y.w);
        }
    }
}

/* The lane's scores become weights, and what the state has of these rows follows; keys from `end`
 * on are of another part. */
template <int COLUMNS>
__device__ inline void soften(softmax_state<COLUMNS> &state, float (&s)[MINE], float scale, int key,
                              int end)
{
    DTI_UNROLL
    for (int i = 0; i < MINE; i++) {
        const bool seen = key < end && key >= state.first[i] && key <= state.last[i];
        const float score = seen ? s[i] * scale : -INFINITY;
        const float most = fmaxf(state.largest[i], dti_warp_max(score));
        const float base = most == -INFINITY ? 0.0f : most; /* no key seen yet */
        const float factor = exp2f(state.largest[i] - base);
        s[i] = exp2f(score - base);
        state.largest[i] = most;
        state.total[i] = state.total[i] * factor + dti_warp_sum(s[i]);
        DTI_UNROLL
        for (int x = 0; x < COLUMNS; x++) state.sums[i][x] *= factor;
    }
}

template <int COLUMNS>
__device__ inline void add_values(softmax_state<COLUMNS> &state, const float (*weights)[MINE],
                                  const float4 *v, int width)
{
    const int lane = (int)threadIdx.x % DTI_WARP, pitch = 4 * dti_attention_pitch(width);
    const float *value = reinterpret_cast<const float *>(v) + lane;

    for (int j = 0; j < KEYS; j++, value += pitch) DTI_UNROLL
    for (int x = 0; x < COLUMNS; x++) {
        if (lane + DTI_WARP * x >= width) continue;
        const float y = value[DTI_WARP * x];
        DTI_UNROLL
        for (int i = 0; i < MINE; i++)
            state.sums[i][x] = dti_add_product(state.sums[i][x], weights[j][i], y);
    }
}

/* KEYS keys or values from `key` on, of which n are there. */
template <typename T, bool EXTRAS>
__device__ inline void load_tile(float4 *to, const void *from, const dti_attention_call &a,
                                 const dti_attention_rows &r, int key, int n)
{
    const int64_t stride = a.n_kv * a.width;

    if (EXTRAS && a.table != NULL)
        dti_attention_load_paged<T>(to, from, a, r, key, KEYS, n);
    else
        dti_attention_load_keys<T>(
            to, static_cast<const T *>(from) + dti_attention_key_at(a, r) + key * stride, stride,
            KEYS, n, a.width);
}

/* Scores s of the warp's rows with the lane's key, keys.first, become weights; no key is behind
 * keys.last. */
template <typename T, bool EXTRAS, int COLUMNS>
__device__ inline void weigh(softmax_state<COLUMNS> &state, block_memory &m,
                             const dti_attention_call &a, const dti_attention_rows &r, int row,
                             dti_key_range keys, float (&s)[MINE])
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    float slope;

    if (EXTRAS)
        for (int i = 0; i < MINE; i++)
            if (row + warp * MINE + i < r.n && keys.first <= keys.last)
                s[i] = LOG2E * dti_attention_adjusted<T>(a, r, row + warp * MINE + i, keys.first,
                                                         s[i], &slope);
    soften(state, s, EXTRAS ? 1.0f : a.scale, keys.first, keys.last + 1);
    for (int i = 0; i < MINE; i++) {
        const int of = row + warp * MINE + i;
        if (EXTRAS && a.dropout > 0.0f && of < r.n)
            s[i] *= dti_attention_kept(a, r, of, keys.first);
        m.weights[warp][lane][i] = s[i];
    }
    __syncwarp();
}

/* Steps begin .. end - 1 of the keys, of which none outside lo .. hi is read. */
template <typename T, bool EXTRAS, int COLUMNS>
__device__ inline void walk(softmax_state<COLUMNS> &state, block_memory &m,
                            const dti_attention_call &a, const dti_attention_rows &r, int row,
                            int lo, int hi)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int pitch = dti_attention_pitch(a.width);
    const bool there = row + warp * MINE < r.n; /* some row of the warp */
    float4 *const k = m.rows + ROWS * pitch, *const v = COLUMNS > NARROW ? k : k + KEYS * pitch;

    for (int key = lo; key <= hi; key += KEYS) {
        float s[MINE] = {};
        const int n = hi + 1 - key;
        load_tile<T, EXTRAS>(k, a.k, a, r, key, n);
        if (v != k) load_tile<T, EXTRAS>(v, a.v, a, r, key, n);
        __syncthreads();
        if (there) {
            multiply_key(s, m.rows + warp * MINE * pitch, k + lane * pitch, a.width);
            weigh<T, EXTRAS>(state, m, a, r, row, dti_key_range{ key + lane, hi }, s);
        }
        if (v == k && a.v != a.k) {
            __syncthreads();
            load_tile<T, EXTRAS>(v, a.v, a, r, key, n);
            __syncthreads();
        }
        if (there) add_values(state, m.weights[warp], v, a.width);
        __syncthreads();
    }
}

/* Result, or what is merged later. */
template <typename T, int COLUMNS>
__device__ inline void store(const softmax_state<COLUMNS> &state, const dti_attention_call &a,
                             const dti_attention_rows &r, int row, int64_t part)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;

    DTI_UNROLL
    for (int i = 0; i < MINE; i++) {
        const int of = warp * MINE + i;
        const float total = state.total[i];
        if (row + of >= r.n) continue;
        if (a.lse != NULL && lane == 0)
            a.lse[dti_attention_at(a, r, row + of) / a.width] =
                state.largest[i] * LN2 + dti_log(total);
        if (a.n_parts > 1 && lane == 0)
            a.state[part * ROWS + of] = make_float2(state.largest[i], total);
        DTI_UNROLL
        for (int x = 0; x < COLUMNS; x++) {
            const int d = lane + DTI_WARP * x;
            const float sum = state.sums[i][x];
            if (d >= a.width) continue;
            if (a.n_parts > 1)
                a.sums[(part * ROWS + of) * a.width + d] = sum;
            else
                dti_narrow(static_cast<T *>(a.y) + dti_attention_at(a, r, row + of) + d,
                           total == 0.0f ? 0.0f : sum / total);
        }
    }
}

/* The softmax of each row is over one score more. Of calls with extras keys are one part. */
template <typename T, int COLUMNS>
__device__ inline void add_sinks(softmax_state<COLUMNS> &state, const dti_attention_call &a,
                                 const dti_attention_rows &r, int row)
{
    for (int i = 0; i < MINE && a.sinks != NULL; i++) {
        const int of = row + (int)threadIdx.x / DTI_WARP * MINE + i;
        if (of >= r.n) continue;
        const float sink =
            dti_widen(static_cast<const T *>(a.sinks)[r.first_head + of % r.n_heads]) * LOG2E;
        const float most = fmaxf(state.largest[i], sink), factor = exp2f(state.largest[i] - most);
        state.total[i] = state.total[i] * factor + exp2f(sink - most);
        state.largest[i] = most;
        for (int x = 0; x < COLUMNS; x++) state.sums[i][x] *= factor;
    }
}

/* Grid as in attention_decode.cu. 128 threads. */
template <typename T, bool EXTRAS, int COLUMNS>
__global__ void __launch_bounds__(DTI_ATTENTION_THREADS, 2) plain_rows(const dti_attention_call a)
{
    DTI_SHARED(block_memory, m);
    const int64_t block = blockIdx.x % a.n_blocks, rest = blockIdx.x / a.n_blocks;
    const int64_t pair = rest / a.n_parts, part = rest % a.n_parts;
    const dti_attention_rows r = dti_attention_rows_of(a, pair);
    const int row = (int)block * ROWS, warp = (int)threadIdx.x / DTI_WARP;
    softmax_state<COLUMNS> state = {};
    int lo = INT32_MAX, hi = -1, begin, end;

    if (row >= r.n) return; /* a kv head whose group this rank holds in part */
    if (EXTRAS && a.seen != NULL && threadIdx.x < ROWS) {
        const int of = row + (int)threadIdx.x;
        dti_key_range seen = { 0, -1 };
        if (of < r.n) seen = a.seen[r.b * a.n_tokens + of / r.n_heads];
        m->first[threadIdx.x] = seen.first;
        m->last[threadIdx.x] = seen.last;
    } else if (threadIdx.x < ROWS) {
        int *last = &m->last[threadIdx.x];
        dti_attention_keys(a, r, row + (int)threadIdx.x, &m->first[threadIdx.x], last);
        if (EXTRAS && a.both_ways && *last >= 0) *last = dti_attention_last_both_ways(a, *last);
    }
    dti_attention_load_rows<T>(m->rows, a.q, a, r, row, ROWS);
    __syncthreads();
    for (int i = 0; i < ROWS; i++) {
        lo = min(lo, m->first[i]);
        hi = max(hi, m->last[i]);
    }
    for (int i = 0; i < MINE; i++) {
        state.first[i] = m->first[warp * MINE + i];
        state.last[i] = m->last[warp * MINE + i];
        state.largest[i] = -INFINITY;
    }
    dti_attention_part(a, (int)part, lo, hi, &begin, &end);
    walk<T, EXTRAS>(state, *m, a, r, row, max(lo, begin * DTI_ATTENTION_STEP),
                    min(hi, end * DTI_ATTENTION_STEP - 1));
    if (EXTRAS) add_sinks<T>(state, a, r, row);
    store<T>(state, a, r, row, (pair * a.n_blocks + block) * a.n_parts + part);
}

template <typename T, bool EXTRAS, int COLUMNS> int start(dti_cuda *c, const dti_attention_call &a)
{
    const unsigned grid = (unsigned)(a.batch * a.n_used * a.n_parts * a.n_blocks);
    const int tiles = COLUMNS > NARROW ? 1 : 2; /* of keys, of values */
    const size_t shared =
        offsetof(block_memory, rows) +
        (size_t)((ROWS + tiles * KEYS) * dti_attention_pitch(a.width)) * sizeof(float4);
    char what[160];

    (void)snprintf(what, sizeof what,
                   "attention: %zu bytes of shared memory for heads of %d columns, without which "
                   "this model runs on the CPU",
                   shared, a.width);
    if (dti_cuda_check(cudaFuncSetAttribute(plain_rows<T, EXTRAS, COLUMNS>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared),
                       what) != 0)
        return -1;
    return DTI_LAUNCH(c, (plain_rows<T, EXTRAS, COLUMNS>), grid, DTI_ATTENTION_THREADS, shared, a);
}

template <typename T> int start(dti_cuda *c, const dti_attention_call &a)
{
    if (a.width > DTI_ATTENTION_WIDTH)
        return a.has_extras ? start<T, true, WIDE>(c, a) : start<T, false, WIDE>(c, a);
    return a.has_extras ? start<T, true, NARROW>(c, a) : start<T, false, NARROW>(c, a);
}

} // namespace

extern "C" int dti_attention_plain(dti_cuda *c, const dti_attention_call *a, int dtype)
{
    switch (dtype) {
    case DT_BF16:
        return start<dti_bf16>(c, *a);
    case DT_F16:
        return start<dti_f16>(c, *a);
    default:
        return start<float>(c, *a);
    }
}
