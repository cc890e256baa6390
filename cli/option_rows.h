/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the table of options, for those who fill and list them. */
#ifndef DTI_CLI_OPTION_ROWS_H
#define DTI_CLI_OPTION_ROWS_H

#include "cli/cli.h"

/* NUMBER begins at 1, COUNT at 0 and is -1 where it is not given. MANY: texts, one each time. SET,
 * SWITCH: settings of dt_generate_knobs(), found by the name. */
typedef enum cli_option_kind { FLAG, TEXT, NUMBER, COUNT, MANY, SET, SWITCH } cli_option_kind;

typedef struct cli_option {
    const char *name;
    char letter; /* 0: none */
    cli_option_kind kind;
    const char *value; /* what help calls it; NULL for a flag */
    size_t field;      /* of cli_args */
    unsigned commands;
    int64_t max; /* of a number; how often MANY may be given, 0: CLI_MAX_MANY times */
    const char *help;
} cli_option;

/* Row number i; NULL behind the last. */
const cli_option *cli_option_row(size_t i);

/* The row of a command by its name of n bytes, or NULL; and the error that says so. */
const cli_option *cli_option_find(const cli_command *command, const char *name, size_t n);
dt_status cli_option_unknown(const cli_command *command, const char *name, size_t n) DT_MUST_USE;

/* Options that take no value. */
bool cli_option_is_flag(const cli_option *o);

/* Whether an option has a value; puts one there. */
bool cli_option_given(const cli_option *o, const cli_args *args);
dt_status cli_option_store(const cli_option *o, const char *value, cli_args *args) DT_MUST_USE;

/* Which setting an option fills; every SET and SWITCH of the table has one. */
int cli_option_knob(const char *name);

#endif
