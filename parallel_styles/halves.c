/* SPDX-License-Identifier: Apache-2.0
 *
 * The two halves of a layer's style: what it does to values on their way in and on their way out,
 * over all mesh dims. */
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/create.h"
#include "parallel_styles/layers_internal.h"

/* The styles for values that enter or leave: those of a step where the first has one token. */
static const dt_style *const *styles_for(const dt_layer *layer, const dt_tensor *x, bool enters)
{
    const bool ids = enters && layer->ids;
    const int axis = dti_token_axis(dt_tensor_n_axes(x), ids);

    return axis >= 0 && dt_tensor_extent(x, axis) == 1 ? layer->step : layer->style;
}

/* Styles of all mesh dims on n values, each of which is replaced. Moves of a style are counted
 * under its name. */
static bool enter(dt_tape *t, const dt_layer *layer, int n, dt_tensor **x)
{
    const char *before = dt_tape_because(t, NULL);
    bool ok = true;

    for (int m = 0; m < dt_mesh_n_dims(layer->mesh) && ok; m++) {
        const dti_values v = { styles_for(layer, x[0], true)[m], layer, m, n, x, "input", true };
        if (v.style == NULL) continue;
        (void)dt_tape_because(t, v.style->name);
        ok = dti_style_input(t, &v);
    }
    (void)dt_tape_because(t, before);
    return ok;
}

bool dti_layer_leave(dt_tape *t, const dt_layer *layer, int n, dt_tensor **y)
{
    const char *before = dt_tape_because(t, NULL);
    bool ok = true;

    for (int m = dt_mesh_n_dims(layer->mesh) - 1; m >= 0 && ok; m--) {
        const dti_values v = { styles_for(layer, y[0], false)[m], layer, m, n, y, "output", false };
        if (v.style == NULL) continue;
        (void)dt_tape_because(t, v.style->name);
        ok = dti_style_output(t, &v);
    }
    (void)dt_tape_because(t, before);
    return ok;
}

dt_tensor *dti_layer_round(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    const dt_tensor *own = layer->n_params > 0 ? dt_layer_param(layer, 0) : NULL;
    const bool says = own != NULL && dt_tensor_dtype(own) != DT_U8; /* codes do not */
    const dt_dtype dtype = says ? dt_tensor_dtype(own) : layer->list->dtype;

    if (dti_tensor_partial_dims(x) != 0 || dt_tensor_dtype(x) != DT_F32 || dtype == DT_N_DTYPES)
        return x;
    return dt_cast(t, x, dtype);
}

/* The values of `x` through one half of a layer's style. */
static void through(bool (*half)(dt_tape *, const dt_layer *, int, dt_tensor **), dt_tape *t,
                    const dt_layer *layer, int n, dt_tensor **x)
{
    bool was_partial[DT_MAX_PASSES], ok = dt_tape_status(t) == DT_OK;

    for (int i = 0; i < n && ok; i++) was_partial[i] = dti_tensor_partial_dims(x[i]) != 0;
    ok = ok && half(t, layer, n, x);
    for (int i = 0; i < n; i++) {
        if (!ok) x[i] = NULL;
        if (ok && was_partial[i]) x[i] = dti_layer_round(t, layer, x[i]);
    }
}

static bool on_mesh(const dt_tensor *x, const dt_mesh *mesh)
{
    return dt_tensor_mesh(x) == mesh || dt_mesh_equal(dt_tensor_mesh(x), mesh);
}

static bool can_pass(dt_tape *t, const dt_layer *layer, int n, dt_tensor *const *x,
                     const char *what)
{
    if (dt_tape_status(t) != DT_OK) return false;
    if (layer == NULL || x == NULL) {
        (void)dt_tape_fail(t, DT_ERR_ARG, "a layer or its %s is NULL", what);
        return false;
    }
    if (n < 1 || n > DT_MAX_PASSES) {
        (void)dt_tape_fail(t, DT_ERR_ARG, "%d %ss of %s: a layer has 1 to %d", n, what, layer->name,
                           (int)DT_MAX_PASSES);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (x[i] != NULL && on_mesh(x[i], layer->mesh)) continue;
        (void)dt_tape_fail(t, x[i] == NULL ? DT_ERR_ARG : DT_ERR_LAYOUT, "%s %d of %s %s", what, i,
                           layer->name, x[i] == NULL ? "is NULL" : "lies on another mesh");
        return false;
    }
    return true;
}

static void lose(int n, dt_tensor **x)
{
    for (int i = 0; i < n && x != NULL; i++) x[i] = NULL;
}

void dt_layer_enter_all(dt_tape *t, const dt_layer *layer, int n, dt_tensor **x)
{
    if (can_pass(t, layer, n, x, "input"))
        through(enter, t, layer, n, x);
    else
        lose(n, x);
}

void dt_layer_leave_all(dt_tape *t, const dt_layer *layer, int n, dt_tensor **y)
{
    if (can_pass(t, layer, n, y, "output"))
        through(dti_layer_leave, t, layer, n, y);
    else
        lose(n, y);
}

dt_tensor *dt_layer_enter(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_layer_enter_all(t, layer, 1, &x);
    return x;
}

dt_tensor *dt_layer_leave(dt_tape *t, const dt_layer *layer, dt_tensor *y)
{
    dt_layer_leave_all(t, layer, 1, &y);
    return y;
}

dt_tensor *dt_layer_block(dt_tape *t, const dt_layer *point, dt_tensor *x, dt_block_fn body,
                          const void *context)
{
    dt_layer *p = (dt_layer *)point;
    const void *before;
    dt_tensor *y = NULL;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (point == NULL || body == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_block: its point or its body is NULL");
    dt_scope_begin(t, point->name);
    x = dt_layer_enter(t, point, x);
    before = p->context;
    p->context = context;
    if (x != NULL)
        y = point->forward != NULL ? dti_layer_compute(t, point, x) : body(context, t, x);
    p->context = before;
    return dt_scope_end(t, dt_layer_leave(t, point, y));
}

const void *dt_layer_context(const dt_layer *point)
{
    return point != NULL ? point->context : NULL;
}

const dt_layer *dt_layer_inside(const dt_layer *point, const char *name)
{
    for (int i = 0; point != NULL && name != NULL && i < point->list->n; i++) {
        const char *other = point->list->layers[i].name;
        const size_t n = strlen(point->name);
        if (strncmp(other, point->name, n) == 0 && other[n] == '.' &&
            strcmp(other + n + 1, name) == 0)
            return &point->list->layers[i];
    }
    return NULL;
}
