/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives by the module's own kernels: ranks are threads that share a device, or two. Order of
 * streams is looked at more closely in tests/mesh/test_comm_cuda.c. */
#include <string.h>
#include <unistd.h>

#include "base/cuda_load.h"
#include "tests/support/comm_model.h"
#include "tests/support/cuda.h"

static int n_devices(const dti_cuda_module *m)
{
    dti_cuda_versions v;

    m->versions(&v);
    return v.n_devices;
}

static void on_carrier(const char *wish, dt_status (*body)(dt_mesh *, const dti_cuda_place *))
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    const dti_cuda_module *m = dt_test_cuda_module();
    const comm_devices d = { m, wish, n_devices(m), body };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) dt_test_on_ranks(meshes[i], comm_on_devices, &d);
}

DT_TEST(cuda_comm, ranks_read_and_write_each_others_memory)
{
    on_carrier("cuda_local", comm_device_table);
}

DT_TEST(cuda_comm, staged_through_memory_of_hosts)
{
    on_carrier("staged", comm_device_table);
}

static dt_status random_steps(dt_mesh *mesh, const dti_cuda_place *place)
{
    return comm_random_steps(mesh, 99, 150, place);
}

DT_TEST(cuda_comm, random_operations_of_hosts_and_devices)
{
    on_carrier("cuda_local", random_steps);
}

/* A rank for each GPU, which NCCL wants for itself. */
DT_TEST(cuda_comm, nccl_joins_a_rank_per_gpu)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=4" };
    const dti_cuda_module *m = dt_test_cuda_module();

    if (m->nccl == NULL) dt_test_skip("skipped: this module has no NCCL");
    for (int i = 0; i < (int)DT_COUNT(meshes); i++) {
        const comm_devices d = { m, "nccl", n_devices(m), comm_device_table };
        if (1 << i <= n_devices(m)) dt_test_on_ranks(meshes[i], comm_on_devices, &d);
    }
}

/* What needs no device. */
DT_TEST(cuda_comm, nccl_makes_ids_without_a_device)
{
    unsigned char a[DTI_CUDA_ID_BYTES], b[DTI_CUDA_ID_BYTES];
    const dti_cuda_module *m = NULL;
    dti_cuda_versions v;
    char path[DT_TEST_PATH_BYTES];

    if (access(dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so"), R_OK) != 0)
        dt_test_skip("skipped: this build has no module for CUDA");
    DT_ASSERT_OK(dti_cuda_load(path, NULL, &m));
    m->versions(&v);
    DT_ASSERT_EQ_INT(m->nccl != NULL, v.nccl_built != 0);
    if (m->nccl == NULL) dt_test_skip("skipped: this build has no NCCL");
    DT_ASSERT(v.nccl_built >= 21801);
    if (v.nccl_loaded < v.nccl_built) {
        DT_ASSERT_CUDA_FAILS(m, m->nccl->id(a), "an older library does not fit");
        return;
    }
    DT_ASSERT_CUDA(m, m->nccl->id(a));
    DT_ASSERT_CUDA(m, m->nccl->id(b));
    DT_ASSERT(memcmp(a, b, sizeof a) != 0);
}
