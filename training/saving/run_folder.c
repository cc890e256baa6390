/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a folder of checkpoints, and saving into it. */
#include "training/saving/run_folder.h"

#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "base/writer.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "mesh/runtime.h"
#include "parallel_styles/layer_rules.h"
#include "training/optimizer.h"

enum { LOOK_NS = 20 * 1000 * 1000 };

static const dti_live folders = { "folder of checkpoints", "folders of checkpoints" };

/* --- opening ---------------------------------------------------------------------------------- */

static dt_status check_mode(const dt_run_folder *run, dt_run_folder_mode mode)
{
    char label[DTI_INPUT_LABEL_BYTES], steps[200];

    (void)dti_printable(run->dir, label, sizeof label);
    DT_CHECK(mode != DT_RUN_FOLDER_NEW || run->disk.latest < 0, DT_ERR_ARG,
             "%s: holds a run already (%s); resume it, or choose another folder", label,
             dti_run_disk_steps(run->dir, steps, sizeof steps));
    DT_CHECK((mode != DT_RUN_FOLDER_RESUME && mode != DT_RUN_FOLDER_READ) || run->disk.latest >= 0,
             DT_ERR_ARG, "%s: holds no checkpoint to go on from", label);
    return DT_OK;
}

static dt_status open_disk(dt_run_folder *run, dt_run_folder_mode mode)
{
    char label[DTI_INPUT_LABEL_BYTES];

    DT_TRY(dti_run_disk_open(&run->disk, run->dir, !run->reads));
    if (run->disk.n_swept > 0)
        dti_runtime_log(run->rt, DT_LOG_WARNING, "%s: removed %zu checkpoint%s that %s cut off",
                        dti_printable(run->dir, label, sizeof label), run->disk.n_swept,
                        run->disk.n_swept == 1 ? "" : "s", run->disk.n_swept == 1 ? "was" : "were");
    DT_TRY(check_mode(run, mode));
    return DT_OK;
}

static dt_status share_latest(dt_run_folder *run)
{
    dti_comm *comm;

    run->latest = run->disk.latest;
    DT_TRY(dti_mesh_comm(run->mesh, (1u << dt_mesh_n_dims(run->mesh)) - 1, &comm));
    DT_TRY(dti_broadcast(comm, &run->latest, 1, DT_I64, 0));
    return DT_OK;
}

static dt_status keep_facts(dt_run_folder *run, const dt_run_folder_options *o)
{
    for (int i = 0; i < o->n_facts; i++) {
        const char *what = o->facts[i].what, *value = o->facts[i].value;
        DT_CHECK(what != NULL, DT_ERR_ARG, "facts[%d].what is NULL", i);
        DT_TRY(dti_facts_say(&run->facts, what, value != NULL ? value : ""));
    }
    return DT_OK;
}

/* "dp=2,tp=2" */
static void name_mesh(dt_run_folder *run)
{
    dti_writer w = { run->mesh_text, sizeof run->mesh_text, 0 };

    for (int m = 0; m < dt_mesh_n_dims(run->mesh); m++)
        dti_put(&w, "%s%s=%d", m > 0 ? "," : "", dt_mesh_dim_name(run->mesh, m),
                dt_mesh_dim_size(run->mesh, m));
}

static dt_status check_options(const dt_mesh *mesh, const dt_run_folder_options *o)
{
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(mesh)), DT_ERR_ARG,
             "a dry mesh has nothing to save");
    DT_CHECK((unsigned)o->mode <= DT_RUN_FOLDER_READ, DT_ERR_ARG, "mode is %d", (int)o->mode);
    DT_CHECK(o->keep >= 0, DT_ERR_ARG, "keep is %d, must be at least 1, or 0 for all", o->keep);
    DT_CHECK(o->n_facts >= 0 && (o->facts != NULL || o->n_facts == 0), DT_ERR_ARG,
             "%d facts, in %s", o->n_facts, o->facts != NULL ? "a list" : "no list");
    return DT_OK;
}

static void free_run(dt_run_folder *run)
{
    dti_behind_close(&run->behind);
    if (run->first) dti_run_disk_close(&run->disk);
    dti_rank_files_free(&run->files);
    dti_snapshot_free(&run->snapshot);
    dti_manifest_free(&run->loaded);
    dti_facts_free(&run->facts);
    dti_facts_free(&run->head.model);
    dti_free(run->json);
    dti_free(run->step_dir);
    dti_free(run->dir);
    dt_mesh_release(&run->mesh);
    dti_free(run);
}

dt_status dt_run_folder_open(dt_mesh *mesh, const char *dir, const dt_run_folder_options *options,
                             dt_run_folder **out)
{
    dt_run_folder_options o = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_run_folder *run = NULL;
    dt_status st = DT_OK;

    DT_CHECK(mesh != NULL && dir != NULL && dir[0] != '\0' && out != NULL, DT_ERR_ARG,
             "mesh, dir or out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_run_folder_options", "start from DT_RUN_FOLDER_OPTIONS_INIT",
                            options, &o, sizeof o));
    DT_TRY(check_options(mesh, &o));
    if (!dt_mesh_is_member(mesh)) return DT_OK;
    DT_TRY(dti_new(sizeof *run, &run));
    run->mesh = dt_mesh_retain(mesh);
    run->rt = dt_mesh_runtime(mesh);
    run->first = dti_mesh_place(mesh) == 0;
    run->reads = o.mode == DT_RUN_FOLDER_READ;
    run->keep = o.keep;
    run->direct = o.direct;
    run->disk.lock = -1;
    name_mesh(run);
    DT_TRY_TO(fail, st, dti_strdup(dir, &run->dir));
    DT_TRY_TO(fail, st, keep_facts(run, &o));
    DT_TRY_TO(fail, st, dti_behind_create(run->rt, &run->behind));
    DT_TRY_TO(fail, st, dti_first_says(mesh, run->first ? open_disk(run, o.mode) : DT_OK));
    DT_TRY_TO(fail, st, share_latest(run));
    dti_runtime_count(run->rt, &folders, 1);
    *out = run;
    return DT_OK;

fail:
    free_run(run);
    return st;
}

void dt_run_folder_release(dt_run_folder **folder)
{
    dt_run_folder *run = folder != NULL ? *folder : NULL;
    dt_runtime *rt;

    if (run == NULL) return;
    *folder = NULL;
    rt = run->rt;
    if (run->phase != DTI_SAVE_NONE && !dti_runtime_has_ended(rt) &&
        dt_run_folder_wait(run) != DT_OK)
        dti_runtime_log(rt, DT_LOG_WARNING, "%s", dt_last_error()->message);
    free_run(run);
    dti_runtime_count(rt, &folders, -1);
}

int64_t dt_run_folder_latest(const dt_run_folder *run)
{
    return run != NULL ? run->latest : -1;
}

/* --- a save begins ---------------------------------------------------------------------------- */

dt_status dti_run_list(dti_snapshot *s, dt_layers *layers, dt_optimizer *optimizer, bool wanted)
{
    DT_CHECK(optimizer == NULL || optimizer->layers == layers, DT_ERR_ARG,
             "the optimizer is of other layers than those given with it");
    DT_TRY(dti_snapshot_list(s, layers, wanted));
    if (optimizer != NULL) DT_TRY(dti_snapshot_list_state(s, optimizer, wanted));
    return DT_OK;
}

static dt_status prepare(dt_run_folder *run, dt_layers *layers, dt_optimizer *optimizer,
                         const dt_run_progress *progress, const char *json)
{
    run->head = (dti_manifest_head){
        .progress = *progress,
        .has_state = optimizer != NULL,
        .mesh = run->mesh_text,
        .facts = run->facts,
    };
    DT_CHECK(dt_mesh_equal(dt_layers_mesh(layers), run->mesh), DT_ERR_ARG,
             "the layers lie on another mesh than the run's folder was opened on");
    if (optimizer != NULL) DT_TRY(dti_state_take_back(optimizer));
    if (optimizer != NULL) {
        run->head.steps = dt_optimizer_steps(optimizer);
        run->head.good_steps = dt_optimizer_good_steps(optimizer);
        run->head.loss_scale = dt_optimizer_loss_scale(optimizer);
    }
    DT_TRY(dti_strdup(json != NULL ? json : "{}", &run->json));
    run->head.json = run->json;
    DT_TRY(dti_facts_copy(dti_layers_facts(layers), &run->head.model)); /* may end before */
    DT_TRY(dti_run_list(&run->snapshot, layers, optimizer, false));
    DT_TRY(dti_snapshot_divide(&run->snapshot, run->mesh));
    DT_TRY(dti_run_disk_step(run->dir, progress->step, false, &run->step_dir));
    DT_TRY(
        dti_rank_files_plan(&run->files, &run->snapshot, dti_mesh_place(run->mesh), run->step_dir));
    return DT_OK;
}

/* Forgets the save; the memory of its copy stays for the next. */
static void forget(dt_run_folder *run)
{
    dti_rank_files_clear(&run->files);
    dti_snapshot_free(&run->snapshot);
    dti_facts_free(&run->head.model);
    dti_free(run->json);
    dti_free(run->step_dir);
    run->json = run->step_dir = NULL;
    run->phase = DTI_SAVE_NONE;
}

static dt_status write_files(void *arg, const atomic_bool *cancelled)
{
    dt_run_folder *run = arg;

    DT_TRY(dti_rank_files_write(&run->files, cancelled));
    return DT_OK;
}

/* Nobody writes any more: what was made goes, before any rank says that it has failed. */
static dt_status give_up(dt_run_folder *run, dt_status st)
{
    dt_error why;

    dti_error_prefix("step %lld was not saved", (long long)run->head.progress.step);
    why = *dt_last_error();
    if (run->first) dti_run_disk_abandon(&run->disk, run->head.progress.step);
    forget(run);
    if (st != DT_ERR_COMM && dti_first_says(run->mesh, DT_OK) != DT_OK) return DT_ERR_COMM;
    dti_error_restore(&why);
    return st;
}

static dt_status begin(dt_run_folder *run)
{
    const atomic_bool never = false;
    dt_status st = DT_OK;

    if (run->direct)
        st = write_files(run, &never);
    else
        st = dti_rank_files_copy(&run->files);
    st = dti_all_say(run->mesh, st);
    if (st != DT_OK) return give_up(run, st);
    run->phase = DTI_SAVE_WRITING;
    if (run->direct) return dt_run_folder_wait(run);
    st = dti_all_say(run->mesh, dti_behind_do(run->behind, write_files, run));
    if (st == DT_OK) return DT_OK;
    dti_behind_cancel(run->behind);
    return give_up(run, st);
}

dt_status dt_run_folder_save(dt_run_folder *run, dt_layers *layers, dt_optimizer *optimizer,
                             const dt_run_progress *progress, const char *json)
{
    dt_status st;

    DT_CHECK(run != NULL && layers != NULL && progress != NULL, DT_ERR_ARG,
             "run, layers or progress is NULL");
    DT_CHECK(!run->reads, DT_ERR_ARG, "%s was opened to be read", run->dir);
    DT_CHECK(progress->step >= 0 && progress->samples >= 0 && progress->tokens >= 0, DT_ERR_ARG,
             "step %lld, samples %lld, tokens %lld: numbers are 0 or more",
             (long long)progress->step, (long long)progress->samples, (long long)progress->tokens);
    if (json != NULL) DT_TRY(dti_manifest_check_json(json));
    DT_TRY(dt_run_folder_wait(run));
    st = prepare(run, layers, optimizer, progress, json);
    if (st == DT_OK && run->first) st = dti_run_disk_begin(&run->disk, progress->step);
    st = dti_all_say(run->mesh, st);
    if (st != DT_OK) return give_up(run, st);
    DT_TRY(begin(run));
    return DT_OK;
}

/* --- and goes on ------------------------------------------------------------------------------ */

static dt_status name_step(void *arg, const atomic_bool *cancelled)
{
    dt_run_folder *run = arg;

    (void)cancelled;
    DT_TRY(dti_manifest_write(run->step_dir, &run->head, &run->snapshot));
    DT_TRY(dti_run_disk_name(&run->disk, run->head.progress.step, run->keep));
    return DT_OK;
}

/* All ranks get all bytes and checksums: the manifest has them. */
static dt_status share_sums(dt_run_folder *run, dti_comm *comm)
{
    dti_snapshot *s = &run->snapshot;
    int64_t *counts = NULL, *displs = NULL, (*mine)[2] = NULL, (*all)[2] = NULL;
    dt_status st = DT_OK;
    size_t n = 0;

    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *counts, (void **)&counts));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)comm->size, sizeof *displs, (void **)&displs));
    DT_TRY_TO(done, st, dti_alloc_array(s->n_files, sizeof *mine, (void **)&mine));
    DT_TRY_TO(done, st, dti_alloc_array(s->n_files, sizeof *all, (void **)&all));
    for (size_t i = 0; i < s->n_files; i++) {
        counts[s->files[i].place] += 2;
        if (s->files[i].place != comm->rank) continue;
        mine[n][0] = s->files[i].bytes;
        memcpy(&mine[n++][1], &s->files[i].checksum, sizeof(int64_t));
    }
    for (int r = 1; r < comm->size; r++) displs[r] = displs[r - 1] + counts[r - 1];
    DT_TRY_TO(done, st, dti_all_gather(comm, mine, all, counts, displs, DT_I64));
    for (size_t i = 0; i < s->n_files; i++) {
        const int64_t *sum = all[displs[s->files[i].place] / 2];
        displs[s->files[i].place] += 2;
        s->files[i].bytes = sum[0];
        memcpy(&s->files[i].checksum, &sum[1], sizeof sum[1]);
    }
done:
    dti_free(all);
    dti_free(mine);
    dti_free(displs);
    dti_free(counts);
    return st;
}

/* Every rank's part of a phase is done: the next one begins. */
static dt_status next_phase(dt_run_folder *run, dti_comm *comm)
{
    char label[DTI_INPUT_LABEL_BYTES];

    if (run->phase == DTI_SAVE_WRITING) {
        DT_TRY(dti_runtime_alone(run->rt, share_sums(run, comm)));
        run->phase = DTI_SAVE_NAMING;
        if (!run->first) return DT_OK;
        return dti_runtime_alone(run->rt, dti_behind_do(run->behind, name_step, run));
    }
    run->latest = run->head.progress.step;
    if (run->first)
        dti_runtime_log(run->rt, DT_LOG_INFO, "%s: step %lld is saved",
                        dti_printable(run->dir, label, sizeof label), (long long)run->latest);
    forget(run);
    return DT_OK;
}

dt_status dt_run_folder_check(dt_run_folder *run)
{
    enum { BUSY, DONE, FAILED };
    dt_status mine = DT_OK;
    dti_comm *comm;
    int32_t state[2]; /* the least and, negative, the greatest */

    DT_CHECK(run != NULL, DT_ERR_ARG, "run is NULL");
    if (run->phase == DTI_SAVE_NONE) return DT_OK;
    state[0] = dti_behind_look(run->behind) == DTI_BEHIND_BUSY ? BUSY : DONE;
    if (dti_behind_look(run->behind) == DTI_BEHIND_DONE) {
        mine = dti_behind_take(run->behind);
        if (mine != DT_OK) state[0] = FAILED;
    }
    state[1] = -state[0];
    DT_TRY(dti_mesh_comm(run->mesh, (1u << dt_mesh_n_dims(run->mesh)) - 1, &comm));
    DT_TRY(dti_all_reduce(comm, state, state, 2, DT_I32, DT_MIN));
    if (-state[1] == FAILED) {
        dti_behind_cancel(run->behind); /* others too, before they say so */
        return give_up(run, dti_all_say(run->mesh, mine));
    }
    if (state[0] == DONE) DT_TRY(next_phase(run, comm));
    return DT_OK;
}

/* All ranks take as many turns, so that none of them waits for a disk inside a collective. */
dt_status dt_run_folder_wait(dt_run_folder *run)
{
    DT_CHECK(run != NULL, DT_ERR_ARG, "run is NULL");
    while (run->phase != DTI_SAVE_NONE) {
        dti_behind_wait(run->behind, LOOK_NS);
        DT_TRY(dt_run_folder_check(run));
    }
    return DT_OK;
}
