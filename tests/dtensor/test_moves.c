/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"
#include "tests/support/moves.h"

DT_TEST(moves, random_tensors_between_random_layouts_and_meshes)
{
    dt_test_random_moves(1, 450);
}
