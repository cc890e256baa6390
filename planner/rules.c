/* SPDX-License-Identifier: Apache-2.0
 *
 * What forbids a way whatever it costs, and what the decision table says of a task: both tables. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "planner/search.h"

/* --- rules ------------------------------------------------------------------------------------ */

/* Whether a way breaks it, and the number and the limit that say so. */
typedef bool (*breaks_fn)(const dti_task *t, const dt_way *w, double *number, double *limit);

static bool k1(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = w->tp;
    *limit = t->machine.devices_per_node;
    return w->tp > t->machine.devices_per_node;
}

static bool k2(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = w->zero;
    *limit = 1;
    return w->pp > 1 && w->zero > 1;
}

static bool k3_heads(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->info.n_heads;
    *limit = w->tp;
    return t->info.n_heads % w->tp != 0;
}

static bool k3_kv(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    const int64_t kv = t->info.n_kv_heads;

    *number = (double)kv;
    *limit = w->tp;
    return kv % w->tp != 0 && w->tp % kv != 0;
}

static bool k3_ff(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->ff;
    *limit = w->tp;
    return t->ff % w->tp != 0;
}

static bool layers(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = w->pp;
    *limit = (double)t->info.n_layers;
    return w->pp > t->info.n_layers;
}

static bool k5_dp(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->o.batch;
    *limit = w->dp;
    return t->o.batch % w->dp != 0;
}

static bool k6_bubble(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = (double)w->microbatches;
    *limit = w->pp;
    return w->pp > 1 && w->microbatches < w->pp;
}

static bool k6_turns(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = (double)w->microbatches;
    *limit = w->pp;
    return w->stages_per_rank > 1 && w->microbatches % w->pp != 0;
}

static bool k6_layers(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)w->pp * w->stages_per_rank;
    *limit = (double)t->info.n_layers;
    return w->stages_per_rank > 1 && *number > *limit;
}

static bool k7(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->o.sequence;
    *limit = w->tp;
    return w->sequence_parallel && (w->tp == 1 || t->o.sequence % w->tp != 0);
}

static bool k8(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = w->zero;
    *limit = 1;
    return w->offload && w->zero < 1;
}

static bool k2_ends(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = w->pp;
    *limit = 1;
    return w->ends && w->pp > 1;
}

static bool k3_experts(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->n_experts;
    *limit = dti_way_ep(w);
    return w->ep > 1 && (t->n_experts == 0 || t->n_experts % w->ep != 0);
}

static bool k3_sent(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    *number = (double)t->n_experts;
    *limit = w->tp;
    return w->dispatch && w->ep <= 1 && (t->n_experts == 0 || t->n_experts % w->tp != 0);
}

static bool k8_tiles(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = w->zero;
    *limit = 3;
    return w->tiles > 1 && w->zero < 3;
}

static bool k8_ends(const dti_task *t, const dt_way *w, double *number, double *limit)
{
    (void)t;
    *number = w->zero;
    *limit = 2;
    return w->ends && w->zero > 2;
}

/* Each with what it says of the two numbers. */
static const struct rule {
    const char *id;
    dti_level level;
    breaks_fn breaks;
    const char *text;
} rules[] = {
    { "K1", DTI_TP, k1, "tp %.0f goes beyond the %.0f devices of a node" },
    { "K3", DTI_TP, k3_heads, "%.0f heads cannot be divided among tp %.0f" },
    { "K3", DTI_TP, k3_kv, "%.0f kv heads neither divide nor are divided by tp %.0f" },
    { "K3", DTI_TP, k3_ff, "a feed-forward width of %.0f cannot be divided among tp %.0f" },
    { "K3", DTI_TP, k3_experts, "%.0f experts cannot be divided among ep %.0f" },
    { "K6", DTI_PP, layers, "pp %.0f is more than the model's %.0f blocks" },
    { "K5", DTI_PP, k5_dp, "a batch of %.0f cannot be divided among dp %.0f" },
    { "K2", DTI_ZERO, k2, "with stages ZeRO %.0f would send for each microbatch; at most %.0f" },
    { "K8", DTI_REST, k8, "state with the host needs ZeRO, not %.0f but %.0f or more" },
    { "K2", DTI_REST, k2_ends, "with stages, pp %.0f, ends would be gathered for each microbatch" },
    { "K8", DTI_REST, k8_tiles, "tiles are of layers that are gathered: ZeRO %.0f, not %.0f" },
    { "K8", DTI_REST, k8_ends, "ZeRO %.0f cuts ends as well: sharded ends are of %.0f at most" },
    { "K3", DTI_REST, k3_sent, "%.0f experts cannot be divided among tp %.0f" },
    { "K7", DTI_REST, k7, "%.0f tokens cannot be cut over tp %.0f" },
    { "K6", DTI_REST, k6_bubble, "%.0f microbatches leave ranks of pp %.0f idle" },
    { "K6", DTI_REST, k6_turns, "interleaved: %.0f microbatches are no multiple of pp %.0f" },
    { "K6", DTI_REST, k6_layers, "%.0f stages are more than the model's %.0f blocks" },
};

bool dti_rule_breaks(const dti_task *t, dti_level level, dt_verdict *v)
{
    for (size_t i = 0; i < DT_COUNT(rules); i++) {
        const struct rule *r = &rules[i];
        if (r->level != level || !r->breaks(t, &v->way, &v->number, &v->limit)) continue;
        v->kind = DT_VERDICT_RULE;
        v->rule = r->id;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(v->reason, sizeof v->reason, r->text, v->number, v->limit);
#pragma GCC diagnostic pop
        return true;
    }
    v->number = v->limit = 0;
    return false;
}

/* --- the decision table ----------------------------------------------------------------------- */

/* Bytes a second and device that a link has for each operation, from which on it is fast: between
 * NVLink and PCIe, between InfiniBand and Ethernet. */
static const double FAST_INSIDE = 5e-4, FAST_BETWEEN = 5e-5;

/* What rows look at. */
typedef struct situation {
    bool several, nodes, fits, layer_fits, replica_fits, fast_inside, fast_between;
} situation;

enum { NO, YES, ANY };

static const struct row {
    const char *id;
    char several, nodes, fits, layer_fits, fast; /* inside, or between nodes */
    char replica_fits;                           /* on a node */
    const char *text;
} cases[] = {
    { "S1", NO, NO, YES, ANY, ANY, ANY, "one device, fits: plain" },
    { "S2", NO, NO, NO, YES, ANY, ANY, "one device, does not fit: ZeRO and state with the host" },
    { "S3", NO, NO, NO, NO, ANY, ANY, "one device, a layer does not fit: that and tiles" },
    { "M1", YES, NO, YES, ANY, ANY, ANY, "one node, fits: data parallel or ZeRO" },
    { "M2", YES, NO, NO, YES, YES, ANY, "one node, does not fit, fast links: PP, ZeRO or TP" },
    { "M3", YES, NO, NO, YES, NO, ANY, "one node, does not fit, slow links: PP, then TP, ZeRO" },
    { "M4", YES, NO, NO, NO, ANY, ANY, "one node, a layer does not fit: TP, or ZeRO with tiles" },
    { "C1", YES, YES, ANY, ANY, YES, ANY, "many nodes, fast links: ZeRO, or PP, TP and DP" },
    { "C2", YES, YES, ANY, ANY, NO, NO, "many nodes, slow links: DP, PP, TP and ZeRO-1" },
    { "C3", YES, YES, ANY, ANY, NO, YES,
      "many nodes, slow links, a node has room for a replica: DP between nodes" },
};

static bool meets(char want, bool is)
{
    return want == ANY || (want == YES) == is;
}

dt_status dti_decide(dti_task *t, char text[DT_REASON_BYTES])
{
    const dt_way plain = { .pp = 1, .dp = 1, .tp = 1, .recompute = DT_RECOMPUTED_BLOCKS };
    const dt_machine *m = &t->machine;
    const double device = m->figure[DT_FIGURE_DEVICE_BYTES].value;
    char needs[DTI_NUMBER_BYTES], layer[DTI_NUMBER_BYTES], has[DTI_NUMBER_BYTES];
    const dti_profile *p;
    double state, per_param, peak;
    situation s;

    if (t->o.goal != DT_PLAN_STEP) return dti_serve_decide(t, text);
    DT_TRY(dti_profile_of(t, &plain, &p));
    peak = (double)p->cost.peak_bytes;
    state = (double)(p->cost.weight_bytes + p->cost.gradient_bytes + p->cost.state_bytes);
    per_param = (double)dt_dtype_size(t->dtype) + 4 +
                (double)p->cost.state_bytes * (double)dt_dtype_size(t->dtype) /
                    (double)dti_max(p->cost.weight_bytes, 1);
    s = (situation){
        .several = dti_machine_ranks(m) > 1,
        .nodes = m->nodes > 1,
        .fits = p->refused == DT_OK && peak <= device,
        .layer_fits = t->largest * per_param <= device,
        .replica_fits = state <= device * m->devices_per_node,
        .fast_inside = m->figure[DT_FIGURE_INSIDE_BANDWIDTH].value / t->rate >= FAST_INSIDE,
        .fast_between =
            m->figure[DT_FIGURE_BETWEEN_BANDWIDTH].value / m->devices_per_node / t->rate >=
            FAST_BETWEEN,
    };
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const struct row *r = &cases[i];
        if (!meets(r->several, s.several) || !meets(r->nodes, s.nodes) || !meets(r->fits, s.fits) ||
            !meets(r->layer_fits, s.layer_fits) || !meets(r->replica_fits, s.replica_fits) ||
            !meets(r->fast, s.nodes ? s.fast_between : s.fast_inside))
            continue;
        (void)snprintf(text, DT_REASON_BYTES,
                       "%s: %s (on one device %s, its largest layer %s, a device has %s)", r->id,
                       r->text, dti_bytes_text((int64_t)peak, needs),
                       dti_bytes_text((int64_t)(t->largest * per_param), layer),
                       dti_bytes_text((int64_t)device, has));
        return DT_OK;
    }
    return DT_OK;
}
