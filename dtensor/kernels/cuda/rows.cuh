/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of a row, some neighbours at a time: loads and stores of up to 16 bytes where addresses
 * allow them, and one by one at unaligned addresses and at the ends of rows. */
#ifndef DTI_ROWS_CUH
#define DTI_ROWS_CUH

#include "dtensor/kernels/cuda/device.cuh"

/* N neighbours that move at once. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) dti_pack {
    T v[N];
};

/* N elements from `from` on as floats, zeros from the `left`-th on. `aligned`: `from` may be read
 * as a dti_pack<T, N>. */
template <typename T, int N>
static __device__ inline void dti_load(float (&to)[N], const T *from, int64_t left, bool aligned)
{
    if (aligned && left >= N) {
        const dti_pack<T, N> pack = *reinterpret_cast<const dti_pack<T, N> *>(from);
        DTI_UNROLL
        for (int i = 0; i < N; i++) to[i] = dti_widen(pack.v[i]);
    } else {
        DTI_UNROLL
        for (int i = 0; i < N; i++) to[i] = i < left ? dti_widen(from[i]) : 0.0f;
    }
}

/* The other way: rounds, and writes at most `left` elements. */
template <typename T, int N>
static __device__ inline void dti_store(T *to, const float (&from)[N], int64_t left, bool aligned)
{
    if (aligned && left >= N) {
        dti_pack<T, N> pack;
        DTI_UNROLL
        for (int i = 0; i < N; i++) dti_narrow(&pack.v[i], from[i]);
        *reinterpret_cast<dti_pack<T, N> *>(to) = pack;
    } else {
        DTI_UNROLL
        for (int i = 0; i < N; i++)
            if (i < left) dti_narrow(&to[i], from[i]);
    }
}

static inline int dti_refuse_dtype(const char *op, int dtype)
{
    return dti_cuda_fail("%s on CUDA takes f32, bf16 or f16, not %s", op,
                         dti_cuda_dtype_name(dtype));
}

#endif
