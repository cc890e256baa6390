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
#include "files/checkpoint.h"
#include "files/folder.h"
#include "files/input.h"
#include "models/describe/describe.h"
#include "models/judge/judge.h"
#include "text/tokenizer/coverage.h"
#include "weights/saving/save.h"

/* What could be found out; zero and NULL where nothing could. */
typedef struct findings {
    const char *folder;
    dt_runtime *registry; /* of modules, or NULL */
    bool supported;
    dt_error why_not;   /* the model */
    dt_model_info info; /* if it is supported */
    int64_t n_params, bytes;
    char model_type[64]; /* as config.json says, known here or not */
    size_t n_files, n_tensors;
    int64_t file_bytes;
    const char *tokenizer; /* its files */
    int32_t n_tokens;
    dt_error tokenizer_error, generation_error, plan_error; /* code DT_OK: none */
    dt_error file_error;   /* a small file that cannot be read, if nothing else is wrong */
    bool reads_generation; /* generation_config.json; what it asks for may be refused */
    json_t *warnings;      /* an array of texts */
} findings;

/* What files say by themselves, also those of a checkpoint that is refused. */
static void look_at_files(findings *f)
{
    dti_json_doc doc = { 0 };
    dti_ckpt *ckpt = NULL;
    const char *type = NULL;
    char *path = NULL;

    if (dti_ckpt_path(f->folder, "config.json", &path) == DT_OK &&
        dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc) == DT_OK &&
        dti_json_string(&doc.root, "model_type", &type) == DT_OK)
        (void)dti_printable(type, f->model_type, sizeof f->model_type);
    if (dti_ckpt_open(f->folder, &ckpt) == DT_OK) {
        f->n_files = dti_ckpt_n_files(ckpt);
        f->n_tensors = dti_ckpt_count(ckpt);
        f->file_bytes = dti_ckpt_bytes(ckpt);
    }
    dti_ckpt_close(&ckpt);
    dti_json_free(&doc);
    dti_free(path);
}

static void add_warning(void *arg, const char *text)
{
    char shown[DT_ERROR_MESSAGE_BYTES]; /* JSON has to be UTF-8 */
    findings *f = arg;

    (void)json_array_append_new(f->warnings, json_string(dti_printable(text, shown, sizeof shown)));
}

/* Whether the tokenizer is that of this model, and can write every text. */
static void judge_tokenizer(findings *f, const dt_tokenizer *tokenizer)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    unsigned char first = 0;
    const int lost = dti_tokenizer_lost_bytes(tokenizer, &first);

    if (f->supported && f->n_tokens > f->info.vocab_size) {
        (void)snprintf(text, sizeof text,
                       "the tokenizer does not fit the model: its ids go up to %" PRId32
                       ", the model's vocabulary is 0..%" PRId64
                       "; a prompt that needs a token beyond is refused",
                       f->n_tokens - 1, f->info.vocab_size - 1);
        add_warning(f, text);
    }
    if (lost > 0) {
        (void)snprintf(text, sizeof text,
                       "the tokenizer has no token for %d of the bytes that text is made of, the "
                       "first is 0x%02X: they vanish from prompts",
                       lost, first);
        add_warning(f, text);
    }
}

static void look_at_tokenizer(findings *f)
{
    dt_tokenizer *tokenizer = NULL;
    dt_status st;

    f->tokenizer = dti_folder_tokenizer(f->folder);
    if (f->tokenizer == NULL) return;
    st = dt_tokenizer_open(f->folder, &tokenizer);
    if (st == DT_OK) {
        f->n_tokens = dt_tokenizer_vocab_size(tokenizer);
        judge_tokenizer(f, tokenizer);
        st = dti_tokenizer_try(tokenizer);
        if (st != DT_OK) dti_error_prefix("%s/%s", f->folder, f->tokenizer);
    }
    if (st != DT_OK) f->tokenizer_error = *dt_last_error();
    dt_tokenizer_release(&tokenizer);
}

/* What a run would refuse, if the model itself is sound. */
static dt_status look_at_run(findings *f)
{
    dti_described d;

    if (!f->supported) return DT_OK;
    DT_TRY(dti_describe(f->registry, f->folder, &d));
    f->reads_generation = d.generation != NULL;
    if (dti_judge_generation(&d) != DT_OK) f->generation_error = *dt_last_error();
    if (dti_judge_own_plan(&d) != DT_OK) f->plan_error = *dt_last_error();
    dti_described_free(&d);
    return DT_OK;
}

/* --- as text ------------------------------------------------------------------------------------
 */

static void print_model(const findings *f)
{
    const dt_model_info *i = &f->info;
    char number[CLI_NUMBER_BYTES];

    (void)printf("dtype       %s\n", dt_dtype_name(i->dtype));
    (void)printf("parameters  %" PRId64 " (%s)", f->n_params, cli_count_text(f->n_params, number));
    (void)printf(", %s\n", cli_bytes_text(f->bytes, number));
    (void)printf("layers      %" PRId64 " of width %" PRId64 "\n", i->n_layers, i->hidden_size);
    (void)printf("attention   %" PRId64 " heads of %" PRId64 ", %" PRId64 " key-value heads\n",
                 i->n_heads, i->head_dim, i->n_kv_heads);
    (void)printf("vocabulary  %" PRId64 " tokens, %s head\n", i->vocab_size,
                 i->tied ? "tied" : "untied");
    (void)printf("context     %" PRId64 " tokens\n", i->max_positions);
}

static void print_text(const findings *f)
{
    char number[CLI_NUMBER_BYTES];
    const char *answer = f->supported ? "yes" : "no";
    const json_t *warning;
    size_t i;

    if (f->supported && f->tokenizer_error.code != DT_OK) answer = "only with --tokens";
    if (f->file_error.code != DT_OK) answer = "only where that file is not needed";
    if (f->model_type[0] != '\0') (void)printf("model       %s\n", f->model_type);
    if (f->supported) print_model(f);
    if (f->n_files > 0)
        (void)printf("files       %zu with %zu tensors, %s\n", f->n_files, f->n_tensors,
                     cli_bytes_text(f->file_bytes, number));
    if (!f->supported && f->model_type[0] == '\0' && f->n_files == 0) return;
    if (f->tokenizer == NULL)
        (void)printf("tokenizer   none\n");
    else if (f->tokenizer_error.code != DT_OK)
        (void)printf("tokenizer   cannot be used: %s\n", f->tokenizer_error.message);
    else
        (void)printf("tokenizer   %s, %" PRId32 " tokens\n", f->tokenizer, f->n_tokens);
    if (f->generation_error.code != DT_OK)
        (void)printf("generation  %s: %s\n",
                     f->reads_generation ? "refused" : "only with --ignore-eos",
                     f->generation_error.message);
    if (f->file_error.code != DT_OK)
        (void)printf("beside it   cannot be read: %s\n", f->file_error.message);
    if (f->plan_error.code != DT_OK)
        (void)printf("plan        only with --plan built-in: %s\n", f->plan_error.message);
    json_array_foreach(f->warnings, i, warning)(void)
        printf("warning     %s\n", json_string_value(warning));
    (void)printf("supported   %s%s\n", answer,
                 f->supported && json_array_size(f->warnings) > 0 ? ", with warnings" : "");
}

/* --- as JSON ------------------------------------------------------------------------------------
 */

static json_t *json_of_eos(const dt_model_info *info)
{
    json_t *array = json_array();

    if (info->n_eos < 0) { /* unknown */
        json_decref(array);
        return json_null();
    }
    for (int i = 0; i < info->n_eos; i++)
        (void)json_array_append_new(array, json_integer(info->eos[i]));
    return array;
}

static json_t *json_of_model(const findings *f)
{
    const dt_model_info *i = &f->info;

    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:o}", "dtype",
                     dt_dtype_name(i->dtype), "parameters", (json_int_t)f->n_params, "bytes",
                     (json_int_t)f->bytes, "vocab_size", (json_int_t)i->vocab_size, "hidden_size",
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
    json_t *object = f->supported ? json_of_model(f) : json_object();
    dt_status st = DT_OK;
    int failed = object == NULL;

    failed |= json_object_set_new(object, "folder",
                                  json_string(dti_printable(f->folder, folder, sizeof folder)));
    failed |= json_object_set_new(object, "supported", json_boolean(f->supported));
    if (!f->supported)
        failed |= json_object_set_new(object, "reason", json_string(f->why_not.message));
    failed |= json_object_set_new(object, "model_type", json_of_text(f->model_type));
    failed |= json_object_set_new(object, "files", json_integer((json_int_t)f->n_files));
    failed |= json_object_set_new(object, "tensors", json_integer((json_int_t)f->n_tensors));
    failed |= json_object_set_new(object, "file_bytes", json_integer(f->file_bytes));
    failed |= json_object_set_new(object, "tokenizer", json_of_text(f->tokenizer));
    failed |=
        json_object_set_new(object, "tokenizer_error", json_of_text(f->tokenizer_error.message));
    failed |=
        json_object_set_new(object, "generation_error", json_of_text(f->generation_error.message));
    failed |= json_object_set_new(object, "plan_error", json_of_text(f->plan_error.message));
    failed |= json_object_set_new(object, "file_error", json_of_text(f->file_error.message));
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
    const dt_error *const errors[] = { &f->why_not, &f->tokenizer_error, &f->generation_error,
                                       &f->plan_error, &f->file_error };

    for (size_t i = 0; i < DT_COUNT(errors); i++) {
        if (errors[i]->code == DT_OK) continue;
        dti_error_restore(errors[i]);
        return errors[i]->code;
    }
    return DT_OK;
}

static dt_status look_at_all(findings *f)
{
    f->supported =
        dt_model_inspect_with(f->registry, f->folder, &f->info, &f->n_params, &f->bytes) == DT_OK;
    if (!f->supported) f->why_not = *dt_last_error();
    look_at_files(f);
    look_at_tokenizer(f);
    DT_TRY(look_at_run(f));
    if (first_error(f) == DT_OK && dti_small_readable(f->folder) != DT_OK)
        f->file_error = *dt_last_error();
    if (f->supported)
        DT_TRY(dti_remarks(f->registry, f->folder, true, f->reads_generation, add_warning, f));
    return DT_OK;
}

static dt_status inspect(const cli_args *args, const cli_env *env, const cli_console *console)
{
    findings f = { .folder = args->folder, .registry = args->registry };
    dt_status st = DT_OK;

    (void)env;
    (void)console;
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "inspect: no folder; usage: dtensor inspect DIR, a Hugging Face folder");
    f.warnings = json_array();
    DT_TRY_TO(done, st, look_at_all(&f));
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
