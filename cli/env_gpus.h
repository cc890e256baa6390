/* SPDX-License-Identifier: Apache-2.0
 *
 * What `dtensor env` says of GPUs: the module, the driver, the libraries, and whether they fit each
 * other. */
#ifndef DTI_CLI_ENV_GPUS_H
#define DTI_CLI_ENV_GPUS_H

#include <jansson.h>

void cli_print_gpus(void);
json_t *cli_gpus_json(void); /* a new reference; NULL: no memory */

#endif
