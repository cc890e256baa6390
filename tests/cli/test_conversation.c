/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor chat: turns from standard input, the same answers on every mesh, Ctrl-C. */
#define _GNU_SOURCE /* prlimit, posix_openpt */
#include <dtensor/tokenizer.h>

#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/cli/command.h"

static const char chat_template[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
                                    "{% endfor %}{% if add_generation_prompt %}bot:{% endif %}";

/* The example's checkpoint with a chat template beside it. */
static const char *make_model(char folder[DT_TEST_PATH_BYTES])
{
    static const char *const names[] = { "config.json", "generation_config.json",
                                         "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json" };
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 64];

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        if (symlink(dt_test_source_path(from, "examples/checkpoint/%s", names[i]), to) != 0)
            dt_test_fail(__FILE__, __LINE__, "no link %s", to);
    }
    dt_test_write_file(folder, "chat_template.jinja", chat_template, sizeof chat_template - 1);
    return folder;
}

/* A chat that runs, with pipes to and from it. */
typedef struct running {
    pid_t pid;
    int in, out;
    char text[1 << 16]; /* that came out of it */
    size_t n;
} running;

static void start_with(running *r, const char *model, const char *mesh, const char *more,
                       const char *even_more, const char *err)
{
    char binary[DT_TEST_PATH_BYTES], *env[COMMAND_MAX_ENV];
    const char *argv[] = { "dtensor", "chat", "-q", "-m",       model, "--mesh",
                           mesh,      "-n",   "12", "--system", "S",   "--greedy",
                           "--dtype", "f32",  more, even_more,  NULL };
    posix_spawn_file_actions_t actions;
    int in[2], out[2];

    DT_ASSERT(pipe(in) == 0 && pipe(out) == 0);
    command_environment(NULL, env);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    (void)posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    (void)posix_spawn_file_actions_addopen(&actions, 2, err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 2; i++) {
        (void)posix_spawn_file_actions_addclose(&actions, in[i]);
        (void)posix_spawn_file_actions_addclose(&actions, out[i]);
    }
    DT_ASSERT(posix_spawn(&r->pid, dt_test_binary_path(binary, "bin/dtensor"), &actions, NULL,
                          (char **)(uintptr_t)argv, env) == 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(in[0]);
    (void)close(out[1]);
    r->in = in[1];
    r->out = out[0];
    r->n = 0;
}

static void start(running *r, const char *model, const char *mesh, const char *more,
                  const char *err)
{
    start_with(r, model, mesh, more, NULL, err);
}

static void say(running *r, const char *line)
{
    DT_ASSERT(write(r->in, line, strlen(line)) == (ssize_t)strlen(line));
}

/* Reads until a first byte came, or to the end. */
static void hear(running *r, bool all)
{
    ssize_t got;

    do {
        got = read(r->out, r->text + r->n, sizeof r->text - r->n - 1);
        if (got > 0) r->n += (size_t)got;
    } while (got > 0 && all);
    r->text[r->n] = '\0';
}

static int finish(running *r)
{
    int status;

    (void)close(r->in);
    hear(r, true);
    (void)close(r->out);
    DT_ASSERT(waitpid(r->pid, &status, 0) == r->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

DT_TEST(cli_chat, each_line_is_a_turn_on_every_mesh)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "pp=2", "tp=2,pp=2" };
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8], *err;
    static running r, first;

    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        start(&r, model, meshes[i], "--show-prompt", file);
        say(&r, "One\r\n\nTwo"); /* the last line has no end */
        DT_ASSERT_EQ_INT(finish(&r), 0);
        err = command_read(file);
        DT_ASSERT(strstr(err, "system: S\nuser: One\nbot:\n") == err);
        DT_ASSERT(strstr(err, "\nuser: Two\nbot:\n") != NULL);
        if (i == 0) memcpy(first.text, r.text, r.n + 1);
        DT_ASSERT(r.n > 4 && memchr(r.text, '\n', r.n - 1) != NULL); /* two answers */
        DT_ASSERT_EQ_STR(r.text, first.text);
    }
}

/* What `generate` makes of the conversation so far, none of which it has read before. */
static json_t *read_anew(const char *model, const char *prompt)
{
    char list[4096] = "";
    dt_tokenizer *tok;
    command_result r;
    int32_t *ids;
    size_t n, at = 0;
    json_t *result;

    DT_ASSERT_OK(dt_tokenizer_open(model, &tok));
    DT_ASSERT_OK(
        dt_tokenizer_encode(tok, prompt, strlen(prompt), DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    for (size_t i = 0; i < n && at < sizeof list - 16; i++)
        at += (size_t)snprintf(list + at, 16, "%s%" PRId32, i > 0 ? "," : "", ids[i]);
    dt_tokenizer_free(ids);
    dt_tokenizer_release(&tok);
    r = COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", model, "--tokens", list, "-n", "12",
                                "--greedy", "--dtype", "f32", "--json"));
    result = json_loads(r.out, 0, NULL);
    return result;
}

DT_TEST(cli_chat, answers_are_those_of_reading_everything_again)
{
    static const char *const said[] = { "One", "Two, and more", "Three" };
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8], prompt[4096] = "system: S\n",
                                                                  *line;
    static running r;
    size_t at = strlen(prompt);

    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    start(&r, model, "tp=2", "--json", file);
    for (size_t i = 0; i < DT_COUNT(said); i++) {
        say(&r, said[i]);
        say(&r, "\n");
    }
    DT_ASSERT_EQ_INT(finish(&r), 0);
    line = r.text;
    for (size_t i = 0; i < DT_COUNT(said); i++) {
        json_t *answer = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL), *anew;
        const char *text = json_string_value(json_object_get(answer, "text"));
        int64_t kept, n;
        at += (size_t)snprintf(prompt + at, sizeof prompt - at, "user: %s\nbot:", said[i]);
        anew = read_anew(model, prompt);
        DT_ASSERT(answer != NULL && anew != NULL && text != NULL);
        DT_ASSERT(json_equal(json_object_get(answer, "tokens"), json_object_get(anew, "tokens")));
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(answer, "stop")),
                         json_string_value(json_object_get(anew, "stop")));
        kept = json_integer_value(json_object_get(answer, "kept_tokens"));
        n = json_integer_value(json_object_get(answer, "prompt_tokens"));
        DT_ASSERT_EQ_INT(n, (int64_t)json_array_size(json_object_get(anew, "prompt_tokens")));
        DT_ASSERT(i == 0 ? kept == 0 : kept > 0 && kept < n);
        at -= strlen("bot:"); /* the template writes the turn in its own way */
        at += (size_t)snprintf(prompt + at, sizeof prompt - at, "assistant: %s\n", text);
        json_decref(answer);
        json_decref(anew);
        line = strchr(line, '\n') + 1;
    }
    DT_ASSERT(*line == '\0');
}

/* The last token of each answer is a zero byte: of what is said next it is a part as any other. */
DT_TEST(cli_chat, answers_keep_their_zero_bytes)
{
    static const char config[] = "{\"eos_token_id\": 1, \"forced_eos_token_id\": 190}";
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 32], prompt[4096];
    static running r;
    json_t *first, *second;
    DT_HELD(tokenizer) *tok = NULL;
    size_t n, bytes;
    int32_t *ids;

    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/generation_config.json", model);
    DT_ASSERT_EQ_INT(unlink(file), 0);
    dt_test_write_file(model, "generation_config.json", config, sizeof config - 1);
    (void)snprintf(file, sizeof file, "%s/err", model);
    start(&r, model, "tp=2", "--json", file);
    say(&r, "One\nTwo\n");
    DT_ASSERT_EQ_INT(finish(&r), 0);
    first = json_loads(r.text, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
    second = json_loads(strchr(r.text, '\n') + 1, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
    DT_ASSERT(first != NULL && second != NULL);
    bytes = json_string_length(json_object_get(first, "text"));
    DT_ASSERT(bytes > 1 && bytes < sizeof prompt / 2);
    DT_ASSERT_EQ_INT(json_string_value(json_object_get(first, "text"))[bytes - 1], 0);
    n = (size_t)snprintf(prompt, sizeof prompt, "system: S\nuser: One\nassistant: ");
    memcpy(prompt + n, json_string_value(json_object_get(first, "text")), bytes);
    n += bytes;
    n += (size_t)snprintf(prompt + n, sizeof prompt - n, "\nuser: Two\nbot:");
    DT_ASSERT_OK(dt_tokenizer_open(model, &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, prompt, n, DT_ENCODE_PARSE_SPECIAL, &ids, &n));
    DT_ASSERT_EQ_INT(json_integer_value(json_object_get(second, "prompt_tokens")), (int64_t)n);
    dt_tokenizer_free(ids);
    json_decref(first);
    json_decref(second);
}

/* A checkpoint may be many files. */
DT_TEST(cli_chat, as_many_files_may_be_open_as_the_system_allows)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    struct rlimit before, few, now;
    static running r;

    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    DT_ASSERT_EQ_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){ 64, before.rlim_max < 1000 ? before.rlim_max : 1000 };
    DT_ASSERT_EQ_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    start(&r, model, "tp=1", NULL, file);
    say(&r, "One\n");
    hear(&r, false);
    DT_ASSERT_EQ_INT(prlimit(r.pid, RLIMIT_NOFILE, NULL, &now), 0);
    DT_ASSERT_EQ_INT((int64_t)now.rlim_cur, (int64_t)few.rlim_max);
    DT_ASSERT_EQ_INT(finish(&r), 0);
}

/* An answer may be over before the signal comes: then it counts as one at the prompt, and where
 * nobody sits there that is the end. In both cases the program ends in order. */
DT_TEST(cli_chat, an_interrupt_is_not_the_end_of_the_program)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    static running r;

    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    start(&r, model, "tp=2", "--show-prompt", file);
    say(&r, "One\n");
    hear(&r, false);
    DT_ASSERT(r.n > 0 && kill(r.pid, SIGINT) == 0);
    DT_ASSERT_EQ_INT(finish(&r), 0);
    DT_ASSERT(r.text[r.n - 1] == '\n');
}

/* In the place of the link to the example's config.json a file that says another context. */
static void set_context(const char *model, const char *positions)
{
    static const char key[] = "\"max_position_embeddings\": ";
    char path[DT_TEST_PATH_BYTES + 16], edited[4096], *config;
    const char *at;

    (void)snprintf(path, sizeof path, "%s/config.json", model);
    config = command_read(path);
    at = strstr(config, key);
    DT_ASSERT(at != NULL && unlink(path) == 0);
    (void)snprintf(edited, sizeof edited, "%.*s%s%s%s", (int)(at - config), config, key, positions,
                   at + strlen(key) + strspn(at + strlen(key), "0123456789"));
    dt_test_write_file(model, "config.json", edited, strlen(edited));
}

/* Reading as much as its context takes seconds. */
static void make_long_model(char folder[DT_TEST_PATH_BYTES])
{
    set_context(make_model(folder), "16384");
}

/* Nobody has memory for all of this context. */
DT_TEST(cli_chat, caches_grow_with_what_is_said)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    static running r;

    set_context(make_model(model), "500000000");
    (void)snprintf(file, sizeof file, "%s/err", model);
    start(&r, model, "tp=2", NULL, file);
    say(&r, "One\nTwo\n");
    DT_ASSERT_EQ_INT(finish(&r), 0);
    DT_ASSERT(r.n > 2);
}

/* `words` tokens, up to 8000 of them; reading takes time that grows with their square. */
static void say_much(running *r, size_t words)
{
    char line[16000];

    for (size_t i = 0; i < words; i++) memcpy(line + 2 * i, "q ", 2);
    line[2 * words - 1] = '\n';
    DT_ASSERT(write(r->in, line, 2 * words) == (ssize_t)(2 * words));
}

/* Until the file holds `text`. */
static void wait_for(const char *file, const char *text)
{
    for (int i = 0; i < 2000; i++) {
        char *now = command_read(file);
        const bool found = strstr(now, text) != NULL;
        if (found) return;
        (void)usleep(10000);
    }
    dt_test_fail(__FILE__, __LINE__, "no \"%s\"", text);
}

DT_TEST(cli_chat, an_interrupt_is_heard_while_a_prompt_is_read)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "pp=2" };
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8], *err, *line;
    static running r;

    make_long_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        json_t *first, *second;
        start_with(&r, model, meshes[i], "--show-prompt", "--json", file);
        say_much(&r, 8000);
        wait_for(file, "\nbot:");
        (void)usleep(100000);
        DT_ASSERT(kill(r.pid, SIGINT) == 0);
        say(&r, "Two\n");
        DT_ASSERT_EQ_INT(finish(&r), 0);
        first = json_loads(r.text, JSON_DISABLE_EOF_CHECK, NULL);
        line = strchr(r.text, '\n');
        DT_ASSERT(first != NULL && line != NULL);
        second = json_loads(line + 1, JSON_DISABLE_EOF_CHECK, NULL);
        DT_ASSERT(second != NULL);
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(first, "stop")), "interrupt");
        DT_ASSERT_EQ_INT(json_array_size(json_object_get(first, "tokens")), 0);
        DT_ASSERT(json_array_size(json_object_get(second, "tokens")) > 0);
        json_decref(first);
        json_decref(second);
        err = command_read(file);
        DT_ASSERT(strstr(err, "system: S\nuser: Two\nbot:") != NULL); /* the first is forgotten */
    }
}

/* Where the first has not been heard yet. It may have been: then another try. */
DT_TEST(cli_chat, a_second_interrupt_ends_the_program)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    static running r;
    int code = 0;

    make_long_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    for (int i = 0; i < 20 && code == 0; i++) {
        start(&r, model, "tp=1", "--show-prompt", file);
        say_much(&r, 8000);
        wait_for(file, "\nbot:");
        (void)usleep(200000);
        (void)kill(r.pid, SIGINT);
        (void)usleep(200);
        (void)kill(r.pid, SIGINT);
        code = finish(&r);
    }
    DT_ASSERT_EQ_INT(code, 128 + SIGINT);
}

DT_TEST(cli_chat, interrupts_that_are_ignored_stay_so)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    static running r;

    make_long_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    (void)signal(SIGINT, SIG_IGN);
    start(&r, model, "tp=1", "--show-prompt", file);
    (void)signal(SIGINT, SIG_DFL);
    say_much(&r, 1500); /* all of it is read, and answered */
    wait_for(file, "\nbot:");
    for (int i = 0; i < 3; i++) DT_ASSERT(kill(r.pid, SIGINT) == 0);
    DT_ASSERT_EQ_INT(finish(&r), 0);
    DT_ASSERT(r.n > 1); /* an answer */
}

DT_TEST(cli_chat, what_cannot_be_is_said)
{
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES];

    COMMAND_ENDS(2, COMMAND("chat", "-q", "-m", dt_test_source_path(folder, "examples/checkpoint")),
                 "has no chat template");
    (void)make_model(model);
    dt_test_write_file(model, "chat_template.jinja", "\n{% include 'x' %}", 18);
    COMMAND_ENDS(2, COMMAND("chat", "-q", "-m", model),
                 "line 2: the statement {% include %} is not supported");
}

/* The last tokens of the context, not those that were asked for. */
DT_TEST(cli_chat, an_answer_that_fills_the_context_ends_by_its_length)
{
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];
    static running r;
    json_t *answer;

    set_context(make_model(model), "24");
    (void)snprintf(file, sizeof file, "%s/err", model);
    start(&r, model, "tp=2", "--json", file);
    say(&r, "Hi\n");
    DT_ASSERT_EQ_INT(finish(&r), 0);
    answer = json_loads(r.text, JSON_DISABLE_EOF_CHECK, NULL);
    DT_ASSERT(json_array_size(json_object_get(answer, "tokens")) < 12);
    DT_ASSERT_EQ_INT((int64_t)json_array_size(json_object_get(answer, "tokens")) +
                         json_integer_value(json_object_get(answer, "prompt_tokens")),
                     24);
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(answer, "stop")), "length");
    json_decref(answer);
}

/* A key that makes a zero byte cost the whole conversation, where what else cannot be asked costs
 * its turn. */
DT_TEST(cli_chat, on_a_terminal_a_zero_byte_costs_its_turn_alone)
{
    static const char typed[] = "a\0b\n\xff\nOne\n\4";
    char model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8], binary[DT_TEST_PATH_BYTES], *err;
    const char *argv[] = { "dtensor", "chat", "-q", "-m", model, "-n", "4", "--greedy", NULL };
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    char *env[COMMAND_MAX_ENV], answer[256];
    posix_spawn_file_actions_t actions;
    int out[2], status;
    pid_t pid;

    DT_ASSERT(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0 && pipe(out) == 0);
    (void)make_model(model);
    (void)snprintf(file, sizeof file, "%s/err", model);
    command_environment(NULL, env);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, ptsname(master), O_RDONLY | O_NOCTTY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    (void)posix_spawn_file_actions_addopen(&actions, 2, file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    DT_ASSERT(posix_spawn(&pid, dt_test_binary_path(binary, "bin/dtensor"), &actions, NULL,
                          (char **)(uintptr_t)argv, env) == 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(out[1]);
    DT_ASSERT(write(master, typed, sizeof typed - 1) == (ssize_t)sizeof typed - 1);
    DT_ASSERT(read(out[0], answer, sizeof answer) > 0);
    DT_ASSERT(waitpid(pid, &status, 0) == pid);
    DT_ASSERT_EQ_INT(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
    err = command_read(file);
    COMMAND_ASSERT_HAS(err, "a line holds a zero byte");
    COMMAND_ASSERT_HAS(err, "is not UTF-8");
    (void)close(out[0]);
    (void)close(master);
}
