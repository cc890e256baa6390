/* SPDX-License-Identifier: Apache-2.0
 *
 * How `dtensor generate` and `dtensor chat` choose tokens: what the checkpoint's
 * generation_config.json says, and the options of the command line over it. */
#ifndef DTI_CLI_WISHES_H
#define DTI_CLI_WISHES_H

#include "cli/option_table.h"
#include "cli/prompt.h"

typedef struct cli_wishes {
    dt_generate_options options;
    bool talks;            /* set before: answers of a conversation, which may fill the context */
    bool many;             /* several texts: beams, more than one of a prompt, or prompts */
    dt_checkpoint *folder; /* owns lists of the options */
    int32_t *ids;          /* and so do these */
    dt_ids *words;
} cli_wishes;

/* Zeroed before, apart from `talks`; freed with cli_wishes_free() in any case.
 * options.max_new_tokens is settled: what was asked for, or what the context has room for behind
 * the longest prompt. */
dt_status cli_wishes_read(const cli_session *s, const cli_prompts *prompts,
                          cli_wishes *out) DT_MUST_USE;
void cli_wishes_free(cli_wishes *wishes);

#endif
