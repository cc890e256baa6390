/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

dt_status dti_text_too_long(size_t limit)
{
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "a step of the tokenizer makes more than %zu bytes: over %d times as much as it was "
            "given",
            limit, DTI_TEXT_GROWTH);
}

dt_status dti_text_reserve(dti_text *text, size_t more)
{
    if (text->limit > 0 && (text->bytes > text->limit || more > text->limit - text->bytes))
        return dti_text_too_long(text->limit);
    DT_CHECK(more < SIZE_MAX / 2 - text->bytes, DT_ERR_MEMORY, "a text of over %zu bytes",
             text->bytes);
    return dti_grow((void **)&text->data, &text->capacity, text->bytes + more, 1);
}

dt_status dti_text_append(dti_text *text, const char *s, size_t n)
{
    if (n == 0) return DT_OK;
    if (text->capacity - text->bytes < n) DT_TRY(dti_text_reserve(text, n));
    memcpy(text->data + text->bytes, s, n);
    text->bytes += n;
    return DT_OK;
}

dt_status dti_text_append_char(dti_text *text, uint32_t c)
{
    char buffer[4];

    return dti_text_append(text, buffer, dti_utf8_write(c, buffer));
}

dt_status dti_text_printf(dti_text *text, const char *fmt, ...)
{
    char line[256];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    DT_CHECK(n >= 0 && (size_t)n < sizeof line, DT_ERR_INTERNAL, "a line of %d characters", n);
    return dti_text_append(text, line, (size_t)n);
}

void dti_text_free(dti_text *text)
{
    dti_free(text->data);
    *text = (dti_text){ 0 };
}

uint32_t dti_utf8_before(const char *s, size_t end, size_t *begin)
{
    size_t at = end - 1;

    while (at > 0 && ((unsigned char)s[at] & 0xc0u) == 0x80u) at--;
    *begin = at;
    return dti_utf8_at(s + at);
}

size_t dti_utf8_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0u | c >> 6);
        out[1] = (char)(0x80u | (c & 0x3fu));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0u | c >> 12);
        out[1] = (char)(0x80u | (c >> 6 & 0x3fu));
        out[2] = (char)(0x80u | (c & 0x3fu));
        return 3;
    }
    out[0] = (char)(0xf0u | c >> 18);
    out[1] = (char)(0x80u | (c >> 12 & 0x3fu));
    out[2] = (char)(0x80u | (c >> 6 & 0x3fu));
    out[3] = (char)(0x80u | (c & 0x3fu));
    return 4;
}

/* Length of the character that begins with `lead`, and the range of its second byte, which alone
 * rules out overlong forms, surrogates and what lies above U+10FFFF. 0: no character begins so. */
static size_t lead_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* How much of one character the n > 0 bytes at s hold. *length is that of the whole character, or 0
 * if what is there can never become one; the result then is the maximal part that is broken. */
static size_t part(const unsigned char *s, size_t n, size_t *length)
{
    unsigned char low, high;
    size_t have = 1;

    *length = lead_length(s[0], &low, &high);
    while (have < *length && have < n) {
        if (s[have] < low || s[have] > high) {
            *length = 0;
            return have;
        }
        low = 0x80;
        high = 0xbf;
        have++;
    }
    return have;
}

size_t dti_utf8_valid(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t at = 0, length;

    while (at < n) {
        uint64_t eight;

        if (n - at >= sizeof eight) { /* most text is ASCII */
            memcpy(&eight, u + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        if (u[at] < 0x80)
            at++;
        else if (part(u + at, n - at, &length) == length)
            at += length;
        else
            break;
    }
    return at;
}

/* Goes on with the character whose beginning is held; *used bytes of s were taken. */
static dt_status complete(dti_utf8_repair *r, const char *s, size_t n, size_t *used, dti_text *out)
{
    size_t length, have;

    *used = 0;
    while (r->n_held > 0 && *used < n) {
        r->held[r->n_held] = s[*used];
        have = part((const unsigned char *)r->held, r->n_held + 1, &length);
        if (length == 0) { /* the new byte does not belong to it */
            r->n_held = 0;
            return dti_text_append(out, replacement, 3);
        }
        (*used)++;
        if (have == length) {
            r->n_held = 0;
            return dti_text_append(out, r->held, length);
        }
        r->n_held = have;
    }
    return DT_OK;
}

dt_status dti_utf8_push(dti_utf8_repair *r, const char *s, size_t n, dti_text *out)
{
    size_t at;

    DT_TRY(complete(r, s, n, &at, out));
    while (at < n) {
        const size_t good = dti_utf8_valid(s + at, n - at);
        size_t length, have;

        DT_TRY(dti_text_append(out, s + at, good));
        at += good;
        if (at == n) break;
        have = part((const unsigned char *)s + at, n - at, &length);
        if (length > have) { /* may still be completed */
            memcpy(r->held, s + at, have);
            r->n_held = have;
            break;
        }
        DT_TRY(dti_text_append(out, replacement, 3));
        at += have;
    }
    return DT_OK;
}

dt_status dti_utf8_flush(dti_utf8_repair *r, dti_text *out)
{
    if (r->n_held == 0) return DT_OK;
    r->n_held = 0;
    return dti_text_append(out, replacement, 3);
}

dt_status dti_text_append_bytes_as_chars(dti_text *text, const char *s, size_t n)
{
    DT_CHECK(n < SIZE_MAX / 4, DT_ERR_MEMORY, "a text of %zu bytes", n);
    DT_TRY(dti_text_reserve(text, 2 * n));
    for (size_t i = 0; i < n; i++)
        text->bytes +=
            dti_utf8_write(dti_byte_to_char((unsigned char)s[i]), text->data + text->bytes);
    return DT_OK;
}
