/* SPDX-License-Identifier: Apache-2.0
 *
 * From layers that lie otherwise: the same values under another plan, or on another mesh. */
#include <dtensor/factories.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/create.h"
#include "dtensor/leaves.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"
#include "weights/read_layers.h"

/* Values of its own, where the layer's are to lie: what lies alike is not moved, and would be
 * shared. */
static dt_status own_values(const dt_layer *layer, dt_tensor *x, dt_tensor **y)
{
    int64_t shape[DT_MAX_AXES];
    dt_tensor *copy = NULL;
    dt_status st;

    if (*y != x && dti_layer_memory(layer) == NULL) return DT_OK;
    for (int a = 0; a < dt_tensor_n_axes(x); a++) shape[a] = dt_tensor_extent(x, a);
    DT_TRY(dti_tensor_create_in(dti_layer_memory(layer), dt_tensor_mesh(*y), dt_tensor_layout(*y),
                                dt_tensor_dtype(x), shape, &copy));
    st = dti_move_into(NULL, *y, copy);
    if (st == DT_OK) st = dti_away_leave(copy, true);
    if (st != DT_OK) {
        dt_tensor_release(&copy);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    dt_tensor_release(y);
    *y = copy;
    return DT_OK;
}

static dt_status copy_param(dt_layers *layers, dt_layer *layer, int param, const dt_layer *from)
{
    const dt_param_info info = dt_layer_param_info(layer, param);
    const dt_layout *layout = dt_layer_param_layout(layer, param);
    dt_placement want[DT_MAX_DIMS];
    dt_tensor *x, *y = NULL;
    dt_status st;
    int p = 0;

    while (p < dt_layer_n_params(from) && strcmp(dt_layer_param_info(from, p).name, info.name) != 0)
        p++;
    x = dt_layer_param(from, p); /* NULL out of range */
    DT_CHECK(x != NULL, DT_ERR_ARG, "%s.%s has no value to copy", info.layer, info.name);
    DT_CHECK(dt_tensor_n_axes(x) == info.n_axes, DT_ERR_SHAPE,
             "%s.%s has %d axes here and %d there", info.layer, info.name, info.n_axes,
             dt_tensor_n_axes(x));
    for (int a = 0; a < info.n_axes; a++)
        DT_CHECK(dt_tensor_extent(x, a) == info.axis[a].extent, DT_ERR_SHAPE,
                 "%s.%s: axis %d has %lld rows here and %lld there", info.layer, info.name, a,
                 (long long)info.axis[a].extent, (long long)dt_tensor_extent(x, a));
    for (int m = 0; m < dt_layout_n_dims(layout); m++) want[m] = dt_layout_placement(layout, m);
    if (dt_mesh_equal(dt_tensor_mesh(x), dt_layer_mesh(layer)))
        DT_TRY(dt_redistribute(x, want, &y));
    else
        DT_TRY(dt_copy_to(x, dt_layer_mesh(layer), want, &y));
    st = dti_runtime_alone(dt_mesh_runtime(dt_layers_mesh(layers)), own_values(layer, x, &y));
    if (st == DT_OK) {
        dti_tensor_set_kind(y, DTI_KIND_WEIGHTS);
        st = dt_layer_set_param(layer, param, y);
    }
    dt_tensor_release(&y);
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_layers_copy(dt_layers *layers, const dt_layers *from)
{
    DT_CHECK(layers != NULL && from != NULL, DT_ERR_ARG, "layers or from is NULL");
    if (layers == from) return DT_OK;
    for (int i = 0; i < dt_layers_count(layers); i++) {
        dt_layer *layer = dt_layers_at(layers, i);
        const dt_layer *other = dt_layers_find((dt_layers *)(uintptr_t)from, dt_layer_name(layer));
        DT_CHECK(other != NULL || dt_layer_n_params(layer) == 0, DT_ERR_ARG,
                 "there is no layer %s to copy from", dt_layer_name(layer));
        dti_layer_clear(layer); /* it may get another dtype */
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_holds_param(layer, p)) DT_TRY(copy_param(layers, layer, p, other));
    }
    return DT_OK;
}
