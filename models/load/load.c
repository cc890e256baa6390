/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: layers are laid over the mesh from the configuration alone, then every rank reads its
 * own slices (weights/read_layers.c). */
#include "models/load/load.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "mesh/runtime.h"
#include "mesh/share.h"
#include "models/generation/generation_config.h"
#include "models/judge/judge.h"
#include "models/load/agreement.h"
#include "models/load/mesh_dims.h"
#include "models/policies/policies.h"
#include "parallel_styles/layer_rules.h"
#include "placements/layout.h"
#include "weights/read_layers.h"

static const dti_live models = { "model", "models" };

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
    if (d->n_idle_rules > 0)
        dti_runtime_log(rt, DT_LOG_INFO,
                        "rule \"%s\"%s of the plan passed over: %s has nothing to lay out there",
                        d->idle_rule, d->n_idle_rules > 1 ? " and others" : "", d->info.model_type);
    if (o->plan == &d->plan)
        dti_runtime_log(rt, DT_LOG_INFO, "%s holds a plan of %d rules, which is followed",
                        d->plan.source, d->plan.n_rules);
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
    const dti_dims dims = dti_dims_of(mesh);
    dt_status st = DT_OK;
    dt_model *m;

    *out = NULL;
    DT_TRY(dti_dims_check(&dims, o));
    if (!o->keep_dtype) d->info.dtype = o->dtype;
    DT_TRY(dti_new(sizeof *m, &m));
    m->refs = 1;
    m->arch = d->arch;
    m->info = d->info;
    m->mesh = dt_mesh_retain(mesh);
    m->batch_dims = dti_dims_batch(&dims, o);
    m->kept_dims = dti_dims_kept(&dims, o);
    dti_runtime_count(dt_mesh_runtime(mesh), &models, 1);
    m->self = d->self;
    d->self = NULL;
    m->folder = d->folder;
    d->folder = NULL;
    m->beside = d->beside;
    d->beside = NULL;
    m->generation = d->generation;
    d->generation = NULL;
    DT_TRY_TO(fail, st, name_blocks(m));
    DT_TRY_TO(fail, st, dti_stages_cut(d, mesh, o, &m->stages));
    m->here = dti_stages_here(&m->stages, mesh);
    if (o->sequence_parallel) dti_builder_cut_tokens(&d->builder);
    DT_TRY_TO(fail, st, dti_builder_finish(&d->builder, mesh, o->dim, o->plan, &m->layers));
    DT_TRY_TO(fail, st, dti_say_sizes(d));
    *dti_layers_facts(m->layers) = d->facts;
    d->facts = (dti_facts){ 0 };
    DT_TRY_TO(fail, st, dti_policies_apply(d, o, mesh, m->layers));
    if (o->offload != NULL) DT_TRY_TO(fail, st, dt_layers_offload(m->layers, o->offload));
    DT_TRY_TO(fail, st, dti_stages_open(&m->stages, mesh));
    if (m->arch->prepare != NULL) DT_TRY_TO(fail, st, m->arch->prepare(m->self, m->here, &m->info));
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
    st = dti_layers_fill(m->layers, m->info.dtype, fill);
    if (st != DT_OK)
        dt_model_release(&m);
    else
        *out = m;
    return st;
}

static dt_status check_own(const dt_arch *arch, const dt_model_info *i)
{
    DT_TRY(dti_arch_check(arch, false));
    DT_CHECK(i->vocab_size >= 1 && i->hidden_size >= 1 && i->n_layers >= 1 && i->n_heads >= 1 &&
                 i->n_kv_heads >= 1 && i->head_dim >= 1 && i->max_positions >= 1,
             DT_ERR_ARG,
             "%s: info has %lld words, %lld columns, %lld layers, %lld heads, %lld kv heads of "
             "%lld columns, %lld positions: all have to be 1 or more",
             arch->model_type, (long long)i->vocab_size, (long long)i->hidden_size,
             (long long)i->n_layers, (long long)i->n_heads, (long long)i->n_kv_heads,
             (long long)i->head_dim, (long long)i->max_positions);
    DT_CHECK(i->n_heads % i->n_kv_heads == 0, DT_ERR_ARG, "%s: %lld heads over %lld kv heads",
             arch->model_type, (long long)i->n_heads, (long long)i->n_kv_heads);
    DT_CHECK(i->n_eos >= 0 && i->n_eos <= DT_MAX_EOS, DT_ERR_ARG, "%s: %d ends of text",
             arch->model_type, i->n_eos);
    DT_CHECK(i->dtype == DT_F32 || i->dtype == DT_BF16 || i->dtype == DT_F16, DT_ERR_ARG,
             "%s: dtype %s: models compute in f32, bf16 or f16", arch->model_type,
             dt_dtype_name(i->dtype));
    return DT_OK;
}

dt_status dt_model_create(dt_mesh *mesh, const dt_arch *arch, const void *self,
                          const dt_model_info *info, const dt_load_options *options, dt_model **out)
{
    dt_load_options own;
    dt_arch read = { .size = sizeof read };
    dti_described d = { 0 };
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && arch != NULL && self != NULL && info != NULL, DT_ERR_ARG,
             "mesh, arch, self or info is NULL");
    DT_TRY(dti_load_options_read(options, &own));
    DT_CHECK(own.n_policies == 0, DT_ERR_UNSUPPORTED,
             "policies change a configuration that is read from a folder; give a plan instead");
    DT_TRY(dti_options_read("dt_arch", "set it to sizeof(dt_arch)", arch, &read, sizeof read));
    DT_TRY(check_own(&read, info));
    DT_CHECK(arch->size == sizeof(dt_arch), DT_ERR_UNSUPPORTED,
             "%s: a dt_arch of %zu bytes, this library's has %zu: compile it again",
             read.model_type, arch->size, sizeof(dt_arch));
    DT_TRY(dti_describe_own(dt_mesh_runtime(mesh), arch, self, info, &d));
    DT_TRY_TO(done, st, dti_pack_weights(&d, own.weights));
    DT_TRY_TO(done, st, dti_plan_settle(&d, &own));
    own.plan = d.asked;
    own.plan_name = own.fully_shard = NULL; /* found, and in the plan */
    DT_TRY_TO(done, st, dti_judge_together(mesh, arch->model_type, &d, &own));
    DT_TRY_TO(done, st, dti_model_make(&d, mesh, &own, out));
done:
    dti_described_free(&d);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

/* A checkpoint opened for a model. */
typedef struct opening {
    const char *dir;
    dti_described *d;
} opening;

/* Once per process: of what no parameter asks for nothing is kept. */
static dt_status open_for(void *arg, void **out)
{
    const opening *o = arg;
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;

    *out = NULL;
    DT_TRY(dti_ckpt_open(o->dir, &ckpt));
    DT_TRY_TO(fail, st, dti_check_checkpoint(o->d, ckpt, NULL, NULL));
    DT_TRY_TO(fail, st, dti_forget_unused(o->d, ckpt));
    *out = ckpt;
    return DT_OK;

fail:
    dti_ckpt_close(&ckpt);
    return st;
}

static void close_ckpt(void *object)
{
    dti_ckpt *ckpt = object;

    dti_ckpt_close(&ckpt);
}

/* The checkpoint that a load reads from. */
typedef struct weights_at_hand {
    dti_share *share;     /* of the ranks of this process */
    dti_ckpt *own;        /* where that lacks what this model asks for; or NULL */
    const dti_ckpt *ckpt; /* one of them */
} weights_at_hand;

static void let_go(weights_at_hand *w)
{
    dti_ckpt_close(&w->own);
    dti_share_put(&w->share);
}

/* Loads with other wishes ask for other tensors: what one keeps is not what another needs, and a
 * rank may be a load ahead. */
dt_status dti_checkpoint_key(const char *dir, const dt_load_options *o, char **out)
{
    const size_t bytes = strlen(dir) + 24;

    DT_TRY(dti_alloc(bytes, (void **)out));
    (void)snprintf(*out, bytes, "%s#%016llx", dir, (unsigned long long)dti_hash_plans(o));
    return DT_OK;
}

/* What the files of weights say besides is judged again: that the head is no copy of the embedding,
 * or which dtype it all has. */
static dt_status check_weights(dt_mesh *mesh, const char *dir, const dt_load_options *o,
                               dti_described *d, weights_at_hand *w, int64_t *total)
{
    const bool tied = d->info.tied, dtype_known = d->dtype_known;
    opening how = { dir, d };
    char *key = NULL;
    dt_status st;

    DT_TRY(dti_checkpoint_key(dir, o, &key));
    st = dti_share_get(dt_mesh_runtime(mesh), key, open_for, &how, close_ckpt, &w->share);
    dti_free(key);
    DT_TRY(st);
    w->ckpt = w->share->object;
    st = dti_check_checkpoint(d, w->ckpt, NULL, total);
    if (st == DT_ERR_FORMAT || st == DT_ERR_UNSUPPORTED) { /* made for a model of other wishes */
        DT_TRY(dti_ckpt_open(dir, &w->own));
        w->ckpt = w->own;
        st = dti_check_checkpoint(d, w->ckpt, NULL, total);
    }
    DT_TRY(st);
    if (d->info.tied != tied || d->dtype_known != dtype_known)
        DT_TRY(dti_judge_together(mesh, dir, d, o));
    return DT_OK;
}

/* On a dry mesh: from config.json alone, and from the headers of the weights if there are any. */
static dt_status load_dry(dt_mesh *mesh, const char *dir, dti_described *d,
                          const dt_load_options *o, dt_model **out)
{
    dti_ckpt *ckpt = NULL;
    dt_status st = DT_OK;

    if (dti_ckpt_exists(dir)) {
        DT_TRY_TO(done, st, dti_ckpt_open(dir, &ckpt));
        DT_TRY_TO(done, st, dti_check_checkpoint(d, ckpt, NULL, NULL));
    }
    DT_TRY_TO(done, st, dti_model_make_whole(d, mesh, o, NULL, out));
    warn(mesh, dir, d, o);
done:
    dti_ckpt_close(&ckpt);
    return st;
}

dt_status dt_model_load(dt_mesh *mesh, const char *dir, const dt_load_options *options,
                        dt_model **out)
{
    dt_load_options own;
    dti_weights_source from = { 0 };
    dti_described d = { 0 };
    weights_at_hand weights = { 0 };
    dt_model *m = NULL;
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dir != NULL, DT_ERR_ARG, "mesh or dir is NULL");
    DT_TRY_TO(done, st, dti_describe_load(mesh, dir, options, &own, &d));
    if (dt_runtime_is_dry(dt_mesh_runtime(mesh))) {
        DT_TRY_TO(done, st, load_dry(mesh, dir, &d, &own, out));
        goto done;
    }
    DT_TRY_TO(done, st, dti_judge_together(mesh, dir, &d, &own));
    st = check_weights(mesh, dir, &own, &d, &weights, &from.total);
    if (st == DT_OK) st = dti_model_make(&d, mesh, &own, &m);
    DT_TRY_TO(done, st, dti_check_same_files(mesh, st, m, d.config_hash, weights.ckpt));
    from = (dti_weights_source){ .ckpt = weights.ckpt,
                                 .spellings = m->arch->spellings,
                                 .dtype = m->info.dtype,
                                 .progress = own.progress,
                                 .progress_arg = own.progress_arg,
                                 .total = from.total };
    DT_TRY_TO(done, st, dti_layers_read(m->layers, &from));
    warn(mesh, dir, &d, &own);
    if (d.generation_error != NULL && dt_runtime_rank(dt_mesh_runtime(mesh)) == 0)
        dti_runtime_log(dt_mesh_runtime(mesh), DT_LOG_INFO, "%s", d.generation_error);
    *out = m;
    m = NULL;
done:
    let_go(&weights);
    dti_described_free(&d);
    dt_model_release(&m);
    return dti_runtime_alone(dt_mesh_runtime(mesh), st);
}

void dt_model_release(dt_model **model)
{
    dt_model *m = model ? *model : NULL;

    if (m == NULL) return;
    *model = NULL;
    if (--m->refs > 0) return;
    dti_parallelized_forget(m);
    if (m->arch->release != NULL) m->arch->release(m->self);
    dti_free(m->self);
    dti_free(m->block_names);
    dti_free(m->folder);
    dti_free(m->beside);
    dti_generation_config_release(&m->generation);
    dt_layers_release(&m->layers);
    dti_runtime_count(dt_mesh_runtime(m->mesh), &models, -1);
    dti_stages_free(&m->stages);
    dt_mesh_release(&m->mesh);
    dti_free(m);
}

const dt_model_info *dt_model_info_of(const dt_model *m)
{
    return m != NULL ? &m->info : NULL;
}

int64_t dt_model_cache_bytes(const dt_model_info *i, dt_dtype dtype, int64_t n_tokens)
{
    const int64_t cached =
        i->cached > 0 ? i->cached : 2 * i->n_layers * i->n_kv_heads * i->head_dim;

    return cached * n_tokens * (int64_t)dt_dtype_size(dtype);
}

dt_layers *dt_model_layers(const dt_model *m)
{
    return m != NULL ? m->layers : NULL;
}

dt_mesh *dt_model_mesh(const dt_model *m)
{
    return m != NULL ? m->mesh : NULL;
}

int dt_model_n_stages(const dt_model *m)
{
    return m != NULL ? m->stages.n : 0;
}

int dt_model_stage_place(const dt_model *m, int stage)
{
    return stage >= 0 && stage < dt_model_n_stages(m) ? m->stages.stage[stage].place : -1;
}

dt_mesh *dt_model_stage_mesh(const dt_model *m)
{
    return m != NULL ? m->here : NULL;
}

int64_t dt_model_local_bytes(const dt_model *m)
{
    return m != NULL ? dt_layers_local_bytes(m->layers) : 0;
}
