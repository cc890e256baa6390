/* SPDX-License-Identifier: Apache-2.0
 *
 * Hundreds of requests of every kind, in models of several architectures, in pools and passes of
 * several sizes, on meshes: tokens, ends and scores are those made alone, bit for bit. */
#include "tests/support/engine_runs.h"

/* A pool, a pass, and how they are used. */
typedef struct size_case {
    int64_t blocks, max_texts, max_rows;
    bool no_cache, reserve;
    double latency_s;
} size_case;

static const size_case sizes[] = {
    { 4, 4, 8, false, false, 0 },      { 5, 8, 200, true, false, 0 },
    { 9, 16, 64, false, false, 1e-4 }, { 15, 12, 33, false, true, 0 },
    { 40, 32, 512, false, false, 0 },  { 16, 8, 96, true, true, 1e-3 },
};

static const char *const fixtures[] = { "llama/uneven",   "qwen3_moe/uneven", "gemma3/uneven",
                                        "mistral/uneven", "phi3/uneven",      "mixtral/base",
                                        "qwen2/windows",  "gpt_neo/uneven",   "qwen3/uneven",
                                        "gemma2/uneven",  "smollm3/uneven" };

static void check(size_t i, const char *mesh, const char *weights, dt_dtype dtype)
{
    const size_case *c = &sizes[i % DT_COUNT(sizes)];
    dt_engine_run run = { .fixture = fixtures[i % DT_COUNT(fixtures)],
                          .weights = weights,
                          .dtype = dtype,
                          .n_requests = 30,
                          .longest = 300,
                          .most_new = 100,
                          .seed = 100 + i,
                          .options = DT_ENGINE_OPTIONS_INIT };

    run.options.pool_tokens = c->blocks * 128;
    run.options.max_texts = c->max_texts;
    run.options.max_rows = c->max_rows;
    run.options.no_prefix_cache = c->no_cache;
    run.options.reserve = c->reserve;
    run.options.latency_s = c->latency_s;
    dt_engine_run_check(&run, mesh);
}

DT_TEST(engine_long, texts_of_every_model_are_those_made_alone)
{
    for (size_t i = 0; i < DT_COUNT(fixtures); i++) check(i, "tp=1", NULL, DT_BF16);
    for (size_t i = 0; i < DT_COUNT(fixtures); i++) check(i + 1, "tp=1", NULL, DT_F32);
}

DT_TEST(engine_long, on_two_and_three_ranks)
{
    for (size_t i = 0; i < DT_COUNT(fixtures); i++)
        check(i + 2, i % 2 == 0 ? "tp=2" : "tp=3", NULL, i % 3 == 0 ? DT_F16 : DT_BF16);
}

DT_TEST(engine_long, on_replicas_and_stages)
{
    static const char *const meshes[] = { "dp=2", "dp=2,tp=2", "pp=2", "dp=3", "pp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) check(i * 2, meshes[i], NULL, DT_BF16);
}

DT_TEST(engine_long, with_packed_weights)
{
    check(0, "tp=1", "int8", DT_BF16);
    check(11, "tp=2", "int4", DT_BF16);
}
