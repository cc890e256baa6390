/* SPDX-License-Identifier: Apache-2.0
 *
 * snprintf() piece by piece: text that is cut where the room ends, and its whole length. */
#ifndef DTI_WRITER_H
#define DTI_WRITER_H

#include <dtensor/base.h>

typedef struct dti_writer {
    char *text; /* may be NULL if bytes is 0 */
    size_t bytes;
    size_t used; /* length of the whole text, without its end */
} dti_writer;

void dti_put(dti_writer *w, const char *fmt, ...) DT_PRINTF(2, 3);

/* `text` between quotes, with the escapes of JSON. */
void dti_put_json(dti_writer *w, const char *text);

/* The length as a function like snprintf() returns it. */
int dti_written(const dti_writer *w);

#endif
