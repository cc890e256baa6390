/* SPDX-License-Identifier: Apache-2.0
 *
 * A cast during a move. Casting an element commutes with moving it, so it stands where the fewer
 * bytes travel; it does not commute with rounding sums, so reductions run in the wider dtype. */
#include <string.h>

#include "base/error.h"
#include "dtensor/move_cache.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

dt_status dti_tensor_cast(dt_tensor *x, dt_dtype dtype, dt_tensor **out)
{
    const dti_dtype_attr attr = { dtype };
    dt_kargs args = { .in = &x->local, .attr = &attr, .n_in = 1, .n_out = 1 };
    dt_tensor *y;
    dt_status st = DT_OK;

    *out = NULL;
    DT_TRY(dti_tensor_create(x->mesh, x->layout, dtype, x->shape, &y));
    args.out = &y->local;
    if (!x->device->dry && dt_mesh_is_member(x->mesh))
        st = x->device->ops->run(x->device, &dti_op_cast, &args);
    if (st != DT_OK) {
        dt_tensor_release(&y);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = y;
    return DT_OK;
}

/* Terms that stay terms: rounded one by one they are no longer terms of the rounded value. */
static dt_status check_terms(const dt_tensor *x, const dt_layout *want, dt_dtype dtype)
{
    char text[DTI_PLACEMENT_BYTES];

    if (dt_dtype_size(dtype) > dt_dtype_size(x->local.dtype)) return DT_OK;
    for (int m = 0; m < want->n_dims; m++) {
        const dt_placement *p = &want->place[m];
        if ((want->partial_dims >> m & 1u) == 0 || p->reduce == DT_MAX || p->reduce == DT_MIN)
            continue;
        DT_FAIL(DT_ERR_LAYOUT,
                "the terms of %s on mesh dim \"%s\" would each be rounded from %s to %s; reduce "
                "them first",
                dti_placement_words(p, text), dt_mesh_dim_name(x->mesh, m),
                dt_dtype_name(x->local.dtype), dt_dtype_name(dtype));
    }
    return DT_OK;
}

/* The way of a move that casts: x becomes `during`, goes to layout `between`, becomes the wanted
 * dtype, goes on. Plans are set if memory is bounded. */
typedef struct way {
    dt_dtype during, after;
    const dt_layout *between, *want;
    bool reduces;
    dti_move before_cast, after_cast;
} way;

static bool is_half(dt_dtype t)
{
    return t == DT_BF16 || t == DT_F16;
}

/* A move between the casts, beside x unless it is x that moves; `bound` 0: in any memory. */
static dt_status plan_part(const dt_tensor *x, const dt_layout *from, const dt_layout *to,
                           dt_dtype dtype, int64_t bound, dti_move *out)
{
    const bool is_x = from == x->layout && dtype == x->local.dtype;
    dti_cost_model model = { .shape = x->shape,
                             .element_bytes = dt_dtype_size(dtype),
                             .memory_bytes = bound,
                             .held = is_x ? NULL : x->layout,
                             .held_bytes = dt_dtype_size(x->local.dtype) };
    bool any;

    memcpy(model.link, dti_mesh_costs_of(x->mesh)->link, sizeof model.link);
    DT_TRY(dti_plan(from, to, &model, out, &any));
    return DT_OK;
}

/* The plan of x's move without a cast and without a bound, from the cache or in `room`. */
static dt_status plan_freely(const dt_tensor *x, const dt_layout *want, dti_move *room,
                             const dti_move **out)
{
    *out = room;
    if (dti_mesh_costs_of(x->mesh)->memory_bytes > 0)
        DT_TRY(plan_part(x, x->layout, want, x->local.dtype, 0, room));
    else
        DT_TRY(dti_move_cache_plan(x, want, out));
    return DT_OK;
}

/* Where fewer bytes travel, but terms are reduced in the wider dtype; those of one half float that
 * become another in f32, which is what back ends add them in, so that the sum is rounded once. */
static dt_status choose_way(const dt_tensor *x, const dt_layout *want, dt_dtype dtype, way *w)
{
    const bool widens = dt_dtype_size(dtype) > dt_dtype_size(x->local.dtype);
    const dti_move *plan = NULL;
    bool rounds = false;

    *w = (way){ .during = x->local.dtype, .after = dtype, .between = x->layout, .want = want };
    if (dt_mesh_is_member(x->mesh)) DT_TRY(plan_freely(x, want, &w->before_cast, &plan));
    for (int i = 0; plan != NULL && i < plan->n_steps; i++) {
        const dti_move_step *s = &plan->step[i];
        if (s->kind != DTI_MOVE_REDUCE_SCATTER && s->kind != DTI_MOVE_ALL_REDUCE) continue;
        w->reduces = true;
        rounds = s->reduce != DT_MIN && s->reduce != DT_MAX;
        w->between = s->to; /* the last one; what follows moves in the narrow dtype */
    }
    if (widens) w->between = want;
    if (widens && w->reduces) w->during = dtype;
    if (rounds && is_half(w->during) && is_half(dtype)) w->during = DT_F32;
    return DT_OK;
}

/* --- within a bound on memory ----------------------------------------------------------------- */

static size_t held_by(const dt_layout *l, const int *coord, const int64_t *shape, dt_dtype dtype)
{
    return (size_t)dti_piece_count(l, coord, shape) * dt_dtype_size(dtype);
}

/* While x, which the caller keeps, has become `from` and that becomes `to`: on any rank. */
static dt_status check_cast(const dt_tensor *x, const dt_layout *at, dt_dtype from, dt_dtype to)
{
    const int64_t bound = dti_mesh_costs_of(x->mesh)->memory_bytes;
    const bool is_x = at == x->layout && from == x->local.dtype;

    for (int p = 0; p < dt_mesh_n_ranks(x->mesh); p++) {
        const int rank = dt_mesh_rank_at(x->mesh, p);
        int coord[DT_MAX_DIMS];
        (void)dt_mesh_find_rank(x->mesh, rank, coord);
        const int64_t held = (int64_t)(held_by(x->layout, coord, x->shape, x->local.dtype) +
                                       (is_x ? 0 : held_by(at, coord, x->shape, from)) +
                                       held_by(at, coord, x->shape, to));
        DT_CHECK(held <= bound, DT_ERR_LAYOUT,
                 "a move with a cast to %s takes %lld bytes on rank %d, but moves may take %lld "
                 "(dt_mesh_set_move_memory)",
                 dt_dtype_name(to), (long long)held, rank, (long long)bound);
    }
    return DT_OK;
}

static dt_status plan_way(const dt_tensor *x, way *w)
{
    const int64_t bound = dti_mesh_costs_of(x->mesh)->memory_bytes;

    if (w->during != x->local.dtype) DT_TRY(check_cast(x, x->layout, x->local.dtype, w->during));
    DT_TRY(plan_part(x, x->layout, w->between, w->during, bound, &w->before_cast));
    if (w->after != w->during) DT_TRY(check_cast(x, w->between, w->during, w->after));
    DT_TRY(plan_part(x, w->between, w->want, w->after, bound, &w->after_cast));
    return DT_OK;
}

/* A way whose every part stays within the bound: if not where the fewest bytes travel, the cast
 * stands at the end, or at the beginning if nothing is reduced. */
static dt_status bound_way(const dt_tensor *x, way *w)
{
    const dt_layout *places[] = { w->between, w->want, x->layout };
    const int n = w->reduces ? 2 : 3;
    dt_error before = *dt_last_error();
    dt_status st = DT_ERR_LAYOUT;

    for (int i = 0; i < n && st == DT_ERR_LAYOUT; i++) {
        w->between = places[i];
        st = plan_way(x, w);
    }
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    dti_error_restore(&before);
    return DT_OK;
}

/* --- going it --------------------------------------------------------------------------------- */

/* *now in another place or dtype: gives a new reference for the one it takes. */
static dt_status go(dt_tensor **now, const dt_layout *to, const dti_move *plan,
                    dt_comm_counter *counters)
{
    dt_tensor *next = NULL;
    dt_status st;

    if (plan != NULL)
        st = dti_run_move(*now, plan, counters, &next);
    else
        st = dti_redistribute(*now, to, counters, &next);
    dt_tensor_release(now);
    *now = next;
    return st;
}

static dt_status cast(dt_tensor **now, dt_dtype dtype)
{
    dt_tensor *next;
    dt_status st;

    if ((*now)->local.dtype == dtype) return DT_OK;
    st = dti_tensor_cast(*now, dtype, &next);
    dt_tensor_release(now);
    *now = next;
    return st;
}

static dt_status go_way(dt_tensor *x, const way *w, bool planned, dt_comm_counter *counters,
                        dt_tensor **y)
{
    dt_tensor *now = dt_tensor_retain(x);
    dt_status st = DT_OK;

    DT_TRY_TO(fail, st, cast(&now, w->during));
    DT_TRY_TO(fail, st, go(&now, w->between, planned ? &w->before_cast : NULL, counters));
    DT_TRY_TO(fail, st, cast(&now, w->after));
    DT_TRY_TO(fail, st, go(&now, w->want, planned ? &w->after_cast : NULL, counters));
    *y = now;
    return DT_OK;

fail:
    dt_tensor_release(&now);
    return st;
}

dt_status dti_move_cast(dt_tensor *x, const dt_placement *place, dt_dtype dtype,
                        dt_comm_counter *counters, dt_tensor **y)
{
    const dt_layout *want;
    bool bounded;
    way w;

    *y = NULL;
    DT_CHECK(dt_dtype_size(dtype) > 0, DT_ERR_ARG, "%d is no dtype", (int)dtype);
    DT_TRY(dti_tensor_layout(x, place, &want));
    if (dtype == x->local.dtype) {
        DT_TRY(dti_redistribute(x, want, counters, y));
        return DT_OK;
    }
    DT_CHECK(dt_dtype_is_float(dtype) && dt_dtype_is_float(x->local.dtype), DT_ERR_UNSUPPORTED,
             "a cast from %s to %s: both must be floats", dt_dtype_name(x->local.dtype),
             dt_dtype_name(dtype));
    DT_TRY(check_terms(x, want, dtype));
    DT_TRY(dti_layout_check_shape(want, x->shape));
    bounded = dti_mesh_costs_of(x->mesh)->memory_bytes > 0 && dt_mesh_is_member(x->mesh);
    DT_TRY(choose_way(x, want, dtype, &w));
    if (bounded) DT_TRY(bound_way(x, &w));
    DT_TRY(go_way(x, &w, bounded, counters, y));
    return DT_OK;
}

dt_status dt_redistribute_cast(dt_tensor *x, const dt_placement *want, dt_dtype dtype,
                               dt_tensor **y)
{
    DT_CHECK(y != NULL, DT_ERR_ARG, "y is NULL");
    *y = NULL;
    DT_CHECK(x != NULL && want != NULL, DT_ERR_ARG, "x or want is NULL");
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), dti_move_cast(x, want, dtype, NULL, y)));
    return DT_OK;
}
