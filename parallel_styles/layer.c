/* SPDX-License-Identifier: Apache-2.0
 *
 * One layer: its parameters, and its way over the tape: style, operator, style. */
#include <dtensor/ops.h>
#include <string.h>

#include "base/text.h"
#include "dtensor/create.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/layers_internal.h"

enum { SHAPE_BYTES = 96 };

const char *dt_layer_name(const dt_layer *layer)
{
    return layer != NULL ? layer->name : NULL;
}

dt_layer_kind dt_layer_kind_of(const dt_layer *layer)
{
    return layer != NULL ? layer->kind : DT_N_LAYER_KINDS;
}

const dt_style *dt_layer_style(const dt_layer *layer)
{
    return layer != NULL ? layer->style[layer->list->slot] : NULL;
}

static bool has_dim(const dt_layer *layer, int dim)
{
    return layer != NULL && dim >= 0 && dim < dt_mesh_n_dims(layer->list->mesh);
}

const dt_style *dt_layer_style_on(const dt_layer *layer, int dim)
{
    return has_dim(layer, dim) ? layer->style[dim] : NULL;
}

const dt_style *dt_layer_step_style_on(const dt_layer *layer, int dim)
{
    return has_dim(layer, dim) ? layer->step[dim] : NULL;
}

int dti_layer_rule(const dt_layer *layer, int dim)
{
    return layer->rule[dim >= 0 ? dim : DTI_NO_DIM];
}

int dt_layer_n_params(const dt_layer *layer)
{
    return layer != NULL ? layer->n_params : 0;
}

const dt_layout *dt_layer_param_layout(const dt_layer *layer, int param)
{
    return param >= 0 && param < dt_layer_n_params(layer) ? layer->layout[param] : NULL;
}

dt_tensor *dt_layer_param(const dt_layer *layer, int param)
{
    if (param < 0 || param >= dt_layer_n_params(layer)) return NULL;
    if (layer->tied_to != NULL && param == DT_PARAM_WEIGHT) layer = layer->tied_to;
    return layer->param[param];
}

const dt_layer *dt_layer_tied_to(const dt_layer *layer)
{
    return layer != NULL ? layer->tied_to : NULL;
}

static dt_status check_value(const dt_layer *layer, int param, dt_tensor *value)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_mesh *mesh = layer->list->mesh;
    const dt_dtype dtype = dt_tensor_dtype(value);

    DT_CHECK(dt_mesh_runtime(dt_tensor_mesh(value)) == dt_mesh_runtime(mesh) &&
                 dt_mesh_equal(dt_tensor_mesh(value), mesh),
             DT_ERR_LAYOUT, "%s.%s lies on another mesh than its layer", layer->name, info.name);
    DT_CHECK(dt_tensor_n_axes(value) == info.n_axes, DT_ERR_SHAPE, "%s.%s has %d axes, not %d",
             layer->name, info.name, info.n_axes, dt_tensor_n_axes(value));
    for (int a = 0; a < info.n_axes; a++)
        DT_CHECK(dt_tensor_extent(value, a) == info.axis[a].extent, DT_ERR_SHAPE,
                 "%s.%s: axis %d has %lld rows, not %lld", layer->name, info.name, a,
                 (long long)info.axis[a].extent, (long long)dt_tensor_extent(value, a));
    DT_CHECK(dt_tensor_layout(value) == layer->layout[param], DT_ERR_LAYOUT,
             "%s.%s does not lie as style \"%s\" decided: redistribute it first", layer->name,
             info.name, dt_layer_style(layer)->name);
    DT_CHECK(dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16, DT_ERR_SHAPE,
             "%s.%s is %s: parameters are f32, bf16 or f16", layer->name, info.name,
             dt_dtype_name(dtype));
    for (int p = 0; p < layer->n_params; p++) {
        const dt_tensor *other = dt_layer_param(layer, p);
        DT_CHECK(p == param || other == NULL || dt_tensor_dtype(other) == dtype, DT_ERR_SHAPE,
                 "%s.%s is %s, but the layer has a parameter in %s: convert one of them",
                 layer->name, info.name, dt_dtype_name(dtype),
                 dt_dtype_name(dt_tensor_dtype(other)));
    }
    return DT_OK;
}

dt_status dt_layer_set_param(dt_layer *layer, int param, dt_tensor *value)
{
    DT_CHECK(layer != NULL && value != NULL, DT_ERR_ARG, "layer or value is NULL");
    DT_CHECK(param >= 0 && param < layer->n_params, DT_ERR_ARG,
             "%s has %d parameters, not a number %d", layer->name, layer->n_params, param);
    DT_CHECK(layer->tied_to == NULL || param != DT_PARAM_WEIGHT, DT_ERR_ARG,
             "%s shares the weight of %s: set it there", layer->name,
             layer->tied_to != NULL ? layer->tied_to->name : "");
    DT_TRY(check_value(layer, param, value));
    dt_tensor_release(&layer->param[param]);
    layer->param[param] = dt_tensor_retain(value);
    if (param == DT_PARAM_BIAS) dt_tensor_release(&layer->bias_term);
    layer->list->dtype = dt_tensor_dtype(value);
    layer->list->changes++;
    return DT_OK;
}

void dti_layer_clear(dt_layer *layer)
{
    for (int p = 0; p < layer->n_params; p++) dt_tensor_release(&layer->param[p]);
    dt_tensor_release(&layer->bias_term);
    layer->list->changes++;
}

dt_status dt_layer_set_forward(dt_layer *layer, dt_layer_fn forward, void *arg)
{
    DT_CHECK(layer != NULL, DT_ERR_ARG, "layer is NULL");
    DT_CHECK(layer->kind != DT_LAYER_POINT, DT_ERR_ARG,
             "%s is a point: it computes nothing that a function could replace", layer->name);
    DT_CHECK(layer->kind != DT_LAYER_EXPERTS, DT_ERR_ARG,
             "%s is one half of experts, which dt_layer_experts() computes together: a function "
             "cannot replace it",
             layer->name);
    layer->forward = forward;
    layer->forward_arg = arg;
    layer->list->changes++;
    return DT_OK;
}

uint64_t dti_layers_changes(const dt_layers *layers)
{
    return layers->changes;
}

static bool has_functions(const dt_style *s)
{
    return s != NULL && (s->prepare_input != NULL || s->prepare_output != NULL);
}

bool dti_layers_repeat(const dt_layers *layers)
{
    for (int i = 0; i < layers->n; i++) {
        const dt_layer *l = &layers->layers[i];
        if (l->forward != NULL) return false;
        for (int k = 0; k < DTI_N_STYLE_SLOTS; k++)
            if (has_functions(l->style[k]) || has_functions(l->step[k])) return false;
    }
    return true;
}

float dt_layer_eps(const dt_layer *layer)
{
    return layer != NULL ? layer->eps : 0;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* y is a sum whose terms lie on ranks of some mesh dims: the bias joins one of them. The last such
 * term of the bias is kept, since a layer sees the same dims in every pass. */
static dt_tensor *add_bias_term(dt_tape *t, dt_layer *layer, dt_tensor *y, dt_tensor *b)
{
    const uint32_t dims = dti_tensor_partial_dims(y);

    if (layer->bias_term == NULL || layer->bias_term_dims != dims) {
        dt_status st;
        dt_tensor_release(&layer->bias_term);
        st = dti_tensor_as_term(b, dims, &layer->bias_term);
        if (st != DT_OK) return dti_tape_latch(t, st);
        layer->bias_term_dims = dims;
    }
    return dt_add_bias(t, y, layer->bias_term);
}

/* The shape of what the layer makes of x; the number of its axes. */
static int shape_of_result(const dt_layer *layer, const dt_tensor *x,
                           int64_t shape[DT_MAX_AXES + 1])
{
    int n = dt_tensor_n_axes(x);

    for (int a = 0; a < n; a++) shape[a] = dt_tensor_extent(x, a);
    if (layer->kind == DT_LAYER_EMBEDDING) shape[n++] = layer->axis[1].extent;
    if (layer->kind == DT_LAYER_LINEAR && n > 0) shape[n - 1] = layer->axis[0].extent;
    return n;
}

/* What the caller's function gave has to be what the layer would have made. */
static dt_tensor *check_result(dt_tape *t, const dt_layer *layer, const dt_tensor *x, dt_tensor *y)
{
    int64_t want[DT_MAX_AXES + 1], is[DT_MAX_AXES];
    const int n = shape_of_result(layer, x, want), n_is = dt_tensor_n_axes(y);
    char is_text[SHAPE_BYTES], want_text[SHAPE_BYTES];

    if (dt_tensor_mesh(y) != dt_tensor_mesh(x) &&
        !dt_mesh_equal(dt_tensor_mesh(y), dt_tensor_mesh(x)))
        return dt_tape_fail(t, DT_ERR_LAYOUT,
                            "the function that replaces the forward of %s gave a tensor on another "
                            "mesh",
                            layer->name);
    for (int a = 0; a < n_is; a++) is[a] = dt_tensor_extent(y, a);
    if (n_is == n && memcmp(is, want, (size_t)n * sizeof *is) == 0) return y;
    return dt_tape_fail(t, DT_ERR_SHAPE,
                        "the function that replaces the forward of %s gave %s, not %s", layer->name,
                        dti_shape_text(is, n_is, is_text, sizeof is_text),
                        dti_shape_text(want, n, want_text, sizeof want_text));
}

/* The caller's function in the place of a layer's own. */
static dt_tensor *replaced(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y;

    if (x == NULL) return NULL;
    y = layer->forward(layer->forward_arg, t, layer, x);
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (y != NULL) return check_result(t, layer, x, y);
    return dt_tape_fail(t, DT_ERR_ARG,
                        "the function that replaces the forward of %s gave NULL and no error; "
                        "return a tensor, or NULL from dt_tape_fail()",
                        layer->name);
}

/* x W^T + b */
static dt_tensor *product(dt_tape *t, const dt_layer *layer, dt_tensor *x, dt_tensor *b)
{
    dt_tensor *y;

    if (layer->forward == NULL) return dt_linear(t, x, dt_layer_param(layer, DT_PARAM_WEIGHT), b);
    y = replaced(t, layer, x);
    return y != NULL && b != NULL ? dt_add_bias(t, y, b) : y;
}

/* y = x W^T + b. With cut inputs y is a sum over ranks: it stays f32 through the output move, then
 * gets the bias once and is rounded. */
static dt_tensor *linear_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_param(layer, DT_PARAM_WEIGHT);
    dt_tensor *b = dt_layer_param(layer, DT_PARAM_BIAS);
    dt_tensor *y;

    y = product(t, layer, x, layer->inputs_cut ? NULL : b);
    if (y == NULL || !dti_layer_leave(t, layer, 1, &y)) return NULL;
    if (!layer->inputs_cut) return y;
    if (dti_tensor_partial_dims(y) != 0)
        return b != NULL ? add_bias_term(t, (dt_layer *)layer, y, b) : y;
    if (b != NULL) return dt_add_bias(t, y, b);
    return dt_cast(t, y, dt_tensor_dtype(w));
}

static dt_tensor *compute(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_param(layer, DT_PARAM_WEIGHT);

    if (layer->forward != NULL) return replaced(t, layer, x);
    switch (layer->kind) {
    case DT_LAYER_EMBEDDING:
        return dt_embedding(t, x, w);
    case DT_LAYER_RMS_NORM:
        return layer->one_plus ? dt_rms_norm_1p(t, x, w, layer->eps)
                               : dt_rms_norm(t, x, w, layer->eps);
    case DT_LAYER_LAYER_NORM:
        return dt_layer_norm(t, x, w, dt_layer_param(layer, DT_PARAM_BIAS), layer->eps);
    default:
        return x;
    }
}

dt_tensor *dt_layer_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (layer == NULL) return dt_tape_fail(t, DT_ERR_ARG, "layer is NULL");
    if (layer->kind == DT_LAYER_EXPERTS)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "%s is one half of experts: dt_layer_experts() runs both", layer->name);
    dt_scope_begin(t, layer->name);
    for (int p = 0; p < layer->n_params; p++)
        if (dt_layer_param(layer, p) == NULL)
            return dt_tape_fail(t, DT_ERR_ARG, "%s has no value: load the model first",
                                dt_layer_param_info(layer, p).name);
    x = dt_layer_enter(t, layer, x);
    if (layer->kind == DT_LAYER_LINEAR)
        y = linear_forward(t, layer, x);
    else
        y = dt_layer_leave(t, layer, compute(t, layer, x));
    return dt_scope_end(t, y);
}
