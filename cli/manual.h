/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual page of the command, and its completion in bash. */
#ifndef DTI_CLI_MANUAL_H
#define DTI_CLI_MANUAL_H

#include "cli/cli.h"

/* What --help says of the command as a whole. */
typedef struct cli_overview {
    const cli_command *const *commands;
    size_t n_commands;
    const char *about; /* paragraphs without line ends */
    const char *ending;
} cli_overview;

/* Prints dtensor(1) to stdout, as roff. Every sentence is one that --help prints. */
void cli_print_manual(const cli_overview *overview);

/* Prints a completion script for bash to stdout: the commands and options that --help lists. */
void cli_print_completion(const cli_overview *overview);

#endif
