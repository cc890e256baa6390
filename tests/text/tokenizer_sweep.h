/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares checksums of much text with those of tests/golden/tokenizer/sweep.json; its script,
 * tools/make_tokenizer_sweep.py, says what is summed. */
#ifndef TOKENIZER_SWEEP_H
#define TOKENIZER_SWEEP_H

#include "tests/text/tokenizer_text.h"

/* The sums of a row of the file, in its order; the text itself comes last. */
enum { SUM_IDS, SUM_AS_TEXT, SUM_DECODED, SUM_SKIPPED, SUM_RANDOM, SUM_INPUT, N_SUMS };

typedef struct sweep {
    const char *shape;
    json_t *file;
    const json_t *pieces;
    dt_tokenizer *tok;
    size_t n_vocab;
    dti_text text, streamed;
    uint32_t sums[N_SUMS];
} sweep;

/* CRC-32 as zlib counts it, going on from an earlier one. */
static inline uint32_t sweep_crc(uint32_t crc, const void *data, size_t n)
{
    static const uint32_t nibbles[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const unsigned char *p = data;

    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return ~crc;
}

static inline void sweep_add_text(sweep *s, int sum, const char *text, size_t n)
{
    s->sums[sum] = sweep_crc(s->sums[sum], text, n);
    s->sums[sum] = sweep_crc(s->sums[sum], "", 1);
}

static inline void sweep_add_ids(sweep *s, int sum, const int32_t *ids, size_t n)
{
    const unsigned char end[4] = { 255, 255, 255, 255 };

    for (size_t i = 0; i < n; i++) {
        const uint32_t id = (uint32_t)ids[i];
        const unsigned char bytes[4] = { (unsigned char)id, (unsigned char)(id >> 8),
                                         (unsigned char)(id >> 16), (unsigned char)(id >> 24) };

        s->sums[sum] = sweep_crc(s->sums[sum], bytes, sizeof bytes);
    }
    s->sums[sum] = sweep_crc(s->sums[sum], end, sizeof end);
}

static inline dt_status sweep_stream(sweep *s, const int32_t *ids, size_t n, bool skip)
{
    DT_HELD(tokenizer_stream) *stream = NULL;
    const char *part;
    size_t bytes;

    s->streamed.bytes = 0;
    DT_TRY(dt_tokenizer_stream_create(s->tok, skip, &stream));
    for (size_t i = 0; i <= n; i++) {
        DT_TRY(i < n ? dt_tokenizer_stream_push(stream, ids[i], &part, &bytes)
                     : dt_tokenizer_stream_flush(stream, &part, &bytes));
        DT_TRY(dti_text_append(&s->streamed, part, bytes));
    }
    return DT_OK;
}

/* Decodes whole, sums that, and compares it with what a stream gives. */
static inline dt_status sweep_decode(sweep *s, int sum, const int32_t *ids, size_t n, bool skip)
{
    char *text = NULL;
    size_t bytes;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dt_tokenizer_decode(s->tok, ids, n, skip, &text, &bytes));
    sweep_add_text(s, sum, text, bytes);
    DT_TRY_TO(done, st, sweep_stream(s, ids, n, skip));
    DT_EXPECT_TO(
        done, st,
        s->streamed.bytes == bytes && (bytes == 0 || memcmp(s->streamed.data, text, bytes) == 0),
        "streamed \"%.*s\", decoded \"%s\"", (int)s->streamed.bytes, s->streamed.data, text);
done:
    dt_tokenizer_free(text);
    return st;
}

/* All that is summed of the text in s->text. */
static inline dt_status sweep_text(sweep *s)
{
    int32_t *ids = NULL;
    size_t n;
    dt_status st = DT_OK;

    sweep_add_text(s, SUM_INPUT, s->text.data, s->text.bytes);
    DT_TRY(
        dt_tokenizer_encode(s->tok, s->text.data, s->text.bytes, DT_ENCODE_ADD_SPECIAL, &ids, &n));
    sweep_add_ids(s, SUM_AS_TEXT, ids, n);
    dt_tokenizer_free(ids);
    DT_TRY(dt_tokenizer_encode(s->tok, s->text.data, s->text.bytes,
                               DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    sweep_add_ids(s, SUM_IDS, ids, n);
    DT_TRY_TO(done, st, sweep_decode(s, SUM_DECODED, ids, n, false));
    DT_TRY_TO(done, st, sweep_decode(s, SUM_SKIPPED, ids, n, true));
done:
    dt_tokenizer_free(ids);
    return st;
}

/* Sums so far against row `at` of part "corpus" or "strings"; then the sums start anew. */
static inline dt_status sweep_check(sweep *s, const char *part, size_t at)
{
    static const char *const names[] = { "ids", "ids with special tokens as text", "decoded",
                                         "decoded without special tokens", "decoded random ids" };
    const json_t *texts = json_object_get(json_object_get(s->file, "texts"), part);
    const json_t *shape = json_object_get(json_object_get(s->file, "shapes"), s->shape);
    const json_t *row = json_array_get(json_object_get(shape, part), at);

    DT_EXPECT(json_integer_value(json_array_get(texts, at)) == s->sums[SUM_INPUT],
              "%s %zu: the text is not the one of the script", part, at);
    DT_EXPECT(json_array_size(row) >= SUM_RANDOM, "%s: %s has no row %zu", s->shape, part, at);
    for (size_t i = 0; i < json_array_size(row); i++)
        DT_EXPECT(json_integer_value(json_array_get(row, i)) == s->sums[i],
                  "%s, row %zu of %s: %s differ", s->shape, at, part, names[i]);
    memset(s->sums, 0, sizeof s->sums);
    return DT_OK;
}

static inline size_t sweep_rows(const sweep *s, const char *part)
{
    return json_array_size(json_object_get(json_object_get(s->file, "texts"), part));
}

static inline size_t sweep_number(const sweep *s, const char *key)
{
    return (size_t)json_integer_value(json_object_get(s->file, key));
}

static inline void sweep_open(sweep *s, const char *shape)
{
    char path[DT_TEST_PATH_BYTES];

    *s = (sweep){ .shape = shape, .file = tok_read_json("tests/golden/tokenizer/sweep.json") };
    s->pieces = json_object_get(s->file, "pieces");
    DT_ASSERT_OK(
        dt_tokenizer_open(dt_test_source_path(path, "tests/golden/tokenizer/%s", shape), &s->tok));
    s->n_vocab = (size_t)dt_tokenizer_vocab_size(s->tok);
}

static inline void sweep_close(sweep *s)
{
    dt_tokenizer_release(&s->tok);
    dti_text_free(&s->text);
    dti_text_free(&s->streamed);
    json_decref(s->file);
}

#endif
