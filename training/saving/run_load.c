/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading a checkpoint. What can be wrong with it is looked at before a value is written: first
 * what the manifest says, by every rank; then the files, each by one rank; then the headers of
 * those that a rank needs. After each of them the ranks hear of each other's faults. */
#include <inttypes.h>
#include <string.h>

#include "base/numbers.h"
#include "base/options.h"
#include "base/text.h"
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "files/checksum.h"
#include "files/folder.h"
#include "files/input.h"
#include "files/open_files.h"
#include "files/safetensors.h"
#include "mesh/runtime.h"
#include "parallel_styles/layer_rules.h"
#include "placements/layout.h"
#include "training/optimizer.h"
#include "training/saving/run_folder.h"
#include "weights/read_layers.h"

enum { CHUNK = 4 << 20, MOST_OPEN = 64 };

typedef struct loading {
    dt_run_folder *run;
    dt_layers *layers;
    char *dir;
    const dti_manifest *from;
    dti_snapshot want;                /* what there is to be read */
    const dti_stored_tensor **stored; /* [want.n_tensors] where it is */
    dti_st_file **files;              /* [from->snapshot.n_files] NULL: not needed */
    dti_open_files *open;
    dti_st_stage stage;
} loading;

/* --- is it this model's, this run's? ---------------------------------------------------------- */

static dt_status check_facts(const loading *l)
{
    const dt_run_folder *run = l->run;
    const dti_manifest_head *h = &l->from->head;
    char theirs[DTI_SHOWN_BYTES], ours[DTI_SHOWN_BYTES];

    for (int i = 0; i < run->facts.n; i++) {
        const dti_fact *here = &run->facts.list[i];
        const char *was = dti_facts_find(&h->facts, here->what);
        DT_CHECK(was == NULL || strcmp(was, here->value) == 0, DT_ERR_ARG,
                 "%s: %.60s is \"%s\" in the checkpoint, \"%s\" here: it is of another run",
                 l->from->doc.file, here->what, dti_printable(was, theirs, sizeof theirs),
                 dti_printable(here->value, ours, sizeof ours));
    }
    return DT_OK;
}

/* NULL: nothing is said of it. */
static dt_status check_of_model(const loading *l, const char *what, const char *was, const char *is)
{
    const char *where = dti_layers_facts(l->layers)->of;
    char theirs[DTI_SHOWN_BYTES], ours[DTI_SHOWN_BYTES], place[DTI_INPUT_LABEL_BYTES];

    DT_CHECK(was != NULL && is != NULL && strcmp(was, is) == 0, DT_ERR_ARG,
             "%s: %.120s is %s in the checkpoint, %s in %s: it is of another model; to train this "
             "one, begin a run with the exported weights",
             l->from->doc.file, what,
             was != NULL ? dti_printable(was, theirs, sizeof theirs) : "not said",
             is != NULL ? dti_printable(is, ours, sizeof ours) : "not said",
             where != NULL ? dti_printable(where, place, sizeof place) : "the model");
    return DT_OK;
}

/* What tensors do not tell: who has other numbers there computes something else with them. Older
 * checkpoints do not say, nor do layers that are no model's. */
static dt_status check_model(const loading *l)
{
    const dti_facts *was = &l->from->head.model, *is = dti_layers_facts(l->layers);

    if (was->n == 0 || is->n == 0) return DT_OK;
    for (int i = 0; i < is->n; i++)
        DT_TRY(check_of_model(l, is->list[i].what, dti_facts_find(was, is->list[i].what),
                              is->list[i].value));
    for (int i = 0; i < was->n; i++)
        DT_TRY(check_of_model(l, was->list[i].what, was->list[i].value,
                              dti_facts_find(is, was->list[i].what)));
    return DT_OK;
}

static dt_status check_tensor(const loading *l, const dti_stored_tensor *want,
                              const dti_stored_tensor *stored)
{
    const char *file = l->from->doc.file;
    char ours[DTI_SHAPE_BYTES], theirs[DTI_SHAPE_BYTES], name[DTI_SHOWN_BYTES];

    (void)dti_printable(want->name, name, sizeof name);
    DT_CHECK(stored != NULL && stored->state == want->state, DT_ERR_ARG,
             "%s: has no \"%s\", which %s: it is of another %s", file, name,
             want->state ? "the optimizer has" : "the model has",
             want->state ? "optimizer (rule, masters, frozen parameters)" : "model");
    DT_CHECK(stored->n_axes == want->n_axes &&
                 memcmp(stored->shape, want->shape, (size_t)want->n_axes * sizeof(int64_t)) == 0,
             DT_ERR_ARG,
             "%s: \"%s\" is %s in the checkpoint, %s in the model: it is of another model", file,
             name, dti_shape_text(stored->shape, stored->n_axes, theirs, sizeof theirs),
             dti_shape_text(want->shape, want->n_axes, ours, sizeof ours));
    DT_CHECK(
        (want->x == NULL && want->layer != NULL) || stored->dtype == want->dtype, DT_ERR_ARG,
        "%s: \"%s\" is %s in the checkpoint, %s in the model: a run goes on in the dtype it began "
        "in",
        file, name, dt_dtype_name(stored->dtype), dt_dtype_name(want->dtype));
    return DT_OK;
}

/* Of the kinds that are read the checkpoint has nothing more. */
static dt_status check_unused(const loading *l, bool with_state)
{
    const dti_stored_tensor **wanted = NULL;
    char name[DTI_SHOWN_BYTES];
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dti_snapshot_sort(&l->want, &wanted));
    for (size_t i = 0; i < l->from->snapshot.n_tensors; i++) {
        const dti_stored_tensor *t = &l->from->snapshot.tensors[i];
        DT_CHECK_TO(done, st,
                    (t->state && !with_state) ||
                        dti_snapshot_find(wanted, l->want.n_tensors, t->name) != NULL,
                    DT_ERR_ARG, "%s: has \"%s\", which %s not: it is of another %s",
                    l->from->doc.file, dti_printable(t->name, name, sizeof name),
                    t->state ? "the optimizer has" : "the model has",
                    t->state ? "optimizer (rule, masters, frozen parameters)" : "model");
    }
done:
    dti_free((void *)wanted);
    return st;
}

static dt_status match(loading *l, bool with_state)
{
    const dti_stored_tensor **sorted = NULL;
    dt_status st = DT_OK;

    DT_CHECK(
        l->from->head.has_state || !with_state, DT_ERR_ARG,
        "%s: has parameters alone, no state of an optimizer; say fresh_optimizer to go on with "
        "a new one",
        l->from->doc.file);
    DT_TRY(dti_alloc_array(l->want.n_tensors, sizeof *l->stored, (void **)&l->stored));
    DT_TRY_TO(done, st, dti_snapshot_sort(&l->from->snapshot, &sorted));
    for (size_t i = 0; i < l->want.n_tensors; i++) {
        const dti_stored_tensor *want = &l->want.tensors[i];
        l->stored[i] = dti_snapshot_find(sorted, l->from->snapshot.n_tensors, want->name);
        DT_TRY_TO(done, st, check_tensor(l, want, l->stored[i]));
    }
    DT_TRY_TO(done, st, check_unused(l, with_state));
done:
    dti_free((void *)sorted);
    return st;
}

/* --- are the files what was written? ---------------------------------------------------------- */

static dt_status check_sum(const dti_stored_file *file, const dti_input *in)
{
    dt_status st = DT_OK;
    dti_checksum sum;
    uint64_t found;
    void *buffer;

    DT_CHECK(in->bytes == file->bytes, DT_ERR_FORMAT,
             "%s: has %lld bytes, was written with %lld: it is cut off, or another file; take "
             "another step",
             in->label, (long long)in->bytes, (long long)file->bytes);
    DT_TRY(dti_big_alloc(CHUNK, &buffer));
    dti_checksum_begin(&sum);
    for (int64_t at = 0; at < in->bytes; at += CHUNK) {
        const int64_t n = in->bytes - at < CHUNK ? in->bytes - at : CHUNK;
        DT_TRY_TO(done, st, dti_input_read(in, buffer, n, at));
        dti_checksum_add(&sum, buffer, (size_t)n);
    }
    found = dti_checksum_end(&sum);
    DT_CHECK_TO(done, st, found == file->checksum, DT_ERR_FORMAT,
                "%s: its checksum is %016" PRIx64 ", that of what was written %016" PRIx64
                ": its bytes have changed; take another step",
                in->label, found, file->checksum);
done:
    dti_big_free(buffer, CHUNK);
    return st;
}

static dt_status check_file(const loading *l, const dti_stored_file *file)
{
    char label[DTI_INPUT_LABEL_BYTES];
    char *path = NULL;
    dt_status st = DT_OK;
    dti_input in;

    DT_TRY(dti_ckpt_path(l->dir, file->name, &path));
    DT_CHECK_TO(done, st, dti_folder_has(l->dir, file->name), DT_ERR_IO,
                "%s: is missing; a checkpoint needs all its %zu files, those of every rank",
                dti_printable(path, label, sizeof label), l->from->snapshot.n_files);
    DT_TRY_TO(done, st, dti_input_open(path, &in));
    st = check_sum(file, &in);
    dti_input_close(&in);
done:
    dti_free(path);
    return st;
}

/* Each by one rank. */
static dt_status check_files(const loading *l)
{
    const dti_snapshot *s = &l->from->snapshot;
    const size_t n_ranks = (size_t)dt_mesh_n_ranks(l->run->mesh);

    for (size_t i = (size_t)dti_mesh_place(l->run->mesh); i < s->n_files; i += n_ranks)
        DT_TRY(check_file(l, &s->files[i]));
    return DT_OK;
}

/* --- what this rank needs --------------------------------------------------------------------- */

/* A box that a file holds, and what of it this rank's piece has: `share`, from `at` on in the
 * piece, whose axes are `stride` elements apart. */
typedef struct overlap {
    const dti_stored_tensor *tensor;
    const dti_stored_box *box;
    dti_stored_box share;
    int64_t stride[DT_MAX_AXES];
    int64_t at;
} overlap;

typedef dt_status (*overlap_fn)(loading *l, const overlap *o, void *arg);

/* One box of the piece, whose rows begin at `row` there. */
static dt_status meet(loading *l, overlap *o, const dti_stored_box *mine, const int64_t *row,
                      overlap_fn fn, void *arg)
{
    for (size_t i = o->tensor->first; i < o->tensor->first + o->tensor->n; i++) {
        o->box = &l->from->snapshot.boxes[i];
        if (!dti_boxes_share(mine, o->box, o->tensor->n_axes, &o->share)) continue;
        o->at = 0;
        for (int a = 0; a < o->tensor->n_axes; a++)
            o->at += (row[a] + o->share.begin[a] - mine->begin[a]) * o->stride[a];
        DT_TRY(fn(l, o, arg));
    }
    return DT_OK;
}

/* Calls fn for all that this rank's piece of a tensor and the boxes of the checkpoint share. The
 * tensor may have no value yet: its layout says where it will lie. */
static dt_status each_overlap(loading *l, const dti_stored_tensor *want,
                              const dti_stored_tensor *stored, overlap_fn fn, void *arg)
{
    const dt_layout *layout = want->lies;
    overlap o = { .tensor = stored };
    int64_t row[DT_MAX_AXES] = { 0 }, stride = 1;
    int at[DT_MAX_AXES] = { 0 }, coord[DT_MAX_DIMS];
    dti_runs runs[DT_MAX_AXES];

    if (!dt_mesh_is_member(want->mesh)) return DT_OK;
    for (int m = 0; m < layout->n_dims; m++) coord[m] = dt_mesh_coord(want->mesh, m);
    for (int a = want->n_axes - 1; a >= 0; a--) {
        dti_layout_axis_runs(layout, a, want->shape[a], coord, &runs[a]);
        if (runs[a].total == 0) return DT_OK;
        o.stride[a] = stride;
        stride *= runs[a].total;
    }
    for (int a = 0; a >= 0;) {
        dti_stored_box mine = { 0 };
        for (int i = 0; i < want->n_axes; i++) {
            mine.begin[i] = runs[i].run[at[i]].begin;
            mine.end[i] = runs[i].run[at[i]].end;
        }
        DT_TRY(meet(l, &o, &mine, row, fn, arg));
        for (a = want->n_axes - 1; a >= 0; a--) {
            row[a] += runs[a].run[at[a]].end - runs[a].run[at[a]].begin;
            if (++at[a] < runs[a].n) break;
            at[a] = 0;
            row[a] = 0;
        }
    }
    return DT_OK;
}

static dt_status open_file(loading *l, size_t i)
{
    dt_status st = DT_OK;
    char *path;

    if (l->files[i] != NULL) return DT_OK;
    DT_TRY(dti_ckpt_path(l->dir, l->from->snapshot.files[i].name, &path));
    DT_TRY_TO(done, st, dti_st_open(path, &l->files[i]));
    DT_TRY_TO(done, st, dti_st_share(l->files[i], path, l->open));
done:
    dti_free(path);
    return st;
}

/* Its file is open, and has the box under the tensor's name. */
static dt_status prepare_overlap(loading *l, const overlap *o, void *arg)
{
    char name[DTI_SHOWN_BYTES];
    const dti_st_entry *e;
    bool fits;

    (void)arg;
    DT_TRY(open_file(l, o->box->file));
    e = dti_st_find(l->files[o->box->file], o->tensor->name);
    fits =
        e != NULL && e->supported && e->dtype == o->tensor->dtype && e->n_axes == o->tensor->n_axes;
    for (int a = 0; fits && a < e->n_axes; a++)
        fits = e->shape[a] == o->box->end[a] - o->box->begin[a];
    DT_CHECK(fits, DT_ERR_FORMAT, "%s: %s \"%s\" as %s says it has",
             dti_st_label(l->files[o->box->file]), e != NULL ? "does not have all of" : "has no",
             dti_printable(o->tensor->name, name, sizeof name), DTI_MANIFEST_NAME);
    return DT_OK;
}

static dt_status prepare(loading *l)
{
    DT_TRY(dti_alloc_array(l->from->snapshot.n_files, sizeof *l->files, (void **)&l->files));
    DT_TRY(dti_open_files_create(MOST_OPEN, &l->open));
    DT_TRY(dti_st_stage_create(dti_st_stage_bytes(dt_runtime_size(l->run->rt)),
                               dti_runtime_pool(l->run->rt), &l->stage));
    for (size_t i = 0; i < l->want.n_tensors; i++)
        DT_TRY(each_overlap(l, &l->want.tensors[i], l->stored[i], prepare_overlap, NULL));
    for (size_t i = 0; i < l->want.n_tensors; i++) {
        dti_stored_tensor *t = &l->want.tensors[i];
        dt_tensor *x;
        if (t->x != NULL || t->layer == NULL) continue;
        DT_TRY(dti_make_param(t->layer, t->param, l->stored[i]->dtype, &x));
        t->x = x; /* released with the others, when all layers have theirs */
    }
    return DT_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static dt_status read_overlap(loading *l, const overlap *o, void *arg)
{
    const dti_st_file *file = l->files[o->box->file];
    const dt_local *to = arg;
    dti_st_box box = { { 0 }, { 0 }, { 0 } };

    for (int a = 0; a < o->tensor->n_axes; a++) {
        box.begin[a] = o->share.begin[a] - o->box->begin[a];
        box.end[a] = o->share.end[a] - o->box->begin[a];
        box.stride[a] = o->stride[a];
    }
    DT_TRY(dti_st_read_strided(file, dti_st_find(file, o->tensor->name), &box, to->dtype, &l->stage,
                               (char *)to->data + o->at * (int64_t)dt_dtype_size(to->dtype)));
    return DT_OK;
}

static dt_status read_value(loading *l, const dti_stored_tensor *t, const dti_stored_tensor *stored)
{
    dt_status st;
    dti_host host;
    dt_tensor *x;

    DT_TRY(dti_stored_open(t, &x));
    st = dti_host_open(x, DTI_HOST_WRITES, &host);
    if (st == DT_OK)
        st = dti_host_close(&host, each_overlap(l, t, stored, read_overlap, &host.local));
    if (st == DT_OK) return dti_stored_close(t, true, &x);
    dt_tensor_release(&x);
    return st;
}

static dt_status read_values(loading *l, dt_optimizer *optimizer)
{
    if (optimizer != NULL) dti_state_renew(optimizer);
    for (size_t i = 0; i < l->want.n_tensors; i++)
        DT_TRY(read_value(l, &l->want.tensors[i], l->stored[i]));
    return DT_OK;
}

/* Tensors that were made here go to their layers. */
static dt_status hand_over(loading *l, dt_status st)
{
    for (size_t i = 0; i < l->want.n_tensors; i++) {
        dti_stored_tensor *t = &l->want.tensors[i];
        if (t->layer == NULL || t->x == NULL || t->x == dt_layer_param(t->layer, t->param))
            continue;
        if (st == DT_OK) st = dt_layer_set_param(t->layer, t->param, t->x);
        dt_tensor_release(&t->x);
    }
    return st;
}

/* --- all -------------------------------------------------------------------------------------- */

static dt_status read_manifest(dt_run_folder *run, const char *dir, int64_t step)
{
    char label[DTI_INPUT_LABEL_BYTES], steps[200];

    DT_CHECK(step >= 0, DT_ERR_ARG, "%s: holds no checkpoint yet", run->dir);
    DT_CHECK(dti_folder_has(dir, ""), DT_ERR_ARG, "%s: is not there (there: %s)",
             dti_printable(dir, label, sizeof label),
             dti_run_disk_steps(run->dir, steps, sizeof steps));
    dti_manifest_free(&run->loaded);
    DT_TRY(dti_manifest_read(dir, &run->loaded));
    DT_CHECK(run->loaded.head.progress.step == step, DT_ERR_FORMAT,
             "%s: is of step %lld, in the folder of step %lld", run->loaded.doc.file,
             (long long)run->loaded.head.progress.step, (long long)step);
    return DT_OK;
}

static dt_status look(loading *l, int64_t step, dt_optimizer *optimizer)
{
    DT_TRY(read_manifest(l->run, l->dir, step));
    l->from = &l->run->loaded;
    DT_TRY(check_facts(l));
    if (l->layers == NULL) return DT_OK;
    DT_TRY(check_model(l));
    if (optimizer != NULL) DT_TRY(dti_state_take_back(optimizer));
    DT_TRY(dti_run_list(&l->want, l->layers, optimizer, true));
    DT_TRY(match(l, optimizer != NULL));
    return DT_OK;
}

static void end(loading *l)
{
    for (size_t i = 0; l->files != NULL && i < l->from->snapshot.n_files; i++)
        dti_st_close(&l->files[i]);
    dti_open_files_free(&l->open);
    dti_st_stage_destroy(&l->stage);
    dti_free(l->files);
    dti_free((void *)l->stored);
    dti_snapshot_free(&l->want);
    dti_free(l->dir);
}

/* With neither layers nor optimizer the manifest alone. */
static dt_status load(dt_run_folder *run, int64_t step, dt_layers *layers, dt_optimizer *optimizer)
{
    loading l = { .run = run, .layers = layers, .want = DTI_SNAPSHOT_INIT };
    dt_mesh *mesh = run->mesh;
    dt_status st = DT_OK;

    DT_CHECK(step >= -1, DT_ERR_ARG, "step is %lld: it is a number from 0 on, or -1 for the latest",
             (long long)step);
    if (step < 0) step = run->latest;
    DT_TRY(dti_run_disk_step(run->dir, step, true, &l.dir));
    DT_TRY_TO(done, st, dti_all_say(mesh, look(&l, step, optimizer)));
    if (layers == NULL) goto done;
    DT_TRY_TO(done, st, dti_all_say(mesh, check_files(&l)));
    DT_TRY_TO(done, st, dti_all_say(mesh, prepare(&l)));
    DT_TRY_TO(done, st, dti_all_say(mesh, read_values(&l, optimizer)));
done:
    if (layers != NULL) st = hand_over(&l, st);
    end(&l);
    return st;
}

static void hand_out(const dt_run_folder *run, dt_run_progress *progress, const char **json)
{
    if (progress != NULL) *progress = run->loaded.head.progress;
    if (json != NULL) *json = run->loaded.json;
}

dt_status dt_run_folder_load(dt_run_folder *run, const dt_run_load_options *options,
                             dt_layers *layers, dt_optimizer *optimizer, dt_run_progress *progress,
                             const char **json)
{
    dt_run_load_options o = DT_RUN_LOAD_OPTIONS_INIT;

    DT_CHECK(run != NULL && layers != NULL, DT_ERR_ARG, "run or layers is NULL");
    DT_TRY(dti_options_read("dt_run_load_options", "start from DT_RUN_LOAD_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_TRY(dt_run_folder_wait(run));
    if (o.fresh_optimizer) optimizer = NULL;
    DT_TRY(load(run, o.step, layers, optimizer));
    if (optimizer != NULL) {
        const dti_manifest_head *h = &run->loaded.head;
        DT_TRY(dt_optimizer_restore(optimizer, h->steps, h->loss_scale, h->good_steps));
        optimizer->skipped = dti_max(h->progress.step - h->steps, 0);
    }
    hand_out(run, progress, json);
    return DT_OK;
}

dt_status dt_run_folder_peek(dt_run_folder *run, int64_t step, dt_run_progress *progress,
                             const char **json)
{
    DT_CHECK(run != NULL, DT_ERR_ARG, "run is NULL");
    DT_TRY(dt_run_folder_wait(run));
    DT_TRY(load(run, step, NULL, NULL));
    hand_out(run, progress, json);
    return DT_OK;
}
