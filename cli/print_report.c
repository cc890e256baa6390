/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/print_report.h"
#include "base/io_status.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RED        "\033[1;31m"
#define YELLOW     "\033[1;33m"
#define PLAIN      "\033[0m"
#define ERASE_LINE "\r\033[K"

enum {
    WHO_BYTES = 32,
    SILENT_NS = 250 * 1000 * 1000,
    PROMPT_NS = 500 * 1000 * 1000,
    ALONE_S = 2,
    ALIKE_S = 5
};

void cli_console_init(const cli_args *args, const cli_env *env, cli_console *out)
{
    const bool terminal = isatty(STDERR_FILENO) && !env->dumb_terminal;

    *out = (cli_console){
        .quiet = args->quiet,
        .verbose = args->verbose || env->verbose,
        .terminal = terminal,
        .color = terminal && !env->no_color,
        .process = dt_launch_process(),
        .n_processes = dt_launch_size(),
        .alone = out->alone,
        .failed_output = out->failed_output,
    };
}

/* Codes that one rank runs into alone; the others are found by every rank alike, and naming the
 * one that was first would only mislead. */
static bool is_of_one_rank(dt_status st)
{
    return st == DT_ERR_MEMORY || st == DT_ERR_COMM || st == DT_ERR_DEVICE || st == DT_ERR_IO ||
           st == DT_ERR_INTERNAL;
}

/* "rank 1: ", "process 1: ", or nothing if the text says it already. */
static void name(const char *what, int number, const char *text, char to[WHO_BYTES])
{
    (void)snprintf(to, WHO_BYTES, "%s %d", what, number);
    if (strstr(text, to) != NULL)
        to[0] = '\0';
    else
        (void)snprintf(to, WHO_BYTES, "%s %d: ", what, number);
}

static int exit_code(dt_status st)
{
    switch (st) {
    case DT_OK:
        return CLI_EXIT_OK;
    case DT_ERR_ARG:
    case DT_ERR_SHAPE:
    case DT_ERR_LAYOUT:
    case DT_ERR_UNSUPPORTED:
    case DT_ERR_IO:
    case DT_ERR_FORMAT:
        return CLI_EXIT_INPUT;
    case DT_ERR_MEMORY:
        return CLI_EXIT_MEMORY;
    case DT_ERR_COMM:
        return CLI_EXIT_COMM;
    default:
        return CLI_EXIT_FAILURE;
    }
}

/* Of several processes the one in which it happened reports an error: a record that has come from
 * another one begins in no line. Before there are ranks there are no such records. */
static bool is_ours(const dt_error *e)
{
    return e->rank < 0 || (e->n_frames > 0 && e->frames[0].line > 0);
}

/* MPICH's launcher ends a job when the first of its processes ends, and what another is about to
 * report is lost. So a process that has nothing to say waits a moment, in which it is ended. What
 * happens before there are ranks mostly happens to all processes alike: the first one speaks at
 * once, for all, and launchers end the others with it, on a busy machine after seconds. Of what all
 * find alike another speaks only where nobody has ended it for long, since the first one was told
 * something else; of what it may have run into alone, a file perhaps, sooner. */
static void let_others_speak(const cli_console *console, const dt_error *e)
{
    if (!is_ours(e)) (void)nanosleep(&(struct timespec){ .tv_nsec = SILENT_NS }, NULL);
    if (e->rank < 0 && console->process > 0)
        (void)nanosleep(&(struct timespec){ .tv_sec = is_of_one_rank(e->code) ? ALONE_S : ALIKE_S },
                        NULL);
}

int cli_report(const cli_console *console, dt_status st)
{
    const dt_error *e = dt_last_error();
    const bool known = e->code == st;
    char who[WHO_BYTES] = "";

    if (st == DT_OK) return CLI_EXIT_OK;
    if (console->n_processes > 1 && known) {
        let_others_speak(console, e);
        if (!is_ours(e)) return exit_code(st);
        if (e->rank < 0 && console->process > 0) name("process", console->process, e->message, who);
    }
    if (known && e->rank >= 0 && is_of_one_rank(st)) name("rank", e->rank, e->message, who);
    (void)fprintf(stderr, "%sdtensor:%s %s%s\n", console->color ? RED : "",
                  console->color ? PLAIN : "", who, known ? e->message : dt_status_text(st));
    if (!console->verbose || !known) return exit_code(st);
    (void)fprintf(stderr, "    %s, %s\n", dt_status_name(st), dt_status_text(st));
    if (e->where[0] != '\0') (void)fprintf(stderr, "    on rank %d, %s\n", e->rank, e->where);
    for (int i = 0; i < e->n_frames; i++)
        (void)fprintf(stderr, "    at %s (%s:%d)\n", e->frames[i].func, e->frames[i].file,
                      e->frames[i].line);
    return exit_code(st);
}

void cli_log(void *arg, dt_log_level level, int rank, const char *line)
{
    const cli_console *c = arg;
    const bool warning = level == DT_LOG_WARNING;
    char from[WHO_BYTES] = "";

    if (c->quiet && !warning) return;
    if (level == DT_LOG_DETAIL && !c->verbose) return;
    if (rank > 0) name("rank", rank, line, from);
    flockfile(stderr); /* ranks speak at once */
    (void)fprintf(stderr, "%sdtensor: %s%s:%s %s", c->terminal ? ERASE_LINE : "",
                  c->color && warning ? YELLOW : "", warning ? "warning" : "note",
                  c->color && warning ? PLAIN : "", from);
    cli_print_notice(stderr, line);
    (void)fputc('\n', stderr);
    funlockfile(stderr);
}

void cli_warn(const cli_console *console, const char *line)
{
    if (console->process == 0) cli_log((void *)(uintptr_t)console, DT_LOG_WARNING, 0, line);
}

void cli_remark(void *arg, const char *line)
{
    cli_warn(arg, line);
}

void cli_progress_show(void *arg, int64_t done, int64_t total)
{
    cli_progress *p = arg;
    const int percent = total > 0 ? (int)(100.0 * (double)done / (double)total) : 0;
    char d[DTI_NUMBER_BYTES], t[DTI_NUMBER_BYTES];

    if (p->console->quiet || !p->console->terminal || percent == p->percent) return;
    p->percent = percent;
    (void)fprintf(stderr, ERASE_LINE "loading %3d %%  %s of %s", percent, dti_bytes_text(done, d),
                  dti_bytes_text(total, t));
}

void cli_progress_prompt(void *arg, int64_t done, int64_t total)
{
    cli_progress *p = arg;
    const int percent = total > 0 ? (int)(100.0 * (double)done / (double)total) : 0;

    if (p->console->quiet || !p->console->terminal) return;
    if (done == 0) p->begin_ns = cli_now_ns();
    if (percent == p->percent || cli_now_ns() - p->begin_ns < PROMPT_NS) return;
    p->percent = percent;
    (void)fprintf(stderr, ERASE_LINE "reading the prompt %3d %%", percent);
}

void cli_progress_end(cli_progress *p)
{
    if (p->percent > 0) (void)fputs(ERASE_LINE, stderr);
    p->percent = 0;
}

int64_t cli_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

dt_status cli_flush(void)
{
    const int failed = fflush(stdout);

    DT_CHECK((failed == 0 && !ferror(stdout)) || errno != ETIMEDOUT, DT_ERR_IO,
             "standard output: its reader took nothing for longer than DTENSOR_TIMEOUT_MS allows");
    DT_CHECK(failed == 0 && !ferror(stdout), dti_io_status(errno), "standard output: %s",
             strerror(errno));
    return DT_OK;
}

json_t *cli_json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *cli_json_ids(const int32_t *ids, int64_t n)
{
    json_t *array = json_array();

    for (int64_t i = 0; i < n; i++) (void)json_array_append_new(array, json_integer(ids[i]));
    return array;
}

dt_status cli_put_json(json_t *object, size_t flags)
{
    DT_CHECK(object != NULL, DT_ERR_MEMORY, "the JSON result does not fit into memory");
    (void)json_dumpf(object, stdout, flags);
    (void)fputc('\n', stdout);
    json_decref(object);
    DT_TRY(cli_flush());
    return DT_OK;
}
