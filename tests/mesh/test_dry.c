/* SPDX-License-Identifier: Apache-2.0
 *
 * Dry runtimes: meshes of any size without ranks, collectives that are counted and never wait. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "mesh/comm/dry.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

static dt_run_options of_ranks(int n)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;

    o.n_ranks = n;
    return o;
}

DT_TEST(dry, a_mesh_of_any_size_is_seen_from_one_rank)
{
    const dt_run_options o = of_ranks(65536);
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    dt_mesh *mesh, *tp;
    const char *name = "tp";

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 40007, NULL, &rt));
    DT_ASSERT(dt_runtime_is_dry(rt));
    DT_ASSERT_EQ_INT(dt_runtime_size(rt), 65536);
    DT_ASSERT_EQ_INT(dt_runtime_rank(rt), 40007);
    DT_ASSERT_OK(dt_mesh_create(rt, "pp=64,dp=128,tp=8", &mesh));
    DT_ASSERT(dt_mesh_is_member(mesh));
    DT_ASSERT_EQ_INT(dt_mesh_coord(mesh, 0), 40007 / 1024);
    DT_ASSERT_EQ_INT(dt_mesh_coord(mesh, 1), 40007 / 8 % 128);
    DT_ASSERT_EQ_INT(dt_mesh_coord(mesh, 2), 40007 % 8);
    DT_ASSERT_OK(dt_mesh_slice(mesh, &name, 1, &tp));
    DT_ASSERT_EQ_INT(dt_mesh_rank_at(tp, 3), 40007 / 8 * 8 + 3);
    dt_mesh_release(&tp);
    dt_mesh_release(&mesh);
    DT_ASSERT_EQ_INT(dt_runtime_live(rt), 0);
    dt_runtime_release_dry(&rt);
    DT_ASSERT(rt == NULL);
}

DT_TEST(dry, collectives_are_counted_and_wait_for_nobody)
{
    const dt_run_options o = of_ranks(12);
    int64_t counts[4] = { 5, 0, 7, 1 };
    dti_comm *tp, *one;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 6, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "dp=3,tp=4,one=1", &mesh));
    DT_ASSERT_OK(dti_mesh_comm(mesh, 1u << 1, &tp));
    DT_ASSERT_EQ_INT(tp->size, 4);
    DT_ASSERT_EQ_INT(tp->rank, 2);
    DT_ASSERT_EQ_INT(tp->world_ranks[3], 7);
    DT_ASSERT_EQ_STR(tp->name, "tp");
    DT_ASSERT_OK(dti_barrier(tp));
    DT_ASSERT_OK(dti_all_reduce(tp, NULL, NULL, 1000, DT_BF16, DT_SUM));
    DT_ASSERT_OK(dti_all_gather(tp, NULL, NULL, counts, NULL, DT_F32));
    DT_ASSERT_OK(dti_all_gather(tp, NULL, NULL, counts, NULL, DT_F32));
    DT_ASSERT_EQ_INT(tp->seq, 4);
    DT_ASSERT_OK(dti_mesh_comm(mesh, 1u << 2, &one));
    DT_ASSERT_OK(dti_all_reduce(one, NULL, NULL, 3, DT_F32, DT_SUM));
    DT_ASSERT_EQ_INT(one->seq, 1);

    counts[1] = -1; /* calls are checked as ever */
    DT_ASSERT_STATUS(dti_all_gather(tp, NULL, NULL, counts, NULL, DT_F32), DT_ERR_ARG,
                     "counts[1] is -1");
    DT_ASSERT_STATUS(dti_all_reduce(tp, NULL, NULL, 1, DT_U8, DT_SUM), DT_ERR_ARG, "u8");
    DT_ASSERT_EQ_INT(tp->seq, 4);
}

DT_TEST(dry, an_abort_ends_the_dry_world_only)
{
    const dt_run_options o = of_ranks(2);
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    dti_comm *c;

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 1, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=2", &mesh));
    DT_ASSERT_OK(dti_mesh_comm(mesh, 1, &c));
    (void)dt_fail_at(DT_ERR_MEMORY, __func__, __FILE__, __LINE__, "no room for it");
    DT_ASSERT(dti_runtime_alone(rt, DT_ERR_MEMORY) == DT_ERR_MEMORY);
    DT_ASSERT_STATUS(dti_barrier(c), DT_ERR_COMM, "rank 1 failed: no room for it");
}

static dt_status beside_a_run(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh), *dry = NULL;
    const dt_run_options o = of_ranks(dt_runtime_size(rt));
    dt_status st = DT_OK;
    dt_mesh *copy = NULL;

    (void)arg;
    DT_TRY(dt_runtime_create_dry(&o, dt_runtime_rank(rt), rt, &dry));
    DT_TRY_TO(done, st, dti_mesh_copy(mesh, dry, &copy));
    DT_EXPECT_TO(done, st, dt_mesh_equal(mesh, copy), "a copy has the same ranks");
    DT_EXPECT_TO(done, st, dt_mesh_runtime(copy) == dry && !dt_runtime_is_dry(rt), "whose it is");
    DT_EXPECT_TO(done, st, dti_mesh_place(copy) == dti_mesh_place(mesh), "the same place");
    (void)dt_fail_at(DT_ERR_IO, __func__, __FILE__, __LINE__, "dry");
    dti_runtime_abort(dry); /* must not reach the peers of the run */
done:
    dt_mesh_release(&copy);
    dt_runtime_release_dry(&dry);
    DT_TRY(st);
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    return DT_OK;
}

DT_TEST(dry, a_dry_runtime_beside_a_run_leaves_its_ranks_alone)
{
    dt_test_on_ranks("dp=2,tp=2", beside_a_run, NULL);
    dt_test_on_ranks("tp=3", beside_a_run, NULL);
}

DT_TEST(dry, bad_options_are_refused)
{
    dt_run_options o = of_ranks(4);
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    dt_mesh *mesh;

    DT_ASSERT_STATUS(dt_runtime_create_dry(&o, 4, NULL, &rt), DT_ERR_ARG, "ranks 0..3");
    DT_ASSERT_STATUS(dt_runtime_create_dry(&o, -1, NULL, &rt), DT_ERR_ARG, "rank -1");
    DT_ASSERT_STATUS(dt_runtime_create_dry(NULL, 0, NULL, &rt), DT_ERR_ARG, "options");
    DT_ASSERT_STATUS(dt_runtime_create_dry(&o, 0, NULL, NULL), DT_ERR_ARG, "out is NULL");
    o.n_ranks = 0;
    DT_ASSERT_STATUS(dt_runtime_create_dry(&o, 0, NULL, &rt), DT_ERR_ARG, "n_ranks is 0");
    o.n_ranks = 2;
    DT_ASSERT_OK(dt_runtime_create_dry(&o, 0, NULL, &rt));
    DT_ASSERT_STATUS(dt_mesh_create(rt, "tp=3", &mesh), DT_ERR_ARG, "needs 3 ranks");
}

/* As from a program of an older version, of a newer one, and with what no version has. */
DT_TEST(dry, options_are_read_as_those_of_a_run)
{
    struct {
        dt_run_options options;
        int64_t later;
    } newer = { of_ranks(3), 0 };
    dt_run_options o = of_ranks(3);
    dt_runtime *rt;

    o.size -= sizeof(int64_t);
    DT_ASSERT_OK(dt_runtime_create_dry(&o, 2, NULL, &rt));
    dt_runtime_release_dry(&rt);
    newer.options.size = sizeof newer;
    DT_ASSERT_OK(dt_runtime_create_dry(&newer.options, 2, NULL, &rt));
    dt_runtime_release_dry(&rt);
    newer.later = 1;
    DT_ASSERT_STATUS(dt_runtime_create_dry(&newer.options, 2, NULL, &rt), DT_ERR_ARG,
                     "compiled against a newer version");
    o = of_ranks(3);
    o.isa = "an_instruction_set_of_far_too_many_letters";
    DT_ASSERT_STATUS(dt_runtime_create_dry(&o, 2, NULL, &rt), DT_ERR_ARG, "no name of an instr");
}

/* A plan that fails leaves the file of the run beside it alone. */
DT_TEST(dry, a_failure_writes_no_flight_file)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    dt_run_options o = of_ranks(2);
    dt_runtime *rt;
    dt_mesh *mesh;
    dti_comm *c;

    (void)snprintf(path, sizeof path, "%s/flight", dt_test_temp_dir(folder));
    o.flight = path;
    DT_ASSERT_OK(dt_runtime_create_dry(&o, 1, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=2", &mesh));
    DT_ASSERT_OK(dti_mesh_comm(mesh, 1, &c));
    (void)dt_fail_at(DT_ERR_IO, __func__, __FILE__, __LINE__, "dry");
    dti_runtime_abort(rt);
    DT_ASSERT_STATUS(dti_barrier(c), DT_ERR_COMM, "rank 1 failed");
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    (void)strcat(path, ".1");
    DT_ASSERT(access(path, F_OK) != 0);
}

/* --- slots ------------------------------------------------------------------------------------ */

static dt_status make_one(dt_runtime *rt, void **out)
{
    *out = rt; /* something of that runtime */
    return DT_OK;
}

static const dti_slot users_slot = { make_one, NULL, true }, own_slot = { make_one, NULL, false };

static dt_status share_registries(dt_runtime *rt, void *arg)
{
    const dt_run_options o = DT_RUN_OPTIONS_INIT;
    dt_runtime *dry = NULL;
    void *registry, *own;

    (void)arg;
    DT_TRY(dt_runtime_create_dry(&o, 0, rt, &dry));
    DT_TRY(dti_runtime_slot(dry, &users_slot, &registry));
    DT_TRY(dti_runtime_slot(dry, &own_slot, &own));
    DT_EXPECT(registry == rt, "what users registered is not shared");
    DT_EXPECT(own == dry, "a dry runtime keeps its things elsewhere");
    dt_runtime_release_dry(&dry);
    return DT_OK;
}

DT_TEST(dry, registries_are_those_of_the_run)
{
    DT_ASSERT_OK(dt_run(NULL, share_registries, NULL));
}
