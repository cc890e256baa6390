/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules that --load names: opened before the command runs, so that a mistake is reported once. */
#ifndef DTI_CLI_MODULES_H
#define DTI_CLI_MODULES_H

#include "cli/cli.h"

/* Opens what --load names into args->modules, and makes args->registry, a runtime without ranks
 * that has what they add. Nothing, both NULL, without --load. */
dt_status cli_modules_open(cli_args *args) DT_MUST_USE;
void cli_modules_close(cli_args *args);

/* What runs begin with: options with the modules' setup. */
void cli_modules_setup(const cli_args *args, dt_run_options *run);

#endif
