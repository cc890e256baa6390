/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device reaches at most: work is counted as it is done, on the CPU and on GPUs. */
#include "dtensor/device/rates.h"

#include <dtensor/mesh.h>

#include "tests/support/cuda.h"

static dt_status measure(dt_mesh *mesh, const void *arg)
{
    DT_ENDS(dti_rates_close) dti_rates *r = NULL;

    (void)arg;
    DT_TRY(dti_rates_open(mesh, 1001, DT_F32, 24, &r));
    DT_TRY(dti_rates_copy(r));
    DT_TRY(dti_rates_multiply(r));
    DT_TRY(dti_rates_multiply(r));
    DT_EXPECT(dti_rates_copied(r) == 1000.0, "%g bytes", dti_rates_copied(r));
    DT_EXPECT(dti_rates_operations(r) == 2.0 * 24 * 24 * 24, "%g operations",
              dti_rates_operations(r));
    return DT_OK;
}

static dt_status agree(dt_mesh *mesh, const void *arg)
{
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    int64_t side, each[4];

    (void)arg;
    DT_TRY(dti_rates_gather(mesh, 100 + rank, each));
    for (int r = 0; r < dt_mesh_n_ranks(mesh); r++)
        DT_EXPECT(each[r] == 100 + r, "rank %d says %d", r, (int)each[r]);
    DT_TRY(dti_rates_side(mesh, DT_F32, &side));
    DT_EXPECT(side >= 64 && side <= 8192 && (side & (side - 1)) == 0, "a side of %d", (int)side);
    DT_TRY(dti_rates_gather(mesh, side, each));
    for (int r = 0; r < dt_mesh_n_ranks(mesh); r++)
        DT_EXPECT(each[r] == side, "sides of %d and %d", (int)side, (int)each[r]);
    return DT_OK;
}

DT_TEST(rates, work_is_counted)
{
    dt_test_on_ranks("tp=2", measure, NULL);
}

DT_TEST(rates, ranks_agree_on_a_product)
{
    dt_test_on_ranks("tp=1", agree, NULL);
    dt_test_on_ranks("dp=2,tp=2", agree, NULL);
}

DT_TEST(rates, a_gpu_is_measured_alike)
{
    dt_test_on_gpus("tp=1", measure, NULL);
    dt_test_on_gpus("tp=2", agree, NULL);
}
