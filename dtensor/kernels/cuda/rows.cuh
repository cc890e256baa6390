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

/* The first `left` of N elements from `from` on; others stay as they are. `aligned`: `from` may be
 * read as a dti_pack<T, N>. */
template <typename T, int N>
static __device__ inline void dti_load_pack(dti_pack<T, N> *to, const T *from, int64_t left,
                                            bool aligned)
{
    if (aligned && left >= N) {
        *to = *reinterpret_cast<const dti_pack<T, N> *>(from);
    } else {
        DTI_UNROLL
        for (int i = 0; i < N; i++)
            if (i < left) to->v[i] = from[i];
    }
}

/* The other way: writes at most `left` elements. */
template <typename T, int N>
static __device__ inline void dti_store_pack(T *to, const dti_pack<T, N> &from, int64_t left,
                                             bool aligned)
{
    if (aligned && left >= N) {
        *reinterpret_cast<dti_pack<T, N> *>(to) = from;
    } else {
        DTI_UNROLL
        for (int i = 0; i < N; i++)
            if (i < left) to[i] = from.v[i];
    }
}

/* The same as floats, zeros from the `left`-th on. */
template <typename T, int N>
static __device__ inline void dti_load(float (&to)[N], const T *from, int64_t left, bool aligned)
{
    dti_pack<T, N> pack = {};

    dti_load_pack<T, N>(&pack, from, left, aligned);
    DTI_UNROLL
    for (int i = 0; i < N; i++) to[i] = dti_widen(pack.v[i]);
}

/* And back: rounds. */
template <typename T, int N>
static __device__ inline void dti_store(T *to, const float (&from)[N], int64_t left, bool aligned)
{
    dti_pack<T, N> pack;

    DTI_UNROLL
    for (int i = 0; i < N; i++) dti_narrow(&pack.v[i], from[i]);
    dti_store_pack<T, N>(to, pack, left, aligned);
}

static inline int dti_refuse_dtype(const char *op, int dtype)
{
    return dti_cuda_fail("%s on CUDA takes f32, bf16 or f16, not %s", op,
                         dti_cuda_dtype_name(dtype));
}

#endif
