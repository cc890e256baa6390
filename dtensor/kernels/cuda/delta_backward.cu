/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of linear attention, by the formulas of dtensor/kernels/cpu/delta_backward.c, whose
 * letters and marks these are. A block goes through the value heads of a head of queries and keys
 * one after the other; threads have columns of a state where sums are over its rows, warps have
 * rows where they are over columns. Every sum is in an order that shapes say. */
#include "dtensor/kernels/cuda/delta.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP, SHARED_BYTES = 48 << 10 };

/* --- causal convolution ----------------------------------------------------------------------- */

/* Window and x, one behind the other, are u[s], s < W + T. */
template <typename T> struct conv_call {
    const T *dy, *dnext, *x, *window, *w;
    T *dx, *dwindow;
    float *dw;
    int64_t batch, tokens, channels, behind;
};

/* Where u[s] of channel c lies, in x or, with s below W, in the window. */
template <typename T>
__device__ inline int64_t place_of(const conv_call<T> &j, int64_t b, int64_t s, int64_t c)
{
    const int64_t row = s < j.behind ? b * j.behind + s : b * j.tokens + s - j.behind;

    return row * j.channels + c;
}

/* du, a thread for each element. */
template <typename T> __global__ void convolve_back(const conv_call<T> j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c = i % j.channels;
    const int64_t s = i / j.channels % (j.tokens + j.behind);
    const int64_t b = i / j.channels / (j.tokens + j.behind), left = s - j.tokens;
    float sum = 0.0f;

    if (b >= j.batch) return;
    if (left >= 0) sum = dti_widen(j.dnext[(b * j.behind + left) * j.channels + c]);
    for (int64_t k = 0; k <= j.behind; k++)
        if (s >= k && s - k < j.tokens)
            sum += dti_widen(j.w[c * (j.behind + 1) + k]) *
                   dti_widen(j.dy[(b * j.tokens + s - k) * j.channels + c]);
    dti_narrow((s < j.behind ? j.dwindow : j.dx) + place_of(j, b, s, c), sum);
}

/* dw, a thread for each element: neighbours have neighbouring channels. */
template <typename T> __global__ void sum_taps(const conv_call<T> j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t c = i % j.channels, k = i / j.channels;
    float sum = 0.0f;

    if (k > j.behind) return;
    for (int64_t b = 0; b < j.batch; b++)
        for (int64_t t = 0; t < j.tokens; t++) {
            const T *const u = t + k < j.behind ? j.window : j.x;
            sum += dti_widen(j.dy[(b * j.tokens + t) * j.channels + c]) *
                   dti_widen(u[place_of(j, b, t + k, c)]);
        }
    j.dw[c * (j.behind + 1) + k] = sum;
}

template <typename T> int start_conv(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[2], *window = &a->in[3];
    const conv_call<T> j = { static_cast<const T *>(a->in[0].data),
                             static_cast<const T *>(a->in[1].data),
                             static_cast<const T *>(x->data),
                             static_cast<const T *>(window->data),
                             static_cast<const T *>(a->in[4].data),
                             static_cast<T *>(a->out[0].data),
                             static_cast<T *>(a->out[1].data),
                             static_cast<float *>(a->out[2].data),
                             x->shape[0],
                             x->shape[1],
                             x->shape[2],
                             window->shape[1] };
    const int64_t n = (dti_cuda_count(x) + dti_cuda_count(window) + THREADS - 1) / THREADS;
    const int64_t n_taps = (j.channels * (j.behind + 1) + THREADS - 1) / THREADS;

    if (n > INT32_MAX)
        return dti_cuda_fail("causal_conv_backward: %lld tokens of %lld channels are more than one "
                             "call takes",
                             (long long)(j.batch * j.tokens), (long long)j.channels);
    if (n > 0 && DTI_LAUNCH(c, convolve_back<T>, dim3((unsigned)n), dim3(THREADS), 0, j) != 0)
        return -1;
    if (n_taps == 0) return 0;
    return DTI_LAUNCH(c, sum_taps<T>, dim3((unsigned)n_taps), dim3(THREADS), 0, j);
}

/* --- gated delta rule ------------------------------------------------------------------------- */

template <typename T> struct delta_call {
    const T *dy, *q, *k, *v, *beta;
    const float *dafter, *decay, *state;
    T *dqk, *dv;
    float *dgates, *dstate;
    float *room;                         /* of each block */
    int64_t room_floats, every, n_marks; /* states are kept before every so many tokens */
    int64_t first, tokens, heads, group; /* first: of the heads of a launch */
    int width, value;
};

/* A block's: states before tokens 0, every, ...; before each token from one of them on; after one;
 * gradients of the state, and of queries and keys of all tokens. Then in shared memory a token's
 * own. */
struct delta_room {
    float *marks, *states, *after, *ds, *dqk;
    float *q, *k, *v, *dy, *told, *du;
    float beta, decay;
};

/* The sum over the block, to all. */
__device__ inline float block_sum(float x)
{
    __shared__ float parts[WARPS];
    float sum = 0.0f;

    x = dti_warp_sum(x);
    __syncthreads(); /* whoever called before has read them */
    if (threadIdx.x % DTI_WARP == 0) parts[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) sum += parts[w];
    return sum;
}

__device__ inline void copy(float *to, const float *from, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += THREADS) to[i] = from[i];
    __syncthreads();
}

/* Token t of head `head` of sequence b among [B, T, H]. */
template <typename T>
__device__ inline int64_t head_at(const delta_call<T> &j, int64_t pair, int64_t t)
{
    return (pair / j.heads * j.tokens + t) * j.heads + pair % j.heads;
}

/* head: as head_at() says, own: the same of [B, T, H, R]. */
template <typename T>
__device__ inline void load_token(const delta_call<T> &j, int64_t head, int64_t own, delta_room &r)
{
    const int warp = (int)threadIdx.x / DTI_WARP;

    if (warp == 0) dti_load_unit(r.q, j.q + head * j.width, 1.0f / sqrtf((float)j.width), j.width);
    if (warp == 1) dti_load_unit(r.k, j.k + head * j.width, 1.0f, j.width);
    for (int e = (int)threadIdx.x; e < j.value; e += THREADS) {
        r.v[e] = dti_widen(j.v[own * j.value + e]);
        r.dy[e] = dti_widen(j.dy[own * j.value + e]);
    }
    r.beta = dti_widen(j.beta[own]);
    r.decay = dti_exp(j.decay[own]);
    __syncthreads();
}

/* The state `before` a token becomes that `after` it, which may be the same memory. */
template <typename T>
__device__ inline void step(const delta_call<T> &j, const delta_room &r, const float *before,
                            float *after)
{
    for (int e = (int)threadIdx.x; e < j.value; e += THREADS) {
        float told = r.v[e];
        for (int d = 0; d < j.width; d++) {
            const int64_t at = (int64_t)d * j.value + e;
            after[at] = r.decay * before[at];
            told -= r.k[d] * after[at];
        }
        for (int d = 0; d < j.width; d++) after[(int64_t)d * j.value + e] += r.k[d] * r.beta * told;
        r.told[e] = told;
    }
    __syncthreads();
}

/* From the state after the token: of its result, its value and, times beta, what it was told. */
template <typename T>
__device__ inline float back_from_after(const delta_call<T> &j, const delta_room &r, float *dunit)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    float along = 0.0f;

    for (int e = (int)threadIdx.x; e < j.value; e += THREADS) {
        float du = 0.0f;
        for (int d = 0; d < j.width; d++) {
            float *const ds = r.ds + (int64_t)d * j.value + e;
            *ds += r.q[d] * r.dy[e];
            du += *ds * r.k[d];
        }
        along += du * r.told[e];
        r.du[e] = du * r.beta;
    }
    along = block_sum(along);
    for (int d = warp; d < j.width; d += WARPS) {
        float dq = 0.0f, dk = 0.0f;
        for (int e = lane; e < j.value; e += DTI_WARP) {
            const int64_t at = (int64_t)d * j.value + e;
            dq += r.after[at] * r.dy[e];
            dk += r.ds[at] * r.beta * r.told[e];
        }
        dq = dti_warp_sum(dq);
        dk = dti_warp_sum(dk);
        if (lane == 0) {
            dunit[d] += dq;
            dunit[j.width + d] += dk;
        }
    }
    return along;
}

/* Back over one token: ds, of the state after it, becomes that of the state before it. */
template <typename T>
__device__ inline void step_back(const delta_call<T> &j, const delta_room &r, const float *before,
                                 float *dunit, float *gates)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const float dbeta = back_from_after(j, r, dunit);
    float sum = 0.0f;

    for (int d = warp; d < j.width; d += WARPS) {
        float dk = 0.0f;
        for (int e = lane; e < j.value; e += DTI_WARP) {
            const int64_t at = (int64_t)d * j.value + e;
            const float faded = r.decay * before[at], ds = r.ds[at] - r.k[d] * r.du[e];
            dk -= faded * r.du[e];
            sum += ds * faded;
            r.ds[at] = ds * r.decay;
        }
        dk = dti_warp_sum(dk);
        if (lane == 0) dunit[j.width + d] += dk;
    }
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    gates[0] = sum;
    gates[j.group] = dbeta;
}

/* Tokens `first` to first + n - 1 of value head `own`, whose first state is r.states. */
template <typename T>
__device__ inline void back_to_mark(const delta_call<T> &j, int64_t pair, int64_t own,
                                    int64_t first, int64_t n, delta_room &r)
{
    const int64_t one = (int64_t)j.width * j.value;

    for (int64_t i = 0; i + 1 < n; i++) {
        const int64_t head = head_at(j, pair, first + i);
        load_token(j, head, head * j.group + own, r);
        step(j, r, r.states + i * one, r.states + (i + 1) * one);
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t head = head_at(j, pair, first + i), at = head * j.group + own;
        load_token(j, head, at, r);
        step(j, r, r.states + i * one, r.after);
        step_back(j, r, r.states + i * one, r.dqk + 2 * (first + i) * j.width,
                  j.dgates + 2 * head * j.group + own);
        for (int e = (int)threadIdx.x; e < j.value; e += THREADS)
            dti_narrow(j.dv + at * j.value + e, r.du[e]);
        __syncthreads();
    }
}

/* Forward to the marks, then back from mark to mark. */
template <typename T>
__device__ inline void value_head(const delta_call<T> &j, int64_t pair, int64_t own, delta_room &r)
{
    const int64_t one = (int64_t)j.width * j.value, row = pair * j.group + own;

    copy(r.states, j.state + row * one, one);
    for (int64_t t = 0; t < j.tokens; t++) {
        const int64_t head = head_at(j, pair, t);
        if (t % j.every == 0) copy(r.marks + t / j.every * one, r.states, one);
        load_token(j, head, head * j.group + own, r);
        step(j, r, r.states, r.states);
    }
    copy(r.ds, j.dafter + row * one, one);
    for (int64_t m = j.n_marks - 1; m >= 0; m--) {
        const int64_t first = m * j.every, left = j.tokens - first;
        copy(r.states, r.marks + m * one, one);
        back_to_mark(j, pair, own, first, left < j.every ? left : j.every, r);
    }
    copy(j.dstate + row * one, r.ds, one);
}

/* dx of y = scale x / |x| from that of y: rounded, by a warp. */
template <typename T>
__device__ inline void from_unit(T *dx, const T *x, float scale, const float *dy, int width)
{
    const int lane = (int)threadIdx.x % DTI_WARP;
    const float to_unit = dti_unit_factor(x, width), factor = to_unit * scale;
    float along = 0.0f;

    for (int i = lane; i < width; i += DTI_WARP) along += dti_widen(x[i]) * to_unit * dy[i];
    along = dti_warp_sum(along);
    for (int i = lane; i < width; i += DTI_WARP)
        dti_narrow(dx + i, factor * (dy[i] - dti_widen(x[i]) * to_unit * along));
}

template <typename T>
__device__ inline delta_room room_of(const delta_call<T> &j, float *at, float *shared)
{
    const int64_t one = (int64_t)j.width * j.value;
    delta_room r;

    r.marks = at;
    r.states = r.marks + j.n_marks * one;
    r.after = r.states + j.every * one;
    r.ds = r.after + one;
    r.dqk = r.ds + one;
    r.q = shared;
    r.k = r.q + j.width;
    r.v = r.k + j.width;
    r.dy = r.v + j.value;
    r.told = r.dy + j.value;
    r.du = r.told + j.value;
    r.beta = r.decay = 0.0f;
    return r;
}

/* A block for each head of queries and keys. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 2) delta_back(const delta_call<T> j)
{
    DTI_SHARED(float, shared);
    const int64_t pair = j.first + blockIdx.x;
    delta_room r = room_of(j, j.room + blockIdx.x * j.room_floats, shared);

    for (int64_t i = threadIdx.x; i < 2 * j.tokens * j.width; i += THREADS) r.dqk[i] = 0.0f;
    for (int64_t own = 0; own < j.group; own++) value_head(j, pair, own, r);
    __syncthreads();
    for (int64_t t = threadIdx.x / DTI_WARP; t < j.tokens; t += WARPS) {
        const int64_t at = head_at(j, pair, t) * j.width;
        const float *const dq = r.dqk + 2 * t * j.width;
        from_unit(j.dqk + 2 * at, j.q + at, 1.0f / sqrtf((float)j.width), dq, j.width);
        from_unit(j.dqk + 2 * at + j.width, j.k + at, 1.0f, dq + j.width, j.width);
    }
}

template <typename T> delta_call<T> unpack(const dt_kargs *a)
{
    const dt_local *q = &a->in[2], *v = &a->in[4];
    delta_call<T> j = {};

    j.dy = static_cast<const T *>(a->in[0].data);
    j.dafter = static_cast<const float *>(a->in[1].data);
    j.q = static_cast<const T *>(q->data);
    j.k = static_cast<const T *>(a->in[3].data);
    j.v = static_cast<const T *>(v->data);
    j.decay = static_cast<const float *>(a->in[5].data);
    j.beta = static_cast<const T *>(a->in[6].data);
    j.state = static_cast<const float *>(a->in[7].data);
    j.dqk = static_cast<T *>(a->out[0].data);
    j.dv = static_cast<T *>(a->out[1].data);
    j.dgates = static_cast<float *>(a->out[2].data);
    j.dstate = static_cast<float *>(a->out[3].data);
    j.tokens = q->shape[1];
    j.heads = q->shape[2];
    j.group = v->shape[3];
    j.width = (int)q->shape[3];
    j.value = (int)v->shape[4];
    j.every = 1;
    while (j.every * j.every < j.tokens) j.every++;
    j.n_marks = (j.tokens + j.every - 1) / j.every;
    j.room_floats = (j.n_marks + j.every + 2) * j.width * j.value + 2 * j.tokens * j.width;
    return j;
}

/* As many heads at a time as half a GiB of scratch memory has room for, at least one. */
template <typename T> int start_delta(dti_cuda *c, const dt_kargs *a)
{
    delta_call<T> j = unpack<T>(a);
    const int64_t n = a->in[2].shape[0] * j.heads;
    const int64_t fit = (512 << 20) / (j.room_floats * (int64_t)sizeof(float) + 1);
    const int64_t most = fit < 1 ? 1 : fit < n ? fit : n;
    const size_t shared = ((size_t)j.width * 2 + (size_t)j.value * 4) * sizeof(float);
    void *room;

    if (shared > SHARED_BYTES)
        return dti_cuda_fail("gated_delta_backward: heads of %d and %d columns are more than one "
                             "call takes",
                             j.width, j.value);
    if (n == 0) return 0;
    if (dti_cuda_scratch(c, (size_t)(most * j.room_floats) * sizeof(float), &room) != 0) return -1;
    j.room = static_cast<float *>(room);
    for (; j.first < n; j.first += most) {
        const int64_t blocks = n - j.first < most ? n - j.first : most;
        if (DTI_LAUNCH(c, delta_back<T>, dim3((unsigned)blocks), dim3(THREADS), shared, j) != 0)
            return -1;
    }
    return 0;
}

} // namespace

extern "C" int dti_causal_conv_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[2].dtype) {
    case DT_F32:
        return start_conv<float>(c, a);
    case DT_BF16:
        return start_conv<dti_bf16>(c, a);
    case DT_F16:
        return start_conv<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("causal_conv_backward", a->in[2].dtype);
    }
}

extern "C" int dti_gated_delta_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[2].dtype) {
    case DT_F32:
        return start_delta<float>(c, a);
    case DT_BF16:
        return start_delta<dti_bf16>(c, a);
    case DT_F16:
        return start_delta<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("gated_delta_backward", a->in[2].dtype);
    }
}
