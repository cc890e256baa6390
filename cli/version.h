/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_CLI_VERSION_H
#define DTI_CLI_VERSION_H

/* What `dtensor --version` prints: version, build features, what this machine offers. */
void cli_print_version(void);

#endif
