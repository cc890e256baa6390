/* SPDX-License-Identifier: Apache-2.0 */
#include "training/saving/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "placements/layout.h"
#include "weights/param_tensors.h"

enum { MOST_PARTS = 64 }; /* boxes of a piece */

void dti_snapshot_free(dti_snapshot *s)
{
    dti_free(s->tensors);
    dti_free(s->boxes);
    dti_free(s->files);
    dti_arena_free(&s->memory);
    *s = (dti_snapshot)DTI_SNAPSHOT_INIT;
}

/* --- lists ------------------------------------------------------------------------------------ */

static dt_status copy_text(dti_snapshot *s, const char **text)
{
    const char *from = *text != NULL ? *text : "";

    DT_TRY(dti_arena_strndup(&s->memory, from, strlen(from), (char **)(uintptr_t)text));
    return DT_OK;
}

dt_status dti_snapshot_add(dti_snapshot *s, const dti_stored_tensor *t)
{
    char layout[256];
    dti_stored_tensor *to;

    DT_TRY(dti_grow((void **)&s->tensors, &s->tensors_room, s->n_tensors + 1, sizeof *to));
    to = &s->tensors[s->n_tensors];
    *to = *t;
    to->first = s->n_boxes;
    to->n = 0;
    if (t->x != NULL) {
        to->dtype = dt_tensor_dtype(t->x);
        to->n_axes = dt_tensor_n_axes(t->x);
        for (int a = 0; a < to->n_axes; a++) to->shape[a] = dt_tensor_extent(t->x, a);
        to->lies = dt_tensor_layout(t->x);
    }
    if (to->lies != NULL) {
        (void)dt_layout_print(to->lies, layout, sizeof layout);
        to->layout = layout;
    }
    DT_TRY(copy_text(s, &to->name));
    DT_TRY(copy_text(s, &to->layout));
    s->n_tensors++;
    return DT_OK;
}

dt_status dti_snapshot_add_file(dti_snapshot *s, const dti_stored_file *file)
{
    DT_TRY(dti_grow((void **)&s->files, &s->files_room, s->n_files + 1, sizeof *file));
    s->files[s->n_files] = *file;
    DT_TRY(copy_text(s, &s->files[s->n_files].name));
    s->n_files++;
    return DT_OK;
}

dt_status dti_snapshot_add_box(dti_snapshot *s, const dti_stored_box *box)
{
    DT_TRY(dti_grow((void **)&s->boxes, &s->boxes_room, s->n_boxes + 1, sizeof *box));
    s->boxes[s->n_boxes++] = *box;
    s->tensors[s->n_tensors - 1].n++;
    return DT_OK;
}

static dt_status list_param(dti_snapshot *s, dt_layer *layer, int param, bool wanted)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dti_stored_tensor t = { .layer = layer, .param = param, .x = dt_layer_param(layer, param) };
    char name[512];

    DT_CHECK(t.x != NULL || wanted, DT_ERR_ARG, "%s.%s has no value yet", info.layer, info.name);
    (void)dti_param_tensor_name(&info, name, sizeof name);
    t.name = name;
    t.n_axes = info.n_axes;
    t.lies = dt_layer_param_layout(layer, param);
    t.mesh = dt_layer_mesh(layer);
    for (int a = 0; a < info.n_axes; a++) t.shape[a] = info.axis[a].extent;
    DT_TRY(dti_snapshot_add(s, &t));
    return DT_OK;
}

dt_status dti_snapshot_list(dti_snapshot *s, dt_layers *layers, bool wanted)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (wanted ? dt_layer_holds_param(layer, p) : dt_layer_owns_param(layer, p))
                DT_TRY(list_param(s, layer, p, wanted));
    }
    return DT_OK;
}

dt_status dti_snapshot_list_state(dti_snapshot *s, dt_optimizer *opt, bool wanted)
{
    dti_stored_tensor t = { .state = true, .dtype = DT_F32, .optimizer = opt };

    for (int64_t i = 0; dti_state_find(opt, i, &t.ref); i++) {
        const dti_trained *p = &opt->params[t.ref.param];
        if (!wanted && p->copy_of >= 0) continue;
        t.name = t.ref.name;
        t.lies = p->layout;
        t.mesh = dt_tensor_mesh(p->x);
        t.n_axes = dt_tensor_n_axes(p->x);
        for (int a = 0; a < t.n_axes; a++) t.shape[a] = dt_tensor_extent(p->x, a);
        DT_TRY(dti_snapshot_add(s, &t));
    }
    return DT_OK;
}

dt_status dti_stored_open(const dti_stored_tensor *t, dt_tensor **x)
{
    if (t->optimizer != NULL) return dti_state_open(t->optimizer, &t->ref, x);
    *x = dt_tensor_retain(t->x);
    return DT_OK;
}

dt_status dti_stored_close(const dti_stored_tensor *t, bool was_written, dt_tensor **x)
{
    if (t->optimizer != NULL) return dti_state_close(t->optimizer, &t->ref, was_written, x);
    dt_tensor_release(x);
    return DT_OK;
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* The files of a place: number k of its parameters' and its state's. 0: not there yet. */
typedef struct place_files {
    size_t next[2][MOST_PARTS];
} place_files;

static dt_status file_of(dti_snapshot *s, place_files *files, int place, bool state, int part,
                         size_t *out)
{
    size_t *const known = &files[place].next[state][part];
    char name[64];

    if (*known == 0) {
        int n = snprintf(name, sizeof name, "%s-rank-%05d", state ? "optim" : "model", place);
        if (part > 0) n += snprintf(name + n, sizeof name - (size_t)n, "-%d", part + 1);
        (void)snprintf(name + n, sizeof name - (size_t)n, ".safetensors");
        DT_TRY(dti_snapshot_add_file(s, &(dti_stored_file){ .name = name, .place = place }));
        *known = s->n_files;
    }
    *out = *known - 1;
    return DT_OK;
}

/* Of those that hold the same the first one has it. */
static bool owns(const dt_layout *layout, const int *coord)
{
    for (int m = 0; m < layout->n_dims; m++) {
        const dt_placement *p = &layout->place[m];
        const int alike = p->kind == DT_PLACE_SHARD ? p->replicas : layout->dim_size[m];
        if (alike > 1 && coord[m] % alike != 0) return false;
    }
    return true;
}

/* The boxes of one rank's piece: products of the runs of its axes, in row-major order. */
static dt_status divide_piece(dti_snapshot *s, place_files *files, int place, const int *coord)
{
    dti_stored_tensor *const t = &s->tensors[s->n_tensors - 1];
    const dt_layout *layout = t->lies;
    dti_runs runs[DT_MAX_AXES];
    int at[DT_MAX_AXES] = { 0 };

    if (!owns(layout, coord)) return DT_OK;
    for (int a = 0; a < t->n_axes; a++) {
        dti_layout_axis_runs(layout, a, t->shape[a], coord, &runs[a]);
        if (runs[a].total == 0) return DT_OK;
    }
    for (int part = 0, a = 0; a >= 0; part++) {
        dti_stored_box box = { 0 };
        DT_CHECK(part < MOST_PARTS, DT_ERR_UNSUPPORTED,
                 "%s: a rank's piece is more than %d boxes, which checkpoints do not divide",
                 t->name, MOST_PARTS);
        for (int i = 0; i < t->n_axes; i++) {
            box.begin[i] = runs[i].run[at[i]].begin;
            box.end[i] = runs[i].run[at[i]].end;
        }
        DT_TRY(file_of(s, files, place, t->state, part, &box.file));
        DT_TRY(dti_snapshot_add_box(s, &box));
        for (a = t->n_axes - 1; a >= 0; a--) {
            if (++at[a] < runs[a].n) break;
            at[a] = 0;
        }
    }
    return DT_OK;
}

/* Of a rank of `part` in the whole mesh. */
static int place_in(const dt_mesh *mesh, const dt_mesh *part, const int *coord)
{
    int own = 0, place = 0, at[DT_MAX_DIMS] = { 0 };

    for (int m = 0; m < dt_mesh_n_dims(part); m++) own = own * dt_mesh_dim_size(part, m) + coord[m];
    (void)dt_mesh_find_rank(mesh, dt_mesh_rank_at(part, own), at);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++)
        place = place * dt_mesh_dim_size(mesh, m) + at[m];
    return place;
}

static dt_status divide_tensor(dti_snapshot *s, place_files *files, const dt_mesh *mesh)
{
    const dti_stored_tensor *t = &s->tensors[s->n_tensors - 1];
    const dt_mesh *part = t->mesh != NULL ? t->mesh : mesh;
    const dt_layout *layout = t->lies;
    int coord[DT_MAX_DIMS] = { 0 };

    DT_CHECK(layout->partial_dims == 0, DT_ERR_LAYOUT, "%s is terms of a sum: reduce it first",
             t->name);
    for (int i = 0; i < dt_mesh_n_ranks(part); i++) {
        DT_TRY(divide_piece(s, files, place_in(mesh, part, coord), coord));
        for (int m = layout->n_dims - 1; m >= 0; m--) {
            if (++coord[m] < layout->dim_size[m]) break;
            coord[m] = 0;
        }
    }
    return DT_OK;
}

dt_status dti_snapshot_divide(dti_snapshot *s, const dt_mesh *mesh)
{
    const size_t n = s->n_tensors;
    place_files *files = NULL;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)dt_mesh_n_ranks(mesh), sizeof *files, (void **)&files));
    for (s->n_tensors = 0; s->n_tensors < n && st == DT_OK;) {
        s->tensors[s->n_tensors++].first = s->n_boxes;
        st = divide_tensor(s, files, mesh);
    }
    s->n_tensors = n;
    dti_free(files);
    DT_TRY(st);
    return DT_OK;
}

int64_t dti_stored_count(const dti_stored_tensor *t)
{
    int64_t n = 1;

    for (int a = 0; a < t->n_axes; a++) n *= t->shape[a];
    return n;
}

int64_t dti_box_elements(const dti_stored_box *box, int n_axes)
{
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= box->end[a] - box->begin[a];
    return n;
}

bool dti_boxes_share(const dti_stored_box *a, const dti_stored_box *b, int n_axes,
                     dti_stored_box *out)
{
    out->file = b->file;
    for (int i = 0; i < n_axes; i++) {
        out->begin[i] = dti_max(a->begin[i], b->begin[i]);
        out->end[i] = dti_min(a->end[i], b->end[i]);
        if (out->begin[i] >= out->end[i]) return false;
    }
    return true;
}

/* --- every element once ----------------------------------------------------------------------- */

/* The axis along which a tensor is cut into most parts: sorted by it, a box meets few others. */
static int busiest_axis(const dti_stored_box *boxes, size_t n, int n_axes)
{
    size_t most = 0;
    int best = 0;

    for (int a = 0; a < n_axes; a++) {
        size_t changes = 0;
        for (size_t i = 1; i < n; i++) changes += boxes[i].begin[a] != boxes[0].begin[a];
        if (changes > most) best = a;
        most = changes > most ? changes : most;
    }
    return best;
}

typedef struct line {
    int64_t begin;
    const dti_stored_box *box;
} line;

static int by_begin(const void *left, const void *right)
{
    const line *a = left, *b = right;

    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->box > b->box) - (a->box < b->box);
}

static dt_status check_apart(const dti_snapshot *s, const dti_stored_tensor *t, const line *lines,
                             int axis)
{
    char name[DTI_SHOWN_BYTES];
    dti_stored_box both;

    for (size_t i = 0; i < t->n; i++)
        for (size_t k = i + 1; k < t->n && lines[k].begin < lines[i].box->end[axis]; k++)
            DT_CHECK(!dti_boxes_share(lines[i].box, lines[k].box, t->n_axes, &both), DT_ERR_FORMAT,
                     "tensor \"%s\": %lld elements are there twice, in %s and %s",
                     dti_printable(t->name, name, sizeof name),
                     (long long)dti_box_elements(&both, t->n_axes),
                     s->files[lines[i].box->file].name, s->files[lines[k].box->file].name);
    return DT_OK;
}

static dt_status check_tensor(const dti_snapshot *s, const dti_stored_tensor *t, line *lines)
{
    const dti_stored_box *boxes = s->boxes + t->first;
    const int axis = busiest_axis(boxes, t->n, t->n_axes);
    const int64_t all = dti_stored_count(t);
    char name[DTI_SHOWN_BYTES];
    int64_t n = 0;

    (void)dti_printable(t->name, name, sizeof name);
    for (size_t i = 0; i < t->n; i++) {
        for (int a = 0; a < t->n_axes; a++)
            DT_CHECK(boxes[i].begin[a] >= 0 && boxes[i].begin[a] < boxes[i].end[a] &&
                         boxes[i].end[a] <= t->shape[a],
                     DT_ERR_FORMAT,
                     "tensor \"%s\": %s has elements %lld to %lld of axis %d, which has %lld", name,
                     s->files[boxes[i].file].name, (long long)boxes[i].begin[a],
                     (long long)boxes[i].end[a], a, (long long)t->shape[a]);
        lines[i] = (line){ t->n_axes > 0 ? boxes[i].begin[axis] : 0, &boxes[i] };
        n += dti_box_elements(&boxes[i], t->n_axes); /* no box has more than the tensor */
        DT_CHECK(n <= all, DT_ERR_FORMAT,
                 "tensor \"%s\": some of its %lld elements are there twice", name, (long long)all);
    }
    if (t->n > 1 && t->n_axes > 0) {
        qsort(lines, t->n, sizeof *lines, by_begin);
        DT_TRY(check_apart(s, t, lines, axis));
    }
    DT_CHECK(n == all, DT_ERR_FORMAT, "tensor \"%s\": %lld of its %lld elements are in no file",
             name, (long long)(all - n), (long long)all);
    return DT_OK;
}

dt_status dti_snapshot_check_cover(const dti_snapshot *s)
{
    dt_status st = DT_OK;
    line *lines;

    DT_TRY(dti_alloc_array(s->n_boxes, sizeof *lines, (void **)&lines));
    for (size_t i = 0; i < s->n_tensors && st == DT_OK; i++)
        st = check_tensor(s, &s->tensors[i], lines);
    dti_free(lines);
    DT_TRY(st);
    return DT_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

static int by_name(const void *left, const void *right)
{
    return strcmp((*(const dti_stored_tensor *const *)left)->name,
                  (*(const dti_stored_tensor *const *)right)->name);
}

dt_status dti_snapshot_sort(const dti_snapshot *s, const dti_stored_tensor ***sorted)
{
    char name[DTI_SHOWN_BYTES];

    DT_TRY(dti_alloc_array(s->n_tensors, sizeof **sorted, (void **)sorted));
    for (size_t i = 0; i < s->n_tensors; i++) (*sorted)[i] = &s->tensors[i];
    if (s->n_tensors > 0) qsort(*sorted, s->n_tensors, sizeof **sorted, by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        DT_CHECK((*sorted)[i]->lies != NULL ||
                     strcmp((*sorted)[i - 1]->name, (*sorted)[i]->name) != 0,
                 DT_ERR_FORMAT, "tensor \"%s\" is there twice",
                 dti_printable((*sorted)[i]->name, name, sizeof name));
    return DT_OK;
}

const dti_stored_tensor *dti_snapshot_find(const dti_stored_tensor *const *sorted, size_t n,
                                           const char *name)
{
    const dti_stored_tensor key = { .name = name }, *at = &key;
    const dti_stored_tensor *const *found =
        n > 0 ? bsearch(&at, sorted, n, sizeof *sorted, by_name) : NULL;

    return found != NULL ? *found : NULL;
}
