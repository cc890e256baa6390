/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/unicode.h"

#include <stdlib.h>
#include <utf8proc.h>

bool dti_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The row of the table that c is in, or NULL. */
static const dti_category_row *category_row(uint32_t c)
{
    size_t low = 0, high = dti_n_category_rows;

    while (low < high) {
        const size_t mid = (low + high) / 2;

        if (c > dti_category_rows[mid].last)
            low = mid + 1;
        else if (c < dti_category_rows[mid].first)
            high = mid;
        else
            return &dti_category_rows[mid];
    }
    return NULL;
}

static const char *category(uint32_t c, int version)
{
    const dti_category_row *row = category_row(c);

    if (row != NULL && row->since <= version) return row->category;
    return utf8proc_category_string((utf8proc_int32_t)c);
}

bool dti_is_numeric(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    return category(c, 17)[0] == 'N';
}

bool dti_is_punctuation(uint32_t c)
{
    /* punctuation that later versions of Unicode have */
    static const struct {
        uint32_t first, last;
    } younger[] = {
        { 0x061d, 0x061d },   { 0x09fd, 0x09fd },   { 0x0a76, 0x0a76 },   { 0x0c77, 0x0c77 },
        { 0x0c84, 0x0c84 },   { 0x1b4e, 0x1b4f },   { 0x1b7d, 0x1b7f },   { 0x2e43, 0x2e5d },
        { 0x10d6e, 0x10d6e }, { 0x10ead, 0x10ead }, { 0x10f55, 0x10f89 }, { 0x113d4, 0x113d8 },
        { 0x1144b, 0x1145d }, { 0x11660, 0x1166c }, { 0x116b9, 0x116b9 }, { 0x1183b, 0x1183b },
        { 0x11944, 0x11946 }, { 0x119e2, 0x119e2 }, { 0x11a3f, 0x11aa2 }, { 0x11b00, 0x11b09 },
        { 0x11be1, 0x11be1 }, { 0x11c41, 0x11c71 }, { 0x11ef7, 0x11ef8 }, { 0x11f43, 0x11f4f },
        { 0x11fff, 0x11fff }, { 0x12ff1, 0x12ff2 }, { 0x16d6d, 0x16d6f }, { 0x16e97, 0x16e9a },
        { 0x16fe2, 0x16fe2 }, { 0x1e5ff, 0x1e5ff }, { 0x1e95e, 0x1e95f },
    };

    if (c < 0x80) return c > ' ' && c < 0x7f && (c == '_' || !dti_is_word(c));
    if (c == 0x166d || c == 0x111c9) return true; /* other symbols since */
    for (size_t i = 0; i < DT_COUNT(younger) && younger[i].first <= c; i++)
        if (c <= younger[i].last) return false;
    return utf8proc_category_string((utf8proc_int32_t)c)[0] == 'P';
}

/* Alphabetic, marks, decimal digits, connectors and joiners. Of what is alphabetic, only letters in
 * circles and squares are neither letters, marks nor letter numbers. */
bool dti_is_word(uint32_t c)
{
    const char *gc;

    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_';
    if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9)) return true;
    if ((c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
        (c >= 0x1f170 && c <= 0x1f189))
        return true;
    gc = category(c, 16);
    return gc[0] == 'L' || gc[0] == 'M' || (gc[0] == 'N' && gc[1] != 'o') ||
           (gc[0] == 'P' && gc[1] == 'c');
}

dt_status dti_append_lower(dti_text *out, uint32_t c)
{
    if (c == 0x130) return dti_text_append(out, "i\xcc\x87", 3); /* the only one that grows */
    for (size_t i = 0; i < dti_n_lower_rows && dti_lower_rows[i].first <= c; i++)
        if (c <= dti_lower_rows[i].last)
            return dti_text_append_char(out, (uint32_t)((int32_t)c + dti_lower_rows[i].distance));
    return dti_text_append_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static bool is_inert(uint32_t c, bool compat)
{
    size_t low = 0, high = dti_n_inert_rows;

    if (c < dti_inert_rows[0].first && !compat) return false;
    while (low < high) {
        const size_t mid = (low + high) / 2;

        if (c > dti_inert_rows[mid].last)
            low = mid + 1;
        else if (c < dti_inert_rows[mid].first)
            high = mid;
        else
            return compat || !dti_inert_rows[mid].compat;
    }
    return false;
}

static dt_status append_form(dti_form form, const char *s, size_t n, dti_text *out)
{
    static const utf8proc_option_t options[] = {
        [DTI_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [DTI_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [DTI_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [DTI_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *result = NULL;
    utf8proc_ssize_t bytes;
    dt_status st;

    if (n == 0) return DT_OK;
    bytes = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &result, options[form]);
    DT_CHECK(bytes >= 0, bytes == UTF8PROC_ERROR_NOMEM ? DT_ERR_MEMORY : DT_ERR_INTERNAL,
             "normalising %zu bytes: %s", n, utf8proc_errmsg(bytes));
    st = dti_text_append(out, (const char *)result, (size_t)bytes);
    free(result);
    return st;
}

dt_status dti_normalize(dti_form form, const char *s, size_t n, dti_text *out, bool *changed)
{
    /* Below these no character has a decomposition, or can be part of a composition. */
    static const uint32_t plain[] = {
        [DTI_NFC] = 0x300, [DTI_NFD] = 0xc0, [DTI_NFKC] = 0xa0, [DTI_NFKD] = 0xa0
    };
    const bool compat = form == DTI_NFKC || form == DTI_NFKD;
    size_t at = 0, begin = 0;

    while (at < n && dti_utf8_at(s + at) < plain[form]) at += dti_utf8_length(s[at]);
    *changed = at < n;
    if (!*changed) return DT_OK;
    while (at < n) { /* a run between inert characters has a form of its own */
        const size_t length = dti_utf8_length(s[at]);

        if (is_inert(dti_utf8_at(s + at), compat)) {
            DT_TRY(append_form(form, s + begin, at - begin, out));
            DT_TRY(dti_text_append(out, s + at, length));
            begin = at + length;
        }
        at += length;
    }
    return append_form(form, s + begin, n - begin, out);
}
