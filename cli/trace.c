/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- numbers -------------------------------------------------------------------------------- */

static void widen(dt_dtype dtype, const void *from, int64_t n, float *to)
{
    const uint16_t *half = from;

    if (dtype == DT_F32) memcpy(to, from, (size_t)n * sizeof *to);
    for (int64_t i = 0; i < n && dtype == DT_BF16; i++) to[i] = dt_bf16_to_f32(half[i]);
    for (int64_t i = 0; i < n && dtype == DT_F16; i++) to[i] = dt_f16_to_f32(half[i]);
    for (int64_t i = 0; i < n && dtype == DT_F64; i++) to[i] = (float)((const double *)from)[i];
}

/* The tensor in f32; `data` is freed with dti_free(). */
static dt_status take(const char *name, dt_tensor *x, cli_trace_value *out)
{
    const dt_local *local = dt_tensor_local(x);
    const size_t size = dt_dtype_size(local->dtype);
    dt_status st = DT_OK;
    void *bytes = NULL;

    *out = (cli_trace_value){ .n_axes = local->n_axes, .n = 1 };
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    for (int a = 0; a < local->n_axes; a++) {
        out->shape[a] = local->shape[a];
        out->n *= local->shape[a];
    }
    DT_TRY(dti_alloc_array((size_t)out->n, size, &bytes));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)out->n, sizeof(float), (void **)&out->data));
    DT_TRY_TO(done, st, dt_tensor_read(x, bytes, (size_t)out->n * size));
    widen(local->dtype, bytes, out->n, out->data);
    for (int64_t i = 0; i < out->n; i++)
        if (isfinite(out->data[i]) && fabs((double)out->data[i]) > out->largest)
            out->largest = fabs((double)out->data[i]);
done:
    dti_free(bytes);
    return st;
}

/* Two numbers are as far apart as their difference, in units of the tensor's largest one. */
static double distance(float was, float is, double largest)
{
    const double d = fabs((double)was - (double)is);

    if (was == is || (isnan(was) && isnan(is))) return 0;
    return largest > 0 && isfinite(d) ? d / largest : (double)INFINITY;
}

/* --- positions ------------------------------------------------------------------------------ */

/* Numbers from one position to the next in a tensor [batch, tokens, ...], [tokens, ...] or
 * [batch, heads, tokens, ...]; 0: it has no such axis. */
static int64_t step_of(const cli_trace_value *v, int64_t n_tokens)
{
    static const int order[] = { 1, 0, 2 };
    int64_t step = 1;

    for (size_t k = 0; k < DT_COUNT(order); k++) {
        if (order[k] >= v->n_axes || v->shape[order[k]] != n_tokens) continue;
        for (int a = order[k] + 1; a < v->n_axes; a++) step *= v->shape[a];
        return step;
    }
    return 0;
}

static cli_trace_place place_at(const cli_trace_value *was, const cli_trace_value *is, int64_t i,
                                int64_t step, int64_t n_tokens)
{
    const int64_t row = step > 0 ? i / step : 0;

    return (cli_trace_place){
        .name = was->name,
        .position = step > 0 ? row % n_tokens : -1,
        .element = step > 0 ? row / n_tokens * step + i % step : i,
        .was = was->data[i],
        .is = is->data[i],
        .relative = distance(was->data[i], is->data[i], was->largest),
    };
}

/* The farthest number of a tensor, and of the first position that is too far the farthest. */
static void look(const cli_trace_value *was, const cli_trace_value *is, int64_t n_tokens,
                 cli_trace_result *r)
{
    const int64_t step = step_of(was, n_tokens);
    const bool known = r->first.name != NULL;

    for (int64_t i = 0; i < was->n; i++) {
        if (!isfinite(was->data[i]) && !isfinite(is->data[i]) && r->n_not_finite++ == 0)
            r->not_finite = was->name;
    }
    for (int64_t i = 0; i < was->n; i++) {
        const double d = distance(was->data[i], is->data[i], was->largest);
        cli_trace_place here;
        bool first;
        if (d <= r->worst.relative && (known || d <= r->tolerance)) continue;
        here = place_at(was, is, i, step, n_tokens);
        first = r->first.name == NULL || here.position < r->first.position ||
                (here.position == r->first.position && d > r->first.relative);
        if (!known && d > r->tolerance && first) r->first = here;
        if (d > r->worst.relative) r->worst = here;
    }
}

/* --- the trace ------------------------------------------------------------------------------ */

dt_status cli_trace_keep(cli_trace *trace, const char *name, dt_tensor *x)
{
    DT_TRY(dti_grow((void **)&trace->list, &trace->capacity, trace->n + 1, sizeof *trace->list));
    DT_TRY(take(name, x, &trace->list[trace->n]));
    trace->n++;
    return DT_OK;
}

dt_status cli_trace_compare(const cli_trace *trace, const char *name, dt_tensor *x,
                            cli_trace_result *r)
{
    cli_trace_value is;
    size_t k;

    for (k = r->next; k < trace->n; k++)
        if (strcmp(trace->list[k].name, name) == 0 &&
            trace->list[k].n_axes == dt_tensor_n_axes(x) &&
            memcmp(trace->list[k].shape, dt_tensor_local(x)->shape,
                   (size_t)trace->list[k].n_axes * sizeof(int64_t)) == 0)
            break;
    if (k == trace->n) return DT_OK;
    r->next = k + 1;
    r->n_compared++;
    DT_TRY(take(name, x, &is));
    look(&trace->list[k], &is, trace->n_tokens, r);
    dti_free(is.data);
    return DT_OK;
}

void cli_trace_free(cli_trace *trace)
{
    for (size_t i = 0; i < trace->n; i++) dti_free(trace->list[i].data);
    dti_free(trace->list);
    *trace = (cli_trace){ 0 };
}
