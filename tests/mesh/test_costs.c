/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

static dt_status given(dt_mesh *mesh, const void *arg)
{
    const dt_link links[] = { { 2000, 10 }, { 500, 100 } };
    const dt_link slow[] = { { -1, 10 }, { 500, 100 } }, none[] = { { 0, 1 }, { 0, NAN } };
    const uint64_t before = dti_mesh_costs_of(mesh)->id;

    (void)arg;
    DT_EXPECT_CLOSE(dt_mesh_link(mesh, 1).latency_ns, DT_DEFAULT_LATENCY_NS, 0);
    DT_TRY(dt_mesh_set_links(mesh, links));
    DT_EXPECT_CLOSE(dt_mesh_link(mesh, 1).bytes_per_ns, 100, 0);
    DT_EXPECT(dti_mesh_costs_of(mesh)->id != before, "other links, same id");
    DT_EXPECT_STATUS(dt_mesh_set_links(mesh, slow), DT_ERR_ARG, "mesh dim \"dp\": a link of -1 ns");
    DT_EXPECT_STATUS(dt_mesh_set_links(mesh, none), DT_ERR_ARG, "mesh dim \"tp\"");
    DT_EXPECT_STATUS(dt_mesh_set_links(mesh, NULL), DT_ERR_ARG, "NULL");
    DT_EXPECT_STATUS(dt_mesh_set_move_memory(mesh, -1), DT_ERR_ARG, "-1 bytes");
    DT_TRY(dt_mesh_set_move_memory(mesh, 1 << 20));
    DT_EXPECT_EQ_INT(dti_mesh_costs_of(mesh)->memory_bytes, 1 << 20);
    DT_EXPECT_CLOSE(dt_mesh_link(mesh, 2).bytes_per_ns, 0, 0); /* no such dim */
    return DT_OK;
}

DT_TEST(costs, links_are_given_per_dim)
{
    dt_test_on_ranks("dp=2,tp=2", given, NULL);
}

/* All ranks agree on what was measured, and a second call measures nothing. */
static dt_status measured(dt_mesh *mesh, const void *arg)
{
    double mine[4];
    dti_comm *all;

    (void)arg;
    DT_TRY(dt_mesh_measure_links(mesh));
    for (int d = 0; d < 2; d++) {
        const dt_link l = dt_mesh_link(mesh, d);
        DT_EXPECT(l.latency_ns > 0 && l.bytes_per_ns > 0, "dim %d: %g ns, %g bytes per ns", d,
                  l.latency_ns, l.bytes_per_ns);
        mine[2 * d] = l.latency_ns;
        mine[2 * d + 1] = l.bytes_per_ns;
    }
    DT_TRY(dti_mesh_comm(mesh, 3, &all));
    const uint64_t seq = all->seq;
    DT_TRY(dt_mesh_measure_links(mesh));
    DT_EXPECT(all->seq == seq, "measured again");
    DT_TRY(dti_broadcast(all, mine, 4, DT_F64, 1));
    DT_EXPECT_CLOSE(mine[0], dt_mesh_link(mesh, 0).latency_ns, 0);
    DT_EXPECT_CLOSE(mine[3], dt_mesh_link(mesh, 1).bytes_per_ns, 0);
    return DT_OK;
}

DT_TEST(costs, links_are_measured_once_and_agreed_upon)
{
    dt_test_on_ranks("dp=2,tp=2", measured, NULL);
    dt_test_on_ranks("dp=1,tp=3", measured, NULL);
}
