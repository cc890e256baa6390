/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts made together by an engine are those made alone: a sample here, more in
 * test_engine_long.c. */
#include "tests/support/engine_runs.h"

/* A pool that is too small for all of them, and short passes. */
#define TIGHT                                                                          \
    {                                                                                  \
        .size = sizeof(dt_engine_options), .pool_tokens = 5 * 128, .pool_share = 0.25, \
        .max_texts = 6, .max_rows = 90, .max_queued = 1024                             \
    }

DT_TEST(engine, makes_the_texts_that_are_made_alone)
{
    static const dt_engine_run runs[] = {
        { .fixture = "llama/uneven",
          .dtype = DT_BF16,
          .n_requests = 24,
          .longest = 300,
          .most_new = 40,
          .seed = 1,
          .options = TIGHT },
        { .fixture = "qwen3_moe/uneven",
          .dtype = DT_F32,
          .n_requests = 12,
          .longest = 300,
          .most_new = 30,
          .seed = 2,
          .options = TIGHT },
        { .fixture = "qwen3_next/uneven", /* layers that carry state */
          .dtype = DT_BF16,
          .n_requests = 24,
          .longest = 300,
          .most_new = 40,
          .seed = 4,
          .options = TIGHT },
    };

    for (size_t i = 0; i < DT_COUNT(runs); i++) dt_engine_run_check(&runs[i], "tp=1");
    dt_engine_run_check(&runs[0], "tp=2");
    dt_engine_run_check(&runs[2], "tp=2");
}

/* Texts of three blocks in a pool of two: those that no window reaches any more are given back. */
DT_TEST(engine, windows_give_their_blocks_back)
{
    dt_engine_run run = { .fixture = "mistral/uneven",
                          .dtype = DT_BF16,
                          .n_requests = 16,
                          .longest = 300,
                          .most_new = 40,
                          .seed = 3,
                          .options = TIGHT };

    run.options.pool_tokens = 2 * 128;
    dt_engine_run_check(&run, "tp=1");
}
