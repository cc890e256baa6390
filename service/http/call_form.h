/* SPDX-License-Identifier: Apache-2.0
 *
 * How a chat template writes calls of tools: found by having it write one. So an answer that has
 * to be a call is one that its model knows. */
#ifndef DTI_HTTP_CALL_FORM_H
#define DTI_HTTP_CALL_FORM_H

#include <dtensor/chat.h>

typedef struct dti_call_form {
    char before[64];       /* "<tool_call>\n": between where a turn begins and {"name": ...}; */
    const char *arguments; /* how that object calls them, "arguments" or "parameters" */
} dti_call_form;

/* False: in none of these forms, or not at all. */
bool dti_call_form_find(const dt_chat *chat, dti_call_form *out);

#endif
