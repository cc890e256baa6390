/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of a text through the pipeline. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/coverage.h"
#include "text/tokenizer/tokenizer_internal.h"
#include "text/tokenizer/word_cache.h"

/* Offsets of symbols fit into 32 bits even where every byte becomes a character of two. */
static const size_t max_text_bytes = (size_t)1 << 30;

/* What one call needs. */
typedef struct encoding {
    const dt_tokenizer *tok;
    bool parse_special, add_special;
    dti_ids ids; /* of all texts so far, without what stands around them; the cache refers to it */
    dti_ids whole; /* with it; unused if nothing does */
    dti_text repaired;
    dti_normalizer_work normalizing;
    dti_pre_walk cutting;
    dti_word_cache cache;
    dti_text chars; /* a word in byte-level characters */
    dti_bpe_work merging;
} encoding;

static dt_status encode_new_word(encoding *e, const char *s, size_t n)
{
    if (e->tok->pre_tokenizers.byte_level_words) {
        e->chars.bytes = 0;
        DT_TRY(dti_text_append_bytes_as_chars(&e->chars, s, n));
        s = e->chars.data;
        n = e->chars.bytes;
    }
    return dti_bpe_encode(&e->tok->bpe, &e->merging, s, n, &e->ids);
}

/* Copies ids that are in the result already. */
static dt_status repeat_ids(dti_ids *ids, size_t begin, size_t n)
{
    if (n == 0) return DT_OK;
    if (ids->capacity - ids->n < n)
        DT_TRY(dti_grow((void **)&ids->data, &ids->capacity, ids->n + n, sizeof *ids->data));
    memcpy(ids->data + ids->n, ids->data + begin, n * sizeof *ids->data);
    ids->n += n;
    return DT_OK;
}

static dt_status encode_word(void *arg, const char *s, size_t n)
{
    encoding *e = arg;
    size_t begin, n_ids;
    uint64_t hash;

    if (n > DTI_CACHED_WORD_BYTES) return encode_new_word(e, s, n);
    hash = dti_vocab_hash(s, n);
    if (dti_word_cache_find(&e->cache, hash, s, n, &begin, &n_ids))
        return repeat_ids(&e->ids, begin, n_ids);
    begin = e->ids.n;
    DT_TRY(encode_new_word(e, s, n));
    return dti_word_cache_add(&e->cache, hash, s, n, begin, e->ids.n - begin);
}

/* A part of the text without added tokens of the raw kind: normalise it, cut out the other kind. */
static dt_status encode_part(encoding *e, const char *s, size_t n, bool first)
{
    const dt_tokenizer *tok = e->tok;
    const dti_added_token *token;
    dti_added_walk walk;
    size_t begin, end;

    DT_TRY(dti_normalizers_run(&tok->normalizers, &e->normalizing, s, n, &s, &n));
    DT_CHECK(n <= max_text_bytes, DT_ERR_UNSUPPORTED,
             "the normalised text is %zu bytes, at most %zu are supported", n, max_text_bytes);
    walk = dti_added_walk_in(&tok->added.normal, s, n, !e->parse_special);
    do {
        token = dti_added_next(&walk, &begin, &end);
        DT_TRY(dti_pre_tokenize(&e->cutting,
                                (dti_text_span){ s + begin, end - begin, first && begin == 0 }));
        if (token != NULL) DT_TRY(dti_ids_append(&e->ids, &token->id, 1));
    } while (token != NULL);
    return DT_OK;
}

static dt_status encode_text(encoding *e, const char *s, size_t n)
{
    dti_added_walk walk = dti_added_walk_in(&e->tok->added.raw, s, n, !e->parse_special);
    const dti_added_token *token;
    size_t begin, end;

    do {
        token = dti_added_next(&walk, &begin, &end);
        if (begin < end) DT_TRY(encode_part(e, s + begin, end - begin, begin == 0));
        if (token != NULL) DT_TRY(dti_ids_append(&e->ids, &token->id, 1));
    } while (token != NULL);
    return DT_OK;
}

static void encoding_free(encoding *e)
{
    dti_normalizer_work_free(&e->normalizing);
    dti_pre_walk_free(&e->cutting);
    dti_word_cache_free(&e->cache);
    dti_text_free(&e->chars);
    dti_bpe_work_free(&e->merging);
    dti_text_free(&e->repaired);
    dti_free(e->ids.data);
    dti_free(e->whole.data);
}

/* Broken UTF-8 is repaired in a copy. */
static dt_status repair(const char **text, size_t *n, dti_text *copy)
{
    dti_utf8_repair r = { 0 };

    if (dti_utf8_valid(*text, *n) == *n) return DT_OK;
    copy->bytes = 0;
    DT_TRY(dti_utf8_push(&r, *text, *n, copy));
    DT_TRY(dti_utf8_flush(&r, copy));
    *text = copy->data;
    *n = copy->bytes;
    return DT_OK;
}

/* Encodes the next text behind those before it. */
static dt_status encode_next(encoding *e, const char *text, size_t n)
{
    const size_t begin = e->ids.n;

    DT_CHECK(text != NULL || n == 0, DT_ERR_ARG, "text is NULL");
    DT_CHECK(n <= max_text_bytes, DT_ERR_UNSUPPORTED,
             "the text is %zu bytes, at most %zu are supported: encode it in parts", n,
             max_text_bytes);
    if (n == 0) text = "";
    dti_normalizer_work_begin(&e->normalizing, n);
    dti_pre_walk_begin(&e->cutting, n);
    DT_TRY(repair(&text, &n, &e->repaired));
    DT_TRY(encode_text(e, text, n));
    if (dti_template_is_text(&e->tok->around)) return DT_OK;
    return dti_template_append(&e->tok->around, e->add_special,
                               e->ids.data != NULL ? e->ids.data + begin : NULL, e->ids.n - begin,
                               &e->whole);
}

/* The ids of all texts so far. */
static dti_ids *encoded(encoding *e)
{
    return dti_template_is_text(&e->tok->around) ? &e->ids : &e->whole;
}

/* Hands the ids to the caller: NULL if there are none. */
static int32_t *take_ids(encoding *e)
{
    dti_ids *all = encoded(e);
    int32_t *data = all->data;

    if (all->n == 0) return NULL;
    all->data = NULL;
    return data;
}

static dt_status encoding_begin(encoding *e, const dt_tokenizer *tok, unsigned flags)
{
    *e = (encoding){ .tok = tok,
                     .add_special = (flags & DT_ENCODE_ADD_SPECIAL) != 0,
                     .parse_special = (flags & DT_ENCODE_PARSE_SPECIAL) != 0 };
    DT_CHECK(tok != NULL, DT_ERR_ARG, "tok is NULL");
    DT_CHECK(flags <= (DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL), DT_ERR_ARG,
             "flags %#x have a bit that is no DT_ENCODE_ flag", flags);
    e->cutting.all = &tok->pre_tokenizers;
    e->cutting.word = encode_word;
    e->cutting.arg = e;
    return DT_OK;
}

static bool is_byte_level(const dt_tokenizer *tok)
{
    return tok->pre_tokenizers.byte_level_words || tok->normalizers.byte_level;
}

static void name_byte(unsigned char byte, char text[DT_LEFT_OUT_BYTES])
{
    (void)snprintf(text, DT_LEFT_OUT_BYTES, byte > '"' && byte < 0x7f ? "\"%c\"" : "byte 0x%02X",
                   byte);
}

static void name_left_out(const dt_tokenizer *tok, uint32_t c, char text[DT_LEFT_OUT_BYTES])
{
    const int byte = is_byte_level(tok) ? dti_char_to_byte(c) : c < 0x80 ? (int)c : -1;

    text[0] = '\0';
    if (c == 0) return;
    if (byte >= 0)
        name_byte((unsigned char)byte, text);
    else
        (void)snprintf(text, DT_LEFT_OUT_BYTES, "U+%04X", (unsigned)c);
}

/* Never part of UTF-8, so no loss. */
static bool is_no_utf8(int b)
{
    return b == 0xc0 || b == 0xc1 || b > 0xf4;
}

int dti_tokenizer_lost_bytes(const dt_tokenizer *tok, unsigned char *first)
{
    const dti_bpe *bpe = &tok->bpe;
    int n = 0;

    if (!is_byte_level(tok) || bpe->unk_token != NULL || bpe->byte_fallback) return 0;
    for (int b = 0; b < 256; b++)
        if (bpe->char_ids[dti_byte_to_char((unsigned char)b)] < 0 && !is_no_utf8(b) && n++ == 0)
            *first = (unsigned char)b;
    return n;
}

dt_status dt_tokenizer_encode(const dt_tokenizer *tok, const char *text, size_t n_bytes,
                              unsigned flags, int32_t **ids, size_t *n_ids)
{
    char left_out[DT_LEFT_OUT_BYTES];

    return dt_tokenizer_encode_checked(tok, text, n_bytes, flags, ids, n_ids, left_out);
}

dt_status dt_tokenizer_encode_checked(const dt_tokenizer *tok, const char *text, size_t n_bytes,
                                      unsigned flags, int32_t **ids, size_t *n_ids,
                                      char left_out[DT_LEFT_OUT_BYTES])
{
    encoding e;
    dt_status st;

    DT_CHECK(ids != NULL && n_ids != NULL, DT_ERR_ARG, "ids or n_ids is NULL");
    *ids = NULL;
    *n_ids = 0;
    left_out[0] = '\0';
    DT_TRY(encoding_begin(&e, tok, flags));
    DT_TRY_TO(done, st, encode_next(&e, text, n_bytes));
    name_left_out(tok, e.merging.left_out, left_out);
    *n_ids = encoded(&e)->n;
    *ids = take_ids(&e);
done:
    encoding_free(&e);
    return st;
}

dt_status dt_tokenizer_encode_batch(const dt_tokenizer *tok, const char *const *texts,
                                    const size_t *n_bytes, size_t n_texts, unsigned flags,
                                    int32_t **ids, size_t **starts)
{
    size_t *begins = NULL;
    encoding e;
    dt_status st;

    DT_CHECK(ids != NULL && starts != NULL, DT_ERR_ARG, "ids or starts is NULL");
    *ids = NULL;
    *starts = NULL;
    DT_CHECK(texts != NULL || n_texts == 0, DT_ERR_ARG, "texts is NULL");
    DT_CHECK(n_texts < SIZE_MAX, DT_ERR_ARG, "%zu texts", n_texts);
    DT_TRY(encoding_begin(&e, tok, flags));
    DT_TRY_TO(done, st, dti_alloc_array(n_texts + 1, sizeof *begins, (void **)&begins));
    for (size_t i = 0; i < n_texts; i++) {
        DT_CHECK_TO(done, st, texts[i] != NULL || (n_bytes != NULL && n_bytes[i] == 0), DT_ERR_ARG,
                    "text %zu of %zu is NULL", i, n_texts);
        DT_TRY_TO(done, st,
                  encode_next(&e, texts[i], n_bytes != NULL ? n_bytes[i] : strlen(texts[i])));
        begins[i + 1] = encoded(&e)->n;
    }
    *ids = take_ids(&e);
    *starts = begins;
    begins = NULL;
done:
    encoding_free(&e);
    dti_free(begins);
    return st;
}

/* Runs are what patterns that try everything cannot stand. */
dt_status dti_tokenizer_try(const dt_tokenizer *tok)
{
    static const char runs[] = "aaA 1\n.\t-";
    char text[1024], *back = NULL;
    size_t n = 0, n_ids = 0, n_back;
    int32_t *ids = NULL;
    dt_status st = DT_OK;

    for (size_t i = 0; runs[i] != '\0'; i++)
        for (int k = 0; k < 100; k++) text[n++] = runs[i];
    for (char c = '!'; c <= '~'; c++) text[n++] = c;
    n += (size_t)snprintf(text + n, sizeof text - n, "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80");
    DT_TRY_TO(done, st, dt_tokenizer_encode(tok, text, n, 0, &ids, &n_ids));
    DT_TRY_TO(done, st, dt_tokenizer_decode(tok, ids, n_ids, false, &back, &n_back));
done:
    dt_tokenizer_free(ids);
    dt_tokenizer_free(back);
    return st;
}

void dt_tokenizer_free(void *result)
{
    dti_free(result);
}
