/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor topo: this machine, and one that is not there. */
#include <jansson.h>

#include "tests/cli/command.h"

DT_TEST(topo, draws_an_imagined_machine)
{
    command_result r = COMMAND_ENDS(0, COMMAND("topo", "--machine", "pack:2 [numa] core:4 pu:2",
                                               "--mesh", "dp=2,tp=3", "--threads", "1"));

    DT_ASSERT(strncmp(r.out, "2 packages, 2 NUMA nodes, 8 cores of several hyperthreads\n", 57) ==
              0);
    COMMAND_ASSERT_HAS(r.out, "core 2   cpu 4-5     rank 2 dp=0,tp=2\n");
    COMMAND_ASSERT_HAS(r.out, "core 3   cpu 6-7\n");
    COMMAND_ASSERT_HAS(r.out, "core 4   cpu 8-9     rank 3 dp=1,tp=0\n");
    COMMAND_ASSERT_HAS(r.out, "mesh dp=2,tp=3: 6 ranks of 1 thread, side by side (compact)\n");
    COMMAND_ENDS(0, COMMAND("topo", "--machine", "core:2 pu:1", "--mesh", "tp=3"),
                 "3 ranks of 1 thread on 2 cores: more threads than cores");
}

/* Dims may be named in any order: the ranks of tp share a NUMA node. */
DT_TEST(topo, ranks_that_say_most_are_near_each_other)
{
    static const char *const cases[][2] = {
        { "tp=2,pp=2,dp=2", "mesh pp=2,dp=2,tp=2: 8 ranks" },
        { "dp=2,pp=2,tp=2", "core 1   cpu 1       rank 1 pp=0,dp=0,tp=1\n" },
        { "tp=1,dp_shard=2,ep=2,dp_replicate=2", "mesh dp_replicate=2,dp_shard=2,ep=2,tp=1: " },
        { "tp=2,rows=3,dp=1", "mesh tp=2,rows=3,dp=1: " }, /* whoever names dims orders them */
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        COMMAND_ENDS(0,
                     COMMAND("topo", "--machine", "pack:2 [numa] core:4 pu:1", "--mesh",
                             cases[i][0], "--threads", "1"),
                     cases[i][1]);
    COMMAND_ENDS(2, COMMAND("topo", "--mesh", "tp=2,pp"), "--mesh: mesh \"tp=2,pp\"");
}

/* Without --mesh it is the one that a run under the same launcher has. */
DT_TEST(topo, processes_that_were_started_are_its_ranks)
{
    command_result r;

    DT_ASSERT(setenv("OMPI_COMM_WORLD_RANK", "0", 1) == 0);
    r = COMMAND_ENV("OMPI_COMM_WORLD_SIZE=3", "topo", "--machine", "core:4 pu:1", "--threads", "1");
    DT_ASSERT(unsetenv("OMPI_COMM_WORLD_RANK") == 0);
    COMMAND_ENDS(0, r, "mesh tp=3: 3 ranks of 1 thread");
    COMMAND_ENDS(0, COMMAND("topo", "--machine", "core:4 pu:1", "--threads", "1"),
                 "mesh tp=1: 1 rank of 1 thread");
}

DT_TEST(topo, json_has_a_row_per_core)
{
    command_result r = COMMAND("topo", "--machine", "pack:2 [numa] core:2 pu:1", "--mesh", "tp=2",
                               "--threads", "1", "--bind", "spread", "--json");
    json_t *v, *cores;

    COMMAND_ENDS(0, r);
    v = json_loads(r.out, 0, NULL);
    cores = json_object_get(v, "cores");
    DT_ASSERT_EQ_INT(json_array_size(cores), 4);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(json_array_get(cores, 2), "rank")), 1);
    DT_ASSERT(json_is_null(json_object_get(json_array_get(cores, 1), "rank")));
    DT_ASSERT(json_is_true(json_object_get(v, "bound")));
    json_decref(v);
}

DT_TEST(topo, gpus_of_a_recorded_machine_are_shown)
{
    char path[DT_TEST_PATH_BYTES];
    command_result r;
    json_t *v, *gpus;

    (void)dt_test_source_path(path, "tests/mesh/machines/eight_gpus.xml");
    COMMAND_ENDS(0, COMMAND("topo", "--machine", path), "16 cores, 8 GPUs\n",
                 "    GPU 2 at 0000:38:00.0: GH100 [H100 SXM5 80GB], cuda2 nvml2\n");
    r = COMMAND_ENDS(0, COMMAND("topo", "--machine", path, "--json"));
    v = json_loads(r.out, 0, NULL);
    gpus = json_object_get(v, "gpus");
    DT_ASSERT_EQ_INT(json_array_size(gpus), 8);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(json_array_get(gpus, 6), "numa_node")), 3);
    json_decref(v);
}

DT_TEST(topo, refuses_what_it_does_not_understand)
{
    COMMAND_ENDS(2, COMMAND("topo", "--machine", "no/such/machine.xml"),
                 "--machine: no/such/machine.xml: No such file or directory");
    COMMAND_ENDS(2, COMMAND("topo", "--machine", "nonsense"),
                 "--machine: hwloc does not understand the machine \"nonsense\"");
    COMMAND_ENDS(2, COMMAND("topo", "--bind", "tight"),
                 "--bind: \"tight\" is unknown; choose compact, spread or none");
    COMMAND_ENDS(2, COMMAND("topo", "--bind", "spread", "--no-bind"),
                 "--bind spread contradicts --no-bind");
}

DT_TEST(topo, knows_this_machine)
{
    COMMAND_ENDS(0, COMMAND("topo"), "core 0", "mesh tp=1: 1 rank of ");
}

/* hwloc takes minutes to make ten thousand cores in a row, and somebody else has not typed them. */
DT_TEST(cli_topo, a_machine_too_large_to_draw_is_refused)
{
    static const struct {
        const char *machine, *says;
    } large[] = {
        { "core:100000 pu:1",
          "\"core:100000 pu:1\" has more than 1024 of a kind side by side, which" },
        { "core:0x2000 pu:1", "put them into packages: \"pack:64 core:64 pu:1\"\n" },
        { "pack:200 [numa(memory=1GB)] core:100(x=1) pu:2",
          "has 20000 cpus or more, at most 8192" },
        { "9223372036854775807 9223372036854775807", "has more than 1024 of a kind" },
        { "core:99999999999999999999", "has more than 1024 of a kind" },
        { "pu:2(indexes=4294967295,1)", "has an index of more than 16383, the largest that" },
        { "pu:2(indexes=1,16384)", "\"pu:2(indexes=1,16384)\" has an index of more than 16383" },
        { "[numa(memory=1GB indexes=99999999999999999999)] pu:2", "has an index of more than" },
    };

    for (size_t i = 0; i < DT_COUNT(large); i++) {
        COMMAND_ENDS(2, COMMAND("topo", "--machine", large[i].machine),
                     "dtensor: --machine: ", large[i].says);
    }
}

/* What the refusals call possible. */
DT_TEST(cli_topo, a_machine_at_the_limits_is_drawn)
{
    COMMAND_ENDS(0, COMMAND("topo", "--machine", "pack:64 core:64 pu:1"), "4096 cores");
    COMMAND_ENDS(0, COMMAND("topo", "--machine", "pu:2(indexes=16383,1)"), "cpu 16383");
}

/* Each core was compared with every rank, and each rank with every core behind it. */
DT_TEST(cli_topo, thousands_of_cores_are_drawn_with_their_ranks)
{
    COMMAND_ENDS(0,
                 COMMAND("topo", "--machine", "pack:40 [numa] core:100 pu:2", "--mesh",
                         "dp=1000,tp=4", "--threads", "1"),
                 "40 packages, 40 NUMA nodes, 4000 cores",
                 "core 0   cpu 0-1     rank 0 dp=0,tp=0\n",
                 "core 3999 cpu 7998-7999 rank 3999 dp=999,tp=3\n");
    COMMAND_ENDS(0,
                 COMMAND("topo", "--machine", "pack:2 [numa] core:4 pu:1", "--mesh", "tp=3",
                         "--threads", "2", "--bind", "spread"),
                 "core 1   cpu 1       rank 0 tp=0 thread 1\n",
                 "core 5   cpu 5       rank 2 tp=2 thread 1\n");
}
