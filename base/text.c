/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
    UNIT_BYTES = 16
}; /* the longest unit below: an escaped control of three bytes, and a zero */

/* The length of the character of UTF-8 at `p`, or 0 if there is none. */
static size_t character(const unsigned char *p)
{
    const size_t n = p[0] < 0x80   ? 1
                     : p[0] < 0xc2 ? 0
                     : p[0] < 0xe0 ? 2
                     : p[0] < 0xf0 ? 3
                     : p[0] < 0xf5 ? 4
                                   : 0;

    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0u) != 0x80u) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0; /* overlong */
    if (p[0] == 0xed && p[1] > 0x9f) return 0; /* surrogates */
    if (p[0] == 0xf0 && p[1] < 0x90) return 0; /* overlong */
    if (p[0] == 0xf4 && p[1] > 0x8f) return 0; /* past the last character */
    return n;
}

size_t dti_control_bytes(const char *text, size_t n)
{
    static const char *const marks[] = { "\xd8\x9c",     "\xe2\x80\x8e", "\xe2\x80\x8f",
                                         "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaa",
                                         "\xe2\x80\xab", "\xe2\x80\xac", "\xe2\x80\xad",
                                         "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa7",
                                         "\xe2\x81\xa8", "\xe2\x81\xa9" };
    const unsigned char *c = (const unsigned char *)text;

    if (n == 0) return 0;
    if (c[0] < 0x80) return c[0] < 0x20 || c[0] == 0x7f;
    if (n > 1 && c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) return 2;
    for (size_t i = 0; i < DT_COUNT(marks); i++) {
        const size_t bytes = strlen(marks[i]);
        if (bytes <= n && memcmp(c, marks[i], bytes) == 0) return bytes;
    }
    return 0;
}

static size_t escaped(const unsigned char *p, size_t n, char unit[UNIT_BYTES])
{
    static const char letters[] = "\n\r\t", names[] = "nrt";
    const char *letter = memchr(letters, p[0], sizeof letters - 1);
    size_t used = 0;

    if (letter != NULL) return (size_t)snprintf(unit, UNIT_BYTES, "\\%c", names[letter - letters]);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(unit + used, UNIT_BYTES - used, "\\x%02x", p[i]);
    return used;
}

/* What becomes of the character at *p, which moves behind it. Returns its bytes. */
static size_t next_unit(const unsigned char **p, char unit[UNIT_BYTES])
{
    const unsigned char *at = *p;
    const size_t n = character(at);

    *p += n > 0 ? n : 1;
    if (n == 0 || dti_control_bytes((const char *)at, n) > 0)
        return escaped(at, n > 0 ? n : 1, unit);
    memcpy(unit, at, n);
    return n;
}

/* Copies units while they fit into `room` bytes; *p moves behind them. */
static size_t copy_units(const unsigned char **p, char *out, size_t room)
{
    char unit[UNIT_BYTES];
    size_t used = 0;

    while (**p != '\0') {
        const unsigned char *next = *p;
        const size_t n = next_unit(&next, unit);
        if (used + n > room) break;
        memcpy(out + used, unit, n);
        used += n;
        *p = next;
    }
    return used;
}

const char *dti_printable(const char *text, char *out, size_t out_bytes)
{
    static const char gap[] = "...";
    const unsigned char *p = (const unsigned char *)text;
    const size_t room = out_bytes - 1, head = (room - (sizeof gap - 1)) / 2;
    const size_t tail = room - (sizeof gap - 1) - head;
    char unit[UNIT_BYTES];
    size_t all = 0, used;

    DT_ASSERT(out_bytes >= 16);
    for (const unsigned char *q = p; *q != '\0';) all += next_unit(&q, unit);
    if (all <= room) {
        used = copy_units(&p, out, room);
    } else {
        used = copy_units(&p, out, head);
        all -= used;
        while (all > tail) all -= next_unit(&p, unit);
        memcpy(out + used, gap, sizeof gap - 1);
        used += sizeof gap - 1;
        used += copy_units(&p, out + used, tail);
    }
    out[used] = '\0';
    return out;
}

const char *dti_number_text(double x, char out[DTI_NUMBER_BYTES])
{
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(out, DTI_NUMBER_BYTES, "%.*g", digits, x);
        if (strtod(out, NULL) == x) break;
    }
    return out;
}

size_t dti_next_word(const char **text)
{
    if (*text == NULL) return 0;
    *text += strspn(*text, " ,");
    return strcspn(*text, " ,");
}

bool dti_has_word(const char *text, const char *word, size_t n)
{
    for (size_t k; (k = dti_next_word(&text)) > 0; text += k)
        if (k == n && memcmp(text, word, n) == 0) return true;
    return false;
}

const char *dti_shape_text(const int64_t *shape, int n, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "[");

    for (int a = 0; a < n && used < out_bytes; a++)
        used += (size_t)snprintf(out + used, out_bytes - used, a ? ", %lld" : "%lld",
                                 (long long)shape[a]);
    if (used < out_bytes) (void)snprintf(out + used, out_bytes - used, "]");
    return out;
}

static const char *scaled(double value, double step, const char *const *units, int n_units,
                          char text[DTI_NUMBER_BYTES])
{
    int unit = 0;

    while (value >= step && unit + 1 < n_units) {
        value /= step;
        unit++;
    }
    (void)snprintf(text, DTI_NUMBER_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    if (units[unit][0] == '\0') text[strlen(text) - 1] = '\0';
    return text;
}

const char *dti_count_text(int64_t n, char text[DTI_NUMBER_BYTES])
{
    static const char *const units[] = { "", "K", "M", "B" };

    return scaled((double)n, 1000.0, units, 4, text);
}

const char *dti_bytes_text(int64_t bytes, char text[DTI_NUMBER_BYTES])
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB" };

    return scaled((double)bytes, 1024.0, units, (int)DT_COUNT(units), text);
}

bool dti_name_matches(const char *pattern, const char *name)
{
    const size_t p = strcspn(pattern, "."), n = strcspn(name, ".");

    if (p == 2 && strncmp(pattern, "**", 2) == 0) {
        if (pattern[2] == '\0') return true;
        for (const char *at = name; at != NULL; at = strchr(at, '.')) {
            if (*at == '.') at++;
            if (dti_name_matches(pattern + 3, at)) return true;
        }
        return false;
    }
    if (!(p == 1 && pattern[0] == '*' && n > 0) && (p != n || strncmp(pattern, name, n) != 0))
        return false;
    if (pattern[p] != name[n]) return false;
    return pattern[p] == '\0' || dti_name_matches(pattern + p + 1, name + n + 1);
}
