/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks agree on whether a pass was recorded: one that could not leaves it to all to run it. */
#include "dtensor/recorder.h"
#include "tests/support/dt_test.h"

static dt_status refused(dti_recorder *r, dt_status own, const char *why)
{
    DT_EXPECT_STATUS(dti_recorder_agree(r, own), DT_ERR_UNSUPPORTED, why);
    return DT_OK;
}

static dt_status agree(dt_mesh *mesh, const void *arg)
{
    const int refuses = *(const int *)arg, rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dti_recorder *r = NULL;
    dt_status st = DT_OK, own = DT_OK;

    DT_TRY(dti_recorder_create(mesh, &r));
    DT_TRY_TO(done, st, dti_recorder_agree(r, DT_OK));
    if (rank == refuses)
        own = dt_fail_at(DT_ERR_UNSUPPORTED, __func__, __FILE__, __LINE__, "its own reason");
    DT_TRY_TO(
        done, st,
        refused(r, own, rank == refuses ? "its own reason" : "another rank could not record"));
done:
    dti_recorder_free(&r);
    return st;
}

DT_TEST(recorder, one_rank_that_refuses_speaks_for_all)
{
    for (int refuses = 0; refuses < 3; refuses++) dt_test_on_ranks("tp=3", agree, &refuses);
}
