/* SPDX-License-Identifier: Apache-2.0
 *
 * From files: every rank reads its own slice of every parameter straight into place, or into pinned
 * buffers that a device copies from. */
#include "weights/read_layers.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "dtensor/device/upload.h"
#include "dtensor/host.h"
#include "dtensor/kernels/kernel.h"
#include "dtensor/leaves.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/kind.h"
#include "weights/packed_params.h"
#include "weights/param_tensors.h"

typedef struct loader {
    dt_layers *layers;
    const dti_weights_source *from;
    dti_st_stage stage;
    dti_upload *upload;        /* NULL: the host reads into place */
    dti_param_tensor *tensors; /* of the parameter that is read */
    size_t n_tensors, capacity;
    int64_t done;
    dt_layer *layer; /* that is read */
} loader;

dt_status dti_make_param(const dt_layer *layer, int param, dt_dtype dtype, dt_tensor **out)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES];

    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    DT_TRY(dti_tensor_create_in(dti_layer_memory(layer), dt_layer_mesh(layer),
                                dt_layer_param_layout(layer, param), dti_param_dtype(&info, dtype),
                                shape, out));
    dti_tensor_set_kind(*out, DTI_KIND_WEIGHTS);
    return DT_OK;
}

static dt_status add_tensor(void *arg, const dti_param_tensor *t)
{
    loader *l = arg;

    DT_CHECK(t->entry != NULL, DT_ERR_INTERNAL, "%s was there before", t->name);
    DT_TRY(dti_grow((void **)&l->tensors, &l->capacity, l->n_tensors + 1, sizeof *l->tensors));
    l->tensors[l->n_tensors] = *t;
    l->tensors[l->n_tensors++].name = t->entry->name;
    l->done += t->entry->end - t->entry->begin;
    return DT_OK;
}

static void say_progress(const loader *l)
{
    const dti_weights_source *from = l->from;

    if (from->progress != NULL && dt_runtime_rank(dt_mesh_runtime(dt_layers_mesh(l->layers))) == 0)
        from->progress(from->progress_arg, l->done, from->total);
}

static dt_status read_in_place(loader *l, bool reversed, dt_tensor *x)
{
    dt_status st = DT_OK;
    dti_host into;

    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &into));
    for (size_t i = 0; i < l->n_tensors && st == DT_OK; i++)
        st = dti_read_param(l->from->ckpt, &l->tensors[i], reversed, &into, &l->stage);
    DT_TRY(dti_host_close(&into, st));
    return DT_OK;
}

static dt_status read_values(loader *l, const dt_param_info *info, dt_tensor *x)
{
    const dti_param_source source = {
        .name = l->n_tensors == 1 ? l->tensors[0].name : info->layer,
        .ckpt = l->from->ckpt,
        .tensors = l->tensors,
        .n_tensors = l->n_tensors,
        .reversed = info->reversed,
        .stage = &l->stage,
    };

    if (l->upload != NULL)
        DT_TRY(dti_upload_param(&source, x, l->upload));
    else
        DT_TRY(read_in_place(l, info->reversed, x));
    return DT_OK;
}

/* Codes, and what belongs to them: the layer gets all of it or nothing. */
static dt_status load_packed(loader *l, dt_layer *layer, dt_dtype dtype)
{
    for (int p = 0; p < dt_layer_n_params(layer); p++) { /* behind the codes */
        const dt_param_info info = dt_layer_param_info(layer, p);
        if (info.packed == DT_PACKED_SCALES || info.packed == DT_PACKED_ZEROS)
            DT_TRY(dti_each_tensor(l->from->ckpt, l->from->spellings, &info, add_tensor, l));
    }
    DT_TRY(dti_read_packed(
        layer, &(dti_packed_source){ l->from->ckpt, &l->stage, l->tensors, l->n_tensors }, dtype));
    say_progress(l);
    return DT_OK;
}

/* The layer has x before it is read, so that x lives until copies to it have been waited for. */
static dt_status load_param(loader *l, dt_layer *layer, int param)
{
    const dti_weights_source *from = l->from;
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    dt_dtype dtype;

    if (info.packed != DT_PACKED_NOT && info.packed != DT_PACKED_CODES)
        return DT_OK; /* with them */
    l->n_tensors = 0;
    DT_TRY(dti_each_tensor(from->ckpt, from->spellings, &info, add_tensor, l));
    if (!from->keep_dtype)
        dtype = from->dtype;
    else if (l->n_tensors > 0)
        dtype = l->tensors[0].entry->dtype;
    else /* an adapter, as the layer that it is of */
        dtype = dt_tensor_dtype(dt_layer_param(layer, 0));
    if (info.packed == DT_PACKED_CODES) return load_packed(l, layer, dtype);
    DT_TRY(dti_make_param(layer, param, dtype, &x));
    if (l->n_tensors == 0) DT_TRY_TO(done, st, dti_param_begin(layer, param, x, from->seed));
    DT_TRY_TO(done, st, dt_layer_set_param(layer, param, x));
    if (l->n_tensors > 0 && dt_mesh_is_member(dt_layer_mesh(layer)))
        DT_TRY_TO(done, st, read_values(l, &info, x));
    say_progress(l);
done:
    dt_tensor_release(&x);
    return st;
}

static dt_status load_params(loader *l)
{
    for (int i = 0; i < dt_layers_count(l->layers); i++) {
        dt_layer *layer = dt_layers_at(l->layers, i);
        l->layer = layer;
        dti_layer_clear(layer);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_holds_param(layer, p)) DT_TRY(load_param(l, layer, p));
    }
    return DT_OK;
}

/* Takes what parameters are read with, and gives it back. */
dt_status dti_layers_read(dt_layers *layers, const dti_weights_source *from)
{
    dt_runtime *rt = dt_mesh_runtime(dt_layers_mesh(layers));
    loader l = { .layers = layers, .from = from };
    dt_status st = DT_OK;
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    DT_TRY(dti_st_stage_create(dti_st_stage_bytes(dt_runtime_size(rt)), dti_runtime_pool(rt),
                               &l.stage));
    if (!from->keep_dtype) DT_TRY_TO(done, st, dti_layers_check_room(layers, from->dtype));
    if (!device->ops->host_visible) DT_TRY_TO(done, st, device->ops->upload(device, &l.upload));
    DT_TRY_TO(done, st, load_params(&l));
done:
    st = dti_upload_close(&l.upload, st);
    if (st != DT_OK && l.layer != NULL)
        dti_layer_clear(l.layer); /* nobody computes with half of it */
    dti_st_stage_destroy(&l.stage);
    dti_free(l.tensors);
    return st;
}

/* A copy of what another stage has; it was given its value before. Collective over both. */
static dt_status copy_value(const dt_layer *layer, int param, dt_tensor *x)
{
    dt_tensor *from = dt_layer_param(dt_layer_tied_to(layer), param), *y;
    dt_placement want[DT_MAX_DIMS];
    dt_status st;

    for (int m = 0; m < dt_layout_n_dims(dt_tensor_layout(x)); m++)
        want[m] = dt_layout_placement(dt_tensor_layout(x), m);
    DT_TRY(dt_copy_to(from, dt_tensor_mesh(x), want, &y));
    st = dti_move_into(NULL, y, x);
    dt_tensor_release(&y);
    return st;
}

dt_status dti_layers_fill(dt_layers *layers, dt_dtype dtype, const dti_filler *fill)
{
    DT_TRY(dti_layers_check_room(layers, dtype));
    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        dti_layer_clear(layer);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            dt_status st = DT_OK;
            dt_tensor *x;
            if (!dt_layer_holds_param(layer, p)) continue;
            DT_TRY(dti_make_param(layer, p, dtype, &x));
            if (fill != NULL)
                st = dt_layer_owns_param(layer, p) ? fill->fn(fill->arg, layer, p, x)
                                                   : copy_value(layer, p, x);
            if (st == DT_OK) st = dt_layer_set_param(layer, p, x);
            dt_tensor_release(&x);
            DT_TRY(st);
        }
    }
    return DT_OK;
}

int64_t dt_layers_local_bytes(const dt_layers *layers)
{
    int64_t bytes = 0;

    for (int i = 0; layers != NULL && i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at((dt_layers *)(uintptr_t)layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_tensor *x = dt_layer_param(layer, p);
            if (x != NULL && dt_layer_holds_param(layer, p))
                bytes += dti_local_count(dt_tensor_local(x)) *
                         (int64_t)dt_dtype_size(dt_tensor_dtype(x));
        }
    }
    return bytes;
}

/* --- of a program's own ----------------------------------------------------------------------- */

/* What a folder's or file's tensors have to be for one list of layers. */
typedef struct checker {
    const dti_ckpt *ckpt;
    const dt_read_options *options;
    const char *layer, *param;
    const dti_st_entry **used; /* every tensor that a parameter is made of */
    size_t n_used, capacity;
    int64_t bytes;
} checker;

static dt_status check_tensor(void *arg, const dti_param_tensor *t)
{
    checker *c = arg;
    char is[DTI_SHAPE_BYTES], want[DTI_SHAPE_BYTES];
    const dti_st_entry *e = t->entry;

    DT_CHECK(e != NULL, DT_ERR_FORMAT, "%s: tensor \"%s\" of layer %s is missing",
             dti_ckpt_folder(c->ckpt), t->name, c->layer);
    (void)dti_shape_text(e->shape, e->n_axes, is, sizeof is);
    (void)dti_shape_text(t->shape, t->n_axes, want, sizeof want);
    DT_CHECK(strcmp(is, want) == 0, DT_ERR_FORMAT,
             "%s: tensor \"%s\" has shape %s, layer %s needs %s", dti_ckpt_label(c->ckpt, e->name),
             e->name, is, c->layer, want);
    DT_CHECK(e->supported && dt_dtype_is_float(e->dtype) && e->dtype != DT_F64, DT_ERR_FORMAT,
             "%s: tensor \"%s\" is %s: parameters are f32, bf16 or f16",
             dti_ckpt_label(c->ckpt, e->name), e->name, e->dtype_name);
    DT_TRY(dti_grow((void **)&c->used, &c->capacity, c->n_used + 1, sizeof(const dti_st_entry *)));
    c->used[c->n_used++] = e;
    c->bytes += e->end - e->begin;
    return DT_OK;
}

static int by_address(const void *left, const void *right)
{
    const uintptr_t l = (uintptr_t) * (const dti_st_entry *const *)left;
    const uintptr_t r = (uintptr_t) * (const dti_st_entry *const *)right;

    return l < r ? -1 : l > r;
}

static bool is_used(const checker *c, const dti_st_entry *e)
{
    return bsearch(&e, c->used, c->n_used, sizeof(const dti_st_entry *), by_address) != NULL;
}

/* The first tensor that nobody asks for: an error, or one line of the log. */
static dt_status check_unused(const checker *c, dt_runtime *rt)
{
    const size_t n = dti_ckpt_count(c->ckpt);
    const dti_st_entry *first = NULL;

    if (c->n_used > 1) qsort((void *)c->used, c->n_used, sizeof(const dti_st_entry *), by_address);
    for (size_t i = 0; i < n && first == NULL; i++)
        if (!is_used(c, dti_ckpt_at(c->ckpt, i))) first = dti_ckpt_at(c->ckpt, i);
    if (first == NULL) return DT_OK;
    DT_CHECK(!c->options->strict, DT_ERR_FORMAT,
             "%s: no layer asks for tensor \"%s\"; read it without `strict` to leave it out",
             dti_ckpt_label(c->ckpt, first->name), first->name);
    if (dt_runtime_rank(rt) == 0)
        dti_runtime_log(rt, DT_LOG_WARNING, "%s: no layer asks for tensor \"%s\" (%zu of %zu used)",
                        dti_ckpt_label(c->ckpt, first->name), first->name, c->n_used, n);
    return DT_OK;
}

static dt_status check_all(dt_layers *layers, checker *c)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_param_info info = dt_layer_param_info(layer, p);
            c->layer = info.layer;
            if (dt_layer_owns_param(layer, p))
                DT_TRY(dti_each_tensor(c->ckpt, c->options->spellings, &info, check_tensor, c));
        }
    }
    return check_unused(c, dt_mesh_runtime(dt_layers_mesh(layers)));
}

dt_status dt_layers_read(dt_layers *layers, const char *path, const dt_read_options *options)
{
    dt_read_options own = DT_READ_OPTIONS_INIT;
    dti_weights_source from = { 0 };
    checker c = { .options = &own };
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;

    DT_CHECK(layers != NULL && path != NULL, DT_ERR_ARG, "layers or path is NULL");
    DT_TRY(dti_options_read("dt_read_options", "start from DT_READ_OPTIONS_INIT", options, &own,
                            sizeof own));
    DT_CHECK(own.keep_dtype || own.dtype == DT_F32 || own.dtype == DT_BF16 || own.dtype == DT_F16,
             DT_ERR_ARG, "dtype %s: parameters are f32, bf16 or f16", dt_dtype_name(own.dtype));
    DT_TRY_TO(done, st, dti_ckpt_open_weights(path, &ckpt));
    c.ckpt = ckpt;
    DT_TRY_TO(done, st, check_all(layers, &c));
    from = (dti_weights_source){ .ckpt = ckpt,
                                 .spellings = own.spellings,
                                 .keep_dtype = own.keep_dtype,
                                 .dtype = own.dtype,
                                 .progress = own.progress,
                                 .progress_arg = own.progress_arg,
                                 .total = c.bytes,
                                 .seed = own.seed };
    DT_TRY_TO(done, st, dti_layers_read(layers, &from));
done:
    dti_free((void *)c.used);
    dti_ckpt_close(&ckpt);
    return dti_runtime_alone(dt_mesh_runtime(dt_layers_mesh(layers)), st);
}
