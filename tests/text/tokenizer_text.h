/* SPDX-License-Identifier: Apache-2.0
 *
 * Endless text from a seed, the same as tools/tokenizer_text.py makes: pieces that tokenizers care
 * about, words, white space, marks, and characters of every plane. */
#ifndef TOKENIZER_TEXT_H
#define TOKENIZER_TEXT_H

#include "tests/text/tokenizer_cases.h"

/* splitmix64 */
static inline size_t text_below(uint64_t *state, size_t n)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (size_t)((z ^ z >> 31) % n);
}

/* No surrogates: they are no characters. */
static inline dt_status text_add_char(dti_text *out, size_t c)
{
    return dti_text_append_char(out, (uint32_t)(c >= 0xd800 && c < 0xe000 ? c - 0x1000 : c));
}

/* n characters, each drawn from `range` characters behind `first`. */
static inline dt_status text_add_drawn(dti_text *out, uint64_t *d, size_t n, size_t first,
                                       size_t range)
{
    while (n-- > 0) DT_TRY(text_add_char(out, first + text_below(d, range)));
    return DT_OK;
}

static inline dt_status text_add_unit(dti_text *out, uint64_t *d, const json_t *pieces)
{
    static const uint32_t runs[] = { ' ', '\n', '\t', '\r', '\'', 0x2581, 0xa0, 0x3000 };
    const size_t kind = text_below(d, 16);
    size_t n, c;

    if (kind < 6) {
        const json_t *piece = json_array_get(pieces, text_below(d, json_array_size(pieces)));

        return dti_text_append(out, json_string_value(piece), json_string_length(piece));
    }
    n = 1 + text_below(d, 7);
    if (kind < 8) return text_add_drawn(out, d, n, 0, 128);
    if (kind < 10) {
        DT_TRY(text_add_char(out, ' '));
        return text_add_drawn(out, d, n, 'a', 26);
    }
    if (kind == 10) return text_add_drawn(out, d, 1, text_below(d, 17) * 0x10000, 0x10000);
    if (kind == 11) return text_add_drawn(out, d, 1, 0, 0x3000);
    if (kind == 12) return text_add_drawn(out, d, n, 0x300, 0x70);
    if (kind == 14) return text_add_drawn(out, d, n, text_below(d, 0x1f0) * 256, 256);
    if (kind == 15) return text_add_drawn(out, d, n, '0', 10);
    c = runs[text_below(d, DT_COUNT(runs))];
    while (n-- > 0) DT_TRY(text_add_char(out, c));
    return DT_OK;
}

/* A long text, in place of what *out held. */
static inline dt_status text_chunk(dti_text *out, size_t index, const json_t *pieces,
                                   size_t least_bytes)
{
    uint64_t d = index;

    out->bytes = 0;
    while (out->bytes < least_bytes) DT_TRY(text_add_unit(out, &d, pieces));
    return DT_OK;
}

/* A short text. */
static inline dt_status text_string(dti_text *out, size_t index, const json_t *pieces)
{
    uint64_t d = ((uint64_t)1 << 32) + index;
    size_t n = 1 + text_below(&d, 12);

    out->bytes = 0;
    while (n-- > 0) DT_TRY(text_add_unit(out, &d, pieces));
    return DT_OK;
}

/* Ids that no text gives; some are not in the vocabulary. Returns how many. */
static inline size_t text_random_ids(int32_t ids[12], size_t index, size_t n_vocab)
{
    uint64_t d = ((uint64_t)2 << 32) + index;
    const size_t n = 1 + text_below(&d, 12);

    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)text_below(&d, n_vocab + 2);
    return n;
}

#endif
