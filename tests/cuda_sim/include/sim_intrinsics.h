/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's built-in functions for the simulated device, and the twins of the functions in
 * dtensor/kernels/cuda/device.cuh that hold PTX. Included by cuda_runtime.h alone. */
#ifndef DTI_SIM_INTRINSICS_H
#define DTI_SIM_INTRINSICS_H

#include <time.h>

/* --- numbers ---------------------------------------------------------------------------------- */

template <class To, class From> static inline To dti_sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;

    memcpy(&to, &from, sizeof to);
    return to;
}

/* clang-format off */
static inline float __uint_as_float(unsigned x) { return dti_sim_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return dti_sim_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return dti_sim_bits<float>(x); }
static inline int __float_as_int(float x) { return dti_sim_bits<int>(x); }
static inline double __longlong_as_double(long long x) { return dti_sim_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return dti_sim_bits<long long>(x); }

static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float __fdividef(float x, float y) { return x / y; }
/* glibc declares functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }

static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;

    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int __mulhi(int x, int y) { return (int)((int64_t)x * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;

    for (int i = 0; i < 4; i++)
        out |= (unsigned)(both >> (8 * (select >> (4 * i) & 7u)) & 0xffu) << (8 * i);
    return out;
}

/* min and max of equal types, as CUDA has them; floats as fminf and fmaxf. */
static inline int min(int x, int y) { return x < y ? x : y; }
static inline int max(int x, int y) { return x > y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
static inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
static inline long min(long x, long y) { return x < y ? x : y; }
static inline long max(long x, long y) { return x > y ? x : y; }
static inline unsigned long min(unsigned long x, unsigned long y) { return x < y ? x : y; }
static inline unsigned long max(unsigned long x, unsigned long y) { return x > y ? x : y; }
static inline long long min(long long x, long long y) { return x < y ? x : y; }
static inline long long max(long long x, long long y) { return x > y ? x : y; }
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }
/* clang-format on */

/* --- memory ----------------------------------------------------------------------------------- */

/* What the hardware refuses: a load that is not aligned to its size. */
void dti_sim_misaligned(const void *p, size_t bytes);

template <class T> static inline T dti_sim_load(const T *p)
{
    if ((uintptr_t)p % sizeof(T) != 0) dti_sim_misaligned(p, sizeof(T));
    return *p;
}
template <class T> static inline T __ldg(const T *p)
{
    return dti_sim_load(p);
}
template <class T> static inline T __ldcs(const T *p)
{
    return dti_sim_load(p);
}
template <class T> static inline T __ldcg(const T *p)
{
    return dti_sim_load(p);
}
template <class T> static inline T __ldca(const T *p)
{
    return dti_sim_load(p);
}
template <class T> static inline T __ldcv(const T *p)
{
    return *(const volatile T *)p;
}
template <class T> static inline void dti_sim_store(T *p, T x)
{
    if ((uintptr_t)p % sizeof(T) != 0) dti_sim_misaligned(p, sizeof(T));
    *p = x;
}
template <class T> static inline void __stcs(T *p, T x)
{
    dti_sim_store(p, x);
}
template <class T> static inline void __stcg(T *p, T x)
{
    dti_sim_store(p, x);
}
template <class T> static inline void __stwt(T *p, T x)
{
    dti_sim_store(p, x);
}

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Other launches of the process may run at the same time. */
template <class T, class F> static inline T dti_sim_atomic(T *p, F change)
{
    T old, now;

    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do now = change(old);
    while (!__atomic_compare_exchange(p, &old, &now, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

#define DTI_SIM_ATOMICS(T)                                                                  \
    static inline T atomicAdd(T *p, T x)                                                    \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T old) { return (T)(old + x); });                      \
    }                                                                                       \
    static inline T atomicMax(T *p, T x)                                                    \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T old) { return old > x ? old : x; });                 \
    }                                                                                       \
    static inline T atomicMin(T *p, T x)                                                    \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T old) { return old < x ? old : x; });                 \
    }                                                                                       \
    static inline T atomicOr(T *p, T x)                                                     \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T old) { return (T)(old | x); });                      \
    }                                                                                       \
    static inline T atomicAnd(T *p, T x)                                                    \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T old) { return (T)(old & x); });                      \
    }                                                                                       \
    static inline T atomicExch(T *p, T x)                                                   \
    {                                                                                       \
        return dti_sim_atomic(p, [x](T) { return x; });                                     \
    }                                                                                       \
    static inline T atomicCAS(T *p, T compare, T x)                                         \
    {                                                                                       \
        return dti_sim_atomic(p, [compare, x](T old) { return old == compare ? x : old; }); \
    }

DTI_SIM_ATOMICS(int)
DTI_SIM_ATOMICS(unsigned)
DTI_SIM_ATOMICS(unsigned long long)
#undef DTI_SIM_ATOMICS
static inline unsigned atomicInc(unsigned *p, unsigned limit)
{
    return dti_sim_atomic(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}

/* --- threads that meet ------------------------------------------------------------------------ */

static inline void __syncthreads(void)
{
    dti_sim::sync_block();
}
static inline int __syncthreads_count(int x)
{
    return dti_sim::sync_block_sum(x != 0);
}
static inline int __syncthreads_or(int x)
{
    return dti_sim::sync_block_sum(x != 0) != 0;
}
static inline int __syncthreads_and(int x)
{
    return dti_sim::sync_block_sum(x == 0) == 0;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    dti_sim::meet("__syncwarp", mask, nullptr, [](void *const *, unsigned) {});
}

struct dti_sim_shuffle {
    uint64_t mine, theirs;
    unsigned from; /* a lane */
    bool missing;  /* which does not take part */
};
void dti_sim_shuffle_meet(const char *what, unsigned mask, dti_sim_shuffle *s);

template <class T> static inline T dti_sim_take(const char *what, unsigned mask, T x, unsigned from)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as CUDA's shuffles");
    dti_sim_shuffle s = {};
    T out;

    memcpy(&s.mine, &x, sizeof x);
    s.from = from;
    dti_sim_shuffle_meet(what, mask, &s);
    memcpy(&out, &s.theirs, sizeof out);
    return out;
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = warpSize)
{
    const unsigned lane = dti_sim::current->lane, w = (unsigned)width;

    return dti_sim_take("__shfl_sync", mask, x, (lane & ~(w - 1)) | ((unsigned)from & (w - 1)));
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int flip, int width = warpSize)
{
    const unsigned lane = dti_sim::current->lane, w = (unsigned)width;
    const unsigned from = lane ^ (unsigned)flip;

    return dti_sim_take("__shfl_xor_sync", mask, x, from < (lane & ~(w - 1)) + w ? from : lane);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned step, int width = warpSize)
{
    const unsigned lane = dti_sim::current->lane, w = (unsigned)width;
    const unsigned from = lane + step;

    return dti_sim_take("__shfl_down_sync", mask, x, from < (lane & ~(w - 1)) + w ? from : lane);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned step, int width = warpSize)
{
    const unsigned lane = dti_sim::current->lane, w = (unsigned)width;
    const unsigned within = lane & (w - 1);

    return dti_sim_take("__shfl_up_sync", mask, x, within >= step ? lane - step : lane);
}

unsigned dti_sim_ballot(const char *what, unsigned mask, bool mine);

static inline unsigned __ballot_sync(unsigned mask, int x)
{
    return dti_sim_ballot("__ballot_sync", mask, x != 0);
}
static inline int __any_sync(unsigned mask, int x)
{
    return dti_sim_ballot("__any_sync", mask, x != 0) != 0;
}
static inline int __all_sync(unsigned mask, int x)
{
    return dti_sim_ballot("__all_sync", mask, x == 0) == 0;
}
static inline unsigned __activemask(void)
{
    return 0xffffffffu;
}

/* --- twins of device.cuh; the comments stand there -------------------------------------------- */

static inline float dti_f16_value(uint16_t bits)
{
    const unsigned sign = (unsigned)(bits & 0x8000u) << 16, e = bits >> 10 & 31u, m = bits & 1023u;

    if (e == 31) return __uint_as_float(sign | 0x7f800000u | m << 13);
    if (e != 0) return __uint_as_float(sign | (e + 112) << 23 | m << 13);
    return (sign ? -1.0f : 1.0f) * (float)m * (1.0f / 16777216.0f);
}
uint16_t dti_f16_bits(float x);

void dti_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void dti_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void dti_ldmatrix_x4(uint32_t r[4], const void *row);
void dti_ldmatrix_x4_trans(uint32_t r[4], const void *row);
void dti_ldmatrix_x2(uint32_t r[2], const void *row);
void dti_ldmatrix_x2_trans(uint32_t r[2], const void *row);

void dti_cp_async_16(void *shared, const void *global, int bytes);
void dti_cp_async_commit(void);
void dti_sim_cp_async_wait(int n_pending);
template <int N> static inline void dti_cp_async_wait(void)
{
    dti_sim_cp_async_wait(N);
}

static inline uint32_t dti_load_acquire(const uint32_t *p)
{
    dti_sim::spin_step();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void dti_store_release(uint32_t *p, uint32_t x)
{
    __atomic_store_n(p, x, __ATOMIC_RELEASE);
}
static inline uint64_t dti_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
