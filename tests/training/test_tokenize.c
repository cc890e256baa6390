/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts, JSON lines and chats as files of tokens. */
#include <dtensor/token_files.h>
#include <dtensor/training_data.h>
#include <string.h>
#include <unistd.h>

#include "tests/training/token_files.h"

/* A text with what tokenizers look beyond line ends for: blank lines, spaces at either end of a
 * line, CRLF, signs that lines begin with, letters of several bytes. Freed with free(). */
static char *make_text(size_t n)
{
    static const char *const lines[] = {
        "ROMEO:\n",
        "  But soft, what light\n",
        "\n\n",
        "12345 and 678\r\n",
        "it's  \n",
        "\xc3\xa9t\xc3\xa9\n",
        "\t\ttabs\n",
        "(signs!)...\n",
        " \n",
        "a",
        " b\n",
        "{\"k\": [1, 2]}\n",
        "<|end_of_text|>\n",
    };
    char *text = malloc(n + 64);
    uint32_t state = 1;
    size_t at = 0;

    while (at < n) {
        const char *line = lines[(state = state * 1664525u + 1013904223u) / 4 % DT_COUNT(lines)];
        memcpy(text + at, line, strlen(line));
        at += strlen(line);
    }
    text[at] = '\0';
    return text;
}

/* All tokens of a file. Freed with free(). */
static int32_t *read_all(const char *path, int64_t *n)
{
    const dt_data_source source = { path, 0.0 };
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data *d = NULL;
    dt_batch b;
    int32_t *ids;

    o.sequence = 1;
    o.order = DT_ORDER_STORED;
    DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
    *n = dt_data_look(d).tokens;
    DT_ASSERT_OK(dt_data_rows(d, 0, *n - 1, &b));
    ids = malloc((size_t)*n * sizeof *ids);
    memcpy(ids, b.ids, (size_t)(*n - 1) * sizeof *ids);
    ids[*n - 1] = b.targets[*n - 2];
    dt_data_release(&d);
    return ids;
}

static void expect_same(const char *tokenizer, const char *text, const char *path)
{
    DT_HELD(tokenizer) *tok = NULL;
    int32_t *want, *got;
    size_t n_want;
    int64_t n;

    DT_ASSERT_OK(dt_tokenizer_open(tokenizer, &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(
        tok, text, strlen(text), DT_ENCODE_ADD_SPECIAL | DT_ENCODE_PARSE_SPECIAL, &want, &n_want));
    got = read_all(path, &n);
    DT_ASSERT_EQ_INT(n, n_want);
    for (int64_t i = 0; i < n; i++) DT_ASSERT_EQ_INT(got[i], want[i]);
    dt_tokenizer_free(want);
    free(got);
}

/* The text is longer than the pieces it is taken in; phi3's tokenizer can take none in pieces. */
DT_TEST(tokenize, pieces_of_a_text_have_the_tokens_of_the_whole)
{
    static const char *const folders[] = {
        "examples/checkpoint",          "tests/golden/tokenizer/gpt2",
        "tests/golden/tokenizer/gemma", "tests/golden/tokenizer/llama3",
        "tests/golden/tokenizer/qwen",  "tests/golden/tokenizer/phi3",
    };
    char *text = make_text((7 << 20) / 4), folder[DT_TEST_PATH_BYTES], out[DT_TEST_PATH_BYTES + 8];
    const char *path;
    tokens_folder f;

    tokens_begin(&f);
    path = tokens_write(&f, "a.txt", text, strlen(text));
    (void)snprintf(out, sizeof out, "%s/a.bin", f.path);
    for (size_t i = 0; i < DT_COUNT(folders); i++) {
        dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
        dt_tokenizer *tok = NULL;
        dt_tokenized told;
        (void)dt_test_source_path(folder, "%s", folders[i]);
        o.format = i % 2 == 0 ? DT_TOKENS_LLMC : DT_TOKENS_MEGATRON;
        DT_ASSERT_OK(dt_tokenizer_open(folder, &tok));
        DT_ASSERT_OK(dt_tokenize_files(&path, 1, tok, &o, out, &told));
        DT_ASSERT_EQ_INT(told.bytes, strlen(text));
        DT_ASSERT_EQ_INT(told.documents, 1);
        dt_tokenizer_release(&tok);
        expect_same(folder, text, out);
    }
    free(text);
}

typedef struct made {
    tokens_folder folder;
    char out[DT_TEST_PATH_BYTES + 8];
    dt_tokenizer *tok;
    dt_chat *chat;
} made;

static void begin(made *m)
{
    char path[DT_TEST_PATH_BYTES];

    *m = (made){ .tok = NULL };
    tokens_begin(&m->folder);
    (void)snprintf(m->out, sizeof m->out, "%s/a.bin", m->folder.path);
    DT_ASSERT_OK(dt_tokenizer_open(dt_test_source_path(path, "examples/checkpoint"), &m->tok));
}

static void end(made *m)
{
    dt_chat_release(&m->chat);
    dt_tokenizer_release(&m->tok);
}

static dt_status tokenize(made *m, const char *name, const char *text, dt_tokenize_options o,
                          dt_tokenized *told)
{
    const char *path = tokens_write(&m->folder, name, text, strlen(text));

    o.chat = m->chat;
    return dt_tokenize_files(&path, 1, m->tok, &o, m->out, told);
}

/* Each document by itself: a text between separators, or of a line of JSON, ends as was asked. */
DT_TEST(tokenize, documents_are_separated_and_ended)
{
    static const char *const texts[] = { "One fish.", "Two\nfish.", "Red." };
    dt_tokenize_options plain = DT_TOKENIZE_OPTIONS_INIT, lines = DT_TOKENIZE_OPTIONS_INIT;
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    int64_t n, at;
    made m;

    begin(&m);
    plain.separator = "<sep>";
    plain.end_token = lines.end_token = dt_tokenizer_id(m.tok, "<|end_of_text|>", 15);
    plain.format = DT_TOKENS_NANOGPT;
    lines.key = "body";
    for (int k = 0; k < 2; k++) {
        dt_data_source source = { m.out, 0.0 };
        dt_tokenized told;
        dt_data *d = NULL;
        int32_t *got;
        DT_ASSERT_OK(
            k == 0 ? tokenize(&m, "a.txt", "One fish.<sep>Two\nfish.<sep><sep>Red.", plain, &told)
                   : tokenize(&m, "a.jsonl",
                              "{\"body\": \"One fish.\"}\r\n\n  {\"x\": 1, \"body\": "
                              "\"Two\\nfish.\"}\n{\"body\": \"\"}\n{\"body\":\"Red.\"}",
                              lines, &told));
        DT_ASSERT_EQ_INT(told.documents, 3);
        got = read_all(m.out, &n);
        at = 0;
        for (size_t i = 0; i < DT_COUNT(texts); i++) {
            int32_t *want;
            size_t n_want;
            DT_ASSERT_OK(dt_tokenizer_encode(m.tok, texts[i], strlen(texts[i]),
                                             DT_ENCODE_ADD_SPECIAL, &want, &n_want));
            for (size_t j = 0; j < n_want; j++) DT_ASSERT_EQ_INT(got[at++], want[j]);
            DT_ASSERT_EQ_INT(got[at++], plain.end_token);
            dt_tokenizer_free(want);
        }
        DT_ASSERT_EQ_INT(at, n);
        DT_ASSERT_EQ_INT(told.tokens, n);
        free(got);
        /* the side file says which tokens end and begin documents, and of which tokenizer */
        o.sequence = 4;
        o.documents = true;
        o.order = DT_ORDER_PACKED;
        o.tokenizer = dt_tokenizer_hash(m.tok);
        DT_ASSERT_OK(dt_data_open(&source, 1, &o, &d));
        DT_ASSERT_EQ_INT(dt_data_look(d).documents, 3);
        dt_data_release(&d);
        o.tokenizer++;
        DT_ASSERT_STATUS(dt_data_open(&source, 1, &o, &d), DT_ERR_FORMAT, "another tokenizer");
    }
    end(&m);
}

/* They are read as U+FFFD: whoever gave another encoding, or no text, is told. */
DT_TEST(tokenize, bytes_that_are_no_text_are_counted)
{
    const dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    dt_tokenized told;
    made m;

    begin(&m);
    DT_ASSERT_OK(tokenize(&m, "a.txt", "a\xff\xfe b\xc3\xa4 c\xe2\x82", o, &told));
    DT_ASSERT_EQ_INT(told.broken, 4);
    DT_ASSERT_OK(tokenize(&m, "b.txt", "a\xc3\xa4", o, &told));
    DT_ASSERT_EQ_INT(told.broken, 0);
    end(&m);
}

/* An array, or ids whose file has another name than such files have. */
DT_TEST(tokenize, what_begins_with_zeros_is_no_text)
{
    const dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    const char *path;
    char text[8192];
    dt_tokenized told;
    made m;

    begin(&m);
    path = tokens_write(&m.folder, "ids.dat", "\x05\0\x06\0", 4);
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, m.out, &told), DT_ERR_FORMAT,
                     "ids.dat: byte 1 is zero, so it is no text");
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0'; /* gone astray */
    path = tokens_write(&m.folder, "one.txt", text, sizeof text);
    DT_ASSERT_OK(dt_tokenize_files(&path, 1, m.tok, &o, m.out, &told));
    end(&m);
}

static const char simple_template[] =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";

/* Answers are learned, with the token that ends them; what asks for them is not. */
DT_TEST(tokenize, of_chats_the_answers_are_learned)
{
    static const char chat[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
        "\"content\": \"Hi?\"}, {\"role\": \"assistant\", \"content\": \"Yes.\"}, {\"role\": "
        "\"user\", \"content\": \"Why?\"}, {\"role\": \"assistant\", \"content\": \"So.\"}]}\n";
    static const char want[] = "Yes.<|end_of_text|>\nSo.<|end_of_text|>\n";
    dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    dt_data_options read = DT_DATA_OPTIONS_INIT;
    dt_data_source source;
    dt_tokenized told;
    dt_data *d = NULL;
    int32_t learned[256], n = 0;
    size_t bytes;
    dt_batch b;
    char *text;
    made m;

    begin(&m);
    o.format = DT_TOKENS_MEGATRON;
    DT_ASSERT_STATUS(tokenize(&m, "a.jsonl", chat, o, &told), DT_ERR_ARG, "no chat template");
    DT_ASSERT_OK(dt_chat_create("simple", simple_template, strlen(simple_template), &m.chat));
    DT_ASSERT_OK(tokenize(&m, "a.jsonl", chat, o, &told));
    source = (dt_data_source){ m.out, 0.0 };
    read.sequence = told.tokens - 1;
    DT_ASSERT_OK(dt_data_open(&source, 1, &read, &d));
    DT_ASSERT_OK(dt_data_rows(d, 0, 1, &b));
    DT_ASSERT_EQ_INT(b.n_valid, told.tokens - told.masked);
    for (int64_t j = 0; j < b.tokens; j++)
        if (b.targets[j] != -100) learned[n++] = b.targets[j];
    DT_ASSERT_EQ_INT(n, b.n_valid);
    DT_ASSERT_OK(dt_tokenizer_decode(m.tok, learned, (size_t)n, false, &text, &bytes));
    DT_ASSERT_EQ_STR(text, want);
    dt_tokenizer_free(text);
    dt_data_release(&d);
    /* a file without masks that takes its place leaves none behind */
    DT_ASSERT_OK(tokenize(&m, "b.jsonl", "{\"text\": \"Plain text, and more of it.\"}", o, &told));
    read.sequence = told.tokens - 1;
    DT_ASSERT_OK(dt_data_open(&source, 1, &read, &d));
    DT_ASSERT_OK(dt_data_rows(d, 0, 1, &b));
    DT_ASSERT_EQ_INT(b.n_valid, told.tokens - 1);
    dt_data_release(&d);
    end(&m);
}

/* As Qwen3's, which writes an empty thought into the last answer alone. */
DT_TEST(tokenize, of_answers_that_are_written_otherwise_the_last_is_learned)
{
    static const char jinja[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}(hm)"
        "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
        "%}";
    static const char chat[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
        "\"content\": \"A\"}, {\"role\": \"user\", \"content\": \"2\"}, {\"role\": \"assistant\", "
        "\"content\": \"B\"}]}\n";
    dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    dt_tokenized told;
    made m;

    begin(&m);
    DT_ASSERT_OK(dt_chat_create("thinks", jinja, strlen(jinja), &m.chat));
    DT_ASSERT_OK(tokenize(&m, "a.jsonl", chat, o, &told));
    DT_ASSERT_EQ_INT(told.last_only, 1);
    DT_ASSERT(told.masked > 0 && told.masked < told.tokens);
    end(&m);
}

DT_TEST(tokenize, lines_that_are_wrong_are_named)
{
    static const struct {
        const char *text, *says;
        dt_status st;
    } cases[] = {
        { "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", "a.jsonl: line 3", DT_ERR_FORMAT },
        { "{\"text\": \"a\"}\n[1]\n", "a.jsonl: line 2", DT_ERR_FORMAT },
        { "{\"txt\": \"a\"}\n", "a.jsonl: line 1: text is missing", DT_ERR_FORMAT },
        { "{\"text\": 3}\n", "a.jsonl: line 1: text is 3", DT_ERR_FORMAT },
        { "{\"text\": \"\"}\n", "no tokens", DT_ERR_ARG },
        { "{\"messages\": {}}\n", "a.jsonl: line 1: messages", DT_ERR_FORMAT },
        { "{\"messages\": []}\n", "a.jsonl: line 1: no message", DT_ERR_FORMAT },
        { "\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n",
          "a.jsonl: line 2: no message of 1 has the role", DT_ERR_FORMAT },
        { "", "a.jsonl: is empty", DT_ERR_FORMAT },
    };
    dt_tokenize_options o = DT_TOKENIZE_OPTIONS_INIT;
    dt_tokenized told;
    const char *path;
    made m;

    begin(&m);
    DT_ASSERT_OK(dt_chat_create("simple", simple_template, strlen(simple_template), &m.chat));
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        DT_ASSERT_STATUS(tokenize(&m, "a.jsonl", cases[i].text, o, &told), cases[i].st,
                         cases[i].says);
    DT_ASSERT(access(m.out, F_OK) != 0); /* none of them left a file */
    path = m.folder.path;
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, m.out, &told), DT_ERR_IO,
                     "is a folder");
    path = "/nowhere/a.txt";
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, m.out, &told), DT_ERR_IO,
                     "cannot be opened");
    path = tokens_write(&m.folder, "a.bin", "text", 4);
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, m.out, &told), DT_ERR_ARG,
                     "is the text and the output as well");
    path = tokens_write(&m.folder, "b.txt", "text", 4);
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, "a.txt", &told), DT_ERR_ARG,
                     "NAME.bin");
    DT_ASSERT_STATUS(dt_tokenize_files(&path, 1, m.tok, &o, "/nowhere/a.bin", &told), DT_ERR_IO,
                     "/nowhere/a.bin: cannot be created");
    end(&m);
}
