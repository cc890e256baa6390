/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/move_cache.h"

#include <string.h>

#include "base/memory.h"
#include "mesh/runtime.h"

/* Direct mapped: two moves that fall on one entry take turns, which costs a plan each time. */
enum { ENTRIES = 256 };

typedef struct entry {
    const dt_layout *from;
    const dt_layout *to;
    bool any_shape;
    size_t element_bytes;
    uint64_t costs; /* id of the mesh's */
    int64_t shape[DT_MAX_AXES];
    dti_move *plan;
} entry;

typedef struct dti_move_cache {
    entry entries[ENTRIES];
    void *room;
    size_t room_bytes;
} dti_move_cache;

static dt_status open_cache(dti_device *device)
{
    if (device->moves == NULL) DT_TRY(dti_new(sizeof *device->moves, &device->moves));
    return DT_OK;
}

dt_status dti_move_room(dti_device *device, size_t bytes, void **out)
{
    DT_TRY(open_cache(device));
    DT_TRY(dti_grow(&device->moves->room, &device->moves->room_bytes, bytes, 1));
    *out = device->moves->room;
    return DT_OK;
}

static bool fits(const entry *e, const dt_tensor *x, const dt_layout *to, uint64_t costs)
{
    if (e->from != x->layout || e->to != to || e->costs != costs) return false;
    if (e->any_shape) return true;
    return e->element_bytes == dt_dtype_size(x->local.dtype) &&
           memcmp(e->shape, x->shape, (size_t)x->n_axes * sizeof *x->shape) == 0;
}

static dt_status make(entry *e, const dt_tensor *x, const dt_layout *to)
{
    const dti_mesh_costs *costs = dti_mesh_costs_of(x->mesh);
    dti_cost_model model = { .shape = x->shape,
                             .element_bytes = dt_dtype_size(x->local.dtype),
                             .memory_bytes = costs->memory_bytes };

    e->from = NULL; /* nothing is cached if this fails */
    if (e->plan == NULL) DT_TRY(dti_new(sizeof *e->plan, &e->plan));
    memcpy(model.link, costs->link, sizeof model.link);
    DT_TRY(dti_plan(x->layout, to, &model, e->plan, &e->any_shape));
    e->element_bytes = model.element_bytes;
    memcpy(e->shape, x->shape, sizeof e->shape);
    e->costs = costs->id;
    e->to = to;
    e->from = x->layout;
    return DT_OK;
}

dt_status dti_move_cache_plan(const dt_tensor *x, const dt_layout *to, const dti_move **out)
{
    const size_t i = (size_t)((x->layout->hash * 31 + to->hash) % ENTRIES);
    entry *e;

    DT_TRY(open_cache(x->device));
    e = &x->device->moves->entries[i];
    if (!fits(e, x, to, dti_mesh_costs_of(x->mesh)->id)) DT_TRY(make(e, x, to));
    *out = e->plan;
    return DT_OK;
}

void dti_move_cache_free(dti_device *device)
{
    if (device->moves == NULL) return;
    for (int i = 0; i < ENTRIES; i++) dti_free(device->moves->entries[i].plan);
    dti_free(device->moves->room);
    dti_free(device->moves);
    device->moves = NULL;
}
