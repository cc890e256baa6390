/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor verify: every tensor of a checkpoint against config.json and the index. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_report.h"

/* Findings that are listed; others are counted. A header of nonsense has one for each tensor. */
enum { MAX_FINDINGS = 1000 };

typedef struct verification {
    const char *folder;
    bool json, values;
    json_t *findings; /* errors and warnings in the order in which they were found */
    int64_t n_errors, n_warnings;
    int64_t n_left_out; /* not listed */
} verification;

static void take(void *arg, bool error, const char *tensor, const char *text)
{
    char shown[DT_ERROR_MESSAGE_BYTES], name[DT_ERROR_MESSAGE_BYTES]; /* JSON has to be UTF-8 */
    const char *level = error ? "error" : "warning";
    verification *x = arg;

    if (error)
        x->n_errors++;
    else
        x->n_warnings++;
    if (x->n_errors + x->n_warnings > MAX_FINDINGS) {
        x->n_left_out++;
        return;
    }
    (void)dti_printable(text, shown, sizeof shown);
    if (x->json)
        (void)json_array_append_new(
            x->findings, json_pack("{s:s, s:s?, s:s}", "level", level, "tensor",
                                   tensor != NULL ? dti_printable(tensor, name, sizeof name) : NULL,
                                   "text", shown));
    else
        (void)printf("%-8s %s\n", level, shown);
}

static void print_summary(const dt_verified *v, const verification *x)
{
    char number[DTI_NUMBER_BYTES], folder[DT_ERROR_MESSAGE_BYTES];

    if (x->n_left_out > 0)
        (void)printf("... and %" PRId64 " more, which are not listed\n", x->n_left_out);
    (void)printf("%s: %s, %zu tensor%s in %zu file%s, %s",
                 dti_printable(x->folder, folder, sizeof folder),
                 v->model_type[0] != '\0' ? v->model_type : "unknown model", v->n_tensors,
                 v->n_tensors == 1 ? "" : "s", v->n_files, v->n_files == 1 ? "" : "s",
                 dti_bytes_text(v->bytes, number));
    if (x->values) (void)printf(", %" PRId64 " values read", v->n_values);
    (void)printf(": %" PRId64 " error%s, %" PRId64 " warning%s\n", x->n_errors,
                 x->n_errors == 1 ? "" : "s", x->n_warnings, x->n_warnings == 1 ? "" : "s");
}

static dt_status print_json(const dt_verified *v, const verification *x)
{
    char folder[DT_ERROR_MESSAGE_BYTES];
    json_t *object = json_pack(
        "{s:s, s:b, s:s?, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:O}", "folder",
        dti_printable(x->folder, folder, sizeof folder), "ok", (int)(x->n_errors == 0),
        "model_type", v->model_type[0] != '\0' ? v->model_type : NULL, "files",
        (json_int_t)v->n_files, "tensors", (json_int_t)v->n_tensors, "bytes", (json_int_t)v->bytes,
        "values_read", x->values ? json_integer(v->n_values) : json_null(), "errors",
        (json_int_t)x->n_errors, "warnings", (json_int_t)x->n_warnings, "left_out",
        (json_int_t)x->n_left_out, "findings", x->findings);

    DT_TRY(cli_put_json(object, JSON_INDENT(2)));
    return DT_OK;
}

static dt_status verify(const cli_args *args, const cli_env *env, const cli_console *console)
{
    verification x = {
        .folder = args->folder, .json = args->json, .values = args->values, .findings = json_array()
    };
    cli_progress progress = { .console = console };
    dt_verify_options o = DT_VERIFY_OPTIONS_INIT;
    dt_verified v;
    dt_status st = DT_OK;

    (void)env;
    DT_CHECK_TO(done, st, args->folder != NULL, DT_ERR_ARG, "no folder; usage: dtensor verify %s",
                cli_verify.usage);
    o.values = args->values;
    o.progress = cli_progress_show;
    o.progress_arg = &progress;
    st = dt_checkpoint_verify(args->registry, args->folder, &o, take, &x, &v);
    cli_progress_end(&progress);
    DT_TRY_TO(done, st, st);
    if (args->json)
        DT_TRY_TO(done, st, print_json(&v, &x));
    else
        print_summary(&v, &x);
    DT_TRY_TO(done, st, cli_flush());
    DT_CHECK_TO(done, st, x.n_errors == 0, DT_ERR_FORMAT,
                "%s: %lld error%s; standard output lists them", args->folder, (long long)x.n_errors,
                x.n_errors == 1 ? "" : "s");
done:
    json_decref(x.findings);
    return st;
}

const cli_command cli_verify = {
    .name = "verify",
    .bit = CLI_VERIFY,
    .argument = "DIR",
    .usage = "DIR [OPTION]...",
    .summary = "checks every tensor of a checkpoint",
    .details =
        "Compares all tensors with config.json and the index: names, shapes, dtypes, sizes of\n"
        "files; reads the tokenizer, if there is one. Where loading stops at the first fault\n"
        "this lists all of them, up to 1000, and what is only odd as warnings. With --values\n"
        "every number is read. Exit code 2: there are errors.",
    .run = verify,
};
