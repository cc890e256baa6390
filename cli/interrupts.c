/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/interrupts.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* A signal handler can leave its word nowhere else. */
static volatile sig_atomic_t interrupted;

/* Who asks a second time, before the first one was heard, means it. */
static void on_interrupt(int number)
{
    if (interrupted != 0) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
    interrupted = number;
}

dt_status cli_interrupts_catch(bool termination)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    const size_t n = termination ? DT_COUNT(numbers) : 1;

    for (size_t i = 0; i < n; i++) {
        struct sigaction action = { .sa_handler = on_interrupt,
                                    .sa_flags = termination ? SA_RESTART : 0 };
        struct sigaction before;

        DT_CHECK(sigaction(numbers[i], NULL, &before) == 0 &&
                     (before.sa_handler == SIG_IGN || sigaction(numbers[i], &action, NULL) == 0),
                 DT_ERR_INTERNAL, "sigaction: %s", strerror(errno));
    }
    return DT_OK;
}

int cli_interrupted(void)
{
    return interrupted;
}

void cli_interrupt_forget(void)
{
    interrupted = 0;
}
