/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of tokens, put together, are the bytes of the text. */
#include "tests/text/tokenizer_text.h"

static void expect_bytes(const dt_tokenizer *tok, const char *text, const char *want)
{
    const size_t n_text = strlen(text);
    char all[512] = "", *bytes;
    size_t used = 0, n_ids, n;
    int32_t *ids;

    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, n_text, DT_ENCODE_PARSE_SPECIAL, &ids, &n_ids));
    for (size_t i = 0; i < n_ids; i++) {
        DT_ASSERT_OK(dt_tokenizer_bytes(tok, ids[i], &bytes, &n));
        DT_ASSERT(used + n < sizeof all);
        memcpy(all + used, bytes, n);
        used += n;
        DT_ASSERT_EQ_INT(bytes[n], 0);
        dt_tokenizer_free(bytes);
    }
    all[used] = '\0';
    DT_ASSERT_EQ_STR(all, want);
    dt_tokenizer_free(ids);
}

DT_TEST(token_bytes, of_a_text_are_those_of_its_tokens)
{
    static const char *const shapes[] = { "llama3", "qwen", "gemma", "phi3", "gpt2" };
    static const char *const texts[] = { "hello world", "\xc3\xa4\xe4\xb8\xad\xf0\x9f\x98\x80 x",
                                         "two  blanks\n\ttab", "a\xcc\x81 <0xE2> \xe2\x82\xac" };

    for (size_t s = 0; s < DT_COUNT(shapes); s++) {
        char path[DT_TEST_PATH_BYTES], *bytes;
        DT_HELD(tokenizer) *tok = NULL;
        size_t n;
        DT_ASSERT_OK(dt_tokenizer_open(
            dt_test_source_path(path, "tests/golden/tokenizer/%s", shapes[s]), &tok));
        for (size_t i = 0; i < DT_COUNT(texts); i++) {
            int32_t *ids;
            char *text;
            size_t n_ids;
            DT_ASSERT_OK(dt_tokenizer_encode(tok, texts[i], strlen(texts[i]),
                                             DT_ENCODE_PARSE_SPECIAL, &ids, &n_ids));
            DT_ASSERT_OK(dt_tokenizer_decode(tok, ids, n_ids, false, &text, &n));
            /* a blank that was put in front, and that decoding takes away again, is a token's */
            if (strcmp(shapes[s], "phi3") == 0) {
                char blank[512] = " ";
                (void)strncat(blank, text, sizeof blank - 2);
                expect_bytes(tok, texts[i], blank);
            } else {
                expect_bytes(tok, texts[i], text);
            }
            dt_tokenizer_free(text);
            dt_tokenizer_free(ids);
        }
        DT_ASSERT_OK(dt_tokenizer_bytes(tok, INT32_MAX, &bytes, &n));
        DT_ASSERT_EQ_INT(n, 0);
        dt_tokenizer_free(bytes);
    }
}
