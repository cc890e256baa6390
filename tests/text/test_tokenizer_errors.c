/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are refused, and how. */
#include "tests/text/tokenizer_cases.h"

#define VOCAB "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
#define MODEL "\"model\": {" VOCAB "\"merges\": [\"a b\"]}"
#define SPLIT(re)                                                              \
    "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" re \
    "\"}, \"behavior\": \"Isolated\"}, " MODEL "}"

/* clang-format off */
static const struct {
    const char *text;
    dt_status code;
    const char *message;
} cases[] = {
    { "{}", DT_ERR_FORMAT, "tokenizer.json: model is missing, must be an object" },
    { "{\"version\": \"2.0\", " MODEL "}", DT_ERR_UNSUPPORTED, "version is the string \"2.0\"" },
    { "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", DT_ERR_UNSUPPORTED,
      "tokenizer.json: model is of type \"Unigram\", which is not supported here; known types are BPE" },
    { "{\"model\": {\"merges\": []}}", DT_ERR_FORMAT, "model.vocab is missing" },
    { "{\"model\": {\"vocab\": {\"a\": 0}}}", DT_ERR_FORMAT, "model.merges is missing" },
    { "{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", DT_ERR_FORMAT,
      "model.vocab.a is -1, must be an id from 0 to 16777215" },
    { "{\"model\": {\"vocab\": {\"a\": 1.5}, \"merges\": []}}", DT_ERR_FORMAT, "model.vocab.a is 1.5" },
    { "{\"model\": {\"vocab\": {\"a\": 16777216}, \"merges\": []}}", DT_ERR_FORMAT, "16777216" },
    { "{\"model\": {\"vocab\": {\"a\": 3, \"b\": 3}, \"merges\": []}}", DT_ERR_FORMAT,
      "model.vocab: id 3 belongs to both \"a\" and \"b\"" },
    { "{\"model\": {\"vocab\": {\"a\": 3, \"a\": 4}, \"merges\": []}}", DT_ERR_FORMAT,
      "key \"a\" occurs twice" },
    { "{\"model\": {" VOCAB "\"merges\": [\"a b\", \"a c\"]}}", DT_ERR_FORMAT,
      "model.merges[1] needs the token \"c\", which is not in the vocabulary" },
    { "{\"model\": {" VOCAB "\"merges\": [\"b a\"]}}", DT_ERR_FORMAT,
      "model.merges[0] needs the token \"ba\"" },
    { "{\"model\": {" VOCAB "\"merges\": [\"ab\"]}}", DT_ERR_FORMAT, "model.merges[0] is the string \"ab\"" },
    { "{\"model\": {" VOCAB "\"merges\": [\"a b c\"]}}", DT_ERR_FORMAT, "must be two tokens" },
    { "{\"model\": {" VOCAB "\"merges\": [[\"a\"]]}}", DT_ERR_FORMAT, "model.merges[0] is an array of 1" },
    { "{\"model\": {" VOCAB "\"merges\": [[\"a\", 1]]}}", DT_ERR_FORMAT, "must be two tokens" },
    { "{\"model\": {" VOCAB "\"dropout\": 0.1, \"merges\": []}}", DT_ERR_UNSUPPORTED, "model.dropout is 0.1" },
    { "{\"model\": {" VOCAB "\"end_of_word_suffix\": \"</w>\", \"merges\": []}}", DT_ERR_UNSUPPORTED,
      "model.end_of_word_suffix is the string \"</w>\"" },
    { "{\"model\": {" VOCAB "\"ignore_merges\": 1, \"merges\": []}}", DT_ERR_FORMAT, "must be true or false" },

    { "{\"normalizer\": {\"type\": \"Nmt\"}, " MODEL "}", DT_ERR_UNSUPPORTED,
      "normalizer is of type \"Nmt\", which is not supported here; known types are NFC," },
    { "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Precompiled\"}]}, " MODEL "}",
      DT_ERR_UNSUPPORTED, "normalizer.normalizers[1] is of type \"Precompiled\"" },
    { "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [null]}, " MODEL "}", DT_ERR_FORMAT,
      "normalizer.normalizers[0] is null, must be an object" },
    { "{\"normalizer\": {\"NFC\": 1}, " MODEL "}", DT_ERR_FORMAT, "normalizer.type is missing" },
    { "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"x\"}, " MODEL "}",
      DT_ERR_UNSUPPORTED, "normalizer.pattern: an empty pattern" },
    { "{\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, " MODEL "}", DT_ERR_UNSUPPORTED,
      "pre_tokenizer is of type \"BertPreTokenizer\"" },
    { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": \"Gone\"}, " MODEL "}",
      DT_ERR_FORMAT, "pre_tokenizer.behavior is the string \"Gone\", must be Removed, Isolated," },
    { "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": \" \", \"behavior\": \"Removed\"}, " MODEL "}",
      DT_ERR_FORMAT, "pre_tokenizer.pattern is the string" },
    { "{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}, " MODEL "}", DT_ERR_FORMAT,
      "must be one character" },
    { "{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}, " MODEL "}",
      DT_ERR_FORMAT, "must be never, first or always" },
    { SPLIT("(a"), DT_ERR_UNSUPPORTED, "pre_tokenizer.pattern: regular expression \"(a\": missing closing parenthesis" },
    { SPLIT("[a&&b]"), DT_ERR_UNSUPPORTED, "&& in a class at offset 2 is not supported" },
    { SPLIT("\\\\p{Nonsense}"), DT_ERR_UNSUPPORTED, "regular expression \"\\p{Nonsense}\"" },
    { "{\"post_processor\": {\"type\": \"RobertaProcessing\"}, " MODEL "}", DT_ERR_UNSUPPORTED,
      "post_processor is of type \"RobertaProcessing\"" },
    { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}],"
      " \"special_tokens\": {}}, " MODEL "}", DT_ERR_FORMAT, "post_processor.special_tokens.<s> is missing" },
    { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}},"
      " {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [7]}}}, " MODEL "}",
      DT_ERR_FORMAT, "adds id 7, which is no token" },
    { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}, " MODEL "}", DT_ERR_FORMAT,
      "post_processor.single has no place for the text" },
    { "{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}]}, " MODEL "}",
      DT_ERR_UNSUPPORTED, "post_processor.single[0].Sequence.id is the string \"B\"" },
    { "{\"decoder\": {\"type\": \"WordPiece\"}, " MODEL "}", DT_ERR_UNSUPPORTED, "decoder is of type \"WordPiece\"" },
    { "{\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}, " MODEL "}", DT_ERR_FORMAT,
      "decoder.start is -1" },

    { "{\"added_tokens\": [{\"id\": 3, \"content\": \"\"}], " MODEL "}", DT_ERR_FORMAT, "added_tokens[0] has an empty content" },
    { "{\"added_tokens\": [{\"id\": 9, \"content\": \"<s>\"}], " MODEL "}", DT_ERR_FORMAT,
      "added_tokens[0] \"<s>\" has id 9, but the vocabulary or its place in the list gives it 3" },
    { "{\"added_tokens\": [{\"id\": 3, \"content\": \"ab\"}], " MODEL "}", DT_ERR_FORMAT, "gives it 2" },
    { "{\"added_tokens\": [{\"content\": \"<s>\"}, {\"content\": \"<s>\"}], " MODEL "}", DT_ERR_FORMAT,
      "added tokens \"<s>\" and \"<s>\" are the same text" },
    { "{\"added_tokens\": [{\"content\": \"X\"}, {\"content\": \"x\"}], \"normalizer\": {\"type\": \"Lowercase\"}, " MODEL "}",
      DT_ERR_FORMAT, "added tokens \"X\" and \"x\" are the same text" },
    { "{\"added_tokens\": [{\"content\": \" \"}], \"normalizer\": {\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}, "
      MODEL "}", DT_ERR_FORMAT, "is empty once it is normalised" },
    { "{\"added_tokens\": [7], " MODEL "}", DT_ERR_FORMAT, "added_tokens[0] is 7, must be an object" },
    { "{\"added_tokens\": [{}], " MODEL "}", DT_ERR_FORMAT, "added_tokens[0].content is missing" },
};
/* clang-format on */

DT_TEST(tokenizer_errors, files_that_contradict_themselves_are_refused_by_name)
{
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_tokenizer *tok;

        DT_ASSERT_STATUS(tok_parse(cases[i].text, &tok), cases[i].code, cases[i].message);
        DT_ASSERT(strncmp(dt_last_error()->message, "tokenizer.json: ", 16) == 0);
        DT_ASSERT(tok == NULL);
    }
}

DT_TEST(tokenizer_errors, more_steps_than_a_pipeline_holds_are_refused)
{
    char text[4096];
    dt_tokenizer *tok;
    size_t at;

    for (int pass = 0; pass < 2; pass++) {
        at =
            (size_t)snprintf(text, sizeof text,
                             pass ? "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                                  : "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
        for (int i = 0; i < DTI_MAX_STEPS + 1; i++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s{\"type\": \"%s\"}",
                                   i ? "," : "", pass ? "Fuse" : "NFC");
        (void)snprintf(text + at, sizeof text - at, "]}, " MODEL "}");
        DT_ASSERT_STATUS(tok_parse(text, &tok), DT_ERR_UNSUPPORTED, "[16]: more than 16 steps");
    }
}

DT_TEST(tokenizer_errors, missing_files_are_named)
{
    char folder[DT_TEST_PATH_BYTES];
    dt_tokenizer *tok;

    (void)dt_test_temp_dir(folder);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_IO,
                     "holds neither tokenizer.json nor vocab.json and merges.txt");
    dt_test_write_file(folder, "tokenizer.model", "x", 1);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_IO,
                     "its tokenizer.model is of another");
    DT_ASSERT_STATUS(dt_tokenizer_open("/nowhere/at/all", &tok), DT_ERR_IO, "/nowhere/at/all");
    DT_ASSERT_STATUS(dt_tokenizer_open(NULL, &tok), DT_ERR_ARG, "path");
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, NULL), DT_ERR_ARG, "out");

    dt_test_write_file(folder, "merges.txt", "a b\n", 4);
    dt_test_write_file(folder, "vocab.json", "{\"a\": 0", 7);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT, "vocab.json: line 1 column");
    dt_test_write_file(folder, "vocab.json", "{\"a\": 0}", 8);
    dt_test_write_file(folder, "merges.txt", "#version: 0.2\na b\n", 18);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "model.merges[1] needs the token \"b\"");
    dt_test_write_file(folder, "merges.txt", "#version: 0.2\na b\xff\n", 19);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "merges.txt: line 2 is not UTF-8");
    dt_test_write_file(folder, "merges.txt", "a a a\r\n", 7);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "model.merges[0] is the string \"a a a\"");
    dt_test_write_file(folder, "special_tokens_map.json", "{\"bos_token\": ", 14);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "special_tokens_map.json: line 1");
    dt_test_write_file(folder, "tokenizer_config.json", "{\"add_prefix_space\": 1}", 23);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "tokenizer_config.json: add_prefix_space is 1, must be true or false");
    dt_test_write_file(folder, "tokenizer.json", "{\"model\": 3}", 12);
    DT_ASSERT_STATUS(dt_tokenizer_open(folder, &tok), DT_ERR_FORMAT,
                     "tokenizer.json: model is 3, must be an object");
}

/* Takes exponential time on a run of a's that does not end the line. */
DT_TEST(tokenizer_errors, a_catastrophic_pattern_ends_in_an_error)
{
    DT_HELD(tokenizer) *tok = tok_make(SPLIT("(a|a)+$"));
    char text[64];
    int32_t *ids;
    size_t n;

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    DT_ASSERT_STATUS(dt_tokenizer_encode(tok, text, sizeof text, 0, &ids, &n), DT_ERR_UNSUPPORTED,
                     "gave up at byte 0 of a text of 64 bytes: match limit exceeded");
    DT_ASSERT(ids == NULL);
}

DT_TEST(tokenizer_errors, bad_arguments_are_refused)
{
    dt_tokenizer *tok = tok_make("{\"model\": {\"unk_token\": \"?\", " VOCAB "\"merges\": []}}");
    DT_HELD(tokenizer_stream) *stream = NULL;
    const char *part;
    int32_t *ids;
    char *text;
    size_t n;

    DT_ASSERT_STATUS(dt_tokenizer_encode(tok, NULL, 1, 0, &ids, &n), DT_ERR_ARG, "text");
    DT_ASSERT_STATUS(dt_tokenizer_encode(NULL, "a", 1, 0, &ids, &n), DT_ERR_ARG, "tok");
    DT_ASSERT_STATUS(dt_tokenizer_encode(tok, "a", 1, 4, &ids, &n), DT_ERR_ARG, "flags 0x4");
    DT_ASSERT_STATUS(dt_tokenizer_encode(tok, "z", 1, 0, &ids, &n), DT_ERR_FORMAT,
                     "unknown token \"?\", which is not in the model's vocabulary");
    DT_ASSERT_STATUS(dt_tokenizer_decode(tok, (int32_t[]){ 0, -1 }, 2, false, &text, &n),
                     DT_ERR_ARG, "token id -1 is negative");
    DT_ASSERT(text == NULL);
    DT_ASSERT_STATUS(dt_tokenizer_decode(tok, NULL, 1, false, &text, &n), DT_ERR_ARG, "ids");
    DT_ASSERT_OK(dt_tokenizer_stream_create(tok, false, &stream));
    DT_ASSERT_STATUS(dt_tokenizer_stream_push(stream, -5, &part, &n), DT_ERR_ARG, "-5");
    dt_tokenizer_release(&tok);
    dt_tokenizer_release(&tok);
}
