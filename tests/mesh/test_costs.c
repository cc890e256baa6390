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

static dt_status expect_link(const dt_mesh *mesh, int dim, double latency_ns, double bytes_per_ns)
{
    const dt_link l = dt_mesh_link(mesh, dim);

    DT_EXPECT_CLOSE(l.latency_ns, latency_ns, 0);
    DT_EXPECT_CLOSE(l.bytes_per_ns, bytes_per_ns, 0);
    return DT_OK;
}

/* What meshes made from one with links and a bound begin with. */
static dt_status derived(dt_mesh *mesh, const void *arg)
{
    static const char *const ab[] = { "a", "b" }, *const bd[] = { "b", "d" }, *const c[] = { "c" },
                             *const d[] = { "d" };
    const dt_link links[] = { { 4000, 1 }, { 2000, 3 }, { 9000, 0.5 }, { 500, 100 } };
    dt_mesh *m[8] = { NULL };
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_mesh_set_links(mesh, links)); /* c has one rank */
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, 1 << 20));
    DT_TRY_TO(done, st, dt_mesh_slice(mesh, bd, 2, &m[0]));
    DT_TRY_TO(done, st, expect_link(m[0], 0, 2000, 3));
    DT_TRY_TO(done, st, expect_link(m[0], 1, 500, 100));
    DT_TRY_TO(done, st, dt_mesh_flatten(mesh, ab, 2, "ab", &m[1]));
    DT_TRY_TO(done, st, expect_link(m[1], 0, 4000, 1));
    DT_TRY_TO(done, st, dt_mesh_flatten(mesh, NULL, 0, "all", &m[2]));
    DT_TRY_TO(done, st, expect_link(m[2], 0, 4000, 1));
    DT_TRY_TO(done, st, dt_mesh_flatten(mesh, c, 1, NULL, &m[3]));
    DT_TRY_TO(done, st, expect_link(m[3], 0, 9000, 0.5));
    DT_TRY_TO(done, st, dt_mesh_unflatten(m[1], "ab", "e=2,f=2", &m[4]));
    DT_TRY_TO(done, st, expect_link(m[4], 1, 4000, 1));
    DT_TRY_TO(done, st, dt_mesh_unflatten(mesh, "b", "g=1,h=2", &m[5]));
    DT_TRY_TO(done, st, expect_link(m[5], 2, 2000, 3));
    DT_TRY_TO(done, st, expect_link(m[5], 4, 500, 100));
    DT_TRY_TO(done, st, dt_mesh_slice(mesh, d, 1, &m[6]));
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(m[6], 1 << 10));
    DT_TRY_TO(done, st, dt_mesh_concatenate((dt_mesh *[]){ m[1], m[6] }, 2, &m[7]));
    DT_TRY_TO(done, st, expect_link(m[7], 0, 4000, 1));
    DT_TRY_TO(done, st, expect_link(m[7], 1, 500, 100));
    for (int i = 0; i < 8; i++) {
        const int64_t bound = dti_mesh_costs_of(m[i])->memory_bytes;
        DT_EXPECT_TO(done, st, bound == (i < 6 ? 1 << 20 : 1 << 10), "mesh %d: %lld bytes", i,
                     (long long)bound);
    }
    DT_EXPECT_TO(done, st, dti_mesh_costs_of(m[0])->id != dti_mesh_costs_of(m[4])->id, "equal ids");
done:
    for (int i = 0; i < 8; i++) dt_mesh_release(&m[i]);
    return st;
}

DT_TEST(costs, meshes_made_from_others_inherit)
{
    dt_test_on_ranks("a=2,b=2,c=1,d=2", derived, NULL);
}

/* A slice of a measured mesh is measured, a flattened one has to be. */
static dt_status derived_from_measured(dt_mesh *mesh, const void *arg)
{
    static const char *const tp[] = { "tp" };
    DT_HELD(mesh) *slice = NULL, *flat = NULL, *both = NULL;

    (void)arg;
    DT_TRY(dt_mesh_measure_links(mesh));
    DT_TRY(dt_mesh_slice(mesh, tp, 1, &slice));
    DT_TRY(dt_mesh_flatten(mesh, NULL, 0, NULL, &flat));
    DT_EXPECT(dti_mesh_costs_of(slice)->measured, "the slice");
    DT_EXPECT(!dti_mesh_costs_of(flat)->measured, "the flattened mesh");
    DT_TRY(expect_link(slice, 0, dt_mesh_link(mesh, 1).latency_ns,
                       dt_mesh_link(mesh, 1).bytes_per_ns));
    DT_TRY(dt_mesh_concatenate((dt_mesh *[]){ slice }, 1, &both));
    DT_EXPECT(dti_mesh_costs_of(both)->measured, "the slice again");
    DT_TRY(dt_mesh_measure_links(flat));
    DT_EXPECT(dti_mesh_costs_of(flat)->measured, "the flattened mesh, measured");
    return DT_OK;
}

DT_TEST(costs, slices_of_measured_meshes_are_measured)
{
    dt_test_on_ranks("dp=2,tp=2", derived_from_measured, NULL);
}
