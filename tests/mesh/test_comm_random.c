/* SPDX-License-Identifier: Apache-2.0
 *
 * Random operations on a mesh and all its dims at once. */
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

static dt_status random_steps(dt_mesh *mesh, const void *arg)
{
    return comm_random_steps(mesh, *(const uint64_t *)arg, dt_test_processes() > 1 ? 250 : 1000,
                             NULL);
}

DT_TEST(comm, random_operations_waited_for_in_any_order)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2", "a=2,b=2,c=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        dt_test_on_ranks(meshes[m], random_steps, &(uint64_t){ 10000 * m });
}
