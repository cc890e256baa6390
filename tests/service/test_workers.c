/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks in worker processes that are killed, stopped or orphaned at each point of a request's life.
 * Everything else of a service is tried with them by the other tests, where DTENSOR_TEST_PROCESSES
 * is set. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/served.h"
#include "tests/support/worker_deaths.h"

static const char neo[] = "gpt_neo/base";
static const int32_t ids[] = { 5, 17, 3, 88, 42 };
static const dt_ids prompt = { ids, 5 };

/* --- deaths ----------------------------------------------------------------------------------- */

DT_TEST(workers, one_that_is_killed_is_named_to_all_who_wait)
{
    worker_dies(&(worker_death){ 2, 2, 1, SIGKILL, DIES_DECODING });
    worker_dies(&(worker_death){ 3, 2, 0, SIGKILL, DIES_QUEUED });
}

DT_TEST(workers, one_that_is_stopped_is_named_within_the_deadline)
{
    worker_dies(&(worker_death){ 2, 2, 1, SIGSTOP, DIES_DECODING });
}

/* --- the program ------------------------------------------------------------------------------ */

/* A program with a model in worker processes, until it is killed. */
static void be_killed(void)
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service *s;
    dt_served *m;
    char folder[DT_TEST_PATH_BYTES];

    run.n_ranks = 2;
    o.run = &run;
    served_as_processes(&o, &run, 2);
    if (dt_service_start(&o, &s) != DT_OK ||
        dt_service_load(s, dt_test_source_path(folder, "tests/golden/%s", neo), NULL, &m) != DT_OK)
        _exit(1);
    (void)kill(getppid(), SIGUSR1);
    for (;;) (void)pause();
}

DT_TEST(workers, none_outlives_its_program)
{
    pid_t workers[MOST_WORKERS];
    sigset_t told;
    pid_t program;
    int n, left = 1, signal;

    (void)sigemptyset(&told);
    (void)sigaddset(&told, SIGUSR1);
    (void)sigaddset(&told, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &told, NULL);
    program = fork();
    if (program == 0) be_killed();
    DT_ASSERT(sigwait(&told, &signal) == 0);
    DT_ASSERT_EQ_INT(signal, SIGUSR1); /* it is there, and has not ended without a word */
    n = worker_pids(program, workers);
    DT_ASSERT_EQ_INT(n, 2);
    DT_ASSERT(kill(workers[1], SIGSTOP) == 0); /* it cannot even hear of it */
    DT_ASSERT(kill(program, SIGKILL) == 0);
    DT_ASSERT(waitpid(program, NULL, 0) == program);
    for (int i = 0; i < 200 && left > 0; i++) {
        left = worker_is_alive(workers[0]) + worker_is_alive(workers[1]);
        nap_ms(10);
    }
    DT_ASSERT_EQ_INT(left, 0);
}

/* What of the program's process others may look at, and has to be as it was. */
typedef struct trace {
    int n_files, n_children, n_shared, n_variables;
    bool handles;
} trace;

extern char **environ;

static trace look_around(void)
{
    static const int signals[] = { SIGCHLD, SIGPIPE, SIGINT, SIGTERM, SIGUSR1 };
    pid_t workers[MOST_WORKERS];
    trace t = { .n_files = dt_test_count_files("/proc/self/fd", ""),
                .n_children = worker_pids(getpid(), workers),
                .n_shared = dt_test_count_files("/dev/shm", "dtensor") };

    while (environ[t.n_variables] != NULL) t.n_variables++;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction is;
        (void)sigaction(signals[i], NULL, &is);
        t.handles = t.handles || is.sa_handler != SIG_DFL;
    }
    return t;
}

DT_TEST(workers, nothing_of_them_stays)
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    char folder[DT_TEST_PATH_BYTES];
    trace before, after;

    run.n_ranks = 2;
    o.run = &run;
    served_as_processes(&o, &run, 2);
    before = look_around();
    for (int i = 0; i < 3; i++) {
        dt_served *m[2];
        dt_generated *g;
        dt_service *s;
        DT_ASSERT_OK(dt_service_start(&o, &s));
        for (int k = 0; k < 2; k++) {
            DT_ASSERT_OK(dt_service_load(s, dt_test_source_path(folder, "tests/golden/%s", neo),
                                         NULL, &m[k]));
            DT_ASSERT_OK(dt_service_generate(m[k], &prompt, 1, NULL, NULL, &g));
            dt_generated_release(&g);
        }
        DT_ASSERT_EQ_INT(look_around().n_children, 4);
        if (i == 1) DT_ASSERT_OK(dt_service_unload(&m[0]));
        if (i == 2) (void)signal(SIGCHLD, SIG_IGN); /* the system waits for all children */
        DT_ASSERT_OK(dt_service_stop(&s));
        DT_ASSERT_OK(dt_service_unload(&m[0]));
        DT_ASSERT_OK(dt_service_unload(&m[1]));
    }
    (void)signal(SIGCHLD, SIG_DFL);
    after = look_around();
    DT_ASSERT_EQ_INT(after.n_files, before.n_files);
    DT_ASSERT_EQ_INT(after.n_children, 0);
    DT_ASSERT_EQ_INT(after.n_shared, before.n_shared);
    DT_ASSERT_EQ_INT(after.n_variables, before.n_variables);
    DT_ASSERT_EQ_INT(after.handles, before.handles);
}

/* --- start ------------------------------------------------------------------------------------ */

DT_TEST(workers, a_start_says_why_there_are_none)
{
    static const char *const modules[] = { "./nowhere.so" };
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service *s;

    run.n_ranks = 2;
    o.run = &run;
    o.processes = 3;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_ARG, "processes is 3, not in 0..2");
    o.processes = 2;
    o.worker = "/nowhere/at/all";
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_IO, "rank 0: its worker /nowhere/at/all");
    o.worker = "/bin/true";
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_COMM, "status 0 before it was ready");
    served_as_processes(&o, &run, 2);
    o.modules = modules;
    o.n_modules = 1;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_IO, "./nowhere.so");
    o.processes = 0;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_IO, "./nowhere.so");
    DT_ASSERT(s == NULL);
}

static dt_status change_nothing(const dt_policy *policy, dt_arguments *arguments, int world_size)
{
    (void)policy;
    (void)arguments;
    (void)world_size;
    return DT_OK;
}

/* The program that is installed for it, which has no functions of this one. */
DT_TEST(workers, the_installed_program_serves)
{
    dt_service_options o = DT_SERVICE_OPTIONS_INIT;
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    const dt_plan_rule rules[] = { { "transformer.h.*.mlp.c_fc", "replicate" },
                                   { "transformer.h.*.mlp.c_proj", "replicate" } };
    const dt_plan plan = { .rules = rules, .n_rules = 2, .source = "mine" };
    const dt_policy_layer in[] = { { .weight = "mlp.c_fc.weight", .replace = "replicate" } };
    const dt_policy_layer out[] = { { .weight = "mlp.c_proj.weight", .replace = "replicate" } };
    dt_policy policy = { .size = sizeof policy,
                         .original_layer_class = "GPTNeoBlock",
                         .mlp_in = { DT_POLICY_LIST(in) },
                         .mlp_out = { DT_POLICY_LIST(out) } };
    const dt_policy *policies[] = { &policy };
    char folder[DT_TEST_PATH_BYTES];
    dt_rank_memory cut[2], whole[2];
    dt_service *s;
    dt_served *m;

    run.n_ranks = 2;
    o.run = &run;
    o.processes = 2;
    DT_ASSERT_OK(dt_service_start(&o, &s));
    m = served_load(s, neo);
    DT_ASSERT_OK(dt_service_memory(s, m, cut, NULL));
    DT_ASSERT_OK(dt_service_unload(&m));
    how.plan = &plan;
    (void)dt_test_source_path(folder, "tests/golden/%s", neo);
    DT_ASSERT_OK(dt_service_load(s, folder, &how, &m));
    DT_ASSERT_OK(dt_service_memory(s, m, whole, NULL));
    DT_ASSERT(whole[1].cut_bytes < cut[1].cut_bytes);
    DT_ASSERT_OK(dt_service_unload(&m));
    how.plan = NULL;
    how.policies = policies;
    how.n_policies = 1;
    DT_ASSERT_OK(dt_service_load(s, folder, &how, &m));
    DT_ASSERT_OK(dt_service_memory(s, m, cut, NULL));
    DT_ASSERT_EQ_INT(whole[1].cut_bytes, cut[1].cut_bytes);
    DT_ASSERT_OK(dt_service_unload(&m));
    policy.replace_arguments = change_nothing;
    DT_ASSERT_STATUS(dt_service_load(s, folder, &how, &m), DT_ERR_UNSUPPORTED,
                     "functions of this process");
    DT_ASSERT_OK(dt_service_stop(&s));
    run.setup = worker_setup;
    DT_ASSERT_STATUS(dt_service_start(&o, &s), DT_ERR_ARG, "setup is a function of this process");
}
