/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_CHAT_TEMPLATE_H
#define DTI_CHAT_TEMPLATE_H

#include <dtensor/chat.h>

struct json_t;

/* dt_chat_create() with special tokens by name, of which it takes a reference. */
dt_status dti_chat_create(const char *name, const char *source, size_t n, struct json_t *tokens,
                          dt_chat **out) DT_MUST_USE;

#endif
