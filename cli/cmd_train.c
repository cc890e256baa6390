/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor train: a model, a text, a folder for what comes of it. */
#include <dtensor/devices.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/numbers.h"
#include "cli/option_file.h"
#include "cli/outputs.h"
#include "cli/train.h"
#include "cli/training_costs.h"

/* What a run adds to its disk: checkpoints to keep, one more while the next is written, exports. */
static dt_status check_space(const cli_session *s, const cli_training *plan)
{
    const int64_t weights = s->n_params * (int64_t)dt_dtype_size(s->dtype);
    const int64_t state = plan->optimizer.rule == DT_ADAMW ? 8
                          : plan->optimizer.momentum > 0   ? 4
                                                           : 0;
    const int64_t masters = s->dtype != DT_F32 && plan->optimizer.masters ? 4 : 0;
    const int64_t every = plan->save_every > 0 ? plan->save_every : plan->steps;
    const int64_t saves = dti_min(plan->keep + 1, (plan->steps - 1) / every + 1);
    const int64_t more = dti_max(saves - cli_run_count_steps(plan->args->output), 1);
    const int64_t models = plan->args->training.exports ? more : 1;
    char what[96];

    (void)snprintf(what, sizeof what, "%" PRId64 " checkpoint%s and %" PRId64 " model%s", more,
                   more == 1 ? "" : "s", models, models == 1 ? "" : "s");
    DT_TRY(cli_run_check_space(plan->args->output,
                               (double)(weights + s->n_params * (state + masters)) * (double)more +
                                   (double)weights * (double)models,
                               what));
    return DT_OK;
}

/* Neither the file of --trace nor those of the run take the place of what is read. */
static dt_status check_outputs(const cli_args *args)
{
    static const char *const names[] = { CLI_METRICS, CLI_RUN_PLAN, CLI_RUN_TRACE };
    char path[CLI_PATH_BYTES];

    DT_TRY(cli_check_apart(args));
    if (args->training.trace != NULL)
        DT_TRY(cli_check_place("--trace", args->training.trace, args));
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        DT_TRY(cli_run_path(args->output, names[i], path));
        DT_TRY(cli_check_unread("--output", path, args));
    }
    return DT_OK;
}

/* The run keeps what --plan says: its file may be another, or gone, when the run goes on. */
static dt_status keep_plan(const cli_session *s, const cli_args *args, json_t *options)
{
    json_t *plan = args->plan_text != NULL ? json_loads(args->plan_text, 0, NULL) : NULL;
    json_t *file = NULL;
    dt_status st = cli_check_file(args->plan);

    if (st == DT_OK) st = cli_read_json(args->plan, &file);
    if (st == DT_OK && json_object_get(file, "verdicts") != NULL) { /* a plan that was found */
        json_t *styles = json_incref(json_object_get(file, "styles"));
        json_decref(file);
        file = styles;
    }
    if (plan == NULL) {
        if (st != DT_OK) dti_error_prefix("--plan, which the run keeps");
        DT_TRY(st);
        plan = json_incref(file);
    }
    if (file != NULL && !json_equal(plan, file)) {
        char line[DT_ERROR_MESSAGE_BYTES];
        (void)snprintf(line, sizeof line,
                       "--plan: %.400s is another than the run began with, and goes on with; "
                       "--plan FILE takes the new one",
                       args->plan);
        cli_warn(s->console, line);
    }
    json_decref(file);
    DT_CHECK(json_object_set_new(options, CLI_PLAN_CONTENT, plan) == 0, DT_ERR_MEMORY,
             "the plan does not fit into memory");
    return DT_OK;
}

/* Looks at everything that can be wrong before anything is made; `args`: as they were said. */
static dt_status check(cli_run_of *run, cli_session *s, cli_training *plan, const cli_args *args)
{
    dt_status st;

    DT_TRY(cli_check_saved(s));
    DT_TRY(cli_check_trained(plan->args));
    DT_TRY(cli_training_settle(s, plan));
    if (plan->pipeline.schedule != NULL)
        DT_TRY(dt_model_check_dry(s->args->registry, s->args->folder, s->mesh, &s->load));
    if (args->training.dry_run) return DT_OK;
    DT_CHECK(args->output != NULL, DT_ERR_ARG, "no folder for the run; give --output RUN");
    if (s->console->process > 0) return DT_OK;
    DT_TRY(cli_run_check(args->output, args->training.resume));
    if (!args->training.resume) DT_TRY(cli_check_output("--output", args->output, plan->args));
    DT_TRY(check_outputs(plan->args));
    st = dt_save_check(plan->args->folder, NULL, s->dtype); /* what each export takes with it */
    if (st != DT_OK) dti_error_prefix("--model");
    DT_TRY(st);
    DT_TRY(cli_check_offload("--offload", args->training.offload));
    DT_TRY(cli_check_offload("--offload-parameters", args->offload));
    DT_TRY(check_space(s, plan));
    DT_TRY(cli_options_json(&cli_train, args, &run->options));
    if (s->plan != NULL) DT_TRY(keep_plan(s, args, run->options));
    run->new_folder = access(run->folder, F_OK) != 0;
    return DT_OK;
}

/* Where a run's tensors would lie. */
static const char *device_of(const cli_args *args)
{
    if (args->device != NULL && strcmp(args->device, "auto") != 0) return args->device;
    return dt_device_check("cuda") == DT_OK ? "cuda" : "cpu";
}

/* What a step of this run is, for a prediction; borrows from both. */
static cli_costs costs_of(const cli_session *s, const cli_training *plan, dt_predict_options *o)
{
    cli_costs costs = { .args = plan->args, .predict = o, .step = DT_STEP_OPTIONS_INIT };

    o->mesh = s->mesh;
    o->batch = plan->batch;
    o->sequence = plan->sequence;
    o->load = &s->load;
    o->device = device_of(plan->args);
    costs.step.loss = &plan->loss;
    costs.step.optimizer = &plan->optimizer;
    costs.step.microbatches = plan->pipeline.microbatches;
    costs.step.schedule = plan->pipeline.schedule;
    return costs;
}

/* What the first process makes before there are ranks. */
static dt_status begin(cli_run_of *run)
{
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    cli_costs costs = costs_of(run->session, run->plan, &o);

    DT_TRY(cli_train_data(run));
    if (run->session->console->process > 0) return DT_OK;
    DT_TRY(cli_costs_json(&costs, &run->costs));
    return DT_OK;
}

static dt_status train(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_args own = *args;
    cli_session session = { 0 };
    cli_training plan = { 0 };
    cli_run_of run = { .session = &session, .plan = &plan, .folder = args->output };
    dt_predict_options predict = DT_PREDICT_OPTIONS_INIT;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, cli_training_read(&own, &plan));
    DT_TRY_TO(done, st, cli_session_open(&own, env, console, &session));
    session.seed = plan.seed;
    DT_TRY_TO(done, st, check(&run, &session, &plan, args));
    if (args->training.dry_run) {
        cli_costs costs = costs_of(&session, &plan, &predict);
        if (console->process == 0) st = cli_costs_print(&costs);
        goto done;
    }
    DT_TRY_TO(done, st, begin(&run));
    st = cli_session_run(&session, cli_train_on_rank, &run);
    /* what is wrong with options was found before: a disk that is full, numbers that are none */
    if (st != DT_OK && st != DT_ERR_MEMORY && st != DT_ERR_COMM && atomic_load(&run.began))
        *console->failed_output = true;
    DT_TRY_TO(done, st, st);
    if (console->process == 0) DT_TRY_TO(done, st, cli_show_end(&run));
done:
    if (st != DT_OK && console->process == 0 && !atomic_load(&run.holds)) cli_train_data_undo(&run);
    json_decref(run.options);
    json_decref(run.costs);
    cli_train_data_free(&run);
    cli_training_free(&plan);
    cli_session_close(&session);
    return st;
}

const cli_command cli_train = {
    .name = "train",
    .bit = CLI_TRAIN,
    .usage = "(--model DIR | --config FILE) --data FILE... --output RUN --steps N [OPTION]...",
    .runs = true,
    .summary = "trains a model on a text or on files of tokens",
    .details =
        "Trains the model of a Hugging Face folder, or one that begins at random by its\n"
        "config.json, on any mesh: batches are cut over dp, weights over tp, and --zero cuts what\n"
        "copies of a weight hold alike. RUN gets metrics.jsonl, an object per step; checkpoints,\n"
        "from which --resume goes on, on whatever mesh, with the data it began with; and the\n"
        "model as a Hugging Face folder, RUN/model. Ctrl-C, SIGTERM and SIGHUP end the run after\n"
        "the step, and save it. Options may stand in a JSON file (--options), and those of a run\n"
        "that goes on need not be said again.",
    .run = train,
};
