/* SPDX-License-Identifier: Apache-2.0
 *
 * Options from files: a JSON object whose keys are the names of options, "weight-decay" or
 * "weight_decay". What the command line says counts before what a file says. */
#ifndef DTI_CLI_OPTION_FILE_H
#define DTI_CLI_OPTION_FILE_H

#include "cli/cli.h"

/* The file in the folder of a run that says how it was begun. */
#define CLI_RUN_OPTIONS "options.json"

/* Its member that is no option: what the file of --plan said. */
#define CLI_PLAN_CONTENT "plan-content"

/* Reads the file of --options and, of a run that goes on (--resume), its own CLI_RUN_OPTIONS, into
 * what is not given yet. Freed with cli_args_free(), also after an error. */
dt_status cli_option_files_read(const cli_command *command, cli_args *args,
                                const cli_console *console) DT_MUST_USE;

/* Of an error about an option that the file of a run said, and the command line did not: that, and
 * how it is taken back. */
void cli_option_files_explain(const cli_args *args);

/* The options of a command that are given, as such an object, less those that are of one call alone
 * and not of a run. DT_ERR_ARG: one of them is no text that JSON could keep. */
dt_status cli_options_json(const cli_command *command, const cli_args *args,
                           struct json_t **out) DT_MUST_USE;

#endif
