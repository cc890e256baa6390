/* SPDX-License-Identifier: Apache-2.0
 *
 * Standard input, output and error as a program expects them, however the command was started. */
#ifndef DTI_CLI_STANDARD_STREAMS_H
#define DTI_CLI_STANDARD_STREAMS_H

/* First of all, before a file is opened. A descriptor that is closed is occupied, so that no file,
 * socket or memory lands there and gets what is printed; reading and writing it fails as before.
 * Descriptors are waited for instead of losing what they cannot take, whether they block or not,
 * but not longer than `timeout_ms` says (DTENSOR_TIMEOUT_MS; NULL or no such number: 600000) for a
 * reader that takes nothing: from then on writing fails with ETIMEDOUT. */
void cli_standard_streams(const char *timeout_ms);

#endif
