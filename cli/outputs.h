/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a command may write. */
#ifndef DTI_CLI_OUTPUTS_H
#define DTI_CLI_OUTPUTS_H

#include "cli/cli.h"

/* Names of files that a saved model has. */
bool cli_is_of_model(const char *name);

/* Refuses a file to write, of an option, that the command reads, whatever option or folder of a
 * model says so. */
dt_status cli_check_unread(const char *option, const char *path, const cli_args *args) DT_MUST_USE;

/* Refuses two options that write to one place, whether it is there yet or not. */
dt_status cli_check_apart(const cli_args *args) DT_MUST_USE;

/* The same, and one that lies in the folder of a model or a run under a name of their own files. */
dt_status cli_check_output(const char *option, const char *path, const cli_args *args) DT_MUST_USE;

/* The same, and one whose folder is not there or not writable, and what is no file. */
dt_status cli_check_place(const char *option, const char *path, const cli_args *args) DT_MUST_USE;

#endif
