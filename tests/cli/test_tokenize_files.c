/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor tokenize --output: what is written, and what is refused. */
#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/cli/command.h"

enum { PATH_BYTES = DT_TEST_PATH_BYTES + 32 };

typedef struct scene {
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], text[PATH_BYTES], out[PATH_BYTES];
} scene;

static void begin(scene *s)
{
    static const char text[] = "ROMEO:\nBut soft, what light?\n\nJULIET:\nAy me!\n";

    (void)dt_test_source_path(s->model, "examples/checkpoint");
    (void)dt_test_temp_dir(s->folder);
    (void)snprintf(s->text, sizeof s->text, "%s/a.txt", s->folder);
    (void)snprintf(s->out, sizeof s->out, "%s/a.bin", s->folder);
    dt_test_write_file(s->folder, "a.txt", text, sizeof text - 1);
}

/* The ids that `dtensor tokenize --prompt-file` prints stand in the file, two bytes each. */
DT_TEST(tokenize_files, hold_the_ids_that_tokenize_prints)
{
    command_result made, printed;
    uint16_t tokens[256];
    size_t n, i = 0;
    json_t *told;
    scene s;
    FILE *f;

    begin(&s);
    dt_test_write_file(s.folder, "b.txt", "ROMEO:\nBut soft", 15);
    (void)snprintf(s.text, sizeof s.text, "%s/b.txt", s.folder);
    made = COMMAND_ENDS(0, COMMAND("tokenize", "--model", s.model, "--output", s.out, "--format",
                                   "nanogpt", "--json", s.text));
    DT_ASSERT_EQ_STR(made.err, "");
    told = json_loads(made.out, 0, NULL);
    printed = COMMAND("tokenize", "--model", s.model, "--prompt-file", s.text);
    f = fopen(s.out, "rb");
    n = fread(tokens, 2, DT_COUNT(tokens), f);
    (void)fclose(f);
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(told, "tokens")), n);
    for (const char *p = printed.out; i < n && *p != '\0'; i++) {
        char *next;
        DT_ASSERT_EQ_INT(tokens[i], strtol(p, &next, 10));
        p = next + 1;
    }
    DT_ASSERT_EQ_INT(i, n);
    json_decref(told);
}

DT_TEST(tokenize_files, of_several_texts_have_documents_and_ends)
{
    scene s;

    begin(&s);
    COMMAND_ENDS(0,
                 COMMAND("tokenize", "-m", s.model, s.text, "-o", s.out, "--append-eos",
                         "--separator", "\n\n", "--", s.text),
                 "of 4 documents\n");
}

DT_TEST(tokenize_files, that_cannot_be_made_are_refused)
{
    char lines[PATH_BYTES], chat[PATH_BYTES];
    scene s;

    begin(&s);
    dt_test_write_file(s.folder, "a.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n", 26);
    dt_test_write_file(s.folder, "chat.jsonl", "{\"messages\": [{\"role\": \"user\"}]}", 32);
    (void)snprintf(lines, sizeof lines, "%s/a.jsonl", s.folder);
    (void)snprintf(chat, sizeof chat, "%s/chat.jsonl", s.folder);
    {
        const struct {
            const char *words[10], *says;
        } cases[] = {
            { { "-m", s.model, "-o", s.out }, "of what? give one FILE" },
            { { "-m", s.model, s.text }, "needs --output NAME.bin" },
            { { "-m", s.model, "-o", "a.txt", s.text }, "is called NAME.bin" },
            { { "-o", s.out, s.text }, "no tokenizer; give --model DIR" },
            { { "-m", s.folder, "-o", s.out, s.text }, "tokenizer" },
            { { "-m", s.model, "-o", s.out, "--format", "npy", s.text }, "--format: \"npy\"" },
            { { "-m", s.model, "-o", s.out, "-p", "x", s.text }, "leave --prompt out" },
            { { "-m", s.model, "-o", s.out, "--separator", "", s.text },
              "--separator: its value is empty" },
            { { "-m", s.model, "-o", s.out, "/nowhere/a.txt" },
              "/nowhere/a.txt: cannot be opened" },
            { { "-m", s.model, "-o", s.out, s.folder }, "is a folder" },
            { { "-m", s.model, "-o", s.out, "/dev/zero" }, "is a device" },
            { { "-m", s.model, "-o", "/nowhere/a.bin", s.text },
              "--output: /nowhere/a.bin cannot be made in /nowhere" },
            { { "-m", s.model, "-o", s.out, lines }, "a.jsonl: line 2: text is 1" },
            { { "-m", s.model, "-o", s.out, chat }, "chat.jsonl: line 1: a conversation" },
            { { "-m", s.model, "-o", s.out, "--json-lines", s.text }, "a.txt: line 1" },
            { { "-m", s.model, "--append-eos", "-p", "x" }, "give --output NAME.bin FILE" },
            { { "-m", s.model, "--key", "x", "-p", "x" }, "give --output NAME.bin FILE" },
        };
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            const char *words[12] = { "tokenize" };
            command_result r;
            memcpy(words + 1, cases[i].words, sizeof cases[i].words);
            r = COMMAND_ENDS(2, command_run(NULL, words), cases[i].says);
            DT_ASSERT_EQ_STR(r.out, "");
        }
    }
    DT_ASSERT(access(s.out, F_OK) != 0);
}

DT_TEST(tokenize_files, of_what_is_no_text_are_warned_of)
{
    command_result r;
    scene s;

    begin(&s);
    dt_test_write_file(s.folder, "a.txt", "\x1f\x8b\x08", 3);
    r = COMMAND_ENDS(0, COMMAND("tokenize", "-m", s.model, "-o", s.out, s.text));
    COMMAND_ASSERT_HAS(r.err, "a.txt: 1 of 3 bytes are no UTF-8, and are read as U+FFFD");
}

/* A disk that is full is no bad input. */
DT_TEST(tokenize_files, that_do_not_fit_are_not_there)
{
    struct rlimit limit, small;
    command_result r;
    scene s;

    begin(&s);
    DT_ASSERT(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = limit;
    small.rlim_cur = 20; /* bytes, also of what the command says */
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &small) == 0);
    r = COMMAND("tokenize", "-m", s.model, "-o", s.out, s.text);
    DT_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    DT_ASSERT_EQ_INT(r.code, 1);
    DT_ASSERT_EQ_INT(dt_test_count_files(s.folder, ""), 1); /* the text */
}

/* Whoever is told to stop takes the half-written file away, and ends by the signal. */
DT_TEST(tokenize_files, leave_nothing_when_they_are_interrupted)
{
    enum { BYTES = 64 << 20, TRIES = 2000 };
    char binary[DT_TEST_PATH_BYTES], *text = malloc(BYTES);
    pid_t pid;
    int status = 0;
    scene s;

    begin(&s);
    (void)dt_test_binary_path(binary, "bin/dtensor");
    for (size_t i = 0; i < BYTES; i++) text[i] = i % 64 == 63 ? '\n' : (char)('a' + i * i % 26);
    dt_test_write_file(s.folder, "a.txt", text, BYTES);
    free(text);
    {
        char *argv[] = {
            "dtensor", "tokenize", "--quiet", "-m", s.model, "-o", s.out, s.text, NULL
        };
        DT_ASSERT(posix_spawn(&pid, binary, NULL, NULL, argv, environ) == 0);
    }
    for (int i = 0; i < TRIES && dt_test_count_files(s.folder, "") < 2; i++) (void)usleep(5000);
    DT_ASSERT_EQ_INT(dt_test_count_files(s.folder, ""),
                     2); /* the text, and what is being written */
    (void)kill(pid, SIGINT);
    (void)waitpid(pid, &status, 0);
    DT_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    DT_ASSERT_EQ_INT(dt_test_count_files(s.folder, ""), 1);
}

/* A file that was made by another tokenizer has ids that stand for something else. */
DT_TEST(tokenize_files, of_another_tokenizer_are_not_trained_on)
{
    static const char *const facts[] = { "{\"tokens\": 40, \"tokenizer\": \"0123456789abcdef\"}",
                                         "{\"tokens\": 40}" };
    char run[PATH_BYTES], bytes[80] = { 0 };
    scene s;

    begin(&s);
    dt_test_write_file(s.folder, "a.bin", bytes, sizeof bytes);
    (void)snprintf(run, sizeof run, "%s/run", s.folder);
    for (int i = 0; i < 2; i++) {
        command_result r;
        dt_test_write_file(s.folder, "a.bin.json", facts[i], strlen(facts[i]));
        r = COMMAND("train", "--model", s.model, "--data", s.out, "--output", run, "--steps", "1",
                    "--batch", "1", "--sequence", "8", "--documents", "--quiet");
        COMMAND_ENDS(i == 0 ? 2 : 0, r);
        if (i == 0) COMMAND_ASSERT_HAS(r.err, "a.bin: is of another tokenizer than the model's");
    }
}

/* An id that no token has would be no text. */
DT_TEST(tokenize_files, have_no_text_for_ids_beyond_the_vocabulary)
{
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "examples/checkpoint");
    COMMAND_ENDS(2, COMMAND("detokenize", "-m", model, "--tokens", "1,1024"),
                 "--tokens: token id 1024 (item 2) is outside the model's vocabulary, 0..1023");
}

/* What lies where an index would be may be anybody's. */
DT_TEST(tokenize_files, take_no_foreign_file_away)
{
    static const char *const names[] = { "a.idx", "a.bin.mask", "a.bin.json" };
    char path[PATH_BYTES];
    scene s;

    begin(&s);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        dt_test_write_file(s.folder, names[i], "mine\n", 5);
        COMMAND_ENDS(2, COMMAND("tokenize", "--model", s.model, "--output", s.out, s.text),
                     names[i], "is there already");
        (void)snprintf(path, sizeof path, "%s/%s", s.folder, names[i]);
        DT_ASSERT_EQ_STR(command_read(path), "mine\n");
        (void)unlink(path);
    }
    for (int i = 0; i < 2; i++) /* its own are replaced */
        COMMAND_ENDS(0, COMMAND("tokenize", "--model", s.model, "--output", s.out, "--format",
                                i == 0 ? "megatron" : "llmc", s.text));
    (void)unlink(s.text);
    COMMAND_ENDS(2, COMMAND("tokenize", "--model", s.model, "--output", s.out, s.text),
                 "a.txt: cannot be opened");
}
