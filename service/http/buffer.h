/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes of an answer. The first error stays and makes the rest do nothing, so that a writer asks
 * once, at the end. */
#ifndef DTI_BUFFER_H
#define DTI_BUFFER_H

#include "base/error.h"

typedef struct dti_buffer {
    char *bytes; /* ends with a zero that n does not count, unless there is nothing */
    size_t n, room;
    dt_status st;
} dti_buffer;

void dti_buffer_add(dti_buffer *b, const void *bytes, size_t n);
void dti_buffer_text(dti_buffer *b, const char *text);
void dti_buffer_print(dti_buffer *b, const char *fmt, ...) DT_PRINTF(2, 3);

/* n bytes of UTF-8 between quotes, with the escapes of JSON; the second: up to the zero. */
void dti_buffer_json(dti_buffer *b, const char *text, size_t n);
void dti_buffer_quote(dti_buffer *b, const char *text);

/* A number as JSON has it; one that is none is null. */
void dti_buffer_number(dti_buffer *b, double x);

/* Drops the first n bytes, or all after the first n. */
void dti_buffer_drop(dti_buffer *b, size_t n);
void dti_buffer_cut(dti_buffer *b, size_t n);
void dti_buffer_free(dti_buffer *b); /* empty and usable afterwards */

#endif
