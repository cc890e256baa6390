/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"
#include "tests/support/move_duals.h"

DT_TEST(move_duals, every_move_of_up_to_eight_ranks_has_its_dual)
{
    static const char *const meshes[] = { "tp=5",      "tp=6",       "tp=7",      "tp=8",
                                          "dp=2,tp=3", "dp=3,tp=2",  "dp=2,tp=4", "dp=4,tp=2",
                                          "dp=1,tp=4", "a=2,b=2,c=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_move_duals(meshes[m], DT_DUAL_RIGHT, 100);
}

DT_TEST(move_duals, wrong_duals_of_two_dims_are_seen)
{
    for (int dual = DT_DUAL_RIGHT + 1; dual < DT_N_DUALS; dual++)
        dt_test_move_duals("dp=2,tp=4", (dt_test_dual)dual, 30);
}
