/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in the cache of the Hugging Face Hub, by name. */
#ifndef DTI_CLI_HUB_MODELS_H
#define DTI_CLI_HUB_MODELS_H

#include "cli/cli.h"

/* Puts the folder of a model of the cache in the place of its name, where --model or the argument
 * of inspect and verify is no path that is there. */
dt_status cli_find_model(const cli_command *command, cli_args *args,
                         const cli_env *env) DT_MUST_USE;

/* dtensor list models. */
dt_status cli_list_models(const cli_args *args, const cli_env *env) DT_MUST_USE;

#endif
