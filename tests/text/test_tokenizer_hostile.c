/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are well-formed and meant to do harm: a text has a budget of work, and each stage may
 * make only so much of it. */
#include <dtensor/tokenizer.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/text/tokenizer_cases.h"
#include "text/tokenizer/coverage.h"

enum { TEXT_BYTES = 1 << 18, FILE_BYTES = 1 << 17 };

#define MODEL "\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}"
#define RUN   "(?:[^b]*+[cd]|[^b]*+[ce]|[^b]*+[cf]|[^b]*+[cg])|"
#define SPLIT(re)                                                              \
    "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" re \
    "\"}, \"behavior\": "                                                      \
    "\"Isolated\"}, " MODEL "}"

static double seconds_of_work(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* n times the same letter, but for the end of a long text. */
static dt_status encode(const dt_tokenizer *tok, char letter, size_t n)
{
    char *text = malloc(n);
    int32_t *ids;
    size_t n_ids;
    dt_status st;

    DT_ASSERT(text != NULL);
    memset(text, letter, n);
    if (n == TEXT_BYTES) text[n - 1] = 'b';
    st = dt_tokenizer_encode(tok, text, n, 0, &ids, &n_ids);
    free(text);
    dt_tokenizer_free(ids);
    return st;
}

/* Of the second kind each start runs over the whole text in one step, which no limit of steps
 * notices; of the third the length decides. */
DT_TEST(tokenizer_hostile, a_text_has_a_budget_of_work)
{
    static const char *const files[] = { SPLIT("(a|a)+$"), SPLIT(RUN RUN RUN RUN "x[cd]"),
                                         SPLIT("a*?a*?[cd]") };

    for (size_t i = 0; i < DT_COUNT(files); i++) {
        dt_tokenizer *tok = tok_make(files[i]);
        const double before = seconds_of_work();
        DT_ASSERT_STATUS(encode(tok, 'a', TEXT_BYTES), DT_ERR_UNSUPPORTED, "gave up at byte");
        if (seconds_of_work() - before > 20)
            dt_test_fail(__FILE__, __LINE__, "%s: %g s", files[i], seconds_of_work() - before);
        if (i == 0) DT_ASSERT_STATUS(dti_tokenizer_try(tok), DT_ERR_UNSUPPORTED, "gave up at byte");
        DT_ASSERT_OK(encode(tok, 'b', 100)); /* the next text has its own */
        dt_tokenizer_release(&tok);
    }
}

/* Steps that each make `times` letters of one. `part` is "normalizer" or "decoder". */
static dt_tokenizer *make_growing(const char *part, int n_steps, int times)
{
    char *file = malloc(FILE_BYTES), *letters = malloc((size_t)times + 1);
    dt_tokenizer *tok;
    int n;

    DT_ASSERT(file != NULL && letters != NULL);
    memset(letters, 'a', (size_t)times);
    letters[times] = '\0';
    n = snprintf(file, FILE_BYTES, "{\"%s\": {\"type\": \"Sequence\", \"%ss\": [", part, part);
    for (int i = 0; i < n_steps; i++)
        n += snprintf(file + n, FILE_BYTES - (size_t)n,
                      "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": "
                      "\"%s\"}",
                      i > 0 ? ", " : "", letters);
    (void)snprintf(file + n, FILE_BYTES - (size_t)n, "]}, " MODEL "}");
    tok = tok_make(file);
    free(file);
    free(letters);
    return tok;
}

DT_TEST(tokenizer_hostile, a_letter_does_not_become_gigabytes)
{
    DT_HELD(tokenizer) *tok = make_growing("normalizer", 6, 4300);
    dt_tokenizer_stream *stream;
    const int32_t id = 0;
    const char *piece;
    char *text;
    size_t n;

    DT_ASSERT_STATUS(encode(tok, 'a', 1), DT_ERR_UNSUPPORTED, "a step of the tokenizer makes more");
    DT_ASSERT_STATUS(dti_tokenizer_try(tok), DT_ERR_UNSUPPORTED, "a step of the tokenizer makes");
    DT_ASSERT_OK(encode(tok, 'b', 1000));
    dt_tokenizer_release(&tok);

    tok = make_growing("decoder", 6, 4300);
    DT_ASSERT_STATUS(dt_tokenizer_decode(tok, &id, 1, false, &text, &n), DT_ERR_UNSUPPORTED,
                     "a step of the tokenizer makes more");
    DT_ASSERT_OK(dt_tokenizer_stream_create(tok, false, &stream));
    DT_ASSERT_STATUS(dt_tokenizer_stream_push(stream, id, &piece, &n), DT_ERR_UNSUPPORTED,
                     "a step of the tokenizer makes more");
    dt_tokenizer_stream_release(&stream);
    DT_ASSERT_STATUS(dti_tokenizer_try(tok), DT_ERR_UNSUPPORTED, "a step of the tokenizer makes");
}

/* A template of a text and n pieces behind it. */
static dt_status make_template(const char *piece, size_t n, dt_tokenizer **out)
{
    static const char head[] =
        "{" MODEL ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"special_tokens\": "
        "{\"s\": {\"ids\": [0,0,0,0,0,0,0,0]}}, \"single\": [{\"Sequence\": {\"id\": \"A\"}}";
    const size_t step = strlen(piece);
    char *file = malloc(sizeof head + n * step + 4);
    dt_status st;

    DT_ASSERT(file != NULL);
    memcpy(file, head, sizeof head - 1);
    for (size_t i = 0; i < n; i++) memcpy(file + sizeof head - 1 + i * step, piece, step);
    memcpy(file + sizeof head - 1 + n * step, "]}}", 4);
    st = tok_parse(file, out);
    free(file);
    return st;
}

DT_TEST(tokenizer_hostile, templates_are_bounded)
{
    static const char text[] = ", {\"Sequence\": {\"id\": \"A\"}}";
    static const char special[] = ", {\"SpecialToken\": {\"id\": \"s\"}}";
    DT_HELD(tokenizer) *tok = NULL;
    int32_t *ids;
    size_t n;

    DT_ASSERT_STATUS(make_template(text, 200000, &tok), DT_ERR_UNSUPPORTED,
                     "post_processor.single[64].Sequence");
    DT_ASSERT_STATUS(make_template(text, 64, &tok), DT_ERR_UNSUPPORTED, "at most 64 places");
    DT_ASSERT_STATUS(make_template(special, 8193, &tok), DT_ERR_UNSUPPORTED, "at most 65536");
    DT_ASSERT_OK(make_template(text, 63, &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, "ab", 2, 0, &ids, &n));
    DT_ASSERT_EQ_INT(n, 128);
    dt_tokenizer_free(ids);
    dt_tokenizer_release(&tok);
    DT_ASSERT_OK(make_template(special, 8192, &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, "ab", 2, DT_ENCODE_ADD_SPECIAL, &ids, &n));
    DT_ASSERT_EQ_INT(n, 65538);
    dt_tokenizer_free(ids);
}

/* Bytes as characters, of which each byte is a character again. */
DT_TEST(tokenizer_hostile, words_are_bounded_too)
{
    static const char level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                "\"use_regex\": false}";
    char file[4096];
    int n = snprintf(file, sizeof file,
                     "{\"pre_tokenizer\": {\"type\": \"Sequence\", "
                     "\"pretokenizers\": [");
    DT_HELD(tokenizer) *tok = NULL;

    for (int i = 0; i < 8; i++)
        n += snprintf(file + n, sizeof file - (size_t)n, "%s%s", i > 0 ? ", " : "", level);
    (void)snprintf(file + n, sizeof file - (size_t)n, "]}, " MODEL "}");
    tok = tok_make(file);
    DT_ASSERT_STATUS(encode(tok, ' ', 1 << 16), DT_ERR_UNSUPPORTED,
                     "a step of the tokenizer makes");
    DT_ASSERT_OK(encode(tok, 'a', 1 << 16)); /* stands for itself */
}

/* Each marker is a piece of its own for the next step, which marks it again: no piece is long. */
DT_TEST(tokenizer_hostile, pieces_that_double_are_bounded)
{
    char file[4096];
    int n = snprintf(file, sizeof file,
                     "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                     "\"Split\", \"pattern\": {\"Regex\": \".\"}, \"behavior\": \"Isolated\"}");
    DT_HELD(tokenizer) *tok = NULL;

    for (char marker = 'A'; marker < 'H'; marker++)
        n += snprintf(file + n, sizeof file - (size_t)n,
                      ", {\"type\": \"Metaspace\", \"replacement\": \"%c\", \"prepend_scheme\": "
                      "\"always\", \"split\": false}, {\"type\": \"Split\", \"pattern\": "
                      "{\"String\": \"%c\"}, \"behavior\": \"Isolated\"}",
                      marker, marker);
    (void)snprintf(file + n, sizeof file - (size_t)n, "]}, " MODEL "}");
    tok = tok_make(file);
    DT_ASSERT_STATUS(encode(tok, 'a', 1 << 14), DT_ERR_UNSUPPORTED,
                     "a step of the tokenizer makes");
    DT_ASSERT_OK(encode(tok, 'a', 100));
}

/* What grows in earnest: four letters of Arabic are eighteen, spaces three bytes. */
DT_TEST(tokenizer_hostile, texts_that_grow_in_earnest_are_encoded)
{
    enum { N = TEXT_BYTES / 8 };
    static const char file[] =
        "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKD\"}, "
        "{\"type\": "
        "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}]}, "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}, " MODEL "}";
    DT_HELD(tokenizer) *tok = tok_make(file);
    char *text = malloc(3 * N);
    int32_t *ids;
    size_t n;

    DT_ASSERT(text != NULL);
    for (size_t i = 0; i < N; i++) memcpy(text + 3 * i, "\xef\xb7\xba", 3); /* U+FDFA */
    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, 3 * (size_t)N, 0, &ids, &n));
    dt_tokenizer_free(ids);
    free(text);
    DT_ASSERT_OK(dti_tokenizer_try(tok));
}

/* Searches are done in pieces; where these end must not be seen. */
DT_TEST(tokenizer_hostile, pieces_of_a_search_are_not_seen)
{
    DT_HELD(tokenizer) *tok = tok_make(SPLIT("b+|\\\\z"));
    char *text = malloc(TEXT_BYTES);
    size_t n, want = 0;
    int32_t *ids;

    DT_ASSERT(text != NULL);
    for (size_t gap = 1; gap < 40000; gap = gap * 3 + 1) {
        memset(text, 'a', TEXT_BYTES);
        for (size_t at = gap; at < TEXT_BYTES; at += gap + 1) text[at] = 'b';
        DT_ASSERT_OK(dt_tokenizer_encode(tok, text, TEXT_BYTES, 0, &ids, &n));
        DT_ASSERT_EQ_INT(n, TEXT_BYTES);
        for (size_t i = 0; i < n; i++) want += ids[i] == (text[i] == 'b');
        dt_tokenizer_free(ids);
        DT_ASSERT_EQ_INT(want, TEXT_BYTES);
        want = 0;
    }
    free(text);
}
