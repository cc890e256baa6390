/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches that grow with what is read: of a conversation nobody knows the length, and the model's
 * whole context may be more than there is memory. Each time they are full they get twice the room,
 * so all copies together are as much as the last one. */
#include "base/numbers.h"
#include "dtensor/create.h"
#include "models/run/state.h"
#include "models/run/step.h"

void dt_state_grow_from(dt_state *s, int64_t first)
{
    if (s == NULL || s->length > 0) return;
    s->room = dti_max(1, dti_min(first, s->capacity));
    for (int64_t i = 0; i < s->model->info.n_layers; i++) s->kv[i].capacity = s->room;
}

static dt_status copy_rows(const dt_state *s, const dt_tensor *from, dt_tensor *to)
{
    const dt_local *local = dt_tensor_local(from);
    const int64_t size = (int64_t)dt_dtype_size(local->dtype);
    const int64_t token = local->shape[2] * local->shape[3] * size, first = local->offset[0];

    DT_CHECK(local->shape[1] == dt_tensor_extent(from, 1), DT_ERR_UNSUPPORTED,
             "a plan that cuts the tokens of KV caches: they cannot grow beyond %lld tokens",
             (long long)local->shape[1]);
    for (int64_t b = 0; b < local->shape[0] && token > 0; b++)
        DT_TRY(dti_tensor_copy_bytes(to, b * dt_tensor_extent(to, 1) * token, from,
                                     b * local->shape[1] * token,
                                     dt_state_length_of(s, first + b) * token));
    return DT_OK;
}

static dt_status grow_cache(const dt_state *s, int64_t room, dt_tensor **cache)
{
    dt_status st = DT_OK;
    dt_tensor *wide;

    if (*cache == NULL || dt_tensor_extent(*cache, 1) == room) return DT_OK;
    DT_TRY(dti_tensor_create_exact(
        dt_tensor_mesh(*cache), dt_tensor_layout(*cache), dt_tensor_dtype(*cache),
        (const int64_t[]){ dt_tensor_extent(*cache, 0), room, dt_tensor_extent(*cache, 2),
                           dt_tensor_extent(*cache, 3) },
        &wide));
    dti_tensor_set_kind(wide, DTI_KIND_CACHES);
    st = copy_rows(s, *cache, wide);
    dt_tensor_release(st == DT_OK ? cache : &wide);
    if (st == DT_OK) *cache = wide;
    return st;
}

dt_status dti_state_make_room(dt_state *s, int64_t n_tokens)
{
    const int64_t need = dti_min(s->length + n_tokens, s->capacity);
    const int64_t room = dti_min(dti_max(2 * s->room, need), s->capacity);

    if (need <= s->room) return DT_OK;
    dti_step_forget(s);
    for (int64_t i = 0; i < s->model->info.n_layers; i++) {
        DT_TRY(grow_cache(s, room, &s->kv[i].k));
        DT_TRY(grow_cache(s, room, &s->kv[i].v));
        s->kv[i].capacity = room;
    }
    s->room = room;
    return DT_OK;
}
