/* SPDX-License-Identifier: Apache-2.0
 *
 * A service over the processes of a launcher: process 0 asks, the others follow. */
#include <stdio.h>
#include <string.h>

#include "tests/support/processes.h"
#include "tests/support/served.h"

enum { N_NEW = 12 };

static const int32_t ids[] = { 0, 872, 27 };
static const dt_ids prompt = { ids, 3 };

static dt_service_options options_of(dt_run_options *run)
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    const dt_run_options by_default = DT_TEST_RUN_OPTIONS;

    *run = by_default;
    o.run = run;
    o.launched = true;
    return o;
}

static const char *follows(void)
{
    dt_run_options run;
    const dt_service_options o = options_of(&run);

    return dt_service_follow(&o) == DT_OK ? "well" : dt_last_error()->message;
}

/* Ids of texts that JSON has been asked for, by which tokenizers of all processes are needed. */
static dt_status ask(dt_served *m, char *text, size_t room)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_generated *g;
    size_t n = 0;

    o.max_new_tokens = N_NEW;
    o.do_sample = true;
    o.seed = 5;
    o.json_object = true;
    DT_TRY(dt_service_generate(m, &prompt, 1, &o, NULL, &g));
    for (int64_t i = 0; i < dt_generated_ids(g, 0).n && n < room - 16; i++)
        n += (size_t)snprintf(text + n, room - n, "%d ", dt_generated_ids(g, 0).ids[i]);
    dt_generated_release(&g);
    return DT_OK;
}

static dt_status load(const dt_service_options *o, dt_service **s, dt_served **m)
{
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];

    *m = NULL;
    how.mesh = dt_launch_size() == 1 ? NULL : dt_launch_size() == 2 ? "tp=2" : "tp=3";
    DT_TRY(dt_service_start(o, s));
    DT_TRY(dt_service_load(*s, dt_test_source_path(folder, "examples/checkpoint"), &how, m));
    return DT_OK;
}

static const char *leads(void)
{
    static char text[1024];
    char folder[DT_TEST_PATH_BYTES];
    dt_rank_memory memory[2];
    dt_run_options run;
    const dt_service_options o = options_of(&run);
    dt_service *s = NULL;
    dt_served *m, *other;

    if (load(&o, &s, &m) != DT_OK || ask(m, text, sizeof text) != DT_OK)
        return dt_last_error()->message;
    if (dt_service_memory(s, m, memory, NULL) != DT_OK || memory[0].cut_bytes == 0 ||
        memory[1].cut_bytes != memory[0].cut_bytes || memory[1].allocated_bytes == 0)
        return "memory";
    if (dt_service_load(s, dt_test_source_path(folder, "examples/checkpoint"), NULL, &other) !=
        DT_ERR_UNSUPPORTED)
        return "a second model";
    if (dt_service_unload(&m) != DT_OK || dt_service_stop(&s) != DT_OK)
        return dt_last_error()->message;
    return text;
}

static const char *leads_twice(void)
{
    static char text[1024];

    (void)snprintf(text, sizeof text, "%s", leads());
    return strcmp(leads(), text) == 0 ? text : "another text";
}

static const char *follows_twice(void)
{
    const char *first = follows();

    return strcmp(first, "well") == 0 ? follows() : first;
}

DT_TEST(launched, processes_of_a_launcher_serve_as_ranks_of_one)
{
    const dt_service_options alone = DT_SERVICE_OPTIONS_INIT;
    dt_test_process a = dt_test_process_start(0, 2, 80, leads_twice);
    dt_test_process b = dt_test_process_start(1, 2, 80, follows_twice);
    char said[DT_TEST_WORD_BYTES], text[1024];
    dt_service *s;
    dt_served *m;

    DT_ASSERT_EQ_STR(dt_test_process_hear(&b, said), "well");
    (void)dt_test_process_hear(&a, said);
    DT_ASSERT_OK(load(&alone, &s, &m));
    DT_ASSERT_OK(ask(m, text, sizeof text));
    DT_ASSERT_EQ_STR(said, text);
    DT_ASSERT_OK(dt_service_unload(&m));
    DT_ASSERT_OK(dt_service_stop(&s));
    dt_test_process_end(&a);
    dt_test_process_end(&b);
}

/* Under a launcher two services, one behind the other; alone the same without followers. */
DT_TEST(launched, a_job_serves_twice)
{
    char text[2][1024];
    dt_run_options run;
    const dt_service_options o = options_of(&run);

    for (int i = 0; i < 2; i++) {
        dt_service *s;
        dt_served *m;
        if (dt_launch_process() > 0) {
            DT_ASSERT_OK(dt_service_follow(&o));
            continue;
        }
        DT_ASSERT_OK(load(&o, &s, &m));
        DT_ASSERT_OK(ask(m, text[i], sizeof text[i]));
        DT_ASSERT(i == 0 || strcmp(text[0], text[1]) == 0);
        DT_ASSERT_OK(dt_service_unload(&m));
        DT_ASSERT_OK(dt_service_stop(&s));
    }
}

static const char *leads_until_one_dies(void)
{
    static char text[1024];
    dt_run_options run;
    const dt_service_options o = options_of(&run);
    dt_service *s = NULL;
    dt_served *m;

    if (load(&o, &s, &m) != DT_OK) return dt_last_error()->message;
    dt_test_process_say("here");
    while (ask(m, text, sizeof text) == DT_OK) continue;
    (void)snprintf(text, sizeof text, "%s", dt_last_error()->message);
    (void)dt_service_unload(&m);
    (void)dt_service_stop(&s);
    return text;
}

DT_TEST(launched, one_that_dies_is_named_to_who_asks)
{
    dt_test_process a = dt_test_process_start(0, 2, 81, leads_until_one_dies);
    dt_test_process b = dt_test_process_start(1, 2, 81, follows);
    char said[DT_TEST_WORD_BYTES];

    DT_ASSERT_EQ_STR(dt_test_process_hear(&a, said), "here");
    dt_test_process_end(&b);
    if (strstr(dt_test_process_hear(&a, said), "process 1 of 2") == NULL &&
        strstr(said, "rank 1") == NULL)
        dt_test_fail(__FILE__, __LINE__, "%s", said);
    dt_test_process_end(&a);
}

static const char *starts_without(void)
{
    dt_service *s;

    return dt_service_start(NULL, &s) == DT_ERR_UNSUPPORTED ? dt_last_error()->message : "started";
}

static const char *leads_from_behind(void)
{
    dt_run_options run;
    const dt_service_options o = options_of(&run);
    dt_service *s;

    return dt_service_start(&o, &s) == DT_ERR_ARG ? dt_last_error()->message : "started";
}

DT_TEST(launched, who_calls_the_wrong_one_is_told)
{
    dt_test_process a = dt_test_process_start(0, 2, 82, starts_without);
    dt_test_process b = dt_test_process_start(1, 2, 82, leads_from_behind);
    dt_test_process c = dt_test_process_start(0, 2, 83, follows);
    char said[DT_TEST_WORD_BYTES];
    dt_run_options run;
    const dt_service_options o = options_of(&run);

    if (strstr(dt_test_process_hear(&a, said), "set dt_service_options.launched") == NULL ||
        strstr(dt_test_process_hear(&b, said), "this is process 1 of 2") == NULL ||
        strstr(dt_test_process_hear(&c, said), "this is process 0 of 2") == NULL)
        dt_test_fail(__FILE__, __LINE__, "%s", said);
    dt_test_process_end(&a);
    dt_test_process_end(&b);
    dt_test_process_end(&c);
    DT_ASSERT_STATUS(dt_service_follow(&o), DT_ERR_ARG, "that a launcher started");
}
