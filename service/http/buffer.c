/* SPDX-License-Identifier: Apache-2.0 */
#include "service/http/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static bool make_room(dti_buffer *b, size_t more)
{
    if (b->st != DT_OK) return false;
    if (more >= SIZE_MAX / 2 - b->n)
        b->st = DT_ERR_MEMORY;
    else
        b->st = dti_grow((void **)&b->bytes, &b->room, b->n + more + 1, 1);
    return b->st == DT_OK;
}

void dti_buffer_add(dti_buffer *b, const void *bytes, size_t n)
{
    if (n == 0 || !make_room(b, n)) return;
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
    b->bytes[b->n] = '\0';
}

void dti_buffer_text(dti_buffer *b, const char *text)
{
    dti_buffer_add(b, text, strlen(text));
}

void dti_buffer_print(dti_buffer *b, const char *fmt, ...)
{
    char text[512];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n > 0) dti_buffer_add(b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void dti_buffer_json(dti_buffer *b, const char *text, size_t n)
{
    size_t plain = 0;

    dti_buffer_add(b, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        dti_buffer_add(b, text + plain, i - plain);
        plain = i + 1;
        if (c == '\n')
            dti_buffer_add(b, "\\n", 2);
        else if (c == '"' || c == '\\')
            dti_buffer_print(b, "\\%c", c);
        else
            dti_buffer_print(b, "\\u%04x", c);
    }
    dti_buffer_add(b, text + plain, n - plain);
    dti_buffer_add(b, "\"", 1);
}

void dti_buffer_quote(dti_buffer *b, const char *text)
{
    dti_buffer_json(b, text, strlen(text));
}

void dti_buffer_number(dti_buffer *b, double x)
{
    if (isfinite(x))
        dti_buffer_print(b, "%.9g", x);
    else
        dti_buffer_text(b, "null");
}

void dti_buffer_drop(dti_buffer *b, size_t n)
{
    if (n >= b->n) {
        b->n = 0;
        return;
    }
    memmove(b->bytes, b->bytes + n, b->n - n);
    b->n -= n;
    b->bytes[b->n] = '\0';
}

void dti_buffer_cut(dti_buffer *b, size_t n)
{
    if (n >= b->n) return;
    b->n = n;
    b->bytes[n] = '\0';
}

void dti_buffer_free(dti_buffer *b)
{
    dti_free(b->bytes);
    *b = (dti_buffer){ 0 };
}
