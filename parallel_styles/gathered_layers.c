/* SPDX-License-Identifier: Apache-2.0
 *
 * Fully sharded layers: parameters are stored cut over a mesh dim on which the computation has them
 * whole, and gathered for the moment of their use (dtensor/gather.h). */
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/away.h"
#include "dtensor/gather.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/layers_internal.h"

enum { AHEAD = 1 };

/* Values are numbered by layer and parameter. */
static const dt_layer *layer_of(const void *list, int i)
{
    return &((const dt_layers *)list)->layers[i / DT_LAYER_MAX_PARAMS];
}

static bool value(const void *list, int i, dt_tensor **x, const dt_layout **whole)
{
    const dt_layer *layer = layer_of(list, i);
    const int param = i % DT_LAYER_MAX_PARAMS;

    *x = dt_layer_param(layer, param);
    *whole = layer->whole[param];
    return *x != NULL && dt_mesh_is_member(layer->mesh) && *whole != NULL &&
           (*whole != layer->layout[param] || dti_tensor_is_away(*x));
}

/* -1: of a weight that is taken in tiles. */
static int unit(const void *list, int i)
{
    const dt_layer *layer = layer_of(list, i);
    const bool tiled = layer->tiles[0] > 1 || layer->tiles[1] > 1;

    return tiled && i % DT_LAYER_MAX_PARAMS == DT_PARAM_WEIGHT ? -1 : layer->unit;
}

static const char *name(const void *list, int i)
{
    return layer_of(list, i)->name;
}

/* "model.layers.12." of "model.layers.12.mlp.up_proj": layers of one block are used together. 0:
 * the name has no number, and the layer is a unit of its own. */
static size_t block_of(const char *name)
{
    for (const char *at = name; *at != '\0';) {
        const size_t n = strcspn(at, ".");
        if (n > 0 && strspn(at, "0123456789") == n && at[n] == '.')
            return (size_t)(at - name) + n + 1;
        at += n + (at[n] == '.');
    }
    return 0;
}

dt_status dti_gathers_of_layers(dt_layers *list)
{
    dti_gathers_of of = { list->n * DT_LAYER_MAX_PARAMS, AHEAD, value, unit, name, list };
    bool any = list->away != NULL;

    if (list->gathers != NULL) return DT_OK;
    for (int i = 0; i < list->n; i++) {
        dt_layer *layer = &list->layers[i], *before = i > 0 ? layer - 1 : NULL;
        const size_t n = block_of(layer->name);
        const bool same = before != NULL && n > 0 && n == block_of(before->name) &&
                          memcmp(layer->name, before->name, n) == 0;
        layer->unit = before == NULL ? 0 : before->unit + !same;
        for (int p = 0; p < layer->n_params; p++)
            any = any || (layer->whole[p] != NULL && layer->whole[p] != layer->layout[p]);
    }
    if (any) DT_TRY(dti_gathers_create(&of, &list->gathers));
    return DT_OK;
}

dt_tensor *dti_gather_param(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim,
                            int param, dt_tensor *w)
{
    const dt_layout *whole;

    (void)style;
    if (w != dt_layer_param(layer, param)) return dt_move_dim(t, w, dim, DT_REPLICATE);
    if (!value(layer->list, dti_layer_value(layer, param), &w, &whole)) return w;
    return dti_gather(t, layer->list->gathers,
                      dti_layer_value(layer, param)); /* over all dims of such styles */
}

static bool is_stored(const dt_layer *layer)
{
    bool stored = false;

    for (int m = 0; m < dt_mesh_n_dims(layer->mesh); m++)
        stored = stored || (layer->style[m] != NULL && layer->style[m]->cut == DT_CUT_COPIES);
    return stored;
}

dti_memory *dti_layer_memory(const dt_layer *layer)
{
    return is_stored(layer) ? layer->list->away : NULL;
}

dt_status dt_layers_offload(dt_layers *list, const char *where)
{
    bool any = false;
    dti_device *d;

    DT_CHECK(list != NULL && where != NULL, DT_ERR_ARG, "layers or where is NULL");
    DT_CHECK(where[0] != '\0', DT_ERR_ARG, "offload is an empty text: it is \"host\", or a folder");
    for (int i = 0; i < list->n; i++) any = any || is_stored(&list->layers[i]);
    DT_CHECK(any, DT_ERR_ARG,
             "offload to %s: no layer has the style \"fully_shard\", which fetches parameters for "
             "the moment of their use",
             where);
    DT_TRY(dti_device_of(dt_mesh_runtime(list->mesh), &d));
    if (!dt_mesh_is_member(list->mesh)) return DT_OK;
    DT_TRY(dti_runtime_alone(d->rt, dti_away_open(d, where, &list->away)));
    DT_TRY(dti_gathers_of_layers(list));
    return DT_OK;
}

bool dti_style_stores(const char *style)
{
    const size_t n = style != NULL ? strcspn(style, "(") : 0;

    for (int i = 0; i < dti_n_builtin_styles; i++) {
        const dt_style *s = &dti_builtin_styles[i];
        if (strlen(s->name) == n && strncmp(s->name, style, n) == 0) return s->cut == DT_CUT_COPIES;
    }
    return false;
}

bool dti_layers_gather(const dt_layers *list)
{
    return list->gathers != NULL;
}

void dti_layers_set_ahead(dt_layers *list, int units)
{
    dti_gathers_set_ahead(list->gathers, units);
}
