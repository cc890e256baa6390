/* SPDX-License-Identifier: Apache-2.0
 *
 * What the user reads on stderr: errors, notes, progress; and how numbers look. */
#ifndef DTI_CLI_REPORT_H
#define DTI_CLI_REPORT_H

#include <stdio.h>

#include "base/text.h"
#include "cli/cli.h"

/* Fills in *out, whose alone and failed_output are set before. */
void cli_console_init(const cli_args *args, const cli_env *env, cli_console *out);

/* Prints the calling thread's error record, and its frames if the console is verbose. Returns the
 * exit code that belongs to `st`. */
int cli_report(const cli_console *console, dt_status st);

/* A dt_log_fn whose arg is the console. */
void cli_log(void *arg, dt_log_level level, int rank, const char *line);

/* A warning of what all processes find alike: the first one says it. */
void cli_warn(const cli_console *console, const char *line);

/* The same as a dt_remark_fn whose arg is the console. */
void cli_remark(void *arg, const char *line);

/* The line that loading, or reading a prompt, writes over and over, on terminals only. One thread
 * at a time. */
typedef struct cli_progress {
    const cli_console *console;
    int percent;      /* shown last; 0 to begin with */
    int64_t begin_ns; /* of reading a prompt */
} cli_progress;

/* Each is a dt_progress_fn whose arg is the line: of loading; of a prompt, silent while that does
 * not take long. */
void cli_progress_show(void *arg, int64_t done, int64_t total);
void cli_progress_prompt(void *arg, int64_t done, int64_t total);
void cli_progress_end(cli_progress *p);

int64_t cli_now_ns(void); /* monotonic */

/* Hands what was printed to stdout on; DT_ERR_IO if nobody can take it. */
dt_status cli_flush(void) DT_MUST_USE;

/* Whole characters of somebody else's text. On a terminal control characters but for newlines and
 * tabs become visible, "\x1b"; files and pipes get all bytes (print_text.c). */
void cli_print_text(FILE *to, const char *text, size_t n);

/* The same of a line of ours that may hold somebody's names, for files and pipes as well. */
void cli_print_notice(FILE *to, const char *text);

struct json_t;

/* A number; null where it is none, which JSON does not know. */
struct json_t *cli_json_number(double x);

/* Token ids as an array. */
struct json_t *cli_json_ids(const int32_t *ids, int64_t n);

/* Prints a result of --json as a line of its own (`flags` of jansson), and frees it. NULL is one
 * that did not fit into memory. */
dt_status cli_put_json(struct json_t *object, size_t flags) DT_MUST_USE;

#endif
