/* SPDX-License-Identifier: Apache-2.0
 *
 * `dtensor generate` of several texts at once: printed when all are there. */
#ifndef DTI_CLI_TEXTS_H
#define DTI_CLI_TEXTS_H

#include "cli/wishes.h"

/* Starts the ranks, generates, prints. */
dt_status cli_generate_texts(cli_session *s, const cli_prompts *prompts,
                             const cli_wishes *wishes) DT_MUST_USE;

/* "eos", "string", "length", or "none". */
const char *cli_end_name(dt_end end);

/* Why a text of n tokens that dt_generate() made ended: its last token ends texts, or there was no
 * room for more, or a string did. */
dt_end cli_end_of(const dt_generate_options *o, const dt_model_info *info, const int32_t *tokens,
                  int64_t n);

#endif
