/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "cli/print_report.h"
#include "cli/run_folder.h"

enum { ALL_DIGITS = 17 };

struct cli_metrics {
    int file;
    off_t end; /* of the last whole line */
    char path[CLI_PATH_BYTES];
};

/* --- reading ---------------------------------------------------------------------------------- */

static double real_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* A line that stands alone; DT_ERR_FORMAT without a place. */
static dt_status parse_line(const char *line, size_t n, cli_metric *out)
{
    json_error_t why;
    json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES, &why);
    const json_t *step = json_object_get(o, "step");

    *out = (cli_metric){
        .step = json_integer_value(step),
        .loss = real_of(o, "loss"),
        .grad_norm = real_of(o, "grad_norm"),
        .clip = real_of(o, "clip"),
        .lr = real_of(o, "lr"),
        .tokens = json_integer_value(json_object_get(o, "tokens")),
        .seconds = real_of(o, "seconds"),
        .validation_loss = real_of(o, "validation_loss"),
        .imbalance = real_of(o, "expert_imbalance"),
        .skipped = json_is_true(json_object_get(o, "skipped")),
    };
    json_decref(o);
    DT_CHECK(o != NULL, DT_ERR_FORMAT, "%s", why.text);
    DT_CHECK(out->step > 0, DT_ERR_FORMAT, "there is no \"step\", a number from 1 on");
    return DT_OK;
}

dt_status cli_metrics_read(const char *path, cli_metric **list, size_t *n,
                           cli_metrics_faults *faults)
{
    FILE *f = fopen(path, "r");
    size_t room = 0, line_room = 0, number = 0;
    char *line = NULL;
    dt_status st = DT_OK;
    ssize_t got;

    *list = NULL;
    *n = 0;
    *faults = (cli_metrics_faults){ .torn = false };
    DT_CHECK(f != NULL, dti_io_status(errno), "%s: %s", path, strerror(errno));
    while ((got = getline(&line, &line_room, f)) > 0) {
        number++;
        faults->torn = line[got - 1] != '\n';
        if (faults->torn) break;
        DT_TRY_TO(done, st, dti_grow((void **)list, &room, *n + 1, sizeof **list));
        if (parse_line(line, (size_t)got, &(*list)[*n]) == DT_OK)
            ++*n;
        else if (faults->n_damaged++ == 0)
            faults->first_damaged = number;
    }
    dti_error_clear();
done:
    free(line);
    (void)fclose(f);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Where the lines up to step `after` end. Lines that are none stay: they are no news. */
static dt_status find_end(cli_metrics *m, int64_t after, cli_metric *last)
{
    FILE *f = fopen(m->path, "r");
    size_t room = 0;
    char *line = NULL;
    cli_metric metric;
    ssize_t got;

    DT_CHECK(f != NULL, dti_io_status(errno), "%s: %s", m->path, strerror(errno));
    while ((got = getline(&line, &room, f)) > 0 && line[got - 1] == '\n') {
        const bool whole = parse_line(line, (size_t)got, &metric) == DT_OK;
        if (whole && metric.step > after) break;
        if (whole && metric.step == after) *last = metric;
        m->end += got;
    }
    dti_error_clear();
    free(line);
    (void)fclose(f);
    return DT_OK;
}

dt_status cli_metrics_open(const char *run, int64_t after, cli_metric *last, cli_metrics **out)
{
    dt_status st = DT_OK;
    cli_metrics *m;

    *out = NULL;
    DT_TRY(dti_new(sizeof *m, &m));
    (void)snprintf(m->path, sizeof m->path, "%s/" CLI_METRICS, run);
    if (access(m->path, F_OK) == 0) st = cli_check_file(m->path);
    if (st != DT_OK) dti_free(m);
    DT_TRY(st);
    m->file = open(m->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (m->file < 0) {
        const int error = errno;
        dti_free(m);
        DT_FAIL(dti_io_status(error), "%s/" CLI_METRICS ": %s", run, strerror(error));
    }
    if (after > 0) st = find_end(m, after, last);
    if (st == DT_OK && ftruncate(m->file, m->end) != 0) {
        const int error = errno;
        cli_metrics_close(&m);
        DT_FAIL(dti_io_status(error), "%s/" CLI_METRICS ": %s", run, strerror(error));
    }
    if (st != DT_OK) cli_metrics_close(&m);
    DT_TRY(st);
    *out = m;
    return DT_OK;
}

static char *line_of(const cli_metric *k)
{
    json_t *o =
        json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o}", "step", (json_int_t)k->step, "loss",
                  cli_json_number(k->loss), "grad_norm", cli_json_number(k->grad_norm), "lr",
                  cli_json_number(k->lr), "tokens", (json_int_t)k->tokens, "seconds",
                  cli_json_number(k->seconds), "clip", cli_json_number(k->clip));
    char *text;

    if (isfinite(k->validation_loss)) {
        (void)json_object_set_new(o, "validation_loss", cli_json_number(k->validation_loss));
        (void)json_object_set_new(o, "perplexity", cli_json_number(exp(k->validation_loss)));
    }
    if (isfinite(k->imbalance))
        (void)json_object_set_new(o, "expert_imbalance", cli_json_number(k->imbalance));
    if (k->skipped) (void)json_object_set_new(o, "skipped", json_true());
    text = json_dumps(o, JSON_REAL_PRECISION(ALL_DIGITS));
    json_decref(o);
    return text;
}

dt_status cli_metrics_add(cli_metrics *m, const cli_metric *metric)
{
    char *text = line_of(metric);
    const size_t n = text != NULL ? strlen(text) : 0;
    ssize_t written;
    int error;

    DT_CHECK(text != NULL, DT_ERR_MEMORY, "a line of metrics does not fit into memory");
    text[n] = '\n'; /* in the place of its end */
    written = pwrite(m->file, text, n + 1, m->end);
    error = errno;
    free(text);
    if (written != (ssize_t)n + 1) (void)!ftruncate(m->file, m->end);
    DT_CHECK(written == (ssize_t)n + 1, DT_ERR_IO, "%s: %s", m->path,
             strerror(written < 0 ? error : ENOSPC));
    m->end += written;
    return DT_OK;
}

void cli_metrics_close(cli_metrics **metrics)
{
    cli_metrics *m = *metrics;

    *metrics = NULL;
    if (m == NULL) return;
    (void)close(m->file);
    dti_free(m);
}
