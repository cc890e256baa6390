/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor compare: one prompt through a model on several meshes, and the first layer and position
 * at which one of them leaves the first. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/option_table.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/trace.h"

/* One pass. Ranks read the upper half; the lower half is, in turn, that of the first rank of each
 * stage, whose layers nobody else sees. A stage begins with what the one before it has ended. */
typedef struct comparison {
    const cli_prompt *prompt;
    bool keeps; /* this is the pass that others are compared with */

    pthread_mutex_t *lock;
    cli_trace *trace;
    cli_trace_result *result;
} comparison;

/* --- on the ranks --------------------------------------------------------------------------- */

/* Collective over the tensor's mesh: its ranks see the same scopes end in the same order. */
static dt_status look(void *arg, const char *name, dt_tensor *x)
{
    comparison *c = arg;
    const dt_mesh *mesh = dt_tensor_mesh(x);
    dt_tensor *whole = NULL;
    dt_status st = DT_OK;

    if (!dt_dtype_is_float(dt_tensor_dtype(x))) return DT_OK;
    DT_TRY(dt_full_tensor(x, &whole));
    if (dt_mesh_rank_at(mesh, 0) == dt_runtime_rank(dt_mesh_runtime(mesh))) {
        (void)pthread_mutex_lock(c->lock);
        st = c->keeps ? cli_trace_keep(c->trace, name, whole)
                      : cli_trace_compare(c->trace, name, whole, c->result);
        (void)pthread_mutex_unlock(c->lock);
    }
    dt_tensor_release(&whole);
    DT_TRY(st);
    return DT_OK;
}

static dt_status pass_on_rank(void *arg, dt_model *model, bool speaks)
{
    comparison *c = arg;
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_status st = DT_OK;

    (void)speaks;
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY_TO(done, st, dt_state_create(model, 1, c->prompt->n, &state));
    dt_tape_observe(tape, look, c);
    (void)dt_model_forward(tape, model, state, c->prompt->ids, c->prompt->n, DT_LOGITS_ALL);
    DT_TRY_TO(done, st, dt_tape_status(tape));
done:
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

/* --- output --------------------------------------------------------------------------------- */

static void print_place(const char *what, const cli_trace_place *p)
{
    (void)printf("  %-18s %.3g at %s", what, p->relative, p->name);
    if (p->position >= 0) (void)printf(", position %" PRId64, p->position);
    (void)printf(", element %" PRId64 ": %.9g, was %.9g\n", p->element, (double)p->is,
                 (double)p->was);
}

static void print_text(const cli_args *args, size_t n, const cli_trace_result *results)
{
    for (int m = 1; m < args->meshes.n; m++) {
        const cli_trace_result *r = &results[m];
        (void)printf("%s %s %s within %g: %" PRId64 " of %zu tensors compared\n",
                     args->meshes.items[m], r->first.name != NULL ? "differs from" : "agrees with",
                     args->meshes.items[0], r->tolerance, r->n_compared, n);
        if (r->first.name != NULL) print_place("first", &r->first);
        if (r->worst.name != NULL) print_place("largest difference", &r->worst);
        if (r->n_not_finite > 0)
            (void)printf("  %-18s %" PRId64 " number%s on both meshes, the first in %s\n",
                         "not finite", r->n_not_finite, r->n_not_finite == 1 ? "" : "s",
                         r->not_finite);
    }
}

/* JSON knows no infinity and no NaN. */
static json_t *json_number_of(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *json_place(const cli_trace_place *p)
{
    if (p->name == NULL) return json_null();
    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o}", "layer", p->name, "position",
                     p->position >= 0 ? json_integer(p->position) : json_null(), "element",
                     (json_int_t)p->element, "was", json_number_of((double)p->was), "is",
                     json_number_of((double)p->is), "relative", json_number_of(p->relative));
}

static dt_status print_json(const cli_args *args, const cli_session *s, const cli_prompt *prompt,
                            const cli_trace_result *results)
{
    char folder[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */
    json_t *meshes = json_array(), *object;

    for (int m = 1; m < args->meshes.n; m++)
        (void)json_array_append_new(
            meshes,
            json_pack("{s:s, s:b, s:I, s:o, s:o, s:I}", "mesh", args->meshes.items[m], "agrees",
                      (int)(results[m].first.name == NULL), "compared",
                      (json_int_t)results[m].n_compared, "first", json_place(&results[m].first),
                      "largest", json_place(&results[m].worst), "not_finite",
                      (json_int_t)results[m].n_not_finite));
    object = json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:o}", "model",
                       dti_printable(args->folder, folder, sizeof folder), "model_type",
                       s->info.model_type, "dtype", dt_dtype_name(s->dtype), "baseline",
                       args->meshes.items[0], "tokens", (json_int_t)prompt->n, "tolerance",
                       results[1].tolerance, "meshes", meshes);
    return cli_put_json(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
}

/* --- the command ---------------------------------------------------------------------------- */

/* Sums in another order differ by much less than this, a wrong shard by much more. */
static double default_tolerance(dt_dtype dtype)
{
    return dtype == DT_F32 ? 1e-4 : dtype == DT_F16 ? 0.02 : 0.1;
}

static dt_status read_tolerance(const cli_args *args, dt_dtype dtype, double *out)
{
    *out = default_tolerance(dtype);
    if (args->tolerance == NULL) return DT_OK;
    DT_TRY(cli_parse_number("--tolerance", args->tolerance, out));
    DT_CHECK(*out >= 0 && isfinite(*out), DT_ERR_ARG,
             "--tolerance: %s is not a difference: give a number from 0 on, 1e-4 for example",
             args->tolerance);
    return DT_OK;
}

static dt_status check_args(const cli_args *args)
{
    DT_CHECK(dt_launch_size() == 1, DT_ERR_UNSUPPORTED,
             "compare starts its meshes one after the other in one process, but %d were started; "
             "leave the launcher out",
             dt_launch_size());
    DT_CHECK(args->meshes.n >= 2, DT_ERR_ARG,
             "compare needs two meshes or more: --mesh tp=1 --mesh tp=2; the first one is what the "
             "others are compared with");
    return DT_OK;
}

/* Runs the prompt on mesh `m` of the command line. The prompt is read on the first one. */
static dt_status run_mesh(const cli_args *args, const cli_env *env, const cli_console *console,
                          int m, cli_session *s, cli_prompt *prompt, comparison *c)
{
    cli_args mine = *args;
    dt_status st;

    mine.mesh = args->meshes.items[m];
    DT_TRY(cli_session_open(&mine, env, console, s));
    if (m == 0) DT_TRY(cli_prompt_read(s, false, prompt));
    c->prompt = prompt;
    c->keeps = m == 0;
    c->trace->n_tokens = prompt->n;
    if (c->result != NULL) DT_TRY(read_tolerance(args, s->dtype, &c->result->tolerance));
    st = cli_session_run(s, pass_on_rank, c);
    s->args = args;
    DT_TRY(st);
    return DT_OK;
}

/* The command's exit code speaks of the first mesh that differs. */
static dt_status judge(const cli_args *args, const cli_trace_result *results)
{
    for (int m = 1; m < args->meshes.n; m++) {
        const cli_trace_place *p = &results[m].first;
        DT_CHECK(results[m].n_compared > 0, DT_ERR_INTERNAL,
                 "%s: no layer on mesh %s has the name and shape of one on %s", args->folder,
                 args->meshes.items[m], args->meshes.items[0]);
        if (p->name == NULL) continue;
        DT_FAIL(DT_ERR_INTERNAL,
                "%s: mesh %s differs from %s by %.3g in %s at position %lld, more than %g",
                args->folder, args->meshes.items[m], args->meshes.items[0], p->relative, p->name,
                (long long)p->position, results[m].tolerance);
    }
    return DT_OK;
}

static dt_status compare(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_trace_result results[CLI_MAX_MANY] = { 0 };
    cli_session sessions[2] = { 0 }; /* the first mesh's, and the one in use */
    cli_prompt prompt = { 0 };
    cli_trace trace = { 0 };
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    comparison c = { .lock = &lock, .trace = &trace };
    dt_status st = DT_OK;

    DT_TRY(check_args(args));
    for (int m = 0; m < args->meshes.n; m++) {
        cli_session *s = &sessions[m > 0];
        c.result = &results[m];
        cli_session_close(s);
        DT_TRY_TO(done, st, run_mesh(args, env, console, m, s, &prompt, &c));
    }
    if (args->json)
        DT_TRY_TO(done, st, print_json(args, &sessions[0], &prompt, results));
    else
        print_text(args, trace.n, results);
    DT_TRY_TO(done, st, cli_flush());
    DT_TRY_TO(done, st, judge(args, results));
done:
    cli_trace_free(&trace);
    cli_prompt_free(&prompt);
    for (size_t i = 0; i < DT_COUNT(sessions); i++) cli_session_close(&sessions[i]);
    return st;
}

const cli_command cli_compare = {
    .name = "compare",
    .bit = CLI_COMPARE,
    .usage = "--model DIR --mesh MESH --mesh MESH... (--prompt TEXT | --prompt-file FILE | "
             "--tokens IDS) [OPTION]...",
    .runs = true,
    .summary = "finds the first layer at which meshes differ",
    .details =
        "Runs a prompt on each mesh, and compares what every layer and block gives with what it\n"
        "gave on the first mesh. Prints the first layer and position that differ by more than the\n"
        "tolerance, and the largest difference of all, as parts of the largest number of the\n"
        "layer's output. Exit code 1: there is a difference.",
    .run = compare,
};
