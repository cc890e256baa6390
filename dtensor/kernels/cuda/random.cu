/* SPDX-License-Identifier: Apache-2.0
 *
 * Random values by global element index, with the bits of the CPU: dtensor/kernels/random.h says
 * what they are. Nothing is fused here (nvcc -fmad=false). A thread has one element and makes the
 * block of four words that it lies in; generating weights is no step of a model, and is still
 * faster than reading them from anywhere. */
#include "dtensor/kernels/cuda/device.cuh"

#include "dtensor/kernels/random_fill.h"

namespace
{

enum { THREADS = 256 };

struct random_job {
    void *to;
    dti_cuda_box global;
    dti_random_fill how;
    int64_t n;
};

/* The global index of local row-major element i. */
__device__ inline int64_t global_of(const dti_cuda_box &box, int64_t i)
{
    int64_t at = box.offset;

    DTI_UNROLL
    for (int a = DTI_CUDA_MAX_AXES - 1; a >= 0; a--) {
        if (a >= box.n_axes) continue;
        at += (a > 0 ? i % box.extent[a] : i) * box.stride[a];
        if (a > 0) i /= box.extent[a];
    }
    return at;
}

/* The words of a block. */
__device__ inline void words_of(const dti_random_fill &f, uint64_t block, uint32_t w[4])
{
    w[0] = (uint32_t)block;
    w[1] = (uint32_t)(block >> 32);
    w[2] = (uint32_t)f.key.stream;
    w[3] = (uint32_t)(f.key.stream >> 32);
    dti_philox(w, (uint32_t)f.key.seed, (uint32_t)(f.key.seed >> 32));
}

/* A float of one word, or of two that have two floats. */
__device__ inline float narrow_value(const dti_random_fill &f, int64_t at)
{
    const int place = (int)(at % 4), bits = f.dtype == DT_F32 ? 24 : f.dtype == DT_F16 ? 11 : 8;
    uint32_t w[4];
    float z[2];

    words_of(f, (uint64_t)at / 4, w);
    if (f.kind == DTI_RANDOM_UNIFORM) {
        z[0] = dti_uniform_f32(place == 0   ? w[0]
                               : place == 1 ? w[1]
                               : place == 2 ? w[2]
                                            : w[3],
                               bits);
        return (float)f.shift + (float)f.scale * z[0];
    }
    dti_normal_f32(place < 2 ? w[0] : w[2], place < 2 ? w[1] : w[3], &z[0], &z[1]);
    return (float)f.shift + (float)f.scale * (place % 2 == 0 ? z[0] : z[1]);
}

__device__ inline double wide_value(const dti_random_fill &f, int64_t at)
{
    const bool odd = at % 2 != 0;
    uint32_t w[4];
    double z[2];

    words_of(f, (uint64_t)at / 2, w);
    if (f.kind == DTI_RANDOM_UNIFORM)
        return f.shift + f.scale * dti_uniform_f64(odd ? w[2] : w[0], odd ? w[3] : w[1]);
    dti_normal_f64(w, &z[0], &z[1]);
    return f.shift + f.scale * (odd ? z[1] : z[0]);
}

__device__ inline int64_t whole_value(const dti_random_fill &f, int64_t at)
{
    const bool odd = at % 2 != 0;
    uint32_t w[4];

    words_of(f, (uint64_t)at / 2, w);
    return (int64_t)((uint64_t)f.low + dti_below(odd ? w[2] : w[0], odd ? w[3] : w[1], f.range));
}

__device__ inline void store(void *to, int dtype, int64_t i, float value)
{
    switch (dtype) {
    case DT_F32:
        ((float *)to)[i] = value;
        break;
    case DT_BF16:
        dti_narrow((dti_bf16 *)to + i, value);
        break;
    default:
        dti_narrow((dti_f16 *)to + i, value);
    }
}

__device__ inline void store_whole(void *to, dt_dtype dtype, int64_t i, int64_t value)
{
    if (!dti_store_integer(to, dtype, i, value)) store(to, dtype, i, (float)value);
}

__global__ void __launch_bounds__(THREADS) random_values(const __grid_constant__ random_job j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t at;

    if (i >= j.n) return;
    at = global_of(j.global, i);
    if (j.how.kind == DTI_RANDOM_INTEGER)
        store_whole(j.to, j.how.dtype, i, whole_value(j.how, at));
    else if (j.how.dtype == DT_F64)
        ((double *)j.to)[i] = wide_value(j.how, at);
    else
        store(j.to, j.how.dtype, i, narrow_value(j.how, at));
}

/* --- dropout (dtensor/kernels/cpu/dropout.c) -------------------------------------------------- */

struct dropout_job {
    const void *x;
    dti_cuda_box global;
    dti_random_fill uniform;
    int64_t n;
    float p, scale;
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    drop(T *y, const T *x, const __grid_constant__ dropout_job j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= j.n) return;
    dti_narrow(y + i, narrow_value(j.uniform, global_of(j.global, i)) < j.p
                          ? 0.0f
                          : dti_widen(x[i]) * j.scale);
}

template <typename T> int start_drop(dti_cuda *c, void *y, const void *x, const dropout_job &j)
{
    return DTI_LAUNCH(c, drop<T>, dim3((unsigned)((j.n + THREADS - 1) / THREADS)), dim3(THREADS), 0,
                      static_cast<T *>(y), static_cast<const T *>(x), j);
}

} /* namespace */

extern "C" int dti_cuda_fill_random(dti_cuda *c, void *to, const dti_cuda_box *global,
                                    const dti_random_fill *how)
{
    random_job j = { to, *global, *how, 1 };

    if (dti_cuda_dtype_bytes((int)how->dtype) == 0)
        return dti_cuda_fail("random values of an unknown dtype, %d", (int)how->dtype);
    for (int a = 0; a < global->n_axes; a++) j.n *= global->extent[a];
    if (j.n == 0) return 0;
    return DTI_LAUNCH(c, random_values, dim3((unsigned)((j.n + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, j);
}

extern "C" int dti_dropout_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dti_dropout_attr *attr = static_cast<const dti_dropout_attr *>(a->attr);
    const dt_local *x = &a->in[0];
    int64_t step = 1;
    dropout_job j = {};

    j.global.n_axes = x->n_axes;
    for (int b = x->n_axes - 1; b >= 0; step *= attr->shape[b--]) {
        j.global.extent[b] = x->shape[b];
        j.global.stride[b] = step;
        j.global.offset += x->offset[b] * step;
    }
    j.uniform.kind = DTI_RANDOM_UNIFORM;
    j.uniform.dtype = DT_F32;
    j.uniform.key.seed = attr->seed;
    j.uniform.key.stream = attr->stream;
    j.uniform.scale = 1.0;
    j.n = dti_cuda_count(x);
    j.p = (float)attr->p;
    j.scale = j.p < 1.0f ? (float)(1.0 / (1.0 - attr->p)) : 0.0f;
    if (x->dtype != DT_F32 && x->dtype != DT_BF16 && x->dtype != DT_F16)
        return dti_cuda_fail("dropout on CUDA takes f32, bf16 or f16, not %s",
                             dti_cuda_dtype_name((int)x->dtype));
    if (j.n == 0) return 0;
    if (x->dtype == DT_F32) return start_drop<float>(c, a->out[0].data, x->data, j);
    return x->dtype == DT_BF16 ? start_drop<dti_bf16>(c, a->out[0].data, x->data, j)
                               : start_drop<dti_f16>(c, a->out[0].data, x->data, j);
}
