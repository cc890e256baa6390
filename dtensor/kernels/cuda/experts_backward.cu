/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of a mixture of experts, as dtensor/kernels/cpu/experts_backward.c says them. Slots are
 * sorted by expert as on the way forward, and what that computed is computed again, by the same
 * kernels. Rows of x and dy are gathered in the order of slots, so what follows are products of
 * neighbours: of an expert's rows with its matrices as they lie, and of rows with rows, one sum for
 * each expert (matmul.cuh). dx adds the slots of a token in the order of experts. */
#include "dtensor/kernels/cuda/matmul.cuh"
#include "dtensor/kernels/cuda/sort_slots.cuh"

namespace
{

enum { DY, X, IDS, WEIGHTS, GATE_UP, DOWN, GATE_UP_BIAS };         /* operands, and down's bias */
enum { DX, DWEIGHTS, DGATE_UP, DDOWN, DGATE_UP_BIAS, DDOWN_BIAS }; /* results */

/* What a pass holds: a row for each slot, by expert. */
template <typename T> struct buffers {
    T *x, *dy; /* [n, d] */
    T *h;      /* [n, 2 f]: gate | up, then their gradients */
    T *up;     /* [n, f]: weight times silu(gate) up */
    float *v;  /* [n, f]: down^T dy */
    float *z;  /* [n, d]: what is added to dx */
};

template <typename T> buffers<T> take_all(room *r, pass *p, int64_t d, int64_t f)
{
    buffers<T> b;

    take_slots(r, p);
    b.x = take<T>(r, p->n * d);
    b.dy = take<T>(r, p->n * d);
    b.h = take<T>(r, p->n * 2 * f);
    b.up = take<T>(r, p->n * f);
    b.v = take<float>(r, p->n * f);
    b.z = take<float>(r, p->n * d);
    return b;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* A block for each row. */
template <typename T>
__global__ void gather_rows(pass p, const T *x, const T *dy, buffers<T> b, int64_t d)
{
    const int64_t row = blockIdx.x;

    if (row >= *p.n_sorted) return;
    const int64_t token = p.sorted[row] / p.n_slots;
    for (int64_t i = threadIdx.x; i < d; i += THREADS) {
        b.x[row * d + i] = x[token * d + i];
        b.dy[row * d + i] = dy[token * d + i];
    }
}

/* dweights[slot]: the sum of what the threads of a block have. */
template <typename T>
__device__ inline void store_along(float along, void *dweights, bool f32_out, int32_t slot)
{
    __shared__ float parts[WARPS];

    along = dti_warp_sum(along);
    if (threadIdx.x % DTI_WARP == 0) parts[threadIdx.x / DTI_WARP] = along;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < WARPS; w++) along += parts[w];
    if (f32_out)
        static_cast<float *>(dweights)[slot] = along;
    else
        dti_narrow(static_cast<T *>(dweights) + slot, along);
}

/* Gradients of gate and up in their place, weight times h, and v h, the gradient of the weight. A
 * block for each row. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    slope_rows(pass p, const T *weights, void *dweights, bool f32_out, buffers<T> b, int64_t f)
{
    const int64_t row = blockIdx.x;
    float along = 0.0f;

    if (row >= *p.n_sorted) return;
    const int32_t slot = p.sorted[row];
    const float weight = dti_widen(weights[slot]);
    for (int64_t i = threadIdx.x; i < f; i += THREADS) {
        T *const gate = b.h + 2 * row * f + i, *const up = gate + f;
        const float g = dti_widen(*gate), u = dti_widen(*up), v = b.v[row * f + i];
        const float h = gated<T>(g, u), soft = 1.0f / (1.0f + dti_exp(-g));
        along += v * h;
        dti_narrow(b.up + row * f + i, weight * h);
        dti_narrow(gate, weight * v * u * (soft * (1.0f + g * (1.0f - soft))));
        dti_narrow(up, weight * v * dti_silu(g));
    }
    store_along<T>(along, dweights, f32_out, slot);
}

/* The same of experts that are clamped; a limit that is met passes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    clamped_slope_rows(pass p, clamp<T> limits, const T *weights, void *dweights, bool f32_out,
                       buffers<T> b, int64_t d, int64_t f)
{
    const int64_t row = blockIdx.x;
    float along = 0.0f;

    if (row >= *p.n_sorted) return;
    const int32_t slot = p.sorted[row];
    const int64_t e = p.ids[slot] - p.first;
    const float weight = dti_widen(weights[slot]);
    for (int64_t i = threadIdx.x; i < d && limits.down_bias != NULL; i += THREADS)
        along += dti_widen(b.dy[row * d + i]) * dti_widen(limits.down_bias[e * d + i]);
    for (int64_t i = threadIdx.x; i < f; i += THREADS) {
        T *const both = b.h + 2 * (row * f + i);
        const clamped y = clamp_pair(limits, both, limits.gate_up_bias + 2 * (e * f + i));
        const float v = b.v[row * f + i], h = clamped_value<T>(y), dh = weight * v;
        const float soft = 1.0f / y.soft;
        const float slope = soft + limits.alpha * y.x * soft * (1.0f - soft);
        along += v * h;
        dti_narrow(b.up + row * f + i, weight * h);
        dti_narrow(both, y.gate > limits.limit ? 0.0f : dh * y.within * slope);
        dti_narrow(both + 1, fabsf(y.up) > limits.limit ? 0.0f : dh * y.x * soft);
    }
    store_along<T>(along, dweights, f32_out, slot);
}

/* y [n_experts, columns] = or += sums over the rows of an expert: of x, or of its slots' weights
 * times x. A block for THREADS columns of an expert. */
template <typename T>
__global__ void add_rows(pass p, const T *x, const T *weights, float *y, int64_t columns)
{
    const int64_t e = blockIdx.y, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t begin = p.begins[e], end = begin + p.counts[e];

    if (i >= columns) return;
    float sum = p.first_token > 0 ? y[e * columns + i] : 0.0f;
    for (int64_t row = begin; row < end; row++) {
        const float at = dti_widen(x[row * columns + i]);
        sum += weights != NULL ? dti_widen(weights[p.sorted[row]]) * at : at;
    }
    y[e * columns + i] = sum;
}

/* --- products --------------------------------------------------------------------------------- */

/* y [rows, n] = x [rows, k] times the matrix [k, n] of their expert: tiles of rows by columns. */
template <typename T>
__global__ void __launch_bounds__(DTI_TILE_THREADS)
    multiply_rows(pass p, const T *x, const T *w, float *y, int64_t n, int64_t k)
{
    DTI_SHARED(dti_tile_memory, m);

    if ((int)blockIdx.x >= *p.n_tiles) return;
    const dti_row_tile t = p.tiles[blockIdx.x];
    const dti_tile_job<T, float> j = {
        x + t.row * k, w + t.group * k * n, y + t.row * n, k, 1, n, 1, t.n_rows, n, k, false
    };
    dti_multiply_tile(m, j, 0, (int64_t)blockIdx.y * DTI_TILE);
}

/* y [m, n] of each expert = or += the sum of a [rows, m]^T b [rows, n] over its rows. */
template <typename T>
__global__ void __launch_bounds__(DTI_TILE_THREADS, 1)
    sum_rows(pass p, const T *a, const T *b, float *y, int64_t m, int64_t n)
{
    DTI_SHARED(dti_tile_memory, shared);
    const int64_t e = blockIdx.z, begin = p.begins[e];
    const dti_tile_job<T, float> j = {
        a + begin * m, b + begin * n,    y + e * m * n, 1, m, n, 1, m, n,
        p.counts[e],   p.first_token > 0
    };

    dti_multiply_tile(shared, j, (int64_t)blockIdx.x * DTI_TILE, (int64_t)blockIdx.y * DTI_TILE);
}

unsigned tiles_along(int64_t n)
{
    return (unsigned)((n + DTI_TILE - 1) / DTI_TILE);
}

template <typename T>
int start_rows(dti_cuda *c, const pass &p, const T *x, const void *w, float *y, int64_t n,
               int64_t k)
{
    if (!has_rows(p) || n == 0) return 0;
    return DTI_LAUNCH(c, multiply_rows<T>, dim3((unsigned)most_tiles(p), tiles_along(n)),
                      dim3(DTI_TILE_THREADS), sizeof(dti_tile_memory), p, x,
                      static_cast<const T *>(w), y, n, k);
}

template <typename T>
int start_sums(dti_cuda *c, const pass &p, const T *a, const T *b, void *y, int64_t m, int64_t n)
{
    if (p.n_experts == 0 || m == 0 || n == 0) return 0;
    return DTI_LAUNCH(c, sum_rows<T>, dim3(tiles_along(m), tiles_along(n), (unsigned)p.n_experts),
                      dim3(DTI_TILE_THREADS), sizeof(dti_tile_memory), p, a, b,
                      static_cast<float *>(y), m, n);
}

template <typename T>
int start_add(dti_cuda *c, const pass &p, const T *x, const T *weights, void *y, int64_t columns)
{
    if (p.n_experts == 0 || columns == 0) return 0;
    return DTI_LAUNCH(c, add_rows<T>,
                      dim3((unsigned)((columns + THREADS - 1) / THREADS), (unsigned)p.n_experts),
                      dim3(THREADS), 0, p, x, weights, static_cast<float *>(y), columns);
}

/* --- launching -------------------------------------------------------------------------------- */

bool wants(const dt_kargs *a, int result)
{
    const dti_experts_backward_attr *attr = static_cast<const dti_experts_backward_attr *>(a->attr);

    return result < a->n_out && (attr->want >> result & 1) != 0;
}

/* Row `begin` of a result of T or f32 whose rows have n elements. */
template <typename T> char *from_row(const dt_local *y, int64_t begin, int64_t n)
{
    return static_cast<char *>(y->data) + begin * n * (y->dtype == DT_F32 ? 4 : (int)sizeof(T));
}

/* What the way forward computed of the sorted rows, and what reaches it. */
template <typename T>
int run_again(dti_cuda *c, const dt_kargs *a, const clamp<T> &limits, const pass &p,
              const buffers<T> &b)
{
    const int64_t d = a->in[DOWN].shape[1], f = a->in[DOWN].shape[2];
    const int64_t begin = p.first_token, k = p.n_slots;
    const T *const weights = static_cast<const T *>(a->in[WEIGHTS].data) + begin * k;
    char *const dweights = from_row<T>(&a->out[DWEIGHTS], begin, k);
    const bool f32_out = a->out[DWEIGHTS].dtype == DT_F32;

    if (DTI_LAUNCH(c, gather_rows<T>, dim3((unsigned)p.n), dim3(THREADS), 0, p,
                   static_cast<const T *>(a->in[X].data) + begin * d,
                   static_cast<const T *>(a->in[DY].data) + begin * d, b, d) != 0 ||
        multiply_slots(c, (int)a->in[X].dtype, p,
                       { b.x, a->in[GATE_UP].data, NULL, b.h, p.n, 2 * f, d, false, {} }) != 0 ||
        start_rows<T>(c, p, b.dy, a->in[DOWN].data, b.v, f, d) != 0)
        return -1;
    if (limits.gate_up_bias != NULL)
        return DTI_LAUNCH(c, clamped_slope_rows<T>, dim3((unsigned)p.n), dim3(THREADS), 0, p,
                          limits, weights, dweights, f32_out, b, d, f);
    return DTI_LAUNCH(c, slope_rows<T>, dim3((unsigned)p.n), dim3(THREADS), 0, p, weights, dweights,
                      f32_out, b, f);
}

/* Gradients of biases. */
template <typename T>
int run_biases(dti_cuda *c, const dt_kargs *a, const pass &p, const buffers<T> &b, int64_t d,
               int64_t f)
{
    const T *const weights =
        static_cast<const T *>(a->in[WEIGHTS].data) + p.first_token * p.n_slots;

    if (wants(a, DGATE_UP_BIAS) &&
        start_add<T>(c, p, b.h, NULL, a->out[DGATE_UP_BIAS].data, 2 * f) != 0)
        return -1;
    if (!wants(a, DDOWN_BIAS)) return 0;
    return start_add<T>(c, p, b.dy, weights, a->out[DDOWN_BIAS].data, d);
}

/* n_tokens of them from p.first_token on. */
template <typename T>
int run_pass(dti_cuda *c, const dt_kargs *a, const clamp<T> &limits, pass p, int64_t n_tokens)
{
    const int64_t d = a->in[DOWN].shape[1], f = a->in[DOWN].shape[2];
    buffers<T> b;

    if (take_scratch(c, take_all<T>, &p, d, f, &b) != 0) return -1;
    if (sort_slots(c, p) != 0) return -1;
    if (has_rows(p) && run_again<T>(c, a, limits, p, b) != 0) return -1;
    if (limits.gate_up_bias != NULL && run_biases<T>(c, a, p, b, d, f) != 0) return -1;
    if (wants(a, DGATE_UP) && start_sums<T>(c, p, b.h, b.x, a->out[DGATE_UP].data, 2 * f, d) != 0)
        return -1;
    if (wants(a, DDOWN) && start_sums<T>(c, p, b.dy, b.up, a->out[DDOWN].data, d, f) != 0)
        return -1;
    if (!wants(a, DX) || n_tokens == 0 || d == 0) return 0;
    if (start_rows<T>(c, p, b.h, a->in[GATE_UP].data, b.z, d, 2 * f) != 0) return -1;
    return DTI_LAUNCH(c, add_slots<T>, dim3((unsigned)n_tokens), dim3(THREADS), 0, p, b.z,
                      static_cast<const T *>(NULL), static_cast<const T *>(NULL),
                      from_row<T>(&a->out[DX], p.first_token, d), a->out[DX].dtype == DT_F32, d);
}

template <typename T> int run_all(dti_cuda *c, const dt_kargs *a, bool clamps)
{
    const dti_experts_backward_attr *attr = static_cast<const dti_experts_backward_attr *>(a->attr);
    const dt_local *ids = &a->in[IDS], *dweights = &a->out[DWEIGHTS];
    const int64_t d = a->in[DOWN].shape[1], f = a->in[DOWN].shape[2];
    const int64_t slot = (2 * d + 3 * f) * (int64_t)sizeof(T) + (d + f) * (int64_t)sizeof(float);
    const size_t n_bytes = (size_t)dti_cuda_count(dweights) * dti_cuda_dtype_bytes(dweights->dtype);
    clamp<T> limits = {};

    if (clamps)
        limits = clamp_of<T, dti_experts_clamped_backward_attr>(a, GATE_UP_BIAS, &a->in[DOWN]);
    if (n_bytes > 0 && dti_cuda_check(cudaMemsetAsync(dweights->data, 0, n_bytes, c->stream),
                                      "experts_backward") != 0)
        return -1;
    return run_passes(c, ids, &a->in[GATE_UP], attr->n_experts, ids->shape[ids->n_axes - 1] * slot,
                      [&](const pass &p, int64_t n) { return run_pass<T>(c, a, limits, p, n); });
}

int run(dti_cuda *c, const dt_kargs *a, const char *op, bool clamps)
{
    if (check_experts(op, a, X) != 0) return -1;
    switch (a->in[X].dtype) {
    case DT_F32:
        return run_all<float>(c, a, clamps);
    case DT_BF16:
        return run_all<dti_bf16>(c, a, clamps);
    case DT_F16:
        return run_all<dti_f16>(c, a, clamps);
    default:
        return dti_refuse_dtype(op, a->in[X].dtype);
    }
}

} // namespace

extern "C" int dti_experts_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "experts_backward", false);
}

extern "C" int dti_experts_clamped_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "experts_clamped_backward", true);
}
