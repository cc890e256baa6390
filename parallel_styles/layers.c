/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a model's layers: made from specs, laid over a mesh dim by styles, without reading a
 * weight. */
#include <string.h>

#include "base/memory.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

dt_param_info dt_layer_param_info(const dt_layer *layer, int param)
{
    dt_param_info info = { .layer = layer->name,
                           .name = param == DT_PARAM_BIAS ? "bias" : "weight",
                           .kind = layer->kind,
                           .n_axes = 1,
                           .axis = { layer->axis[0] },
                           .heads = layer->heads };

    if (param == DT_PARAM_WEIGHT &&
        (layer->kind == DT_LAYER_LINEAR || layer->kind == DT_LAYER_EMBEDDING)) {
        info.n_axes = 2;
        info.axis[1] = layer->axis[1];
    }
    return info;
}

static int n_params_of(const dt_layer_spec *spec)
{
    switch (spec->kind) {
    case DT_LAYER_LINEAR:
        return spec->bias ? 2 : 1;
    case DT_LAYER_EMBEDDING:
    case DT_LAYER_RMS_NORM:
        return 1;
    case DT_LAYER_LAYER_NORM:
        return 2;
    default:
        return 0;
    }
}

static dt_status partition(dt_layer *layer, int param)
{
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const dt_param_info info = dt_layer_param_info(layer, param);
    dt_mesh *mesh = layer->list->mesh;
    const int dim = layer->list->dim;
    dt_status st;

    if (dim >= 0) {
        DT_TRY(dti_style_partition(layer->style, &info, dt_mesh_dim_size(mesh, dim), &place[dim]));
        DT_CHECK(place[dim].kind != DT_PLACE_PARTIAL, DT_ERR_LAYOUT,
                 "style \"%s\" makes %s.%s Partial: a parameter is Shard or Replicate",
                 layer->style->name, layer->name, info.name);
    }
    st = dt_layout_get(mesh, info.n_axes, place, NULL, &layer->layout[param]);
    if (st != DT_OK) {
        dti_error_prefix("style \"%s\" on %s.%s (%d axes)", layer->style->name, layer->name,
                         info.name, info.n_axes);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    return DT_OK;
}

/* A user's function may fail without writing a record. */
static dt_status refusal(dt_status st, const dt_style *style, const dt_layer *layer)
{
    if (st == DT_OK) return DT_OK;
    if (dt_last_error()->code == DT_OK)
        DT_FAIL(st, "style \"%s\" refuses %s", style->name, layer->name);
    dti_error_prefix("style \"%s\" refuses %s", style->name, layer->name);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

static dt_status lay_out(dt_layer *layer)
{
    const dt_style *style = layer->style;
    const int dim = layer->list->dim;
    const int parts = dim < 0 ? 1 : dt_mesh_dim_size(layer->list->mesh, dim);

    if (style->validate != NULL) {
        dti_error_clear();
        DT_TRY(refusal(style->validate(style, layer, parts), style, layer));
    }
    for (int p = 0; p < layer->n_params; p++) DT_TRY(partition(layer, p));
    if (layer->tied_to != NULL)
        DT_CHECK(layer->layout[0] == layer->tied_to->layout[0], DT_ERR_LAYOUT,
                 "%s shares the weight of %s, but style \"%s\" cuts it otherwise than \"%s\" does",
                 layer->name, layer->tied_to->name, style->name, layer->tied_to->style->name);
    if (layer->kind == DT_LAYER_LINEAR && dim >= 0 && parts > 1) {
        const dt_placement w = dt_layout_placement(layer->layout[DT_PARAM_WEIGHT], dim);
        layer->inputs_cut = w.kind == DT_PLACE_SHARD && w.axis == 1;
    }
    return DT_OK;
}

static dt_status set_style(dt_layer *layer, const char *name)
{
    const dt_status st = dt_style_find(dt_mesh_runtime(layer->list->mesh), name, &layer->style);

    if (st != DT_OK) dti_error_prefix("plan for %s", layer->name);
    DT_TRY(st);
    return DT_OK;
}

/* The style that lays a tied layer as its partner's style lays the shared weight. */
static dt_status follow(dt_layer *layer, const dt_layer *partner)
{
    const dt_param_info weight = dt_layer_param_info(partner, DT_PARAM_WEIGHT);
    const int dim = layer->list->dim;
    const bool embeds = layer->kind == DT_LAYER_EMBEDDING;
    dt_placement place = DT_REPLICATE;

    if (dim >= 0)
        DT_TRY(dti_style_partition(partner->style, &weight,
                                   dt_mesh_dim_size(layer->list->mesh, dim), &place));
    if (place.kind != DT_PLACE_SHARD) return set_style(layer, "replicate");
    if (place.axis == 0) return set_style(layer, embeds ? "embedding_rowwise" : "colwise");
    return set_style(layer, embeds ? "colwise" : "rowwise");
}

/* An open-addressing table of twice as many places as layers. */
static dt_status make_index(dt_layers *list, int n)
{
    uint32_t places = 16;

    while (places < 2 * (uint32_t)n) places *= 2;
    DT_TRY(dti_alloc_array(places, sizeof *list->index, (void **)&list->index));
    list->index_mask = places - 1;
    return DT_OK;
}

static int *index_place(const dt_layers *list, const char *name);

static dt_status init_layer(dt_layers *list, dt_layer *layer, const dt_layer_spec *spec)
{
    DT_CHECK(spec->name != NULL && spec->name[0] != '\0', DT_ERR_ARG, "a layer needs a name");
    DT_CHECK((int)spec->kind >= 0 && spec->kind < DT_N_LAYER_KINDS, DT_ERR_ARG,
             "%s: %d is no kind of layer", spec->name, (int)spec->kind);
    DT_CHECK(dt_layers_find(list, spec->name) == NULL, DT_ERR_ARG, "two layers are named %s",
             spec->name);
    if (spec->tied_to != NULL) {
        layer->tied_to = dt_layers_find(list, spec->tied_to);
        DT_CHECK(layer->tied_to != NULL, DT_ERR_ARG,
                 "%s shares the weight of %s, which is no layer "
                 "before it",
                 spec->name, spec->tied_to);
    }
    DT_TRY(dti_strdup(spec->name, &layer->name));
    layer->list = list;
    layer->kind = spec->kind;
    memcpy(layer->axis, spec->axis, sizeof layer->axis);
    layer->heads = spec->heads;
    layer->eps = spec->eps;
    layer->n_params = n_params_of(spec);
    *index_place(list, layer->name) = ++list->n;
    return DT_OK;
}

/* Explicit rules first; then a tied partner follows the other's rule; then the specs' defaults. */
static dt_status choose_styles(dt_layers *list, const dt_layer_spec *specs, const dt_plan *plan,
                               bool *used)
{
    const dt_plan none = { 0 };

    if (plan == NULL) plan = &none;
    for (int i = 0; i < list->n; i++) {
        const char *style = dti_plan_style(plan, list->layers[i].name, used);
        if (style != NULL) DT_TRY(set_style(&list->layers[i], style));
    }
    for (int i = 0; i < list->n; i++) {
        dt_layer *layer = &list->layers[i], *partner = layer->tied_to;
        if (partner == NULL) continue;
        if (layer->style != NULL && partner->style == NULL)
            DT_TRY(follow(partner, layer));
        else if (layer->style == NULL && partner->style != NULL)
            DT_TRY(follow(layer, partner));
    }
    for (int i = 0; i < list->n; i++)
        if (list->layers[i].style == NULL)
            DT_TRY(set_style(&list->layers[i], specs[i].style ? specs[i].style : "replicate"));
    return DT_OK;
}

static dt_status check_unused(dt_layers *list, const dt_plan *plan, const bool *used)
{
    for (int i = 0; plan != NULL && i < plan->n_rules; i++) {
        if (used[i]) continue;
        DT_CHECK(!plan->strict, DT_ERR_ARG,
                 "plan rule \"%s\": \"%s\" matches no layer (first layers: "
                 "%s, %s)",
                 plan->rules[i].pattern, plan->rules[i].style,
                 list->n > 0 ? list->layers[0].name : "none",
                 list->n > 1 ? list->layers[1].name : "none");
        dti_runtime_log(dt_mesh_runtime(list->mesh), DT_LOG_WARNING,
                        "plan rule \"%s\": \"%s\" matches no layer", plan->rules[i].pattern,
                        plan->rules[i].style);
    }
    return DT_OK;
}

dt_status dt_layers_create(dt_mesh *mesh, const char *dim, const dt_layer_spec *specs, int n_specs,
                           const dt_plan *plan, dt_layers **out)
{
    dt_status st = DT_OK;
    dt_layers *list = NULL;
    bool *used = NULL;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dim != NULL, DT_ERR_ARG, "mesh or dim is NULL");
    DT_CHECK(n_specs >= 0 && (specs != NULL || n_specs == 0), DT_ERR_ARG, "%d layers", n_specs);
    DT_TRY(dti_new(sizeof *list, &list));
    list->mesh = dt_mesh_retain(mesh);
    list->dim = dt_mesh_find_dim(mesh, dim);
    if (list->dim < 0 && dt_mesh_n_ranks(mesh) > 1 && dt_runtime_rank(dt_mesh_runtime(mesh)) == 0)
        dti_runtime_log(dt_mesh_runtime(mesh), DT_LOG_WARNING,
                        "the mesh has no dim \"%s\": every rank holds and computes all", dim);
    dti_runtime_count(dt_mesh_runtime(mesh), 1);
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n_specs, sizeof(dt_layer), (void **)&list->layers));
    DT_TRY_TO(fail, st, make_index(list, n_specs));
    DT_TRY_TO(fail, st, dti_alloc_array(plan ? (size_t)plan->n_rules : 0, 1, (void **)&used));
    for (int i = 0; i < n_specs; i++)
        DT_TRY_TO(fail, st, init_layer(list, &list->layers[i], &specs[i]));
    DT_TRY_TO(fail, st, choose_styles(list, specs, plan, used));
    for (int i = 0; i < n_specs; i++) DT_TRY_TO(fail, st, lay_out(&list->layers[i]));
    DT_TRY_TO(fail, st, check_unused(list, plan, used));
    dti_free(used);
    *out = list;
    return DT_OK;

fail:
    dti_free(used);
    dt_layers_release(&list);
    return st;
}

void dt_layers_release(dt_layers **layers)
{
    dt_layers *list = layers ? *layers : NULL;

    if (list == NULL) return;
    *layers = NULL;
    for (int i = 0; i < list->n; i++) {
        for (int p = 0; p < DT_LAYER_MAX_PARAMS; p++) dt_tensor_release(&list->layers[i].param[p]);
        dti_free(list->layers[i].name);
    }
    dti_free(list->index);
    dti_free(list->layers);
    dti_runtime_count(dt_mesh_runtime(list->mesh), -1);
    dt_mesh_release(&list->mesh);
    dti_free(list);
}

int dt_layers_count(const dt_layers *list)
{
    return list->n;
}

dt_layer *dt_layers_at(dt_layers *list, int i)
{
    return i >= 0 && i < list->n ? &list->layers[i] : NULL;
}

static uint32_t hash_of(const char *name)
{
    uint32_t h = 2166136261u; /* FNV-1a */

    for (; *name != '\0'; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

/* Where `name` is in the index, or the empty place where it belongs. */
static int *index_place(const dt_layers *list, const char *name)
{
    uint32_t i = hash_of(name) & list->index_mask;

    while (list->index[i] > 0 && strcmp(list->layers[list->index[i] - 1].name, name) != 0)
        i = (i + 1) & list->index_mask;
    return &list->index[i];
}

dt_layer *dt_layers_find(dt_layers *list, const char *name)
{
    const int found = *index_place(list, name);

    return found > 0 ? &list->layers[found - 1] : NULL;
}
