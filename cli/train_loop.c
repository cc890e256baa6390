/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of a run on one rank: from the newest checkpoint, if there is one, to the last step, or
 * to the one after which somebody asks for its end. */
#include <dirent.h>
#include <dtensor/timeline.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/numbers.h"
#include "cli/expert_report.h"
#include "cli/interrupts.h"
#include "cli/option_file.h"
#include "cli/outputs.h"
#include "cli/train.h"

enum {
    TRACED = 3, /* the first steps make what later ones use again */
    NAME_BYTES = 40
};

/* --- open ------------------------------------------------------------------------------------- */

static dt_status open_data(cli_trainer *t)
{
    const cli_training *plan = t->run->plan;
    dt_data_options how = plan->data;

    DT_TRY(dt_data_open(t->run->sources, plan->n_sources, &how, &t->data));
    if (t->run->validation.path == NULL) return DT_OK;
    how.order = DT_ORDER_STORED;
    DT_TRY(dt_data_open(&t->run->validation, 1, &how, &t->validation));
    return DT_OK;
}

/* A run of which there is no checkpoint begins anew, and so do its metrics. */
static void warn_of_beginning(const cli_trainer *t)
{
    char path[CLI_PATH_BYTES], line[DT_ERROR_MESSAGE_BYTES];
    struct stat about;

    if (cli_run_path(t->run->folder, CLI_METRICS, path) != DT_OK || stat(path, &about) != 0 ||
        about.st_size == 0)
        return;
    (void)snprintf(line, sizeof line,
                   "%.500s holds no checkpoint: the run begins anew, and so does " CLI_METRICS,
                   t->run->folder);
    cli_warn(t->run->session->console, line);
}

/* What does not fit into memory is not copied there either: a save is from where it lies. */
static bool is_folder(const char *offload)
{
    return offload != NULL && strcmp(offload, "host") != 0;
}

/* Goes on from the newest checkpoint. A run that was ended before its first one begins anew. */
static dt_status open_folder(cli_trainer *t)
{
    dt_run_folder_options how = DT_RUN_FOLDER_OPTIONS_INIT;
    const cli_args *args = t->run->plan->args;
    const char *kept;
    bool other;

    how.mode = args->training.resume ? DT_RUN_FOLDER_CONTINUE : DT_RUN_FOLDER_NEW;
    how.keep = (int)t->run->plan->keep;
    how.direct = is_folder(args->offload) || is_folder(args->training.offload);
    DT_TRY(dt_run_folder_open(t->mesh, t->run->folder, &how, &t->folder));
    t->at.seed = t->run->plan->seed;
    t->facts = cli_train_facts(t->run->plan, t->data);
    DT_CHECK(t->facts != NULL, DT_ERR_MEMORY, "what is said of the data does not fit into memory");
    if (dt_run_folder_latest(t->folder) < 0) {
        if (t->speaks) warn_of_beginning(t);
        return DT_OK;
    }
    DT_TRY(dt_run_folder_peek(t->folder, -1, &t->at, &kept));
    DT_TRY(cli_train_compare(t, kept, t->at.samples, &other));
    DT_TRY(
        dt_run_folder_load(t->folder, NULL, dt_model_layers(t->model), t->optimizer, &t->at, NULL));
    if (other) t->at.samples = 0;
    return DT_OK;
}

/* How the run was begun, or goes on: one that has nothing to do leaves them as they are. */
static dt_status write_options(cli_run_of *run)
{
    char path[CLI_PATH_BYTES];

    DT_TRY(cli_run_path(run->folder, CLI_RUN_PLAN, path));
    DT_TRY(cli_write_json(path, json_incref(run->costs)));
    DT_TRY(cli_run_path(run->folder, CLI_RUN_OPTIONS, path));
    DT_TRY(cli_write_json(path, json_incref(run->options)));
    return DT_OK;
}

static dt_status open_all(cli_trainer *t)
{
    DT_TRY(dt_tape_create(dt_mesh_runtime(t->mesh), &t->tape));
    DT_TRY(dt_optimizer_create(dt_model_layers(t->model), &t->run->plan->optimizer, &t->optimizer));
    DT_TRY(cli_loads_begin(t->model));
    DT_TRY(cli_train_pipeline(t));
    DT_TRY(open_data(t));
    DT_TRY(open_folder(t));
    t->begun_at = t->at.step;
    if (t->speaks) {
        atomic_store(&t->run->holds, true);
        cli_run_sweep(t->run->folder);
        if (t->at.step < t->run->plan->steps) DT_TRY(write_options(t->run));
        t->run->begun_at = t->at.step;
        t->run->last = (cli_metric){ .step = t->at.step,
                                     .loss = NAN,
                                     .grad_norm = NAN,
                                     .seconds = NAN,
                                     .validation_loss = NAN,
                                     .tokens = t->at.tokens };
        DT_TRY(cli_metrics_open(t->run->folder, t->at.step, &t->run->last, &t->run->metrics));
    }
    return DT_OK;
}

static void close_all(cli_trainer *t)
{
    if (t->speaks) cli_metrics_close(&t->run->metrics);
    free(t->facts);
    dt_run_folder_release(&t->folder);
    dt_data_release(&t->validation);
    dt_data_release(&t->data);
    dt_tape_release(&t->tape);
    dt_pipeline_release(&t->pipeline);
    dt_optimizer_release(&t->optimizer);
}

/* --- save ------------------------------------------------------------------------------------- */

/* Whether it is a model's file, or what a killed export left of one. */
static bool is_of_export(const char *name)
{
    const size_t n = strlen(name);
    char whole[NAME_MAX + 1];

    if (n < 4 || n > NAME_MAX || strcmp(name + n - 4, ".tmp") != 0) return cli_is_of_model(name);
    (void)snprintf(whole, sizeof whole, "%.*s", (int)n - 4, name);
    return cli_is_of_model(whole);
}

/* A folder that an earlier export made under the name: what is not of a model stays, and so does a
 * link, which leads to somebody else's. */
static void remove_export(const char *path)
{
    const int at = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = at >= 0 ? fdopendir(at) : NULL;
    const struct dirent *item;

    while (folder != NULL && (item = readdir(folder)) != NULL)
        if (is_of_export(item->d_name)) (void)unlinkat(dirfd(folder), item->d_name, 0);
    if (folder != NULL) (void)closedir(folder);
    if (folder == NULL && at >= 0) (void)close(at);
    (void)rmdir(path);
}

/* Exports of the run that are newer than one of step `after`, which goes if there are as many as
 * are kept; after -1 all are looked at so. */
static int64_t remove_old_exports(const cli_trainer *t, int64_t after)
{
    const char *run = t->run->folder;
    DIR *folder = opendir(run);
    const struct dirent *item;
    char path[CLI_PATH_BYTES];
    int64_t step, n = 0;

    while (folder != NULL && (item = readdir(folder)) != NULL) {
        step = cli_run_export_step(item->d_name);
        if (step <= after || step > t->at.step) continue;
        n++;
        if (after < 0 && remove_old_exports(t, step) >= t->run->plan->keep &&
            cli_run_path(run, item->d_name, path) == DT_OK)
            remove_export(path);
    }
    if (folder != NULL) (void)closedir(folder);
    return n;
}

/* A number that any rank has, on all ranks at once, as a signal that its process has got; 0: none
 * has. */
static dt_status hear(cli_trainer *t, int32_t mine, int *number)
{
    const int n = dt_mesh_n_ranks(t->mesh);
    dt_status st = DT_OK;
    int32_t *all = NULL;

    *number = 0;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, cli_gather(t->mesh, &mine, sizeof mine, all));
    for (int r = 0; r < n; r++)
        if (all[r] != 0) *number = all[r];
done:
    dti_free(all);
    return st;
}

/* Whether the newest step's loss was no number: of f16 that is an activation that overflows, and no
 * parameter need be infinite. A step may be so and the next one not; a model is of no use then. */
static dt_status has_diverged(cli_trainer *t, int *diverged)
{
    const cli_metric *last = &t->run->last;

    DT_TRY(hear(t,
                t->speaks && isfinite(last->seconds) && !isfinite(last->loss) &&
                    last->grad_norm != 0, /* 0: a step without a target has no loss either */
                diverged));
    DT_CHECK(!*diverged || t->at.step < t->run->plan->steps, DT_ERR_ARG,
             "the model is not written after step %" PRId64 ": its loss is no number; too large a "
             "rate is the usual cause (--lr, --warmup)",
             t->at.step);
    return DT_OK;
}

/* The parameters as a Hugging Face folder, which RUN/model leads to. The step's save comes first:
 * it knows whether the folder is still there that was opened. */
static dt_status export_model(cli_trainer *t)
{
    dt_save_options how = DT_SAVE_OPTIONS_INIT;
    char name[NAME_BYTES], path[CLI_PATH_BYTES];
    struct stat there;
    int diverged;
    dt_status st;

    DT_CHECK(t->has_learned || t->at.step == t->begun_at, DT_ERR_ARG,
             "the model is not written after step %" PRId64 ": no step had a token to learn, all "
             "that --data gave are masked",
             t->at.step);
    DT_TRY(has_diverged(t, &diverged));
    if (diverged) return DT_OK;
    DT_TRY(dt_run_folder_wait(t->folder));
    how.finite = true;
    (void)snprintf(name, sizeof name, CLI_RUN_MODEL "-%08" PRId64, t->at.step);
    DT_TRY(cli_run_path(t->run->folder, name, path));
    if (t->speaks) remove_export(path);
    DT_CHECK(!t->speaks || lstat(path, &there) != 0 || !S_ISLNK(there.st_mode), DT_ERR_IO,
             "%s: is a link, and the model is not written to where it leads; remove it, and resume",
             path);
    DT_TRY(dt_barrier(t->mesh, NULL));
    st = dt_model_save(t->model, path, &how);
    if (st == DT_ERR_ARG)
        dti_error_prefix("the model is not written after step %" PRId64, t->at.step);
    DT_TRY(st);
    if (!t->speaks) return DT_OK;
    DT_TRY(cli_run_point(t->run->folder, name));
    (void)remove_old_exports(t, -1);
    (void)snprintf(t->run->model, sizeof t->run->model, "%s", name);
    return DT_OK;
}

/* `ends`: no step comes after it. */
static dt_status save(cli_trainer *t, bool ends)
{
    const cli_training *plan = t->run->plan;
    const bool due = plan->save_every > 0 && t->at.step % plan->save_every == 0;

    if (!due && !ends) return DT_OK;
    DT_TRY(
        dt_run_folder_save(t->folder, dt_model_layers(t->model), t->optimizer, &t->at, t->facts));
    if (t->at.step == plan->steps || (due && plan->args->training.exports)) DT_TRY(export_model(t));
    if (ends) DT_TRY(dt_run_folder_wait(t->folder));
    return DT_OK;
}

/* --- the loop --------------------------------------------------------------------------------- */

/* What the step was in time, to the run's own file and to that of --trace. */
static dt_status write_trace(cli_trainer *t)
{
    const char *wanted = t->run->plan->args->training.trace;
    dt_runtime *rt = dt_mesh_runtime(t->mesh);
    char path[CLI_PATH_BYTES];

    dt_timeline_stop(rt);
    DT_TRY(cli_run_path(t->run->folder, CLI_RUN_TRACE, path));
    DT_TRY(dt_timeline_write(rt, path));
    if (wanted != NULL) DT_TRY(dt_timeline_write(rt, wanted));
    return DT_OK;
}

static dt_status step(cli_trainer *t)
{
    const cli_training *plan = t->run->plan;
    const int64_t number = t->at.step + 1, every = plan->validate_every;
    const bool traced = number == dti_min(t->begun_at + TRACED, plan->steps);
    dt_expert_load of_validation;
    cli_metric metric;

    if (traced) dt_timeline_start(dt_mesh_runtime(t->mesh));
    DT_TRY(cli_train_step(t, &metric));
    if (traced) DT_TRY(write_trace(t));
    DT_TRY(dt_run_folder_check(t->folder));
    if (t->validation != NULL &&
        (t->at.step == plan->steps || (every > 0 && t->at.step % every == 0))) {
        DT_TRY(cli_train_validate(t, &metric.validation_loss));
        DT_TRY(cli_loads_sum(t->model, &of_validation)); /* and not of the next step */
    }
    if (!t->speaks) return DT_OK;
    t->run->last = metric;
    DT_TRY(cli_metrics_add(t->run->metrics, &metric));
    cli_show_step(t->run, &metric);
    return DT_OK;
}

/* The model of a run that was at its end already, unless RUN/model leads to it: a disk may have
 * been full, or somebody has removed it. */
static dt_status export_missing(cli_trainer *t)
{
    char name[NAME_BYTES], found[NAME_BYTES] = "", path[CLI_PATH_BYTES];
    int missing = 0;

    if (t->speaks) {
        (void)snprintf(name, sizeof name, CLI_RUN_MODEL "-%08" PRId64, t->at.step);
        DT_TRY(cli_run_path(t->run->folder, CLI_RUN_MODEL, path));
        missing = readlink(path, found, sizeof found - 1) < 0 || strcmp(found, name) != 0;
        DT_TRY(cli_run_path(t->run->folder, CLI_RUN_MODEL "/config.json", path));
        missing = missing || access(path, R_OK) != 0;
    }
    DT_TRY(hear(t, missing, &missing));
    if (missing) DT_TRY(export_model(t));
    return DT_OK;
}

static dt_status train(cli_trainer *t)
{
    const int64_t steps = t->run->plan->steps;
    int number = 0;

    while (t->at.step < steps && number == 0) {
        DT_TRY(step(t));
        DT_TRY(hear(t, cli_interrupted(), &number));
        DT_TRY(save(t, number != 0 || t->at.step == steps));
    }
    if (t->begun_at == steps) DT_TRY(export_missing(t));
    if (t->speaks && t->at.step < steps) t->run->signal = number;
    return DT_OK;
}

dt_status cli_train_on_rank(void *arg, dt_model *model, bool speaks)
{
    cli_trainer t = { .run = arg, .model = model, .mesh = dt_model_mesh(model), .speaks = speaks };
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, cli_interrupts_catch(true)); /* until here a signal ended the program */
    DT_TRY_TO(done, st, open_all(&t));
    if (t.at.step < t.run->plan->steps) DT_TRY_TO(done, st, cli_train_measure(&t));
    if (speaks) t.run->begin_ns = cli_now_ns();
    if (speaks && t.at.step < t.run->plan->steps) cli_show_begin(t.run);
    atomic_store(&t.run->began, true);
    DT_TRY_TO(done, st, train(&t));
done:
    close_all(&t);
    return st;
}
