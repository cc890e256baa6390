/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor report: the folder of a training run as one HTML page that needs nothing else. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/text.h"
#include "cli/option_file.h"
#include "cli/outputs.h"
#include "cli/print_report.h"
#include "cli/report.h"
#include "cli/run_folder.h"

void cli_html_text(FILE *to, const char *text)
{
    for (const char *c = text != NULL ? text : ""; *c != '\0'; c++) {
        if (*c == '<')
            (void)fputs("&lt;", to);
        else if (*c == '>')
            (void)fputs("&gt;", to);
        else if (*c == '&')
            (void)fputs("&amp;", to);
        else if (*c == '"')
            (void)fputs("&quot;", to);
        else
            (void)fputc(*c, to);
    }
}

/* --- what there is ---------------------------------------------------------------------------- */

/* *out stays NULL where there is no such file. */
static dt_status read_object(const char *run, const char *name, json_t **out)
{
    char path[CLI_PATH_BYTES];

    DT_TRY(cli_run_path(run, name, path));
    if (access(path, F_OK) != 0) return DT_OK;
    DT_TRY(cli_check_file(path));
    DT_TRY(cli_read_json(path, out));
    return DT_OK;
}

static dt_status read_run(const char *folder, cli_run *run)
{
    char path[CLI_PATH_BYTES];

    *run = (cli_run){ .folder = folder };
    DT_TRY(read_object(folder, CLI_RUN_OPTIONS, &run->options));
    DT_TRY(cli_run_path(folder, CLI_METRICS, path));
    DT_CHECK(access(folder, F_OK) == 0, dti_io_status(errno), "%s: %s", folder, strerror(errno));
    DT_CHECK(run->options != NULL || access(path, F_OK) == 0, DT_ERR_ARG,
             "%s: it holds no run, neither " CLI_RUN_OPTIONS " nor " CLI_METRICS
             " of \"dtensor train\"",
             folder);
    DT_TRY(read_object(folder, CLI_RUN_PLAN, &run->plan));
    DT_TRY(read_object(folder, CLI_RUN_TRACE, &run->trace));
    if (access(path, F_OK) != 0) return DT_OK;
    DT_TRY(cli_check_file(path));
    DT_TRY(cli_metrics_read(path, &run->steps, &run->n, &run->faults));
    return DT_OK;
}

static void free_run(cli_run *run)
{
    json_decref(run->options);
    json_decref(run->plan);
    json_decref(run->trace);
    dti_free(run->steps);
}

/* --- the page --------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1c1c1a;--soft:#686762;"
    "--rule:#e3e2dc;--c0:#2a6fc9;--c1:#c2570c;--c2:#2e8b57;--c3:#9a4fb5;--c4:#b8901a;--c5:#8b8a84}"
    "\n"
    "@media(prefers-color-scheme:dark){:root{--page:#141413;--card:#1e1e1c;--ink:#eeede8;"
    "--soft:#a3a29b;--rule:#34342f;--c0:#6ea8f0;--c1:#f0955a;--c2:#5fc08c;--c3:#c98be0;"
    "--c4:#dcb84e;--c5:#8f8e88}}\n"
    "body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:1180px;margin:0 auto;padding:24px 20px 48px}\n"
    "h1{font-size:22px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 8px}\n"
    "p{margin:0 0 10px}.soft,.none,.tick{color:var(--soft);fill:var(--soft)}\n"
    "section,figure{background:var(--card);border:1px solid var(--rule);border-radius:8px;"
    "padding:14px 16px;margin:0 0 16px}\n"
    "section.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));"
    "gap:16px;background:none;border:0;padding:0}section.grid figure{margin:0}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:8px 36px;margin:14px 0 18px}.tiles div{font-size:13px;"
    "color:var(--soft)}.tiles b{display:block;font-size:21px;color:var(--ink);"
    "font-variant-numeric:tabular-nums}\n"
    "figcaption{margin-bottom:6px;display:flex;gap:16px;align-items:baseline}\n"
    ".key{font-size:13px;color:var(--soft);margin-right:14px}.key "
    "i{display:inline-block;width:10px;"
    "height:10px;border-radius:2px;margin-right:6px}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif}\n"
    ".grid line{stroke:none}line.grid{stroke:var(--rule)}section.grid "
    "line.grid{stroke:var(--rule)}\n"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.line.a{stroke:var(--c0)}"
    ".line.b{stroke:var(--c1)}.dot.a,.key .a{fill:var(--c0);background:var(--c0)}"
    ".dot.b,.key .b{fill:var(--c1);background:var(--c1)}\n"
    ".band{fill:var(--c0);opacity:.18}.hit{fill:transparent}.hit:hover{fill:var(--soft);"
    "opacity:.18}\n"
    ".c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}"
    ".c2{fill:var(--c2);background:var(--c2)}.c3{fill:var(--c3);background:var(--c3)}"
    ".c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}\n"
    "rect.fill{stroke:var(--card);stroke-width:.6}.wide{overflow-x:auto}.wide "
    "svg{min-width:720px}\n"
    "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}"
    "th{font-weight:500;text-align:left;padding:2px 16px 2px 0;color:var(--soft);"
    "vertical-align:top}td{padding:2px 12px 2px 0;overflow-wrap:anywhere}\n"
    ".bars{width:100%}.bars th{white-space:nowrap}.bars .bar{width:70%}.bars svg{height:18px}"
    ".number{text-align:right;white-space:nowrap}\n";

static void put_head(FILE *to, const cli_run *run)
{
    char folder[DT_ERROR_MESSAGE_BYTES];

    (void)dti_printable(run->folder, folder, sizeof folder);
    (void)fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta "
                "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
                to);
    cli_html_text(to, folder);
    (void)fprintf(to, "</title>\n<style>\n%s</style></head>\n<body><main>\n<h1>", style);
    cli_html_text(to, folder);
    (void)fputs("</h1>\n", to);
}

static void put_tile(FILE *to, const char *name, const char *format, double value)
{
    if (!isfinite(value)) return;
    (void)fputs("<div><b>", to);
    (void)fprintf(to, format, value);
    (void)fprintf(to, "</b>%s</div>\n", name);
}

/* The newest number of each kind, and sums. */
static void put_tiles(FILE *to, const cli_run *run)
{
    const cli_metric *last = run->n > 0 ? &run->steps[run->n - 1] : NULL;
    double validation = NAN, seconds = 0, tokens = 0;

    if (last == NULL) return;
    for (size_t i = 0; i < run->n; i++) {
        if (isfinite(run->steps[i].validation_loss)) validation = run->steps[i].validation_loss;
        if (isfinite(run->steps[i].seconds)) seconds += run->steps[i].seconds;
    }
    tokens = (double)last->tokens;
    (void)fputs("<div class=\"tiles\">\n", to);
    put_tile(to, "steps", "%.0f", (double)last->step);
    put_tile(to, "loss", "%.4f", last->loss);
    put_tile(to, "validation loss", "%.4f", validation);
    put_tile(to, "perplexity", "%.2f", exp(validation));
    put_tile(to, "norm", "%.3f", last->grad_norm);
    put_tile(to, "tokens", "%.0f", tokens);
    put_tile(to, "tokens per second", "%.0f", seconds > 0 ? tokens / seconds : NAN);
    put_tile(to, "seconds in steps", "%.1f", seconds);
    (void)fputs("</div>\n", to);
}

/* What of the metrics does not count: "" where all does. */
static void name_faults(const cli_run *run, char *text, size_t bytes)
{
    const cli_metrics_faults *f = &run->faults;
    size_t n = 0;

    text[0] = '\0';
    if (f->n_damaged > 0)
        n = (size_t)snprintf(text, bytes,
                             "%zu line%s of " CLI_METRICS " %s damaged and do%s not count (the "
                             "first is line %zu). ",
                             f->n_damaged, f->n_damaged == 1 ? "" : "s",
                             f->n_damaged == 1 ? "is" : "are", f->n_damaged == 1 ? "es" : "",
                             f->first_damaged);
    if (f->torn)
        (void)snprintf(text + n, bytes - n,
                       "The last line of " CLI_METRICS " is not complete and does not count.");
}

static void put_faults(FILE *to, const cli_run *run)
{
    char text[320];

    name_faults(run, text, sizeof text);
    if (text[0] != '\0') (void)fprintf(to, "<p class=\"soft\">%s</p>\n", text);
}

static void put_options(FILE *to, const cli_run *run)
{
    const char *key;
    json_t *v;

    if (json_object_size(run->options) == 0) return;
    (void)fputs("<section><h2>Options</h2>\n<table>\n", to);
    json_object_foreach(run->options, key, v)
    {
        char *text =
            json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        (void)fputs("<tr><th>", to);
        cli_html_text(to, key);
        (void)fputs("</th><td>", to);
        cli_html_text(to, json_is_string(v) ? json_string_value(v) : text);
        (void)fputs("</td></tr>\n", to);
        free(text);
    }
    (void)fputs("</table></section>\n", to);
}

static dt_status write_page(const cli_run *run, const char *path)
{
    char *page = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&page, &n);
    dt_status st;

    DT_CHECK(to != NULL, DT_ERR_MEMORY, "the page does not fit into memory");
    put_head(to, run);
    put_tiles(to, run);
    put_faults(to, run);
    cli_html_curves(to, run);
    cli_html_timeline(to, run);
    cli_html_costs(to, run);
    put_options(to, run);
    (void)fputs("</main></body></html>\n", to);
    if (fclose(to) != 0) {
        free(page);
        DT_FAIL(DT_ERR_MEMORY, "the page does not fit into memory");
    }
    st = cli_write_text(path, page, n);
    free(page);
    DT_TRY(st);
    return DT_OK;
}

/* --- the command ------------------------------------------------------------------------------ */

static void print_path(const char *path)
{
    cli_print_text(stdout, path, strlen(path));
    (void)putchar('\n');
}

static dt_status report(const cli_args *args, const cli_env *env, const cli_console *console)
{
    char path[CLI_PATH_BYTES], text[320];
    dt_status st = DT_OK;
    cli_run run = { NULL };

    (void)env;
    DT_CHECK(
        args->folder != NULL, DT_ERR_ARG,
        "no run; write \"dtensor report RUN\", the folder of a \"dtensor train --output RUN\"");
    DT_TRY(cli_run_path(args->folder, "report.html", path));
    DT_TRY_TO(done, st, read_run(args->folder, &run));
    if (args->output != NULL) DT_TRY_TO(done, st, cli_check_place("--output", args->output, args));
    name_faults(&run, text, sizeof text);
    if (run.faults.n_damaged > 0) cli_warn(console, text);
    st = write_page(&run, args->output != NULL ? args->output : path);
    if (st == DT_ERR_IO) *console->failed_output = true; /* a full disk is no bad input */
    DT_TRY_TO(done, st, st);
    if (args->json)
        st = cli_put_json(json_pack("{s:s, s:I, s:b, s:I}", "report",
                                    args->output != NULL ? args->output : path, "steps",
                                    (json_int_t)run.n, "torn", (int)run.faults.torn, "damaged",
                                    (json_int_t)run.faults.n_damaged),
                          JSON_COMPACT);
    else if (!console->quiet)
        print_path(args->output != NULL ? args->output : path);
done:
    free_run(&run);
    return st;
}

const cli_command cli_report_command = {
    .name = "report",
    .bit = CLI_REPORT,
    .argument = "RUN",
    .usage = "RUN [--output FILE]",
    .summary = "a training run as one HTML page",
    .details =
        "Reads the folder of \"dtensor train --output RUN\" and writes RUN/report.html: curves of\n"
        "loss, norm, speed and learning rate, memory by kind, bytes by mesh dim, a step in time,\n"
        "and the options. One file, without scripts, for light and dark screens. A run that is\n"
        "still going on can be looked at as well.",
    .run = report,
};
