/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `dtensor`: the table of commands and the way into them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/options.h"
#include "cli/report.h"
#include "cli/version.h"

static const cli_command *const commands[] = { &cli_generate,  &cli_logits, &cli_inspect,
                                               &cli_show_plan, &cli_topo,   &cli_env_command };

static void print_help(void)
{
    (void)printf("usage: dtensor COMMAND [OPTION]...\n\n"
                 "Runs language models from Hugging Face folders, sharded over ranks.\n\n");
    for (size_t i = 0; i < DT_COUNT(commands); i++)
        (void)printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    (void)printf("\n"
                 "  dtensor COMMAND --help   options of a command\n"
                 "  dtensor --version        version and build features\n\n"
                 "Results go to standard output, everything else to standard error. Exit codes: 0\n"
                 "done, 2 bad input, 4 out of memory, 5 a rank failed or timed out, 1 other.\n");
}

static void print_command_help(const cli_command *c)
{
    (void)printf("usage: dtensor %s %s\n\n%s\n\n%s\n\n", c->name, c->usage, c->summary, c->details);
    cli_print_options(c);
}

static dt_status find_command(const char *name, const cli_command **out)
{
    const char *names[DT_COUNT(commands)], *near;
    char list[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < DT_COUNT(commands); i++) {
        names[i] = commands[i]->name;
        used += (size_t)snprintf(list + used, sizeof list - used, i ? ", %s" : "%s", names[i]);
        if (strcmp(names[i], name) == 0) {
            *out = commands[i];
            return DT_OK;
        }
    }
    near = cli_nearest(name, names, DT_COUNT(names));
    DT_CHECK(near != NULL, DT_ERR_ARG, "unknown command \"%s\"; there are: %s", name, list);
    DT_FAIL(DT_ERR_ARG, "unknown command \"%s\"; did you mean \"%s\"?", name, near);
}

static dt_status run_command(int argc, char **argv, const cli_env *env, cli_console *console)
{
    const cli_command *command;
    cli_args args;
    dt_status st;

    DT_TRY(find_command(argv[1], &command));
    st = cli_parse(command, argc - 2, argv + 2, &args);
    cli_console_init(&args, env, console);
    DT_TRY(st);
    if (args.help) {
        if (console->process == 0) print_command_help(command);
        return DT_OK;
    }
    if (command->runs || console->process == 0) DT_TRY(command->run(&args, env, console));
    return DT_OK;
}

static bool is_any(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

static dt_status run(int argc, char **argv, const cli_env *env, cli_console *console)
{
    const bool speaks = console->process == 0;

    DT_CHECK(argc >= 2, DT_ERR_ARG, "no command; \"dtensor --help\" lists them");
    if (!is_any(argv[1], "--help", "-h", "help") && !is_any(argv[1], "--version", "-V", "version"))
        DT_TRY(run_command(argc, argv, env, console));
    else if (speaks && is_any(argv[1], "--help", "-h", "help"))
        print_help();
    else if (speaks)
        cli_print_version();
    DT_TRY(cli_flush());
    return DT_OK;
}

int main(int argc, char **argv)
{
    cli_console console;
    cli_env env;
    dt_status st;
    int code;

    /* A reader that has seen enough ends this process quietly, also where SIGPIPE was ignored. */
    (void)signal(SIGPIPE, SIG_DFL);
    cli_environment(&env);
    cli_console_init(&(cli_args){ 0 }, &env, &console);
    st = run(argc, argv, &env, &console);
    code = cli_report(&console, st);
    return ferror(stdout) ? CLI_EXIT_FAILURE : code;
}
