/* SPDX-License-Identifier: Apache-2.0
 *
 * What the model reads first: --prompt, --prompt-file or --tokens, as ids. */
#ifndef DTI_CLI_PROMPT_H
#define DTI_CLI_PROMPT_H

#include <dtensor/tokenizer.h>

#include "cli/session.h"

typedef struct cli_prompt {
    dt_tokenizer *tokenizer; /* NULL: the folder has none, output is ids */
    int32_t *ids;
    int64_t n;
} cli_prompt;

/* Reads and encodes the prompt, and checks that its ids are in the vocabulary and that it fits into
 * the model's context. A tokenizer is opened if the prompt is text or the answer should be. Zeroed
 * before; freed with cli_prompt_free() in any case. */
dt_status cli_prompt_read(const cli_session *s, bool answers_text, cli_prompt *out) DT_MUST_USE;
void cli_prompt_free(cli_prompt *prompt);

/* Whether the folder has a tokenizer that could be opened: tokenizer.json, or vocab.json and
 * merges.txt. Their names, or NULL. */
const char *cli_tokenizer_kind(const char *folder);

#endif
