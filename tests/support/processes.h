/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes of one job, as torchrun starts them, of which a test kills some: each is a fork of the
 * test and says words, which the test hears. */
#ifndef DT_TEST_PROCESSES_H
#define DT_TEST_PROCESSES_H

#include <sys/types.h>

#include "tests/support/dt_test.h"

enum { DT_TEST_WORD_BYTES = 4096 };

/* What a process of the job does; returns its last word. */
typedef const char *(*dt_test_process_main)(void);

typedef struct dt_test_process {
    pid_t pid;
    int words; /* what it says, in lines */
} dt_test_process;

/* Process `rank` of `size`; `job` keeps jobs of this test apart, and from others. */
dt_test_process dt_test_process_start(int rank, int size, int job, dt_test_process_main main_of);

/* In such a process. */
void dt_test_process_say(const char *word);

/* The next word of a process, or all that is left when it ends. */
const char *dt_test_process_hear(const dt_test_process *p, char word[DT_TEST_WORD_BYTES]);

/* Kills it, if it still lives. */
void dt_test_process_end(dt_test_process *p);

#endif
