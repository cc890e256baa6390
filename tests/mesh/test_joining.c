/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that find each other without MPI: who is lost meanwhile is noticed at once, by whatever
 * wait, and named. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/comm/mpi.h"
#include "mesh/launch.h"
#include "tests/support/processes.h"

/* Two seconds are promised; a machine may be busy. Without a word it is a minute. */
enum { PROMPT_MS = 10000 };

static dt_status nothing(dt_runtime *rt, void *arg)
{
    (void)rt, (void)arg;
    return DT_OK;
}

static const char *runs(void)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    return dt_run(&o, nothing, NULL) == DT_OK ? "well" : dt_last_error()->message;
}

static void ends_with(dt_test_process *p, const char *part)
{
    char word[DT_TEST_WORD_BYTES];

    if (strstr(dt_test_process_hear(p, word), part) == NULL)
        dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in \"%s\"", part, word);
    dt_test_process_end(p);
}

static void is_prompt(int64_t begin_ns)
{
    DT_ASSERT((dti_now_ns() - begin_ns) / 1000000 < PROMPT_MS);
}

static const char *waits_for_ever(void)
{
    dt_test_process_say("here");
    (void)pause();
    return "";
}

/* A test in the middle of which something fails. */
DT_TEST(joining, processes_end_with_their_test)
{
    int ends[2];
    char byte;
    pid_t test;

    DT_ASSERT_EQ_INT(pipe(ends), 0);
    test = fork();
    DT_ASSERT(test >= 0);
    if (test == 0) {
        char word[DT_TEST_WORD_BYTES];
        dt_test_process p = dt_test_process_start(0, 2, 70, waits_for_ever);
        (void)dt_test_process_hear(&p, word);
        _exit(1);
    }
    (void)close(ends[1]);
    DT_ASSERT_EQ_INT(waitpid(test, NULL, 0), test);
    DT_ASSERT_EQ_INT(read(ends[0], &byte, 1), 0); /* nobody has the other end any more */
    (void)close(ends[0]);
}

DT_TEST(joining, processes_of_jobs_of_other_sizes_tell_each_other)
{
    const int64_t begin = dti_now_ns();
    dt_test_process a = dt_test_process_start(0, 2, 1, runs),
                    b = dt_test_process_start(1, 3, 1, runs);

    ends_with(&a, "process 0 was told that there are 2 processes, process 1 that there are 3");
    ends_with(&b, "process 1 was told that there are 3 processes, process 0 that there are 2");
    is_prompt(begin);
}

/* Process 1 never comes, so 2 and 3 know process 0 only. */
DT_TEST(joining, a_process_that_is_killed_is_named_to_those_who_never_met_it)
{
    dt_test_process a = dt_test_process_start(0, 4, 2, runs),
                    b = dt_test_process_start(2, 4, 2, runs),
                    c = dt_test_process_start(3, 4, 2, runs);
    int64_t begin;

    (void)usleep(500 * 1000);
    begin = dti_now_ns();
    dt_test_process_end(&c);
    ends_with(&a, "process 3 of 4 has ended while processes were joining");
    ends_with(&b, "process 3 of 4 has ended while processes were joining");
    is_prompt(begin);
}

/* --- one that dies later ---------------------------------------------------------------------- */

static const dti_mpi_module *found_module(dti_mpi_job *job)
{
    char why[DTI_MPI_TEXT_BYTES];
    dti_module_found found;
    dti_launch launch;

    if (dti_launch_read(&launch) != DT_OK) return NULL;
    dti_module_find(&launch, "sockets", &found);
    return found.module != NULL && found.module->open(PROMPT_MS, job, why) == 0 ? found.module
                                                                                : NULL;
}

static const char *stops_after_the_meeting(void)
{
    dti_mpi_job job;

    dt_test_process_say(found_module(&job) != NULL ? "met" : "not");
    (void)pause();
    return "";
}

DT_TEST(joining, a_process_that_dies_before_it_says_who_it_is_is_named)
{
    dt_test_process a = dt_test_process_start(0, 2, 3, runs),
                    b = dt_test_process_start(1, 2, 3, stops_after_the_meeting);
    char word[DT_TEST_WORD_BYTES];
    int64_t begin;

    DT_ASSERT_EQ_STR(dt_test_process_hear(&b, word), "met");
    (void)usleep(100 * 1000);
    begin = dti_now_ns();
    dt_test_process_end(&b);
    ends_with(&a, "process 1 of 2 has ended while processes were joining");
    is_prompt(begin);
}

/* A card sent and one taken: what follows is memory. */
static struct {
    dti_mpi_module table;
    int (*poll)(dti_mpi_queue *q, const dti_mpi_done **done);
    int n_done;
} slow;

static int stop_with_the_cards(dti_mpi_queue *q, const dti_mpi_done **done)
{
    const int n = slow.poll(q, done);

    slow.n_done += n;
    if (slow.n_done < 2) return n;
    dt_test_process_say("told");
    (void)pause();
    return n;
}

static const char *stops_before_opening_memory(void)
{
    dti_mpi_world *world;
    dti_mpi_job job;
    const dti_mpi_module *m = found_module(&job);

    if (m == NULL) return "no module";
    slow.table = *m;
    slow.poll = m->poll;
    slow.table.poll = stop_with_the_cards;
    (void)!dti_mpi_world_create(&slow.table, &job,
                                &(dti_mpi_plan){ .n_ranks = 2, .timeout_ms = 20000, .share = true },
                                &world);
    return "";
}

/* Of MPI nobody hears that a process has gone; the system says it. */
static bool hears_nothing(char why[DTI_MPI_TEXT_BYTES])
{
    why[0] = '\0';
    return false;
}

static const char *knows_processes_only(void)
{
    dti_mpi_world *world;
    dti_mpi_job job;
    const dti_mpi_module *m = found_module(&job);

    if (m == NULL) return "no module";
    slow.table = *m;
    slow.table.lost = hears_nothing;
    return dti_mpi_world_create(&slow.table, &job,
                                &(dti_mpi_plan){ .n_ranks = 2, .timeout_ms = 20000, .share = true },
                                &world) == DT_OK
               ? "well"
               : dt_last_error()->message;
}

static void dies_before_opening_memory(int job, dt_test_process_main waits)
{
    dt_test_process a = dt_test_process_start(0, 2, job, waits),
                    b = dt_test_process_start(1, 2, job, stops_before_opening_memory);
    char word[DT_TEST_WORD_BYTES];
    int64_t begin;

    DT_ASSERT_EQ_STR(dt_test_process_hear(&b, word), "told");
    (void)usleep(100 * 1000);
    begin = dti_now_ns();
    dt_test_process_end(&b);
    ends_with(&a, "process 1 of 2 has ended while processes were joining");
    is_prompt(begin);
}

DT_TEST(joining, a_process_that_dies_before_it_opens_memory_is_named)
{
    dies_before_opening_memory(4, runs);
    dies_before_opening_memory(5, knows_processes_only);
}

/* --- those who do not come --------------------------------------------------------------------
 */

static const char *fails(void)
{
    dt_launch_give_up("no file here");
    return "gone";
}

static const char *arrives_and_waits(void)
{
    dt_launch_arrive();
    dt_test_process_say("here");
    (void)pause();
    return "";
}

static const char *arrives_and_fails(void)
{
    dt_launch_arrive();
    dt_test_process_say("here");
    (void)usleep(500 * 1000);
    return fails();
}

/* Of the order in which processes come nothing depends. */
DT_TEST(joining, a_process_that_cannot_join_says_why_to_all)
{
    static const dt_test_process_main failing[] = { fails, arrives_and_fails };

    for (int first = 0; first < 2; first++)
        for (int culprit = 0; culprit < 3; culprit++) {
            const int64_t begin = dti_now_ns();
            const int job = 20 + 3 * first + culprit;
            dt_test_process p[3] = { { 0 } };
            char text[64];

            if (first) p[culprit] = dt_test_process_start(culprit, 3, job, failing[first]);
            if (first) (void)usleep(100 * 1000);
            for (int r = 0; r < 3; r++)
                if (r != culprit) p[r] = dt_test_process_start(r, 3, job, runs);
            if (!first) (void)usleep(100 * 1000);
            if (!first) p[culprit] = dt_test_process_start(culprit, 3, job, failing[first]);
            (void)snprintf(text, sizeof text, "process %d of 3 cannot join: no file here", culprit);
            for (int r = 0; r < 3; r++)
                if (r != culprit) ends_with(&p[r], text);
            dt_test_process_end(&p[culprit]);
            is_prompt(begin);
        }
}

/* Neither has met the other: who comes later knows the earlier, and is known to it. */
DT_TEST(joining, a_process_that_is_killed_before_it_joins_is_named)
{
    for (int order = 0; order < 2; order++)
        for (int culprit = 0; culprit < 2; culprit++) {
            const int job = 30 + 2 * order + culprit;
            dt_test_process dies = { 0 }, waits = { 0 };
            char word[DT_TEST_WORD_BYTES], text[80];
            int64_t begin;

            if (order) waits = dt_test_process_start(1 - culprit, 2, job, runs);
            if (order) (void)usleep(200 * 1000);
            dies = dt_test_process_start(culprit, 2, job, arrives_and_waits);
            DT_ASSERT_EQ_STR(dt_test_process_hear(&dies, word), "here");
            if (!order) waits = dt_test_process_start(1 - culprit, 2, job, runs);
            (void)usleep(200 * 1000);
            begin = dti_now_ns();
            dt_test_process_end(&dies);
            (void)snprintf(text, sizeof text,
                           "process %d of 2 has ended while processes were joining", culprit);
            ends_with(&waits, text);
            is_prompt(begin);
        }
}

static const char *runs_with_bad_options(void)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.threads_per_rank = -1;
    return dt_run(&o, nothing, NULL) == DT_ERR_ARG ? "" : "well";
}

DT_TEST(joining, a_process_whose_options_are_refused_is_missed_when_it_ends)
{
    dt_test_process a = dt_test_process_start(0, 2, 40, runs), b;
    const int64_t begin = dti_now_ns();

    (void)usleep(200 * 1000);
    b = dt_test_process_start(1, 2, 40, runs_with_bad_options);
    ends_with(&a, "process 1 of 2 has ended while processes were joining");
    dt_test_process_end(&b);
    is_prompt(begin);
}

/* Those who fail alike know of each other, and none waits for the other to start. */
DT_TEST(joining, processes_that_all_fail_wait_for_none)
{
    const int64_t begin = dti_now_ns();

    for (int i = 0; i < 8; i++) {
        dt_test_process a = dt_test_process_start(0, 2, 50 + i, fails),
                        b = dt_test_process_start(1, 2, 50 + i, fails);
        ends_with(&a, "gone");
        ends_with(&b, "gone");
    }
    is_prompt(begin); /* eight times two seconds otherwise */
}

static const char *meets_for_a_moment(void)
{
    static char why[DTI_MPI_TEXT_BYTES];
    dti_module_found found;
    dti_launch launch;
    dti_mpi_job job;

    if (dti_launch_read(&launch) != DT_OK) return "no launch";
    dti_module_find(&launch, "sockets", &found);
    if (found.module == NULL) return "no module";
    return found.module->open(600, &job, why) == 0 ? "well" : why;
}

DT_TEST(joining, those_who_never_came_are_named_with_what_to_do)
{
    dt_test_process b = dt_test_process_start(2, 5, 60, arrives_and_waits), a;
    char word[DT_TEST_WORD_BYTES];

    DT_ASSERT_EQ_STR(dt_test_process_hear(&b, word), "here");
    a = dt_test_process_start(0, 5, 60, meets_for_a_moment);
    ends_with(&a, "after 600 ms processes 1, 3 and 4 of 5 (RANK, WORLD_SIZE) have not come: start "
                  "them on this machine with the same MASTER_ADDR and MASTER_PORT, or look what "
                  "they said last; processes of several machines are joined by mpirun only; "
                  "process 2 of 5 is there but has not called dt_run() yet");
    dt_test_process_end(&b);
    a = dt_test_process_start(1, 2, 61, meets_for_a_moment);
    ends_with(&a, "after 600 ms process 0 of 2 (RANK, WORLD_SIZE) has not come: start it on");
}

/* --- what the system refuses ------------------------------------------------------------------ */

/* One more descriptor, for the name of this process; none for who connects. */
static const char *runs_without_descriptors(void)
{
    const int next = dup(0);

    (void)close(next);
    (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)next + 1, (rlim_t)next + 1 });
    return runs();
}

DT_TEST(joining, a_process_that_may_open_nothing_says_so_at_once)
{
    const int64_t begin = dti_now_ns();
    dt_test_process a = dt_test_process_start(0, 2, 6, runs_without_descriptors);

    ends_with(&a, "Too many open files (ulimit -n)");
    is_prompt(begin);
}

/* --- names ------------------------------------------------------------------------------------ */

static const char *runs_with_a_secret(void)
{
    (void)setenv("TORCHELASTIC_RUN_ID", "5ca1ab1e-0000-4000-8000-000000000001", 1);
    return runs();
}

static const char *runs_with_another_secret(void)
{
    (void)setenv("TORCHELASTIC_RUN_ID", "5ca1ab1e-0000-4000-8000-000000000002", 1);
    return runs();
}

enum { MOST_NAMES = 4, PART_BYTES = 32 };

/* What stands between port and number of the names that processes `rank` of a job have. */
static int secret_parts(int job, int rank, char parts[MOST_NAMES][PART_BYTES])
{
    char line[512], name[128], number[16];
    FILE *f = fopen("/proc/net/unix", "r");
    int n = 0;

    DT_ASSERT(f != NULL);
    (void)snprintf(name, sizeof name, "@dtensor/test%ld.%d/", (long)getpid(), job);
    (void)snprintf(number, sizeof number, "/%d", rank);
    while (n < MOST_NAMES && fgets(line, sizeof line, f) != NULL) {
        char *at = strstr(line, name), *last;
        if (at == NULL || strstr(line, " 00010000 ") == NULL) continue; /* those who listen */
        at[strcspn(at, "\n")] = '\0';
        last = strrchr(at, '/');
        if (strcmp(last, number) != 0) continue;
        *last = '\0';
        (void)snprintf(parts[n++], PART_BYTES, "%.31s", at + strlen(name));
    }
    (void)fclose(f);
    return n;
}

/* Two jobs of one port, which do not see each other. */
DT_TEST(joining, names_cannot_be_told_without_the_launchers_secret)
{
    dt_test_process p[] = { dt_test_process_start(0, 3, 7, runs_with_a_secret),
                            dt_test_process_start(1, 3, 7, runs_with_a_secret),
                            dt_test_process_start(0, 3, 7, runs_with_another_secret) };
    char first[MOST_NAMES][PART_BYTES], second[MOST_NAMES][PART_BYTES];

    (void)usleep(500 * 1000);
    DT_ASSERT_EQ_INT(secret_parts(7, 0, first), 2);
    DT_ASSERT_EQ_INT(secret_parts(7, 1, second), 1);
    DT_ASSERT(strcmp(first[0], first[1]) != 0);
    DT_ASSERT(strcmp(first[0], second[0]) != 0 && strcmp(first[1], second[0]) != 0);
    for (size_t i = 0; i < DT_COUNT(p); i++) dt_test_process_end(&p[i]);
}

DT_TEST(joining, who_holds_the_name_of_a_process_is_named)
{
    const int64_t begin = dti_now_ns();
    dt_test_process a = dt_test_process_start(0, 2, 9, runs), b;
    char holder[64];

    (void)usleep(500 * 1000);
    b = dt_test_process_start(0, 2, 9, runs);
    (void)snprintf(holder, sizeof holder, "is held by process %ld (", (long)a.pid);
    ends_with(&b, holder);
    dt_test_process_end(&a);
    is_prompt(begin);
}
