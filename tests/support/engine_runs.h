/* SPDX-License-Identifier: Apache-2.0
 *
 * Random requests made by an engine, and the same made alone by dt_generate_batch(): tokens, ends
 * and scores have to be the same bits. */
#ifndef DT_TEST_ENGINE_RUNS_H
#define DT_TEST_ENGINE_RUNS_H

#include <dtensor/engine.h>

#include "tests/support/dt_test.h"

typedef struct dt_engine_run {
    const char *fixture; /* whose config.json has random weights, for contexts of 512 tokens */
    const char *weights; /* "int8", or NULL */
    dt_dtype dtype;
    int64_t n_requests;
    int64_t longest, most_new; /* prompts, and new tokens, are 1 to as many */
    uint64_t seed;             /* of the requests, and of when they come */
    dt_engine_options options;
} dt_engine_run;

/* It on the ranks of a mesh. Every block is free at the end, and the log replays. */
void dt_engine_run_check(const dt_engine_run *run, const char *mesh);

#endif
