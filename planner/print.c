/* SPDX-License-Identifier: Apache-2.0
 *
 * A search as text and as JSON. */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "base/writer.h"
#include "planner/search.h"

enum { SHOWN = 24 };

#define SENT ", tokens sent to experts"

static const char *const recomputed[] = { "none", "selective", "full" };
static const char *const ends[] = { "null", "\"counted\"", "\"seconds\"" };
static const char *const kinds[] = { "ranked", "rule", "memory", "slower", "refused" };

/* "pp=2,dp=2,tp=2 zero 1, tokens cut, recompute full, 1f1b, 8 microbatches of 1" */
void dti_put_way(dti_writer *w, const dti_task *t, const dt_way *way)
{
    char mesh[DTI_MESH_BYTES];

    if (way->pp == 0) {
        if (way->ep > 1) dti_put(w, "ep=%d,", way->ep);
        dti_put(w, "tp=%d", way->tp);
        return;
    }
    dti_put(w, "%s", dti_way_mesh(way, mesh));
    if (t->o.goal != DT_PLAN_STEP) {
        if (way->dispatch) dti_put(w, SENT);
        if (way->microbatches > 1) dti_put(w, ", %lld groups", (long long)way->microbatches);
        return;
    }
    if (way->zero > 0) dti_put(w, " zero %d", way->zero);
    if (way->microbatches == 0) return;
    dti_put(w, "%s%s%s", way->ends ? ", ends sharded" : "",
            way->offload ? ", state with the host" : "",
            way->sequence_parallel ? ", tokens cut" : "");
    if (way->dispatch) dti_put(w, SENT);
    if (way->tiles > 1) dti_put(w, ", %d tiles", way->tiles);
    if (way->chunk > 0) dti_put(w, ", chunks of %lld", (long long)way->chunk);
    if (way->recompute != DT_RECOMPUTED_NOTHING)
        dti_put(w, ", recompute %s", recomputed[way->recompute]);
    if (way->schedule != NULL) dti_put(w, ", %s", way->schedule);
    if (way->stages_per_rank > 1) dti_put(w, " of %d stages a rank", way->stages_per_rank);
    if (way->stages != NULL) dti_put(w, ", stages %s", way->stages);
    dti_put(w, ", %lld x %lld sequences", (long long)way->microbatches,
            (long long)dti_way_rows(t, way));
}

/* What tokens that go to their experts make of exact bytes. */
static void put_more(dti_writer *w, const dt_way_cost *c)
{
    char bytes[DTI_NUMBER_BYTES];

    if (c->more_bytes > 0)
        dti_put(w, "         on the average of tokens that choose experts alike; at most %s more\n",
                dti_bytes_text(c->more_bytes, bytes));
}

/* Of generation. */
static void put_tokens(dti_writer *w, const dti_task *t, const dt_way_cost *c)
{
    char bytes[6][DTI_NUMBER_BYTES];

    dti_put(
        w, "  exact: a rank holds %s (weights %s, keys and values %s, temporaries %s), receives %s",
        dti_bytes_text(c->peak_bytes, bytes[0]), dti_bytes_text(c->weight_bytes, bytes[1]),
        dti_bytes_text(c->cache_bytes, bytes[2]), dti_bytes_text(c->activation_bytes, bytes[3]),
        dti_bytes_text(c->inside_bytes, bytes[4]));
    dti_put(w, " a token within its node and %s from others\n",
            dti_bytes_text(c->between_bytes, bytes[5]));
    put_more(w, c);
    dti_put(w,
            "  predicted: %.4g s for prompts, %.4g s for a token of each: %.4g tokens/s, %.4g of "
            "prompts\n",
            c->prompt, c->token, (double)t->o.batch / c->token,
            (double)t->o.batch * (double)t->o.sequence / c->prompt);
}

static void put_cost(dti_writer *w, const dti_task *t, const dt_way_cost *c)
{
    char bytes[6][DTI_NUMBER_BYTES];

    if (t->o.goal != DT_PLAN_STEP) {
        put_tokens(w, t, c);
        return;
    }

    dti_put(w,
            "  exact: a rank holds %s at most (weights %s, gradients %s, state %s, kept of a pass "
            "%s), computes %.4g TFLOP,\n         receives %s",
            dti_bytes_text(c->peak_bytes, bytes[0]), dti_bytes_text(c->weight_bytes, bytes[1]),
            dti_bytes_text(c->gradient_bytes, bytes[2]), dti_bytes_text(c->state_bytes, bytes[3]),
            dti_bytes_text(c->kept_bytes, bytes[4]), c->flops * 1e-12,
            dti_bytes_text(c->inside_bytes, bytes[5]));
    dti_put(w, " within its node and %s from others\n", dti_bytes_text(c->between_bytes, bytes[0]));
    put_more(w, c);
    dti_put(w,
            "  predicted: %.4g s a step: %.4g computing, %.4g communication that shows (%.4g "
            "hidden), %.4g bubble\n",
            c->seconds, c->compute, c->exposed, c->hidden, c->bubble);
    if (c->measured > 0)
        dti_put(w, "  measured: %.4g s a step, here; predicted is %.3g %% of it\n", c->measured,
                100 * c->seconds / c->measured);
}

static void put_figures(dti_writer *w, const dt_machine *m)
{
    dti_put(w, "machine %s: %d node%s of %d device%s\n", m->name, m->nodes,
            m->nodes == 1 ? "" : "s", m->devices_per_node, m->devices_per_node == 1 ? "" : "s");
    if (m->cores > 0)
        dti_put(w, "  %d cores of a node, ranks of %d thread%s\n", m->cores, m->threads,
                m->threads == 1 ? "" : "s");
    if (m->n_rates + m->n_links > 0)
        dti_put(w, "  measured on %s, %s, dtensor %s: %d calls of kernels, %d of collectives\n",
                m->processor, m->date, m->version, m->n_rates, m->n_links);
    for (int i = 0; i < DT_N_FIGURES; i++)
        if (m->figure[i].value > 0)
            dti_put(w, "  %-18s %10.4g  %s\n", dt_figure_name((dt_figure_kind)i),
                    m->figure[i].value, m->figure[i].source);
}

/* How many are rejected for a reason of each kind, and the first of them. */
static void put_rejected(dti_writer *w, const dt_search *s)
{
    static const char *const heads[] = { "", "by rule", "by memory", "by time", "not possible" };
    int64_t n[DT_COUNT(heads)] = { 0 };

    for (size_t i = (size_t)s->n_ranked; i < s->n; i++) n[s->verdicts[i].kind]++;
    for (int k = DT_VERDICT_RULE; k <= (int)DT_VERDICT_REFUSED; k++) {
        int shown = 0;
        if (n[k] == 0) continue;
        dti_put(w, "rejected %s: %lld\n", heads[k], (long long)n[k]);
        for (size_t i = (size_t)s->n_ranked; i < s->n && shown < SHOWN; i++) {
            const dt_verdict *v = &s->verdicts[i];
            if ((int)v->kind != k) continue;
            dti_put(w, "  ");
            dti_put_way(w, &s->task, &v->way);
            dti_put(w, ": %s%s%s\n", v->rule != NULL ? v->rule : "", v->rule != NULL ? ", " : "",
                    v->reason);
            shown++;
        }
        if (n[k] > shown) dti_put(w, "  and %lld more\n", (long long)(n[k] - shown));
    }
}

/* Of the first way. */
static void put_groups(dti_writer *w, const dt_search *s)
{
    const dt_operator_group *g;

    dti_put(w, "  cut by FlexFlow's dimensions:\n    %-22s sample operator attribute parameter\n",
            "");
    for (int i = 0; (g = dt_search_group(s, i)) != NULL; i++)
        dti_put(w, "    %-22s %6d %8d %9d %9d\n", g->name, g->sample, g->operators, g->attribute,
                g->parameter);
}

static void put_judged(dti_writer *w, const dt_search *s)
{
    const dt_verdict *v = &s->judged;

    dti_put(w, "asked: ");
    dti_put_way(w, &s->task, &v->way);
    dti_put(w, "\n");
    if (v->counted && v->kind != DT_VERDICT_MEMORY) put_cost(w, &s->task, &v->cost);
    dti_put(w, "  %s%s%s: %s\n", kinds[v->kind], v->rule != NULL ? " " : "",
            v->rule != NULL ? v->rule : "", v->reason);
}

/* Where what tokens leave for the way back is most of what is held, or nothing fits. */
static void put_missing(dti_writer *w, const dt_search *s)
{
    const dt_way_cost *c = s->n_ranked > 0 ? &s->verdicts[0].cost : NULL;
    char kept[DTI_NUMBER_BYTES], all[DTI_NUMBER_BYTES];

    if (s->task.o.goal != DT_PLAN_STEP || (c != NULL && 2 * c->kept_bytes < c->peak_bytes)) return;
    dti_put(w, "\nnot looked at: " DTI_NO_CP);
    if (c != NULL)
        dti_put(w, "; of the %s of the first way %s are kept of tokens, which cp would cut",
                dti_bytes_text(c->peak_bytes, all), dti_bytes_text(c->kept_bytes, kept));
    dti_put(w, "\n");
}

static void put_text(dti_writer *w, const dt_search *s)
{
    put_figures(w, &s->task.machine);
    if (s->task.guessed[0] != '\0')
        dti_put(w, "  not measured, taken for calls as large: %s\n", s->task.guessed);
    dti_put(w, "case %s\n\n", s->decision);
    if (s->n_ranked == 0)
        dti_put(w, "no way fits%s\n", s->end == DT_SEARCH_WHOLE ? "" : " of those counted");
    if (s->n_ranked == 0 && s->least_devices > 0)
        dti_put(w, "the smallest machine of its kind that would do has %lld devices\n",
                (long long)s->least_devices);
    for (int64_t i = 0; i < s->n_ranked; i++) {
        dti_put(w, "%lld. ", (long long)i + 1);
        dti_put_way(w, &s->task, &s->verdicts[i].way);
        dti_put(w, "\n");
        put_cost(w, &s->task, &s->verdicts[i].cost);
        if (i == 0) put_groups(w, s);
        if (i == 0) dti_put_forms(w, s, false);
    }
    if (s->judged.way.pp > 0) put_judged(w, s);
    put_missing(w, s);
    dti_put(w, "\n%lld ways, %lld of them counted by dry runs\n", (long long)s->n,
            (long long)s->n_counted);
    if (s->end == DT_SEARCH_TIMED)
        dti_put(w, "ended after its %.4g s: of those that were not counted some may be faster\n",
                s->task.o.seconds);
    if (s->end == DT_SEARCH_COUNTED)
        dti_put(w, "ended after %d were counted: of the others some may be faster\n",
                s->task.o.most_counted);
    put_rejected(w, s);
}

/* --- as JSON ---------------------------------------------------------------------------------- */

/* What was asked for besides, which a run is to have as well. */
static void put_asked(dti_writer *w, const dti_task *t)
{
    const dt_optimizer_options *o = &t->optimizer;
    const dt_plan *plan = t->load.plan;
    char number[DTI_NUMBER_BYTES];

    if (t->load.plan_name != NULL || plan != NULL) {
        dti_put(w, ", \"plan\": ");
        dti_put_json(w, t->load.plan_name != NULL                  ? t->load.plan_name
                        : plan->n_rules == 0 && plan->more == NULL ? "built-in"
                                                                   : plan->source);
    }
    if (t->o.goal != DT_PLAN_STEP) return;
    if (o->rule == DT_SGD) dti_put(w, ", \"optimizer\": \"sgd\"");
    if (o->momentum > 0) dti_put(w, ", \"momentum\": %s", dti_number_text(o->momentum, number));
    if (o->nesterov) dti_put(w, ", \"nesterov\": true");
    if (!o->masters) dti_put(w, ", \"no-masters\": true");
}

static void put_options(dti_writer *w, const dti_task *t, const dt_way *way)
{
    char mesh[DTI_MESH_BYTES];

    if (t->o.goal != DT_PLAN_STEP) {
        dti_put(w, "{ \"mesh\": \"%s\", \"dtype\": \"%s\"", dti_way_mesh(way, mesh),
                dt_dtype_name(t->dtype));
        if (t->load.weights != NULL) {
            dti_put(w, ", \"weights\": ");
            dti_put_json(w, t->load.weights);
        }
        put_asked(w, t);
        dti_put(w, " }");
        return;
    }
    dti_put(w, "{ \"mesh\": \"%s\", \"batch\": %lld, \"sequence\": %lld, \"microbatches\": %lld",
            dti_way_mesh(way, mesh), (long long)t->o.batch, (long long)t->o.sequence,
            (long long)way->microbatches);
    dti_put(w, ", \"zero\": %d, \"recompute\": \"%s\", \"dtype\": \"%s\"", way->zero,
            recomputed[way->recompute], dt_dtype_name(t->dtype));
    if (way->sequence_parallel) dti_put(w, ", \"sequence-parallel\": true");
    if (way->offload) dti_put(w, ", \"offload\": \"host\"");
    if (way->offload && way->zero == 3) dti_put(w, ", \"offload-parameters\": \"host\"");
    if (way->dp > 1) dti_put(w, ", \"bucket\": %d", (int)DTI_BUCKET_BYTES);
    if (way->schedule != NULL) dti_put(w, ", \"schedule\": \"%s\"", way->schedule);
    if (way->stages_per_rank > 1) dti_put(w, ", \"stages-per-rank\": %d", way->stages_per_rank);
    if (way->stages != NULL) dti_put(w, ", \"stages\": \"%s\"", way->stages);
    if (way->chunk > 0) dti_put(w, ", \"chunk\": %lld", (long long)way->chunk);
    put_asked(w, t);
    dti_put(w, " }");
}

static void put_number(dti_writer *w, const char *name, double x)
{
    char number[DTI_NUMBER_BYTES];

    dti_put(w, ", \"%s\": %s", name, dti_number_text(x, number));
}

static void put_more_json(dti_writer *w, const dt_way_cost *c)
{
    if (c->more_bytes > 0) dti_put(w, ", \"more_bytes\": %lld", (long long)c->more_bytes);
}

static void put_verdict(dti_writer *w, const dti_task *t, const dt_verdict *v)
{
    const dt_way_cost *c = &v->cost;

    dti_put(w, "  { \"way\": \"");
    dti_put_way(w, t, &v->way); /* no letter of it needs another spelling */
    dti_put(w, "\", \"verdict\": \"%s\"", kinds[v->kind]);
    if (v->rule != NULL) dti_put(w, ", \"rule\": \"%s\"", v->rule);
    if (v->reason[0] != '\0') {
        dti_put(w, ", \"reason\": ");
        dti_put_json(w, v->reason);
        put_number(w, "number", v->number);
        put_number(w, "limit", v->limit);
    }
    if (v->counted && v->kind == DT_VERDICT_MEMORY) {
        dti_put(w, ",\n    \"exact\": { \"peak_bytes\": %lld }", (long long)c->peak_bytes);
    } else if (v->counted && t->o.goal != DT_PLAN_STEP) {
        dti_put(w,
                ",\n    \"exact\": { \"peak_bytes\": %lld, \"weight_bytes\": %lld, "
                "\"cache_bytes\": %lld, \"activation_bytes\": %lld, \"inside_bytes\": %lld, "
                "\"between_bytes\": %lld",
                (long long)c->peak_bytes, (long long)c->weight_bytes, (long long)c->cache_bytes,
                (long long)c->activation_bytes, (long long)c->inside_bytes,
                (long long)c->between_bytes);
        put_more_json(w, c);
        put_number(w, "prompt_flops", c->flops);
        dti_put(w, " },\n    \"predicted\": { \"unit\": \"s\"");
        put_number(w, "prompt", c->prompt);
        put_number(w, "token", c->token);
        dti_put(w, " }");
    } else if (v->counted) {
        dti_put(w,
                ",\n    \"exact\": { \"peak_bytes\": %lld, \"weight_bytes\": %lld, "
                "\"gradient_bytes\": %lld, \"state_bytes\": %lld, \"kept_bytes\": %lld, "
                "\"inside_bytes\": %lld, \"between_bytes\": %lld",
                (long long)c->peak_bytes, (long long)c->weight_bytes, (long long)c->gradient_bytes,
                (long long)c->state_bytes, (long long)c->kept_bytes, (long long)c->inside_bytes,
                (long long)c->between_bytes);
        put_more_json(w, c);
        put_number(w, "flops", c->flops);
        dti_put(w, " },\n    \"predicted\": { \"unit\": \"s\"");
        put_number(w, "step", c->seconds);
        put_number(w, "compute", c->compute);
        put_number(w, "exposed", c->exposed);
        put_number(w, "hidden", c->hidden);
        put_number(w, "bubble", c->bubble);
        dti_put(w, " }");
        if (c->measured > 0) {
            dti_put(w, ",\n    \"measured\": { \"unit\": \"s\"");
            put_number(w, "step", c->measured);
            dti_put(w, " }");
        }
    }
    dti_put(w, " }");
}

static void put_json(dti_writer *w, const dt_search *s)
{
    int machine = dt_machine_print(&s->task.machine, NULL, 0);

    dti_put(w, "{\n\"machine\": ");
    if (w->used + (size_t)machine < w->bytes)
        (void)dt_machine_print(&s->task.machine, w->text + w->used, w->bytes - w->used);
    w->used += (size_t)machine;
    if (s->task.guessed[0] != '\0') {
        dti_put(w, ",\n\"guessed\": ");
        dti_put_json(w, s->task.guessed);
    }
    dti_put(w, ",\n\"case\": ");
    dti_put_json(w, s->decision);
    dti_put(w, ",\n\"ways\": %lld,\n\"counted\": %lld,\n\"least_devices\": %lld", (long long)s->n,
            (long long)s->n_counted, (long long)s->least_devices);
    dti_put(w, ",\n\"ended\": %s", ends[s->end]);
    dti_put(w, ",\n\"not_looked_at\": [\"" DTI_NO_CP "\"]");
    dti_put(w, ",\n\"options\": ");
    if (s->n_ranked > 0)
        put_options(w, &s->task, &s->verdicts[0].way);
    else
        dti_put(w, "null");
    dti_put(w, ",\n\"styles\": ");
    if (s->n_ranked == 0 || !dti_put_way_plan(w, &s->task, &s->verdicts[0].way)) dti_put(w, "null");
    dti_put(w, ",\n\"groups\": [");
    for (int i = 0; dt_search_group(s, i) != NULL; i++) {
        const dt_operator_group *g = dt_search_group(s, i);
        dti_put(w,
                "%s\n  { \"name\": \"%s\", \"sample\": %d, \"operator\": %d, "
                "\"attribute\": %d, \"parameter\": %d }",
                i > 0 ? "," : "", g->name, g->sample, g->operators, g->attribute, g->parameter);
    }
    dti_put(w, "]");
    dti_put_forms(w, s, true);
    if (s->judged.way.pp > 0) {
        dti_put(w, ",\n\"asked\":\n");
        put_verdict(w, &s->task, &s->judged);
    }
    dti_put(w, ",\n\"verdicts\": [\n");
    for (size_t i = 0; i < s->n; i++) {
        put_verdict(w, &s->task, &s->verdicts[i]);
        dti_put(w, "%s\n", i + 1 < s->n ? "," : "");
    }
    dti_put(w, "]\n}\n");
}

int dt_search_print(const dt_search *s, bool json, char *text, size_t bytes)
{
    dti_writer w = { text, text != NULL ? bytes : 0, 0 };

    if (s == NULL)
        dti_put(&w, "(no search)\n");
    else if (json)
        put_json(&w, s);
    else
        put_text(&w, s);
    return dti_written(&w);
}
