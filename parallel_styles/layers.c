/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a model's layers: made from specs, laid over the mesh by styles (lay_out.c), without
 * reading a weight. */
#include <string.h>

#include "base/memory.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"
#include "parallel_styles/spec.h"

dt_param_info dt_layer_param_info(const dt_layer *layer, int param)
{
    if (layer == NULL) return (dt_param_info){ 0 };
    return dti_spec_param(&(dt_layer_spec){ .name = layer->name,
                                            .kind = layer->kind,
                                            .axis = { layer->axis[0], layer->axis[1] },
                                            .heads = layer->heads,
                                            .blocks = { layer->blocks[0], layer->blocks[1] },
                                            .reversed = layer->reversed,
                                            .n_experts = layer->n_experts,
                                            .parts = { layer->parts[0], layer->parts[1] } },
                          param);
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

/* Room for the offsets of uneven cuts on any mesh dim. */
static dt_status make_room(dt_layers *list)
{
    size_t most = 1;

    for (int m = 0; m < dt_mesh_n_dims(list->mesh); m++)
        if ((size_t)dt_mesh_dim_size(list->mesh, m) > most)
            most = (size_t)dt_mesh_dim_size(list->mesh, m);
    for (int i = 0; i < 2; i++)
        DT_TRY(dti_alloc_array(most + 1, sizeof(int64_t), (void **)&list->offsets[i]));
    return DT_OK;
}

dt_cut_room dti_layers_room(const dt_layers *list, int which)
{
    return (dt_cut_room){ .offsets = list->offsets[which] };
}

static int *index_place(const dt_layers *list, const char *name);

/* Finds the layer whose weight this one shares; it has to be the same matrix. */
static dt_status tie(dt_layers *list, const dt_layer_spec *spec, dt_layer **out)
{
    const uint32_t matrices = DT_KIND_BIT(DT_LAYER_LINEAR) | DT_KIND_BIT(DT_LAYER_EMBEDDING);
    const dt_layer *owner;

    if (spec->tied_to == NULL) return DT_OK;
    *out = dt_layers_find(list, spec->tied_to);
    owner = *out;
    DT_CHECK(owner != NULL, DT_ERR_ARG,
             "%s shares the weight of %s, which is no layer "
             "before it",
             spec->name, spec->tied_to);
    DT_CHECK(owner->tied_to == NULL, DT_ERR_ARG,
             "%s shares the weight of %s, which shares that of %s: name the last", spec->name,
             owner->name, owner->tied_to->name);
    DT_CHECK((DT_KIND_BIT(spec->kind) & matrices) != 0 &&
                 (DT_KIND_BIT(owner->kind) & matrices) != 0,
             DT_ERR_ARG, "%s, %s, shares the weight of %s, %s: linear layers and embeddings can",
             spec->name, dti_kind_text(spec->kind), owner->name, dti_kind_text(owner->kind));
    DT_CHECK(spec->axis[0].extent == owner->axis[0].extent &&
                 spec->axis[1].extent == owner->axis[1].extent,
             DT_ERR_ARG, "%s has weight [%lld, %lld], but shares that of %s, [%lld, %lld]",
             spec->name, (long long)spec->axis[0].extent, (long long)spec->axis[1].extent,
             owner->name, (long long)owner->axis[0].extent, (long long)owner->axis[1].extent);
    DT_CHECK(spec->reversed == owner->reversed, DT_ERR_ARG,
             "%s shares the weight of %s, but only one of them is reversed", spec->name,
             owner->name);
    return DT_OK;
}

static dt_status init_layer(dt_layers *list, dt_layer *layer, const dt_layer_spec *spec)
{
    DT_CHECK(spec->name != NULL && spec->name[0] != '\0', DT_ERR_ARG, "a layer needs a name");
    DT_CHECK((int)spec->kind >= 0 && spec->kind < DT_N_LAYER_KINDS, DT_ERR_ARG,
             "%s: %d is no kind of layer", spec->name, (int)spec->kind);
    DT_TRY(dti_check_axes(spec));
    DT_CHECK(dt_layers_find(list, spec->name) == NULL, DT_ERR_ARG, "two layers are named %s",
             spec->name);
    DT_TRY(tie(list, spec, &layer->tied_to));
    DT_TRY(dti_check_blocks(spec));
    DT_TRY(dti_strdup(spec->name, &layer->name));
    layer->list = list;
    layer->kind = spec->kind;
    memcpy(layer->axis, spec->axis, sizeof layer->axis);
    memcpy(layer->blocks, spec->blocks, sizeof layer->blocks);
    layer->reversed = spec->reversed;
    layer->n_experts = spec->n_experts;
    memcpy(layer->parts, spec->parts, sizeof layer->parts);
    layer->heads = spec->heads;
    layer->eps = spec->eps;
    layer->one_plus = spec->one_plus;
    layer->n_params = dti_spec_n_params(spec);
    for (int s = 0; s < DTI_N_STYLE_SLOTS; s++) layer->rule[s] = -1;
    *index_place(list, layer->name) = ++list->n;
    return DT_OK;
}

dt_status dt_layers_create(dt_mesh *mesh, const char *dim, const dt_layer_spec *specs, int n_specs,
                           const dt_plan *plan, dt_layers **out)
{
    dt_status st = DT_OK;
    dt_layers *list = NULL;
    dti_rule_list rules = { 0 };

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dim != NULL, DT_ERR_ARG, "mesh or dim is NULL");
    DT_CHECK(n_specs >= 0 && (specs != NULL || n_specs == 0), DT_ERR_ARG, "%d layers", n_specs);
    DT_TRY(dti_new(sizeof *list, &list));
    list->mesh = dt_mesh_retain(mesh);
    list->dtype = DT_N_DTYPES;
    list->slot = dt_mesh_find_dim(mesh, dim);
    if (list->slot < 0) list->slot = DTI_NO_DIM;
    if (list->slot == DTI_NO_DIM && dt_mesh_n_ranks(mesh) > 1 && dti_mesh_place(mesh) == 0)
        dti_runtime_log(dt_mesh_runtime(mesh), DT_LOG_WARNING,
                        "the mesh has no dim \"%s\": every rank holds and computes all", dim);
    dti_runtime_count(dt_mesh_runtime(mesh), DTI_LIVE_LAYERS, 1);
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n_specs, sizeof(dt_layer), (void **)&list->layers));
    DT_TRY_TO(fail, st, make_index(list, n_specs));
    DT_TRY_TO(fail, st, make_room(list));
    DT_TRY_TO(fail, st, dti_rules_of(mesh, dim, plan, &rules));
    for (int i = 0; i < n_specs; i++)
        DT_TRY_TO(fail, st, init_layer(list, &list->layers[i], &specs[i]));
    DT_TRY_TO(fail, st, dti_layers_choose(list, specs, &rules));
    DT_TRY_TO(fail, st, dti_layers_lay_out(list, &rules));
    DT_TRY_TO(fail, st, dti_rules_check(&rules, list));
    dti_free(rules.rule);
    *out = list;
    return DT_OK;

fail:
    dti_free(rules.rule);
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
        dt_tensor_release(&list->layers[i].bias_term);
        dti_free(list->layers[i].name);
    }
    for (size_t i = 0; i < list->n_remarks; i++) dti_free(list->remarks[i]);
    dti_free((void *)list->remarks);
    dti_free(list->index);
    for (int i = 0; i < 2; i++) dti_free(list->offsets[i]);
    dti_free(list->layers);
    dti_runtime_count(dt_mesh_runtime(list->mesh), DTI_LIVE_LAYERS, -1);
    dt_mesh_release(&list->mesh);
    dti_free(list);
}

const char *dt_layers_remark(const dt_layers *list, int i)
{
    return list != NULL && i >= 0 && (size_t)i < list->n_remarks ? list->remarks[i] : NULL;
}

dt_mesh *dt_layers_mesh(const dt_layers *layers)
{
    return layers != NULL ? layers->mesh : NULL;
}

int dt_layers_count(const dt_layers *list)
{
    return list != NULL ? list->n : 0;
}

dt_layer *dt_layers_at(dt_layers *list, int i)
{
    return i >= 0 && i < dt_layers_count(list) ? &list->layers[i] : NULL;
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
    if (list == NULL || name == NULL) return NULL;
    const int found = *index_place(list, name);

    return found > 0 ? &list->layers[found - 1] : NULL;
}
