/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention along a sequence, by the formulas of dtensor/kernels/cpu/delta.c, whose letters
 * these are: a causal convolution of each channel, a thread for each of its elements; the gated
 * delta rule, a lane for each column of a value head, whose tokens come one after the other. Of
 * rows whose states lie in slots, the first one of each slot takes those behind it along. */
#include "dtensor/kernels/cuda/delta.cuh"

namespace
{

enum { THREADS = 256, COLUMNS = DTI_WARP, SHARED_BYTES = 48 << 10, MOST_ROWS = 65535 };

/* --- rows of slots ---------------------------------------------------------------------------- */

struct slot_rows {
    const int32_t *positions, *slots; /* [n] */
    dti_cuda_fault_word *fault;
    int64_t n, first, n_slots; /* slots of this rank */

    /* Whether row i stands for its slot; one that is not there is reported, and stands for none. */
    __device__ bool leads(int64_t i) const
    {
        const int64_t slot = slots[i] - first;

        if (slots[i] < 0) return false;
        if (slot < 0 || slot >= n_slots) {
            dti_report(fault, DTI_CUDA_BAD_SEQUENCE, slot, n_slots);
            return false;
        }
        for (int64_t j = 0; j < i; j++)
            if (slots[j] == slots[i]) return false;
        return true;
    }
};

slot_rows slot_rows_of(const dti_cuda *c, const dt_local *positions, const dt_local *pool)
{
    const slot_rows s = { static_cast<const int32_t *>(positions[0].data),
                          static_cast<const int32_t *>(positions[1].data),
                          c->fault,
                          positions->shape[0],
                          pool->offset[0],
                          pool->shape[0] };

    return s;
}

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

template <typename T> struct conv_slots_call {
    const T *x, *w;
    T *y, *pool;
    slot_rows rows;
    int64_t channels, behind;
};

/* A token of one channel, and the window before it, which moves on. */
template <typename T>
__device__ inline void convolve_one(const conv_slots_call<T> &j, T *window, int64_t i, int64_t c)
{
    const T *const w = j.w + c * (j.behind + 1);
    const T x = j.x[i * j.channels + c];
    float sum = 0.0f;

    for (int64_t k = 0; k < j.behind; k++) {
        sum += dti_widen(w[k]) * dti_widen(window[k * j.channels]);
        window[k * j.channels] = k + 1 < j.behind ? window[(k + 1) * j.channels] : x;
    }
    sum += dti_widen(w[j.behind]) * dti_widen(x);
    dti_narrow(&j.y[i * j.channels + c], sum);
}

/* A thread for each channel of each row. */
template <typename T> __global__ void convolve_slots(const conv_slots_call<T> j)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x, first = blockIdx.y;
    T *window;

    if (c >= j.channels) return;
    if (j.rows.slots[first] < 0) dti_narrow(&j.y[first * j.channels + c], 0.0f);
    if (!j.rows.leads(first)) return;
    window = j.pool + (j.rows.slots[first] - j.rows.first) * j.behind * j.channels + c;
    for (int64_t i = first; i < j.rows.n; i++) {
        if (j.rows.slots[i] != j.rows.slots[first]) continue;
        for (int64_t k = 0; k < j.behind && j.rows.positions[i] == 0; k++)
            dti_narrow(&window[k * j.channels], 0.0f);
        convolve_one(j, window, i, c);
    }
}

template <typename T> int start_conv_slots(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *pool = &a->out[1];
    const conv_slots_call<T> j = { static_cast<const T *>(x->data),
                                   static_cast<const T *>(a->in[3].data),
                                   static_cast<T *>(a->out[0].data),
                                   static_cast<T *>(pool->data),
                                   slot_rows_of(c, &a->in[1], pool),
                                   x->shape[2],
                                   pool->shape[1] };
    const int64_t n = (j.channels + THREADS - 1) / THREADS;

    if (n > INT32_MAX || j.rows.n > MOST_ROWS)
        return dti_cuda_fail("causal_conv_slots: %lld rows of %lld channels are more than one call "
                             "takes",
                             (long long)j.rows.n, (long long)j.channels);
    if (n == 0 || j.rows.n == 0) return 0;
    return DTI_LAUNCH(c, convolve_slots<T>, dim3((unsigned)n, (unsigned)j.rows.n), dim3(THREADS), 0,
                      j);
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

/* What a warp has: some columns of value head r of head h. */
struct delta_part {
    int64_t h, r, e;      /* e: its lane's */
    float *unit, *shared; /* a token's query and key; room for the columns */
};

/* Token t of all, from the lane's column of a state on. */
template <typename T>
__device__ inline void delta_token(const delta_call<T> &j, const delta_part &p, int64_t t,
                                   float *state, int64_t stride)
{
    const int64_t head = t * j.heads + p.h, own = head * j.group + p.r;

    dti_load_unit(p.unit, j.q + head * j.width, 1.0f / sqrtf((float)j.width), j.width);
    dti_load_unit(p.unit + j.width, j.k + head * j.width, 1.0f, j.width);
    __syncwarp();
    if (p.e < j.value)
        dti_narrow(&j.y[own * j.value + p.e],
                   delta_step(state, stride, p.unit, j.width, dti_exp(j.decay[own]),
                              dti_widen(j.beta[own]), dti_widen(j.v[own * j.value + p.e])));
    __syncwarp();
}

/* The part of the block, and the number of its sequence or row. */
template <typename T>
__device__ inline delta_part part_of(const delta_call<T> &j, float *unit, int64_t *number)
{
    const int64_t blocks = (j.value + COLUMNS - 1) / COLUMNS, row = blockIdx.x / blocks;
    const delta_part p = { row / j.group % j.heads, row % j.group,
                           blockIdx.x % blocks * COLUMNS + threadIdx.x, unit,
                           unit + 2 * j.width + threadIdx.x };

    *number = row / (j.heads * j.group);
    return p;
}

/* Where the lane's column of a sequence's state begins. */
template <typename T>
__device__ inline int64_t column_of(const delta_call<T> &j, const delta_part &p, int64_t sequence)
{
    return ((sequence * j.heads + p.h) * j.group + p.r) * j.width * j.value + p.e;
}

/* A warp for COLUMNS columns of a value head. Shared: a token's query and key, maybe the state. */
template <typename T>
__global__ void __launch_bounds__(DTI_WARP) delta_columns(const delta_call<T> j)
{
    DTI_SHARED(float, unit);
    int64_t b;
    const delta_part p = part_of(j, unit, &b);
    const int64_t first = column_of(j, p, b), stride = j.shares ? COLUMNS : j.value;
    float *const state = j.shares ? p.shared : j.after + first;

    for (int d = 0; d < j.width && p.e < j.value; d++)
        state[d * stride] = j.before[first + (int64_t)d * j.value];
    for (int64_t t = b * j.tokens; t < (b + 1) * j.tokens; t++) delta_token(j, p, t, state, stride);
    for (int d = 0; d < j.width && p.e < j.value && j.shares; d++)
        j.after[first + (int64_t)d * j.value] = state[d * stride];
}

/* The same for the slot that a row leads. */
template <typename T>
__global__ void __launch_bounds__(DTI_WARP) delta_slots(const delta_call<T> j, const slot_rows rows)
{
    DTI_SHARED(float, unit);
    int64_t lead, first;
    const delta_part p = part_of(j, unit, &lead);
    const int64_t stride = j.shares ? COLUMNS : j.value;
    const bool mine = p.e < j.value;
    float *state;

    if (rows.slots[lead] < 0 && mine)
        dti_narrow(&j.y[((lead * j.heads + p.h) * j.group + p.r) * j.value + p.e], 0.0f);
    if (!rows.leads(lead)) return;
    first = column_of(j, p, rows.slots[lead] - rows.first);
    state = j.shares ? p.shared : j.after + first;
    for (int d = 0; d < j.width && mine && j.shares; d++)
        state[d * stride] = j.after[first + (int64_t)d * j.value];
    for (int64_t i = lead; i < rows.n; i++) {
        if (rows.slots[i] != rows.slots[lead]) continue;
        for (int d = 0; d < j.width && mine && rows.positions[i] == 0; d++)
            state[d * stride] = 0.0f;
        delta_token(j, p, i, state, stride);
    }
    for (int d = 0; d < j.width && mine && j.shares; d++)
        j.after[first + (int64_t)d * j.value] = state[d * stride];
}

/* rows NULL: sequences, from states before them. */
template <typename T>
int start_delta(dti_cuda *c, const dt_kargs *a, const char *op, const slot_rows *rows)
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
    size_t shared;

    if (unit > SHARED_BYTES || n > INT32_MAX)
        return dti_cuda_fail("%s: heads of %lld and %lld columns, %lld of them, are more than one "
                             "call takes",
                             op, (long long)q->shape[3], (long long)v->shape[4],
                             (long long)(j.batch * j.heads * j.group));
    if (n == 0 || j.width == 0) return 0;
    j.shares = whole <= SHARED_BYTES;
    shared = (size_t)(j.shares ? whole : unit);
    if (rows != NULL)
        return DTI_LAUNCH(c, delta_slots<T>, dim3((unsigned)n), dim3(DTI_WARP), shared, j, *rows);
    return DTI_LAUNCH(c, delta_columns<T>, dim3((unsigned)n), dim3(DTI_WARP), shared, j);
}

int start_delta_as(dti_cuda *c, const dt_kargs *a, const char *op, const slot_rows *rows)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return start_delta<float>(c, a, op, rows);
    case DT_BF16:
        return start_delta<dti_bf16>(c, a, op, rows);
    case DT_F16:
        return start_delta<dti_f16>(c, a, op, rows);
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
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

extern "C" int dti_causal_conv_slots_cuda(dti_cuda *c, const dt_kargs *a)
{
    switch (a->in[0].dtype) {
    case DT_F32:
        return start_conv_slots<float>(c, a);
    case DT_BF16:
        return start_conv_slots<dti_bf16>(c, a);
    case DT_F16:
        return start_conv_slots<dti_f16>(c, a);
    default:
        return dti_refuse_dtype("causal_conv_slots", a->in[0].dtype);
    }
}

extern "C" int dti_gated_delta_cuda(dti_cuda *c, const dt_kargs *a)
{
    return start_delta_as(c, a, "gated_delta", NULL);
}

extern "C" int dti_gated_delta_slots_cuda(dti_cuda *c, const dt_kargs *a)
{
    const slot_rows rows = slot_rows_of(c, &a->in[5], &a->out[1]);

    return start_delta_as(c, a, "gated_delta_slots", &rows);
}
