/* SPDX-License-Identifier: Apache-2.0 */
#include "base/writer.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

void dti_put(dti_writer *w, const char *fmt, ...)
{
    const size_t room = w->used < w->bytes ? w->bytes - w->used : 0;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(room > 0 ? w->text + w->used : NULL, room, fmt, args);
    va_end(args);
    w->used += n > 0 ? (size_t)n : 0;
}

void dti_put_json(dti_writer *w, const char *text)
{
    dti_put(w, "\"");
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            dti_put(w, "\\%c", c);
        else if (c < 0x20)
            dti_put(w, "\\u%04x", c);
        else
            dti_put(w, "%c", c);
    }
    dti_put(w, "\"");
}

int dti_written(const dti_writer *w)
{
    return w->used > INT_MAX ? INT_MAX : (int)w->used;
}
