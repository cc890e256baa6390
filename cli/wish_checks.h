/* SPDX-License-Identifier: Apache-2.0
 *
 * Wishes that contradict each other, do nothing, or ask for more than there is. */
#ifndef DTI_CLI_WISH_CHECKS_H
#define DTI_CLI_WISH_CHECKS_H

#include "cli/session.h"
#include "cli/wishes.h"

/* What messages call a wish: the option that gave it, or the key of generation_config.json. */
dt_option_names cli_wish_names(const cli_args *args);

/* Whether the user asks for draws, by --sample or by what only draws look at. */
bool cli_wishes_draw(const cli_args *args);

/* Refuses two answers of the user to one question. */
dt_status cli_wishes_agree(const cli_args *args) DT_MUST_USE;

/* Refuses what the library refuses as well, in words of the command; warns of options that change
 * nothing, as Transformers does. `prompt` has the longest prompt's tokens. */
dt_status cli_wishes_make_sense(const cli_session *s, const dt_generate_options *o,
                                int64_t prompt) DT_MUST_USE;

/* Refuses several texts that cannot be had together: their number, or the memory that they need. */
dt_status cli_wishes_check_many(const cli_session *s, const cli_prompts *prompts,
                                const cli_wishes *wishes) DT_MUST_USE;

#endif
