/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated links: no wait ends before its bytes would have come, by the counts of the call. */
#include <stdlib.h>

#include "base/sync.h"
#include "mesh/comm/slow_link.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

enum { MS = 1000 * 1000 };

DT_TEST(slow_link, counts_what_a_rank_receives)
{
    const int64_t counts[] = { 1, 10, 100 };
    const dti_box boxes[] = { { 1, 0, { 4 }, { 1 } },
                              { 1, 0, { 7 }, { 1 } },
                              { 1, 0, { 9 }, { 1 } } };
    const dti_comm c = { .rank = 1, .size = 3 };
    const struct {
        dti_comm_op op;
        int root;
        int64_t elements;
    } rows[] = {
        { DTI_COMM_BARRIER, 0, 0 },
        { DTI_COMM_BROADCAST, 0, 1 },
        { DTI_COMM_BROADCAST, 1, 0 },
        { DTI_COMM_ALL_GATHER, 0, 101 },
        { DTI_COMM_REDUCE_SCATTER, 0, 20 },
        { DTI_COMM_ALL_TO_ALL, 0, 101 },
        { DTI_COMM_EXCHANGE, 0, 13 },
        { DTI_COMM_SEND, 0, 0 },
        { DTI_COMM_RECV, 0, 1 },
    };
    dti_comm_call call = { .dtype = DT_F64, .counts = counts, .recv_boxes = boxes };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        call.op = rows[i].op;
        call.root = rows[i].root;
        DT_ASSERT_EQ_INT(dti_call_received(&c, &call), 8 * rows[i].elements);
    }
    call.op = DTI_COMM_ALL_REDUCE;
    call.counts = &counts[2];
    DT_ASSERT_EQ_INT(dti_call_received(&c, &call), 8 * 133); /* 2 * 2 / 3 of 100, rounded down */
}

DT_TEST(slow_link, texts_name_links_by_mesh_dim)
{
    static const char *const bad[] = { "50",
                                       "50,",
                                       "50,0",
                                       "-1,1",
                                       "50,1,2",
                                       "dp=",
                                       "=50,1",
                                       "50,1 ",
                                       "nan,1",
                                       "1,inf",
                                       "dp=50",
                                       "1e30,1",
                                       "1,1e-30",
                                       ";",
                                       "50,1;;1,1",
                                       "tp:50,1",
                                       "a name that is much too long=1,1",
                                       "1,1;1,1;1,1;1,1;1,1;1,1;1,1;1,1;1,1;1,1" };
    dti_slow_links l;

    for (size_t i = 0; i < DT_COUNT(bad); i++)
        DT_ASSERT_STATUS(dti_slow_links_parse(bad[i], &l), DT_ERR_ARG, "microseconds and GB/s");
    DT_ASSERT_OK(dti_slow_links_parse("", &l));
    DT_ASSERT(dti_slow_link_of(&l, "dp") == NULL && dti_slow_link_of(NULL, "dp") == NULL);
    DT_ASSERT_OK(dti_slow_links_parse("dp=200,0.5;tp=2,20", &l));
    DT_ASSERT(dti_slow_link_of(&l, "dp") == &l.of[0].link);
    DT_ASSERT(dti_slow_link_of(&l, "tp") == &l.of[1].link);
    DT_ASSERT(dti_slow_link_of(&l, "tp,dp") == &l.of[0].link);
    DT_ASSERT(dti_slow_link_of(&l, "d") == NULL && dti_slow_link_of(&l, "world") == NULL);
    DT_ASSERT_EQ_INT((int64_t)l.of[0].link.latency_ns, 200000);
    DT_ASSERT_EQ_INT((int64_t)(l.of[1].link.bytes_per_ns * 8), 160);
    DT_ASSERT_OK(dti_slow_links_parse("dp=1,100;50,1", &l));
    DT_ASSERT(dti_slow_link_of(&l, "world") == &l.of[1].link);
    DT_ASSERT(dti_slow_link_of(&l, "dp,tp") == &l.of[1].link);
}

/* Two at once take as long as one: the time counts from the start. */
static dt_status takes_its_time(dt_mesh *mesh, const void *arg)
{
    float x[2][1000] = { { 0 } };
    const int64_t n = 1000, begin = dti_now_ns();
    dti_comm_request r[2];
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (int i = 0; i < 2; i++) {
        r[i].call =
            (dti_comm_call){ .op = DTI_COMM_ALL_REDUCE, .send = x[i], .recv = x[i], .counts = &n };
        DT_TRY(dti_comm_start(c, &r[i]));
    }
    for (int i = 0; i < 2; i++) DT_TRY(dti_comm_wait(c, &r[i]));
    DT_EXPECT(dti_now_ns() - begin >= (int64_t)25 * MS, "20 ms and 4000 bytes at 0.8 per us");
    return DT_OK;
}

DT_TEST(slow_link, a_wait_lasts_as_long_as_its_bytes_take)
{
    const dt_link slow = { 20.0 * MS, 4000.0 / (5.0 * MS) }, wrong = { -1, 1 }, none = { 0, 0 };
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.simulated_link = &slow;
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", takes_its_time, NULL));
    o.simulated_link = &wrong;
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", takes_its_time, NULL), DT_ERR_ARG, "simulated_link");
    o.simulated_link = &none;
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", takes_its_time, NULL), DT_ERR_ARG, "simulated_link");
    o.simulated_link = NULL;
    o.links = "dp=1,1;tp=20000,0.0008";
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", takes_its_time, NULL));
    o.simulated_link = &slow;
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", takes_its_time, NULL), DT_ERR_ARG, "choose one");
    o.simulated_link = NULL;
    o.links = "fast";
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", takes_its_time, NULL), DT_ERR_ARG, "\"fast\"");
}

/* The environment speaks where the program does not. */
DT_TEST(slow_link, the_environment_may_say_it)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    if (dt_test_processes() > 1) dt_test_skip("the environment is the launcher's");
    DT_ASSERT_EQ_INT(setenv("DTENSOR_LINK", "20000,0.0008", 1), 0);
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", takes_its_time, NULL));
    DT_ASSERT_EQ_INT(setenv("DTENSOR_LINK", "slow", 1), 0);
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", takes_its_time, NULL), DT_ERR_ARG,
                     "DTENSOR_LINK: links \"slow\"");
    o.links = "tp=20000,0.0008";
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", takes_its_time, NULL));
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_LINK"), 0);
}
