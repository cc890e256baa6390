/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a model's layers: made from specs, laid over the mesh by styles (lay_out.c), without
 * reading a weight. */
#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "dtensor/gather.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

static const dti_live sets_of_layers = { "set of layers", "sets of layers" };

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
    const dt_param_info mine = dt_spec_param(spec, DT_PARAM_WEIGHT);
    const dt_layer *owner;
    dt_param_info other;

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
    other = dt_layer_param_info(owner, DT_PARAM_WEIGHT);
    DT_CHECK(mine.n_axes == 2 && other.n_axes == 2, DT_ERR_ARG,
             "%s, %s, shares the weight of %s, %s: linear layers and embeddings can, as any kind "
             "whose first parameter has two axes",
             spec->name, dti_kind_text(spec->kind), owner->name, dti_kind_text(owner->spec.kind));
    DT_CHECK(mine.axis[0].extent == other.axis[0].extent &&
                 mine.axis[1].extent == other.axis[1].extent,
             DT_ERR_ARG, "%s has weight [%lld, %lld], but shares that of %s, [%lld, %lld]",
             spec->name, (long long)mine.axis[0].extent, (long long)mine.axis[1].extent,
             owner->name, (long long)other.axis[0].extent, (long long)other.axis[1].extent);
    DT_CHECK(spec->reversed == owner->spec.reversed, DT_ERR_ARG,
             "%s shares the weight of %s, but only one of them is reversed", spec->name,
             owner->name);
    return DT_OK;
}

/* Two kinds of one name: a style that names one would be on the other. */
static dt_status check_known(const dt_layers *list, const dt_layer_spec *spec)
{
    const dt_layer_kind *known = dt_kind_find(dt_mesh_runtime(list->mesh), spec->kind->name);
    bool other = known != NULL && known != spec->kind;

    for (int i = 0; i < list->n && !other && dti_kind_is_own(spec->kind); i++) {
        const dt_layer_kind *kind = list->layers[i].spec.kind;
        other = kind != spec->kind && strcmp(kind->name, spec->kind->name) == 0;
    }
    DT_CHECK(!other, DT_ERR_ARG,
             "%s: there is another kind of layer \"%s\"; give yours a name of "
             "its own",
             spec->name, spec->kind->name);
    return DT_OK;
}

/* What the kind says that is asked for with every token. */
static void read_kind(dt_layer *layer)
{
    const dt_layer_kind *kind = layer->spec.kind;
    const char rows = dti_kind_letter(kind, DT_CUT_ROWS);

    layer->params = dti_spec_params(&layer->spec);
    layer->n_params = dt_spec_n_params(&layer->spec);
    layer->ids = dti_kind_has_ids(kind);
    layer->own_kind = dti_kind_is_own(kind);
    layer->n_states = dti_kind_n_states(kind);
    layer->added = layer->rows_axis = -1;
    for (int p = layer->n_params - 1; p >= 0; p--) {
        const char *at = rows != 0 ? strchr(kind->params[p].axes, rows) : NULL;
        if (!dt_layer_has_param(layer, p)) continue;
        if (kind->params[p].added) layer->added = p;
        if (at == NULL || layer->ids) continue;
        layer->rows_param = p;
        layer->rows_axis = (int)(at - kind->params[p].axes);
    }
}

/* A stage's mesh is a part of the list's with the same dims, so that numbers and names of dims, and
 * the plans that speak of them, mean the same on both. */
static dt_status check_mesh(const dt_layers *list, const dt_layer_spec *spec)
{
    const dt_mesh *all = list->mesh, *mesh = spec->mesh;
    char text[2][128];

    if (mesh == NULL || mesh == all) return DT_OK;
    if (list->n > 0 && list->layers[list->n - 1].mesh == mesh) return DT_OK; /* checked with that */
    bool part = dt_mesh_runtime(mesh) == dt_mesh_runtime(all) &&
                dt_mesh_n_dims(mesh) == dt_mesh_n_dims(all);
    for (int d = 0; part && d < dt_mesh_n_dims(all); d++)
        part = strcmp(dt_mesh_dim_name(mesh, d), dt_mesh_dim_name(all, d)) == 0;
    for (int r = 0; part && r < dt_mesh_n_ranks(mesh); r++)
        part = dt_mesh_find_rank(all, dt_mesh_rank_at(mesh, r), NULL);
    if (part) return DT_OK;
    (void)dt_mesh_print(mesh, text[0], sizeof text[0]);
    (void)dt_mesh_print(all, text[1], sizeof text[1]);
    DT_FAIL(DT_ERR_ARG,
            "%s lies on the mesh %s, which is no part of that of its list, %s, with the same dims: "
            "dt_mesh_stage() makes one",
            spec->name, text[0], text[1]);
}

static dt_status init_layer(dt_layers *list, dt_layer *layer, const dt_layer_spec *spec)
{
    DT_TRY(dti_spec_check(spec));
    DT_TRY(check_mesh(list, spec));
    DT_TRY(check_known(list, spec));
    DT_CHECK(dt_layers_find(list, spec->name) == NULL, DT_ERR_ARG, "two layers are named %s",
             spec->name);
    DT_TRY(tie(list, spec, &layer->tied_to));
    DT_TRY(dti_strdup(spec->name, &layer->name));
    list->n++; /* released with the list from here on */
    layer->list = list;
    layer->mesh = dt_mesh_retain(spec->mesh != NULL ? spec->mesh : list->mesh);
    layer->spec = *spec;
    layer->spec.name = layer->name;
    layer->spec.style = layer->spec.tied_to = NULL;
    layer->spec.mesh = NULL;
    if (spec->with != NULL) DT_TRY(dti_strdup(spec->with, &layer->with));
    layer->spec.with = layer->with;
    read_kind(layer);
    layer->first_state = list->n_states;
    list->n_states += layer->n_states;
    for (int s = 0; s < DTI_N_STYLE_SLOTS; s++) layer->rule[s] = -1;
    *index_place(list, layer->name) = list->n;
    return DT_OK;
}

/* The dim of that name, without the "?" that allows it to be missing. A missing one is a slip
 * otherwise, unless there is nothing to lay out anyway. */
static dt_status find_dim(dt_mesh *mesh, const char *text, char dim[DT_DIM_NAME_BYTES], int *slot)
{
    const size_t n = strlen(text);
    const bool may_miss = n > 0 && text[n - 1] == '?';
    char dims[DT_MAX_DIMS * (DT_DIM_NAME_BYTES + 1)] = "";
    dti_writer w = { dims, sizeof dims, 0 };

    DT_CHECK(n - may_miss < DT_DIM_NAME_BYTES, DT_ERR_ARG, "no mesh dim has a name of %zu bytes",
             n);
    memcpy(dim, text, n - may_miss);
    dim[n - may_miss] = '\0';
    *slot = dt_mesh_find_dim(mesh, dim);
    if (*slot >= 0) return DT_OK;
    *slot = DTI_NO_DIM;
    for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
        dti_put(&w, "%s%s", d > 0 ? "," : "", dt_mesh_dim_name(mesh, d));
    DT_CHECK(
        may_miss || dt_mesh_n_ranks(mesh) == 1, DT_ERR_ARG,
        "the mesh has no dim \"%s\", which the styles of these layers speak of; it has \"%s\". "
        "Name one of them, add \"%s=1\", or say \"%s?\" if every rank is to hold and compute all",
        dim, dims, dim, dim);
    return DT_OK;
}

dt_status dt_layers_create(dt_mesh *mesh, const char *dim, const dt_layer_spec *specs, int n_specs,
                           const dt_plan *plan, dt_layers **out)
{
    dt_status st = DT_OK;
    dt_layers *list = NULL;
    dti_rule_list rules = { 0 };
    char name[DT_DIM_NAME_BYTES];
    int slot;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && dim != NULL, DT_ERR_ARG, "mesh or dim is NULL");
    DT_CHECK(n_specs >= 0 && (specs != NULL || n_specs == 0), DT_ERR_ARG, "%d layers", n_specs);
    DT_TRY(find_dim(mesh, dim, name, &slot));
    DT_TRY(dti_new(sizeof *list, &list));
    list->mesh = dt_mesh_retain(mesh);
    list->dtype = DT_N_DTYPES;
    list->slot = slot;
    dti_runtime_count(dt_mesh_runtime(mesh), &sets_of_layers, 1);
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n_specs, sizeof(dt_layer), (void **)&list->layers));
    DT_TRY_TO(fail, st, make_index(list, n_specs));
    DT_TRY_TO(fail, st, make_room(list));
    DT_TRY_TO(fail, st, dti_rules_of(mesh, name, plan, &rules));
    list->manual = rules.manual != NULL;
    DT_TRY_TO(fail, st, dti_styles_of(dt_mesh_runtime(mesh), plan, &list->styles));
    for (int i = 0; i < n_specs; i++)
        DT_TRY_TO(fail, st, init_layer(list, &list->layers[i], &specs[i]));
    DT_TRY_TO(fail, st, dti_layers_choose(list, specs, &rules));
    DT_TRY_TO(fail, st, dti_layers_lay_out(list, &rules));
    DT_TRY_TO(fail, st, dti_gathers_of_layers(list));
    DT_TRY_TO(fail, st, dti_rules_check(&rules, list));
    dti_rule_list_free(&rules);
    *out = list;
    return DT_OK;

fail:
    dti_rule_list_free(&rules);
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
        dt_mesh_release(&list->layers[i].mesh);
        dti_free(list->layers[i].name);
        dti_free(list->layers[i].with);
    }
    for (size_t i = 0; i < list->n_remarks; i++) dti_free(list->remarks[i]);
    dti_free((void *)list->remarks);
    dti_gathers_release(&list->gathers);
    dti_expert_counts_free(&list->counts);
    dti_facts_free(&list->facts);
    dti_free(list->index);
    dti_styles_free(list->styles);
    for (int i = 0; i < 2; i++) dti_free(list->offsets[i]);
    dti_free(list->layers);
    dti_runtime_count(dt_mesh_runtime(list->mesh), &sets_of_layers, -1);
    dt_mesh_release(&list->mesh);
    dti_free(list);
}

dti_facts *dti_layers_facts(dt_layers *list)
{
    return &list->facts;
}

const char *dt_layers_remark(const dt_layers *list, int i)
{
    return list != NULL && i >= 0 && (size_t)i < list->n_remarks ? list->remarks[i] : NULL;
}

dt_mesh *dt_layers_mesh(const dt_layers *list)
{
    return list != NULL ? list->mesh : NULL;
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
