/* SPDX-License-Identifier: Apache-2.0
 *
 * How a list of layers lies, as text and as JSON: what a plan came to. */
#include "parallel_styles/print_layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "parallel_styles/layers_internal.h"
#include "parallel_styles/print_table.h"

/* This rank's piece of a parameter, in bytes, and its shape. Of a tied one the partner has them. */
static int64_t piece(const dt_layer *layer, int param, const dt_param_info *info,
                     int64_t local[DT_MAX_AXES], dt_dtype dtype)
{
    const dt_mesh *mesh = layer->mesh;
    const dt_tensor *value = dt_layer_param(layer, param);
    int64_t shape[DT_PARAM_MAX_AXES], n;
    int coord[DT_MAX_DIMS] = { 0 };

    dtype = value != NULL ? dt_tensor_dtype(value) : dti_param_dtype(info, dtype);
    n = (int64_t)dt_dtype_size(dtype);
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        if (dt_mesh_coord(mesh, d) > 0) coord[d] = dt_mesh_coord(mesh, d);
    for (int a = 0; a < info->n_axes; a++) shape[a] = info->axis[a].extent;
    if (dt_layout_local_shape(layer->layout[param], shape, coord, local) != DT_OK) return 0;
    for (int a = 0; a < info->n_axes; a++) n *= local[a];
    return dt_layer_holds_param(layer, param) && dt_mesh_is_member(mesh) ? n : 0;
}

/* --- as text ---------------------------------------------------------------------------------- */

/* "colwise", or "tp:colwise cp:rowwise" where there are several; "activation | replicate" where a
 * step of one token has another. */
static void style_text(const dt_layer *layer, char text[DTI_TABLE_TEXT_BYTES])
{
    dti_writer w = { .text = text, .bytes = DTI_TABLE_TEXT_BYTES };
    const dt_mesh *mesh = layer->mesh;
    int n = 0;

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) n += dt_layer_style_on(layer, d) != NULL;
    dti_put(&w, "%s", n == 0 ? "-" : "");
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const dt_style *style = dt_layer_style_on(layer, d);
        const dt_style *step = dt_layer_step_style_on(layer, d);
        if (style == NULL) continue;
        dti_put(&w, "%s%s%s%s", w.used > 0 ? " " : "", n > 1 ? dt_mesh_dim_name(mesh, d) : "",
                n > 1 ? ":" : "", style->name);
        if (step != style) dti_put(&w, " | %s", step->name);
    }
}

/* A layer without parameters has a line if it does something: the style of most is "replicate". */
static void add_point(const dt_layer *layer, dti_table *t)
{
    dti_table_row like = { .text = { "", "-", "-" } }, *found;

    dti_table_name(layer->name, like.name);
    style_text(layer, like.text[0]);
    if (strcmp(like.text[0], "replicate") == 0 || strcmp(like.text[0], "-") == 0) return;
    found = dti_table_find(t, &like);
    if (found != NULL) found->n++;
}

static void add_param(const dt_layer *layer, int param, dt_dtype dtype, dti_table *t)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    dti_table_row like = { .n = 0 }, *found;
    int64_t local[DT_MAX_AXES] = { 0 };
    const int64_t bytes = piece(layer, param, &info, local, dtype);
    char name[DT_PARAM_NAME_BYTES];

    (void)snprintf(name, sizeof name, "%s.%s", layer->name, info.name);
    dti_table_name(name, like.name);
    style_text(layer, like.text[0]);
    (void)dt_layout_print(layer->layout[param], like.text[1], DTI_TABLE_TEXT_BYTES);
    (void)dti_shape_text(local, info.n_axes, like.text[2], DTI_TABLE_TEXT_BYTES);
    found = dti_table_find(t, &like);
    if (found == NULL) return;
    found->n++;
    found->bytes[0] += bytes;
}

/* Does some layer have another style in a step of one token? */
static bool has_steps(const dt_layers *layers)
{
    for (int i = 0; i < layers->n; i++)
        for (int d = 0; d < dt_mesh_n_dims(layers->mesh); d++)
            if (dt_layer_step_style_on(&layers->layers[i], d) !=
                dt_layer_style_on(&layers->layers[i], d))
                return true;
    return false;
}

static void put_table(dti_writer *w, const dt_layers *layers, dt_dtype dtype)
{
    const char *style = has_steps(layers) ? "style | in a step" : "style";
    char number[DTI_NUMBER_BYTES], here[32];
    int widths[1 + DTI_TABLE_TEXTS] = { 9, (int)strlen(style), 9,
                                        snprintf(here, sizeof here, "on rank %d",
                                                 dt_runtime_rank(dt_mesh_runtime(layers->mesh))) };
    dti_table t = { 0 };

    for (int i = 0; i < layers->n; i++) {
        const dt_layer *layer = &layers->layers[i];
        for (int p = 0; p < layer->n_params; p++)
            if (dt_layer_has_param(layer, p)) add_param(layer, p, dtype, &t);
        if (layer->n_params == 0) add_point(layer, &t);
    }
    dti_table_widths(&t, widths);
    dti_put(w, "%-*s %5s  %-*s  %-*s  %-*s %10s\n", widths[0], "parameter", "n", widths[1], style,
            widths[2], "placement", widths[3], here, "bytes");
    for (size_t i = 0; i < t.n; i++) {
        const dti_table_row *r = &t.rows[i];
        dti_put(w, "%-*s %5" PRId64 "  %-*s  %-*s  %-*s %10s\n", widths[0], r->name, r->n,
                widths[1], r->text[0], widths[2], r->text[1], widths[3], r->text[2],
                dti_bytes_text(r->bytes[0], number));
    }
    dti_free(t.rows);
}

/* --- as JSON ---------------------------------------------------------------------------------- */

/* ", "key": [250, 96]" */
static void put_shape(dti_writer *w, const char *key, const int64_t *shape, int n)
{
    dti_put(w, ", \"%s\": [", key);
    for (int a = 0; a < n; a++) dti_put(w, "%s%" PRId64, a > 0 ? ", " : "", shape[a]);
    dti_put(w, "]");
}

/* ", "key": {"tp": "colwise"}": the dims on which the layer has a style. */
static void put_styles(dti_writer *w, const char *key, const dt_layer *layer, bool step)
{
    const dt_mesh *mesh = layer->mesh;
    const char *comma = "";

    dti_put(w, ", \"%s\": {", key);
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const dt_style *style =
            step ? dt_layer_step_style_on(layer, d) : dt_layer_style_on(layer, d);
        if (style == NULL) continue;
        dti_put(w, "%s", comma);
        dti_put_json(w, dt_mesh_dim_name(mesh, d));
        dti_put(w, ": ");
        dti_put_json(w, style->name);
        comma = ", ";
    }
    dti_put(w, "}");
}

/* Whether a rule of a plan chose the style of the layer on some dim. */
static bool has_rule(const dt_layer *layer)
{
    for (int d = 0; layer != NULL && d < dt_mesh_n_dims(layer->mesh); d++)
        if (dt_layer_rule_on(layer, d) >= 0) return true;
    return false;
}

/* The layer that shares the weight of `layer`, in either direction; NULL: none does. */
static const dt_layer *partner_of(const dt_layer *layer)
{
    const dt_layers *list = layer->list;

    if (layer->tied_to != NULL) return layer->tied_to;
    for (int i = 0; i < list->n; i++)
        if (list->layers[i].tied_to == layer) return &list->layers[i];
    return NULL;
}

/* Name, styles, and where they come from. */
static void put_layer(dti_writer *w, const char *name, const dt_layer *layer)
{
    const bool ruled = has_rule(layer) || has_rule(partner_of(layer));

    dti_put(w, "{\"name\": ");
    dti_put_json(w, name);
    put_styles(w, "style", layer, false);
    put_styles(w, "step_style", layer, true);
    dti_put(w, ", \"from\": \"%s\"", ruled ? "plan" : layer->list->manual ? "manual" : "built-in");
}

static void put_param(dti_writer *w, const dt_layer *layer, int param, dt_dtype dtype)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    int64_t local[DT_MAX_AXES] = { 0 }, shape[DT_PARAM_MAX_AXES];
    const int64_t bytes = piece(layer, param, &info, local, dtype);
    char text[DT_PARAM_NAME_BYTES];

    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    (void)snprintf(text, sizeof text, "%s.%s", layer->name, info.name);
    put_layer(w, text, layer);
    dti_put(w, ", \"placement\": [");
    for (int d = 0; d < dt_mesh_n_dims(layer->mesh); d++) {
        const dt_placement place = dt_layout_placement(layer->layout[param], d);
        (void)dt_placement_print(&place, text, sizeof text);
        dti_put(w, d > 0 ? ", " : "");
        dti_put_json(w, text);
    }
    dti_put(w, "]");
    put_shape(w, "shape", shape, info.n_axes);
    put_shape(w, "local_shape", local, info.n_axes);
    dti_put(w, ", \"bytes\": %" PRId64 ", \"tied_to\": ", bytes);
    if (dt_layer_owns_param(layer, param))
        dti_put(w, "null}");
    else
        dti_put_json(w, layer->tied_to->name), dti_put(w, "}");
}

static void put_members(dti_writer *w, const dt_layers *layers, dt_dtype dtype)
{
    const char *comma = "", *text;

    dti_put(w, "\"layout\": [");
    for (int i = 0; i < layers->n; i++)
        for (int p = 0; p < layers->layers[i].n_params; p++) {
            if (!dt_layer_has_param(&layers->layers[i], p)) continue;
            dti_put(w, "%s\n ", comma);
            put_param(w, &layers->layers[i], p, dtype);
            comma = ",";
        }
    dti_put(w, "],\n\"points\": [");
    comma = "";
    for (int i = 0; i < layers->n; i++) {
        if (layers->layers[i].n_params > 0) continue;
        dti_put(w, "%s\n ", comma);
        put_layer(w, layers->layers[i].name, &layers->layers[i]);
        dti_put(w, "}");
        comma = ",";
    }
    dti_put(w, "],\n\"warnings\": [");
    for (int i = 0; (text = dt_layers_remark(layers, i)) != NULL; i++) {
        dti_put(w, i > 0 ? ",\n " : "\n ");
        dti_put_json(w, text);
    }
    dti_put(w, "]");
}

void dti_layers_put(dti_writer *w, const dt_layers *layers, dt_dtype dtype, bool json)
{
    if (json)
        put_members(w, layers, dtype);
    else
        put_table(w, layers, dtype);
}

int dt_layers_print(const dt_layers *layers, dt_dtype dtype, bool json, char *text, size_t bytes)
{
    dti_writer w = { .text = text, .bytes = bytes };

    if (text != NULL && bytes > 0) text[0] = '\0';
    if (layers == NULL) return 0;
    if (json) dti_put(&w, "{");
    dti_layers_put(&w, layers, dtype, json);
    if (json) dti_put(&w, "}\n");
    return dti_written(&w);
}
