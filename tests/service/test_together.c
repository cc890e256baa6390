/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that share passes, beside those that cannot: texts are those of the model alone. */
#include <stdio.h>

#include "tests/support/served.h"

enum { N_REQUESTS = 24 };

/* How requests are served. */
typedef struct together_case {
    const char *fixture, *mesh;
    int n_ranks, max_running;
    const dt_engine_options *engine;
} together_case;

static dt_service *start(const together_case *c)
{
    dt_service_options options = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service *s;

    run.n_ranks = c->n_ranks;
    options.run = &run;
    options.max_running = c->max_running;
    options.engine = c->engine;
    DT_ASSERT_OK(dt_service_start(&options, &s));
    return s;
}

static dt_served *load(dt_service *s, const together_case *c)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_served *m;

    how.mesh = c->mesh;
    DT_ASSERT_OK(
        dt_service_load(s, dt_test_source_path(folder, "tests/golden/%s", c->fixture), &how, &m));
    return m;
}

/* All of them are there before the first is waited for. */
static void check(const together_case *c, served_request *a, dt_service_counts *counts)
{
    dt_service *s = start(c);
    dt_served *m = load(s, c);
    dt_ticket *t[N_REQUESTS];

    for (int i = 0; i < N_REQUESTS; i++)
        DT_ASSERT_OK(dt_service_submit(m, a[i].prompts, a[i].n_prompts, &a[i].o, NULL, &t[i]));
    for (int i = 0; i < N_REQUESTS; i++) {
        const char *differs;
        dt_generated *g;
        DT_ASSERT_OK(dt_ticket_wait(t[i], &g));
        differs = served_differs(g, a[i].alone);
        if (differs != NULL)
            dt_test_fail(__FILE__, __LINE__, "%s, %s: request %d: %s", c->fixture, c->mesh, i,
                         differs);
        dt_generated_release(&g);
        dt_ticket_release(&t[i]);
    }
    DT_ASSERT_OK(dt_service_count(m, counts));
    DT_ASSERT_EQ_INT(counts->engine.used_blocks + counts->engine.running, 0);
    DT_ASSERT_EQ_INT(counts->done, N_REQUESTS);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

static void ask_all(const char *fixture, int n_ranks, served_request *a)
{
    char folder[DT_TEST_PATH_BYTES];

    for (int i = 0; i < N_REQUESTS; i++) served_ask(&a[i], i);
    served_alone(dt_test_source_path(folder, "tests/golden/%s", fixture), n_ranks, a, N_REQUESTS);
}

DT_TEST(together, requests_share_passes_and_are_as_alone)
{
    static served_request a[N_REQUESTS];
    static const char neo[] = "gpt_neo/base";
    dt_service_counts counts;

    ask_all(neo, 2, a);
    check(&(together_case){ neo, "tp=2", 2, 32, NULL }, a, &counts);
    DT_ASSERT(counts.engine.passes > 0 && counts.engine.rows > 4 * counts.engine.passes);
    DT_ASSERT(counts.engine.passes < counts.engine.new_tokens / 2);
    check(&(together_case){ neo, "tp=2", 2, 3, NULL }, a, &counts);
    DT_ASSERT(counts.engine.passes > 0);
    served_free(a, N_REQUESTS);
}

/* Texts go through stages beside beams; each replica has texts of its own. */
DT_TEST(together, in_stages_and_replicas)
{
    static served_request a[N_REQUESTS];
    dt_service_counts counts;

    ask_all("llama/uneven", 1, a);
    check(&(together_case){ "llama/uneven", "pp=2", 2, 32, NULL }, a, &counts);
    check(&(together_case){ "llama/uneven", "dp=2", 2, 32, NULL }, a, &counts);
    DT_ASSERT(counts.engine.passes > 0);
    served_free(a, N_REQUESTS);
}

/* Layers that carry state: each text has a slot, also where fewer run than ask; beams take turns.
 * Alone prompts of one request would be padded. */
DT_TEST(together, with_linear_attention)
{
    static const char next[] = "qwen3_next/base";
    static served_request a[N_REQUESTS];
    char folder[DT_TEST_PATH_BYTES];
    dt_service_counts counts;

    for (int i = 0; i < N_REQUESTS; i++) {
        served_ask(&a[i], i);
        a[i].n_prompts = 1;
        for (int j = 0; j < LONGEST; j++) a[i].ids[0][j] %= 80;
    }
    served_alone(dt_test_source_path(folder, "tests/golden/%s", next), 2, a, N_REQUESTS);
    check(&(together_case){ next, "tp=2", 2, 5, NULL }, a, &counts);
    DT_ASSERT(counts.engine.passes > 0 && counts.engine.passes < counts.engine.new_tokens);
    DT_ASSERT_EQ_INT(counts.engine.slots, 5);
    served_free(a, N_REQUESTS);
}

/* Positions that turn otherwise beyond a length, and texts of a prompt that a pass does not have:
 * they have steps of their own. */
DT_TEST(together, what_cannot_share_passes_takes_turns)
{
    static served_request a[N_REQUESTS];
    dt_engine_options two = DT_ENGINE_OPTIONS_INIT;
    dt_service_counts counts;

    ask_all("phi3/longrope", 2, a);
    check(&(together_case){ "phi3/longrope", "tp=2", 2, 32, NULL }, a, &counts);
    DT_ASSERT_EQ_INT(counts.engine.passes, 0);
    served_free(a, N_REQUESTS);
    two.max_texts = 1;
    ask_all("llama/uneven", 2, a);
    check(&(together_case){ "llama/uneven", "tp=2", 2, 32, &two }, a, &counts);
    DT_ASSERT(counts.engine.passes > 0 && counts.engine.passes < counts.steps);
    served_free(a, N_REQUESTS);
}

DT_TEST(together, a_pool_that_cannot_be_is_refused_with_the_model)
{
    dt_engine_options tiny = DT_ENGINE_OPTIONS_INIT;
    const together_case c = { "llama/uneven", "tp=1", 1, 32, &tiny };
    char folder[DT_TEST_PATH_BYTES];
    dt_service *s;
    dt_served *m;

    tiny.pool_bytes = 10;
    s = start(&c);
    DT_ASSERT_STATUS(
        dt_service_load(s, dt_test_source_path(folder, "tests/golden/%s", c.fixture), NULL, &m),
        DT_ERR_MEMORY, "no room for a block of 128 tokens");
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* Beginnings are found by who has the same salt. */
DT_TEST(together, beginnings_are_shared_by_one_salt_alone)
{
    enum { LONG_PROMPT = 200, BLOCK = 128 };
    static const uint64_t salts[] = { 7, 7, 0, 7, 0 };
    static const int64_t found[] = { 0, BLOCK, BLOCK, 2 * BLOCK, 3 * BLOCK };
    dt_request_options how = DT_REQUEST_OPTIONS_INIT;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int32_t ids[LONG_PROMPT], first = -1;
    const dt_ids prompt = { ids, LONG_PROMPT };
    dt_service *s = served_start(2, 20000, NULL);
    char folder[DT_TEST_PATH_BYTES];
    dt_service_counts counts;
    dt_served *m;

    o.max_new_tokens = 1;
    for (int i = 0; i < LONG_PROMPT; i++) ids[i] = 3 + i * 37 % 200;
    DT_ASSERT_OK(dt_service_load(s, dt_test_source_path(folder, "examples/checkpoint"), NULL, &m));
    for (size_t i = 0; i < DT_COUNT(salts); i++) {
        dt_generated *g;
        how.salt = salts[i];
        DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, &how, &g));
        if (i == 0) first = dt_generated_ids(g, 0).ids[0];
        DT_ASSERT_EQ_INT(dt_generated_ids(g, 0).ids[0], first);
        DT_ASSERT_EQ_INT(dt_generated_found(g, 0), i == 0 ? 0 : found[i] - found[i - 1]);
        dt_generated_release(&g);
        DT_ASSERT_OK(dt_service_count(m, &counts));
        DT_ASSERT_EQ_INT(counts.engine.found_tokens, found[i]);
    }
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}
