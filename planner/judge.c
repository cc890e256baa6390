/* SPDX-License-Identifier: Apache-2.0
 *
 * One way beside those that a search has ranked. */
#include <stdio.h>

#include "base/text.h"
#include "planner/search.h"

dt_status dti_way_settle(const dti_task *t, dt_way *w)
{
    const int64_t ranks = dti_machine_ranks(&t->machine), ep = dti_way_ep(w);

    DT_CHECK(ep == 1 || !t->has_plan, DT_ERR_ARG,
             "ep=%d: there is a plan of styles, which says where experts lie", w->ep);
    DT_CHECK(
        !w->dispatch || dti_way_can_send(t, w), DT_ERR_ARG,
        "dispatch: tokens are sent to experts that lie whole on ranks, by ep above 1, or of a "
        "mixture without shared experts by sequence-parallel; a plan of styles says it itself");
    if (t->o.goal != DT_PLAN_STEP) {
        DT_CHECK(w->pp >= 1 && w->dp >= 1 && w->tp >= 1 && dti_way_ranks(w, ranks) <= ranks &&
                     w->zero == 0 && !w->offload && !w->sequence_parallel &&
                     w->recompute == DT_RECOMPUTED_NOTHING && w->schedule == NULL && !w->ends &&
                     w->tiles <= 1 && w->chunk == 0 && w->stages == NULL,
                 DT_ERR_ARG,
                 "pp=%d,dp=%d,tp=%d: the machine has %lld devices, and generation has a mesh alone",
                 w->pp, w->dp, w->tp, (long long)ranks);
        w->stages_per_rank = 1;
        w->microbatches = dti_serve_groups(t, w);
        return DT_OK;
    }
    DT_CHECK(w->pp >= 1 && w->dp >= 1 && w->tp >= 1 && dti_way_ranks(w, ranks) == ranks, DT_ERR_ARG,
             "pp=%d,dp=%d%s,tp=%d: the machine has %lld devices", w->pp, w->dp,
             ep > 1 ? " and ep" : "", w->tp, (long long)ranks);
    DT_CHECK(w->chunk >= 0 &&
                 (w->tiles <= 1 || w->tiles == dti_tiles[0] || w->tiles == dti_tiles[1]),
             DT_ERR_ARG,
             "chunk %lld, tiles %d: chunks have no less than 0 tokens, there are %d and %d tiles",
             (long long)w->chunk, w->tiles, dti_tiles[0], dti_tiles[1]);
    DT_CHECK((w->tiles <= 1 && !w->ends) || !t->has_plan, DT_ERR_ARG,
             "tiles and sharded ends are plans of styles, and there is one already");
    DT_CHECK(w->stages == NULL || w->pp > 1, DT_ERR_ARG, "stages %s: pp=1 has none", w->stages);
    DT_CHECK(w->zero >= 0 && w->zero <= 3 && (unsigned)w->recompute <= DT_RECOMPUTED_BLOCKS,
             DT_ERR_ARG, "ZeRO %d, recompute %d: there are stages 0 to 3 and modes 0 to 2", w->zero,
             (int)w->recompute);
    DT_CHECK((w->pp > 1) == (w->schedule != NULL), DT_ERR_ARG, "pp=%d %s a schedule", w->pp,
             w->pp > 1 ? "needs" : "has no use for");
    if (w->stages_per_rank == 0) w->stages_per_rank = 1;
    if (w->microbatches == 0) w->microbatches = t->o.batch / w->dp;
    DT_CHECK(w->stages_per_rank >= 1 && w->microbatches >= 0, DT_ERR_ARG,
             "%d stages a rank, %lld microbatches: must be 1 or more", w->stages_per_rank,
             (long long)w->microbatches);
    return DT_OK;
}

static bool breaks_a_rule(const dti_task *t, dt_verdict *v)
{
    const int64_t all = v->way.microbatches * v->way.dp;

    const int last = t->o.goal == DT_PLAN_STEP ? DTI_REST : DTI_PP;

    for (int level = DTI_TP; level <= last; level++)
        if (dti_rule_breaks(t, (dti_level)level, v)) return true;
    if (t->o.goal != DT_PLAN_STEP) return false;
    if (all > 0 && t->o.batch % all == 0) return false;
    v->kind = DT_VERDICT_RULE;
    v->rule = "K5";
    v->number = (double)t->o.batch;
    v->limit = (double)all;
    (void)snprintf(v->reason, sizeof v->reason,
                   "a batch of %.0f cannot be divided among %lld microbatches on dp %d", v->number,
                   (long long)v->way.microbatches, v->way.dp);
    return true;
}

/* Beside the first that is ranked. */
static void compare(const dt_search *s, dt_verdict *v)
{
    const dt_way_cost *mine = &v->cost, *best;
    int64_t place = 0;

    while (place < s->n_ranked && s->verdicts[place].cost.seconds < mine->seconds) place++;
    v->number = mine->seconds;
    v->limit = s->n_ranked > 0 ? s->verdicts[0].cost.seconds : mine->seconds;
    v->kind = place < s->n_ranked || s->n_ranked == 0 ? DT_VERDICT_RANKED : DT_VERDICT_SLOWER;
    if (place == 0) {
        (void)snprintf(v->reason, sizeof v->reason, "takes %.4g s; none is faster", v->number);
        return;
    }
    best = &s->verdicts[0].cost;
    (void)snprintf(
        v->reason, sizeof v->reason,
        "takes %.4g s, %s %lld faster: the first %.4g s, with %+.3g s computing, %+.3g s "
        "communication that shows, %+.3g s bubble",
        v->number, place == s->n_ranked ? "all of the" : "with", (long long)place, v->limit,
        best->compute - mine->compute, best->exposed - mine->exposed, best->bubble - mine->bubble);
}

static dt_status judge(dt_search *s, dt_verdict *v)
{
    dt_status st;

    if (breaks_a_rule(&s->task, v)) return DT_OK;
    st = dti_way_count(&s->task, &v->way, &v->cost);
    if (st == DT_ERR_MEMORY) return st;
    if (st != DT_OK) {
        v->kind = DT_VERDICT_REFUSED;
        (void)dti_printable(dt_last_error()->message, v->reason, sizeof v->reason);
        return DT_OK;
    }
    v->counted = true;
    if (dti_verdict_fits(&s->task, v)) compare(s, v);
    return DT_OK;
}

dt_status dt_search_judge(dt_search *s, const dt_way *way, dt_verdict *out)
{
    dt_verdict v = { .kind = DT_VERDICT_RANKED };

    DT_CHECK(s != NULL && way != NULL && out != NULL, DT_ERR_ARG, "search, way or out is NULL");
    *out = v;
    v.way = *way;
    DT_TRY(dti_way_settle(&s->task, &v.way));
    DT_TRY(judge(s, &v));
    s->judged = *out = v;
    return DT_OK;
}
