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
    const dt_engine_options *more; /* [n_more] the same once more, with other options each time */
    int64_t n_more;
    bool spoiled;                  /* together one of them is asked for with another seed */
    struct dt_engine_tally *tally; /* what was compared is added; or NULL */
} dt_engine_run;

/* What runs came to. */
typedef struct dt_engine_tally {
    int64_t requests, greedy, sampled; /* made alone */
    int64_t compared, cancelled;       /* made together, as often as they were */
    int64_t tokens;                    /* compared */
    int64_t passes, rows, preempted, found;
} dt_engine_tally;

/* It on the ranks of a mesh. Every block is free at the end, and the log replays. */
void dt_engine_run_check(const dt_engine_run *run, const char *mesh);

/* The same; what is not so is a status. */
dt_status dt_engine_run_try(const dt_engine_run *run, const char *mesh) DT_MUST_USE;

#endif
