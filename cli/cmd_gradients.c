/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor gradients: the loss of rows of ids and the gradient of every parameter, so that anyone
 * can compare them with another implementation. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/id_rows.h"
#include "cli/outputs.h"
#include "cli/pipelines.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"

enum { IGNORED = -100 };

/* A gradient of the table. */
typedef struct line {
    char *name;
    dt_gradient_facts facts;
} line;

/* Ranks read the upper half; the lower half is rank 0's. */
typedef struct differentiation {
    const cli_id_rows *tokens, *labels;
    const char *output; /* NULL: nothing is written */
    dt_recomputed recompute;
    int64_t chunk;
    atomic_bool writes; /* the backward pass is done, by every rank alike */

    float loss;
    int64_t kept_bytes;
    line *lines; /* [n] */
    size_t n, room;
    dt_status told;
} differentiation;

/* --- on the ranks --------------------------------------------------------------------------- */

static dt_status add_line(differentiation *d, const dt_gradient_facts *facts)
{
    DT_TRY(dti_grow((void **)&d->lines, &d->room, d->n + 1, sizeof *d->lines));
    d->lines[d->n] = (line){ .facts = *facts };
    DT_TRY(dti_strdup(facts->name, &d->lines[d->n].name));
    d->n++;
    return DT_OK;
}

/* Rank 0 alone is told. */
static void tell(void *arg, const dt_gradient_facts *facts)
{
    differentiation *d = arg;

    if (d->told == DT_OK) d->told = add_line(d, facts);
}

/* Forward and backward; what is kept in between is looked at where it is most. */
static dt_status run_tape(differentiation *d, dt_tape *t, dt_model *model, bool speaks)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *targets, *loss;

    how.recompute = d->recompute;
    how.chunk = d->chunk;
    ids = dt_model_ids(t, model, d->tokens->ids, d->tokens->n, d->tokens->length);
    targets = dt_model_ids(t, model, d->labels->ids, d->labels->n, d->labels->length);
    loss = dt_model_loss(t, model, ids, targets, &how);
    if (speaks) d->kept_bytes = dt_tape_kept_bytes(t);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    if (speaks) DT_TRY(dt_tensor_read(loss, &d->loss, sizeof d->loss));
    return DT_OK;
}

static dt_status differentiate_on_rank(void *arg, dt_model *model, bool speaks)
{
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(model));
    differentiation *d = arg;
    dt_gradients *g = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_gradients_create(rt, &g));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    DT_TRY_TO(done, st, run_tape(d, t, model, speaks));
    DT_TRY_TO(done, st, dt_gradients_settle(g, t));
    atomic_store(&d->writes, true);
    DT_TRY_TO(done, st, dt_model_write_gradients(model, g, d->output, tell, d));
    if (speaks) DT_TRY_TO(done, st, d->told);
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    return st;
}

/* --- output --------------------------------------------------------------------------------- */

/* Of all gradients together. */
static double norm_of(const differentiation *d)
{
    double sum = 0;

    for (size_t i = 0; i < d->n; i++)
        sum += d->lines[i].facts.rms * d->lines[i].facts.rms * (double)d->lines[i].facts.n;
    return sqrt(sum);
}

static int64_t count_valid(const cli_id_rows *labels)
{
    int64_t n = 0;

    for (int64_t i = 0; i < labels->n * labels->length; i++) n += labels->ids[i] != IGNORED;
    return n;
}

static void print_table(const differentiation *d)
{
    char bytes[DTI_NUMBER_BYTES];

    (void)printf(
        "loss %.9g, mean of %" PRId64 " labels; norm of all gradients %.6g; rank 0 kept %s\n",
        (double)d->loss, count_valid(d->labels), norm_of(d), dti_bytes_text(d->kept_bytes, bytes));
    (void)printf("%12s %12s  gradient\n", "largest", "rms");
    for (size_t i = 0; i < d->n; i++) {
        const dt_gradient_facts *f = &d->lines[i].facts;
        (void)printf("%12.5g %12.5g  ", f->largest, f->rms);
        cli_print_text(stdout, d->lines[i].name, strlen(d->lines[i].name));
        for (int a = 0; a < f->n_axes; a++)
            (void)printf("%s%" PRId64, a == 0 ? " [" : ", ", f->shape[a]);
        (void)printf("%s\n", f->n_axes > 0 ? "]" : "");
    }
}

static json_t *json_line(const line *l)
{
    json_t *shape = json_array();

    for (int a = 0; a < l->facts.n_axes; a++)
        (void)json_array_append_new(shape, json_integer(l->facts.shape[a]));
    return json_pack("{s:s, s:o, s:o, s:o}", "name", l->name, "shape", shape, "max",
                     cli_json_number(l->facts.largest), "rms", cli_json_number(l->facts.rms));
}

static dt_status print_json(const differentiation *d, const cli_session *s)
{
    char path[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */
    json_t *all = json_array(), *object;

    for (size_t i = 0; i < d->n; i++) (void)json_array_append_new(all, json_line(&d->lines[i]));
    if (d->output != NULL) (void)dti_printable(d->output, path, sizeof path);
    object = json_pack(
        "{s:o, s:I, s:I, s:I, s:o, s:I, s:s?, s:o}", "loss", cli_json_number((double)d->loss),
        "n_valid", (json_int_t)count_valid(d->labels), "rows", (json_int_t)d->tokens->n, "tokens",
        (json_int_t)d->tokens->length, "norm", cli_json_number(norm_of(d)), "kept_bytes",
        (json_int_t)d->kept_bytes, "output", d->output != NULL ? path : NULL, "gradients", all);
    DT_TRY(cli_session_put_json(s, object, 9));
    return DT_OK;
}

/* --- the command ---------------------------------------------------------------------------- */

/* The process of the mesh's first rank writes. */
static dt_status check_output(const cli_args *args, const cli_console *console)
{
    dt_status st;

    if (args->output == NULL || console->process > 0) return DT_OK;
    DT_TRY(cli_check_output("--output", args->output, args));
    st = dt_gradients_check_file(args->output);
    if (st != DT_OK) dti_error_prefix("--output");
    DT_TRY(st);
    return DT_OK;
}

/* What every position is to predict: --labels, or the token after it. */
static dt_status read_labels(const cli_session *s, const cli_id_rows *tokens, cli_id_rows *labels)
{
    const char *text = s->args->labels;

    if (text == NULL) {
        DT_TRY(cli_id_rows_create(tokens->n, tokens->length, labels));
        for (int64_t i = 0; i < tokens->n * tokens->length; i++)
            labels->ids[i] = (i + 1) % tokens->length != 0 ? tokens->ids[i + 1] : IGNORED;
    } else {
        DT_TRY(cli_id_rows_read("--labels", text, s->info.vocab_size, true, labels));
    }
    DT_CHECK(labels->n == tokens->n && labels->length == tokens->length, DT_ERR_ARG,
             "--labels: %lld in each of %lld row%s, but the input has %lld tokens in each of %lld; "
             "every token has a label, what is to be predicted there or -100",
             (long long)labels->length, (long long)labels->n, labels->n == 1 ? "" : "s",
             (long long)tokens->length, (long long)tokens->n);
    DT_CHECK(count_valid(labels) > 0, DT_ERR_ARG,
             "%s; there is no loss without a label that counts",
             text != NULL ? "--labels: all are -100"
                          : "a row of the input is one token, which no other follows");
    return DT_OK;
}

static dt_status read_tokens(cli_session *s, cli_prompt *prompt, cli_id_rows *tokens)
{
    const cli_args *a = s->args;

    if (a->tokens == NULL || a->prompt != NULL || a->prompt_file != NULL) {
        DT_TRY(cli_prompt_read(s, false, prompt));
        DT_TRY(cli_id_rows_create(1, prompt->n, tokens));
        memcpy(tokens->ids, prompt->ids, (size_t)prompt->n * sizeof *prompt->ids);
        return DT_OK;
    }
    DT_TRY(cli_id_rows_read("--tokens", a->tokens, s->info.vocab_size, false, tokens));
    DT_CHECK(tokens->length <= s->info.max_positions, DT_ERR_ARG,
             "--tokens: a row has %lld tokens, the model's context is %lld (%s/config.json); "
             "shorten it",
             (long long)tokens->length, (long long)s->info.max_positions, a->folder);
    return DT_OK;
}

static void free_lines(differentiation *d)
{
    for (size_t i = 0; i < d->n; i++) dti_free(d->lines[i].name);
    dti_free(d->lines);
}

static dt_status gradients(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_id_rows tokens = { 0 }, labels = { 0 };
    cli_prompt prompt = { 0 };
    cli_session s = { 0 };
    differentiation d = {
        .tokens = &tokens, .labels = &labels, .output = args->output, .chunk = args->chunk
    };
    dt_status st = DT_OK;

    DT_CHECK(args->mesh == NULL || cli_pipeline_ranks(args->mesh) <= 1, DT_ERR_ARG,
             "--mesh %s: gradients are those of a model in one piece; leave pp out", args->mesh);
    DT_TRY(cli_read_recompute(args->recompute, &d.recompute));
    DT_TRY(check_output(args, console));
    DT_TRY_TO(done, st, cli_session_open(args, env, console, &s));
    DT_TRY_TO(done, st, cli_check_trained(args));
    DT_TRY_TO(done, st, read_tokens(&s, &prompt, &tokens));
    DT_TRY_TO(done, st, read_labels(&s, &tokens, &labels));
    st = cli_session_run(&s, differentiate_on_rank, &d);
    /* what can be wrong with --output was looked at before: a full disk, or one that broke */
    if (st == DT_ERR_IO && atomic_load(&d.writes)) *console->failed_output = true;
    DT_TRY_TO(done, st, st);
    if (console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    if (args->json)
        DT_TRY_TO(done, st, print_json(&d, &s));
    else
        print_table(&d);
    DT_TRY_TO(done, st, cli_flush());
done:
    free_lines(&d);
    cli_id_rows_free(&tokens);
    cli_id_rows_free(&labels);
    cli_prompt_free(&prompt);
    cli_session_close(&s);
    return st;
}

const cli_command cli_gradients = {
    .name = "gradients",
    .bit = CLI_GRADIENTS,
    .usage = "--model DIR (--tokens ROWS | --prompt TEXT | --prompt-file FILE) [--labels ROWS] "
             "[--output FILE] [OPTION]...",
    .runs = true,
    .summary = "the loss of a text, and the gradient of every parameter",
    .details =
        "The loss is the mean cross entropy of what each position predicts: of --labels, or of\n"
        "the token after it. With --output all gradients are written as one safetensors file, in\n"
        "f32 and under the checkpoint's own names. Printed are the largest element of each and\n"
        "the root of the mean square; with --json as {\"loss\", \"n_valid\", \"gradients\": "
        "[{\"name\",\n"
        "\"shape\", \"max\", \"rms\"}, ...], ...}.",
    .run = gradients,
};
