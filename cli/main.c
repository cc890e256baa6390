/* SPDX-License-Identifier: Apache-2.0
 *
 * The command `dtensor`: the table of commands and the way into them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/hub_models.h"
#include "cli/load_modules.h"
#include "cli/manual.h"
#include "cli/option_file.h"
#include "cli/option_table.h"
#include "cli/print_report.h"
#include "cli/standard_streams.h"
#include "cli/version.h"

static const cli_command *const commands[] = {
    &cli_generate, &cli_chat,           &cli_serve,       &cli_logits,     &cli_gradients,
    &cli_compare,  &cli_save,           &cli_inspect,     &cli_verify,     &cli_show_plan,
    &cli_train,    &cli_report_command, &cli_tokenize,    &cli_detokenize, &cli_bench,
    &cli_list,     &cli_topo,           &cli_env_command, &cli_calibrate
};

enum { MANY_FILES = 65536 };

static const char about[] = "Runs language models from Hugging Face folders, sharded over ranks.";
static const char ending[] =
    "Results go to standard output, everything else to standard error. Exit codes: 0\n"
    "done, 2 bad input, 4 out of memory, 5 a rank failed or timed out, 1 other, or meshes\n"
    "that compare finds to differ.";

static void print_help(void)
{
    (void)printf("usage: dtensor COMMAND [OPTION]...\n\n%s\n\n", about);
    for (size_t i = 0; i < DT_COUNT(commands); i++)
        (void)printf("  %-11s %s\n", commands[i]->name, commands[i]->summary);
    (void)printf(
        "\n"
        "  dtensor COMMAND --help   options of a command\n"
        "  dtensor --version        version and build features\n"
        "  dtensor --manual         all of it as a manual page: \"dtensor --manual | man -l -\"\n"
        "  dtensor --completion     completion for bash: \"source <(dtensor --completion)\"\n\n"
        "%s\n",
        ending);
}

static void print_manual(void)
{
    cli_print_manual(&(cli_overview){ commands, DT_COUNT(commands), about, ending });
}

static void print_completion(void)
{
    cli_print_completion(&(cli_overview){ commands, DT_COUNT(commands), about, ending });
}

static void print_command_help(const cli_command *c)
{
    (void)printf("usage: dtensor %s %s\n\n%s\n\n%s\n\n", c->name, c->usage, c->summary, c->details);
    cli_print_options(c);
}

static dt_status find_command(const char *name, const cli_command **out)
{
    const char *names[DT_COUNT(commands)], *near;
    char list[512] = "";
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

static dt_status run_with(const cli_command *command, cli_args *args, const cli_env *env,
                          cli_console *console)
{
    dt_status st;

    if (args->help) {
        if (console->process == 0) print_command_help(command);
        return DT_OK;
    }
    if (!command->runs && console->process != 0) return DT_OK;
    DT_TRY(cli_option_files_read(command, args, console));
    DT_TRY(cli_find_model(command, args, env));
    cli_order_mesh(args);
    cli_console_init(args, env, console);
    st = cli_modules_open(args);
    if (st == DT_OK) st = command->run(args, env, console);
    cli_modules_close(args);
    DT_TRY(st);
    return DT_OK;
}

static dt_status run_command(int argc, char **argv, const cli_env *env, cli_console *console)
{
    const cli_command *command;
    cli_args args;
    dt_status st;

    DT_TRY(find_command(argv[1], &command));
    console->alone = !command->runs;
    st = cli_parse(command, argc - 2, argv + 2, &args);
    cli_console_init(&args, env, console);
    if (st == DT_OK) st = run_with(command, &args, env, console);
    if (st != DT_OK) cli_option_name_error(command, &args);
    if (st != DT_OK) cli_option_files_explain(&args);
    cli_args_free(&args);
    DT_TRY(st);
    return DT_OK;
}

typedef void (*print_fn)(void);

/* What stands in the place of a command and asks about the program itself; NULL: something else. */
static print_fn find_print(const char *word)
{
    static const struct {
        const char *word;
        print_fn print;
    } words[] = {
        { "--help", print_help },     { "-h", print_help },
        { "help", print_help },       { "--version", cli_print_version },
        { "-V", cli_print_version },  { "version", cli_print_version },
        { "--manual", print_manual }, { "--completion", print_completion },
    };

    for (size_t i = 0; i < DT_COUNT(words); i++)
        if (strcmp(words[i].word, word) == 0) return words[i].print;
    return NULL;
}

static dt_status run(int argc, char **argv, const cli_env *env, cli_console *console)
{
    print_fn print;

    DT_CHECK(argc >= 2, DT_ERR_ARG, "no command; \"dtensor --help\" lists them");
    print = find_print(argv[1]);
    if (print == NULL)
        DT_TRY(run_command(argc, argv, env, console));
    else if (console->process == 0)
        print();
    DT_TRY(cli_flush());
    return DT_OK;
}

/* A checkpoint of many files is read by many threads; what the system allows is asked for. */
static void allow_open_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= MANY_FILES) return;
    files.rlim_cur = files.rlim_max < MANY_FILES ? files.rlim_max : MANY_FILES;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv)
{
    bool failed_output = false;
    cli_console console = { .failed_output = &failed_output };
    cli_env env;
    dt_status st;
    int code;

    cli_environment(&env);
    cli_standard_streams(env.timeout_ms);
    /* A reader that has seen enough ends this process quietly, also where SIGPIPE was ignored. A
     * file that may not grow is an error of the one who writes it, and says so. */
    (void)signal(SIGPIPE, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN);
    allow_open_files();
    cli_own_modules(); /* one of them tells the others that this process is there */
    dt_launch_arrive();
    cli_console_init(&(cli_args){ 0 }, &env, &console);
    st = run(argc, argv, &env, &console);
    /* the others wait for this process, unless each does for itself what it was asked */
    if (st != DT_OK && !console.alone) dt_launch_give_up(dt_last_error()->message);
    code = cli_report(&console, st);
    return failed_output || ferror(stdout) ? CLI_EXIT_FAILURE : code;
}
