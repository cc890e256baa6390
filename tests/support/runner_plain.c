/* SPDX-License-Identifier: Apache-2.0
 *
 * A test runner that does little: tests register before main, run one after the other in the order
 * of their names, and leave by longjmp on the main thread. Each is a process of its own, as with
 * Criterion, so that what it does to the simulated device, the environment or a limit ends with it.
 * Processes that mpirun started stay as they are: MPI knows no others. Of those the first one
 * speaks, and the ones that find fault.
 *
 *   test_mesh [--filter suite/name*]... [--list] */
#include "tests/support/dt_test.h"

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASSED = 0, FAILED = 1, SKIPPED = 2, N_VERDICTS = 3 };

static dt_test_entry *entries;
static jmp_buf leave;

static int order(const dt_test_entry *a, const dt_test_entry *b)
{
    const int by_suite = strcmp(a->suite, b->suite);

    return by_suite ? by_suite : strcmp(a->name, b->name);
}

void dt_test_register(dt_test_entry *entry)
{
    dt_test_entry **at = &entries;

    while (*at != NULL && order(*at, entry) < 0) at = &(*at)->next;
    entry->next = *at;
    *at = entry;
}

void dt_test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list args;

    (void)fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
    longjmp(leave, FAILED);
}

void dt_test_skip(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
    longjmp(leave, SKIPPED);
}

static int run(const dt_test_entry *e)
{
    static const char *const words[N_VERDICTS] = { "pass", "FAIL", "skip" };
    const int verdict = setjmp(leave);

    if (verdict == PASSED) {
        dti_error_clear(); /* as if the test had a process of its own */
        e->run();
    }
    if (verdict == FAILED || dt_launch_process() == 0)
        (void)printf("%s  %s/%s\n", words[verdict], e->suite, e->name);
    (void)fflush(stdout);
    return verdict;
}

/* A test that ends in another way than by its verdict has failed. Leaving by exit() lets
 * sanitizers speak. */
static int run_apart(const dt_test_entry *e)
{
    int status = 0;
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) exit(run(e));
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
        WEXITSTATUS(status) < N_VERDICTS)
        return WEXITSTATUS(status);
    (void)printf("FAIL  %s/%s ended by %s %d\n", e->suite, e->name,
                 WIFSIGNALED(status) ? "signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return FAILED;
}

/* Whether one of the filters is met, or there is none. */
static bool is_asked_for(const char *name, int argc, char **argv)
{
    bool any = false;

    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--filter") != 0) continue;
        if (fnmatch(argv[++i], name, 0) == 0) return true;
        any = true;
    }
    return !any;
}

int main(int argc, char **argv)
{
    bool list = false;
    int count[N_VERDICTS] = { 0, 0, 0 };

    for (int i = 1; i < argc; i++) list |= strcmp(argv[i], "--list") == 0;
    for (const dt_test_entry *e = entries; e != NULL; e = e->next) {
        char name[512];

        (void)snprintf(name, sizeof name, "%s/%s", e->suite, e->name);
        if (!is_asked_for(name, argc, argv)) continue;
        if (list)
            (void)puts(name);
        else
            count[dt_launch_size() > 1 ? run(e) : run_apart(e)]++;
    }
    if (!list && (dt_launch_process() == 0 || count[FAILED] > 0))
        (void)printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED],
                     count[SKIPPED]);
    return count[FAILED] > 0 || (!list && count[PASSED] + count[SKIPPED] == 0);
}
