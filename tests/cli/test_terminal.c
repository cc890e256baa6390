/* SPDX-License-Identifier: Apache-2.0
 *
 * What only a terminal gets: colours, the line of progress. And prompts from standard input. */
#define _XOPEN_SOURCE 600 /* posix_openpt() */
#include "tests/cli/command.h"

enum { SHOWN_BYTES = 1 << 16 };

/* Runs `dtensor WORDS...` with a terminal as standard output or error; the other one goes to
 * /dev/null. Returns its exit code, -1 without one, and what it wrote on the terminal. */
static int run_with_terminal_at(int fd, const char *extra_env, const char *const *words,
                                char *shown)
{
    char binary[DT_TEST_PATH_BYTES];
    char *argv[COMMAND_MAX_WORDS + 2], *env[COMMAND_MAX_ENV];
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    posix_spawn_file_actions_t actions;
    size_t n = 0;
    ssize_t got;
    int status = 0;
    pid_t pid = 0;

    DT_ASSERT(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    (void)dt_test_binary_path(binary, "bin/dtensor");
    command_words(words, argv);
    command_environment(extra_env, env);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, 3 - fd, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addopen(&actions, fd, ptsname(master), O_WRONLY | O_NOCTTY, 0);
    DT_ASSERT(posix_spawn(&pid, binary, &actions, NULL, argv, env) == 0);
    (void)posix_spawn_file_actions_destroy(&actions);
    while (n + 1 < SHOWN_BYTES && (got = read(master, shown + n, SHOWN_BYTES - 1 - n)) > 0)
        n += (size_t)got; /* until nobody has the other end open */
    shown[n] = '\0';
    (void)waitpid(pid, &status, 0);
    (void)close(master);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_on_terminal(const char *extra_env, const char *const *words, char *shown)
{
    return run_with_terminal_at(STDERR_FILENO, extra_env, words, shown);
}

/* The message of a wrong option under NO_COLOR and TERM as given. */
static void expect_colors(const char *no_color, const char *term, bool want)
{
    const char *const words[] = { "env", "--bogus", NULL };
    char *shown = calloc(SHOWN_BYTES, 1);

    DT_ASSERT(shown != NULL && setenv("TERM", term, 1) == 0);
    if (no_color != NULL)
        (void)setenv("NO_COLOR", no_color, 1);
    else
        (void)unsetenv("NO_COLOR");
    DT_ASSERT_EQ_INT(run_on_terminal(NULL, words, shown), 2);
    COMMAND_ASSERT_HAS(shown, "unknown option --bogus");
    if ((strstr(shown, "\033[") != NULL) != want)
        dt_test_fail(__FILE__, __LINE__, "NO_COLOR=%s TERM=%s: %s", no_color ? no_color : "(unset)",
                     term, shown);
    free(shown);
}

DT_TEST(cli_terminal, colors_are_left_out_where_nobody_wants_them)
{
    expect_colors(NULL, "xterm", true);
    expect_colors("", "xterm", true); /* https://no-color.org: when not an empty string */
    expect_colors("1", "xterm", false);
    expect_colors(NULL, "dumb", false);
}

DT_TEST(cli_terminal, progress_is_shown_there_and_nowhere_else)
{
    char model[DT_TEST_PATH_BYTES], *shown = calloc(SHOWN_BYTES, 1);
    const char *const words[] = { "verify", "--values", model, NULL };
    const char *const quiet[] = { "verify", "--values", "-q", model, NULL };
    command_result r;

    (void)dt_test_source_path(model, "examples/checkpoint");
    DT_ASSERT(shown != NULL && setenv("TERM", "xterm", 1) == 0);
    DT_ASSERT_EQ_INT(run_on_terminal(NULL, words, shown), 0);
    COMMAND_ASSERT_HAS(shown, "100 %");
    DT_ASSERT_EQ_INT(run_on_terminal(NULL, quiet, shown), 0);
    DT_ASSERT_EQ_STR(shown, "");
    free(shown);
    r = COMMAND_ENDS(0, COMMAND("verify", "--values", model));
    DT_ASSERT_EQ_STR(r.err, "");
}

/* A model's text may be "clear the screen". */
DT_TEST(cli_terminal, control_characters_of_texts_are_shown_there_and_kept_elsewhere)
{
    static const char text[] = "a\tb\033[2J\rc\302\233d\177";
    char model[DT_TEST_PATH_BYTES], *shown = calloc(SHOWN_BYTES, 1);
    command_result ids = COMMAND("tokenize", "-q", "-m",
                                 dt_test_source_path(model, "examples/checkpoint"), "-p", text),
                   r;
    const char *back[] = { "detokenize", "-m", model, "--tokens", ids.out, NULL };
    const char *again[] = { "generate", "-q", "-m", model, "-n", "1", "-p", text, NULL };

    DT_ASSERT(shown != NULL);
    COMMAND_ENDS(0, ids);
    ids.out[strcspn(ids.out, "\n")] = '\0';
    DT_ASSERT_EQ_INT(run_with_terminal_at(STDOUT_FILENO, NULL, back, shown), 0);
    COMMAND_ASSERT_HAS(shown, "b\\x1b[2J\\x0dc\\xc2\\x9bd\\x7f");
    DT_ASSERT(strchr(shown, '\033') == NULL);
    DT_ASSERT_EQ_INT(run_with_terminal_at(STDOUT_FILENO, NULL, again, shown), 0);
    COMMAND_ASSERT_HAS(shown, "b\\x1b[2J\\x0dc");
    r = COMMAND("detokenize", "-m", model, "--tokens", ids.out);
    DT_ASSERT(strncmp(r.out, text, sizeof text - 1) == 0);
    free(shown);
}

/* What the file calls a token is the file's word. */
DT_TEST(cli_terminal, pieces_are_shown_without_their_control_characters)
{
    static const char file[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
                               "\"merges\": []}, \"added_tokens\": [{\"id\": 1, \"content\": "
                               "\"\\u001b]0;x\\u0007\", \"single_word\": false, \"lstrip\": false, "
                               "\"rstrip\": false, \"normalized\": false, \"special\": false}]}";
    char folder[DT_TEST_PATH_BYTES], *shown = calloc(SHOWN_BYTES, 1);
    const char *words[] = { "tokenize", "-v", "-m", folder, "-p", "a\033]0;x\007", NULL };

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "tokenizer.json", file, sizeof file - 1);
    DT_ASSERT(shown != NULL);
    DT_ASSERT_EQ_INT(run_with_terminal_at(STDOUT_FILENO, NULL, words, shown), 0);
    COMMAND_ASSERT_HAS(shown, "1\t\\x1b]0;x\\x07");
    DT_ASSERT(strchr(shown, '\033') == NULL);
    free(shown);
}

/* A shell's pipe into "-f -" gives the text that --prompt gives. */
DT_TEST(cli_terminal, a_prompt_comes_from_standard_input)
{
    char binary[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES], out[256];
    char line[3 * DT_TEST_PATH_BYTES];
    command_result r;
    FILE *f;
    size_t n;

    (void)dt_test_binary_path(binary, "bin/dtensor");
    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)snprintf(line, sizeof line, "echo ROMEO: | '%s' generate -q -m '%s' -n 8 -f -", binary,
                   model);
    f = popen(line, "r");
    n = f != NULL ? fread(out, 1, sizeof out - 1, f) : 0;
    out[n] = '\0';
    DT_ASSERT(f != NULL && pclose(f) == 0);
    r = COMMAND("generate", "-q", "-m", model, "-n", "8", "-p", "ROMEO:");
    DT_ASSERT_EQ_STR(out, r.out);
}

/* Who forgets the option is told of it. */
DT_TEST(cli_terminal, a_prompt_without_its_option_is_recognised)
{
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "examples/checkpoint");
    COMMAND_ENDS(2, COMMAND("generate", "-m", model, "ROMEO:"),
                 "write --prompt \"ROMEO:\" if that is the prompt");
    COMMAND_ENDS(2, COMMAND("generate", "-m", model), "--prompt-file FILE (- is standard input)");
}
