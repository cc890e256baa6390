/* SPDX-License-Identifier: Apache-2.0
 *
 * One layer: its parameters, and its way over the tape: style, operator, style. */
#include <dtensor/ops.h>

#include "parallel_styles/layers_internal.h"

const char *dt_layer_name(const dt_layer *layer)
{
    return layer->name;
}

dt_layer_kind dt_layer_kind_of(const dt_layer *layer)
{
    return layer->kind;
}

const dt_style *dt_layer_style(const dt_layer *layer)
{
    return layer->style;
}

int dt_layer_n_params(const dt_layer *layer)
{
    return layer->n_params;
}

const dt_layout *dt_layer_param_layout(const dt_layer *layer, int param)
{
    return param >= 0 && param < layer->n_params ? layer->layout[param] : NULL;
}

dt_tensor *dt_layer_param(const dt_layer *layer, int param)
{
    if (param < 0 || param >= layer->n_params) return NULL;
    if (layer->tied_to != NULL && param == DT_PARAM_WEIGHT) layer = layer->tied_to;
    return layer->param[param];
}

const dt_layer *dt_layer_tied_to(const dt_layer *layer)
{
    return layer->tied_to;
}

dt_status dt_layer_set_param(dt_layer *layer, int param, dt_tensor *value)
{
    dt_param_info info;

    DT_CHECK(layer != NULL && value != NULL, DT_ERR_ARG, "layer or value is NULL");
    DT_CHECK(param >= 0 && param < layer->n_params, DT_ERR_ARG,
             "%s has %d parameters, not a number %d", layer->name, layer->n_params, param);
    DT_CHECK(layer->tied_to == NULL || param != DT_PARAM_WEIGHT, DT_ERR_ARG,
             "%s shares the weight of %s: set it there", layer->name,
             layer->tied_to != NULL ? layer->tied_to->name : "");
    info = dt_layer_param_info(layer, param);
    DT_CHECK(dt_tensor_n_axes(value) == info.n_axes, DT_ERR_SHAPE, "%s.%s has %d axes, not %d",
             layer->name, info.name, info.n_axes, dt_tensor_n_axes(value));
    for (int a = 0; a < info.n_axes; a++)
        DT_CHECK(dt_tensor_extent(value, a) == info.axis[a].extent, DT_ERR_SHAPE,
                 "%s.%s: axis %d has %lld rows, not %lld", layer->name, info.name, a,
                 (long long)info.axis[a].extent, (long long)dt_tensor_extent(value, a));
    DT_CHECK(dt_tensor_layout(value) == layer->layout[param], DT_ERR_LAYOUT,
             "%s.%s does not lie as style \"%s\" decided: redistribute it first", layer->name,
             info.name, layer->style->name);
    dt_tensor_release(&layer->param[param]);
    layer->param[param] = dt_tensor_retain(value);
    return DT_OK;
}

/* y = x W^T + b. With cut inputs y is a sum over ranks: it stays f32 through the output move, then
 * gets the bias once and is rounded. */
static dt_tensor *linear_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_param(layer, DT_PARAM_WEIGHT);
    dt_tensor *b = dt_layer_param(layer, DT_PARAM_BIAS);
    const int dim = layer->list->dim;
    dt_tensor *y;

    if (!layer->inputs_cut) {
        y = dt_linear(t, x, w, b);
        return dim < 0 ? y : dti_style_output(layer->style, t, layer, dim, y);
    }
    y = dti_style_output(layer->style, t, layer, dim, dt_linear(t, x, w, NULL));
    if (y == NULL) return NULL;
    if (b != NULL) return dt_add_bias(t, y, b);
    return dt_cast(t, y, dt_tensor_dtype(w));
}

static dt_tensor *compute(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *w = dt_layer_param(layer, DT_PARAM_WEIGHT);

    switch (layer->kind) {
    case DT_LAYER_EMBEDDING:
        return dt_embedding(t, x, w);
    case DT_LAYER_RMS_NORM:
        return dt_rms_norm(t, x, w, layer->eps);
    case DT_LAYER_LAYER_NORM:
        return dt_layer_norm(t, x, w, dt_layer_param(layer, DT_PARAM_BIAS), layer->eps);
    default:
        return x;
    }
}

dt_tensor *dt_layer_enter(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (layer == NULL || x == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "a layer or its input is NULL");
    return layer->list->dim < 0 ? x : dti_style_input(layer->style, t, layer, layer->list->dim, x);
}

dt_tensor *dt_layer_leave(dt_tape *t, const dt_layer *layer, dt_tensor *y)
{
    if (dt_tape_status(t) != DT_OK) return NULL;
    if (layer == NULL || y == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "a layer or its output is NULL");
    return layer->list->dim < 0 ? y : dti_style_output(layer->style, t, layer, layer->list->dim, y);
}

dt_tensor *dt_layer_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y;

    if (layer == NULL) return dt_tape_fail(t, DT_ERR_ARG, "layer is NULL");
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
