/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor plan: how a model would lie on a mesh, and what a run would send and hold. Dry passes
 * find it from config.json alone. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/outputs.h"
#include "cli/pipelines.h"
#include "cli/print_report.h"
#include "cli/search_ways.h"
#include "cli/session.h"
#include "cli/training.h"
#include "cli/training_costs.h"

/* What was asked for, and what was found. */
typedef struct planning {
    const cli_args *args;
    dt_plan *plan; /* of --plan, or NULL */
    dt_prediction *found;
    const char *mesh;
    char default_mesh[CLI_DEFAULT_MESH];
} planning;

static void name_option(void *arg, const char *field, char text[DT_OPTION_NAME_BYTES])
{
    (void)arg;
    (void)snprintf(text, DT_OPTION_NAME_BYTES, "--%s", field);
}

static const dt_option_names names = { name_option, NULL };

/* What both kinds of plan are predicted with; o->load is set. `pipe`: of a training step alone. */
static dt_status read_options(const cli_console *console, planning *p, cli_pipeline *pipe,
                              dt_load_options *load, dt_predict_options *o)
{
    const cli_args *args = p->args;

    o->mesh = p->mesh;
    if (args->batch > 0) o->batch = args->batch;
    o->sequence = args->sequence;
    o->load = load;
    o->log = cli_log;
    o->log_arg = (void *)console;
    o->names = &names;
    DT_TRY(cli_read_dtype(args->dtype, load));
    DT_TRY(cli_read_plan(args, &p->plan, load));
    if (pipe != NULL) DT_TRY(cli_pipeline_read(args, o->mesh, pipe));
    DT_TRY(cli_load_stages(args, o->mesh, pipe != NULL ? pipe->schedule : NULL, load));
    DT_TRY(cli_check_dims(o->mesh, load));
    return DT_OK;
}

static dt_status predict(const cli_console *console, planning *p)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;

    const cli_training_words *w = &p->args->training;
    const char *of_step = p->args->recompute != NULL ? "recompute"
                          : p->args->chunk > 0       ? "chunk"
                          : w->optimizer != NULL     ? "optimizer"
                          : w->zero > 0              ? "zero"
                          : w->microbatches > 0      ? "microbatches"
                          : w->momentum != NULL      ? "momentum"
                          : w->nesterov              ? "nesterov"
                          : w->offload != NULL       ? "offload"
                          : w->bucket > 0            ? "bucket"
                          : w->no_masters            ? "no-masters"
                          : w->pipeline != NULL      ? "schedule"
                          : w->stages_per_rank > 0   ? "stages-per-rank"
                          : p->args->picture != NULL ? "picture"
                                                     : NULL;

    DT_CHECK(of_step == NULL, DT_ERR_ARG, "--%s is of a training step; give --train as well",
             of_step);
    DT_TRY(read_options(console, p, NULL, &load, &o));
    DT_TRY(dt_predict(p->args->registry, p->args->folder, &o, &p->found));
    return DT_OK;
}

/* All of it, freed with free(). */
static dt_status printed(const planning *p, bool json, char **out)
{
    const int n = dt_prediction_print(p->found, json, NULL, 0);

    DT_CHECK(n < INT32_MAX && (*out = malloc((size_t)n + 1)) != NULL, DT_ERR_MEMORY,
             "the result does not fit into memory");
    (void)dt_prediction_print(p->found, json, *out, (size_t)n + 1);
    return DT_OK;
}

/* --- as text ---------------------------------------------------------------------------------- */

static dt_status print_text(const planning *p)
{
    const dt_model *model = dt_prediction_model(p->found);
    const dt_model_info *info = dt_model_info_of(model);
    const dt_mesh *mesh = dt_model_mesh(model);
    const int64_t batch = dt_prediction_batch(p->found);
    const char *plan = p->args->plan;
    char number[DTI_NUMBER_BYTES], *text;

    DT_TRY(printed(p, false, &text));
    (void)printf("%s, %s parameters in %s, mesh %s of %d rank%s, %" PRId64 " sequence%s of %" PRId64
                 " tokens%s%s%s\n\n%s",
                 info->model_type, dti_count_text(cli_count_params(model), number),
                 dt_dtype_name(info->dtype), p->mesh, dt_mesh_n_ranks(mesh),
                 dt_mesh_n_ranks(mesh) == 1 ? "" : "s", batch, batch == 1 ? "" : "s",
                 dt_prediction_sequence(p->found), plan != NULL ? ", plan " : "",
                 plan != NULL ? plan : "", p->args->sequence_parallel ? ", tokens cut" : "", text);
    free(text);
    return DT_OK;
}

/* --- as JSON ---------------------------------------------------------------------------------- */

/* A rule that no file gave is one of the checkpoint's own plan. */
static void name_source(const planning *p, json_t *layers)
{
    json_t *layer;
    size_t i;

    json_array_foreach(layers, i, layer)
    {
        const char *from = json_string_value(json_object_get(layer, "from"));
        if (from != NULL && strcmp(from, "plan") == 0 && !cli_has_plan_file(p->args->plan))
            (void)json_object_set_new(layer, "from", json_string("checkpoint"));
    }
}

static dt_status print_json(const planning *p)
{
    const dt_model *model = dt_prediction_model(p->found);
    const dt_model_info *info = dt_model_info_of(model);
    char folder[DT_ERROR_MESSAGE_BYTES]; /* names of files need not be UTF-8, JSON has to be */
    json_t *head, *rest;
    char *text;

    DT_TRY(printed(p, true, &text));
    rest = json_loads(text, 0, NULL);
    free(text);
    name_source(p, json_object_get(rest, "layout"));
    name_source(p, json_object_get(rest, "points"));
    head = json_pack("{s:s, s:s, s:s, s:s, s:s?, s:b, s:I, s:I, s:I}", "model",
                     dti_printable(p->args->folder, folder, sizeof folder), "model_type",
                     info->model_type, "dtype", dt_dtype_name(info->dtype), "mesh", p->mesh, "plan",
                     p->args->plan, "sequence_parallel", (int)p->args->sequence_parallel,
                     "parameters", (json_int_t)cli_count_params(model), "batch",
                     (json_int_t)dt_prediction_batch(p->found), "sequence",
                     (json_int_t)dt_prediction_sequence(p->found));
    if (head == NULL || rest == NULL || json_object_update(head, rest) != 0) {
        json_decref(head);
        json_decref(rest);
        DT_FAIL(DT_ERR_MEMORY,
                "the result cannot be written as JSON: memory, or a name that is not UTF-8");
    }
    json_decref(rest);
    DT_TRY(cli_put_json(head, JSON_INDENT(1)));
    return DT_OK;
}

/* --- a training step -------------------------------------------------------------------------- */

/* Gradients alone, unless an optimizer is named. */
static dt_status show_training(const cli_console *console, planning *p)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options loss = DT_LOSS_OPTIONS_INIT;
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;
    const cli_training_words *w = &p->args->training;
    const char *of_one = w->zero > 0 && w->zero < 3 ? "zero"
                         : w->offload != NULL       ? "offload"
                         : w->no_masters            ? "no-masters"
                         : w->momentum != NULL      ? "momentum"
                                                    : NULL;
    cli_costs costs = { .args = p->args,
                        .predict = &o,
                        .step = DT_STEP_OPTIONS_INIT,
                        .failed_output = console->failed_output };
    cli_pipeline pipe = { 0 };
    dt_status st = DT_OK;

    DT_CHECK(w->optimizer != NULL || of_one == NULL, DT_ERR_ARG,
             "--%s is of an optimizer; name it: --optimizer adamw", of_one);
    DT_TRY(cli_check_trained(p->args));
    loss.chunk = p->args->chunk;
    DT_TRY(cli_read_recompute(p->args->recompute, &loss.recompute));
    DT_TRY(cli_optimizer_read(p->args, &optimizer));
    if (p->args->picture != NULL) DT_TRY(cli_check_place("--picture", p->args->picture, p->args));
    DT_TRY_TO(done, st, read_options(console, p, &pipe, &load, &o));
    DT_TRY_TO(done, st, cli_load_zero(p->args, o.mesh, &load));
    DT_CHECK_TO(done, st, p->args->picture == NULL || pipe.schedule != NULL, DT_ERR_ARG,
                "--picture is of a pipeline, and --mesh %s has no dim \"pp\"", o.mesh);
    costs.step.loss = &loss;
    costs.step.microbatches = pipe.microbatches;
    costs.step.schedule = pipe.schedule;
    if (p->args->batch == 0) o.batch = dti_max(o.batch, pipe.microbatches);
    if (w->optimizer != NULL || pipe.schedule != NULL) costs.step.optimizer = &optimizer;
    DT_TRY_TO(done, st, cli_costs_print(&costs));
done:
    dt_pipeline_schedule_release(&pipe.schedule);
    return st;
}

/* --- the command ------------------------------------------------------------------------------ */

static dt_status show_plan(const cli_args *args, const cli_env *env, const cli_console *console)
{
    planning p = { .args = args };
    dt_status st = DT_OK;

    (void)env;
    p.mesh = cli_mesh_of(args, p.default_mesh);
    DT_CHECK(args->folder != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder with a config.json");
    DT_TRY(cli_check_model(args));
    DT_TRY(cli_check_auto(args));
    if (args->automatic) return cli_search_ways(args, console);
    if (args->train) {
        DT_TRY_TO(done, st, show_training(console, &p));
    } else {
        DT_TRY_TO(done, st, predict(console, &p));
        DT_TRY_TO(done, st, args->json ? print_json(&p) : print_text(&p));
    }
    DT_TRY_TO(done, st, cli_flush());
done:
    dt_prediction_release(&p.found);
    dt_plan_release(&p.plan);
    return st;
}

const cli_command cli_show_plan = {
    .name = "plan",
    .bit = CLI_PLAN,
    .usage = "--model DIR --mesh MESH [OPTION]...",
    .summary = "shows how a model would lie on a mesh, and what a run would send and hold",
    .details =
        "Needs the folder's config.json and no weights; the mesh may have up to 1048576 ranks. "
        "For\n"
        "every parameter its style, placement and the piece of rank 0; for every layer its\n"
        "collectives, with the bytes that rank 0 receives in the pass over a prompt of --sequence\n"
        "tokens and in a step of one token; for every rank the bytes of weights, of caches for\n"
        "that many tokens and of temporaries, without the scratch memory of kernels. Ranks that\n"
        "hold and receive the same are one line. A plan that cannot work is refused. With --train\n"
        "a training step instead: weights, f32 gradients, what is kept for the way back, the most\n"
        "that is held, operations and collectives of forward, backward and of the gradients' own\n"
        "reductions, or of the step of an --optimizer, rank by rank.\n"
        "With --auto --train --machine NAME it looks for the mesh, the stage of ZeRO, the "
        "schedule,\n"
        "microbatches and recomputation that take the least time on a machine that need not be at\n"
        "hand, and says which number rejects every other way; \"options\" of --json is a file for\n"
        "dtensor train --options. 2 is returned where the model fits in no way.",
    .run = show_plan,
};
