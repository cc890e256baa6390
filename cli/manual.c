/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor --manual: the texts of --help once more, as the roff of man(7). The build installs what
 * this prints, so that the page and the command say the same. */
#include "cli/manual.h"

#include <stdio.h>

#include "cli/option_table.h"

/* One text; a dash is a dash that can be typed, and no line begins with a request of roff. */
static void put(const char *text)
{
    bool begins = true;

    for (const char *c = text; *c != '\0'; c++) {
        if (begins && (*c == '.' || *c == '\'')) (void)fputs("\\&", stdout);
        begins = *c == '\n';
        if (*c == '\\')
            (void)fputs("\\e", stdout);
        else if (*c == '-')
            (void)fputs("\\-", stdout);
        else
            (void)fputc(*c, stdout);
    }
}

/* A request, its argument in quotes, and what stands below it. */
static void section(const char *request, const char *title, const char *text)
{
    (void)printf(".%s \"", request);
    put(title);
    (void)printf("\"\n");
    put(text);
    (void)fputc('\n', stdout);
}

static void print_synopsis(const cli_overview *o)
{
    (void)printf(".SH SYNOPSIS\n.nf\n");
    for (size_t i = 0; i < o->n_commands; i++) {
        (void)printf("\\fBdtensor %s\\fR ", o->commands[i]->name);
        put(o->commands[i]->usage);
        (void)fputc('\n', stdout);
    }
    (void)printf(
        "\\fBdtensor\\fR \\-\\-help | \\-\\-version | \\-\\-manual | \\-\\-completion\n.fi\n");
}

static void print_command(const cli_command *c)
{
    char name[CLI_OPTION_BYTES];
    const char *help;

    section("SS", c->name, c->summary);
    (void)printf(".PP\n");
    put(c->details);
    (void)fputc('\n', stdout);
    for (int i = 0; cli_option_at(c, i, name, &help); i++) {
        (void)printf(".TP\n.B ");
        put(name + (name[0] == ' ' ? CLI_LETTER_BYTES : 0));
        (void)fputc('\n', stdout);
        put(help);
        (void)fputc('\n', stdout);
    }
}

void cli_print_manual(const cli_overview *o)
{
    const char *name, *value;

    (void)printf(".TH DTENSOR 1 \"\" \"dtensor %s\" \"User Commands\"\n", dt_version());
    section("SH", "NAME", "dtensor - runs language models, sharded over ranks");
    print_synopsis(o);
    section("SH", "DESCRIPTION", o->about);
    (void)printf(".SH COMMANDS\n");
    for (size_t i = 0; i < o->n_commands; i++) print_command(o->commands[i]);
    section("SH", "EXIT STATUS", o->ending);
    (void)printf(".SH ENVIRONMENT\n");
    for (int i = 0; (name = cli_environment_name(i, &value)) != NULL; i++)
        (void)printf("%s\\fB%s\\fR", i > 0 ? ",\n" : "", name);
    (void)printf("\n.br\n\\fBdtensor env\\fR shows those that are set.\n");
    (void)printf(".SH SEE ALSO\n.BR dtensor (3),\n.BR mpirun (1)\n");
}
