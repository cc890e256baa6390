/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of one token, and of all. Decoders make text of many, and mend it; here nothing is
 * mended, so that who puts tokens' bytes together has the bytes of the text. */
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/tokenizer_internal.h"

/* Written in GPT-2's alphabet; a character that is not in it stands for itself. */
static dt_status add_byte_level(dti_text *out, const char *piece, size_t n)
{
    for (size_t at = 0; at < n; at += dti_utf8_length(piece[at])) {
        const int byte = dti_char_to_byte(dti_utf8_at(piece + at));
        const char c = (char)byte;
        if (byte >= 0)
            DT_TRY(dti_text_append(out, &c, 1));
        else
            DT_TRY(dti_text_append(out, piece + at, dti_utf8_length(piece[at])));
    }
    return DT_OK;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0xE2>". */
static bool is_byte(const char *piece, size_t n, char *byte)
{
    if (n != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>') return false;
    if (digit(piece[3]) < 0 || digit(piece[4]) < 0) return false;
    *byte = (char)(digit(piece[3]) * 16 + digit(piece[4]));
    return true;
}

/* U+2581 is a blank. */
static dt_status add_plain(dti_text *out, const char *piece, size_t n)
{
    static const char blank[] = "\xe2\x96\x81";
    size_t at = 0;

    while (at < n) {
        const bool is_blank = at + 3 <= n && memcmp(piece + at, blank, 3) == 0;
        DT_TRY(dti_text_append(out, is_blank ? " " : piece + at, 1));
        at += is_blank ? 3 : 1;
    }
    return DT_OK;
}

static dt_status add_token(const dt_tokenizer *tok, int32_t id, dti_text *out)
{
    const dti_decoders *d = &tok->decoders;
    size_t n = 0;
    const char *piece = dti_tokenizer_decoder_piece(tok, id, &n);
    char byte;

    if (piece == NULL) return DT_OK;
    if (tok->added_by_id[id] != NULL) return dti_text_append(out, piece, n);
    if (dti_decoders_have(d, "ByteLevel")) return add_byte_level(out, piece, n);
    if (dti_decoders_have(d, "ByteFallback") && is_byte(piece, n, &byte))
        return dti_text_append(out, &byte, 1);
    return add_plain(out, piece, n);
}

dt_status dt_tokenizer_bytes(const dt_tokenizer *tok, int32_t id, char **bytes, size_t *n_bytes)
{
    dti_text out = { 0 };
    dt_status st;

    DT_CHECK(tok != NULL && bytes != NULL && n_bytes != NULL, DT_ERR_ARG,
             "tok, bytes or n_bytes is NULL");
    *bytes = NULL;
    *n_bytes = 0;
    st = id >= 0 && id < tok->n_ids ? add_token(tok, id, &out) : DT_OK;
    if (st == DT_OK) st = dti_text_append(&out, "", 1);
    if (st != DT_OK) {
        dti_text_free(&out);
        return st;
    }
    *bytes = out.data;
    *n_bytes = out.bytes - 1;
    return DT_OK;
}

/* --- all tokens ------------------------------------------------------------------------------- */

void dti_token_texts_free(dti_token_texts *t)
{
    if (t == NULL) return;
    dti_free(t->text);
    dti_free(t->begin);
    dti_free(t);
}

static dt_status make_texts(const dt_tokenizer *tok, dti_token_texts *t)
{
    dti_text all = { 0 };
    dt_status st = dti_alloc_array((size_t)tok->n_ids + 1, sizeof *t->begin, (void **)&t->begin);

    t->n = tok->n_ids;
    for (int32_t i = 0; i < tok->n_ids && st == DT_OK; i++) {
        t->begin[i] = all.bytes;
        if (!dt_tokenizer_is_special(tok, i)) st = add_token(tok, i, &all);
    }
    if (st == DT_OK) t->begin[t->n] = all.bytes;
    t->text = all.data;
    DT_TRY(st);
    return DT_OK;
}

/* Who comes second while they are made makes them too, and takes those of the first: no lock. */
dt_status dti_tokenizer_texts(dt_tokenizer *tok, const dti_token_texts **out)
{
    dti_token_texts *made = atomic_load_explicit(&tok->texts, memory_order_acquire), *first = NULL;
    dt_status st;

    *out = made;
    if (made != NULL) return DT_OK;
    DT_TRY(dti_new(sizeof *made, &made));
    st = make_texts(tok, made);
    if (st == DT_OK && atomic_compare_exchange_strong(&tok->texts, &first, made)) first = made;
    if (first != made) dti_token_texts_free(made);
    DT_TRY(st);
    *out = first;
    return DT_OK;
}
