/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention along a sequence, by the formulas of dtensor/kernels/cpu/delta.c, whose letters
 * these are: a causal convolution of each channel, a thread for each of its elements; the gated
 * delta rule, a lane for each column of a value head, whose tokens come one after the other. */
#include "dtensor/kernels/cuda/delta.cuh"

namespace
{

enum { THREADS = 256, COLUMNS = DTI_WARP, SHARED_BYTES = 48 << 10 };

/* --- causal convolution ----------------------------------------------------------------------- */

template <typename T> struct conv_call {
    const T *x, *window, *w;
    T *y, *next;
    int64_t batch, tokens, channels, behind;
};

/* Token t of channel c: of the window where t is below 0. */
template <typename T>
__device__ inline T token_of(const conv_call<T> &j, int64_t b, int64_t t, int64_t c)
{
    return t >= 0 ? j.x[(b * j.tokens + t) * j.channels + c]
                  : j.window[(b * j.behind + j.behind + t) * j.channels + c];
}

/* A thread for each channel of T tokens and of W that are left. */
template <typename T> __global__ void convolve(const conv_call<T> j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c = i % j.channels;
    const int64_t s = i / j.channels % (j.tokens + j.behind);
    const int64_t b = i / j.channels / (j.tokens + j.behind), left = s - j.tokens;
    float sum = 0.0f;

    if (b >= j.batch) return;
    if (left >= 0) {
        j.next[(b * j.behind + left) * j.channels + c] =
            token_of(j, b, j.tokens - j.behind + left, c);
        return;
    }
    for (int64_t k = 0; k <= j.behind; k++)
        sum +=
            dti_widen(j.w[c * (j.behind + 1) + k]) * dti_widen(token_of(j, b, s - j.behind + k, c));
    dti_narrow(&j.y[(b * j.tokens + s) * j.channels + c], sum);
}

template <typename T> int start_conv(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *window = &a->in[1];
    const conv_call<T> j = { static_cast<const T *>(x->data),
                             static_cast<const T *>(window->data),
                             static_cast<const T *>(a->in[2].data),
                             static_cast<T *>(a->out[0].data),
                             static_cast<T *>(a->out[1].data),
                             x->shape[0],
                             x->shape[1],
                             x->shape[2],
                             window->shape[1] };
    const int64_t n = (dti_cuda_count(x) + dti_cuda_count(window) + THREADS - 1) / THREADS;

    if (n > INT32_MAX)
        return dti_cuda_fail("causal_conv: %lld tokens of %lld channels are more than one call "
                             "takes",
                             (long long)(j.batch * j.tokens), (long long)j.channels);
    if (n == 0) return 0;
    return DTI_LAUNCH(c, convolve<T>, dim3((unsigned)n), dim3(THREADS), 0, j);
}

/* --- gated delta rule ------------------------------------------------------------------------- */

template <typename T> struct delta_call {
    const T *q, *k, *v, *beta;
    const float *decay, *before;
    T *y;
    float *after;
    int64_t batch, tokens, heads, group;
    int width, value;
    bool shares; /* states lie in shared memory, not in `after` */
};

/* A lane's column of a state, rows `stride` apart, over one token, whose value v becomes what the
 * token reads. */
__device__ inline float delta_step(float *state, int64_t stride, const float *unit, int width,
                                   float decay, float beta, float v)
{
    const float *const q = unit, *const k = unit + width;
    float told = 0.0f, sum = 0.0f;

    for (int d = 0; d < width; d++) {
        const float faded = state[d * stride] * decay;
        state[d * stride] = faded;
        told += k[d] * faded;
    }
    told = (v - told) * beta;
    for (int d = 0; d < width; d++) {
        const float now = state[d * stride] + k[d] * told;
        state[d * stride] = now;
        sum += q[d] * now;
    }
    return sum;
}

/* A warp for COLUMNS columns of a value head. Shared: a token's query and key, maybe the state. */
template <typename T>
__global__ void __launch_bounds__(DTI_WARP) delta_columns(const delta_call<T> j)
{
    DTI_SHARED(float, unit);
    const int64_t blocks = (j.value + COLUMNS - 1) / COLUMNS, row = blockIdx.x / blocks;
    const int64_t b = row / (j.heads * j.group), h = row / j.group % j.heads, r = row % j.group;
    const int64_t e = blockIdx.x % blocks * COLUMNS + threadIdx.x;
    const int64_t first = row * j.width * j.value + e, stride = j.shares ? COLUMNS : j.value;
    const bool mine = e < j.value;
    float *const state = j.shares ? unit + 2 * j.width + threadIdx.x : j.after + first;

    for (int d = 0; d < j.width && mine; d++)
        state[d * stride] = j.before[first + (int64_t)d * j.value];
    for (int64_t t = 0; t < j.tokens; t++) {
        const int64_t head = (b * j.tokens + t) * j.heads + h, own = head * j.group + r;
        dti_load_unit(unit, j.q + head * j.width, 1.0f / sqrtf((float)j.width), j.width);
        dti_load_unit(unit + j.width, j.k + head * j.width, 1.0f, j.width);
        __syncwarp();
        if (mine)
            dti_narrow(&j.y[own * j.value + e],
                       delta_step(state, stride, unit, j.width, dti_exp(j.decay[own]),
                                  dti_widen(j.beta[own]), dti_widen(j.v[own * j.value + e])));
        __syncwarp();
    }
    for (int d = 0; d < j.width && mine && j.shares; d++)
        j.after[first + (int64_t)d * j.value] = state[d * stride];
}

template <typename T> int start_delta(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *q = &a->in[0], *v = &a->in[2];
    delta_call<T> j = { static_cast<const T *>(q->data),
                        static_cast<const T *>(a->in[1].data),
                        static_cast<const T *>(v->data),
                        static_cast<const T *>(a->in[4].data),
                        static_cast<const float *>(a->in[3].data),
                        static_cast<const float *>(a->in[5].data),
                        static_cast<T *>(a->out[0].data),
                        static_cast<float *>(a->out[1].data),
                        q->shape[0],
                        q->shape[1],
                        q->shape[2],
                        v->shape[3],
                        (int)q->shape[3],
                        (int)v->shape[4],
                        false };
    const int64_t n = j.batch * j.heads * j.group * ((v->shape[4] + COLUMNS - 1) / COLUMNS);
    const int64_t unit = 2 * q->shape[3] * (int64_t)sizeof(float);
    const int64_t whole = unit + COLUMNS * q->shape[3] * (int64_t)sizeof(float);

    if (unit > SHARED_BYTES || n > INT32_MAX)
        return dti_cuda_fail("gated_delta: heads of %lld and %lld columns, %lld of them, are more "
                             "than one call takes",
                             (long long)q->shape[3], (long long)v->shape[4],
                             (long long)(j.batch * j.heads * j.group));
    if (n == 0 || j.width == 0) return 0;
    j.shares = whole <= SHARED_BYTES;
    return DTI_LAUNCH(c, delta_columns<T>, dim3((unsigned)n), dim3(DTI_WARP),
                      (size_t)(j.shares ? whole : unit), j);
}

} // namespace

extern "C" int dti_causal_conv_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return start_conv<float>(c, a);
    case DT_BF16:
        return start_conv<dti_bf16>(c, a);
    case DT_F16:
        return start_conv<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("causal_conv", a->in[0].dtype);
    }
}

extern "C" int dti_gated_delta_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return start_delta<float>(c, a);
    case DT_BF16:
        return start_delta<dti_bf16>(c, a);
    case DT_F16:
        return start_delta<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("gated_delta", a->in[0].dtype);
    }
}
