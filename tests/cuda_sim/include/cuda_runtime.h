/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device in place of CUDA's <cuda_runtime.h>: CUDA's language for a C++14 compiler.
 * Blocks run one after the other on the thread that launches them; the threads of a block are
 * fibres, and switch where they wait for each other. Kernels that wait for kernels of other streams
 * run on a thread of their stream. */
#ifndef DTI_SIM_CUDA_RUNTIME_H
#define DTI_SIM_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __grid_constant__
#define __forceinline__  inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
/* One block at a time runs on an OS thread. A kernel says __shared__ without "static". */
#define __shared__ static thread_local

#include "sim_types.h"

namespace dti_sim
{

struct thread;
struct block;

/* What a fibre sees of its place. */
struct place {
    uint3 thread_index, block_index;
    dim3 block_extent, grid_extent;
    unsigned char *shared; /* dynamic shared memory */
    unsigned lane;
};

extern __thread place *current;

struct launch_order {
    const char *name;
    const void *kernel;
    dim3 grid, extent;
    size_t shared;
    int host_pointer; /* an argument that is no pointer to memory of a device or pinned, or -1 */
    bool spins;       /* it waits for kernels of other streams */
    std::function<void()> body;
};

/* A failed launch is seen by cudaGetLastError(). */
void launch(cudaStream_t stream, const launch_order &order);
bool is_host_pointer(const void *p);

template <class T> bool host_argument(const T &)
{
    return false;
}
template <class T> bool host_argument(T *const &p)
{
    return is_host_pointer(p);
}

template <class... P, size_t... I>
int find_host_pointer(const std::tuple<P...> &values, std::index_sequence<I...>)
{
    int found = -1;
    const int unused[] = { 0, (found < 0 && host_argument(std::get<I>(values)) ? found = (int)I
                                                                               : 0)... };

    (void)unused;
    return found;
}

template <class... P, size_t... I>
void apply(void (*kernel)(P...), const std::tuple<std::decay_t<P>...> &values,
           std::index_sequence<I...>)
{
    kernel(std::get<I>(values)...);
}

template <bool spins, class... P, class... A>
void start(cudaStream_t stream, const char *name, dim3 grid, dim3 extent, size_t shared,
           void (*kernel)(P...), A &&...args)
{
    const std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
    const auto indices = std::index_sequence_for<P...>{};

    launch(stream,
           { name, (const void *)kernel, grid, extent, shared, find_host_pointer(values, indices),
             spins, [kernel, values, indices] { apply(kernel, values, indices); } });
}

/* All lanes of `mask` that have not ended meet; then fn sees what each of them brought. */
void meet(const char *what, unsigned mask, void *mine,
          void (*fn)(void *const of[32], unsigned met));
void sync_block(void);
int sync_block_sum(int value); /* the sum over the block */

/* A kernel asks for what another one writes, and will ask again. */
void spin_step(void);

void set_shared_limit(const void *kernel, int bytes);

} // namespace dti_sim

#define threadIdx (dti_sim::current->thread_index)
#define blockIdx  (dti_sim::current->block_index)
#define blockDim  (dti_sim::current->block_extent)
#define gridDim   (dti_sim::current->grid_extent)
enum { warpSize = 32 };

#define DTI_SIM_START(spins, c, kernel, grid, block, shared_bytes, ...)                     \
    ((c)->n_launches++,                                                                     \
     dti_sim::start<spins>((c)->stream, #kernel, (grid), (block), (shared_bytes), (kernel), \
                           __VA_ARGS__),                                                    \
     dti_cuda_launched(#kernel))
#define DTI_LAUNCH(c, kernel, grid, block, shared_bytes, ...) \
    DTI_SIM_START(false, c, kernel, grid, block, shared_bytes, __VA_ARGS__)
#define DTI_LAUNCH_SPINNING(c, kernel, grid, block, shared_bytes, ...) \
    DTI_SIM_START(true, c, kernel, grid, block, shared_bytes, __VA_ARGS__)
#define DTI_SHARED(type, name) type *const name = reinterpret_cast<type *>(dti_sim::current->shared)

template <class F>
cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > 227 * 1024) return cudaErrorInvalidValue;
        dti_sim::set_shared_limit((const void *)kernel, value);
    }
    return cudaSuccess;
}

#include "sim_intrinsics.h"

#endif
