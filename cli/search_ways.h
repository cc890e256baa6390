/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan --auto: which way a machine makes a step in the least time. */
#ifndef DTI_CLI_SEARCH_WAYS_H
#define DTI_CLI_SEARCH_WAYS_H

#include "cli/cli.h"

/* To stdout. Errors: DT_ERR_ARG, also where the model fits in no way. */
dt_status cli_search_ways(const cli_args *args, const cli_console *console) DT_MUST_USE;

/* This machine, measured for so many seconds as the command line has it (cmd_calibrate.c). */
dt_status cli_measure_machine(const cli_args *args, const cli_console *console, double seconds,
                              dt_machine *out) DT_MUST_USE;

/* Refuses what is of --auto without it. */
dt_status cli_check_auto(const cli_args *args) DT_MUST_USE;

#endif
