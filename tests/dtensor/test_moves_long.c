/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"
#include "tests/support/moves.h"

DT_TEST(moves, twenty_thousand_random_tensors)
{
    for (unsigned seed = 2; seed < 12; seed++) dt_test_random_moves(seed, 2100);
}
