/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/processes.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 3 }; /* descriptor of a process for what it says */

/* A process ends with its test, also where that fails: the runner waits for who has its pipes. */
static void end_with(pid_t test)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(1);
}

void dt_test_process_say(const char *word)
{
    (void)!write(WORDS, word, strlen(word));
}

dt_test_process dt_test_process_start(int rank, int size, int job, dt_test_process_main main_of)
{
    char folder[DT_TEST_PATH_BYTES], text[64];
    const pid_t test = getpid();
    dt_test_process p = { 0 };
    int ends[2];

    (void)dt_test_binary_path(folder, "lib/dtensor");
    DT_ASSERT_EQ_INT(pipe(ends), 0);
    p.pid = fork();
    DT_ASSERT(p.pid >= 0);
    if (p.pid == 0) {
        const char *word;
        end_with(test);
        (void)setenv("DTENSOR_MODULES", folder, 1);
        (void)snprintf(text, sizeof text, "%d", rank);
        (void)setenv("RANK", text, 1);
        (void)snprintf(text, sizeof text, "%d", size);
        (void)setenv("WORLD_SIZE", text, 1);
        (void)snprintf(text, sizeof text, "test%ld.%d", (long)test, job);
        (void)setenv("MASTER_PORT", text, 1);
        (void)dup2(ends[1], WORDS);
        word = main_of();
        dt_test_process_say(word);
        _exit(0);
    }
    (void)close(ends[1]);
    p.words = ends[0];
    return p;
}

const char *dt_test_process_hear(const dt_test_process *p, char word[DT_TEST_WORD_BYTES])
{
    ssize_t n = read(p->words, word, DT_TEST_WORD_BYTES - 1);

    DT_ASSERT(n >= 0 && n < DT_TEST_WORD_BYTES);
    word[n] = '\0';
    return word;
}

void dt_test_process_end(dt_test_process *p)
{
    (void)kill(p->pid, SIGKILL);
    (void)waitpid(p->pid, NULL, 0);
    (void)close(p->words);
}
