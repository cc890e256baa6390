/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/served.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void served_ask(served_request *a, int i)
{
    uint32_t x = 12345u + 977u * (uint32_t)i;

    *a = (served_request){ .n_prompts = i % 5 == 4 ? MOST_PROMPTS : 1,
                           .o = DT_GENERATE_OPTIONS_INIT };
    for (int64_t p = 0; p < a->n_prompts; p++) {
        a->prompts[p] = (dt_ids){ a->ids[p], 3 + (i * 7 + p * 5) % (LONGEST - 3) };
        for (int64_t j = 0; j < a->prompts[p].n; j++) {
            x = x * 1664525u + 1013904223u;
            a->ids[p][j] = (int32_t)(x >> 8) % 90 + 1;
        }
    }
    a->o.max_new_tokens = 6 + i % 9;
    a->o.ignore_eos = i % 2 == 0;
    a->o.do_sample = i % 4 == 1;
    a->o.seed = (uint64_t)i;
    a->o.num_return_sequences = i % 4 == 1 ? 2 : 1;
    a->o.repetition_penalty = i % 3 == 0 ? 1.3 : 1.0;
    if (i % 8 == 3) a->o.num_beams = a->o.num_return_sequences = 3;
    a->o.no_repeat_ngram_size = i % 7 == 5 ? 3 : 0;
}

typedef struct job {
    const char *folder;
    served_request *a;
    int n;
} job;

static dt_status answer(dt_mesh *mesh, const void *arg)
{
    const job *j = arg;
    DT_HELD(model) *m = NULL;

    DT_TRY(dt_model_load(mesh, j->folder, NULL, &m));
    for (int i = 0; i < j->n; i++) {
        served_request *a = &j->a[i];
        DT_HELD(generated) *g = NULL;
        DT_TRY(dt_generate_batch(m, a->prompts, a->n_prompts, &a->o, &g));
        if (dt_runtime_rank(dt_mesh_runtime(mesh)) > 0) continue;
        a->alone = g;
        g = NULL;
    }
    return DT_OK;
}

void served_alone(const char *folder, int n_ranks, served_request *a, int n)
{
    const job j = { folder, a, n };
    char spec[16];

    (void)snprintf(spec, sizeof spec, "tp=%d", n_ranks);
    dt_test_on_ranks(spec, answer, &j);
}

void served_free(served_request *a, int n)
{
    for (int i = 0; i < n; i++) dt_generated_release(&a[i].alone);
}

const char *served_differs(const dt_generated *a, const dt_generated *b)
{
    if (dt_generated_count(a) != dt_generated_count(b)) return "number of texts";
    for (int64_t i = 0; i < dt_generated_count(a); i++) {
        const dt_ids x = dt_generated_ids(a, i), y = dt_generated_ids(b, i);
        const double s = dt_generated_score(a, i), t = dt_generated_score(b, i);
        if (x.n != y.n) return "length";
        if (x.n > 0 && memcmp(x.ids, y.ids, (size_t)x.n * sizeof *x.ids) != 0) return "tokens";
        if (dt_generated_end(a, i) != dt_generated_end(b, i)) return "end";
        if (memcmp(&s, &t, sizeof s) != 0) return "score";
    }
    return NULL;
}

/* --- processes --------------------------------------------------------------------------------
 *
 * A function's place in the program, which is elsewhere in memory each time, is said relative to
 * another one. */

typedef dt_status (*setup_fn)(dt_runtime *rt, void *arg);

static const char setup_variable[] = "DTENSOR_TEST_SETUP";

__attribute__((constructor)) static void serve_as_worker(void)
{
    const char *text = getenv(setup_variable);
    const intptr_t far = text != NULL ? (intptr_t)strtoll(text, NULL, 10) : 0;
    setup_fn setup = NULL;
    int ended;

    if (far != 0) setup = (setup_fn)((intptr_t)served_as_processes + far);
    ended = dt_service_work(setup, NULL);
    if (ended >= 0) exit(ended);
}

void served_as_processes(dt_service_options *o, const dt_run_options *run, int processes)
{
    char text[32];

    o->processes = processes;
    o->worker = "/proc/self/exe";
    (void)snprintf(text, sizeof text, "%lld",
                   run->setup != NULL
                       ? (long long)((intptr_t)run->setup - (intptr_t)served_as_processes)
                       : 0LL);
    (void)setenv(setup_variable, text, 1);
}

bool served_place(dt_service_options *o, const dt_run_options *run)
{
    if (getenv("DTENSOR_TEST_PROCESSES") == NULL) return false;
    served_as_processes(o, run, run->n_ranks);
    return true;
}

dt_service *served_start(int n_ranks, int64_t timeout_ms,
                         dt_status (*setup)(dt_runtime *rt, void *arg))
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service *s = NULL;

    run.n_ranks = n_ranks;
    run.timeout_ms = timeout_ms;
    run.setup = setup;
    o.run = &run;
    (void)served_place(&o, &run);
    DT_ASSERT_OK(dt_service_start(&o, &s));
    return s;
}

dt_served *served_load(dt_service *service, const char *fixture)
{
    char folder[DT_TEST_PATH_BYTES];
    dt_served *m = NULL;

    DT_ASSERT_OK(dt_service_load(service, dt_test_source_path(folder, "tests/golden/%s", fixture),
                                 NULL, &m));
    return m;
}

int64_t served_heap_bytes(void)
{
    const struct mallinfo2 i = mallinfo2();

    return (int64_t)(i.uordblks + i.hblkhd);
}

static void *end(void *arg)
{
    return arg;
}

/* The first thread of a process brings one of ThreadSanitizer's along. One that was joined is
 * listed for a moment longer: the least of some counts is what there is. */
int served_threads(void)
{
    pthread_t first;
    int least;

    if (pthread_create(&first, NULL, end, NULL) == 0) (void)pthread_join(first, NULL);
    least = dt_test_count_files("/proc/self/task", "");
    for (int i = 0; i < 5; i++) {
        const struct timespec nap = { 0, 1000000 };
        int n;
        (void)nanosleep(&nap, NULL);
        n = dt_test_count_files("/proc/self/task", "");
        if (n < least) least = n;
    }
    return least;
}
