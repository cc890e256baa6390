/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that share a kernel with others run on the device, not on copies: of a GPU's memory nothing
 * goes down to the host and up again. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>

#include "dtensor/device/device.h"
#include "mesh/gpu.h"
#include "tests/support/cuda.h"

enum { N = 4 };

static dt_status rows_run_there(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t matrix[] = { N, N };
    const dti_cuda_place *gpu = dti_runtime_gpu(dt_mesh_runtime(mesh));
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *y;
    int64_t before;

    (void)arg;
    DT_TRY(dt_randn(mesh, whole, DT_F32, 2, matrix, (dt_random){ 1, 0 }, &x));
    before = gpu->module->launches(gpu->cuda);
    for (int n = 2; n <= 4; n++) {
        y = dt_concat(t, n, (dt_tensor *[]){ x, x, x, x }, 0);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(dt_tensor_extent(y, 0) == n * N, "rows");
    }
    DT_EXPECT(gpu->module->launches(gpu->cuda) == before + 2 + 3 + 4,
              "%lld kernels for nine pieces of three concatenations",
              (long long)(gpu->module->launches(gpu->cuda) - before));
    before = gpu->module->launches(gpu->cuda);
    for (int i = 0; i < 4; i++) {
        y = dt_matmul(t, x, (i & 1) != 0, x, (i & 2) != 0);
        DT_TRY(dt_tape_status(t));
    }
    DT_EXPECT(gpu->module->launches(gpu->cuda) == before + 4, "%lld kernels for four products",
              (long long)(gpu->module->launches(gpu->cuda) - before));
    return DT_OK;
}

DT_TEST(cuda_general_rows, rows_that_share_a_kernel_run_on_the_device)
{
    dt_test_on_gpus("tp=1", rows_run_there, NULL);
}
