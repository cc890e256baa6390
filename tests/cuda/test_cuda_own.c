/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of a user's own on a GPU, and what they ask of their rank: scratch memory of the device,
 * threads of the host. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "mesh/gpu.h"
#include "tests/support/cuda.h"
#include "tests/support/tensors.h"

enum { N = 1000 };

typedef struct own_attr {
    const dti_cuda_place *gpu;
    void **seen; /* the scratch of this call */
} own_attr;

static void add_one(void *arg, int worker, int n_workers)
{
    (void)n_workers;
    ((int *)arg)[worker]++;
}

/* x -> x by way of scratch memory, in order of the stream. */
static dt_status through_scratch(const dt_kargs *args)
{
    const own_attr *attr = args->attr;
    const dti_cuda_module *m = attr->gpu->module;
    const size_t bytes = (size_t)args->in[0].shape[0] * sizeof(float);
    void *small, *large;
    int ran[64] = { 0 }, n = 0;

    DT_EXPECT(args->stream != NULL, "a stream");
    DT_TRY(dt_kernel_scratch(args, 1, &small));
    DT_TRY(dt_kernel_scratch(args, 2 * bytes, &large));
    DT_EXPECT(large != NULL && ((uintptr_t)large & 63) == 0, "aligned memory");
    DT_EXPECT(m->copy(attr->gpu->cuda, large, args->in[0].data, bytes, DTI_CUDA_WITHIN) == 0, "%s",
              m->why());
    DT_EXPECT(m->copy(attr->gpu->cuda, args->out[0].data, large, bytes, DTI_CUDA_WITHIN) == 0, "%s",
              m->why());
    DT_EXPECT(dt_kernel_workers(args) >= 1 && dt_kernel_workers(args) <= 64, "threads");
    dt_kernel_run(args, 1 << 30, add_one, ran);
    for (int w = 0; w < 64; w++) n += ran[w];
    DT_EXPECT(n == dt_kernel_workers(args), "%d threads ran", n);
    *attr->seen = large;
    return DT_OK;
}

static dt_status host_kernel(const dt_kargs *args)
{
    (void)args;
    DT_FAIL(DT_ERR_INTERNAL, "the kernel of the host");
}

static const dt_op through = { .name = "through_scratch",
                               .axes = "... -> ...",
                               .types = "f>f",
                               .cpu = host_kernel,
                               .cuda = through_scratch,
                               .attr_bytes = sizeof(own_attr) };

/* Twice: the second call finds its memory there. */
static dt_status call_own(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { N };
    const dt_placement cut = DT_SHARD(0);
    void *seen[2] = { NULL, NULL };
    size_t held[2], used[2];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *full = NULL;
    DT_FREED float *values = NULL;
    dt_tensor *y;
    dti_device *device;

    (void)arg;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dti_alloc_array(N, sizeof *values, (void **)&values));
    DT_TRY(dt_arange(mesh, &cut, DT_F32, 1, shape, (dt_steps){ 0, 1 }, &x));
    for (int i = 0; i < 2; i++) {
        const own_attr attr = { dti_runtime_gpu(dt_mesh_runtime(mesh)), &seen[i] };
        dt_tape_reset(t);
        used[i] = dti_memory_used(device->memory);
        y = dt_apply(t, &through, &attr, 1, &x);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_full_tensor(y, &full));
        DT_TRY(dt_tensor_read(full, values, N * sizeof *values));
        for (int k = 0; k < N; k++)
            DT_EXPECT(values[k] == (float)k, "element %d is %g", k, (double)values[k]);
        dt_tensor_release(&full);
        held[i] = dti_memory_held(device->memory);
    }
    dt_tape_reset(t);
    DT_EXPECT(seen[0] != NULL && seen[0] == seen[1], "the same scratch");
    DT_EXPECT(held[0] == held[1] && used[0] == used[1], "nothing more is held");
    return DT_OK;
}

static const dt_op on_host = {
    .name = "own_on_host", .axes = "... -> ...", .types = "f>f", .cpu = dti_relu_cpu
};

static dt_status call_on_host(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { N };
    const dt_placement whole = DT_REPLICATE;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dti_device *device;

    (void)arg;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_arange(mesh, &whole, DT_F32, 1, shape, (dt_steps){ 0, 1 }, &x));
    (void)dt_relu(t, x);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(device->n_on_host == 0, "a row that has a kernel");
    (void)dt_apply(t, &on_host, NULL, 1, &x);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(device->n_on_host == 1, "a row that has none");
    return DT_OK;
}

DT_TEST(cuda_own, what_runs_on_copies_is_counted)
{
    dt_test_on_gpus("tp=1", call_on_host, NULL);
}

DT_TEST(cuda_own, a_kernel_of_ones_own_has_scratch_and_threads)
{
    dt_test_on_gpus("tp=1", call_own, NULL);
    dt_test_on_gpus("tp=2", call_own, NULL);
}
