/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/option_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/option_rows.h"
#include "cli/option_table.h"
#include "cli/print_report.h"
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

/* An option that the file of a run said, and the command line did not. */
static bool is_stored(const cli_args *args, const char *name)
{
    const json_t *item;
    size_t i;

    json_array_foreach(args->stored, i,
                       item) if (strcmp(json_string_value(item), name) == 0) return true;
    return false;
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

/* Options of several values, which a command line has commas between. */
static bool is_list(const cli_option *o)
{
    static const char *const values[] = { "LIST", "A,B", "DIMS", "MESH", "LINKS" };

    for (size_t i = 0; i < DT_COUNT(values); i++)
        if (strcmp(o->value, values[i]) == 0) return true;
    return false;
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
    DT_CHECK(o->kind == MANY || !json_is_array(v) || is_list(o), DT_ERR_FORMAT,
             "is an array, and --%s has one value", o->name);
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

/* Whether a key of a file names what stands on a command line alone. */
static bool is_of_command_line(const char *name)
{
    return strcmp(name, "options") == 0 || strcmp(name, "help") == 0;
}

/* One option in both spellings, "log-every" and "log_every": neither counts before the other. */
static dt_status check_spelling(json_t *all, const char *key)
{
    char name[MAX_KEY];

    DT_CHECK(strlen(key) < sizeof name, DT_ERR_FORMAT, "is no option");
    (void)snprintf(name, sizeof name, "%s", key);
    for (char *c = name; *c != '\0'; c++) *c = *c == '_' ? '-' : *c;
    DT_CHECK(strcmp(name, key) == 0 || json_object_get(all, name) == NULL, DT_ERR_FORMAT,
             "is \"%s\", which stands here too", name);
    return DT_OK;
}

static dt_status read_member(const cli_command *command, const char *key, json_t *v, bool of_run,
                             cli_args *args)
{
    char name[MAX_KEY];
    const cli_option *o;

    DT_CHECK(key[0] != '-', DT_ERR_FORMAT, "an option stands here without its dashes");
    (void)snprintf(name, sizeof name, "%s", key);
    for (char *c = name; *c != '\0'; c++) *c = *c == '_' ? '-' : *c;
    o = cli_option_find(command, name, strlen(name));
    if (o == NULL) return cli_option_unknown(command, name, strlen(name));
    DT_CHECK(!is_of_command_line(name), DT_ERR_FORMAT, "stands on a command line alone");
    if (of_run && (is_forgotten(args, name) || is_replaced(args, name))) return DT_OK;
    if (of_run && !cli_option_given(o, args)) DT_TRY(keep_name(args, name));
    DT_TRY(fill_all(o, v, args));
    return DT_OK;
}

/* The plan that a run has kept, unless another is given or it goes on without. */
static dt_status take_plan(const json_t *plan, cli_args *args)
{
    char *text;
    dt_status st;

    if (plan == NULL || !is_stored(args, "plan")) return DT_OK;
    DT_CHECK(json_is_object(plan), DT_ERR_FORMAT, "is no plan");
    text = json_dumps(plan, JSON_COMPACT | JSON_REAL_PRECISION(17));
    DT_CHECK(text != NULL, DT_ERR_MEMORY, "the plan does not fit into memory");
    st = keep(args, text, &args->plan_text);
    free(text);
    DT_TRY(st);
    return DT_OK;
}

/* `of_run`: of a run that goes on, what the command line neither says nor has forgotten. */
static dt_status read_object(const cli_command *command, json_t *all, bool of_run, cli_args *args)
{
    const char *key;
    json_t *v;

    json_object_foreach(all, key, v)
    {
        const bool plan = of_run && strcmp(key, CLI_PLAN_CONTENT) == 0;
        dt_status st = check_spelling(all, key);
        if (st == DT_OK && !plan) st = read_member(command, key, v, of_run, args);
        if (st == DT_ERR_FORMAT) dti_error_prefix("\"%s\"", key);
        DT_TRY(st);
    }
    if (of_run && take_plan(json_object_get(all, CLI_PLAN_CONTENT), args) != DT_OK) {
        dti_error_prefix("\"" CLI_PLAN_CONTENT "\"");
        DT_TRY(dt_last_error()->code);
    }
    return DT_OK;
}

/* What is forgotten twice, or was never said. */
static void warn_of_unsaid(const json_t *all, const char *path, const cli_args *args,
                           const cli_console *console)
{
    char line[DT_ERROR_MESSAGE_BYTES];

    for (int i = 0; i < args->training.forget.n; i++) {
        const char *name = args->training.forget.items[i];
        if (json_object_get(all, name) != NULL) continue;
        (void)snprintf(line, sizeof line, "--forget %s changes nothing: %s does not say --%s", name,
                       path, name);
        cli_warn(console, line);
    }
}

/* `console`: of the file of a run that goes on; NULL: another file. */
static dt_status read_file(const cli_command *command, const char *path, cli_args *args,
                           const cli_console *console)
{
    json_t *all;
    dt_status st = cli_read_json(path, &all);

    if (st != DT_OK && console == NULL) dti_error_prefix("--options");
    DT_TRY(st);
    st = read_object(command, all, console != NULL, args);
    if (st != DT_OK) dti_error_prefix("%s", path);
    if (st == DT_OK && console != NULL) warn_of_unsaid(all, path, args, console);
    json_decref(all);
    DT_TRY(st);
    return DT_OK;
}

/* Styles that a plan which was found has beside the built-in ones. */
static dt_status take_styles(const json_t *styles, cli_args *args)
{
    char *text;
    dt_status st;

    if (styles == NULL || json_is_null(styles)) return DT_OK;
    DT_CHECK(json_is_object(styles), DT_ERR_FORMAT, "\"styles\" must be an object, or null");
    DT_CHECK(args->plan == NULL, DT_ERR_FORMAT,
             "its options name a --plan, and it has \"styles\" as well");
    text = json_dumps(styles, JSON_COMPACT);
    DT_CHECK(text != NULL, DT_ERR_MEMORY, "the plan does not fit into memory");
    st = keep(args, text, &args->plan_text);
    free(text);
    DT_TRY(st);
    return DT_OK;
}

/* What was found for training has options that other commands do not know. */
static dt_status check_goal(const cli_command *command, const json_t *options)
{
    DT_CHECK((command->bit & (CLI_TRAIN | CLI_PLAN)) != 0 ||
                 json_object_get(options, "microbatches") == NULL,
             DT_ERR_ARG,
             "it is of training; for %s look for one without --train: dtensor plan --auto --json",
             command->name);
    return DT_OK;
}

/* A result of `dtensor plan --auto --json` in the place of --plan is the options of its first way,
 * and the styles that it needs. Pipes are read once, by the reader of styles, which speaks of what
 * cannot be read too. */
static dt_status read_found(const cli_command *command, cli_args *args)
{
    json_t *all = NULL, *options;
    const char *path = args->plan;
    struct stat about;
    dt_status st = DT_OK;

    if (path == NULL || stat(path, &about) != 0 || !S_ISREG(about.st_mode) ||
        cli_read_json(path, &all) != DT_OK)
        return DT_OK;
    options = json_object_get(all, "options");
    if (options != NULL && json_object_get(all, "verdicts") != NULL) {
        args->plan = NULL;
        if (json_is_object(options)) {
            st = check_goal(command, options);
            if (st == DT_OK) st = read_object(command, options, false, args);
            if (st == DT_OK) st = take_styles(json_object_get(all, "styles"), args);
            if (args->plan_text != NULL) args->plan = path;
        } else if (json_is_null(options))
            st = dt_fail(DT_ERR_ARG, "it found no way that fits");
        else
            st = dt_fail(DT_ERR_FORMAT, "\"options\" must be an object, or null");
        if (st != DT_OK) dti_error_prefix("--plan %s", path);
    }
    json_decref(all);
    return st;
}

dt_status cli_option_files_read(const cli_command *command, cli_args *args,
                                const cli_console *console)
{
    const cli_many *forget = &args->training.forget;
    char path[CLI_PATH_BYTES];

    if (args->training.options != NULL)
        DT_TRY(read_file(command, args->training.options, args, NULL));
    DT_TRY(read_found(command, args));
    for (int i = 0; i < forget->n; i++)
        if (cli_option_find(command, forget->items[i], strlen(forget->items[i])) == NULL) {
            const dt_status st =
                cli_option_unknown(command, forget->items[i], strlen(forget->items[i]));
            dti_error_prefix("--forget");
            return st;
        }
    DT_CHECK(forget->n == 0 || args->training.resume, DT_ERR_ARG,
             "--forget is of a run that goes on; add --resume");
    if (!args->training.resume || args->output == NULL) return DT_OK;
    DT_CHECK((size_t)snprintf(path, sizeof path, "%s/" CLI_RUN_OPTIONS, args->output) < sizeof path,
             DT_ERR_ARG, "--output: more than %d bytes", CLI_PATH_BYTES - 1);
    DT_CHECK(access(path, R_OK) == 0, DT_ERR_ARG,
             "--resume: %s holds no run that could go on: there is no %s in it", args->output,
             CLI_RUN_OPTIONS);
    DT_TRY(cli_check_file(path));
    DT_TRY(read_file(command, path, args, console));
    return DT_OK;
}

/* What a run cannot be without, and how another is given. */
static const char *needed(const char *name)
{
    static const char *const words[][2] = {
        { "model", "DIR" }, { "config", "FILE" }, { "data", "FILE" }, { "steps", "N" }
    };

    for (size_t i = 0; i < DT_COUNT(words); i++)
        if (strcmp(words[i][0], name) == 0) return words[i][1];
    return NULL;
}

void cli_option_files_explain(const cli_args *args)
{
    const char *said = dt_last_error()->message;
    const size_t n = strncmp(said, "--", 2) == 0 ? strcspn(said + 2, " :,") : 0;
    char name[MAX_KEY];

    if (n >= sizeof name) return;
    (void)snprintf(name, sizeof name, "%.*s", (int)n, said + 2);
    if (!is_stored(args, name)) return;
    if (needed(name) != NULL)
        dti_error_prefix("%s/" CLI_RUN_OPTIONS
                         " says --%s; --%s %s on the command line would count "
                         "before it",
                         args->output, name, name, needed(name));
    else
        dti_error_prefix("%s/" CLI_RUN_OPTIONS
                         " says --%s, which --forget %s would leave out (or give another)",
                         args->output, name, name);
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
