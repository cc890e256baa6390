/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks in one kernel each, which waits for those of the others. Small ones are taken in
 * one step: every rank reads all terms. Of larger ones each rank adds a slice, and reads those of
 * the others when they have met again. Terms are added in rank order, so the bits are those of
 * box_sums.cu and the same on all ranks. */
#include "dtensor/kernels/cuda/spin.cuh"

#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/cuda/terms.cuh"

namespace
{

/* The longest sums in one step, of up to FEW_RANKS and of more: the thresholds of vLLM's custom
 * all-reduce. */
enum { FEW_RANKS = 4 };
const int64_t ONE_STEP_BYTES_FEW = 512 << 10, ONE_STEP_BYTES = 256 << 10;

struct spin_sum {
    dti_spin_job job;
    const void *send;
    void *recv;
    int64_t n, n_packs; /* elements; 16 bytes each, the last one may be less */
    int reduce;
    bool send_aligned, recv_aligned;
};

template <typename T> struct pack_of {
    enum { N = 16 / sizeof(T) };
    typedef dti_pack<T, N> type;
};

template <typename T>
__device__ inline typename pack_of<T>::type *terms_of(const spin_sum &s, int member, uint32_t count)
{
    return reinterpret_cast<typename pack_of<T>::type *>(
        (char *)s.job.with.areas[member] + DTI_SPIN_TERMS_AT +
        count % 2 * (size_t)DTI_CUDA_SPIN_SUM_BYTES);
}

template <typename T>
__device__ inline typename pack_of<T>::type *slice_of(const spin_sum &s, int member, uint32_t count)
{
    return reinterpret_cast<typename pack_of<T>::type *>(
        (char *)s.job.with.areas[member] + DTI_SPIN_SLICES_AT + count % 2 * DTI_SPIN_SLICE_BYTES);
}

/* A pack of this rank's term, to where the others find it. */
template <typename T>
__device__ inline void hand_out(const spin_sum &s, typename pack_of<T>::type *to, int64_t pack)
{
    enum { N = pack_of<T>::N };
    typename pack_of<T>::type raw = {};

    dti_load_pack<T, N>(&raw, (const T *)s.send + pack * N, s.n - pack * N, s.send_aligned);
    to[pack] = raw;
}

template <typename T>
__device__ inline void take_in(const spin_sum &s, const typename pack_of<T>::type &x, int64_t pack)
{
    enum { N = pack_of<T>::N };

    dti_store_pack<T, N>((T *)s.recv + pack * N, x, s.n - pack * N, s.recv_aligned);
}

/* All ranks' terms of a pack, on their way at once, then added in order. */
template <typename T>
__device__ inline typename pack_of<T>::type add_pack(const spin_sum &s, uint32_t count,
                                                     int64_t pack)
{
    typedef typename dti_term<T>::sum S;
    enum { N = pack_of<T>::N };
    typename pack_of<T>::type raw[DTI_CUDA_SPIN_RANKS] = {};
    S acc[N] = {};

    DTI_UNROLL
    for (int m = 0; m < DTI_CUDA_SPIN_RANKS; m++)
        if (m < s.job.with.size) raw[m] = terms_of<T>(s, m, count)[pack];
    DTI_UNROLL
    for (int m = 0; m < DTI_CUDA_SPIN_RANKS; m++) {
        if (m >= s.job.with.size) continue;
        DTI_UNROLL
        for (int i = 0; i < N; i++) {
            const S x = dti_widen_term(raw[m].v[i]);
            acc[i] = m == 0 ? x : dti_take<S>(s.reduce, acc[i], x);
        }
    }
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        if (s.reduce == DT_AVG) acc[i] = acc[i] / (S)s.job.with.size;
        dti_narrow_term(&raw[0].v[i], acc[i]);
    }
    return raw[0];
}

__device__ inline int64_t first_pack()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t step_of_packs()
{
    return (int64_t)gridDim.x * blockDim.x;
}

template <typename T>
__global__ void __launch_bounds__(DTI_SPIN_THREADS, 1)
    sum_in_one(const __grid_constant__ spin_sum s)
{
    const uint32_t count = dti_spin_begin(s.job);
    typename pack_of<T>::type *const own = terms_of<T>(s, s.job.with.rank, count);

    for (int64_t i = first_pack(); i < s.n_packs; i += step_of_packs()) hand_out<T>(s, own, i);
    if (dti_spin_meet(s.job, count, 0))
        for (int64_t i = first_pack(); i < s.n_packs; i += step_of_packs())
            take_in<T>(s, add_pack<T>(s, count, i), i);
    dti_spin_end(s.job, count);
}

/* Slices are equal but for the last ones; pack i of each is the same block's. */
template <typename T>
__global__ void __launch_bounds__(DTI_SPIN_THREADS, 1)
    sum_in_two(const __grid_constant__ spin_sum s)
{
    const uint32_t count = dti_spin_begin(s.job);
    const int rank = s.job.with.rank, size = s.job.with.size;
    const int64_t n_slice = (s.n_packs + size - 1) / size;
    typename pack_of<T>::type *const own = terms_of<T>(s, rank, count);
    bool met;

    for (int64_t i = first_pack(); i < n_slice; i += step_of_packs())
        for (int64_t at = i; at < s.n_packs; at += n_slice) hand_out<T>(s, own, at);
    met = dti_spin_meet(s.job, count, 0);
    if (met) {
        for (int64_t i = first_pack(); i < n_slice; i += step_of_packs())
            if (rank * n_slice + i < s.n_packs)
                slice_of<T>(s, rank, count)[i] = add_pack<T>(s, count, rank * n_slice + i);
        met = dti_spin_meet(s.job, count, 1);
    }
    if (met)
        for (int64_t i = first_pack(); i < n_slice; i += step_of_packs())
            for (int m = 0; m < size; m++)
                if (m * n_slice + i < s.n_packs)
                    take_in<T>(s, slice_of<T>(s, m, count)[i], m * n_slice + i);
    dti_spin_end(s.job, count);
}

__global__ void __launch_bounds__(DTI_WARP) meet_others(const __grid_constant__ dti_spin_job j)
{
    const uint32_t count = dti_spin_begin(j);

    (void)dti_spin_meet(j, count, 0);
    dti_spin_end(j, count);
}

/* What all members have to pass alike, in 32 bits. */
uint32_t kind_of(int64_t n, int dtype, int reduce)
{
    uint64_t h = ((uint64_t)n * 64 + (uint64_t)dtype) * 16 + (uint64_t)reduce + 1;

    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

dti_spin_job job_of(const dti_cuda *c, const dti_cuda_circle *with, uint32_t kind)
{
    const int64_t most_ms = INT64_MAX / 1000000;
    dti_spin_job j = {};

    j.with = *with;
    j.fault = c->fault;
    j.limit_ns = (uint64_t)(with->limit_ms < most_ms ? with->limit_ms : most_ms) * 1000000u;
    j.kind = kind;
    return j;
}

template <typename T> int run(dti_cuda *c, spin_sum *s)
{
    enum { N = pack_of<T>::N };
    const int64_t most = s->job.with.size <= FEW_RANKS ? ONE_STEP_BYTES_FEW : ONE_STEP_BYTES;
    const bool in_one = s->n * (int64_t)sizeof(T) <= most;
    const int64_t most_blocks = s->job.with.crowded ? DTI_SPIN_CROWD_BLOCKS : DTI_SPIN_BLOCKS;
    int64_t packs, blocks, threads;

    s->n_packs = (s->n + N - 1) / N;
    packs = in_one ? s->n_packs : (s->n_packs + s->job.with.size - 1) / s->job.with.size;
    threads = packs < DTI_SPIN_THREADS ? (packs + DTI_WARP - 1) / DTI_WARP * DTI_WARP
                                       : (int64_t)DTI_SPIN_THREADS;
    blocks = (packs + threads - 1) / threads;
    if (blocks > most_blocks) blocks = most_blocks;
    if (in_one)
        return DTI_LAUNCH_SPINNING(c, sum_in_one<T>, dim3((unsigned)blocks),
                                   dim3((unsigned)threads), 0, *s);
    return DTI_LAUNCH_SPINNING(c, sum_in_two<T>, dim3((unsigned)blocks), dim3((unsigned)threads), 0,
                               *s);
}

int check(const dti_cuda_circle *with)
{
    if (with->size >= 1 && with->size <= DTI_CUDA_SPIN_RANKS) return 0;
    return dti_cuda_fail("%d ranks whose kernels wait for each other: CUDA takes 1 to %d",
                         with->size, (int)DTI_CUDA_SPIN_RANKS);
}

} /* namespace */

extern "C" {

size_t dti_cuda_spin_bytes(void)
{
    return DTI_SPIN_AREA_BYTES;
}

int dti_cuda_spin_meet(dti_cuda *c, const dti_cuda_circle *with)
{
    if (check(with)) return -1;
    return DTI_LAUNCH_SPINNING(c, meet_others, dim3(1), dim3(DTI_WARP), 0, job_of(c, with, 1));
}

int dti_cuda_spin_sum(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum)
{
    const int64_t bytes = (int64_t)dti_cuda_dtype_bytes(sum->dtype);
    spin_sum s = {};

    if (check(with)) return -1;
    if (sum->n == 0) return 0;
    if (sum->n > DTI_CUDA_SPIN_SUM_BYTES / (bytes > 0 ? bytes : 1))
        return dti_cuda_fail("a sum of %lld %s by kernels that wait for each other: %d bytes at "
                             "most",
                             (long long)sum->n, dti_cuda_dtype_name(sum->dtype),
                             (int)DTI_CUDA_SPIN_SUM_BYTES);
    s.job = job_of(c, with, kind_of(sum->n, sum->dtype, sum->reduce));
    s.send = sum->send;
    s.recv = sum->recv;
    s.n = sum->n;
    s.reduce = sum->reduce;
    s.send_aligned = (uintptr_t)sum->send % 16 == 0;
    s.recv_aligned = (uintptr_t)sum->recv % 16 == 0;
    switch (sum->dtype) {
    case DT_F32:
        return run<float>(c, &s);
    case DT_BF16:
        return run<dti_bf16>(c, &s);
    case DT_F16:
        return run<dti_f16>(c, &s);
    case DT_F64:
        return run<double>(c, &s);
    case DT_I32:
        return run<int32_t>(c, &s);
    case DT_I64:
        return run<int64_t>(c, &s);
    default:
        return dti_cuda_fail("a sum of %s on CUDA: of floats, i32 and i64 only",
                             dti_cuda_dtype_name(sum->dtype));
    }
}
} /* extern "C" */
