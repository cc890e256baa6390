/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients go back by the dual of a move: <move(x), y> = <x, dual(y)>, exact in integers. Needs no
 * reference, and holds for any plan that a move takes. More ranks: test_move_duals_long.c. */
#include "tests/support/dt_test.h"
#include "tests/support/move_duals.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

DT_TEST(move_duals, every_move_has_its_dual)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_move_duals(meshes[m], DT_DUAL_RIGHT, 100);
}

/* The property would see a dual that leaves out a reduction, scales, or hands out copies of what
 * neighbours should have terms of: in all pairs where that is another gradient. */
DT_TEST(move_duals, wrong_duals_are_seen)
{
    for (int dual = DT_DUAL_RIGHT + 1; dual < DT_N_DUALS; dual++)
        dt_test_move_duals("tp=4", (dt_test_dual)dual, 30);
}
