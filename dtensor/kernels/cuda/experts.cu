/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts, as dtensor/kernels/cpu/experts.c:
 *
 *   y[t] = sum over slots s of weights[t, s] down_e (silu(gate_e x[t]) up_e x[t]), e = ids[t, s]
 *
 * and those of gates that are clamped, with biases.
 *
 * Slots (t, s) are sorted by expert on the device (sort_slots.cuh), so the host waits for nothing
 * and knows only how many tiles of rows there can be. Products, rounding and the order of
 * sums are those of the CPU kernel: gate and up round, silu rounds, its product with up rounds,
 * down stays f32, and a token adds its slots in the order of experts. */
#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/cuda/sort_slots.cuh"

namespace
{

/* h [n, 2 f] -> up [n, f]: silu(gate) rounds, times up rounds. A block for each row. */
template <typename T>
__global__ void gate_rows(const T *h, T *up, int64_t f, const int32_t *n_sorted)
{
    const int64_t row = blockIdx.x;

    if (row >= *n_sorted) return;
    for (int64_t i = threadIdx.x; i < f; i += THREADS)
        dti_narrow(&up[row * f + i],
                   gated<T>(dti_widen(h[2 * row * f + i]), dti_widen(h[(2 * row + 1) * f + i])));
}

/* The same of gate and up by turns, with biases, clamped. */
template <typename T>
__global__ void clamp_rows(pass p, clamp<T> limits, const T *h, T *up, int64_t f)
{
    const int64_t row = blockIdx.x;

    if (row >= *p.n_sorted) return;
    const int64_t e = p.ids[p.sorted[row]] - p.first;
    for (int64_t i = threadIdx.x; i < f; i += THREADS)
        dti_narrow(&up[row * f + i],
                   clamped_value<T>(clamp_pair(limits, h + 2 * (row * f + i),
                                               limits.gate_up_bias + 2 * (e * f + i))));
}

/* What a pass holds. */
template <typename T> struct buffers {
    T *h, *up;
    float *z;
};

template <typename T> buffers<T> take_all(room *r, pass *p, int64_t d, int64_t f)
{
    buffers<T> b;

    take_slots(r, p);
    b.h = take<T>(r, p->n * 2 * f);
    b.up = take<T>(r, p->n * f);
    b.z = take<float>(r, p->n * d);
    return b;
}

/* n_tokens of them from p.first_token on. */
template <typename T>
int run_pass(dti_cuda *c, const dt_kargs *a, const clamp<T> &limits, pass p, int64_t n_tokens)
{
    const int dtype = (int)a->in[0].dtype;
    const int64_t d = a->in[3].shape[2], f = a->in[4].shape[2], begin = p.first_token;
    const T *const x = static_cast<const T *>(a->in[0].data) + begin * d;
    const T *const weights = static_cast<const T *>(a->in[2].data) + begin * p.n_slots;
    const bool f32_out = a->out[0].dtype == DT_F32;
    char *const y = static_cast<char *>(a->out[0].data) + begin * d * (f32_out ? 4 : sizeof(T));
    buffers<T> b;

    if (take_scratch(c, take_all<T>, &p, d, f, &b) != 0) return -1;
    dti_product_job gate_up = { x, a->in[3].data, NULL, b.h, p.n, 2 * f, d, false, {} };
    gate_up.groups.slots = p.sorted;
    if (sort_slots(c, p) != 0 || multiply_slots(c, dtype, p, gate_up) != 0) return -1;
    if (has_rows(p) && f > 0 &&
        (limits.gate_up_bias != NULL ? DTI_LAUNCH(c, clamp_rows<T>, dim3((unsigned)p.n),
                                                  dim3(THREADS), 0, p, limits, b.h, b.up, f)
                                     : DTI_LAUNCH(c, gate_rows<T>, dim3((unsigned)p.n),
                                                  dim3(THREADS), 0, b.h, b.up, f, p.n_sorted)) != 0)
        return -1;
    if (multiply_slots(c, dtype, p, { b.up, a->in[4].data, NULL, b.z, p.n, d, f, true, {} }) != 0)
        return -1;
    return DTI_LAUNCH(c, add_slots<T>, dim3((unsigned)n_tokens), dim3(THREADS), 0, p, b.z,
                      limits.down_bias, weights, y, f32_out, d);
}

template <typename T> int run_all(dti_cuda *c, const dt_kargs *a, bool clamps)
{
    const int64_t d = a->in[3].shape[2], f = a->in[4].shape[2];
    const int64_t slot = 3 * f * (int64_t)sizeof(T) + d * (int64_t)sizeof(float);
    const dt_local *ids = &a->in[1];
    clamp<T> limits = {};

    if (dti_product_rows(ids) == 0 || d == 0) return 0;
    if (clamps) limits = clamp_of<T, dti_experts_clamped_attr>(a, 5, &a->in[4]);
    return run_passes(c, ids, &a->in[3], static_cast<const dti_experts_attr *>(a->attr)->n_experts,
                      ids->shape[ids->n_axes - 1] * slot,
                      [&](const pass &p, int64_t n) { return run_pass<T>(c, a, limits, p, n); });
}

int run(dti_cuda *c, const dt_kargs *a, const char *op, bool clamps)
{
    if (check_experts(op, a, 0) != 0) return -1;
    switch (a->in[0].dtype) {
    case DT_F32:
        return run_all<float>(c, a, clamps);
    case DT_BF16:
        return run_all<dti_bf16>(c, a, clamps);
    case DT_F16:
        return run_all<dti_f16>(c, a, clamps);
    default:
        return dti_refuse_dtype(op, a->in[0].dtype);
    }
}

} // namespace

int dti_experts_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "experts", false);
}

/* With biases of gate and up, and of down, behind. */
extern "C" int dti_experts_clamped_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "experts_clamped", true);
}
