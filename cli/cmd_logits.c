/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor logits: the logits of every position of a prompt, so that anyone can compare them with
 * another implementation. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"

enum { N_BEST = 5 };

/* Ranks read the upper half; the lower half is rank 0's. */
typedef struct scoring {
    const cli_prompt *prompt;

    float *logits; /* [n_rows, n_columns] */
    int64_t n_rows, n_columns;
} scoring;

/* --- on the ranks -------------------------------------------------------------------------------
 */

static dt_status keep(scoring *x, dt_tensor *logits)
{
    const dt_local *whole = dt_tensor_local(logits);

    x->n_rows = whole->shape[1];
    x->n_columns = whole->shape[2];
    DT_TRY(dti_alloc_array((size_t)(x->n_rows * x->n_columns), sizeof *x->logits,
                           (void **)&x->logits));
    DT_TRY(
        dt_tensor_read(logits, x->logits, (size_t)(x->n_rows * x->n_columns) * sizeof *x->logits));
    return DT_OK;
}

/* Printing waits until the ranks have ended: a slow reader must not keep them waiting. */
static dt_status score_on_rank(void *arg, dt_model *model, bool speaks)
{
    scoring *x = arg;
    dt_tensor *logits, *whole = NULL;
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY_TO(done, st, dt_state_create(model, 1, x->prompt->n, &state));
    logits = dt_model_forward(tape, model, state, x->prompt->ids, x->prompt->n, DT_LOGITS_ALL);
    logits = dt_cast(tape, logits, DT_F32);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_full_tensor(logits, &whole));
    if (speaks) DT_TRY_TO(done, st, keep(x, whole));
done:
    dt_tensor_release(&whole);
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

/* --- output -------------------------------------------------------------------------------------
 */

/* Nine digits give every f32 back exactly. JSON knows no infinity and no NaN. */
static void print_number(float value)
{
    if (isfinite(value))
        (void)printf("%.9g", (double)value);
    else
        (void)fputs("null", stdout);
}

static void print_json(const scoring *x)
{
    (void)printf("{\"shape\":[%" PRId64 ",%" PRId64 "],\"logits\":[", x->n_rows, x->n_columns);
    for (int64_t r = 0; r < x->n_rows; r++) {
        (void)fputs(r == 0 ? "[" : ",\n[", stdout);
        for (int64_t c = 0; c < x->n_columns; c++) {
            if (c > 0) (void)fputc(',', stdout);
            print_number(x->logits[r * x->n_columns + c]);
        }
        (void)fputc(']', stdout);
    }
    (void)fputs("]}\n", stdout);
}

/* The best ids of a row, largest logit first, the lower id where two are equal. */
static int find_best(const float *row, int64_t n, int64_t best[N_BEST])
{
    int found = 0;

    for (int64_t c = 0; c < n; c++) {
        int at = found;

        while (at > 0 && row[c] > row[best[at - 1]]) at--;
        if (at == N_BEST) continue;
        if (found < N_BEST) found++;
        for (int i = found - 1; i > at; i--) best[i] = best[i - 1];
        best[at] = c;
    }
    return found;
}

static void print_table(const scoring *x)
{
    (void)printf("%8s %8s   most likely next: id logit\n", "position", "id");
    for (int64_t r = 0; r < x->n_rows; r++) {
        const float *row = x->logits + r * x->n_columns;
        int64_t best[N_BEST];
        const int n = find_best(row, x->n_columns, best);

        (void)printf("%8" PRId64 " %8" PRId32 "  ", r, x->prompt->ids[r]);
        for (int i = 0; i < n; i++)
            (void)printf(" %7" PRId64 " %-9.4f", best[i], (double)row[best[i]]);
        (void)fputc('\n', stdout);
    }
}

/* --- the command --------------------------------------------------------------------------------
 */

static dt_status logits(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_prompt prompt = { 0 };
    scoring x = { .prompt = &prompt };
    dt_status st = DT_OK;
    cli_session s;

    DT_TRY_TO(done, st, cli_session_open(args, env, console, &s));
    DT_TRY_TO(done, st, cli_prompt_read(&s, false, &prompt));
    DT_TRY_TO(done, st, cli_session_run(&s, score_on_rank, &x));
    if (console->process > 0) goto done; /* rank 0 is elsewhere, and so is the result */
    if (args->json)
        print_json(&x);
    else
        print_table(&x);
    DT_TRY_TO(done, st, cli_flush());
done:
    dti_free(x.logits);
    cli_prompt_free(&prompt);
    cli_session_close(&s);
    return st;
}

const cli_command cli_logits = {
    .name = "logits",
    .bit = CLI_LOGITS,
    .usage = "--model DIR (--tokens IDS | --prompt TEXT | --prompt-file FILE) [OPTION]...",
    .runs = true,
    .summary = "prints the logits of every position of a prompt",
    .details =
        "With --json: {\"shape\":[T,V],\"logits\":[[...],...]}, T positions of V numbers in f32 "
        "with\n"
        "nine significant digits, for comparison with other implementations. Without: the five\n"
        "largest of every position.",
    .run = logits,
};
