/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/option_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/option_rows.h"
#include "cli/option_table.h"
#include "cli/run_folder.h"

enum { MAX_KEY = 64 };

/* --- from a file ------------------------------------------------------------------------------ */

/* A text that lives as long as the arguments. */
static dt_status keep(cli_args *args, const char *text, const char **out)
{
    json_t *copy = json_string(text);

    if (args->texts == NULL) args->texts = json_array();
    DT_CHECK(json_array_append_new(args->texts, copy) == 0, DT_ERR_MEMORY,
             "the options do not fit into memory");
    *out = json_string_value(copy);
    return DT_OK;
}

/* The name of an option that the file of a run says. */
static dt_status keep_name(cli_args *args, const char *name)
{
    if (args->stored == NULL) args->stored = json_array();
    DT_CHECK(json_array_append_new(args->stored, json_string(name)) == 0, DT_ERR_MEMORY,
             "the options do not fit into memory");
    return DT_OK;
}

/* A word or a number as it stands on a command line. */
static dt_status word_of(const json_t *v, char *text, size_t bytes)
{
    char digits[DTI_NUMBER_BYTES];

    DT_CHECK(json_is_string(v) || json_is_number(v), DT_ERR_FORMAT,
             "is neither a text nor a number");
    if (json_is_integer(v))
        (void)snprintf(text, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        (void)snprintf(text, bytes, "%s", dti_number_text(json_real_value(v), digits));
    else
        DT_CHECK((size_t)snprintf(text, bytes, "%s", json_string_value(v)) < bytes, DT_ERR_FORMAT,
                 "has more than %zu bytes", bytes - 1);
    return DT_OK;
}

/* [0.9, 0.95] is "0.9,0.95". */
static dt_status list_of(const json_t *v, char *text, size_t bytes)
{
    size_t i, used = 0;
    const json_t *item;

    text[0] = '\0';
    json_array_foreach(v, i, item)
    {
        if (i > 0) used += (size_t)snprintf(text + used, bytes - used, ",");
        DT_TRY(word_of(item, text + used, bytes - used));
        used += strlen(text + used);
        DT_CHECK(used + 1 < bytes, DT_ERR_FORMAT, "has more than %zu bytes", bytes - 1);
    }
    return DT_OK;
}

static dt_status fill(const cli_option *o, const json_t *v, cli_args *args)
{
    char text[CLI_PATH_BYTES] = "";
    const char *kept;

    if (cli_option_is_flag(o)) {
        DT_CHECK(json_is_boolean(v), DT_ERR_FORMAT, "is neither true nor false");
        if (json_is_true(v)) DT_TRY(cli_option_store(o, NULL, args));
        return DT_OK;
    }
    if (o->kind != MANY && json_is_array(v))
        DT_TRY(list_of(v, text, sizeof text));
    else
        DT_TRY(word_of(v, text, sizeof text));
    DT_TRY(keep(args, text, &kept));
    DT_TRY(cli_option_store(o, kept, args));
    return DT_OK;
}

static bool is_forgotten(const cli_args *args, const char *name)
{
    const cli_many *names = &args->training.forget;
    int i = 0;

    while (i < names->n && strcmp(names->items[i], name) != 0) i++;
    return i < names->n;
}

/* What is given says the same of another kind. */
static bool is_replaced(const cli_args *args, const char *name)
{
    return (strcmp(name, "config") == 0 && args->folder != NULL) ||
           (strcmp(name, "model") == 0 && args->training.config != NULL) ||
           (strcmp(name, "no-bind") == 0 && args->bind != NULL);
}

/* A value, or of an option that may be repeated an array of them. */
static dt_status fill_all(const cli_option *o, const json_t *v, cli_args *args)
{
    const json_t *item;
    size_t i;

    if (json_is_null(v) || cli_option_given(o, args)) return DT_OK;
    if (o->kind != MANY || !json_is_array(v)) return fill(o, v, args);
    json_array_foreach(v, i, item) DT_TRY(fill(o, item, args));
    return DT_OK;
}

/* `of_run`: of a run that goes on, what the command line neither says nor has forgotten. */
static dt_status read_object(const cli_command *command, json_t *all, bool of_run, cli_args *args)
{
    const char *key;
    json_t *v;

    DT_CHECK(json_is_object(all), DT_ERR_FORMAT, "is no JSON object of options");
    json_object_foreach(all, key, v)
    {
        char name[MAX_KEY];
        const cli_option *o;
        dt_status st;

        (void)snprintf(name, sizeof name, "%s", key);
        for (char *c = name; *c != '\0'; c++) *c = *c == '_' ? '-' : *c;
        o = cli_option_find(command, name, strlen(name));
        if (o == NULL) return cli_option_unknown(command, name, strlen(name));
        if (of_run && (is_forgotten(args, name) || is_replaced(args, name))) continue;
        if (of_run && !cli_option_given(o, args)) DT_TRY(keep_name(args, name));
        st = fill_all(o, v, args);
        if (st == DT_ERR_FORMAT) dti_error_prefix("\"%s\"", key);
        DT_TRY(st);
    }
    return DT_OK;
}

static dt_status read_file(const cli_command *command, const char *path, bool of_run,
                           cli_args *args)
{
    json_error_t why;
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    dt_status st;

    DT_CHECK(all != NULL, DT_ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    st = read_object(command, all, of_run, args);
    json_decref(all);
    if (st != DT_OK) dti_error_prefix("%s", path);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_option_files_read(const cli_command *command, cli_args *args)
{
    char path[CLI_PATH_BYTES];

    const cli_many *forget = &args->training.forget;

    for (int i = 0; i < forget->n; i++)
        if (cli_option_find(command, forget->items[i], strlen(forget->items[i])) == NULL)
            return cli_option_unknown(command, forget->items[i], strlen(forget->items[i]));
    DT_CHECK(forget->n == 0 || args->training.resume, DT_ERR_ARG,
             "--forget is of a run that goes on; add --resume");
    if (args->training.options != NULL)
        DT_TRY(read_file(command, args->training.options, false, args));
    if (!args->training.resume || args->output == NULL) return DT_OK;
    DT_CHECK((size_t)snprintf(path, sizeof path, "%s/" CLI_RUN_OPTIONS, args->output) < sizeof path,
             DT_ERR_ARG, "--output: more than %d bytes", CLI_PATH_BYTES - 1);
    DT_CHECK(access(path, R_OK) == 0, DT_ERR_ARG,
             "--resume: %s holds no run that could go on: there is no %s in it", args->output,
             CLI_RUN_OPTIONS);
    DT_TRY(cli_check_file(path));
    DT_TRY(read_file(command, path, true, args));
    return DT_OK;
}

void cli_option_files_explain(const cli_args *args)
{
    const char *said = dt_last_error()->message;
    const size_t n = strncmp(said, "--", 2) == 0 ? strcspn(said + 2, " :,") : 0;
    const json_t *name;
    size_t i;

    json_array_foreach(args->stored, i, name)
    {
        if (strlen(json_string_value(name)) != n ||
            strncmp(said + 2, json_string_value(name), n) != 0)
            continue;
        dti_error_prefix("%s/" CLI_RUN_OPTIONS " says --%s, which --forget %s would leave out",
                         args->output, json_string_value(name), json_string_value(name));
        return;
    }
}

/* --- into one --------------------------------------------------------------------------------- */

static bool is_of_one_call(const char *name)
{
    static const char *const names[] = { "output",  "options",       "resume", "new-data", "forget",
                                         "dry-run", "json",          "quiet",  "verbose",  "help",
                                         "trace",   "oversubscribe", "link" };

    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* NULL: a text is not UTF-8, or does not fit into memory. */
static json_t *value_of(const cli_option *o, const cli_args *args)
{
    const void *field = (const char *)args + o->field;
    const cli_many *many = field;
    json_t *list;

    if (o->kind == FLAG) return json_true();
    if (o->kind == TEXT) return json_string(*(const char *const *)field);
    if (o->kind != MANY) return json_integer(*(const int64_t *)field);
    list = json_array();
    for (int i = 0; i < many->n; i++)
        if (json_array_append_new(list, json_string(many->items[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

dt_status cli_options_json(const cli_command *command, const cli_args *args, json_t **out)
{
    json_t *all = json_object();
    const cli_option *o;

    for (size_t i = 0; (o = cli_option_row(i)) != NULL; i++)
        if ((o->commands & command->bit) && o->kind != SET && o->kind != SWITCH &&
            !is_of_one_call(o->name) && cli_option_given(o, args) &&
            json_object_set_new(all, o->name, value_of(o, args)) != 0) {
            json_decref(all);
            DT_FAIL(DT_ERR_ARG,
                    "--%s: its text is not UTF-8, so a run that goes on could not read it again "
                    "from " CLI_RUN_OPTIONS "; give the file another name, or a link to it",
                    o->name);
        }
    *out = all;
    return DT_OK;
}
