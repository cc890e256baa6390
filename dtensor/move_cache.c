/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/move_cache.h"

#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "mesh/runtime.h"

/* Each move has a few places, of which the one filled first is given up. Plans for one shape alone
 * have theirs by layouts and shape, so that parameters of one layout and many shapes all have a
 * place. */
enum { SETS = 128, WAYS = 4 };

typedef struct entry {
    const dt_layout *from;
    const dt_layout *to;
    bool any_shape;
    size_t element_bytes;
    uint64_t costs; /* id of the mesh's */
    int64_t shape[DT_MAX_AXES];
    dti_move *plan;
} entry;

typedef struct set {
    entry way[WAYS];
    unsigned next; /* to be given up */
} set;

typedef struct dti_move_cache {
    set sets[SETS];
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

static uint64_t hash_of(const dt_tensor *x, const dt_layout *to)
{
    return x->layout->hash * 31 + to->hash;
}

static uint64_t shape_hash(const dt_tensor *x, const dt_layout *to)
{
    const uint64_t h = dti_hash_word(hash_of(x, to), dt_dtype_size(x->local.dtype));

    return dti_hash_bytes(h, x->shape, (size_t)x->n_axes * sizeof *x->shape);
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

static const dti_move *look_up(const set *in, const dt_tensor *x, const dt_layout *to,
                               uint64_t costs)
{
    for (int i = 0; i < WAYS; i++)
        if (fits(&in->way[i], x, to, costs)) return in->way[i].plan;
    return NULL;
}

dt_status dti_move_cache_plan(const dt_tensor *x, const dt_layout *to, const dti_move **out)
{
    const uint64_t costs = dti_mesh_costs_of(x->mesh)->id;
    set *any, *one;
    entry *made, given_up;

    DT_TRY(open_cache(x->device));
    any = &x->device->moves->sets[hash_of(x, to) % SETS];
    *out = look_up(any, x, to, costs);
    if (*out != NULL) return DT_OK;
    one = &x->device->moves->sets[shape_hash(x, to) % SETS];
    *out = look_up(one, x, to, costs);
    if (*out != NULL) return DT_OK;
    made = &one->way[one->next % WAYS];
    DT_TRY(make(made, x, to));
    *out = made->plan;
    if (!made->any_shape) {
        one->next++;
        return DT_OK;
    }
    given_up = any->way[any->next % WAYS];
    any->way[any->next++ % WAYS] = *made;
    *made = given_up;
    return DT_OK;
}

void dti_move_cache_free(dti_device *device)
{
    if (device->moves == NULL) return;
    for (int i = 0; i < SETS * WAYS; i++)
        dti_free(device->moves->sets[i / WAYS].way[i % WAYS].plan);
    dti_free(device->moves->room);
    dti_free(device->moves);
    device->moves = NULL;
}
