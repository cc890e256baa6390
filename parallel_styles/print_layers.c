/* SPDX-License-Identifier: Apache-2.0
 *
 * How a list of layers lies, as text and as JSON: what a plan came to, without a command. */
#include <stdio.h>

#include "base/writer.h"
#include "parallel_styles/layers_internal.h"

/* This rank's piece of a parameter. */
static int64_t piece(const dt_layer *layer, int param, const dt_param_info *info,
                     int64_t local[DT_MAX_AXES], dt_dtype dtype)
{
    const dt_tensor *value = dt_layer_param(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES], n;
    int coord[DT_MAX_DIMS] = { 0 };

    if (value != NULL) dtype = dt_tensor_dtype(value);
    n = (int64_t)dt_dtype_size(dtype);
    for (int d = 0; d < dt_mesh_n_dims(layer->list->mesh); d++)
        coord[d] =
            dt_mesh_coord(layer->list->mesh, d) > 0 ? dt_mesh_coord(layer->list->mesh, d) : 0;
    for (int a = 0; a < info->n_axes; a++) shape[a] = info->axis[a].extent;
    if (dt_layout_local_shape(layer->layout[param], shape, coord, local) != DT_OK) return 0;
    for (int a = 0; a < info->n_axes; a++) n *= local[a];
    return dt_layer_owns_param(layer, param) ? n : 0;
}

static void put_shape(dti_writer *w, int n, const int64_t *shape)
{
    dti_put(w, "[");
    for (int a = 0; a < n; a++) dti_put(w, "%s%lld", a > 0 ? ", " : "", (long long)shape[a]);
    dti_put(w, "]");
}

static void put_styles(dti_writer *w, const dt_layer *layer, bool json)
{
    const dt_mesh *mesh = layer->list->mesh;
    bool any = false;

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        if (layer->style[d] == NULL) continue;
        dti_put(w, any ? json ? ", " : "," : "");
        if (json) {
            dti_put_json(w, dt_mesh_dim_name(mesh, d));
            dti_put(w, ": ");
            dti_put_json(w, layer->style[d]->name);
        } else {
            dti_put(w, "%s=%s", dt_mesh_dim_name(mesh, d), layer->style[d]->name);
        }
        any = true;
    }
    if (!any && !json) dti_put(w, "-");
}

static void put_param(dti_writer *w, const dt_layer *layer, int param, dt_dtype dtype, bool json)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t local[DT_MAX_AXES] = { 0 }, shape[DT_PARAM_MAX_AXES];
    const int64_t bytes = piece(layer, param, &info, local, dtype);
    char place[256], name[512];

    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    (void)dt_layout_print(layer->layout[param], place, sizeof place);
    (void)snprintf(name, sizeof name, "%s.%s", info.layer, info.name);
    if (json) {
        dti_put(w, "{\"name\": ");
        dti_put_json(w, name);
        dti_put(w, ", \"style\": {");
        put_styles(w, layer, true);
        dti_put(w, "}, \"placement\": ");
        dti_put_json(w, place);
        dti_put(w, ", \"shape\": ");
        put_shape(w, info.n_axes, shape);
        dti_put(w, ", \"local_shape\": ");
        put_shape(w, info.n_axes, local);
        dti_put(w, ", \"bytes\": %lld}", (long long)bytes);
        return;
    }
    dti_put(w, "%s  ", name);
    put_styles(w, layer, false);
    dti_put(w, "  %s  ", place);
    put_shape(w, info.n_axes, shape);
    dti_put(w, "  ");
    put_shape(w, info.n_axes, local);
    dti_put(w, "  %lld%s%s\n", (long long)bytes, dt_layer_owns_param(layer, param) ? "" : " of ",
            dt_layer_owns_param(layer, param) ? "" : layer->tied_to->name);
}

int dt_layers_print(const dt_layers *layers, dt_dtype dtype, bool json, char *text, size_t bytes)
{
    dti_writer w = { .text = text, .bytes = bytes };
    bool any = false;

    if (text != NULL && bytes > 0) text[0] = '\0';
    if (json) dti_put(&w, "[");
    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < layers->layers[i].n_params; p++) {
            if (!dt_layer_has_param(&layers->layers[i], p)) continue;
            if (json) dti_put(&w, any ? ",\n " : "");
            put_param(&w, &layers->layers[i], p, dtype, json);
            any = true;
        }
    if (json) dti_put(&w, "]\n");
    return dti_written(&w);
}
