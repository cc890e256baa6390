/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of several ranks that wait for each other. Each rank has an area that the others reach;
 * a rank writes its terms into its own area and its signals into those of the others, so it waits
 * by reading memory of its own device.
 *
 * Operations are counted in the area, by the kernels: so a recorded graph can be played again and
 * again. Odd and even ones have signals and staging of their own, which is enough: who begins
 * operation k + 2 has seen all ranks begin k + 1, and a rank begins that when its kernel of k has
 * ended. Block b of a rank meets blocks b of the others and reads nothing but what those wrote, so
 * blocks of one rank need not run at once. */
#ifndef DTI_SPIN_CUH
#define DTI_SPIN_CUH

#include "dtensor/kernels/cuda/device.cuh"

enum {
    DTI_SPIN_THREADS = 512,    /* of a block; as many and as large ones as vLLM's custom */
    DTI_SPIN_BLOCKS = 36,      /* all-reduce starts */
    DTI_SPIN_CROWD_BLOCKS = 8, /* where ranks share a device: all of them have to be resident */
    DTI_SPIN_PHASES = 2,
    DTI_SPIN_POLLS = 256 /* between two looks at the clock and at memory of the host */
};

/* That a rank has come to operation `count`, and what it takes that for. */
typedef struct dti_spin_signal {
    uint32_t count;
    uint32_t kind;
} dti_spin_signal;

/* What an area begins with: zeros at first. */
typedef struct dti_spin_head {
    uint32_t ended[DTI_SPIN_BLOCKS]; /* operations that were counted by the block; equal for all */
    dti_spin_signal from[2][DTI_SPIN_PHASES][DTI_SPIN_BLOCKS][DTI_CUDA_SPIN_RANKS];
} dti_spin_head;

static_assert(sizeof(dti_spin_head) <= DTI_CUDA_SPIN_HEAD_BYTES, "the head of an area");

enum : size_t {
    DTI_SPIN_TERMS_AT = (size_t)DTI_CUDA_SPIN_HEAD_BYTES + DTI_CUDA_SPIN_ROOM_BYTES,
    DTI_SPIN_SLICES_AT = DTI_SPIN_TERMS_AT + 2 * (size_t)DTI_CUDA_SPIN_SUM_BYTES,
    DTI_SPIN_SLICE_BYTES = DTI_CUDA_SPIN_SUM_BYTES / 2 + 4096, /* of two ranks or more */
    DTI_SPIN_AREA_BYTES = DTI_SPIN_SLICES_AT + 2 * DTI_SPIN_SLICE_BYTES
};

/* What all kernels of this kind are given. */
typedef struct dti_spin_job {
    dti_cuda_circle with;
    dti_cuda_fault_word *fault;
    uint64_t limit_ns;
    uint32_t kind;
} dti_spin_job;

static __device__ inline dti_spin_head *dti_spin_head_of(const dti_spin_job &j, int member)
{
    return static_cast<dti_spin_head *>(j.with.areas[member]);
}

/* The number of the operation that this block is about to do. */
static __device__ inline uint32_t dti_spin_begin(const dti_spin_job &j)
{
    return dti_spin_head_of(j, j.with.rank)->ended[blockIdx.x] + 1;
}

/* Counts it. Blocks that this operation has no need of are counted by those that it has. */
static __device__ inline void dti_spin_end(const dti_spin_job &j, uint32_t count)
{
    __syncthreads(); /* all threads have read the number */
    for (unsigned b = blockIdx.x + threadIdx.x * gridDim.x; b < DTI_SPIN_BLOCKS;
         b += blockDim.x * gridDim.x)
        dti_spin_head_of(j, j.with.rank)->ended[b] = count;
}

static __device__ inline void dti_spin_report(const dti_spin_job &j, int fault, int member,
                                              uint32_t count)
{
    *(volatile uint32_t *)j.with.stop =
        DTI_CUDA_SPIN_FAULT; /* what follows need not wait as long */
    if (atomicCAS(&j.fault->fault, (int)DTI_CUDA_FINE, fault) != DTI_CUDA_FINE) return;
    j.fault->value = j.with.names[member];
    j.fault->limit = (long long)(j.limit_ns / 1000000u);
    j.fault->number = count;
}

/* Until a member's signal is there; false if it does not come, or the host wants an end. */
static __device__ inline bool dti_spin_await(const dti_spin_job &j, const dti_spin_signal *signal,
                                             int member, uint32_t count)
{
    uint64_t begin = 0;

    for (unsigned polls = 1; dti_load_acquire(&signal->count) != count; polls++) {
        if (polls % DTI_SPIN_POLLS != 0) continue;
        if (*(const volatile uint32_t *)j.with.stop != 0) return false;
        const uint64_t now = dti_now_ns();
        if (begin == 0) begin = now;
        if (now - begin < j.limit_ns) continue;
        dti_spin_report(j, DTI_CUDA_LATE_RANK, member, count);
        return false;
    }
    if (signal->kind == j.kind) return true;
    dti_spin_report(j, DTI_CUDA_OTHER_CALL, member, count);
    return false;
}

/* The block meets those of the other ranks: what they wrote before can be read. False: not all
 * came, and all threads have to leave. */
static __device__ inline bool dti_spin_meet(const dti_spin_job &j, uint32_t count, int phase)
{
    const int t = (int)threadIdx.x;
    bool met = true;

    __syncthreads(); /* the block has written what it has to */
    if (t < j.with.size) {
        dti_spin_signal *there =
            &dti_spin_head_of(j, t)->from[count % 2][phase][blockIdx.x][j.with.rank];
        const dti_spin_signal *here =
            &dti_spin_head_of(j, j.with.rank)->from[count % 2][phase][blockIdx.x][t];
        there->kind = j.kind;
        __threadfence_system();
        dti_store_release(&there->count, count);
        __syncwarp((1u << j.with.size) - 1); /* nobody waits before all have been told */
        met = dti_spin_await(j, here, t, count);
    }
    return __syncthreads_and(met) != 0;
}

#endif
