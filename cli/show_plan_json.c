/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of `dtensor plan` as JSON: one object per parameter, collective and rank. */
#include <jansson.h>
#include <stdio.h>

#include "cli/show_plan.h"

static json_t *ints(const int64_t *values, int n)
{
    json_t *array = json_array();

    for (int i = 0; i < n; i++) (void)json_array_append_new(array, json_integer(values[i]));
    return array;
}

/* {"tp": "colwise"}: the dims on which the layer has a style. */
static json_t *json_styles(const dt_mesh *mesh, const dt_layer *layer, bool step)
{
    json_t *object = json_object();

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const dt_style *style =
            step ? dt_layer_step_style_on(layer, d) : dt_layer_style_on(layer, d);
        if (style != NULL)
            (void)json_object_set_new(object, dt_mesh_dim_name(mesh, d), json_string(style->name));
    }
    return object;
}

static json_t *json_placements(const dt_mesh *mesh, const dt_layout *layout)
{
    json_t *array = json_array();
    char text[64];

    for (int d = 0; d < dt_mesh_n_dims(mesh); d++) {
        const dt_placement place = dt_layout_placement(layout, d);
        (void)dt_placement_print(&place, text, sizeof text);
        (void)json_array_append_new(array, json_string(text));
    }
    return array;
}

static json_t *json_param(const cli_resolved *r, const dt_layer *layer, int param)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    const dt_layout *layout = dt_layer_param_layout(layer, param);
    const dt_local *local = dt_tensor_local(dt_layer_param(layer, param));
    const dt_layer *partner = dt_layer_owns_param(layer, param) ? NULL : dt_layer_tied_to(layer);
    int64_t shape[DT_PARAM_MAX_AXES], bytes = (int64_t)dt_dtype_size(local->dtype);
    char name[512];

    for (int a = 0; a < info.n_axes; a++) {
        shape[a] = info.axis[a].extent;
        bytes *= local->shape[a];
    }
    (void)snprintf(name, sizeof name, "%s.%s", info.layer, info.name);
    return json_pack("{s:s, s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:o}", "name", name, "style",
                     json_styles(r->first.mesh, layer, false), "step_style",
                     json_styles(r->first.mesh, layer, true), "from", cli_plan_source(r, layer),
                     "placement", json_placements(r->first.mesh, layout), "shape",
                     ints(shape, info.n_axes), "local_shape", ints(local->shape, info.n_axes),
                     "bytes", (json_int_t)(partner != NULL ? 0 : bytes), "tied_to",
                     partner != NULL ? json_string(dt_layer_name(partner)) : json_null());
}

static json_t *json_params(const cli_resolved *r)
{
    dt_layers *layers = dt_model_layers(r->first.model);
    json_t *array = json_array();

    for (int i = 0; i < dt_layers_count(layers); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(layers, i)); p++)
            (void)json_array_append_new(array, json_param(r, dt_layers_at(layers, i), p));
    return array;
}

/* What of the plan was in vain. */
static json_t *json_warnings(const cli_resolved *r)
{
    json_t *array = json_array();
    const char *text;

    for (int i = 0; (text = dt_layers_remark(dt_model_layers(r->first.model), i)) != NULL; i++)
        (void)json_array_append_new(array, json_string(text));
    return array;
}

/* Layers without parameters, which only lay values out. */
static json_t *json_points(const cli_resolved *r)
{
    dt_layers *layers = dt_model_layers(r->first.model);
    json_t *array = json_array();

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        if (dt_layer_n_params(layer) > 0) continue;
        (void)json_array_append_new(array,
                                    json_pack("{s:s, s:o, s:o, s:s}", "name", dt_layer_name(layer),
                                              "style", json_styles(r->first.mesh, layer, false),
                                              "step_style", json_styles(r->first.mesh, layer, true),
                                              "from", cli_plan_source(r, layer)));
    }
    return array;
}

static json_t *json_pass(const cli_resolved *r, const dti_pass_cost *cost, int64_t tokens)
{
    json_t *items = json_array(), *total = json_array();

    for (size_t i = 0; i < cost->n; i++) {
        const dti_traffic *t = &cost->items[i];
        char dims[CLI_DIMS_BYTES];
        (void)json_array_append_new(
            items, json_pack("{s:o, s:s, s:s, s:i, s:I, s:I}", "layer",
                             t->layer != NULL ? json_string(t->layer) : json_null(), "kind",
                             dt_comm_kind_name(t->kind), "dim",
                             cli_dims_text(r->first.mesh, t->dims, dims), "ranks",
                             cli_dims_ranks(r->first.mesh, t->dims), "calls",
                             (json_int_t)t->count.calls, "bytes", (json_int_t)t->count.bytes));
    }
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        if (cost->total[k].calls > 0)
            (void)json_array_append_new(
                total, json_pack("{s:s, s:I, s:I}", "kind", dt_comm_kind_name((dt_comm_kind)k),
                                 "calls", (json_int_t)cost->total[k].calls, "bytes",
                                 (json_int_t)cost->total[k].bytes));
    return json_pack("{s:I, s:o, s:o, s:f, s:f}", "tokens", (json_int_t)tokens, "collectives",
                     items, "total", total, "operations", cost->work.flops, "kernel_bytes",
                     cost->work.bytes);
}

static json_t *json_ranks(const cli_resolved *r)
{
    json_t *array = json_array();

    for (int i = 0; i < r->n_ranks; i++) {
        const dti_rank_cost *c = &r->ranks[i];
        (void)json_array_append_new(
            array, json_pack("{s:i, s:I, s:I, s:I, s:I, s:I}", "rank", i, "weight_bytes",
                             (json_int_t)c->weight_bytes, "cache_bytes", (json_int_t)c->cache_bytes,
                             "activation_bytes", (json_int_t)c->activation_bytes, "prompt_bytes",
                             (json_int_t)c->prompt_bytes, "step_bytes", (json_int_t)c->step_bytes));
    }
    return array;
}

dt_status cli_resolved_json(const cli_resolved *r)
{
    const dt_model_info *info = dt_model_info_of(r->first.model);
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:b, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "model",
        r->folder, "model_type", info->model_type, "dtype", dt_dtype_name(info->dtype), "mesh",
        r->mesh, "plan", r->plan != NULL ? json_string(r->plan) : json_null(), "sequence_parallel",
        (int)r->sequence_parallel, "parameters", (json_int_t)r->n_params, "batch",
        (json_int_t)r->batch, "sequence", (json_int_t)r->sequence, "layout", json_params(r),
        "points", json_points(r), "warnings", json_warnings(r), "prompt",
        json_pass(r, &r->first.prefill, r->batch * r->sequence), "step",
        json_pass(r, &r->first.decode, r->batch), "ranks", json_ranks(r));

    DT_CHECK(object != NULL, DT_ERR_MEMORY,
             "the result cannot be written as JSON: memory, or a name that is not UTF-8");
    (void)json_dumpf(object, stdout, JSON_INDENT(1));
    (void)fputc('\n', stdout);
    json_decref(object);
    return DT_OK;
}
