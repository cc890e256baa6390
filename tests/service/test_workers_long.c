/* SPDX-License-Identifier: Apache-2.0
 *
 * Each worker dies at each point of a request's life, in either way. */
#include <signal.h>

#include "tests/support/dt_test.h"
#include "tests/support/worker_deaths.h"

static void die_everywhere(int n_ranks, int n_processes, int signal)
{
    for (int when = 0; when < N_WORKER_POINTS; when++)
        for (int process = 0; process < n_processes; process++)
            worker_dies(
                &(worker_death){ n_ranks, n_processes, process, signal, (worker_point)when });
}

DT_TEST(worker_deaths, killed_at_each_point)
{
    die_everywhere(1, 1, SIGKILL);
    die_everywhere(2, 2, SIGKILL);
    die_everywhere(3, 2, SIGKILL);
    die_everywhere(4, 4, SIGKILL);
}

DT_TEST(worker_deaths, stopped_at_each_point)
{
    die_everywhere(1, 1, SIGSTOP);
    die_everywhere(2, 2, SIGSTOP);
    die_everywhere(3, 3, SIGSTOP);
}

/* What is not seen at the first time. */
DT_TEST(worker_deaths, killed_again_and_again)
{
    for (int i = 0; i < 40; i++)
        worker_dies(&(worker_death){ 2, 2, i % 2, SIGKILL, (worker_point)(i % N_WORKER_POINTS) });
}
