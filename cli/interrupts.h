/* SPDX-License-Identifier: Apache-2.0
 *
 * Ctrl-C, and the signal that asks a program to end. */
#ifndef DTI_CLI_INTERRUPTS_H
#define DTI_CLI_INTERRUPTS_H

#include "cli/cli.h"

/* From now on Ctrl-C, and with `termination` SIGTERM and SIGHUP as well, is remembered instead of
 * ending the process, until it is forgotten; a second one ends it. Whoever started the process with
 * one of them ignored, as nohup does, wants it so. */
dt_status cli_interrupts_catch(bool termination) DT_MUST_USE;

/* The signal that has come; 0: none. */
int cli_interrupted(void);
void cli_interrupt_forget(void);

#endif
