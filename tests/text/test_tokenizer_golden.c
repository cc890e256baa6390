/* SPDX-License-Identifier: Apache-2.0
 *
 * Every case of tests/golden/tokenizer, which the reference library made. */
#include "tests/text/tokenizer_cases.h"
#include "text/tokenizer/unicode.h"

static dt_status check_case(dt_tokenizer *tok, const char *text, size_t n, const json_t *row)
{
    const json_t *plain = json_object_get(row, "ids_plain");

    DT_TRY(tok_expect_ids(tok, text, n, DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL,
                          json_object_get(row, "ids")));
    DT_TRY(tok_expect_ids(tok, text, n, DT_ENCODE_PARSE_SPECIAL, plain));
    DT_TRY(tok_expect_text(tok, plain, false, json_string_value(json_object_get(row, "decoded"))));
    return tok_expect_text(tok, plain, true,
                           json_string_value(json_object_get(row, "decoded_skip")));
}

static void check_fixture(const char *name)
{
    char path[DT_TEST_PATH_BYTES], folder[128], file[160];
    json_t *corpus = tok_read_json("tests/golden/tokenizer/corpus.json"), *expected, *row, *cases;
    DT_HELD(tokenizer) *tok = NULL;
    size_t i;

    (void)snprintf(folder, sizeof folder, "tests/golden/tokenizer/%s", name);
    (void)snprintf(file, sizeof file, "%s/expected.json", folder);
    expected = tok_read_json(file);
    DT_ASSERT_OK(dt_tokenizer_open(dt_test_source_path(path, "%s", folder), &tok));
    cases = json_object_get(expected, "cases");
    DT_ASSERT(json_array_size(corpus) >= 150 && json_array_size(cases) == json_array_size(corpus));
    json_array_foreach(cases, i, row)
    {
        const json_t *text = json_array_get(corpus, i);

        DT_ASSERT_OK(check_case(tok, json_string_value(text), json_string_length(text), row));
    }
    cases = json_object_get(expected, "decode_cases");
    DT_ASSERT(json_array_size(cases) > 100);
    json_array_foreach(cases, i, row)
    {
        const json_t *ids = json_object_get(row, "ids");

        DT_ASSERT_OK(
            tok_expect_text(tok, ids, false, json_string_value(json_object_get(row, "decoded"))));
        DT_ASSERT_OK(tok_expect_text(tok, ids, true,
                                     json_string_value(json_object_get(row, "decoded_skip"))));
    }
    json_decref(expected);
    json_decref(corpus);
}

DT_TEST(tokenizer_golden, llama3_is_byte_exact)
{
    check_fixture("llama3");
}

DT_TEST(tokenizer_golden, qwen_is_byte_exact)
{
    check_fixture("qwen");
}

DT_TEST(tokenizer_golden, gpt2_is_byte_exact)
{
    check_fixture("gpt2");
}

DT_TEST(tokenizer_golden, falcon_is_byte_exact)
{
    check_fixture("falcon");
}

/* As many characters as tokenizers 0.23 takes for punctuation, and their sum. */
DT_TEST(tokenizer_golden, punctuation_is_that_of_the_reference)
{
    int64_t n = 0, sum = 0;

    for (uint32_t c = 1; c < 0x110000; c++)
        if ((c < 0xd800 || c >= 0xe000) && dti_is_punctuation(c)) {
            n++;
            sum += c;
        }
    DT_ASSERT_EQ_INT(n, 726);
    DT_ASSERT_EQ_INT(sum, 20675981);
}

DT_TEST(tokenizer_golden, vocab_json_and_merges_txt_are_byte_exact)
{
    check_fixture("gpt2_pair");
}

/* Each step of test_tokenizer_steps.json on its own. */
static void check_step(json_t *model, json_t *row)
{
    static const char *const parts[] = { "added_tokens", "normalizer", "pre_tokenizer",
                                         "post_processor", "decoder" };
    const unsigned both = DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL;
    json_t *spec = json_object(), *own = json_copy(model);
    const json_t *text = json_object_get(row, "text");
    DT_HELD(tokenizer) *tok = NULL;
    dt_status st;
    char *written;

    (void)json_object_update(own, json_object_get(row, "options"));
    (void)json_object_set_new(spec, "model", own);
    for (size_t i = 0; i < DT_COUNT(parts); i++) {
        json_t *part = json_object_get(row, parts[i]);

        if (part != NULL) (void)json_object_set(spec, parts[i], part);
    }
    written = json_dumps(spec, 0);
    tok = tok_make(written);
    st = tok_expect_ids(tok, json_string_value(text), json_string_length(text), both,
                        json_object_get(row, "ids"));
    if (st == DT_OK)
        st = tok_expect_ids(tok, json_string_value(text), json_string_length(text),
                            DT_ENCODE_ADD_SPECIAL, json_object_get(row, "ids_special_as_text"));
    if (st == DT_OK)
        st = tok_expect_text(tok, json_object_get(row, "ids"), false,
                             json_string_value(json_object_get(row, "decoded")));
    if (st != DT_OK)
        (void)fprintf(stderr, "%s: %s\n", json_string_value(json_object_get(row, "name")), written);
    DT_ASSERT_OK(st);
    free(written);
    json_decref(spec);
}

DT_TEST(tokenizer_golden, every_step_does_what_the_reference_does)
{
    json_t *all = tok_read_json("tests/text/test_tokenizer_steps.json"), *row;
    json_t *cases = json_object_get(all, "cases");
    size_t i;

    DT_ASSERT(json_array_size(cases) > 40);
    json_array_foreach(cases, i, row) check_step(json_object_get(all, "model"), row);
    json_decref(all);
}
