/* SPDX-License-Identifier: Apache-2.0
 *
 * What a command line asks of all ranks: processes may have been given others. */
#include <stdio.h>

#include "base/numbers.h"
#include "cli/option_rows.h"
#include "cli/option_table.h"

void cli_asked_add(cli_asked *asked, const char *what, const char *value)
{
    if (asked->n < CLI_MAX_ASKED) asked->list[asked->n++] = (dt_asked){ what, value };
}

void cli_asked_number(cli_asked *asked, const char *what, uint64_t value)
{
    char *text = asked->numbers[asked->n < CLI_MAX_ASKED ? asked->n : 0];

    (void)snprintf(text, CLI_DIGITS, "%llu", (unsigned long long)value);
    cli_asked_add(asked, what, text);
}

/* The first row of a field speaks for all of them: commands give some a row of their own. */
static bool is_first_of_field(const cli_option *o)
{
    const cli_option *first = cli_option_row(0);

    while (first->field != o->field) first++;
    return first == o;
}

static void ask_knob(const cli_args *args, const cli_option *o, cli_asked *out)
{
    const char *text = args->knob[cli_option_knob(o->name)];

    if (text != NULL) cli_asked_add(out, o->name, o->kind == SET ? text : NULL);
}

/* Few of them one by one, the rest by a hash. */
static void ask_many(const cli_option *o, const cli_many *many, cli_asked *out)
{
    uint64_t rest = 1;

    for (int i = 0; i < many->n; i++)
        if (i < CLI_MAX_MANY)
            cli_asked_add(out, o->name, many->items[i]);
        else
            rest = dti_hash_text(rest, many->items[i]);
    if (many->n > CLI_MAX_MANY) cli_asked_number(out, o->name, rest);
}

void cli_ask(const cli_args *args, cli_asked *out)
{
    const cli_option *o;

    out->n = 0;
    cli_asked_add(out, "the command", args->command);
    for (size_t i = 0; (o = cli_option_row(i)) != NULL; i++) {
        const void *field = (const char *)args + o->field;
        const char *text = o->kind == TEXT ? *(const char *const *)field : NULL;
        if (o->kind == SET || o->kind == SWITCH) ask_knob(args, o, out);
        if (field == &args->quiet || field == &args->verbose || !is_first_of_field(o)) continue;
        if (text != NULL || (o->kind == FLAG && *(const bool *)field))
            cli_asked_add(out, o->name, text);
        if ((o->kind == NUMBER || o->kind == COUNT) && cli_option_given(o, args))
            cli_asked_number(out, o->name, (uint64_t) * (const int64_t *)field);
        if (o->kind == MANY) ask_many(o, field, out);
    }
}
