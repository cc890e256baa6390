/* SPDX-License-Identifier: Apache-2.0
 *
 * The turns of `dtensor chat`: what was said, the lines that come from standard input. */
#ifndef DTI_CLI_CONVERSATION_H
#define DTI_CLI_CONVERSATION_H

#include "cli/cli.h"

/* Zeroed to begin with. */
typedef struct cli_conversation {
    dt_chat_message *turns; /* texts are owned, roles are not */
    size_t n, room;
    char *input; /* read and not yet used */
    size_t n_input, room_input;
    bool ended; /* there is no more input */
} cli_conversation;

void cli_conversation_free(cli_conversation *t);

dt_status cli_turn_add(cli_conversation *t, const char *role, const char *text,
                       size_t n) DT_MUST_USE;
void cli_turn_drop(cli_conversation *t); /* the last one */

/* The next line of standard input becomes a turn of the user; *got is false at the end. Empty lines
 * are no turns. */
dt_status cli_turn_read(cli_conversation *t, bool *got) DT_MUST_USE;

#endif
