/* SPDX-License-Identifier: Apache-2.0
 *
 * "ep_dispatch_experts": tokens that a mesh dim has cut go to the ranks of their experts and come
 * back, so nobody gathers what few ranks read. Tokens that all ranks have need not go anywhere, and
 * come back that way where it is fewer bytes than a sum of all. Values leave as they came. */
#include <string.h>

#include "base/numbers.h"
#include "dtensor/dispatch.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/layers_internal.h"

static dt_placement place_of(const dt_tensor *x, int dim)
{
    return dt_layout_placement(dt_tensor_layout(x), dim);
}

static dt_tensor *whole(dt_tape *t, int dim, dt_tensor *x)
{
    return dt_move_dim(t, x, dim, DT_REPLICATE);
}

void dti_dispatch_input(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                        dt_tensor **x)
{
    const dt_placement now = place_of(*x, dim);
    dti_routed *routed = layer->routed;

    (void)style, (void)n;
    if (routed == NULL) { /* it frames no experts */
        *x = whole(t, dim, *x);
        return;
    }
    routed->axis[dim] = -1;
    if (dt_mesh_dim_size(dt_tensor_mesh(*x), dim) == 1) return;
    routed->ids = whole(t, dim, routed->ids);
    routed->weights = whole(t, dim, routed->weights);
    if (now.kind == DT_PLACE_SHARD && now.axis < dt_tensor_n_axes(*x) - 1)
        routed->axis[dim] = now.axis;
    if (dt_tape_status(t) != DT_OK) return;
    *x = routed->axis[dim] >= 0 && dti_dispatch_cuts(routed->experts, dim)
             ? dt_dispatch(t, *x, routed->ids, routed->experts, dim)
             : whole(t, dim, *x);
}

/* Terms that all are to have: each rank sums some tokens, and all gather what they have made of
 * them, in the dtype that sums are rounded to. */
static dt_tensor *sum_of_all(dt_tape *t, const dt_layer *layer, int dim, dt_tensor *y)
{
    const dti_routed *routed = layer->routed;
    const int axis = dti_dispatch_axis(y);
    const int64_t k = dt_tensor_extent(routed->ids, dt_tensor_n_axes(routed->ids) - 1);
    const dt_dtype dtype = layer->list->dtype != DT_N_DTYPES ? layer->list->dtype : DT_F32;

    if (axis < 0 || !dti_dispatch_cuts(routed->experts, dim) ||
        !dti_dispatch_pays(y, k, routed->experts, dim, axis, dtype))
        return whole(t, dim, y);
    y = dt_combine(t, y, routed->ids, routed->experts, dim, axis);
    if (dt_tape_status(t) != DT_OK) return NULL;
    return whole(t, dim, dti_layer_round(t, layer, y));
}

void dti_dispatch_output(const dt_style *style, dt_tape *t, const dt_layer *layer, int dim, int n,
                         dt_tensor **y)
{
    const dti_routed *routed = layer->routed;
    const bool terms = place_of(*y, dim).kind == DT_PLACE_PARTIAL;

    (void)style, (void)n;
    if (dt_mesh_dim_size(dt_tensor_mesh(*y), dim) == 1) return;
    if (routed == NULL || routed->axis[dim] < 0)
        *y = terms && routed != NULL ? sum_of_all(t, layer, dim, *y) : whole(t, dim, *y);
    else if (terms && dti_dispatch_cuts(routed->experts, dim))
        *y = dt_combine(t, *y, routed->ids, routed->experts, dim, routed->axis[dim]);
    else
        *y = dt_move_dim(t, *y, dim, DT_SHARD(routed->axis[dim]));
}

/* --- which points do, or could ---------------------------------------------------------------- */

static const char SENDS[] = "ep_dispatch_experts", SUMS[] = "moe_tp_experts";

static bool is(const dt_style *style, const char *name)
{
    return style != NULL && strcmp(style->name, name) == 0;
}

/* Dims on which a layer of experts is cut into whole ones. */
static uint32_t cut_by(const dt_layer *experts)
{
    const dt_layout *layout = NULL;
    uint32_t dims = 0;

    for (int p = 0; p < experts->n_params && layout == NULL; p++)
        layout = experts->whole[p] != NULL ? experts->whole[p] : experts->layout[p];
    for (int m = 0; layout != NULL && m < dt_mesh_n_dims(experts->mesh); m++)
        if (dt_mesh_dim_size(experts->mesh, m) > 1 && dti_dispatch_cuts_layout(layout, m))
            dims |= 1u << m;
    return dims;
}

int dti_points_of_experts(dt_layers *layers, dt_layer **points, uint32_t *dims, bool *sends)
{
    int n = 0;

    *sends = false;
    for (int i = 0; i < layers->n; i++) {
        const dt_layer *layer = &layers->layers[i];
        dt_layer *point;
        uint32_t found = 0;
        if (!dti_kind_is(layer->spec.kind, "experts")) continue;
        point = (dt_layer *)(uintptr_t)dti_point_around(layer);
        if (point == layer || (n > 0 && points[n - 1] == point)) continue;
        for (int m = 0; m < DT_MAX_DIMS; m++)
            if (is(point->style[m], SENDS) || is(point->style[m], SUMS)) found |= 1u << m;
        found &= cut_by(layer);
        if (found == 0) continue;
        for (int m = 0; m < DT_MAX_DIMS; m++)
            *sends = *sends || (dti_has(found, m) && is(point->style[m], SENDS));
        dims[n] = found;
        points[n++] = point;
    }
    return n;
}

dt_status dti_point_send(dt_layer *point, uint32_t dims)
{
    const dt_style *sends;

    DT_TRY(dti_style_find(point->list, SENDS, NULL, &sends));
    for (int m = 0; m < DT_MAX_DIMS; m++)
        if (dti_has(dims, m)) point->style[m] = point->step[m] = sends;
    point->list->changes++; /* recorded passes would not send */
    return DT_OK;
}
