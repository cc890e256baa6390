/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor --completion: the tables of commands and options once more, as a function of bash. The
 * build installs what this prints, so that it offers what --help lists. It needs nothing but bash
 * itself: no helper of the package bash-completion. */
#include <stdio.h>
#include <string.h>

#include "cli/manual.h"
#include "cli/option_table.h"

/* bash splits "--dtype=f32" at the sign, so an option's name may stand two words before. */
static const char beginning[] =
    "_dtensor()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=\"\" options=\"\" argument=\"\"\n"
    "\n"
    "    COMPREPLY=()\n"
    "    ((COMP_CWORD > 0)) && prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    if [[ $cur == \"=\" ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == \"=\" ]] && ((COMP_CWORD > 1)); then\n"
    "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n";

static const char ending[] =
    "    if [[ $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\")\n"
    "    elif [[ -n $argument ]]; then\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -d -- \"$cur\")\n"
    "    fi\n"
    "}\n"
    "complete -F _dtensor dtensor\n";

static void print_commands(const cli_overview *o)
{
    (void)printf("    if ((COMP_CWORD == 1)); then\n"
                 "        mapfile -t COMPREPLY < <(compgen -W \"");
    for (size_t i = 0; i < o->n_commands; i++) (void)printf("%s ", o->commands[i]->name);
    (void)printf("--help --version --manual --completion\" -- \"$cur\")\n"
                 "        return\n"
                 "    fi\n");
}

/* The options that each command has. */
static void print_options(const cli_overview *o)
{
    cli_option_info info;

    (void)printf("    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < o->n_commands; i++) {
        const cli_command *c = o->commands[i];
        (void)printf("    %s)\n        options=\"", c->name);
        for (int k = 0; cli_option_info_at(c, k, &info); k++)
            (void)printf("%s--%s", k > 0 ? " " : "", info.name);
        (void)printf("\"\n        argument=%s\n        ;;\n",
                     c->argument != NULL ? c->argument : "");
    }
    (void)printf("    *) return ;;\n"
                 "    esac\n");
}

/* What may stand behind an option: its words, names of folders or of files, or anything. */
static void print_values_of(const cli_option_info *info)
{
    const bool folders = strcmp(info->value, "DIR") == 0, files = strcmp(info->value, "FILE") == 0;

    (void)printf("    --%s", info->name);
    if (info->letter != 0) (void)printf(" | -%c", info->letter);
    (void)printf(")\n");
    if (folders || files) (void)printf("        compopt -o filenames 2>/dev/null\n");
    if (folders || files || info->words != NULL) {
        (void)printf("        mapfile -t COMPREPLY < <(compgen");
        if (info->words != NULL) (void)printf(" -W \"%s\"", info->words);
        (void)printf("%s -- \"$cur\")\n", folders ? " -d" : files ? " -f" : "");
    }
    (void)printf("        return\n"
                 "        ;;\n");
}

/* Options of several commands mean the same in all of them, and come once. */
static bool has_come(const cli_overview *o, size_t i, const char *name)
{
    cli_option_info info;

    for (size_t c = 0; c < i; c++)
        for (int k = 0; cli_option_info_at(o->commands[c], k, &info); k++)
            if (info.name == name) return true;
    return false;
}

static void print_values(const cli_overview *o)
{
    cli_option_info info;

    (void)printf("    case $prev in\n");
    for (size_t i = 0; i < o->n_commands; i++)
        for (int k = 0; cli_option_info_at(o->commands[i], k, &info); k++)
            if (info.value != NULL && !has_come(o, i, info.name)) print_values_of(&info);
    (void)printf("    esac\n");
}

void cli_print_completion(const cli_overview *o)
{
    (void)printf("# bash completion for dtensor %s: what --help lists, printed by "
                 "\"dtensor --completion\".\n",
                 dt_version());
    (void)fputs(beginning, stdout);
    print_commands(o);
    print_options(o);
    print_values(o);
    (void)fputs(ending, stdout);
}
