/* SPDX-License-Identifier: Apache-2.0
 *
 * Which cores a rank gets, on machines that need not exist. */
#define _GNU_SOURCE /* memmem */
#include "mesh/core_binding.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "files/input.h"
#include "mesh/topology_internal.h"
#include "tests/support/dt_test.h"

typedef struct machine {
    const char *synthetic;
    int n_cores;
    int n_ranks, want_threads; /* of 0 asked */
    const char *cores[4];      /* of the first ranks */
} machine;

static dt_status divide(dt_topology *t, int n_ranks, int threads)
{
    return dt_topology_divide(t, &(dt_division){ .n_ranks = n_ranks, .threads = threads });
}

DT_TEST(topology, cores_are_divided_side_by_side_within_numa_nodes)
{
    static const machine machines[] = {
        { "pack:1 core:4 pu:1", 4, 1, 4, { "0-3" } },
        { "pack:1 core:4 pu:1", 4, 2, 2, { "0-1", "2-3" } },
        { "pack:1 core:4 pu:1", 4, 3, 1, { "0", "1", "2" } },
        { "pack:2 [numa] core:8 pu:2", 16, 4, 4, { "0-7", "8-15", "16-23", "24-31" } },
        { "pack:2 [numa] core:3 pu:1", 6, 3, 2, { "0-1", "2-3", "4-5" } },
        { "pack:3 [numa] core:5 pu:1", 15, 7, 2, { "0-1", "2-3", "5-6", "7-8" } },
    };

    for (size_t i = 0; i < DT_COUNT(machines); i++) {
        const machine *m = &machines[i];
        dt_topology *t = NULL;
        DT_ASSERT_OK(dt_topology_load(m->synthetic, &t));
        DT_ASSERT_EQ_INT(dt_topology_n_cores(t), m->n_cores);
        DT_ASSERT(!dti_topology_can_bind(t));
        DT_ASSERT_OK(divide(t, m->n_ranks, 0));
        DT_ASSERT_EQ_INT(dt_topology_threads(t), m->want_threads);
        DT_ASSERT(dt_topology_fits(t));
        for (int r = 0; r < 4 && m->cores[r] != NULL; r++) {
            char text[DT_CORES_TEXT_BYTES];
            dti_topology_cores_text(t, r, text);
            DT_ASSERT_EQ_STR(text, m->cores[r]);
            DT_ASSERT(!dti_topology_bind(t, r, 0));
        }
        dt_topology_release(&t);
    }
}

DT_TEST(topology, more_threads_than_cores_do_not_fit)
{
    DT_HELD(topology) *t = NULL;
    char text[DT_CORES_TEXT_BYTES];

    DT_ASSERT_OK(dt_topology_load("pack:1 core:4 pu:2", &t));
    DT_ASSERT_OK(divide(t, 5, 0));
    DT_ASSERT(!dt_topology_fits(t));
    DT_ASSERT_EQ_INT(dt_topology_threads(t), 1);
    dti_topology_cores_text(t, 4, text);
    DT_ASSERT_EQ_STR(text, "");
    DT_ASSERT_OK(divide(t, 2, 3));
    DT_ASSERT(!dt_topology_fits(t));
    DT_ASSERT_OK(divide(t, 2, 1));
    DT_ASSERT(dt_topology_fits(t));
    dti_topology_cores_text(t, 1, text);
    DT_ASSERT_EQ_STR(text, "2-3"); /* compact: the next core, with both its hyperthreads */
}

DT_TEST(topology, this_machine_has_a_core)
{
    DT_HELD(topology) *t = NULL;
    dti_binding *before;

    DT_ASSERT_OK(dt_topology_load(NULL, &t));
    DT_ASSERT(dt_topology_n_cores(t) >= 1);
    DT_ASSERT_OK(divide(t, 1, 0));
    before = dti_binding_save(t);
    if (dti_topology_can_bind(t)) {
        dt_topology *narrow = NULL;
        DT_ASSERT(dti_topology_bind(t, 0, 0));
        DT_ASSERT_OK(dt_topology_load(NULL, &narrow)); /* what is bound stays within its cores */
        DT_ASSERT_EQ_INT(dt_topology_n_cores(narrow), 1);
        dt_topology_release(&narrow);
    }
    dti_binding_restore(t, before);
}

DT_TEST(topology, users_learn_how_many_cores_there_are)
{
    DT_HELD(topology) *t = NULL;

    DT_ASSERT_OK(dt_topology_load(NULL, &t));
    DT_ASSERT_EQ_INT(dt_machine_cores(), dt_topology_n_cores(t));
    DT_ASSERT(dt_machine_cores() >= 1);
}

/* --- recorded machines ------------------------------------------------------------------------ */

static dt_topology *load_recorded(const char *name)
{
    char path[DT_TEST_PATH_BYTES];
    dt_topology *t = NULL;

    DT_ASSERT_OK(
        dt_topology_load(dt_test_source_path(path, "tests/mesh/machines/%s.xml", name), &t));
    DT_ASSERT(!dti_topology_can_bind(t)); /* it is not this machine */
    return t;
}

/* Two sockets of four cores, numbered as Linux does it: the second hyperthreads come last. The
 * container may use cores 1 to 6. */
DT_TEST(topology, a_recorded_machine_keeps_what_it_was_denied)
{
    static const char *const together[] = { "1,9", "2,10", "4,12", "5,13" };
    DT_HELD(topology) *t = load_recorded("two_sockets_in_a_container");
    char text[DT_CORES_TEXT_BYTES];
    dt_core c;

    DT_ASSERT_EQ_INT(dt_topology_n_cores(t), 6);
    dt_topology_core(t, 3, &c);
    DT_ASSERT_EQ_STR(c.cpus, "4,12");
    DT_ASSERT_EQ_INT(c.package, 1);
    DT_ASSERT_EQ_INT(c.node, 1);
    DT_ASSERT_EQ_INT(c.l3_bytes, 32 << 20);
    DT_ASSERT_EQ_INT(c.l2_bytes, 1 << 20);
    DT_ASSERT_EQ_INT(c.n_cpus, 2);
    DT_ASSERT_OK(dt_topology_divide(t, &(dt_division){ 4, 1, DT_BIND_COMPACT, 2 }));
    for (int r = 0; r < 4; r++) {
        dti_topology_cores_text(t, r, text);
        DT_ASSERT_EQ_STR(text, together[r]);
    }
    DT_ASSERT_OK(dt_topology_divide(t, &(dt_division){ 2, 3, DT_BIND_COMPACT, 0 }));
    dti_topology_cores_text(t, 1, text);
    DT_ASSERT_EQ_STR(text, "4-6,12-14");
}

/* A container that may use two cores of one socket and three of the other. */
DT_TEST(topology, ranks_that_just_fit_a_node_get_it)
{
    static const char *const cores[] = { "4,12", "5,13", "6,14" };
    static const char was[] = "allowed_cpuset=\"0x00007e7e\"",
                      is[] = "allowed_cpuset=\"0x00007c7c\"";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16], *text, *at;
    DT_HELD(topology) *t = NULL;
    int64_t n;

    (void)dt_test_source_path(path, "tests/mesh/machines/two_sockets_in_a_container.xml");
    DT_ASSERT_OK(dti_input_read_file(path, 1 << 20, (void **)&text, &n));
    at = memmem(text, (size_t)n, was, sizeof was - 1);
    DT_ASSERT(at != NULL);
    memcpy(at, is, sizeof is - 1);
    dt_test_write_file(dt_test_temp_dir(folder), "machine.xml", text, (size_t)n);
    dti_free(text);
    (void)snprintf(path, sizeof path, "%s/machine.xml", folder);
    DT_ASSERT_OK(dt_topology_load(path, &t));
    DT_ASSERT_EQ_INT(dt_topology_n_cores(t), 5);
    DT_ASSERT_OK(divide(t, 3, 1));
    for (int r = 0; r < 3; r++) {
        char mine[DT_CORES_TEXT_BYTES];
        dti_topology_cores_text(t, r, mine);
        DT_ASSERT_EQ_STR(mine, cores[r]);
    }
}

DT_TEST(topology, only_machines_of_some_size_are_drawn)
{
    DT_ASSERT_OK(dti_synthetic_check("pack:8 core:1024 pu:1"));
    DT_ASSERT_STATUS(dti_synthetic_check("pack:8 core:1025 pu:1"), DT_ERR_ARG, "more than 1024");
    DT_ASSERT_STATUS(dti_synthetic_check("pack:9 core:1024 pu:1"), DT_ERR_ARG, "9216 cpus or more");
}

DT_TEST(topology, a_recorded_virtual_machine_has_its_caches)
{
    DT_HELD(topology) *t = load_recorded("virtual_machine");
    dt_core c;

    DT_ASSERT_EQ_INT(dt_topology_n_cores(t), 2);
    dt_topology_core(t, 1, &c);
    DT_ASSERT_EQ_STR(c.cpus, "1");
    DT_ASSERT_EQ_INT(c.l3_bytes, 480 << 20);
    DT_ASSERT_EQ_INT(c.l2_bytes, 2 << 20);
    DT_ASSERT_EQ_INT(c.node_bytes, 25276502016);
}

static dt_topology *load_eight_gpus(void)
{
    char path[DT_TEST_PATH_BYTES];
    dt_topology *t = NULL;

    DT_ASSERT_OK(dt_topology_load_with_gpus(
        dt_test_source_path(path, "tests/mesh/machines/eight_gpus.xml"), &t));
    return t;
}

/* The recorded machine also has a network adapter beside each pair, a disk, and the graphics of a
 * management controller, which has a display driver. */
DT_TEST(topology, gpus_are_found_and_nothing_else)
{
    DT_HELD(topology) *t = load_eight_gpus();
    dt_gpu g;

    DT_ASSERT_EQ_INT(dt_topology_n_cores(t), 16);
    DT_ASSERT_EQ_INT(dt_topology_n_gpus(t), 8);
    for (int i = 0; i < 8; i++) {
        dt_topology_gpu(t, i, &g);
        DT_ASSERT_EQ_INT(g.node, i / 2);
        DT_ASSERT_EQ_INT(g.package, i / 4);
        DT_ASSERT_EQ_STR(g.name, "GH100 [H100 SXM5 80GB]");
    }
    DT_ASSERT_EQ_STR(g.bus, "0000:79:00.0");
    DT_ASSERT_EQ_STR(g.devices, "");
    dt_topology_gpu(t, 5, &g);
    DT_ASSERT_EQ_STR(g.devices, "cuda5 nvml5");
    dt_topology_release(&t);
    t = load_recorded("eight_gpus"); /* a run does not look for them */
    DT_ASSERT_EQ_INT(dt_topology_n_gpus(t), 0);
    DT_ASSERT_EQ_INT(dt_topology_n_cores(t), 16);
}

/* As docs/cli.md says: rank n is near GPU n. */
DT_TEST(topology, eight_spread_ranks_are_near_eight_gpus)
{
    for (int threads = 1; threads <= 2; threads++) {
        dt_topology *t = load_eight_gpus();
        int seen = 0;
        DT_ASSERT_OK(dt_topology_divide(t, &(dt_division){ 8, threads, DT_BIND_SPREAD, 0 }));
        for (int i = 0; i < dt_topology_n_cores(t); i++) {
            dt_core c;
            dt_gpu g;
            dt_topology_core(t, i, &c);
            if (c.rank < 0) continue;
            dt_topology_gpu(t, c.rank, &g);
            DT_ASSERT_EQ_INT(c.node, g.node);
            DT_ASSERT_EQ_INT(c.package, g.package);
            seen++;
        }
        DT_ASSERT_EQ_INT(seen, 8 * threads);
        dt_topology_release(&t);
    }
}

DT_TEST(topology, what_is_no_recorded_machine_is_refused)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    dt_topology *t;

    DT_ASSERT_STATUS(dt_topology_load("no/such.xml", &t), DT_ERR_IO, "no/such.xml: No such file");
    dt_test_write_file(dt_test_temp_dir(folder), "half.xml", "<topology version=", 18);
    (void)snprintf(path, sizeof path, "%s/half.xml", folder);
    DT_ASSERT_STATUS(dt_topology_load(path, &t), DT_ERR_ARG, "is no machine that hwloc");
    DT_ASSERT(t == NULL);
}

/* A document type without a name of a file, a core without the set of its processors: hwloc 2.9
 * follows pointers to nothing. */
DT_TEST(topology, a_file_that_would_end_its_reader_is_refused)
{
    static const char type[] = "<!DOCTYPE topology><topology version=\"2.0\"></topology>";
    static const char lost[] = " complete_cpuset=\"0x00000100\"";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16], *text, *at;
    dt_topology *t;
    int64_t n;

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "type.xml", type, sizeof type - 1);
    (void)snprintf(path, sizeof path, "%s/type.xml", folder);
    DT_ASSERT_STATUS(dt_topology_load(path, &t), DT_ERR_ARG, "is no machine that hwloc");
    (void)dt_test_source_path(path, "tests/mesh/machines/eight_gpus.xml");
    DT_ASSERT_OK(dti_input_read_file(path, 1 << 20, (void **)&text, &n));
    at = memmem(text, (size_t)n, lost, sizeof lost - 1);
    DT_ASSERT(at != NULL);
    memset(at, ' ', sizeof lost - 1);
    dt_test_write_file(folder, "lost.xml", text, (size_t)n);
    dti_free(text);
    (void)snprintf(path, sizeof path, "%s/lost.xml", folder);
    DT_ASSERT_STATUS(dt_topology_load_with_gpus(path, &t), DT_ERR_ARG, "is no machine that hwloc");
}

/* --- policies --------------------------------------------------------------------------------- */

typedef struct placing {
    const char *synthetic;
    dt_division division;
    const char *cores[8]; /* of each rank */
} placing;

#define TWO_SOCKETS "pack:2 [numa] core:8 pu:1"
#define SMT         "pack:2 [numa] core:4 pu:2"
#define FOUR_NODES  "pack:2 die:2 [numa] l3:1 core:3 pu:1"

DT_TEST(topology, policies_place_ranks_as_documented)
{
    static const placing placings[] = {
        /* compact: side by side in one node; spread: evenly over both */
        { TWO_SOCKETS, { 2, 1, DT_BIND_COMPACT, 0 }, { "0", "1" } },
        { TWO_SOCKETS, { 2, 1, DT_BIND_SPREAD, 0 }, { "0", "8" } },
        { TWO_SOCKETS, { 4, 2, DT_BIND_COMPACT, 0 }, { "0-1", "2-3", "4-5", "6-7" } },
        { TWO_SOCKETS, { 4, 2, DT_BIND_SPREAD, 0 }, { "0-1", "4-5", "8-9", "12-13" } },
        { TWO_SOCKETS, { 3, 4, DT_BIND_COMPACT, 0 }, { "0-3", "4-7", "8-11" } },
        /* a core is one place, whatever its hyperthreads */
        { SMT, { 2, 1, DT_BIND_COMPACT, 0 }, { "0-1", "2-3" } },
        { SMT, { 2, 2, DT_BIND_SPREAD, 0 }, { "0-3", "8-11" } },
        /* "dp=2,tp=3": each tp in a node of its own, dp across them */
        { SMT, { 6, 1, DT_BIND_COMPACT, 3 }, { "0-1", "2-3", "4-5", "8-9", "10-11", "12-13" } },
        { SMT, { 6, 1, DT_BIND_COMPACT, 0 }, { "0-1", "2-3", "4-5", "6-7", "8-9", "10-11" } },
        { TWO_SOCKETS, { 4, 3, DT_BIND_COMPACT, 2 }, { "0-2", "3-5", "8-10", "11-13" } },
        /* four nodes of three cores: a pair fits into each */
        { FOUR_NODES, { 8, 1, DT_BIND_COMPACT, 2 }, { "0", "1", "3", "4", "6", "7", "9", "10" } },
        /* a group larger than any node is not kept together, and no core is wasted for it */
        { FOUR_NODES, { 8, 1, DT_BIND_COMPACT, 4 }, { "0", "1", "2", "3", "4", "5", "6", "7" } },
    };

    for (size_t i = 0; i < DT_COUNT(placings); i++) {
        const placing *p = &placings[i];
        dt_topology *t = NULL;
        DT_ASSERT_OK(dt_topology_load(p->synthetic, &t));
        DT_ASSERT_OK(dt_topology_divide(t, &p->division));
        for (int r = 0; r < p->division.n_ranks; r++) {
            char text[DT_CORES_TEXT_BYTES];
            dti_topology_cores_text(t, r, text);
            DT_ASSERT_EQ_STR(text, p->cores[r]);
        }
        dt_topology_release(&t);
    }
}

/* Whatever the machine, ranks do not share cores and stay on them. */
DT_TEST(topology, no_two_ranks_share_a_core)
{
    static const char *const machines[] = { TWO_SOCKETS, SMT, FOUR_NODES, "core:7 pu:1" };

    for (size_t i = 0; i < DT_COUNT(machines); i++)
        for (int n = 1; n <= 16; n++)
            for (int together = 0; together <= n; together++)
                for (dt_bind bind = DT_BIND_COMPACT; bind <= DT_BIND_SPREAD; bind++) {
                    const dt_division d = { n, n > 5 ? 1 : 0, bind, together };
                    int seen = 0, last = -1;
                    dt_topology *t = NULL;
                    DT_ASSERT_OK(dt_topology_load(machines[i], &t));
                    DT_ASSERT_OK(dt_topology_divide(t, &d));
                    for (int k = 0; k < dt_topology_n_cores(t); k++) {
                        dt_core c;
                        dt_topology_core(t, k, &c);
                        if (c.rank < 0) continue;
                        DT_ASSERT(c.rank >= last && c.rank <= last + 1);
                        last = c.rank;
                        seen++;
                    }
                    if (dt_topology_fits(t)) DT_ASSERT_EQ_INT(seen, n * dt_topology_threads(t));
                    dt_topology_release(&t);
                }
}

static void append_line(void *arg, const char *line)
{
    char *text = arg;

    DT_ASSERT(strlen(text) + strlen(line) + 2 < 4096);
    strcat(text, line);
    strcat(text, "\n");
}

DT_TEST(topology, is_drawn_with_its_ranks)
{
    dt_topology *t = NULL;
    char text[4096] = "";

    DT_ASSERT_OK(
        dt_topology_load("pack:2 [numa(memory=8589934592)] l3:1(size=33554432) core:2 pu:2", &t));
    DT_ASSERT_OK(dt_topology_divide(t, &(dt_division){ 3, 1, DT_BIND_COMPACT, 1 }));
    dt_topology_draw(t, "tp=3", append_line, text);
    DT_ASSERT_EQ_STR(text, "2 packages, 2 NUMA nodes, 4 cores of several hyperthreads\n"
                           "package 0\n"
                           "  NUMA node 0, 8 GiB\n"
                           "    L3 cache 0, 32 MiB\n"
                           "      core 0   cpu 0-1     rank 0 tp=0\n"
                           "      core 1   cpu 2-3     rank 1 tp=1\n"
                           "package 1\n"
                           "  NUMA node 1, 8 GiB\n"
                           "    L3 cache 1, 32 MiB\n"
                           "      core 2   cpu 4-5     rank 2 tp=2\n"
                           "      core 3   cpu 6-7\n");
    dt_topology_release(&t);
    DT_ASSERT_STATUS(dt_topology_load("nonsense", &t), DT_ERR_ARG, "the machine \"nonsense\"");
}

/* GPUs stand in the nodes they are near to; those of a node that is not drawn come last. */
DT_TEST(topology, is_drawn_with_its_gpus)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES], *at;
    char xml[32768] = "";
    DT_HELD(topology) *t = load_eight_gpus();
    char text[4096] = "";
    size_t n;
    FILE *f;

    dt_topology_draw(t, NULL, append_line, text);
    DT_ASSERT(strncmp(text, "2 packages, 4 NUMA nodes, 16 cores, 8 GPUs\n", 43) == 0);
    DT_ASSERT(strstr(text, "  NUMA node 3, 128 GiB\n"
                           "    GPU 6 at 0000:78:00.0: GH100 [H100 SXM5 80GB], cuda6 nvml6\n"
                           "    GPU 7 at 0000:79:00.0: GH100 [H100 SXM5 80GB], no driver\n"
                           "    L3 cache 3, 48 MiB\n"
                           "      core 12  cpu 12\n") != NULL);
    DT_ASSERT(strstr(text, "near none") == NULL && strstr(text, "card0") == NULL);
    dt_topology_release(&t);

    f = fopen(dt_test_source_path(path, "tests/mesh/machines/eight_gpus.xml"), "rb");
    DT_ASSERT(f != NULL);
    n = fread(xml, 1, sizeof xml - 1, f);
    DT_ASSERT(feof(f) && fclose(f) == 0);
    at = strstr(xml, "allowed_cpuset=\"0x0000ffff\"");
    DT_ASSERT(at != NULL);
    memcpy(at, "allowed_cpuset=\"0x00000fff\"", 27); /* the last node is denied */
    dt_test_write_file(dt_test_temp_dir(folder), "denied.xml", xml, n);
    (void)snprintf(path, sizeof path, "%.200s/denied.xml", folder);
    DT_ASSERT_OK(dt_topology_load_with_gpus(path, &t));
    text[0] = '\0';
    dt_topology_draw(t, NULL, append_line, text);
    DT_ASSERT(strstr(text, "NUMA node 3") == NULL);
    DT_ASSERT(strstr(text, "      core 11  cpu 11\n"
                           "near none of these nodes alone\n"
                           "    GPU 6 at 0000:78:00.0:") != NULL);
}
