/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding, decoding and streaming through the public functions. */
#include <pthread.h>

#include "base/memory.h"
#include "tests/text/tokenizer_cases.h"

/* Byte tokens, a normalised special token, and an unknown one, as in Llama 2. */
static const char llama2[] =
    "{\"added_tokens\": [{\"id\": 7, \"content\": \"<s>\", \"special\": true, \"normalized\": "
    "true}],"
    " \"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"_\"},"
    " \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
    "  {\"type\": \"Replace\", \"pattern\": {\"String\": \"_\"}, \"content\": \" \"},"
    "  {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"},"
    "  {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},"
    " \"model\": {\"byte_fallback\": true, \"vocab\": {\"_\": 0, \"a\": 1, \"<0xC3>\": 2, "
    "\"<0xA9>\": 3,"
    "  \"_a\": 4, \"<0x41>\": 5, \"<0xF0>\": 6}, \"merges\": [\"_ a\"]}}";

static dt_tokenizer *open_golden(const char *name)
{
    char path[DT_TEST_PATH_BYTES];
    dt_tokenizer *tok;

    DT_ASSERT_OK(
        dt_tokenizer_open(dt_test_source_path(path, "tests/golden/tokenizer/%s", name), &tok));
    return tok;
}

/* Encodes and decodes again. */
static void check_round_trip(const dt_tokenizer *tok, const char *text, size_t n, const char *want,
                             size_t n_want)
{
    int32_t *ids;
    size_t n_ids, bytes;
    char *back;

    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, n, 0, &ids, &n_ids));
    DT_ASSERT_OK(dt_tokenizer_decode(tok, ids, n_ids, false, &back, &bytes));
    DT_ASSERT_EQ_INT(bytes, n_want);
    DT_ASSERT(memcmp(back, want, bytes) == 0 && back[bytes] == '\0');
    dt_tokenizer_free(ids);
    dt_tokenizer_free(back);
}

/* Python: text.decode("utf-8", "replace") */
DT_TEST(tokenizer, broken_utf8_becomes_replacement_characters)
{
#define R "\xef\xbf\xbd"
    static const char *const cases[][2] = {
        { "a\xff"
          "b",
          "a" R "b" },
        { "\xc3", R },
        { "\xc3(", R "(" },
        { "\xe2\x82", R },
        { "\xe2\x82z\xe2\x82\xac", R "z\xe2\x82\xac" },
        { "\xf0\x9f\x98", R },
        { "\xf0\x9f\x98\xf0\x9f\x98\x80", R "\xf0\x9f\x98\x80" },
        { "\xc0\xaf", R R },
        { "\xe0\x80\x80", R R R },
        { "\xed\xa0\x80", R R R },
        { "\xf4\x90\x80\x80", R R R R },
        { "\xf8\x88\x80\x80\x80", R R R R R },
        { "\x80\xbf", R R },
        { "\xf1\x80\x80\xe1\x80\xc2", R R R },
    };
    dt_tokenizer *tok = open_golden("gpt2");

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        check_round_trip(tok, cases[i][0], strlen(cases[i][0]), cases[i][1], strlen(cases[i][1]));
    check_round_trip(tok, "a\0b", 3, "a\0b", 3);
    check_round_trip(tok, "", 0, "", 0);
    check_round_trip(tok, NULL, 0, "", 0);
    dt_tokenizer_release(&tok);
#undef R
}

DT_TEST(tokenizer, special_tokens_in_a_text_count_only_on_request)
{
    static const char text[] = "<|eot_id|>";
    DT_HELD(tokenizer) *tok = open_golden("llama3");
    const int32_t eot = dt_tokenizer_id(tok, text, strlen(text));
    const int32_t bos = dt_tokenizer_id(tok, "<|begin_of_text|>", 17);
    int32_t *ids;
    size_t n;

    DT_ASSERT(eot >= 0 && bos >= 0 && dt_tokenizer_is_special(tok, eot));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n));
    DT_ASSERT(n > 1);
    for (size_t i = 0; i < n; i++) DT_ASSERT(!dt_tokenizer_is_special(tok, ids[i]));
    dt_tokenizer_free(ids);
    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, strlen(text), DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    DT_ASSERT(n == 1 && ids[0] == eot);
    dt_tokenizer_free(ids);
    DT_ASSERT_OK(dt_tokenizer_encode(tok, "", 0, DT_ENCODE_ADD_SPECIAL, &ids, &n));
    DT_ASSERT(n == 1 && ids[0] == bos);
    dt_tokenizer_free(ids);
    DT_ASSERT_OK(dt_tokenizer_encode(tok, "", 0, 0, &ids, &n));
    DT_ASSERT(n == 0 && ids == NULL);
}

DT_TEST(tokenizer, ids_and_pieces_are_found_both_ways)
{
    DT_HELD(tokenizer) *tok = open_golden("qwen");
    dt_tokenizer *same = dt_tokenizer_retain(tok);
    const int32_t n = dt_tokenizer_vocab_size(tok);
    size_t bytes;

    DT_ASSERT(n > 600);
    for (int32_t id = 0; id < n; id++) {
        const char *piece = dt_tokenizer_piece(tok, id, &bytes);

        DT_ASSERT(piece != NULL && piece[bytes] == '\0');
        DT_ASSERT_EQ_INT(dt_tokenizer_id(tok, piece, bytes), id);
    }
    DT_ASSERT(dt_tokenizer_piece(tok, n, &bytes) == NULL &&
              dt_tokenizer_piece(tok, -1, NULL) == NULL);
    DT_ASSERT_EQ_INT(dt_tokenizer_id(tok, "no such token", 13), -1);
    DT_ASSERT_EQ_INT(dt_tokenizer_id(tok, "", 0), -1);
    DT_ASSERT(!dt_tokenizer_is_special(tok, 0) && !dt_tokenizer_is_special(tok, n));
    dt_tokenizer_release(&same);
    DT_ASSERT(same == NULL && dt_tokenizer_vocab_size(tok) == n);
}

/* One push after the other, each with what it gives; NULL ends, the last one is the flush. */
static void check_stream(dt_tokenizer *tok, bool skip, const int32_t *ids, const char *const *parts)
{
    DT_HELD(tokenizer_stream) *stream = NULL;
    const char *text;
    size_t n;

    DT_ASSERT_OK(dt_tokenizer_stream_create(tok, skip, &stream));
    for (int pass = 0; pass < 2; pass++) { /* a flushed stream begins anew */
        for (size_t i = 0; parts[i] != NULL; i++) {
            if (parts[i + 1] != NULL)
                DT_ASSERT_OK(dt_tokenizer_stream_push(stream, ids[i], &text, &n));
            else
                DT_ASSERT_OK(dt_tokenizer_stream_flush(stream, &text, &n));
            DT_ASSERT_EQ_STR(text, parts[i]);
            DT_ASSERT_EQ_INT(n, strlen(parts[i]));
        }
    }
}

DT_TEST(tokenizer, a_stream_holds_back_incomplete_characters)
{
    DT_HELD(tokenizer) *tok = open_golden("gpt2");
    /* The bytes of U+1F600, then a lone lead byte before a letter, then another at the end. */
    static const unsigned char bytes[] = { 0xf0, 0x9f, 0x98, 0x80, 0xc3, 'a', 0xf0, 0x9f };
    static const char *const parts[] = { "",
                                         "",
                                         "",
                                         "\xf0\x9f\x98\x80",
                                         "",
                                         "\xef\xbf\xbd"
                                         "a",
                                         "",
                                         "",
                                         "\xef\xbf\xbd",
                                         NULL };
    int32_t ids[DT_COUNT(bytes)];

    for (size_t i = 0; i < DT_COUNT(bytes); i++) {
        char piece[4];
        const size_t n = dti_utf8_write(dti_byte_to_char(bytes[i]), piece);

        ids[i] = dt_tokenizer_id(tok, piece, n);
        DT_ASSERT(ids[i] >= 0);
    }
    check_stream(tok, false, ids, parts);
}

DT_TEST(tokenizer, a_stream_holds_back_runs_of_byte_tokens)
{
    DT_HELD(tokenizer) *tok = tok_make(llama2);

    /* _a C3 A9 a: the character is certain only when the run is over. */
    check_stream(tok, false, (int32_t[]){ 4, 2, 3, 1 },
                 (const char *const[]){ "a", "", "",
                                        "\xc3\xa9"
                                        "a",
                                        "", NULL });
    /* One broken byte breaks the whole run; _ is stripped in front only. */
    check_stream(tok, false, (int32_t[]){ 0, 5, 2, 4, 2 },
                 (const char *const[]){ "", "", "", "\xef\xbf\xbd\xef\xbf\xbd a", "",
                                        "\xef\xbf\xbd", NULL });
    /* A normalised special token is skipped by its id, and otherwise decoded as it was matched. */
    check_stream(tok, true, (int32_t[]){ 7, 4 }, (const char *const[]){ "", "a", "", NULL });
    check_stream(tok, false, (int32_t[]){ 4, 7 }, (const char *const[]){ "a", " <s>", "", NULL });
    /* An id without a token gives nothing. */
    check_stream(tok, false, (int32_t[]){ 4, 99 }, (const char *const[]){ "a", "", "", NULL });
}

DT_TEST(tokenizer, a_warm_stream_does_no_malloc)
{
    DT_HELD(tokenizer) *tok = open_golden("llama3");
    DT_HELD(tokenizer_stream) *stream = NULL;
    const char *text;
    uint64_t before;
    size_t n;

    DT_ASSERT_OK(dt_tokenizer_stream_create(tok, true, &stream));
    for (int32_t id = 0; id < dt_tokenizer_vocab_size(tok); id++)
        DT_ASSERT_OK(dt_tokenizer_stream_push(stream, id, &text, &n));
    DT_ASSERT_OK(dt_tokenizer_stream_flush(stream, &text, &n));
    before = dti_alloc_count();
    for (int32_t id = 0; id < dt_tokenizer_vocab_size(tok); id++)
        DT_ASSERT_OK(dt_tokenizer_stream_push(stream, id, &text, &n));
    DT_ASSERT_EQ_INT(dti_alloc_count() - before, 0);
}

/* Models that do not cut texts meet a word as long as the text: a quadratic merge would take hours.
 */
DT_TEST(tokenizer, a_word_of_a_million_characters_is_merged)
{
    enum { N = 1 << 20 };
    DT_HELD(tokenizer) *tok = tok_make("{\"model\": {\"vocab\": {\"a\": 0, \"aa\": 1, \"aaaa\": 2},"
                                       " \"merges\": [\"a a\", \"aa aa\"]}}");
    char *text = malloc(N + 3);
    int32_t *ids;
    size_t n;

    DT_ASSERT(text != NULL);
    memset(text, 'a', N + 3);
    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, N + 3, 0, &ids, &n));
    DT_ASSERT_EQ_INT(n, N / 4 + 2);
    DT_ASSERT(ids[0] == 2 && ids[n - 3] == 2 && ids[n - 2] == 1 && ids[n - 1] == 0);
    dt_tokenizer_free(ids);
    free(text);
}

/* The cache of words must not change a result, and gives up when it is full. */
DT_TEST(tokenizer, many_different_words_decode_to_themselves)
{
    enum { WORDS = 60000 };
    DT_HELD(tokenizer) *tok = open_golden("llama3");
    char *text = malloc(WORDS * 8 + 1);
    size_t n = 0;

    DT_ASSERT(text != NULL);
    for (unsigned i = 0; i < WORDS; i++)
        n += (size_t)snprintf(text + n, 9, " %c%c%c%c", 'a' + i % 26, 'a' + i / 26 % 26,
                              'a' + i / 676 % 26, 'a' + i / 17576 % 26);
    check_round_trip(tok, text, n, text, n);
    free(text);
}

/* What Transformers writes beside vocab.json: a prefix space, special tokens in all forms. */
DT_TEST(tokenizer, an_old_folder_names_its_special_tokens_and_its_prefix_space)
{
    static const char map[] =
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"<|endoftext|>\"},"
        " \"additional_special_tokens\": [\"<x>\", {\"content\": \"<y>\"}]}";
    static const char vocab[] = "{\"a\": 0, \"\\u0120\": 1, \"\\u0120a\": 2, \"<|endoftext|>\": 3}";
    static const char text[] = "a<s><|endoftext|><y>a";
    static const int32_t want[] = { 2, 4, 3, 6, 2 };
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(tokenizer) *tok = NULL;
    int32_t *ids;
    size_t n;

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "vocab.json", vocab, strlen(vocab));
    dt_test_write_file(folder, "merges.txt", "#version: 0.2\r\n\xc4\xa0 a\r\n\r\n", 23);
    dt_test_write_file(folder, "special_tokens_map.json", map, strlen(map));
    dt_test_write_file(folder, "tokenizer_config.json", "{\"add_prefix_space\": true}", 26);
    DT_ASSERT_OK(dt_tokenizer_open(folder, &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, strlen(text), DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    DT_ASSERT(n == DT_COUNT(want) && memcmp(ids, want, sizeof want) == 0);
    for (int32_t id = 3; id < 7; id++) DT_ASSERT(dt_tokenizer_is_special(tok, id));
    DT_ASSERT_EQ_INT(dt_tokenizer_vocab_size(tok), 7);
    dt_tokenizer_free(ids);
}

typedef struct worker {
    dt_tokenizer *tok;
    const json_t *corpus, *cases;
    dt_status status;
} worker;

static dt_status work(worker *w)
{
    size_t i;
    json_t *row;

    json_array_foreach(w->cases, i, row)
    {
        const json_t *text = json_array_get(w->corpus, i);

        DT_TRY(tok_expect_ids(w->tok, json_string_value(text), json_string_length(text),
                              DT_ENCODE_PARSE_SPECIAL, json_object_get(row, "ids_plain")));
        DT_TRY(tok_expect_text(w->tok, json_object_get(row, "ids_plain"), true,
                               json_string_value(json_object_get(row, "decoded_skip"))));
    }
    return DT_OK;
}

static void *work_on_thread(void *arg)
{
    worker *w = arg;

    w->status = work(w);
    if (w->status != DT_OK) dt_test_print_error();
    dt_tokenizer_release(&w->tok);
    return NULL;
}

DT_TEST(tokenizer, threads_share_a_tokenizer)
{
    json_t *corpus = tok_read_json("tests/golden/tokenizer/corpus.json");
    json_t *expected = tok_read_json("tests/golden/tokenizer/qwen/expected.json");
    dt_tokenizer *tok = open_golden("qwen");
    pthread_t threads[4];
    worker workers[4];

    for (int i = 0; i < 4; i++) {
        workers[i] =
            (worker){ dt_tokenizer_retain(tok), corpus, json_object_get(expected, "cases"), DT_OK };
        DT_ASSERT(pthread_create(&threads[i], NULL, work_on_thread, &workers[i]) == 0);
    }
    dt_tokenizer_release(&tok);
    for (int i = 0; i < 4; i++) {
        DT_ASSERT(pthread_join(threads[i], NULL) == 0);
        DT_ASSERT_OK(workers[i].status);
    }
    json_decref(expected);
    json_decref(corpus);
}
