/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the tokenizer share. */
#ifndef TOKENIZER_CASES_H
#define TOKENIZER_CASES_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "text/tokenizer/tokenizer_internal.h"

/* Makes a tokenizer of the text of a tokenizer.json. */
static inline dt_status tok_parse(const char *text, dt_tokenizer **out)
{
    dti_json_doc doc;
    dt_status st;

    *out = NULL;
    DT_TRY(dti_json_parse("tokenizer.json", text, strlen(text), &doc));
    st = dti_tokenizer_load(&doc.root, out);
    dti_json_free(&doc);
    return st;
}

static inline dt_tokenizer *tok_make(const char *text)
{
    dt_tokenizer *tok = NULL;

    DT_ASSERT_OK(tok_parse(text, &tok));
    return tok;
}

/* Appends "1 2 3" for a failure message. */
static inline void tok_print_ids(char *out, size_t bytes, const int32_t *ids, size_t n)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && at + 16 < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%d ", (int)ids[i]);
}

/* The ids of a text are those of the JSON array. */
static inline dt_status tok_expect_ids(const dt_tokenizer *tok, const char *text, size_t n,
                                       unsigned flags, const json_t *want)
{
    char got[400], wanted[400];
    int32_t *ids, expected[4096];
    size_t n_ids, n_want = json_array_size(want);
    bool same;

    DT_EXPECT(n_want <= DT_COUNT(expected), "a case of %zu ids", n_want);
    for (size_t i = 0; i < n_want; i++)
        expected[i] = (int32_t)json_integer_value(json_array_get(want, i));
    DT_TRY(dt_tokenizer_encode(tok, text, n, flags, &ids, &n_ids));
    tok_print_ids(got, sizeof got, ids, n_ids);
    tok_print_ids(wanted, sizeof wanted, expected, n_want);
    same = n_ids == n_want && (n_ids == 0 || memcmp(ids, expected, n_ids * sizeof *ids) == 0);
    dt_tokenizer_free(ids);
    DT_EXPECT(same, "\"%s\": ids %s, expected %s", text, got, wanted);
    return DT_OK;
}

/* Decodes the JSON array of ids whole and as a stream; each push gives whole characters. */
static inline dt_status tok_expect_text(dt_tokenizer *tok, const json_t *ids, bool skip,
                                        const char *want)
{
    dt_tokenizer_stream *stream = NULL;
    dti_text all = { 0 };
    int32_t list[4096];
    const size_t n = json_array_size(ids);
    char *whole = NULL;
    const char *part;
    size_t bytes;
    dt_status st = DT_OK;

    DT_EXPECT(n <= DT_COUNT(list), "a case of %zu ids", n);
    for (size_t i = 0; i < n; i++) list[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    DT_TRY_TO(done, st, dt_tokenizer_decode(tok, list, n, skip, &whole, &bytes));
    DT_EXPECT_TO(done, st, bytes == strlen(want) && strcmp(whole, want) == 0,
                 "decoded \"%s\", expected \"%s\"", whole, want);
    DT_TRY_TO(done, st, dt_tokenizer_stream_create(tok, skip, &stream));
    for (size_t i = 0; i <= n; i++) {
        DT_TRY_TO(done, st,
                  i < n ? dt_tokenizer_stream_push(stream, list[i], &part, &bytes)
                        : dt_tokenizer_stream_flush(stream, &part, &bytes));
        DT_EXPECT_TO(done, st, dti_utf8_valid(part, bytes) == bytes && part[bytes] == '\0',
                     "the stream split a character of \"%s\"", want);
        DT_TRY_TO(done, st, dti_text_append(&all, part, bytes));
    }
    DT_EXPECT_TO(done, st,
                 all.bytes == strlen(want) &&
                     memcmp(all.data ? all.data : "", want, all.bytes) == 0,
                 "streamed \"%.*s\", expected \"%s\"", (int)all.bytes, all.data, want);
done:
    dt_tokenizer_stream_release(&stream);
    dt_tokenizer_free(whole);
    dti_text_free(&all);
    return st;
}

/* A JSON file below the source folder. */
static inline json_t *tok_read_json(const char *relative)
{
    char path[DT_TEST_PATH_BYTES];
    json_error_t e;
    json_t *root = json_load_file(dt_test_source_path(path, "%s", relative), 0, &e);

    if (root == NULL) dt_test_fail(__FILE__, __LINE__, "%s: %s", path, e.text);
    return root;
}

#endif
