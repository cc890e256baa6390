/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: layers are laid over the mesh from the configuration alone, then every rank reads its
 * own slice of every parameter straight into place, or into pinned buffers that a device copies
 * from. */
#include "models/load/load.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "dtensor/device/upload.h"
#include "dtensor/host.h"
#include "dtensor/kernels/kernel.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "mesh/runtime.h"
#include "models/generation/generation_config.h"
#include "models/judge/judge.h"
#include "models/load/param_tensors.h"
#include "models/policies/policies.h"
#include "placements/layout.h"

typedef struct loader {
    dt_model *model;
    const dti_ckpt *ckpt;
    const dt_load_options *options;
    dti_st_stage stage;
    dti_upload *upload; /* NULL: the host reads into place */
    dti_param_tensor *tensors;
    size_t n_tensors; /* of the parameter that is read */
    int64_t done;
    int64_t total;
} loader;

/* A parameter's tensor, zeroed, where its style has laid it. */
static dt_status make_param(dt_model *m, const dt_layer *layer, int param, dt_tensor **out)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    const int64_t shape[] = { info.axis[0].extent, info.axis[1].extent, info.axis[2].extent };

    DT_TRY(dti_tensor_create_exact(m->mesh, dt_layer_param_layout(layer, param), m->info.dtype,
                                   shape, out));
    dti_tensor_set_kind(*out, DTI_KIND_WEIGHTS);
    m->local_bytes +=
        dti_local_count(dt_tensor_local(*out)) * (int64_t)dt_dtype_size(m->info.dtype);
    return DT_OK;
}

/* A tied weight belongs to the partner. */
static bool has_own(const dt_layer *layer, int param)
{
    return dt_layer_tied_to(layer) == NULL || param != DT_PARAM_WEIGHT;
}

static dt_status add_tensor(void *arg, const dti_param_tensor *t)
{
    loader *l = arg;

    DT_CHECK(t->entry != NULL, DT_ERR_INTERNAL, "%s was there before", t->name);
    l->tensors[l->n_tensors] = *t;
    l->tensors[l->n_tensors++].name = t->entry->name;
    l->done += t->entry->end - t->entry->begin;
    return DT_OK;
}

/* The tensors that the parameter is made of: one, or of experts two each. */
static dt_status find_tensors(loader *l, const dt_param_info *info)
{
    const size_t most = info->kind == DT_LAYER_EXPERTS ? 2 * (size_t)info->axis[0].extent + 1 : 1;

    l->n_tensors = 0;
    DT_TRY(dti_alloc_array(most, sizeof *l->tensors, (void **)&l->tensors));
    DT_TRY(dti_each_tensor(l->ckpt, l->model->arch, info, add_tensor, l));
    return DT_OK;
}

static dt_status read_in_place(loader *l, bool reversed, dt_tensor *x)
{
    dt_status st = DT_OK;
    dti_host into;

    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &into));
    for (size_t i = 0; i < l->n_tensors && st == DT_OK; i++)
        st = dti_read_param(l->ckpt, &l->tensors[i], reversed, &into, &l->stage);
    DT_TRY(dti_host_close(&into, st));
    return DT_OK;
}

static dt_status read_values(loader *l, const dt_param_info *info, dt_tensor *x)
{
    const dti_param_source from = {
        .name = l->n_tensors == 1 ? l->tensors[0].name : info->layer,
        .ckpt = l->ckpt,
        .tensors = l->tensors,
        .n_tensors = l->n_tensors,
        .reversed = info->reversed,
        .stage = &l->stage,
    };

    if (l->upload != NULL)
        DT_TRY(dti_upload_param(&from, x, l->upload));
    else
        DT_TRY(read_in_place(l, info->reversed, x));
    return DT_OK;
}

/* The layer has x before it is read, so that x lives until copies to it have been waited for. */
static dt_status load_param(loader *l, dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_status st = DT_OK;
    dt_tensor *x = NULL;

    DT_TRY(make_param(l->model, layer, param, &x));
    DT_TRY_TO(done, st, dt_layer_set_param(layer, param, x));
    DT_TRY_TO(done, st, find_tensors(l, &info));
    DT_TRY_TO(done, st, read_values(l, &info, x));
    if (l->options->progress != NULL && dt_runtime_rank(dt_mesh_runtime(l->model->mesh)) == 0)
        l->options->progress(l->options->progress_arg, l->done, l->total);
done:
    dti_free(l->tensors);
    l->tensors = NULL;
    dt_tensor_release(&x);
    return st;
}

static dt_status load_params(loader *l)
{
    dt_layers *layers = l->model->layers;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (has_own(layer, p)) DT_TRY(load_param(l, layer, p));
    }
    return DT_OK;
}

/* Takes what parameters are read with, and gives it back. */
static dt_status load_all(loader *l)
{
    dt_runtime *rt = dt_mesh_runtime(l->model->mesh);
    dt_status st = DT_OK;
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    DT_TRY(dti_st_stage_create(dti_st_stage_bytes(dt_runtime_size(rt)), dti_runtime_pool(rt),
                               &l->stage));
    if (!device->ops->host_visible) DT_TRY_TO(done, st, device->ops->upload(device, &l->upload));
    DT_TRY_TO(done, st, load_params(l));
done:
    st = dti_upload_close(&l->upload, st);
    dti_st_stage_destroy(&l->stage);
    return st;
}

static void log_remark(void *rt, const char *text)
{
    dti_runtime_log(rt, DT_LOG_WARNING, "%s", text);
}

/* Rank 0 says for all what is odd about the checkpoint, and that its plan is followed. */
static void warn(dt_mesh *mesh, const char *dir, const dti_described *d, const dt_load_options *o)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);

    if (dt_runtime_rank(rt) != 0) return;
    dti_describe_remarks(d, dir, log_remark, rt);
    if (o->plan == &d->plan)
        dti_runtime_log(rt, DT_LOG_INFO, "%s holds a plan of %d rules, which is followed",
                        d->plan.source, d->plan.n_rules);
}

dt_status dti_check_load_options(const dt_load_options *o)
{
    DT_CHECK(o->n_policies >= 0 && (o->policies != NULL || o->n_policies == 0), DT_ERR_ARG,
             "options.policies is a list of %d", o->n_policies);
    DT_CHECK(o->keep_dtype || o->dtype == DT_F32 || o->dtype == DT_BF16 || o->dtype == DT_F16,
             DT_ERR_ARG, "dtype %s: models compute in f32, bf16 or f16", dt_dtype_name(o->dtype));
    DT_CHECK(o->dim != NULL, DT_ERR_ARG, "options.dim is NULL");
    return DT_OK;
}

/* "model.layers.*" with numbers; where an architecture does not say, "block 3". */
static dt_status name_blocks(dt_model *m)
{
    const char *pattern = m->arch->blocks != NULL ? m->arch->blocks : "block *";
    const int n = (int)strcspn(pattern, "*");

    DT_TRY(dti_alloc_array((size_t)m->info.n_layers, sizeof *m->block_names,
                           (void **)&m->block_names));
    for (int64_t i = 0; i < m->info.n_layers; i++)
        (void)snprintf(m->block_names[i].text, sizeof m->block_names[i].text, "%.*s%lld%.*s", n,
                       pattern, (long long)i, pattern[n] == '*' ? 20 : 0, pattern + n + 1);
    return DT_OK;
}

dt_status dti_model_make(dti_described *d, dt_mesh *mesh, const dt_load_options *o, dt_model **out)
{
    dt_status st = DT_OK;
    dt_model *m;

    *out = NULL;
    if (!o->keep_dtype) d->info.dtype = o->dtype;
    DT_TRY(dti_new(sizeof *m, &m));
    m->refs = 1;
    m->arch = d->arch;
    m->info = d->info;
    m->mesh = dt_mesh_retain(mesh);
    dti_runtime_count(dt_mesh_runtime(mesh), 1);
    m->self = d->self;
    d->self = NULL;
    m->folder = d->folder;
    d->folder = NULL;
    m->generation = d->generation;
    d->generation = NULL;
    DT_TRY_TO(fail, st, name_blocks(m));
    if (o->sequence_parallel) dti_builder_cut_tokens(&d->builder);
    DT_TRY_TO(fail, st, dti_builder_finish(&d->builder, mesh, o->dim, o->plan, &m->layers));
    DT_TRY_TO(fail, st, dti_policies_apply(d, o, mesh, m->layers));
    DT_TRY_TO(fail, st, m->arch->prepare(m->self, mesh, &m->info));
    *out = m;
    return DT_OK;

fail:
    dt_model_release(&m);
    return st;
}

dt_status dti_model_make_whole(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                               const dti_filler *fill, dt_model **out)
{
    dt_status st = DT_OK;
    dt_model *m;

    *out = NULL;
    if (o->keep_dtype && !d->dtype_known) d->info.dtype = DT_F32; /* as Transformers does */
    DT_TRY(dti_model_make(d, mesh, o, &m));
    for (int i = 0; i < dt_layers_count(m->layers); i++) {
        dt_layer *layer = dt_layers_at(m->layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            dt_tensor *x = NULL;
            if (!has_own(layer, p)) continue;
            DT_TRY_TO(fail, st, make_param(m, layer, p, &x));
            if (fill != NULL) st = fill->fn(fill->arg, layer, p, x);
            if (st == DT_OK) st = dt_layer_set_param(layer, p, x);
            dt_tensor_release(&x);
            DT_TRY_TO(fail, st, st);
        }
    }
    *out = m;
    return DT_OK;

fail:
    dt_model_release(&m);
    return st;
}

/* What the files of weights say besides is judged again: that the head is no copy of the embedding,
 * or which dtype it all has. */
static dt_status check_weights(dt_mesh *mesh, const char *dir, const dt_load_options *o,
                               dti_described *d, dti_ckpt **ckpt, int64_t *total)
{
    const bool tied = d->info.tied, dtype_known = d->dtype_known;

    DT_TRY(dti_ckpt_open(dir, ckpt));
    DT_TRY(dti_check_checkpoint(d, *ckpt, NULL, total));
    if (d->info.tied != tied || d->dtype_known != dtype_known)
        DT_TRY(dti_judge_together(mesh, dir, d, o));
    return DT_OK;
}

/* On a dry mesh: from config.json alone, and from the headers of the weights if there are any. */
static dt_status load_dry(dt_mesh *mesh, const char *dir, dt_load_options *o, dt_model **out)
{
    dti_described d = { 0 };
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;

    DT_TRY(dti_describe_for(dir, mesh, o, &d));
    o->plan = dti_plan_of(&d, o);
    if (dti_ckpt_exists(dir)) {
        DT_TRY_TO(done, st, dti_ckpt_open(dir, &ckpt));
        DT_TRY_TO(done, st, dti_check_checkpoint(&d, ckpt, NULL, NULL));
    }
    DT_TRY_TO(done, st, dti_model_make_whole(&d, mesh, o, NULL, out));
    warn(mesh, dir, &d, o);
done:
    dti_ckpt_close(&ckpt);
    dti_described_free(&d);
    return st;
}

dt_status dt_model_load(dt_mesh *mesh, const char *dir, const dt_load_options *options,
                        dt_model **out)
{
    dt_load_options own = DT_LOAD_OPTIONS_INIT;
    loader l = { .options = &own };
    dti_described d = { 0 };
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dir != NULL, DT_ERR_ARG, "mesh or dir is NULL");
    DT_TRY(dti_options_read("dt_load_options", "start from DT_LOAD_OPTIONS_INIT", options, &own,
                            sizeof own));
    DT_TRY(dti_check_load_options(l.options));
    if (dt_runtime_is_dry(dt_mesh_runtime(mesh))) return load_dry(mesh, dir, &own, out);
    DT_TRY_TO(done, st, dti_describe_for(dir, mesh, l.options, &d));
    own.plan = dti_plan_of(&d, l.options);
    DT_TRY_TO(done, st, dti_judge_together(mesh, dir, &d, l.options));
    DT_TRY_TO(done, st, check_weights(mesh, dir, l.options, &d, &ckpt, &l.total));
    DT_TRY_TO(done, st, dti_model_make(&d, mesh, l.options, &l.model));
    l.ckpt = ckpt;
    DT_TRY_TO(done, st, load_all(&l));
    warn(mesh, dir, &d, l.options);
    if (d.generation_error != NULL && dt_runtime_rank(dt_mesh_runtime(mesh)) == 0)
        dti_runtime_log(dt_mesh_runtime(mesh), DT_LOG_INFO, "%s", d.generation_error);
    *out = l.model;
    l.model = NULL;
done:
    dti_ckpt_close(&ckpt);
    dti_described_free(&d);
    dt_model_release(&l.model);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

void dt_model_release(dt_model **model)
{
    dt_model *m = model ? *model : NULL;

    if (m == NULL) return;
    *model = NULL;
    if (--m->refs > 0) return;
    dti_parallelized_forget(m);
    m->arch->release(m->self);
    dti_free(m->self);
    dti_free(m->block_names);
    dti_free(m->folder);
    dti_generation_config_release(&m->generation);
    dt_layers_release(&m->layers);
    dti_runtime_count(dt_mesh_runtime(m->mesh), -1);
    dt_mesh_release(&m->mesh);
    dti_free(m);
}

const dt_model_info *dt_model_info_of(const dt_model *m)
{
    return m != NULL ? &m->info : NULL;
}

dt_layers *dt_model_layers(const dt_model *m)
{
    return m != NULL ? m->layers : NULL;
}

dt_mesh *dt_model_mesh(const dt_model *m)
{
    return m != NULL ? m->mesh : NULL;
}

int64_t dt_model_local_bytes(const dt_model *m)
{
    return m != NULL ? m->local_bytes : 0;
}
