/* SPDX-License-Identifier: Apache-2.0
 *
 * Models and machines for tests of the planner. */
#ifndef DT_TESTS_PLANNER_WAYS_H
#define DT_TESTS_PLANNER_WAYS_H

#include <stdio.h>
#include <string.h>

#include "planner/search.h"
#include "tests/support/dt_test.h"

/* A Llama, from config.json alone. */
typedef struct test_model {
    const char *name;
    int hidden, ff, heads, kv, layers, vocab, context;
    const char *dtype;
} test_model;

static inline void test_model_write(const test_model *m, char folder[DT_TEST_PATH_BYTES])
{
    char text[1024];
    const int n = snprintf(
        text, sizeof text,
        "{\"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d,"
        " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"num_hidden_layers\": %d,"
        " \"vocab_size\": %d, \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-05,"
        " \"torch_dtype\": \"%s\", \"tie_word_embeddings\": false}",
        m->hidden, m->ff, m->heads, m->kv, m->layers, m->vocab, m->context, m->dtype);

    dt_test_write_file(dt_test_temp_dir(folder), "config.json", text, (size_t)n);
}

/* One of cores, whose links are as fast as is said. */
static inline dt_machine test_machine(int nodes, int devices, double bytes, double inside,
                                      double between)
{
    dt_machine m = { .name = "test", .nodes = nodes, .devices_per_node = devices };

    m.figure[DT_FIGURE_DEVICE_BYTES].value = bytes;
    m.figure[DT_FIGURE_MEMORY_BANDWIDTH].value = 1e10;
    m.figure[DT_FIGURE_FLOPS_F32].value = m.figure[DT_FIGURE_FLOPS_BF16].value = 1e11;
    m.figure[DT_FIGURE_EFFICIENCY].value = 0.5;
    m.figure[DT_FIGURE_INSIDE_LATENCY].value = 1e-6;
    m.figure[DT_FIGURE_INSIDE_BANDWIDTH].value = inside;
    m.figure[DT_FIGURE_BETWEEN_LATENCY].value = 1e-5;
    m.figure[DT_FIGURE_BETWEEN_BANDWIDTH].value = between;
    return m;
}

/* All ways of so many sequences of 16 tokens, however many have to be counted. */
static inline dt_search *test_searched(const char *folder, const dt_machine *m, int64_t batch,
                                       int top)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_search *s = NULL;

    o.batch = batch;
    o.sequence = 16;
    o.top = top;
    o.most_counted = 100000;
    DT_ASSERT_OK(dt_search_ways(NULL, folder, m, &o, &s));
    return s;
}

#endif
