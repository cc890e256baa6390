/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of tools in what a model has written: <tool_call>{...}</tool_call> as Qwen and Hermes write
 * them, and a text that is nothing but objects of JSON with a name, as Llama 3 writes them. */
#ifndef DTI_HTTP_TOOLS_H
#define DTI_HTTP_TOOLS_H

#include "service/http/choices.h"

/* How much of a text comes before anything that may be, or become, a call. */
size_t dti_tools_begin(const char *text, size_t n);

/* Takes the calls out of a text that has ended; without any it stays as it is. */
dt_status dti_tools_take(dti_http_choice *c) DT_MUST_USE;

#endif
