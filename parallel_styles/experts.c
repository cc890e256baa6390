/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a mixture of experts: two layers that hold weights, and the point whose style moves
 * values in and out. */
#include <dtensor/ops.h>

#include "dtensor/create.h"
#include "parallel_styles/layers_internal.h"

static dt_tensor *refuse(dt_tape *t, const dt_layer *layer, const char *why)
{
    return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_experts: %s %s", layer->name, why);
}

dt_tensor *dt_layer_experts(dt_tape *t, const dt_layer *point, const dt_layer *gate_up,
                            const dt_layer *down, dt_tensor *x, dt_tensor *ids, dt_tensor *weights)
{
    const dt_layer *halves[] = { gate_up, down };
    dt_tensor *y;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (point == NULL || gate_up == NULL || down == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_layer_experts: a layer is NULL");
    for (int i = 0; i < 2; i++) {
        if (halves[i]->kind != DT_LAYER_EXPERTS) return refuse(t, halves[i], "is no experts");
        if (dt_layer_param(halves[i], DT_PARAM_WEIGHT) == NULL)
            return refuse(t, halves[i], "has no value: load the model first");
    }
    dt_scope_begin(t, point->name);
    y = dt_experts(t, dt_layer_enter(t, point, x), ids, weights,
                   dt_layer_param(gate_up, DT_PARAM_WEIGHT), dt_layer_param(down, DT_PARAM_WEIGHT));
    return dt_scope_end(t, dt_layer_leave(t, point, y));
}

dt_tensor *dti_output_as_term(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                              dt_tensor *y)
{
    const dt_placement now = dt_layout_placement(dt_tensor_layout(y), dim);
    dt_tensor *term;
    dt_status st;

    if (dt_mesh_dim_size(dt_tensor_mesh(y), dim) == 1 || now.kind == DT_PLACE_PARTIAL) return y;
    if (now.kind == DT_PLACE_SHARD)
        return dt_tape_fail(t, DT_ERR_LAYOUT,
                            "style \"%s\" makes a whole value one term of a sum, but that of %s is "
                            "cut on mesh dim \"%s\"",
                            style->name, layer->name, dt_mesh_dim_name(dt_tensor_mesh(y), dim));
    st = dti_tensor_as_term(y, 1u << dim, &term);
    return st == DT_OK ? dti_tape_push(t, term) : dti_tape_latch(t, st);
}
