/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/move_cache.h"

#include "base/memory.h"
#include "dtensor/device/device.h"

/* Direct mapped: two moves that fall on one entry take turns, which costs a plan each time. */
enum { ENTRIES = 256 };

typedef struct dti_move_cache {
    struct {
        const dt_layout *from;
        const dt_layout *to;
        dti_move *plan;
    } entry[ENTRIES];
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

dt_status dti_move_cache_plan(dti_device *device, const dt_layout *from, const dt_layout *to,
                              const dti_move **out)
{
    const size_t i = (size_t)((from->hash * 31 + to->hash) % ENTRIES);
    dti_layouts *table;

    DT_TRY(open_cache(device));
    if (device->moves->entry[i].from != from || device->moves->entry[i].to != to) {
        device->moves->entry[i].from = NULL;
        if (device->moves->entry[i].plan == NULL)
            DT_TRY(dti_new(sizeof(dti_move), &device->moves->entry[i].plan));
        DT_TRY(dti_layouts_of(device->rt, &table));
        DT_TRY(dti_move_plan(table, from, to, device->moves->entry[i].plan));
        device->moves->entry[i].from = from;
        device->moves->entry[i].to = to;
    }
    *out = device->moves->entry[i].plan;
    return DT_OK;
}

void dti_move_cache_free(dti_device *device)
{
    for (int i = 0; device->moves != NULL && i < ENTRIES; i++)
        dti_free(device->moves->entry[i].plan);
    if (device->moves != NULL) dti_free(device->moves->room);
    dti_free(device->moves);
    device->moves = NULL;
}
