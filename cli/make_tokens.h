/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of tokens: `dtensor tokenize --output`. */
#ifndef DTI_CLI_MAKE_TOKENS_H
#define DTI_CLI_MAKE_TOKENS_H

#include "cli/cli.h"

/* Tokenizes args->files into args->output, and prints what came of it. */
/* Warns of bytes that are no text: another encoding, or no text at all. */
void cli_warn_of_broken(const cli_console *console, const char *files, const dt_tokenized *told);

dt_status cli_make_tokens(const cli_args *args, const cli_console *console) DT_MUST_USE;

/* The id of "eos_token" of a folder's tokenizer_config.json or special_tokens_map.json. */
dt_status cli_end_token(const char *folder, const dt_tokenizer *tok, int32_t *out) DT_MUST_USE;

/* The folder's chat template; *out stays NULL where it has none. */
dt_status cli_open_chat(const char *folder, dt_chat **out) DT_MUST_USE;

#endif
