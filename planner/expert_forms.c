/* SPDX-License-Identifier: Apache-2.0
 *
 * The two forms of a mixture whose experts lie whole on ranks: all sum terms of all tokens, or
 * tokens go to the ranks of their experts and come back. */
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "base/writer.h"
#include "planner/search.h"

/* --- what a way has --------------------------------------------------------------------------- */

uint32_t dti_expert_dims(const dti_task *t, const dt_way *w)
{
    if (t->n_experts == 0 || t->has_plan) return 0;
    if (w->ep > 1) return DTI_OVER_EP;
    return w->tp > 1 && w->sequence_parallel && t->rules[DTI_CUT_SENT].n > 0 ? DTI_OVER_TP : 0;
}

bool dti_way_can_send(const dti_task *t, const dt_way *w)
{
    return dti_expert_dims(t, w) != 0;
}

void dti_count_experts(const dti_task *t, const dt_way *w, uint32_t dims, const dt_comm_counter *c,
                       int64_t most, double seconds, dt_way_cost *out)
{
    out->more_bytes += most - c->bytes;
    if (dims != dti_expert_dims(t, w)) return;
    out->experts[0].bytes += c->bytes;
    out->experts[0].most_bytes += most;
    out->experts[0].seconds += seconds;
}

/* --- the other form --------------------------------------------------------------------------- */

/* All but the form. */
static bool is_same(const dt_way *a, const dt_way *b)
{
    return a->pp == b->pp && a->dp == b->dp && dti_way_ep(a) == dti_way_ep(b) && a->tp == b->tp &&
           a->zero == b->zero && a->sequence_parallel == b->sequence_parallel &&
           a->offload == b->offload && a->recompute == b->recompute && a->schedule == b->schedule &&
           a->stages_per_rank == b->stages_per_rank && a->microbatches == b->microbatches &&
           a->ends == b->ends && a->tiles == b->tiles && a->chunk == b->chunk &&
           a->stages == b->stages;
}

dt_status dti_find_other_form(dt_search *s)
{
    const dt_way *first = &s->verdicts[0].way;
    dt_verdict v = { .way = *first };
    dt_status st;

    s->other_form = (dt_verdict){ .counted = false };
    v.way.dispatch = !first->dispatch;
    if (!dti_way_can_send(&s->task, first)) return DT_OK;
    for (size_t i = 0; i < s->n; i++)
        if (s->verdicts[i].counted && s->verdicts[i].way.dispatch == v.way.dispatch &&
            is_same(&s->verdicts[i].way, first)) {
            s->other_form = s->verdicts[i];
            return DT_OK;
        }
    if (s->task.o.goal == DT_PLAN_STEP && dti_rule_breaks(&s->task, DTI_REST, &v)) return DT_OK;
    st = dti_way_count(&s->task, &v.way, &v.cost);
    if (st == DT_ERR_MEMORY) return st;
    if (st != DT_OK) return DT_OK; /* it cannot be run */
    v.counted = true;
    if (dti_verdict_fits(&s->task, &v)) v.kind = DT_VERDICT_SLOWER;
    s->other_form = v;
    return DT_OK;
}

const dt_verdict *dt_search_other_form(const dt_search *s)
{
    return s != NULL && s->other_form.counted ? &s->other_form : NULL;
}

/* --- in print --------------------------------------------------------------------------------- */

static const char *const passes[][2] = { { "step", NULL }, { "prompt", "token" } };

/* As plans spell it; over tp, a part of each expert is what the built-in plan has. */
static const char *style_of(const dti_task *t, const dt_way *w)
{
    return w->dispatch                            ? "ep_dispatch_experts"
           : dti_expert_dims(t, w) == DTI_OVER_EP ? "moe_tp_experts"
                                                  : "moe_reduce_scatter";
}

static void put_form(dti_writer *w, const dti_task *t, const dt_verdict *v, bool is_first)
{
    const bool step = t->o.goal == DT_PLAN_STEP;
    char bytes[2][DTI_NUMBER_BYTES];

    for (int k = 0; k < (step ? 1 : 2); k++) {
        const dt_experts_cost *c = &v->cost.experts[k];
        dti_put(w, "    %-19s  %-6s  %10s", k == 0 ? style_of(t, &v->way) : "", passes[!step][k],
                dti_bytes_text(c->bytes, bytes[0]));
        if (c->most_bytes > c->bytes)
            dti_put(w, " on the average, %s at most", dti_bytes_text(c->most_bytes, bytes[1]));
        dti_put(w, ", %.4g s\n", c->seconds);
    }
    if (!is_first)
        dti_put(w, "    %-19s  in all %.4g s%s\n", "", v->cost.seconds,
                v->kind == DT_VERDICT_MEMORY ? ", and there is no room for it" : "");
}

static void put_form_json(dti_writer *w, const dti_task *t, const dt_verdict *v)
{
    const bool step = t->o.goal == DT_PLAN_STEP;
    char number[DTI_NUMBER_BYTES];

    dti_put(w, "\n  { \"style\": \"%s\", \"seconds\": %s", style_of(t, &v->way),
            dti_number_text(v->cost.seconds, number));
    for (int k = 0; k < (step ? 1 : 2); k++) {
        const dt_experts_cost *c = &v->cost.experts[k];
        dti_put(w, ",\n    \"%s\": { \"bytes\": %lld, \"most_bytes\": %lld, \"seconds\": %s }",
                passes[!step][k], (long long)c->bytes, (long long)c->most_bytes,
                dti_number_text(c->seconds, number));
    }
    dti_put(w, " }");
}

void dti_put_forms(dti_writer *w, const dt_search *s, bool json)
{
    const dt_verdict *first = &s->verdicts[0], *other = dt_search_other_form(s);
    const char *dim;

    if (s->n_ranked == 0 || other == NULL) {
        if (json) dti_put(w, ",\n\"experts\": null");
        return;
    }
    dim = dti_expert_dims(&s->task, &first->way) == DTI_OVER_EP ? "ep" : "tp";
    if (json) {
        dti_put(w, ",\n\"experts\": { \"dim\": \"%s\", \"forms\": [", dim);
        put_form_json(w, &s->task, first);
        dti_put(w, ",");
        put_form_json(w, &s->task, other);
        dti_put(w, " ] }");
        return;
    }
    dti_put(w, "  received over %s, this form of experts first and then the other:\n", dim);
    put_form(w, &s->task, first, true);
    put_form(w, &s->task, other, false);
}
