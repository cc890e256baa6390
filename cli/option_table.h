/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: one table of options for all commands. */
#ifndef DTI_CLI_OPTIONS_H
#define DTI_CLI_OPTIONS_H

#include "cli/cli.h"

/* Reads the words after the command's name: "--name value", "--name=value", "-n value", "-nvalue",
 * flags in one word ("-qv"), "--" before arguments that begin with a dash. An option that has a
 * value may be given once. Stops early at --help, which needs nothing else to be right. */
dt_status cli_parse(const cli_command *command, int n_words, char **words,
                    cli_args *out) DT_MUST_USE;

/* The dims of --mesh in an order in which those that say most come last. */
void cli_order_mesh(cli_args *args);
void cli_args_free(cli_args *args); /* also after an error */

/* The i-th option of a command in its parts; false past the last. */
typedef struct cli_option_info {
    const char *name;  /* "model" */
    char letter;       /* 'm'; 0: none */
    const char *value; /* "DIR"; NULL for a flag */
    const char *words; /* that the value may be, "auto f32 bf16 f16"; NULL: no such list */
    const char *help;
} cli_option_info;
bool cli_option_info_at(const cli_command *command, int i, cli_option_info *out);

/* The i-th option of a command: "-m, --model DIR" (without a letter blanks stand in the place of
 * "-m, "), and what it does. False past the last. */
enum { CLI_OPTION_BYTES = 48, CLI_LETTER_BYTES = 4 };
bool cli_option_at(const cli_command *command, int i, char name[CLI_OPTION_BYTES],
                   const char **help);

/* What a command line asks of all ranks: the command, options in the order of the table, and their
 * values; room for numbers is the list's own. What is a matter of one process is left out. */
enum { CLI_MAX_ASKED = 160, CLI_DIGITS = 24 };
typedef struct cli_asked {
    dt_asked list[CLI_MAX_ASKED];
    int n;
    char numbers[CLI_MAX_ASKED][CLI_DIGITS];
} cli_asked;
void cli_asked_add(cli_asked *asked, const char *what, const char *value);
void cli_asked_number(cli_asked *asked, const char *what, uint64_t value);
void cli_ask(const cli_args *args, cli_asked *out);

/* The calling thread's error begins with what the library calls an option of the command line,
 * "weights: ...": then it begins as the option is written. */
void cli_option_name_error(const cli_command *command, const cli_args *args);

/* Prints the options of a command to stdout, one line each. */
void cli_print_options(const cli_command *command);

/* A whole decimal number from min to max. `what` names its place in messages: "--threads". */
dt_status cli_parse_int(const char *what, const char *text, int64_t min, int64_t max,
                        int64_t *out) DT_MUST_USE;

/* A finite decimal number with a fraction; `out` stays as it is if text is NULL. */
dt_status cli_parse_number(const char *what, const char *text, double *out) DT_MUST_USE;

/* The name that was probably meant by `word`, or NULL. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* What the command line says of a field of dt_generate_options, "top_p"; NULL: nothing. */
const char *cli_knob(const cli_args *args, const char *field);

#endif
