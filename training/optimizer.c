/* SPDX-License-Identifier: Apache-2.0
 *
 * Making an optimizer: which parameters it steps, and how. */
#include "training/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "mesh/runtime.h"
#include "training/norm.h"

static const double F16_LOSS_SCALE = 65536.0;
static const int64_t MOST_STEPS = (int64_t)1 << 53; /* which f64 and JSON have exactly */

/* Of the ranks that hold an element of x, only the first counts it: coordinate 0 where x is whole,
 * the first of neighbours that share a part. */
static bool is_first_owner(const dt_tensor *x, const dt_layout *layout)
{
    const dt_mesh *mesh = dt_tensor_mesh(x);

    for (int m = 0; m < layout->n_dims; m++) {
        const int replicas =
            dti_has(layout->shard_dims, m) ? layout->place[m].replicas : layout->dim_size[m];
        if (dt_mesh_coord(mesh, m) % replicas != 0) return false;
    }
    return dt_mesh_is_member(mesh);
}

/* Parameter `param` of a layer, if it is to be trained. */
static dt_status add_param(dt_optimizer *opt, const dt_layer *layer, int param, size_t *room)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_tensor *x = dt_layer_param(layer, param);
    char name[DT_PARAM_NAME_BYTES];
    dti_group_says says;
    dti_trained *p;

    (void)snprintf(name, sizeof name, "%s.%s", info.layer, info.name);
    says = dti_groups_of(&opt->options, name, info.n_axes);
    if (info.frozen || says.frozen) return DT_OK;
    DT_CHECK(x != NULL, DT_ERR_ARG, "%s has no value yet", name);
    DT_CHECK(!opt->options.stochastic || dt_tensor_dtype(x) != DT_F16, DT_ERR_ARG,
             "%s is f16: stochastic rounds bf16 alone", name);
    DT_TRY(dti_grow((void **)&opt->params, room, (size_t)opt->n + 1, sizeof *opt->params));
    p = &opt->params[opt->n];
    *p = (dti_trained){ .layer = layer,
                        .param = param,
                        .x = dt_tensor_retain(x),
                        .copy_of = -1,
                        .lr_factor = says.lr_factor,
                        .weight_decay = says.weight_decay,
                        .stream = dti_hash_text(7, name) };
    opt->n++;
    for (int64_t i = 0; i + 1 < opt->n && !dt_layer_owns_param(layer, param); i++)
        if (strcmp(opt->params[i].name, name) == 0) p->copy_of = i;
    DT_TRY(dti_strdup(name, &p->name));
    DT_TRY(dt_gradients_watch(opt->gradients, x));
    return DT_OK;
}

static dt_status add_params(dt_optimizer *opt)
{
    size_t room = 0;

    for (int i = 0; i < dt_layers_count(opt->layers); i++) {
        const dt_layer *layer = dt_layers_at(opt->layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_holds_param(layer, p)) DT_TRY(add_param(opt, layer, p, &room));
    }
    DT_CHECK(opt->n > 0, DT_ERR_ARG, "nothing to train: all parameters are frozen");
    return DT_OK;
}

static dt_status lay_out(dt_optimizer *opt)
{
    bool f16 = false;
    uint32_t dims;

    DT_TRY(dti_optimizer_dims(opt->mesh, &opt->options, &dims));
    for (int64_t i = 0; i < opt->n; i++) {
        dti_trained *p = &opt->params[i];
        DT_TRY(dti_optimizer_layout(p->x, dims, &p->layout));
        p->first_owner = p->copy_of < 0 && is_first_owner(p->x, p->layout);
        f16 = f16 || dt_tensor_dtype(p->x) == DT_F16;
    }
    DT_TRY(dti_state_create(opt));
    opt->loss_scale = opt->options.loss_scale > 0.0          ? opt->options.loss_scale
                      : opt->options.loss_scale < 0.0 && f16 ? F16_LOSS_SCALE
                                                             : 1.0;
    return DT_OK;
}

static dt_status make_buckets(dt_optimizer *opt)
{
    const dt_layout **want;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)opt->n, sizeof *want, (void **)&want));
    for (int64_t i = 0; i < opt->n; i++) want[i] = opt->params[i].layout;
    st = dti_buckets_create(opt->gradients, opt->n, want, opt->options.bucket_bytes, &opt->buckets);
    dti_free(want);
    return st;
}

/* Options without a size are none: defaults. */
dt_status dt_optimizer_create(dt_layers *layers, const dt_optimizer_options *options,
                              dt_optimizer **out)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_optimizer *opt;
    dt_runtime *rt;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(layers != NULL, DT_ERR_ARG, "layers is NULL");
    DT_TRY(dti_options_read("dt_optimizer_options", "start from DT_OPTIMIZER_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_TRY(dti_optimizer_check(&o));
    DT_TRY(dti_groups_check(&o, layers));
    DT_TRY(dti_new(sizeof *opt, &opt));
    opt->options = o;
    opt->layers = layers;
    opt->mesh = dt_mesh_retain(dt_layers_mesh(layers));
    rt = dt_mesh_runtime(opt->mesh);
    DT_TRY_TO(fail, st, dt_gradients_create(rt, &opt->gradients));
    DT_TRY_TO(fail, st, dt_tape_create(rt, &opt->tape));
    DT_TRY_TO(fail, st, add_params(opt));
    DT_TRY_TO(fail, st, lay_out(opt));
    DT_TRY_TO(fail, st, dti_norm_create(opt));
    if (o.bucket_bytes > 0) DT_TRY_TO(fail, st, make_buckets(opt));
    opt->options.groups = NULL;
    opt->options.over = opt->options.offload = NULL;
    *out = opt;
    return DT_OK;

fail:
    st = dti_runtime_alone(rt, st);
    dt_optimizer_release(&opt);
    return st;
}

void dt_optimizer_release(dt_optimizer **optimizer)
{
    dt_optimizer *opt = optimizer != NULL ? *optimizer : NULL;

    if (opt == NULL) return;
    *optimizer = NULL;
    dti_buckets_free(&opt->buckets);
    dt_gradients_release(&opt->gradients);
    dt_tape_release(&opt->tape);
    dti_norm_free(opt);
    dti_state_free(opt);
    for (int64_t i = 0; i < opt->n; i++) {
        dt_tensor_release(&opt->params[i].x);
        dti_free(opt->params[i].name);
    }
    dti_free(opt->params);
    dt_mesh_release(&opt->mesh);
    dti_free(opt);
}

dt_gradients *dt_optimizer_gradients(dt_optimizer *opt)
{
    return opt != NULL ? opt->gradients : NULL;
}

double dt_optimizer_loss_scale(const dt_optimizer *opt)
{
    return opt != NULL ? opt->loss_scale : 1.0;
}

int64_t dt_optimizer_steps(const dt_optimizer *opt)
{
    return opt != NULL ? opt->steps : 0;
}

int64_t dt_optimizer_good_steps(const dt_optimizer *opt)
{
    return opt != NULL ? opt->good_steps : 0;
}

const dt_tape *dt_optimizer_tape(const dt_optimizer *opt)
{
    return opt != NULL ? opt->tape : NULL;
}

dt_status dt_optimizer_restore(dt_optimizer *opt, int64_t steps, double loss_scale,
                               int64_t good_steps)
{
    int exponent;

    DT_CHECK(opt != NULL, DT_ERR_ARG, "optimizer is NULL");
    DT_CHECK(steps >= 0 && steps <= MOST_STEPS && good_steps >= 0 && good_steps <= MOST_STEPS,
             DT_ERR_ARG, "%lld steps, %lld good ones", (long long)steps, (long long)good_steps);
    DT_CHECK(isfinite(loss_scale) && loss_scale > 0.0 && frexp(loss_scale, &exponent) == 0.5,
             DT_ERR_ARG, "a loss scale of %g: it is a power of 2", loss_scale);
    opt->steps = steps;
    opt->loss_scale = loss_scale;
    opt->good_steps = good_steps;
    opt->skipped = 0;
    return DT_OK;
}
