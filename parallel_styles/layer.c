/* SPDX-License-Identifier: Apache-2.0
 *
 * One layer: its parameters, and its way over the tape: style, operator, style. */
#include <dtensor/ops.h>
#include <string.h>

#include "base/text.h"
#include "dtensor/create.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

const char *dt_layer_name(const dt_layer *layer)
{
    return layer != NULL ? layer->name : NULL;
}

const dt_layer_spec *dt_layer_spec_of(const dt_layer *layer)
{
    return layer != NULL ? &layer->spec : NULL;
}

const dt_layer_kind *dt_layer_kind_of(const dt_layer *layer)
{
    return layer != NULL ? layer->spec.kind : NULL;
}

const dt_style *dt_layer_style(const dt_layer *layer)
{
    return layer != NULL ? layer->style[layer->list->slot] : NULL;
}

static bool has_dim(const dt_layer *layer, int dim)
{
    return layer != NULL && dim >= 0 && dim < dt_mesh_n_dims(layer->mesh);
}

const dt_style *dt_layer_style_on(const dt_layer *layer, int dim)
{
    return has_dim(layer, dim) ? layer->style[dim] : NULL;
}

const dt_style *dt_layer_step_style_on(const dt_layer *layer, int dim)
{
    return has_dim(layer, dim) ? layer->step[dim] : NULL;
}

int dt_layer_rule_on(const dt_layer *layer, int dim)
{
    if (layer == NULL) return -1;
    return layer->rule[has_dim(layer, dim) ? dim : DTI_NO_DIM];
}

int dt_layer_n_params(const dt_layer *layer)
{
    return layer != NULL ? layer->n_params : 0;
}

bool dt_layer_has_param(const dt_layer *layer, int param)
{
    return layer != NULL && param >= 0 && param < DT_LAYER_MAX_PARAMS &&
           (layer->params >> param & 1u) != 0;
}

bool dt_layer_owns_param(const dt_layer *layer, int param)
{
    return dt_layer_has_param(layer, param) && (layer->tied_to == NULL || param != DT_PARAM_WEIGHT);
}

bool dt_layer_holds_param(const dt_layer *layer, int param)
{
    return dt_layer_owns_param(layer, param) ||
           (dt_layer_has_param(layer, param) && dti_layer_is_apart(layer));
}

dt_param_info dt_layer_param_info(const dt_layer *layer, int param)
{
    dt_param_info info = dt_spec_param(dt_layer_spec_of(layer), param);

    if (layer != NULL && dti_layer_is_apart(layer) && param == DT_PARAM_WEIGHT)
        info.layer = layer->tied_to->name;
    return info;
}

const dt_layout *dt_layer_param_layout(const dt_layer *layer, int param)
{
    return dt_layer_has_param(layer, param) ? layer->layout[param] : NULL;
}

dt_tensor *dt_layer_param(const dt_layer *layer, int param)
{
    if (!dt_layer_has_param(layer, param)) return NULL;
    if (!dt_layer_holds_param(layer, param)) layer = layer->tied_to;
    return layer->param[param];
}

dt_mesh *dt_layer_mesh(const dt_layer *layer)
{
    return layer != NULL ? layer->mesh : NULL;
}

const dt_layer *dt_layer_tied_to(const dt_layer *layer)
{
    return layer != NULL ? layer->tied_to : NULL;
}

int64_t dt_layer_extent(const dt_layer *layer, char letter)
{
    return layer != NULL ? dti_spec_extent(&layer->spec, letter) : 0;
}

double dt_layer_flops(const dt_layer *layer)
{
    return layer != NULL ? dti_spec_flops(&layer->spec) : 0.0;
}

/* Has the parameter the model's dtype, and not one of its own? */
static bool is_models(const dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);

    return dti_param_dtype(&info, DT_BF16) == DT_BF16;
}

static dt_status check_value(const dt_layer *layer, int param, dt_tensor *value)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_mesh *mesh = layer->mesh;
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
    if (dti_param_dtype(&info, DT_BF16) != DT_BF16) { /* not the model's */
        DT_CHECK(dtype == dti_param_dtype(&info, DT_BF16), DT_ERR_SHAPE,
                 "%s.%s is %s: in every model it is %s", layer->name, info.name,
                 dt_dtype_name(dtype), dt_dtype_name(dti_param_dtype(&info, DT_BF16)));
        return DT_OK;
    }
    DT_CHECK(dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16, DT_ERR_SHAPE,
             "%s.%s is %s: parameters are f32, bf16 or f16", layer->name, info.name,
             dt_dtype_name(dtype));
    for (int p = 0; p < layer->n_params; p++) {
        const dt_tensor *other = dt_layer_param(layer, p); /* NULL: it has none */
        DT_CHECK(
            p == param || other == NULL || !is_models(layer, p) || dt_tensor_dtype(other) == dtype,
            DT_ERR_SHAPE, "%s.%s is %s, but the layer has a parameter in %s: convert one of them",
            layer->name, info.name, dt_dtype_name(dtype), dt_dtype_name(dt_tensor_dtype(other)));
    }
    return DT_OK;
}

dt_status dt_layer_set_param(dt_layer *layer, int param, dt_tensor *value)
{
    DT_CHECK(layer != NULL && value != NULL, DT_ERR_ARG, "layer or value is NULL");
    DT_CHECK(dt_layer_has_param(layer, param), DT_ERR_ARG,
             "%s has no parameter of number %d (%s has %d)", layer->name, param,
             dti_kind_text(layer->spec.kind), layer->n_params);
    DT_CHECK(dt_layer_holds_param(layer, param), DT_ERR_ARG,
             "%s shares the weight of %s: set it there", layer->name,
             layer->tied_to != NULL ? layer->tied_to->name : "");
    DT_TRY(check_value(layer, param, value));
    dt_tensor_release(&layer->param[param]);
    layer->param[param] = dt_tensor_retain(value);
    if (param == layer->added) dt_tensor_release(&layer->bias_term);
    if (is_models(layer, param)) layer->list->dtype = dt_tensor_dtype(value);
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
    DT_CHECK(
        layer->spec.kind->run_by == NULL, DT_ERR_ARG,
        "%s is %s, which %s computes together with others: a function cannot replace it; one for "
        "the point around it can",
        layer->name, dti_kind_text(layer->spec.kind), layer->spec.kind->run_by);
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
    return s != NULL &&
           (s->prepare_input != NULL || s->prepare_output != NULL || s->prepare_param != NULL);
}

bool dti_layers_repeat(const dt_layers *layers)
{
    if (layers->counts != NULL) return false;
    for (int i = 0; i < layers->n; i++) {
        const dt_layer *l = &layers->layers[i];
        if (l->forward != NULL || l->own_kind || l->n_states > 0) return false;
        for (int k = 0; k < DTI_N_STYLE_SLOTS; k++)
            if (has_functions(l->style[k]) || has_functions(l->step[k])) return false;
    }
    return true;
}

float dt_layer_eps(const dt_layer *layer)
{
    return layer != NULL ? layer->spec.eps : 0;
}

const void *dt_layer_own(const dt_layer *layer)
{
    return layer != NULL ? layer->spec.own : NULL;
}

/* --- parameters on their way into the computation --------------------------------------------- */

static dt_tensor *prepare_param(dt_tape *t, const dt_layer *layer, int param, dt_tensor *w)
{
    const char *before = dt_tape_because(t, NULL);

    for (int m = 0; m < dt_mesh_n_dims(layer->mesh) && w != NULL; m++) {
        const dt_style *style = layer->style[m];
        if (style == NULL || style->prepare_param == NULL) continue;
        (void)dt_tape_because(t, style->name);
        w = style->prepare_param(style, t, layer, m, param, w);
        if (w == NULL && dt_tape_status(t) == DT_OK)
            (void)dt_tape_fail(t, DT_ERR_ARG,
                               "style \"%s\": its prepare_param gave NULL for %s and no error",
                               style->name, layer->name);
    }
    (void)dt_tape_because(t, before);
    return w;
}

dt_tensor *dt_layer_use(dt_tape *t, const dt_layer *layer, int param)
{
    dt_tensor *w;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (layer == NULL || param < 0 || param >= DT_LAYER_MAX_PARAMS)
        return dt_tape_fail(t, DT_ERR_ARG, "layer is NULL, or has no parameter %d", param);
    if ((layer->params >> param & 1u) == 0) return NULL;
    w = dt_layer_param(layer, param);
    if (w == NULL)
        return dt_tape_fail(
            t, DT_ERR_ARG,
            "%s has no value yet: dt_layer_set_param() gives it one, as loading does",
            layer->spec.kind->params[param].name);
    return layer->prepares ? prepare_param(t, layer, param, w) : w;
}

bool dti_layer_rows_cut(const dt_layer *layer, const dt_tensor *w)
{
    int dims[DT_MAX_DIMS];
    int n;

    if (!layer->prepares || w == NULL || layer->rows_axis < 0) return layer->rows_cut;
    n = dti_layout_cuts(dt_tensor_layout(w), layer->rows_axis, dims);
    for (int i = 0; i < n; i++)
        if (dt_mesh_dim_size(layer->mesh, dims[i]) > 1) return true;
    return false;
}

/* --- what is added once ----------------------------------------------------------------------- */

dt_tensor *dt_layer_add(dt_tape *t, const dt_layer *layer, dt_tensor *y)
{
    if (y == NULL || layer == NULL || layer->added < 0 || dti_tensor_partial_dims(y) != 0) return y;
    return dt_add_bias(t, y, dt_layer_use(t, layer, layer->added));
}

/* y is a sum whose terms lie on ranks of some mesh dims: the bias joins one of them. The last such
 * term of the bias is kept, since a layer sees the same dims in every pass. */
static dt_tensor *add_bias_term(dt_tape *t, dt_layer *layer, dt_tensor *y, dt_tensor *b)
{
    const uint32_t dims = dti_tensor_partial_dims(y);
    dt_status st;

    if (layer->prepares) { /* another in every pass */
        dt_tensor *term = NULL;
        st = dti_tensor_as_term(b, dims, &term);
        if (st == DT_OK) st = dti_graph_move(t, b, term);
        if (st == DT_OK) return dt_add_bias(t, y, dti_tape_push(t, term));
        dt_tensor_release(&term);
        return dti_tape_latch(t, st);
    }
    if (layer->bias_term == NULL || layer->bias_term_dims != dims) {
        dt_tensor_release(&layer->bias_term);
        st = dti_tensor_as_term(b, dims, &layer->bias_term);
        if (st != DT_OK) return dti_tape_latch(t, st);
        layer->bias_term_dims = dims;
    }
    st = dti_graph_move(t, b, layer->bias_term);
    if (st != DT_OK) return dti_tape_latch(t, st);
    return dt_add_bias(t, y, layer->bias_term);
}

/* y was terms of a sum when it left the computation; the style has reduced them, or left them. */
static dt_tensor *finish_sum(dt_tape *t, const dt_layer *layer, dt_tensor *y)
{
    dt_tensor *b = layer->added >= 0 ? dt_layer_use(t, layer, layer->added) : NULL;

    if (dti_tensor_partial_dims(y) != 0)
        return b != NULL ? add_bias_term(t, (dt_layer *)layer, y, b) : y;
    if (b != NULL) return dt_add_bias(t, y, b);
    return dti_layer_round(t, layer, y);
}

/* --- forward ---------------------------------------------------------------------------------- */

/* The shape of what the layer makes of x, by its kind's values: "...i -> ...o" takes the last axis
 * away and puts another there. -1: the kind does not say. */
static int shape_of_result(const dt_layer *layer, const dt_tensor *x,
                           int64_t shape[DT_MAX_AXES + DT_LAYER_MAX_AXES])
{
    const char *values = dti_kind_values(layer->spec.kind);
    const char *arrow = values != NULL ? strstr(values, " -> ") : NULL;
    int n = dt_tensor_n_axes(x);

    if (arrow == NULL) return -1;
    for (int a = 0; a < n; a++) shape[a] = dt_tensor_extent(x, a);
    for (const char *c = values; c < arrow; c++) n -= *c != '.';
    for (const char *c = arrow + 4; *c != '\0' && n >= 0; c++)
        if (*c != '.') shape[n++] = dt_layer_extent(layer, *c);
    return n;
}

/* What a function of the caller's gave has to be what the layer would have made. */
static dt_tensor *check_result(dt_tape *t, const dt_layer *layer, const dt_tensor *x, dt_tensor *y)
{
    const char *what = layer->forward != NULL ? "the function that replaces the forward of"
                                              : "the forward of the kind of";
    int64_t want[DT_MAX_AXES + DT_LAYER_MAX_AXES], is[DT_MAX_AXES];
    const int n = shape_of_result(layer, x, want), n_is = y != NULL ? dt_tensor_n_axes(y) : 0;
    char is_text[DTI_SHAPE_BYTES], want_text[DTI_SHAPE_BYTES];

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (y == NULL)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "%s %s gave NULL and no error; return a tensor, or NULL from "
                            "dt_tape_fail()",
                            what, layer->name);
    if (dt_tensor_mesh(y) != dt_tensor_mesh(x) &&
        !dt_mesh_equal(dt_tensor_mesh(y), dt_tensor_mesh(x)))
        return dt_tape_fail(t, DT_ERR_LAYOUT, "%s %s gave a tensor on another mesh", what,
                            layer->name);
    for (int a = 0; a < n_is; a++) is[a] = dt_tensor_extent(y, a);
    if (n < 0 || (n_is == n && memcmp(is, want, (size_t)n * sizeof *is) == 0)) return y;
    return dt_tape_fail(t, DT_ERR_SHAPE, "%s %s gave %s, not %s", what, layer->name,
                        dti_shape_text(is, n_is, is_text, sizeof is_text),
                        dti_shape_text(want, n, want_text, sizeof want_text));
}

dt_tensor *dti_layer_compute(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y;

    if (x == NULL) return NULL;
    if (layer->forward != NULL) {
        y = layer->forward(layer->forward_arg, t, layer, x);
        return dt_layer_add(t, layer, check_result(t, layer, x, y));
    }
    if (layer->spec.kind->forward == NULL) return x;
    y = layer->spec.kind->forward(t, layer, x);
    return layer->own_kind ? check_result(t, layer, x, y) : y;
}

/* A product whose inputs are cut is a sum over ranks: it stays f32 through the output move, then
 * gets what is added once and is rounded. */
dt_tensor *dt_layer_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *y;
    bool sum;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (layer == NULL) return dt_tape_fail(t, DT_ERR_ARG, "layer is NULL");
    if (layer->spec.kind->run_by != NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "%s is %s, which %s computes together with others",
                            layer->name, dti_kind_text(layer->spec.kind), layer->spec.kind->run_by);
    dt_scope_begin(t, layer->name);
    for (int p = 0; p < layer->n_params; p++) /* before anything is sent */
        if (dt_layer_param(layer, p) == NULL && dt_layer_use(t, layer, p) == NULL &&
            dt_tape_status(t) != DT_OK)
            return NULL;
    x = dt_layer_enter(t, layer, x);
    y = dti_layer_compute(t, layer, x);
    sum = y != NULL && dti_tensor_partial_dims(y) != 0;
    if (y != NULL && !dti_layer_leave(t, layer, 1, &y)) y = NULL;
    return dt_scope_end(t, sum && y != NULL ? finish_sum(t, layer, y) : y);
}
