/* SPDX-License-Identifier: Apache-2.0
 *
 * Hundreds of requests of every kind, in models of several architectures, in pools and passes of
 * several sizes, on meshes: tokens, ends and scores are those made alone, bit for bit. */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
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
                                        "gemma2/uneven",  "smollm3/uneven",   "qwen3_next/uneven" };

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

/* --- five hundred requests -------------------------------------------------------------------- */

enum { REQUESTS = 500, ROUNDS = 2, MESHES = 3 };

/* Four of them have experts, six windows, one latents, one linear attention. */
static const char *const models[] = { "llama/uneven",   "qwen3_moe/uneven", "deepseek_v3/uneven",
                                      "gemma3/uneven",  "gpt_oss/uneven",   "mistral/uneven",
                                      "phi3/uneven",    "gpt_neo/uneven",   "qwen2/windows",
                                      "smollm3/uneven", "mixtral/base",     "gemma2/uneven",
                                      "qwen3/uneven",   "qwen3_next/uneven" };

static int64_t draw(uint64_t *u, int64_t n)
{
    *u = *u * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*u >> 33) % (uint64_t)n);
}

/* The longest text has four blocks, and four of a prompt may be reserved together. */
static dt_engine_options any_options(uint64_t *u, bool no_cache)
{
    static const double latencies[] = { 0, 1e-4, 1e-3, 0.25 };
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;

    o.max_texts = 4 + draw(u, 13);
    o.max_rows = dti_max(o.max_texts, 1 + draw(u, draw(u, 2) == 0 ? 40 : 500));
    o.no_prefix_cache = no_cache;
    o.reserve = draw(u, 6) == 0;
    o.pool_tokens = ((o.reserve ? 16 : 4) + draw(u, 9)) * 128;
    o.latency_s = latencies[draw(u, 4)];
    return o;
}

/* Each of them alone and, in two orders of arrival, pools and sizes of passes, among the others. */
DT_TEST(engine_long, five_hundred_requests_are_those_made_alone)
{
    static const char *const meshes[MESHES] = { "tp=1", "tp=2", "tp=3" };
    static const dt_dtype dtypes[] = { DT_BF16, DT_F32, DT_F16 };
    dt_engine_tally t = { 0 };
    uint64_t u = 20;

    for (size_t m = 0; m < MESHES; m++) {
        for (size_t i = 0; i < DT_COUNT(models); i++) {
            const size_t first = REQUESTS * i / DT_COUNT(models);
            const size_t next = REQUESTS * (i + 1) / DT_COUNT(models);
            const dt_engine_options more[ROUNDS - 1] = { any_options(&u, i % 2 == 0) };
            const dt_engine_run run = { .fixture = models[i],
                                        .dtype = dtypes[(m + i) % DT_COUNT(dtypes)],
                                        .n_requests = (int64_t)(next - first),
                                        .longest = 300,
                                        .most_new = 100,
                                        .seed = 500 + i, /* the same requests on every mesh */
                                        .options = any_options(&u, i % 2 == 1),
                                        .more = more,
                                        .n_more = ROUNDS - 1,
                                        .tally = &t };
            dt_engine_run_check(&run, meshes[m]);
        }
    }
    (void)fprintf(
        stderr,
        "%lld requests on %d meshes (%lld greedy, %lld sampled): %lld made together, %lld "
        "cancelled, %lld tokens the same; %lld passes, %lld rows, %lld preempted, %lld "
        "tokens found\n",
        (long long)(t.requests / MESHES), (int)MESHES, (long long)t.greedy, (long long)t.sampled,
        (long long)t.compared, (long long)t.cancelled, (long long)t.tokens, (long long)t.passes,
        (long long)t.rows, (long long)t.preempted, (long long)t.found);
    DT_ASSERT_EQ_INT(t.requests, REQUESTS * MESHES);
    DT_ASSERT_EQ_INT(t.compared + t.cancelled, t.requests * ROUNDS);
    DT_ASSERT(t.compared >= t.requests); /* each of them, on each mesh */
    DT_ASSERT(t.greedy > 0 && t.sampled > 0 && t.cancelled > 0);
    DT_ASSERT(t.preempted > 0 && t.found > 0 && t.passes < t.tokens);
}

/* What is compared is really different where one request of many has another seed. */
DT_TEST(engine_long, one_request_with_another_seed_is_noticed)
{
    static const char *const meshes[] = { "tp=1", "tp=3" };
    uint64_t u = 21;

    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        const dt_engine_run run = { .fixture = models[i],
                                    .dtype = DT_BF16,
                                    .n_requests = 40,
                                    .longest = 300,
                                    .most_new = 100,
                                    .seed = 500 + i,
                                    .options = any_options(&u, false),
                                    .spoiled = true };
        const dt_status st = dt_engine_run_try(&run, meshes[i]);
        DT_ASSERT(st != DT_OK && strstr(dt_last_error()->message, " alone ") != NULL);
    }
}

DT_TEST(engine_long, on_replicas_and_stages)
{
    static const char *const meshes[] = { "dp=2", "dp=2,tp=2", "pp=2", "dp=3", "pp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) check(i * 2, meshes[i], NULL, DT_BF16);
    for (size_t i = 0; i < DT_COUNT(meshes); i++) check(11, meshes[i], NULL, DT_BF16);
    check(11, "tp=4", NULL, DT_F32);
}

DT_TEST(engine_long, with_packed_weights)
{
    check(0, "tp=1", "int8", DT_BF16);
    check(12, "tp=2", "int4", DT_BF16);
}
