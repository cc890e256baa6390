/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor --manual says what --help says: every sentence, usage and option of every command. */
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

    COMMAND_ASSERT_CODE(help, 0);
    COMMAND_ASSERT_HAS(help.out, "--help");
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) expect_line(manual, command, line);
    command_free(&help);
}

DT_TEST(manual, says_all_that_help_says)
{
    command_result manual = COMMAND("--manual"), all = COMMAND("--help");
    char *rest = all.out, name[32], next;
    int n = 0;

    COMMAND_ASSERT_CODE(manual, 0);
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
    command_free(&manual);
    command_free(&all);
}
