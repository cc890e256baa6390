/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as users ask for them: steps with one rank's bytes, and as text. */
#include <math.h>

#include "base/memory.h"
#include "base/options.h"
#include "placements/plan.h"

_Static_assert((int)DT_MAX_ROUTE_STEPS == (int)DTI_MOVE_MAX_STEPS, "a route holds any plan");

static dt_status check(const dt_move_query *q, const int *coord)
{
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

/* Steps send and hold up to a few times the tensor; eight times has to fit a number. */
static dt_status check_bytes(const dt_move_query *q)
{
    int64_t bytes = 8 * (int64_t)dt_dtype_size(q->dtype);

    for (int a = 0; a < q->from->n_axes; a++)
        if (q->shape[a] == 0) return DT_OK;
    for (int a = 0; a < q->from->n_axes; a++)
        DT_CHECK(dti_mul_i64(bytes, q->shape[a], &bytes), DT_ERR_SHAPE,
                 "the tensor has 2^60 bytes or more at axis %d of %lld rows: what a plan sends and "
                 "holds is counted in 63 bits",
                 a, (long long)q->shape[a]);
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

/* The steps of what is asked, with the bytes of the rank at `coord`. */
static dt_status make_route(const dt_move_query *asked, const int *coord, dti_move *plan,
                            dt_route *route)
{
    dt_move_query query = { .size = sizeof query };
    dti_cost_model model;
    dti_probes probes;

    route->n_steps = 0;
    DT_CHECK(asked != NULL && coord != NULL, DT_ERR_ARG, "query or coord is NULL");
    DT_TRY(dti_options_read("dt_move_query", "set it to sizeof(dt_move_query)", asked, &query,
                            sizeof query));
    DT_TRY(check(&query, coord));
    DT_TRY(check_bytes(&query));
    DT_TRY(plan_query(&query, &model, plan));
    dti_probes_of(query.from, &probes);
    for (int i = 0; i < plan->n_steps; i++) {
        const dti_move_step *s = &plan->step[i];
        const int64_t piece = dti_piece_count(query.from, coord, query.shape);
        route->step[i] = (dt_route_step){
            .name = dti_move_name(s),
            .dims = s->dims,
            .from = s->from,
            .to = s->to,
            .sent_bytes = dti_move_bytes_sent(s, query.shape, model.element_bytes, coord),
            .received_bytes = dti_move_bytes(s, query.shape, model.element_bytes, coord),
            .peak_bytes = piece * (int64_t)model.element_bytes +
                          dti_step_memory(s, query.shape, model.element_bytes, coord, i == 0),
            .ns = dti_step_ns(&model, s, &probes),
        };
    }
    route->n_steps = plan->n_steps;
    return DT_OK;
}

dt_status dt_redistribute_plan(const dt_move_query *query, const int *coord, dt_route *route)
{
    dti_move plan;

    DT_CHECK(route != NULL, DT_ERR_ARG, "route is NULL");
    DT_TRY(make_route(query, coord, &plan, route));
    return DT_OK;
}

/* --- text ------------------------------------------------------------------------------------- */

static void put_dims(dti_writer *w, uint32_t dims)
{
    int n = 0;

    for (int m = 0; m < DT_MAX_DIMS; m++) n += dti_has(dims, m);
    dti_put(w, n == 0 ? "here" : n == 1 ? "over mesh dim " : "over mesh dims ");
    for (int m = 0; m < DT_MAX_DIMS; m++)
        if (dti_has(dims, m)) dti_put(w, --n > 0 ? "%d," : "%d", m);
}

static void put_step(dti_writer *w, const dt_route_step *s)
{
    char text[64];
    dti_writer dims = { text, sizeof text, 0 };

    put_dims(&dims, s->dims);
    dti_put(w, "  %-14s %-18s sent %lld B, received %lld B, peak %lld B, %.1f us\n", s->name, text,
            (long long)s->sent_bytes, (long long)s->received_bytes, (long long)s->peak_bytes,
            s->ns * 1e-3);
}

dt_status dt_redistribute_plan_print(const dt_move_query *query, const int *coord, char *text,
                                     size_t text_bytes, int *length)
{
    dti_writer w = { text, text_bytes, 0 };
    dt_route route;
    dti_move plan;

    DT_CHECK(text != NULL || text_bytes == 0, DT_ERR_ARG, "text is NULL");
    DT_TRY(make_route(query, coord, &plan, &route));
    if (plan.n_steps == 0)
        dti_put_layout(&w, query->from);
    else
        dti_put_move(&w, &plan);
    dti_put(&w, "\n");
    for (int i = 0; i < route.n_steps; i++) put_step(&w, &route.step[i]);
    if (length != NULL) *length = dti_written(&w);
    return DT_OK;
}
