/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor --manual says what --help says: every sentence, usage and option of every command;
 * dtensor --completion offers them. */
#include <sys/stat.h>

#include "tests/cli/command.h"

/* Takes roff back to text, in place: escapes, and the font of command names. */
static void plain(char *roff)
{
    char *to = roff;

    for (const char *from = roff; *from != '\0'; from++) {
        if (*from != '\\') {
            *to++ = *from;
            continue;
        }
        from++;
        if (*from == 'f') from++;
        if (*from == '-' || *from == '\0') *to++ = '-';
        if (*from == 'e') *to++ = '\\';
        if (*from == '\0') break;
    }
    *to = '\0';
}

/* `line` up to its end; the option and its help stand in two columns, and on two lines of roff. */
static void expect_line(const char *manual, const char *command, char *line)
{
    enum { OPTION = 34 };
    char *help = strlen(line) > OPTION && strncmp(line + 6, "--", 2) == 0 ? line + OPTION : NULL;

    if (help != NULL) {
        char *end = help - 1;
        if (strstr(manual, help) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: the manual lacks \"%s\"", command, help);
        while (end > line && end[-1] == ' ') end--;
        *end = '\0';
    }
    while (*line == ' ') line++;
    if (strncmp(line, "usage: ", 7) == 0) line += 7;
    if (*line != '\0' && strstr(manual, line) == NULL)
        dt_test_fail(__FILE__, __LINE__, "%s: the manual lacks \"%s\"", command, line);
}

/* What `dtensor COMMAND --help` says is in `manual`. */
static void expect_command(const char *manual, const char *command)
{
    command_result help = COMMAND(command, "--help");
    char *rest = help.out;

    COMMAND_ENDS(0, help, "--help");
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) expect_line(manual, command, line);
}

DT_TEST(manual, says_all_that_help_says)
{
    command_result manual = COMMAND("--manual"), all = COMMAND("--help");
    char *rest = all.out, name[32], next;
    int n = 0;

    COMMAND_ENDS(0, manual);
    DT_ASSERT(strncmp(manual.out, ".TH DTENSOR 1", 13) == 0);
    plain(manual.out);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != ' ' || sscanf(line, "  %31[a-z]%c", name, &next) != 2 ||
            strcmp(name, "dtensor") == 0)
            continue;
        expect_command(manual.out, name);
        n++;
    }
    DT_ASSERT(n >= 6); /* commands that --help lists */
}

/* --- completion --------------------------------------------------------------------------------
 */

/* What bash offers for the words of a command line, whose last one is being typed: a line of words,
 * blanks in between. */
static void offers(const char *folder, const char *words, char *out, size_t bytes)
{
    char command[2 * DT_TEST_PATH_BYTES + 512];
    FILE *f;
    size_t n;

    (void)snprintf(command, sizeof command,
                   "cd '%s' && bash -c 'source ./script; COMP_WORDS=(%s); "
                   "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _dtensor; echo \"${COMPREPLY[@]}\"'",
                   folder, words);
    f = popen(command, "r");
    n = f != NULL ? fread(out, 1, bytes - 1, f) : 0;
    out[n] = '\0';
    DT_ASSERT(f != NULL && pclose(f) == 0);
}

DT_TEST(completion, bash_offers_what_there_is)
{
    static const char *const rows[][2] = {
        { "dtensor det", "detokenize\n" },
        { "dtensor --ver", "--version\n" },
        { "dtensor generate --typ", "--typical-p\n" },
        { "dtensor inspect --typ", "\n" },
        { "dtensor topo --bind \"\"", "compact spread none\n" },
        { "dtensor logits --dtype = bf", "bf16\n" }, /* as bash splits --dtype=bf */
        { "dtensor logits --dtype =", "auto f32 bf16 f16\n" },
        { "dtensor logits -m on", "one folder\n" },
        { "dtensor inspect on", "one folder\n" },
        { "dtensor generate -f scr", "script\n" },
        { "dtensor plan --plan built", "built-in\n" },
        { "dtensor generate --prompt on", "\n" },
        { "dtensor nonsense --m", "\n" },
    };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16], out[4096];
    command_result script = COMMAND_ENDS(0, COMMAND("--completion"));

    if (system("bash -c 'mapfile -t a < /dev/null' 2>/dev/null") != 0)
        return; /* there is no bash to ask */
    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "script", script.out, strlen(script.out));
    (void)snprintf(path, sizeof path, "%s/one folder", folder);
    DT_ASSERT(mkdir(path, 0700) == 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        offers(folder, rows[i][0], out, sizeof out);
        if (strcmp(out, rows[i][1]) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s: \"%s\", not \"%s\"", rows[i][0], out, rows[i][1]);
    }
}
