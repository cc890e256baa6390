/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines by name and from files. */
#include <string.h>

#include "planner/machine.h"
#include "tests/support/dt_test.h"

enum { TEXT_BYTES = 1 << 13 };

static dt_status parse(const char *text, dt_machine *out)
{
    return dt_machine_parse("own.json", text, strlen(text), out);
}

DT_TEST(machine, known_ones_are_the_same_when_they_are_written_and_read)
{
    const dt_machine *m;
    int n = 0;

    for (; (m = dt_machine_at(n)) != NULL; n++) {
        char text[TEXT_BYTES], again[TEXT_BYTES];
        dt_machine read, named;
        DT_ASSERT((size_t)dt_machine_print(m, text, sizeof text) < sizeof text);
        DT_ASSERT_OK(parse(text, &read));
        DT_ASSERT_EQ_INT(memcmp(m, &read, sizeof read), 0);
        (void)dt_machine_print(&read, again, sizeof again);
        DT_ASSERT_EQ_STR(again, text);
        DT_ASSERT_OK(dt_machine_read(m->name, &named));
        DT_ASSERT_EQ_INT(memcmp(m, &named, sizeof named), 0);
        for (int i = 0; i < DT_FIGURE_CALL_SECONDS; i++) /* the rest is measured alone */
            DT_ASSERT(m->figure[i].value > 0 && m->figure[i].source[0] != '\0');
    }
    DT_ASSERT_EQ_INT(n, 4);
}

DT_TEST(machine, a_name_may_say_nodes_and_devices)
{
    dt_machine m;

    DT_ASSERT_OK(dt_machine_read("h100:2048x8", &m));
    DT_ASSERT_EQ_INT(m.nodes, 2048);
    DT_ASSERT_EQ_INT(m.devices_per_node, 8);
    DT_ASSERT_EQ_STR(m.name, "h100:2048x8");
    DT_ASSERT_OK(dt_machine_read("ethernet:1x1", &m));
    DT_ASSERT_EQ_INT(m.nodes * m.devices_per_node, 1);
}

#define NEEDED \
    "\"device_bytes\":1e9,\"memory_bandwidth\":1e10,\"flops_f32\":1e11,\"efficiency\":0.5"

DT_TEST(machine, figures_may_be_numbers_alone)
{
    dt_machine m;

    DT_ASSERT_OK(parse("{\"devices_per_node\":1,\"gpus\":false," NEEDED "}", &m));
    DT_ASSERT(!m.gpus && m.nodes == 1 && m.figure[DT_FIGURE_DEVICE_BYTES].value == 1e9);
    DT_ASSERT_EQ_STR(m.figure[DT_FIGURE_DEVICE_BYTES].source, "own.json");
    DT_ASSERT_EQ_STR(m.name, "own.json");
}

#define TWO \
    "\"devices_per_node\":4,\"inside_latency\":1e-6,\"inside_bandwidth\":1e9,\"cores\":2," NEEDED

DT_TEST(machine, what_was_measured_is_read_and_counts)
{
    char text[TEXT_BYTES];
    double latency, bandwidth;
    dt_machine m, again;

    DT_ASSERT_OK(parse(
        "{" TWO ",\"processor\":\"a chip\",\"version\":\"1\",\"date\":\"2026-11-23\","
        "\"threads\":1,\"call_seconds\":1e-6,\"overlap_cost\":0.25,\"kernels\":["
        "{\"kernel\":\"linear\",\"dtype\":\"f32\",\"flops\":1e9,\"bytes\":1e6,\"seconds\":2e-2},"
        "{\"kernel\":\"add\",\"dtype\":\"f32\",\"flops\":1e6,\"bytes\":1e7,\"seconds\":4e-3}],"
        "\"links\":[{\"collective\":\"all_reduce\",\"ranks\":4,\"latency\":1e-4,"
        "\"bandwidth\":2e8},{\"collective\":\"send\",\"ranks\":2,\"between\":true,"
        "\"latency\":1e-3,\"bandwidth\":1e7}]}",
        &m));
    DT_ASSERT_EQ_INT(m.n_rates, 2);
    DT_ASSERT_EQ_INT(m.n_links, 2);
    (void)dt_machine_print(&m, text, sizeof text);
    DT_ASSERT_OK(parse(text, &again));
    DT_ASSERT_EQ_INT(memcmp(&m, &again, sizeof m), 0);

    /* what was measured, once with the call; half of it; another kernel like the one that is most
     * alike; never faster than the peak */
    DT_ASSERT_CLOSE(dti_kernel_seconds(&m, "linear", DT_F32, &(dt_op_work){ 1e9, 1e6 }),
                    2e-2 + 1e-6, 1e-9);
    DT_ASSERT_CLOSE(dti_kernel_seconds(&m, "linear", DT_F32, &(dt_op_work){ 5e8, 5e5 }),
                    1e-2 + 1e-6, 1e-9);
    DT_ASSERT_CLOSE(dti_kernel_seconds(&m, "mul", DT_F32, &(dt_op_work){ 1e6, 1e7 }), 4e-3, 1e-4);
    DT_ASSERT_CLOSE(dti_kernel_seconds(&m, "add", DT_F32, &(dt_op_work){ 0, 0 }), 1e-6, 1e-12);
    DT_ASSERT_CLOSE(dti_machine_crowd(&m), 2, 0);

    dti_link_seconds(&m, DT_COMM_ALL_REDUCE, 2, false, &latency, &bandwidth);
    DT_ASSERT(latency == 1e-4 && bandwidth == 2e8);
    dti_link_seconds(&m, DT_COMM_ALL_GATHER, 4, false, &latency, &bandwidth);
    DT_ASSERT(latency == 2e-6 && bandwidth == 1e9);
    dti_link_seconds(&m, DT_N_COMM_KINDS, 4, false, &latency, &bandwidth);
    DT_ASSERT(latency == 0 && bandwidth == 2e8);
}

DT_TEST(machine, bad_files_are_refused_by_file_and_key)
{
    static const struct {
        const char *text, *said;
    } cases[] = {
        { "[]", "own.json" },
        { "{\"devices_per_node\":1", "own.json: line 1" },
        { "{" NEEDED "}", "own.json: devices_per_node is missing, must be" },
        { "{\"devices_per_node\":0," NEEDED "}", "devices_per_node is 0, must be" },
        { "{\"devices_per_node\":1,\"nodes\":1e3," NEEDED "}", "nodes is 1000.0, must be" },
        { "{\"devices_per_node\":1,\"device_bytes\":1}", "memory_bandwidth is missing, must be" },
        { "{\"devices_per_node\":2," NEEDED "}", "inside_latency is missing, must be" },
        { "{\"devices_per_node\":2,\"inside_latency\":1e-6," NEEDED "}",
          "inside_bandwidth is missing, must be" },
        { "{\"devices_per_node\":1,\"nodes\":2," NEEDED "}", "between_latency is missing" },
        { "{\"devices_per_node\":1,\"speed\":1," NEEDED "}", "speed is 1, must be left out" },
        { "{\"devices_per_node\":1,\"flops_bf16\":-1," NEEDED "}", "flops_bf16 is -1" },
        { "{\"devices_per_node\":1,\"flops_bf16\":{\"source\":\"x\"}," NEEDED "}",
          "flops_bf16.value is missing" },
        { "{\"devices_per_node\":1,\"flops_bf16\":{\"value\":1,\"from\":2}," NEEDED "}",
          "flops_bf16.from is 2, must be left out" },
        { "{\"devices_per_node\":1,\"flops_bf16\":{\"value\":1,\"source\":2}," NEEDED "}",
          "flops_bf16.source is 2" },
        { "{\"devices_per_node\":1024,\"nodes\":65536,\"inside_latency\":0,\"inside_bandwidth\":1,"
          "\"between_latency\":0,\"between_bandwidth\":1," NEEDED "}",
          "a plan is made for at most 1048576" },
        { "{\"devices_per_node\":1,\"gpus\":1," NEEDED "}", "gpus is 1, must be" },
        { "{" TWO ",\"kernels\":{}}", "kernels is " },
        { "{" TWO ",\"kernels\":[1]}", "kernels[0] is 1" },
        { "{" TWO ",\"kernels\":[{\"kernel\":\"\"}]}", "kernels[0].kernel is " },
        { "{" TWO ",\"kernels\":[{\"kernel\":\"add\",\"dtype\":\"f33\"}]}", "must be one of f32" },
        { "{" TWO ",\"kernels\":[{\"kernel\":\"add\",\"dtype\":\"f32\",\"flops\":1,\"bytes\":1,"
          "\"seconds\":0}]}",
          "kernels[0].seconds is 0" },
        { "{" TWO ",\"kernels\":[{\"kernel\":\"add\",\"dtype\":\"f32\",\"flops\":1,\"bytes\":1,"
          "\"seconds\":1,\"threads\":1}]}",
          "kernels[0].threads is 1, must be left out" },
        { "{\"devices_per_node\":1,\"flops_bf16\":1e-300," NEEDED "}",
          "flops_bf16 is 1e-300, must be 0 (not known) or a number from 1 to" },
        { "{\"devices_per_node\":1,\"host_bandwidth\":{\"value\":0.5}," NEEDED "}",
          "host_bandwidth.value is 0.5, must be 0 (not known) or" },
        { "{" TWO ",\"kernels\":[{\"kernel\":\"add\",\"dtype\":\"f32\",\"flops\":1,\"bytes\":0.5,"
          "\"seconds\":1}]}",
          "kernels[0].bytes is 0.5, must be 0, or a number from 1 to" },
        { "{" TWO ",\"links\":[{\"collective\":\"gossip\"}]}",
          "must be one of all_gather, all_reduce" },
        { "{" TWO ",\"links\":[{\"collective\":\"send\",\"ranks\":1}]}", "links[0].ranks is 1" },
        { "{" TWO ",\"cores\":-1}", "cores" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_machine m;
        DT_ASSERT_STATUS(parse(cases[i].text, &m), DT_ERR_FORMAT, cases[i].said);
        DT_ASSERT_EQ_INT(m.nodes, 0);
    }
}

DT_TEST(machine, bad_names_are_refused)
{
    static const char *const names[] = {
        "h200",     "",        "h100:",     "h100:8",    "h100:0x8",
        "h100:8x0", "h100:8x", "h100:8x8 ", "h100:-1x8", "h100:65536x1024"
    };
    dt_machine m;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        DT_ASSERT_EQ_INT(dt_machine_read(names[i], &m), DT_ERR_ARG);
    DT_ASSERT_STATUS(dt_machine_read("h200", &m), DT_ERR_ARG, "a100, h100, pcie, ethernet");
    DT_ASSERT_EQ_INT(dt_machine_read("./none.json", &m), DT_ERR_IO);
    DT_ASSERT_EQ_INT(dt_machine_read(NULL, &m), DT_ERR_ARG);
}
