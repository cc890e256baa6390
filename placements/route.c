/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as users ask for them: steps with one rank's bytes, and as text. */
#include <math.h>
#include <stdio.h>

#include "placements/plan.h"

_Static_assert((int)DT_MAX_ROUTE_STEPS == (int)DTI_MOVE_MAX_STEPS, "a route holds any plan");

static dt_status check(const dt_move_query *q, const int *coord)
{
    DT_CHECK(q != NULL && coord != NULL, DT_ERR_ARG, "query or coord is NULL");
    DT_CHECK(q->from != NULL && q->to != NULL, DT_ERR_ARG, "query->from or query->to is NULL");
    DT_CHECK(dt_dtype_size(q->dtype) > 0, DT_ERR_ARG, "%d is no dtype", (int)q->dtype);
    DT_CHECK(q->memory_bytes >= 0, DT_ERR_ARG, "a bound of %lld bytes", (long long)q->memory_bytes);
    DT_CHECK(q->from->n_axes == 0 || q->shape != NULL, DT_ERR_ARG, "query->shape is NULL");
    for (int a = 0; a < q->from->n_axes; a++)
        DT_CHECK(q->shape[a] >= 0, DT_ERR_SHAPE, "axis %d has extent %lld", a,
                 (long long)q->shape[a]);
    for (int m = 0; m < q->from->n_dims; m++)
        DT_CHECK(coord[m] >= 0 && coord[m] < q->from->dim_size[m], DT_ERR_ARG,
                 "coordinate %d is outside mesh dim %d of %d ranks", coord[m], m,
                 q->from->dim_size[m]);
    for (int m = 0; m < q->from->n_dims && q->links != NULL; m++)
        DT_CHECK(isfinite(q->links[m].latency_ns) && q->links[m].latency_ns >= 0 &&
                     isfinite(q->links[m].bytes_per_ns) && q->links[m].bytes_per_ns > 0,
                 DT_ERR_ARG, "the link of mesh dim %d has %g ns latency and %g bytes per ns", m,
                 q->links[m].latency_ns, q->links[m].bytes_per_ns);
    return DT_OK;
}

static dt_status plan_query(const dt_move_query *q, dti_cost_model *model, dti_move *plan)
{
    bool any;

    *model = (dti_cost_model){ .shape = q->shape,
                               .element_bytes = dt_dtype_size(q->dtype),
                               .memory_bytes = q->memory_bytes };
    for (int m = 0; m < q->from->n_dims; m++)
        model->link[m] = q->links != NULL
                             ? q->links[m]
                             : (dt_link){ DT_DEFAULT_LATENCY_NS, DT_DEFAULT_BYTES_PER_NS };
    DT_TRY(dti_move_check(q->from, q->to));
    DT_TRY(dti_layout_check_shape(q->from, q->shape));
    DT_TRY(dti_layout_check_shape(q->to, q->shape));
    DT_TRY(dti_plan(q->from, q->to, model, plan, &any));
    return DT_OK;
}

dt_status dt_redistribute_plan(const dt_move_query *query, const int *coord, dt_route *route)
{
    dti_cost_model model;
    dti_probes probes;
    dti_move plan;

    DT_CHECK(route != NULL, DT_ERR_ARG, "route is NULL");
    route->n_steps = 0;
    DT_TRY(check(query, coord));
    DT_TRY(plan_query(query, &model, &plan));
    dti_probes_of(query->from, &probes);
    for (int i = 0; i < plan.n_steps; i++) {
        const dti_move_step *s = &plan.step[i];
        const int64_t own = dti_piece_count(query->from, coord, query->shape);
        route->step[i] = (dt_route_step){
            .name = dti_move_name(s),
            .dims = s->dims,
            .from = s->from,
            .to = s->to,
            .sent_bytes = dti_move_bytes_sent(s, query->shape, model.element_bytes, coord),
            .received_bytes = dti_move_bytes(s, query->shape, model.element_bytes, coord),
            .peak_bytes = own * (int64_t)model.element_bytes +
                          dti_step_memory(s, query->shape, model.element_bytes, coord, i == 0),
            .ns = dti_step_ns(&model, s, &probes),
        };
    }
    route->n_steps = plan.n_steps;
    return DT_OK;
}

/* --- text ------------------------------------------------------------------------------------- */

/* Appends at *used like snprintf: what does not fit is counted only. */
#define PUT(...)                                                     \
    used += snprintf((size_t)used < text_bytes ? text + used : NULL, \
                     (size_t)used < text_bytes ? text_bytes - (size_t)used : 0, __VA_ARGS__)

static void dims_text(uint32_t dims, char *text, size_t text_bytes)
{
    int used = 0;

    if (dims == 0) PUT("here");
    for (int m = 0; m < DT_MAX_DIMS; m++)
        if (dims >> m & 1u)
            PUT("%s%d",
                used > 0                         ? ","
                : m < 31 && dims >> (m + 1) != 0 ? "over mesh dims "
                                                 : "over mesh dim ",
                m);
}

static int route_text(const dt_route *route, const dt_layout *from, char *text, size_t text_bytes)
{
    char layout[512], dims[64];
    int used = 0;

    if (text_bytes > 0) text[0] = '\0';
    (void)dt_layout_print(from, layout, sizeof layout);
    PUT("%s", layout);
    for (int i = 0; i < route->n_steps; i++) {
        const uint32_t over = route->step[i].dims;
        (void)dt_layout_print(route->step[i].to, layout, sizeof layout);
        PUT("%s%s", (over & (over - 1)) != 0 ? "-->" : "->", layout);
    }
    PUT("\n");
    for (int i = 0; i < route->n_steps; i++) {
        const dt_route_step *s = &route->step[i];
        dims_text(s->dims, dims, sizeof dims);
        PUT("  %-14s %-18s sent %lld B, received %lld B, peak %lld B, %.1f us\n", s->name, dims,
            (long long)s->sent_bytes, (long long)s->received_bytes, (long long)s->peak_bytes,
            s->ns * 1e-3);
    }
    return used;
}
#undef PUT

dt_status dt_redistribute_plan_print(const dt_move_query *query, const int *coord, char *text,
                                     size_t text_bytes, int *length)
{
    dt_route route;

    DT_CHECK(text != NULL || text_bytes == 0, DT_ERR_ARG, "text is NULL");
    DT_TRY(dt_redistribute_plan(query, coord, &route));
    const int n = route_text(&route, query->from, text, text_bytes);
    if (length != NULL) *length = n;
    return DT_OK;
}
