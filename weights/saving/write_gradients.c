/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients as one safetensors file: parameter after parameter is made whole on every rank, and the
 * mesh's first rank writes what the file has of it, one tensor or, of experts, many. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/options.h"
#include "base/text.h"
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "files/output.h"
#include "mesh/runtime.h"
#include "weights/param_tensors.h"
#include "weights/saving/save.h"

enum { FILL = 1 << 18 };

/* A tensor of the file: elements of a parameter from `first` on. */
typedef struct piece {
    size_t param;
    int64_t first;
    bool reversed; /* the file's last two axes stand the other way round */
} piece;

/* What is written is the first rank's. */
typedef struct gradient_file {
    dt_layers *layers;
    const dt_gradients *gradients;
    const dt_gradient_file_options *options;
    dti_ckpt *like;
    dti_arena names;
    const dt_param_info *listing; /* the parameter whose tensors are listed */
    piece *pieces;                /* [n], parameter by parameter */
    dti_st_spec *specs;           /* [n] */
    size_t n, n_pieces_room, n_specs_room, n_params;
    size_t done; /* pieces */
    dti_st_file_plan plan;
    dti_output out;
    float *buffer; /* [FILL]; NULL on ranks that do not write */
    dt_status failed;
    dt_error why;
} gradient_file;

/* --- what the file has ------------------------------------------------------------------------ */

static dt_status add_piece(void *arg, const dti_param_tensor *t)
{
    gradient_file *f = arg;
    const dt_param_info *info = f->listing;
    const char *name = t->entry != NULL ? t->entry->name : t->name;
    dti_st_spec *spec;

    DT_TRY(dti_grow((void **)&f->pieces, &f->n_pieces_room, f->n + 1, sizeof *f->pieces));
    DT_TRY(dti_grow((void **)&f->specs, &f->n_specs_room, f->n + 1, sizeof *f->specs));
    f->pieces[f->n] = (piece){ .param = f->n_params, .reversed = t->whole && info->reversed };
    if (!t->whole)
        f->pieces[f->n].first =
            (t->expert * info->axis[1].extent + t->first) * info->axis[2].extent;
    spec = &f->specs[f->n];
    *spec = (dti_st_spec){ .dtype = DT_F32, .n_axes = t->n_axes };
    memcpy(spec->shape, t->shape, (size_t)t->n_axes * sizeof *t->shape);
    DT_TRY(dti_arena_strndup(&f->names, name, strlen(name), (char **)(uintptr_t)&spec->name));
    f->n++;
    return DT_OK;
}

/* Without a checkpoint every parameter is a tensor of its own, experts too; so is what
 * files have in few bits, as a save would write them. */
static dt_status add_param(gradient_file *f, const dt_param_info *info)
{
    dt_param_info own = *info;

    f->listing = info;
    if (f->like == NULL) own.parts[0] = NULL;
    if (dti_param_unpacks(info)) own.packing.form = DT_PACKED_PLAIN;
    DT_TRY(dti_each_tensor(f->like, f->options->spellings, &own, add_piece, f));
    f->n_params++;
    return DT_OK;
}

typedef dt_status (*param_fn)(gradient_file *f, const dt_layer *layer, int p);

static dt_status each_param(gradient_file *f, param_fn fn)
{
    for (int i = 0; i < dt_layers_count(f->layers); i++) {
        const dt_layer *layer = dt_layers_at(f->layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_owns_param(layer, p)) DT_TRY(fn(f, layer, p));
    }
    return DT_OK;
}

static dt_status list_param(gradient_file *f, const dt_layer *layer, int p)
{
    const dt_param_info info = dt_layer_param_info(layer, p);

    DT_CHECK(dt_layer_param(layer, p) != NULL, DT_ERR_ARG, "%s.%s has no value yet", info.layer,
             info.name);
    DT_TRY(add_param(f, &info));
    return DT_OK;
}

static dt_status begin(gradient_file *f, const char *path)
{
    static const char *const metadata[] = { "format", "pt", NULL };

    if (f->options->like != NULL) DT_TRY(dti_ckpt_open_weights(f->options->like, &f->like));
    DT_TRY(each_param(f, list_param));
    DT_TRY(dti_alloc_array(FILL, sizeof *f->buffer, (void **)&f->buffer));
    f->n_params = 0;
    if (path == NULL) return DT_OK;
    DT_TRY(dti_st_plan(f->specs, f->n, metadata, &f->plan));
    DT_TRY(dti_output_open(&f->out, path, NULL));
    DT_TRY(dti_output_write(&f->out, f->plan.header, (size_t)f->plan.header_bytes));
    return DT_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static double add_facts(dt_gradient_facts *facts, const float *values, int64_t count)
{
    double sum = 0;

    for (int64_t k = 0; k < count; k++) {
        const double v = fabs((double)values[k]);
        if (v > facts->largest) facts->largest = v;
        sum += v * v;
    }
    return sum;
}

/* `count` elements of a tensor of the file from `first` on; `from` is the parameter's piece. */
static void fill(const dti_st_spec *spec, const piece *p, const float *from, int64_t first,
                 int64_t count, float *to)
{
    const int64_t rows = p->reversed ? spec->shape[spec->n_axes - 2] : 1;
    const int64_t columns = p->reversed ? spec->shape[spec->n_axes - 1] : 1;

    if (from == NULL)
        memset(to, 0, (size_t)count * sizeof *to);
    else if (!p->reversed)
        memcpy(to, from + first, (size_t)count * sizeof *to);
    else
        for (int64_t k = 0; k < count; k++) {
            const int64_t matrix = (first + k) / (rows * columns);
            const int64_t at = (first + k) % (rows * columns);
            to[k] = from[matrix * rows * columns + at % columns * rows + at / columns];
        }
}

/* Piece number `i`; `whole` is its parameter's gradient, NULL for zeros. */
static dt_status write_piece(gradient_file *f, size_t i, const float *whole)
{
    const dti_st_spec *spec = &f->specs[i];
    const float *from = whole != NULL ? whole + f->pieces[i].first : NULL;
    dt_gradient_facts facts = { .name = spec->name, .n_axes = spec->n_axes, .n = 1 };
    double sum = 0;

    memcpy(facts.shape, spec->shape, sizeof facts.shape);
    for (int a = 0; a < spec->n_axes; a++) facts.n *= spec->shape[a];
    for (int64_t first = 0; first < facts.n; first += FILL) {
        const int64_t count = facts.n - first < FILL ? facts.n - first : FILL;
        fill(spec, &f->pieces[i], from, first, count, f->buffer);
        sum += add_facts(&facts, f->buffer, count);
        if (f->out.fd >= 0)
            DT_TRY(dti_write_at(f->out.fd, f->out.path, f->buffer,
                                (size_t)count * sizeof *f->buffer,
                                f->plan.begin[i] + first * (int64_t)sizeof *f->buffer));
    }
    facts.rms = facts.n > 0 ? sqrt(sum / (double)facts.n) : 0;
    if (isnan(sum)) facts.largest = NAN;
    if (f->options->told != NULL) f->options->told(f->options->told_arg, &facts);
    return DT_OK;
}

static dt_status write_pieces(gradient_file *f, dt_tensor *whole)
{
    dti_host host;
    dt_status st = DT_OK;

    if (whole != NULL) DT_TRY(dti_host_open(whole, DTI_HOST_READS, &host));
    for (; f->done < f->n && f->pieces[f->done].param == f->n_params && st == DT_OK; f->done++)
        st = write_piece(f, f->done, whole != NULL ? host.local.data : NULL);
    return whole != NULL ? dti_host_close(&host, st) : st;
}

/* A rank that cannot write goes on gathering, so that no other waits for it. */
static dt_status write_param(gradient_file *f, const dt_layer *layer, int p)
{
    dt_tensor *g = dt_gradient(f->gradients, dt_layer_param(layer, p)), *whole = NULL;

    if (g != NULL) DT_TRY(dt_full_tensor(g, &whole));
    if (f->buffer != NULL && f->failed == DT_OK) {
        f->failed = write_pieces(f, whole);
        f->why = *dt_last_error();
    }
    dt_tensor_release(&whole);
    f->n_params++;
    return DT_OK;
}

/* What the first rank alone does, all know of. */
static dt_status write_all(gradient_file *f, const char *path)
{
    dt_mesh *mesh = dt_layers_mesh(f->layers);
    const bool first = dti_mesh_place(mesh) == 0;
    dt_status st = first ? begin(f, path) : DT_OK;

    DT_TRY(dti_first_says(mesh, st));
    DT_TRY(each_param(f, write_param));
    if (f->failed != DT_OK) dti_error_restore(&f->why);
    st = dti_output_close(&f->out, f->failed);
    DT_TRY(dti_first_says(mesh, st));
    return DT_OK;
}

dt_status dt_layers_write_gradients(dt_layers *layers, const dt_gradients *gradients,
                                    const char *path, const dt_gradient_file_options *options)
{
    dt_gradient_file_options own = DT_GRADIENT_FILE_OPTIONS_INIT;
    gradient_file f = { .layers = layers,
                        .gradients = gradients,
                        .options = &own,
                        .names = DTI_ARENA_INIT,
                        .out = { .fd = -1 } };
    dt_status st;

    DT_CHECK(layers != NULL && gradients != NULL && (path == NULL || path[0] != '\0'), DT_ERR_ARG,
             "layers or gradients is NULL, or path is empty");
    DT_TRY(dti_options_read("dt_gradient_file_options", "start from DT_GRADIENT_FILE_OPTIONS_INIT",
                            options, &own, sizeof own));
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(dt_layers_mesh(layers))), DT_ERR_ARG,
             "gradients on a dry mesh have no values");
    for (int i = 0; i < dt_layers_count(layers); i++)
        DT_CHECK(
            dt_mesh_equal(dt_layer_mesh(dt_layers_at(layers, i)), dt_layers_mesh(layers)),
            DT_ERR_UNSUPPORTED,
            "%s lies on the ranks of a stage: gradients of a model in stages cannot be written",
            dt_layer_name(dt_layers_at(layers, i)));
    if (!dt_mesh_is_member(dt_layers_mesh(layers))) return DT_OK;
    st = write_all(&f, path);
    (void)dti_output_close(&f.out, st);
    dti_ckpt_close(&f.like);
    dti_st_plan_free(&f.plan);
    dti_free(f.buffer);
    dti_free(f.pieces);
    dti_free(f.specs);
    dti_arena_free(&f.names);
    return st;
}

dt_status dt_gradients_check_file(const char *path)
{
    char shown[DTI_SHOWN_BYTES];
    dti_output out = { .fd = -1 };
    struct stat there;

    DT_CHECK(path != NULL && path[0] != '\0', DT_ERR_ARG, "path is NULL or empty");
    if (stat(path, &there) == 0)
        DT_CHECK(S_ISREG(there.st_mode), DT_ERR_ARG, "%s is %s; name a file",
                 dti_printable(path, shown, sizeof shown),
                 S_ISDIR(there.st_mode) ? "a folder" : "no regular file");
    DT_TRY(dti_output_open(&out, path, NULL));
    (void)dti_output_close(&out, DT_ERR_IO); /* removes it */
    return DT_OK;
}
