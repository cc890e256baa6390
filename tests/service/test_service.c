/* SPDX-License-Identifier: Apache-2.0
 *
 * A service from its start to its end: texts equal those of the model alone bit for bit, whoever
 * asks, and memory and threads are back afterwards. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/served.h"

static const char llama[] = "llama/uneven", neo[] = "gpt_neo/base";

DT_TEST(service, texts_are_those_of_the_model_alone)
{
    enum { N = 16 };
    static served_request a[N];
    char folder[DT_TEST_PATH_BYTES];

    for (int n_ranks = 1; n_ranks <= 3; n_ranks++) {
        dt_service *s = served_start(n_ranks, 20000, NULL);
        dt_served *m = served_load(s, llama);
        for (int i = 0; i < N; i++) served_ask(&a[i], i);
        served_alone(dt_test_source_path(folder, "tests/golden/%s", llama), n_ranks, a, N);
        for (int i = 0; i < N; i++) {
            dt_generated *g;
            const char *what;
            DT_ASSERT_OK(dt_service_generate(m, a[i].prompts, a[i].n_prompts, &a[i].o, NULL, &g));
            what = served_differs(g, a[i].alone);
            if (what != NULL)
                dt_test_fail(__FILE__, __LINE__, "request %d on %d ranks: %s", i, n_ranks, what);
            dt_generated_release(&g);
        }
        DT_ASSERT_OK(dt_service_unload(&m));
        DT_ASSERT_OK(dt_service_stop(&s));
        served_free(a, N);
    }
}

/* What Transformers makes of it: num_beams=5, num_return_sequences=5, no_repeat_ngram_size=4,
 * max_length=15 over these ids. */
DT_TEST(service, the_program_of_parallelformers_finds_the_same_beams)
{
    enum { BEAMS = 5, NEW = 10 };
    static const int32_t ids[] = { 5, 17, 3, 88, 42 };
    static const int32_t golden[BEAMS][NEW] = {
        { 85, 7, 25, 57, 95, 20, 95, 20, 70, 20 }, { 85, 7, 25, 57, 95, 20, 95, 7, 85, 127 },
        { 85, 7, 25, 57, 95, 20, 95, 7, 85, 48 },  { 85, 7, 25, 57, 95, 20, 95, 20, 70, 70 },
        { 85, 7, 25, 57, 95, 20, 95, 7, 85, 18 },
    };
    static const double scores[BEAMS] = { -1.498659372329712, -1.5532290935516357,
                                          -1.5745227336883545, -1.5838698148727417,
                                          -1.588945746421814 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_service *s = served_start(4, 20000, NULL);
    dt_served *m = served_load(s, neo);
    const dt_ids prompt = { ids, 5 };
    dt_rank_memory before[4], after[4];
    dt_generated *g;

    o.num_beams = o.num_return_sequences = BEAMS;
    o.no_repeat_ngram_size = 4;
    o.max_length = 15;
    DT_ASSERT_OK(dt_service_memory(s, m, before, NULL));
    DT_ASSERT_OK(dt_service_generate(m, &prompt, 1, &o, NULL, &g));
    DT_ASSERT_OK(dt_service_memory(s, m, after, NULL));
    for (int r = 0; r < 4; r++) {
        DT_ASSERT_EQ_INT(before[r].allocated_bytes, after[r].allocated_bytes);
        DT_ASSERT(after[r].peak_bytes > before[r].peak_bytes);
    }
    DT_ASSERT_EQ_INT(dt_generated_count(g), BEAMS);
    for (int i = 0; i < BEAMS; i++) {
        DT_ASSERT_EQ_INT(dt_generated_ids(g, i).n, NEW);
        DT_ASSERT(memcmp(dt_generated_ids(g, i).ids, golden[i], sizeof golden[i]) == 0);
        DT_ASSERT_CLOSE(dt_generated_score(g, i), scores[i], 1e-5);
    }
    dt_generated_release(&g);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- memory ----------------------------------------------------------------------------------- */

static void cycle(int i)
{
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *m = served_load(s, i % 2 == 0 ? neo : llama);
    dt_generated *g;
    served_request a;

    served_ask(&a, i);
    DT_ASSERT_OK(dt_service_generate(m, a.prompts, a.n_prompts, &a.o, NULL, &g));
    dt_generated_release(&g);
    if (i % 3 == 0) DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
    DT_ASSERT_OK(dt_service_unload(&m)); /* what a stop leaves of it */
}

static void expect_no_growth(int n)
{
    int64_t before, grown;
    int threads;

    for (int i = 0; i < 4; i++) cycle(i);
    before = served_heap_bytes();
    threads = served_threads();
    for (int i = 0; i < n; i++) cycle(i);
    grown = served_heap_bytes() - before;
    DT_ASSERT_EQ_INT(served_threads(), threads);
    if (grown > 65536)
        dt_test_fail(__FILE__, __LINE__, "%lld bytes more after %d cycles", (long long)grown, n);
}

DT_TEST(service, memory_and_threads_are_back_after_every_cycle)
{
    expect_no_growth(8);
}

DT_TEST(service, memory_and_threads_are_back_after_many_cycles)
{
    dt_test_long();
    expect_no_growth(50);
}

/* --- many callers ----------------------------------------------------------------------------- */

enum { N_CALLERS = 8, N_REQUESTS = 24 };

typedef struct caller {
    dt_served *models[2];
    served_request (*asked)[N_REQUESTS]; /* [2] */
    int number, n;
    char wrong[128];
} caller;

static void *call(void *arg)
{
    caller *c = arg;

    for (int k = 0; k < c->n && c->wrong[0] == '\0'; k++) {
        const int model = (c->number + k) % 2, i = (c->number * 5 + k * 7) % N_REQUESTS;
        const served_request *a = &c->asked[model][i];
        const char *what;
        dt_generated *g;
        if (dt_service_generate(c->models[model], a->prompts, a->n_prompts, &a->o, NULL, &g) !=
            DT_OK) {
            (void)snprintf(c->wrong, sizeof c->wrong, "%.100s", dt_last_error()->message);
            return NULL;
        }
        what = served_differs(g, a->alone);
        if (what != NULL)
            (void)snprintf(c->wrong, sizeof c->wrong, "model %d, request %d: %s", model, i, what);
        dt_generated_release(&g);
    }
    return NULL;
}

static void call_from_many(int n_each)
{
    static served_request a[2][N_REQUESTS];
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *models[2] = { served_load(s, llama), served_load(s, neo) };
    caller callers[N_CALLERS];
    pthread_t threads[N_CALLERS];
    char folder[DT_TEST_PATH_BYTES];

    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < N_REQUESTS; i++) served_ask(&a[m][i], i);
        served_alone(dt_test_source_path(folder, "tests/golden/%s", m == 0 ? llama : neo), 2, a[m],
                     N_REQUESTS);
    }
    for (int t = 0; t < N_CALLERS; t++) {
        callers[t] = (caller){ { models[0], models[1] }, a, t, n_each, "" };
        DT_ASSERT(pthread_create(&threads[t], NULL, call, &callers[t]) == 0);
    }
    for (int t = 0; t < N_CALLERS; t++) {
        (void)pthread_join(threads[t], NULL);
        DT_ASSERT_EQ_STR(callers[t].wrong, "");
    }
    for (int m = 0; m < 2; m++) {
        dt_service_counts counts;
        DT_ASSERT_OK(dt_service_count(models[m], &counts));
        DT_ASSERT_EQ_INT(counts.done, N_CALLERS * n_each / 2);
        DT_ASSERT_EQ_INT(counts.queued + counts.refused + counts.failures, 0);
        DT_ASSERT_OK(dt_service_unload(&models[m]));
        served_free(a[m], N_REQUESTS);
    }
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(service, many_threads_get_what_each_model_makes_alone)
{
    call_from_many(4);
}

DT_TEST(service, many_threads_get_it_many_times)
{
    dt_test_long();
    call_from_many(200);
}

/* --- models ----------------------------------------------------------------------------------- */

DT_TEST(service, a_folder_may_be_loaded_twice)
{
    dt_service *s = served_start(2, 20000, NULL);
    dt_served *models[3] = { served_load(s, neo), served_load(s, neo), served_load(s, llama) };
    dt_rank_memory all[2], one[2];
    dt_rank_memory_kinds kinds[2];
    dt_generated *g[2];
    served_request a;

    served_ask(&a, 3);
    for (int m = 0; m < 2; m++)
        DT_ASSERT_OK(dt_service_generate(models[m], a.prompts, 1, &a.o, NULL, &g[m]));
    DT_ASSERT(served_differs(g[0], g[1]) == NULL);
    DT_ASSERT_OK(dt_service_memory(s, models[0], one, kinds));
    DT_ASSERT(one[0].cut_bytes > 0 && one[1].whole_bytes > 0);
    DT_ASSERT_EQ_INT(kinds[1].weights_bytes, one[1].cut_bytes + one[1].whole_bytes);
    DT_ASSERT_OK(dt_service_unload(&models[2]));
    DT_ASSERT_OK(dt_service_memory(s, NULL, all, NULL));
    DT_ASSERT_EQ_INT(all[0].cut_bytes, 2 * one[0].cut_bytes);
    for (int m = 0; m < 2; m++) {
        dt_generated_release(&g[m]);
        DT_ASSERT_OK(dt_service_unload(&models[m]));
    }
    DT_ASSERT_OK(dt_service_memory(s, NULL, all, NULL));
    DT_ASSERT_EQ_INT(all[0].allocated_bytes + all[1].reserved_bytes, 0);
    DT_ASSERT_OK(dt_service_stop(&s));
}

DT_TEST(service, what_cannot_be_loaded_leaves_the_service_well)
{
    dt_service *s = served_start(2, 20000, NULL);
    dt_parallelize_options o = DT_PARALLELIZE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_served *m = NULL;

    DT_ASSERT_STATUS(dt_service_load(s, "/nowhere/at/all", NULL, &m), DT_ERR_IO, "/nowhere");
    (void)dt_test_source_path(folder, "tests/golden/%s", neo);
    o.n_ranks = 3;
    DT_ASSERT_STATUS(dt_service_load(s, folder, &o, &m), DT_ERR_ARG, "n_ranks is 3");
    DT_ASSERT(m == NULL);
    m = served_load(s, neo);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
    DT_ASSERT_OK(dt_service_stop(&s));
}

/* --- start ------------------------------------------------------------------------------------ */

static dt_status refuse_on_rank_1(dt_runtime *rt, void *arg)
{
    (void)arg;
    DT_CHECK(dt_runtime_rank(rt) != 1, DT_ERR_UNSUPPORTED, "not here");
    return DT_OK;
}

static dt_status sleep_on_rank_1(dt_runtime *rt, void *arg)
{
    const struct timespec nap = { 1, 300000000 };

    (void)arg;
    if (dt_runtime_rank(rt) == 1) (void)nanosleep(&nap, NULL);
    return DT_OK;
}

DT_TEST(service, a_start_names_the_rank_that_is_not_ready)
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service *s;

    run.n_ranks = 3;
    run.setup = refuse_on_rank_1;
    o.run = &run;
    (void)served_place(&o, &run);
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_UNSUPPORTED, "not here");
    DT_ASSERT(s == NULL);
    run.setup = sleep_on_rank_1;
    o.start_ms = 900;
    (void)served_place(&o, &run);
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_COMM, "ready after 900 ms: rank 1");
    DT_ASSERT(setenv("WORLD_SIZE", "2", 1) == 0 && setenv("RANK", "0", 1) == 0);
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_UNSUPPORTED, "one of 2 processes");
    DT_ASSERT(unsetenv("WORLD_SIZE") == 0 && unsetenv("RANK") == 0);
    o.start_ms = 0;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_ARG, "start_ms is 0");
    run.n_ranks = 0;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_ARG, "n_ranks is 0");
}
