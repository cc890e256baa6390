/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of the tokenizer: a growing buffer, characters of UTF-8, repair of broken UTF-8, and the
 * alphabet in which byte-level vocabularies are written. */
#ifndef DTI_UTF8_H
#define DTI_UTF8_H

#include "base/error.h"

typedef struct dti_text {
    char *data;
    size_t bytes;
    size_t capacity;
    size_t limit; /* it cannot grow beyond; 0: no limit */
} dti_text;

/* What steps of a tokenizer may make of n bytes. Of what steps do in earnest, NFKD of an Arabic
 * ligature grows most: eighteenfold. */
enum { DTI_TEXT_GROWTH = 64, DTI_TEXT_GROWTH_BASE = 1 << 16 };
static inline size_t dti_text_most(size_t n)
{
    const size_t most = (SIZE_MAX - DTI_TEXT_GROWTH_BASE) / DTI_TEXT_GROWTH;

    return n > most ? SIZE_MAX : n * DTI_TEXT_GROWTH + DTI_TEXT_GROWTH_BASE;
}

/* The error of a step that makes more. */
dt_status dti_text_too_long(size_t limit);

dt_status dti_text_reserve(dti_text *text, size_t more) DT_MUST_USE; /* room for `more` bytes */
dt_status dti_text_append(dti_text *text, const char *s, size_t n) DT_MUST_USE;
dt_status dti_text_append_char(dti_text *text, uint32_t c) DT_MUST_USE;
dt_status dti_text_printf(dti_text *text, const char *fmt, ...) DT_PRINTF(2, 3) DT_MUST_USE;
void dti_text_free(dti_text *text); /* empty and usable afterwards */

/* Bytes of the character that begins with `lead`, in valid UTF-8. */
static inline size_t dti_utf8_length(char lead)
{
    const unsigned char c = (unsigned char)lead;

    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* The character at s, in valid UTF-8. */
static inline uint32_t dti_utf8_at(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80) return u[0];
    if (u[0] < 0xe0) return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    if (u[0] < 0xf0) return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
}

/* The character that ends right before s + end, end > 0; *begin is where it begins. */
uint32_t dti_utf8_before(const char *s, size_t end, size_t *begin);

/* Writes c to `out` and returns its length. */
size_t dti_utf8_write(uint32_t c, char out[4]);

/* Length of the longest valid beginning. */
size_t dti_utf8_valid(const char *s, size_t n);

/* Repair of UTF-8 that comes in pieces: a maximal part of a broken sequence becomes one U+FFFD.
 * Holds at most the three bytes of an incomplete character. All zeros to begin with. */
typedef struct dti_utf8_repair {
    char held[4];
    size_t n_held;
} dti_utf8_repair;

dt_status dti_utf8_push(dti_utf8_repair *r, const char *s, size_t n, dti_text *out) DT_MUST_USE;
dt_status dti_utf8_flush(dti_utf8_repair *r, dti_text *out) DT_MUST_USE;

/* GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, the other 68 for U+0100
 * onwards, in order. So a vocabulary of byte strings can be written as JSON strings. */
static inline uint32_t dti_byte_to_char(unsigned char b)
{
    if (b <= 0x20) return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0) return 0x121u + (b - 0x7fu);
    return b == 0xad ? 0x143u : b;
}

/* The byte that a character stands for, or -1. */
static inline int dti_char_to_byte(uint32_t c)
{
    if (c >= 0x100 && c <= 0x120) return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142) return (int)(c - 0x121 + 0x7f);
    if (c == 0x143) return 0xad;
    if ((c > 0x20 && c < 0x7f) || (c > 0xa0 && c <= 0xff && c != 0xad)) return (int)c;
    return -1;
}

/* Appends bytes in that alphabet. */
dt_status dti_text_append_bytes_as_chars(dti_text *text, const char *s, size_t n) DT_MUST_USE;

#endif
