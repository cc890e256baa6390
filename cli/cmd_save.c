/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor save: a checkpoint as another one, of another dtype or in other files. */
#include <inttypes.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/outputs.h"
#include "cli/print_report.h"
#include "cli/session.h"

typedef struct saving {
    cli_session *session;
    dt_save_options options;
    cli_progress progress;
    atomic_bool writes; /* the model was read, by every rank alike */
    int64_t ns;         /* rank 0's */
} saving;

/* "5GB", "200 MiB", "1000": units of 1000 and of 1024, as Transformers reads them. */
static dt_status read_size(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = { { "", 1 },     { "B", 1 },        { "KB", 1e3 },     { "MB", 1e6 },
                  { "GB", 1e9 }, { "KIB", 0x1p10 }, { "MIB", 0x1p20 }, { "GIB", 0x1p30 } };
    char *end, unit[8] = "";
    const double number = strtod(text, &end);

    while (*end == ' ') end++;
    for (size_t i = 0; end[i] != '\0' && i + 1 < sizeof unit; i++)
        unit[i] = (char)(end[i] >= 'a' && end[i] <= 'z' ? end[i] - 'a' + 'A' : end[i]);
    for (size_t i = 0; i < DT_COUNT(units) && text[0] >= '0' && text[0] <= '9'; i++) {
        const double bytes = number * units[i].bytes;
        if (strlen(end) > 3 || strcmp(unit, units[i].name) != 0) continue;
        if (strspn(text, "0123456789. ") + strlen(end) != strlen(text)) break; /* 1e3, 0x10 */
        if (!(bytes >= 1 && bytes <= 1e18)) break;
        *out = (int64_t)bytes;
        return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "--max-shard-size: \"%s\" is no size; write 5GB, 500MB, 2GiB or bytes",
            text);
}

static dt_status save_on_rank(void *arg, dt_model *model, bool speaks)
{
    saving *s = arg;
    const int64_t begin = cli_now_ns();
    dt_status st;

    atomic_store(&s->writes, true);
    st = dt_model_save(model, s->session->args->output, &s->options);
    if (speaks) {
        cli_progress_end(&s->progress);
        s->ns = cli_now_ns() - begin;
    }
    DT_TRY(st);
    return DT_OK;
}

static dt_status print_json(const saving *s)
{
    char folder[DT_ERROR_MESSAGE_BYTES];

    return cli_session_put_json(
        s->session,
        json_pack("{s:s, s:f}", "output",
                  dti_printable(s->session->args->output, folder, sizeof folder), "save_s",
                  (double)s->ns * 1e-9),
        6);
}

static dt_status save(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_args own = *args; /* nothing is computed: the CPU unless another is named */
    cli_session session;
    saving s = { .session = &session, .options = DT_SAVE_OPTIONS_INIT, .progress = { console, 0 } };
    dt_status st = DT_OK;

    session = (cli_session){ 0 };
    if (own.device == NULL) own.device = "cpu";
    DT_CHECK(args->output != NULL, DT_ERR_ARG, "no folder to write; give --output DIR");
    if (args->max_shard_size != NULL)
        DT_TRY(read_size(args->max_shard_size, &s.options.max_file_bytes));
    st = dt_save_check(NULL, args->output, DT_F32); /* before weights are read */
    if (st != DT_OK) dti_error_prefix("--output");
    DT_TRY(st);
    if (console->process == 0) DT_TRY(cli_check_output("--output", args->output, args));
    s.options.progress = cli_progress_show;
    s.options.progress_arg = &s.progress;
    DT_TRY_TO(done, st, cli_session_open(&own, env, console, &session));
    DT_TRY_TO(done, st, cli_check_saved(&session));
    DT_TRY_TO(done, st, dt_save_check(own.folder, args->output, session.dtype));
    if (args->dtype == NULL && !session.info.packed) /* who names one knows */
        DT_TRY_TO(
            done, st,
            dt_checkpoint_dtype_remarks(own.folder, session.dtype, cli_remark, (void *)console));
    st = cli_session_run(&session, save_on_rank, &s);
    /* what can be wrong with --output was looked at before: a full disk, or one that broke */
    if (st == DT_ERR_IO && atomic_load(&s.writes)) *console->failed_output = true;
    DT_TRY_TO(done, st, st);
    if (console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    if (args->json) DT_TRY_TO(done, st, print_json(&s));
    if (!console->quiet) (void)fprintf(stderr, "saved in %.3f s\n", (double)s.ns * 1e-9);
done:
    cli_session_close(&session);
    return st;
}

const cli_command cli_save = {
    .name = "save",
    .bit = CLI_SAVE,
    .usage = "--model DIR --output DIR [OPTION]...",
    .runs = true,
    .summary = "writes a checkpoint anew: other dtype, other files",
    .details =
        "Loads a Hugging Face folder onto the mesh and writes it as one: weights in files of\n"
        "at most --max-shard-size, configuration and tokenizer beside them. Every rank writes\n"
        "what it holds. Without --dtype values are of the dtype that config.json names; tensors "
        "of\n"
        "another one are converted, with a warning.",
    .run = save,
};
