/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor inspect: what a checkpoint is, and whether it can be run or precisely why not. A model
 * that runs beside a tokenizer that does not is said so, and is no success. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_report.h"

typedef struct findings {
    const char *folder;
    dt_checkpoint_report r;
    json_t *warnings; /* an array of texts */
} findings;

static void add_warning(void *arg, const char *text)
{
    char shown[DT_ERROR_MESSAGE_BYTES]; /* JSON has to be UTF-8 */
    findings *f = arg;

    (void)json_array_append_new(f->warnings, json_string(dti_printable(text, shown, sizeof shown)));
}

/* --- as text ------------------------------------------------------------------------------------
 */

static void print_model(const findings *f)
{
    const dt_model_info *i = &f->r.info;
    char number[DTI_NUMBER_BYTES];

    (void)printf("dtype       %s\n", dt_dtype_name(i->dtype));
    (void)printf("parameters  %" PRId64 " (%s)", f->r.n_params,
                 dti_count_text(f->r.n_params, number));
    (void)printf(", %s\n", dti_bytes_text(f->r.bytes, number));
    (void)printf("layers      %" PRId64 " of width %" PRId64 "\n", i->n_layers, i->hidden_size);
    (void)printf("attention   %" PRId64 " heads of %" PRId64 ", %" PRId64 " key-value heads\n",
                 i->n_heads, i->head_dim, i->n_kv_heads);
    (void)printf("vocabulary  %" PRId64 " tokens, %s head\n", i->vocab_size,
                 i->tied ? "tied" : "untied");
    (void)printf("context     %" PRId64 " tokens\n", i->max_positions);
}

static void print_text(const findings *f)
{
    char number[DTI_NUMBER_BYTES];
    const char *answer = f->r.supported ? "yes" : "no";
    const json_t *warning;
    size_t i;

    if (f->r.supported && f->r.tokenizer_error.code != DT_OK) answer = "only with --tokens";
    if (f->r.file_error.code != DT_OK) answer = "only where that file is not needed";
    if (f->r.model_type[0] != '\0') (void)printf("model       %s\n", f->r.model_type);
    if (f->r.supported) print_model(f);
    if (f->r.n_files > 0)
        (void)printf("files       %zu with %zu tensors, %s\n", f->r.n_files, f->r.n_tensors,
                     dti_bytes_text(f->r.file_bytes, number));
    if (!f->r.supported && f->r.model_type[0] == '\0' && f->r.n_files == 0) return;
    if (f->r.tokenizer == NULL)
        (void)printf("tokenizer   none\n");
    else if (f->r.tokenizer_error.code != DT_OK)
        (void)printf("tokenizer   cannot be used: %s\n", f->r.tokenizer_error.message);
    else
        (void)printf("tokenizer   %s, %" PRId32 " tokens\n", f->r.tokenizer, f->r.n_tokens);
    if (f->r.generation_error.code != DT_OK)
        (void)printf("generation  %s: %s\n",
                     f->r.reads_generation ? "refused" : "only with --ignore-eos",
                     f->r.generation_error.message);
    if (f->r.file_error.code != DT_OK)
        (void)printf("beside it   cannot be read: %s\n", f->r.file_error.message);
    if (f->r.plan_error.code != DT_OK)
        (void)printf("plan        only with --plan built-in: %s\n", f->r.plan_error.message);
    json_array_foreach(f->warnings, i, warning)(void)
        printf("warning     %s\n", json_string_value(warning));
    (void)printf("supported   %s%s\n", answer,
                 f->r.supported && json_array_size(f->warnings) > 0 ? ", with warnings" : "");
}

/* --- as JSON ------------------------------------------------------------------------------------
 */

static json_t *json_of_eos(const dt_model_info *info)
{
    return info->n_eos < 0 ? json_null() /* unknown */ : cli_json_ids(info->eos, info->n_eos);
}

static json_t *json_of_model(const findings *f)
{
    const dt_model_info *i = &f->r.info;

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:o}", "dtype",
                     dt_dtype_name(i->dtype), "parameters", (json_int_t)f->r.n_params, "bytes",
                     (json_int_t)f->r.bytes, "vocab_size", (json_int_t)i->vocab_size, "hidden_size",
                     (json_int_t)i->hidden_size, "layers", (json_int_t)i->n_layers, "heads",
                     (json_int_t)i->n_heads, "kv_heads", (json_int_t)i->n_kv_heads, "head_dim",
                     (json_int_t)i->head_dim, "max_positions", (json_int_t)i->max_positions, "tied",
                     (int)i->tied, "bos", (json_int_t)i->bos, "eos", json_of_eos(i));
}

static json_t *json_of_text(const char *text)
{
    return text != NULL && text[0] != '\0' ? json_string(text) : json_null();
}

static dt_status print_json(const findings *f)
{
    char folder[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */
    json_t *object = f->r.supported ? json_of_model(f) : json_object();
    dt_status st = DT_OK;
    int failed = object == NULL;

    failed |= json_object_set_new(object, "folder",
                                  json_string(dti_printable(f->folder, folder, sizeof folder)));
    failed |= json_object_set_new(object, "supported", json_boolean(f->r.supported));
    if (!f->r.supported)
        failed |= json_object_set_new(object, "reason", json_string(f->r.model_error.message));
    failed |= json_object_set_new(object, "model_type", json_of_text(f->r.model_type));
    failed |= json_object_set_new(object, "files", json_integer((json_int_t)f->r.n_files));
    failed |= json_object_set_new(object, "tensors", json_integer((json_int_t)f->r.n_tensors));
    failed |= json_object_set_new(object, "file_bytes", json_integer(f->r.file_bytes));
    failed |= json_object_set_new(object, "tokenizer", json_of_text(f->r.tokenizer));
    failed |=
        json_object_set_new(object, "tokenizer_error", json_of_text(f->r.tokenizer_error.message));
    failed |= json_object_set_new(object, "generation_error",
                                  json_of_text(f->r.generation_error.message));
    failed |= json_object_set_new(object, "plan_error", json_of_text(f->r.plan_error.message));
    failed |= json_object_set_new(object, "file_error", json_of_text(f->r.file_error.message));
    failed |= json_object_set(object, "warnings", f->warnings);
    DT_CHECK_TO(fail, st, failed == 0, DT_ERR_MEMORY, "the JSON result does not fit into memory");
    DT_TRY(cli_put_json(object, JSON_INDENT(2)));
    return DT_OK;

fail:
    json_decref(object);
    return st;
}

/* --- the command --------------------------------------------------------------------------------
 */

/* What the command ends with: looking on has left records of its own. */
static dt_status first_error(const findings *f)
{
    const dt_error *const errors[] = { &f->r.model_error, &f->r.tokenizer_error,
                                       &f->r.generation_error, &f->r.plan_error, &f->r.file_error };

    for (size_t i = 0; i < DT_COUNT(errors); i++) {
        if (errors[i]->code == DT_OK) continue;
        dti_error_restore(errors[i]);
        return errors[i]->code;
    }
    return DT_OK;
}

static dt_status inspect(const cli_args *args, const cli_env *env, const cli_console *console)
{
    findings f = { .folder = args->folder };
    dt_status st = DT_OK;

    (void)env;
    (void)console;
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "inspect: no folder; usage: dtensor inspect DIR, a Hugging Face folder");
    f.warnings = json_array();
    DT_TRY_TO(done, st, dt_checkpoint_inspect(args->registry, args->folder, add_warning, &f, &f.r));
    if (args->json)
        DT_TRY_TO(done, st, print_json(&f));
    else
        print_text(&f);
    DT_TRY_TO(done, st, cli_flush());
    st = first_error(&f);
done:
    json_decref(f.warnings);
    return st;
}

const cli_command cli_inspect = {
    .name = "inspect",
    .bit = CLI_INSPECT,
    .argument = "DIR",
    .usage = "DIR [--json]",
    .summary = "says what a checkpoint is, and whether it can be run",
    .details =
        "DIR is a Hugging Face folder. Every file and every tensor's shape is checked, no weights\n"
        "are read. Exit code 2 if the checkpoint, its tokenizer, its own plan or\n"
        "generation_config.json is malformed or not supported: a run would refuse it, and the\n"
        "message says precisely why.",
    .run = inspect,
};
