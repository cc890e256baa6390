/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with weights of few bits: y[m, o] = sum_i x[m, i] s[o, i / G] (q[o, i] - z[o, i / G]);
 * x [M, I] F, codes [O, I bits / 8] (whole numbers, or e4m3 without z), scales [O, I / G] of any
 * float type, zero points [O, I / G] or the middle of the codes, y [M, O], F or f32. Codes become
 * floats in registers, exactly; sums are f32, rounded once. A warp has an output and rows; lane
 * l takes inputs 8 l .. 8 l + 7 of every 256, of one group, so a row does not depend on its
 * neighbours. Plain: many rows read codes once per ROWS of them. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { WARPS = 4, THREADS = WARPS * DTI_WARP, ROWS = 8, EACH = 8 };

struct packed_job {
    const void *x, *scales;
    const uint8_t *codes, *zeros; /* zeros: or NULL */
    void *y;
    int64_t m, n, k, group;
    int bits, scale_dtype;
    bool floats, f32_out;
};

__device__ inline float scale_at(const packed_job &j, int64_t i)
{
    switch (j.scale_dtype) {
    case DT_BF16:
        return dti_widen(static_cast<const dti_bf16 *>(j.scales)[i]);
    case DT_F16:
        return dti_widen(static_cast<const dti_f16 *>(j.scales)[i]);
    default:
        return static_cast<const float *>(j.scales)[i];
    }
}

/* e4m3: the exponent is brought to that of f32 by a product, which subnormals need as well. */
__device__ inline float float_of(uint32_t code)
{
    return __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}

/* Inputs i .. i + 7 of output o, less their zero point. */
__device__ inline void load_codes(const packed_job &j, int64_t o, int64_t i, float q[EACH])
{
    const uint8_t *const at = j.codes + (o * j.k + i) * j.bits / 8;
    const float middle = j.bits == 8 ? 128.0f : 8.0f;
    const float z = j.zeros != NULL ? (float)j.zeros[o * (j.k / j.group) + i / j.group] : middle;

    DTI_UNROLL
    for (int e = 0; e < EACH; e++) {
        const uint32_t code = j.bits == 8 ? at[e] : (uint32_t)at[e / 2] >> e % 2 * 4 & 15u;
        q[e] = j.floats ? float_of(code) : (float)code - z;
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) multiply(const packed_job j)
{
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int64_t o = (int64_t)blockIdx.x * WARPS + warp, first = (int64_t)blockIdx.y * ROWS;
    const int n_rows = (int)(j.m - first < ROWS ? j.m - first : (int64_t)ROWS);
    const T *const x = static_cast<const T *>(j.x) + first * j.k;
    float sum[ROWS] = {}, q[EACH];

    if (o >= j.n) return;
    for (int64_t i = lane * EACH; i < j.k; i += DTI_WARP * EACH) {
        const float s = scale_at(j, o * (j.k / j.group) + i / j.group);
        load_codes(j, o, i, q);
        DTI_UNROLL
        for (int r = 0; r < ROWS; r++) {
            float part = 0.0f;
            if (r >= n_rows) continue;
            DTI_UNROLL
            for (int e = 0; e < EACH; e++) part = fmaf(q[e], dti_widen(x[r * j.k + i + e]), part);
            sum[r] = fmaf(s, part, sum[r]);
        }
    }
    DTI_UNROLL
    for (int r = 0; r < ROWS; r++) {
        const float all = dti_warp_sum(sum[r]);
        if (lane != 0 || r >= n_rows) continue;
        if (j.f32_out)
            static_cast<float *>(j.y)[(first + r) * j.n + o] = all;
        else
            dti_narrow(static_cast<T *>(j.y) + (first + r) * j.n + o, all);
    }
}

template <typename T> int start(dti_cuda *c, const packed_job &j)
{
    return DTI_LAUNCH(
        c, multiply<T>,
        dim3((unsigned)((j.n + WARPS - 1) / WARPS), (unsigned)((j.m + ROWS - 1) / ROWS)),
        dim3(THREADS), 0, j);
}

/* Rows beyond what a grid counts are taken in turns. */
int run(dti_cuda *c, const dt_kargs *a, const char *row, bool floats)
{
    const int64_t most = (int64_t)65535 * ROWS;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const dti_packed_attr *attr = static_cast<const dti_packed_attr *>(a->attr);
    const int64_t k = x->shape[x->n_axes - 1], n = a->in[1].shape[0];
    int64_t m = 1;
    int failed = 0;

    for (int axis = 0; axis < x->n_axes - 1; axis++) m *= x->shape[axis];
    if (a->in[2].dtype != DT_F32 && a->in[2].dtype != DT_BF16 && a->in[2].dtype != DT_F16)
        return dti_refuse_dtype(row, a->in[2].dtype);
    for (int64_t first = 0; first < m && n > 0 && failed == 0; first += most) {
        const int64_t x_bytes = x->dtype == DT_F32 ? 4 : 2, y_bytes = y->dtype == DT_F32 ? 4 : 2;
        const packed_job j = { static_cast<const char *>(x->data) + first * k * x_bytes,
                               a->in[2].data,
                               static_cast<const uint8_t *>(a->in[1].data),
                               a->n_in > 3 ? static_cast<const uint8_t *>(a->in[3].data) : NULL,
                               static_cast<char *>(y->data) + first * n * y_bytes,
                               m - first < most ? m - first : most,
                               n,
                               k,
                               attr->group,
                               attr->bits,
                               (int)a->in[2].dtype,
                               floats,
                               y->dtype == DT_F32 };
        failed = x->dtype == DT_F32    ? start<float>(c, j)
                 : x->dtype == DT_BF16 ? start<dti_bf16>(c, j)
                 : x->dtype == DT_F16  ? start<dti_f16>(c, j)
                                       : dti_refuse_dtype(row, x->dtype);
    }
    return failed;
}

} /* namespace */

extern "C" int dti_linear_packed_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "linear_packed", false);
}

extern "C" int dti_linear_packed_zeros_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "linear_packed_zeros", false);
}

extern "C" int dti_linear_e4m3_cuda(dti_cuda *c, const dt_kargs *a)
{
    return run(c, a, "linear_e4m3", true);
}
