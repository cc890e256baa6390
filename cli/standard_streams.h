/* SPDX-License-Identifier: Apache-2.0
 *
 * Standard input, output and error as a program expects them, however the command was started. */
#ifndef DTI_CLI_STANDARD_STREAMS_H
#define DTI_CLI_STANDARD_STREAMS_H

/* First of all, before a file is opened. A descriptor that is closed is occupied, so that no file,
 * socket or memory lands there and gets what is printed; reading and writing it fails as before.
 * A descriptor that does not block is waited for instead of losing what it cannot take. */
void cli_standard_streams(void);

#endif
