/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring this machine: everything that plans ask for is there, says where it is from, and is the
 * same when it is written and read again. What the numbers are is no matter here but for links that
 * are simulated. */
#include <dtensor/calibrate.h>

#include "tests/planner/ways.h"

enum { TEXT_BYTES = 1 << 17 };

static dt_machine m, again;

static bool has(const char *kernel, dt_dtype dtype)
{
    for (int i = 0; i < m.n_rates; i++)
        if (strcmp(m.rate[i].kernel, kernel) == 0 && m.rate[i].dtype == dtype) return true;
    return false;
}

static void is_whole(int ranks)
{
    static const char *const kernels[] = { "linear", "linear_backward_x", "linear_backward_w",
                                           "adamw" };
    static const dt_figure_kind needed[] = { DT_FIGURE_DEVICE_BYTES, DT_FIGURE_MEMORY_BANDWIDTH,
                                             DT_FIGURE_FLOPS_F32, DT_FIGURE_FLOPS_BF16,
                                             DT_FIGURE_EFFICIENCY };
    static char text[TEXT_BYTES];
    const int n = dt_machine_print(&m, text, sizeof text);

    DT_ASSERT(n < TEXT_BYTES);
    DT_ASSERT_OK(dt_machine_parse("m.json", text, (size_t)n, &again));
    DT_ASSERT_EQ_INT(memcmp(&m, &again, sizeof m), 0);
    DT_ASSERT(m.cores >= 1 && m.threads >= 1 && strlen(m.date) == 10);
    DT_ASSERT_EQ_STR(m.version, dt_version());
    DT_ASSERT_EQ_INT(m.nodes * m.devices_per_node, ranks);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        DT_ASSERT(has(kernels[i], DT_F32) && has(kernels[i], DT_BF16));
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        DT_ASSERT(m.figure[needed[i]].value > 0);
    for (int i = 0; i < DT_N_FIGURES; i++)
        DT_ASSERT(m.figure[i].value == 0 || strstr(m.figure[i].source, ": ") != NULL);
}

/* The first size is measured in however little time. */
DT_TEST(calibrate, a_machine_is_measured_and_written)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    o.ranks = 2;
    o.seconds = 0.05;
    o.links = "300,0.1";
    DT_ASSERT_OK(dt_machine_calibrate(&o, &m));
    is_whole(2);
    DT_ASSERT_EQ_INT(m.n_links, 5);
    for (int i = 0; i < m.n_links; i++) {
        DT_ASSERT_EQ_INT(m.link[i].ranks, 2);
        DT_ASSERT(m.link[i].latency >= 2.9e-4 && m.link[i].bandwidth > 0);
    }
    DT_ASSERT(m.figure[DT_FIGURE_INSIDE_LATENCY].value > 0);
}

DT_TEST(calibrate, nodes_have_links_of_their_own)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;
    double near, far, bandwidth;

    o.nodes = 2;
    o.ranks = 2;
    o.seconds = 0.05;
    o.links = "dp=5000,0.1";
    DT_ASSERT_OK(dt_machine_calibrate(&o, &m));
    is_whole(4);
    DT_ASSERT_EQ_INT(m.n_links, 10);
    DT_ASSERT_OK(dt_machine_here(1, &again));
    DT_ASSERT_CLOSE(4 * m.figure[DT_FIGURE_DEVICE_BYTES].value,
                    again.figure[DT_FIGURE_DEVICE_BYTES].value, 1);
    dti_link_seconds(&m, DT_COMM_ALL_GATHER, 2, false, &near, &bandwidth);
    dti_link_seconds(&m, DT_COMM_ALL_GATHER, 2, true, &far, &bandwidth);
    DT_ASSERT(far >= 4e-3 && near < far);
}

DT_TEST(calibrate, one_rank_has_no_links)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    o.ranks = 1;
    o.seconds = 0.05;
    DT_ASSERT_OK(dt_machine_calibrate(&o, &m));
    is_whole(1);
    DT_ASSERT_EQ_INT(m.n_links, 0);
}

DT_TEST(calibrate, bad_options_are_refused)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    o.ranks = -1;
    DT_ASSERT_STATUS(dt_machine_calibrate(&o, &m), DT_ERR_ARG, "1 nodes of -1 ranks");
    DT_ASSERT_EQ_INT(dt_machine_calibrate(&o, NULL), DT_ERR_ARG);
    DT_ASSERT_EQ_INT(dt_machine_here(-1, &m), DT_ERR_ARG);
    o.ranks = 2;
    o.seconds = 0.01;
    o.links = "slow";
    DT_ASSERT_STATUS(dt_machine_calibrate(&o, &m), DT_ERR_ARG, "links \"slow\"");
    DT_ASSERT_EQ_INT(m.nodes, 0);
}

DT_TEST(calibrate, the_best_ways_are_run_and_the_fastest_leads)
{
    static const test_model small = { "small", 32, 64, 4, 2, 4, 64, 64, "float32" };
    dt_machine two = test_machine(1, 2, 1e9, 1e9, 1e9);
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    const dt_verdict *v[3];
    dt_search *s;

    test_model_write(&small, folder);
    o.batch = 4;
    o.sequence = 16;
    o.top = 3;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &two, &o, &s));
    DT_ASSERT_OK(dt_search_measure(s, NULL, 2, 2));
    for (int i = 0; i < 3; i++) v[i] = dt_search_at(s, i);
    DT_ASSERT(v[0]->cost.measured > 0 && v[0]->cost.measured <= v[1]->cost.measured);
    DT_ASSERT(v[2]->cost.measured == 0 && v[2]->kind == DT_VERDICT_RANKED);
    DT_ASSERT_EQ_INT(dt_search_measure(s, NULL, 0, 2), DT_ERR_ARG);
    DT_ASSERT_EQ_INT(dt_search_measure(NULL, NULL, 1, 2), DT_ERR_ARG);
    dt_search_release(&s);

    two.gpus = true;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, &two, &o, &s));
    DT_ASSERT_STATUS(dt_search_measure(s, NULL, 1, 1), DT_ERR_ARG, "whose devices are GPUs");
    dt_search_release(&s);
}
