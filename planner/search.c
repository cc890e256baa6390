/* SPDX-License-Identifier: Apache-2.0
 *
 * The search: all ways level by level, rules at each; bounds of what is left; then the most
 * promising is counted until the best of those counted cannot be beaten. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/sync.h"
#include "base/text.h"
#include "planner/search.h"

enum { MAX_ROWS = 64, MAX_SHARE = 8 };

/* --- the space -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int stages_per_rank;
} schedules[] = { { "1f1b", 1 }, { "interleaved", 2 }, { "interleaved", 4 }, { "zb-h1", 1 } };

static dt_status add(dt_search *s, const dt_verdict *v, double bound)
{
    DT_TRY(dti_grow((void **)&s->verdicts, &s->room, s->n + 1, sizeof *v));
    DT_TRY(dti_grow((void **)&s->bounds, &s->bounds_room, s->n + 1, sizeof bound));
    s->verdicts[s->n] = *v;
    s->bounds[s->n++] = bound;
    return DT_OK;
}

/* A way with nothing open: by its bounds it needs too much memory, or is to be counted. */
static dt_status add_way(dt_search *s, const dt_way *way)
{
    const double device = s->task.machine.figure[DT_FIGURE_DEVICE_BYTES].value;
    char needs[DTI_NUMBER_BYTES], has[DTI_NUMBER_BYTES];
    dt_verdict v = { .way = *way };
    double bytes, seconds;

    if (s->task.o.goal == DT_PLAN_STEP && dti_rule_breaks(&s->task, DTI_REST, &v))
        return add(s, &v, INFINITY);
    DT_TRY(dti_way_bound(&s->task, way, &bytes, &seconds));
    if (bytes > device) {
        v.kind = DT_VERDICT_MEMORY;
        v.number = bytes;
        v.limit = device;
        (void)snprintf(v.reason, sizeof v.reason, "needs at least %s, a device has %s",
                       dti_bytes_text((int64_t)bytes, needs), dti_bytes_text((int64_t)device, has));
        return add(s, &v, INFINITY);
    }
    v.kind = DT_VERDICT_SLOWER;
    v.number = seconds;
    return add(s, &v, s->by_memory ? bytes : seconds);
}

/* Stages by time, and by memory where these are others; sharded ends or not. */
static dt_status add_cuts(dt_search *s, dt_way w)
{
    dti_task *t = &s->task;
    dt_verdict v = { .way = w };

    DT_TRY(add_way(s, &w));
    if (w.pp == 1 && w.dp > 1 && w.zero < 3 && !t->has_plan && t->rules[DTI_ENDS].n > 0) {
        w.ends = true;
        DT_TRY(add_way(s, &w));
    }
    if (w.pp == 1 || dti_rule_breaks(t, DTI_REST, &v)) return DT_OK;
    DT_TRY(dti_stages_by_memory(t, &w, &w.stages));
    if (w.stages != NULL) DT_TRY(add_way(s, &w));
    return DT_OK;
}

/* What is left open: how a microbatch is run. */
static dt_status add_passes(dt_search *s, dt_way w)
{
    for (int r = DT_RECOMPUTED_NOTHING; r <= (int)DT_RECOMPUTED_BLOCKS; r++) {
        w.recompute = (dt_recomputed)r;
        w.schedule = NULL;
        w.stages_per_rank = 1;
        if (w.pp == 1) DT_TRY(add_cuts(s, w));
        for (size_t i = 0; w.pp > 1 && i < DT_COUNT(schedules); i++) {
            w.schedule = schedules[i].name;
            w.stages_per_rank = schedules[i].stages_per_rank;
            DT_TRY(add_cuts(s, w));
        }
    }
    return DT_OK;
}

static dt_status add_rows(dt_search *s, dt_way w)
{
    const int64_t rows = s->task.o.batch / w.dp;

    for (int64_t b = 1; b <= dti_min(rows, MAX_ROWS); b *= 2) {
        if (rows % b != 0) break;
        w.microbatches = rows / b;
        DT_TRY(add_passes(s, w));
    }
    return DT_OK;
}

/* Tokens cut over tp or not; sent to their experts or not. */
static dt_status add_tokens(dt_search *s, dt_way w)
{
    for (int sp = 0; sp <= (w.tp > 1); sp++)
        for (int sent = 0; sent < 2; sent++) {
            w.sequence_parallel = sp != 0;
            w.dispatch = sent != 0;
            if (sent == 0 || dti_way_can_send(&s->task, &w)) DT_TRY(add_rows(s, w));
        }
    return DT_OK;
}

static dt_status add_zero(dt_search *s, dt_way w)
{
    const bool host =
        s->task.machine.gpus && s->task.machine.figure[DT_FIGURE_HOST_BYTES].value > 0;

    for (w.zero = 0; w.zero <= 3; w.zero++) {
        dt_verdict v = { .way = w };
        if (dti_rule_breaks(&s->task, DTI_ZERO, &v)) {
            DT_TRY(add(s, &v, INFINITY));
            continue;
        }
        for (int away = 0; away <= (host && w.zero > 0); away++) {
            w.offload = away != 0;
            if (w.zero > 0 && w.dp == 1 && !w.offload) continue; /* the same as zero 0 */
            DT_TRY(add_tokens(s, w));
        }
    }
    return DT_OK;
}

static bool pinned(int pin, int degree)
{
    return pin == 0 || pin == degree;
}

static dt_status add_pp(dt_search *s, dt_way w, int64_t ranks)
{
    const dt_planner_options *o = &s->task.o;

    for (w.pp = 1; w.pp <= ranks; w.pp++) {
        dt_verdict v;
        if (ranks % w.pp != 0 || !pinned(o->pp, w.pp) || !pinned(o->dp, (int)(ranks / w.pp)))
            continue;
        w.dp = (int)(ranks / w.pp);
        v = (dt_verdict){ .way = w };
        if (dti_rule_breaks(&s->task, DTI_PP, &v))
            DT_TRY(add(s, &v, INFINITY));
        else
            DT_TRY(add_zero(s, w));
    }
    return DT_OK;
}

/* Of generation: all copies that there is room for, and fewer. */
static dt_status add_copies(dt_search *s, dt_way w, int64_t ranks)
{
    const dt_planner_options *o = &s->task.o;

    for (w.pp = 1; w.pp <= ranks; w.pp++)
        for (w.dp = 1; ranks % w.pp == 0 && w.dp <= ranks / w.pp; w.dp++) {
            dt_verdict v;
            if (ranks / w.pp % w.dp != 0 || !pinned(o->pp, w.pp) || !pinned(o->dp, w.dp)) continue;
            v = (dt_verdict){ .way = w };
            if (dti_rule_breaks(&s->task, DTI_PP, &v)) {
                DT_TRY(add(s, &v, INFINITY));
                continue;
            }
            v.way.stages_per_rank = 1;
            v.way.microbatches = dti_serve_groups(&s->task, &w);
            DT_TRY(add_way(s, &v.way));
            v.way.dispatch = true;
            if (dti_way_can_send(&s->task, &v.way)) DT_TRY(add_way(s, &v.way));
        }
    return DT_OK;
}

static dt_status add_experts(dt_search *s, dt_way w, int64_t ranks)
{
    const dti_task *t = &s->task;
    const int64_t most = t->has_plan ? 1 : dti_min(dti_max(t->n_experts, 1), ranks);

    for (int ep = 1; ep <= most; ep++) {
        dt_verdict v;
        w.ep = ep;
        v = (dt_verdict){ .way = w };
        if (ranks % ep != 0 || !pinned(t->o.ep, ep)) continue;
        if (dti_rule_breaks(t, DTI_TP, &v))
            DT_TRY(add(s, &v, INFINITY));
        else if (t->o.goal != DT_PLAN_STEP)
            DT_TRY(add_copies(s, w, ranks / ep));
        else
            DT_TRY(add_pp(s, w, ranks / ep));
    }
    return DT_OK;
}

static dt_status add_all(dt_search *s)
{
    const int64_t ranks = dti_machine_ranks(&s->task.machine);

    for (int tp = 1; tp <= ranks; tp++) {
        dt_verdict v = { .way = { .tp = tp } };
        if (ranks % tp != 0 || !pinned(s->task.o.tp, tp)) continue;
        if (dti_rule_breaks(&s->task, DTI_TP, &v))
            DT_TRY(add(s, &v, INFINITY));
        else
            DT_TRY(add_experts(s, v.way, ranks / tp));
    }
    return DT_OK;
}

/* --- counting --------------------------------------------------------------------------------- */

static int n_axes(const dt_way *w)
{
    return (w->pp > 1) + (w->dp > 1) + (w->ep > 1) + (w->tp > 1);
}

/* Of two that were counted: seconds, then bytes that travel, then, of generation, what the other
 * kind of pass takes, then axes. */
static bool is_better(const dt_verdict *a, const dt_verdict *b)
{
    const int64_t bytes[] = { a->cost.inside_bytes + a->cost.between_bytes,
                              b->cost.inside_bytes + b->cost.between_bytes };

    if (a->cost.seconds != b->cost.seconds) return a->cost.seconds < b->cost.seconds;
    if (bytes[0] != bytes[1]) return bytes[0] < bytes[1];
    if (a->cost.prompt + a->cost.token != b->cost.prompt + b->cost.token)
        return a->cost.prompt + a->cost.token < b->cost.prompt + b->cost.token;
    return n_axes(&a->way) < n_axes(&b->way);
}

bool dti_verdict_fits(const dti_task *t, dt_verdict *v)
{
    const double device = t->machine.figure[DT_FIGURE_DEVICE_BYTES].value;
    const double host = t->machine.figure[DT_FIGURE_HOST_BYTES].value;
    /* stage 3 leaves its parameters there as well */
    const int64_t of_rank = v->cost.state_bytes + (v->way.zero == 3 ? v->cost.weight_bytes : 0);
    const double away = v->way.offload ? (double)of_rank * t->machine.devices_per_node : 0;
    const bool on_host = away > host;
    char needs[DTI_NUMBER_BYTES], has[DTI_NUMBER_BYTES];

    v->number = on_host ? away : (double)v->cost.peak_bytes;
    v->limit = on_host ? host : device;
    if (v->number <= v->limit) return true;
    v->kind = DT_VERDICT_MEMORY;
    (void)snprintf(v->reason, sizeof v->reason, "needs %s, a %s has %s",
                   dti_bytes_text((int64_t)v->number, needs), on_host ? "host" : "device",
                   dti_bytes_text((int64_t)v->limit, has));
    return false;
}

/* What tiles can save at most: two blocks that are gathered, and a layer with its gradient, twice
 * each; and chunks: logits and their gradient, as they are and in f32. */
static double tiles_save(const dti_task *t, const dt_way *w)
{
    const double size = (double)dt_dtype_size(t->dtype);

    return 2 * dti_block_share(t, w) * size + 2 * t->largest / w->tp * (size + sizeof(float));
}

static double chunks_save(const dti_task *t, const dt_way *w)
{
    const double size = (double)dt_dtype_size(t->dtype);

    return (double)(dti_way_rows(t, w) * t->o.sequence * t->info.vocab_size) / w->tp * 2 *
           (size + sizeof(float));
}

/* What gives up time for memory is looked at where so much is wanting: the loss in chunks, of
 * tokens whose logits are there together, and layers in tiles, ever smaller ones. */
static dt_status add_savers(dt_search *s, const dt_verdict *v)
{
    const dti_task *t = &s->task;
    const double wanting = v->number - v->limit;
    dt_way w = v->way, more = v->way;
    const int64_t eighth = (t->o.sequence + 7) / 8, chunk = (eighth + w.tp - 1) / w.tp * w.tp;
    const bool tiles = w.zero == 3 && !t->has_plan && w.tiles < dti_tiles[DTI_TILES - 1];

    if (t->o.goal != DT_PLAN_STEP) return DT_OK;
    if (w.chunk == 0 && w.tiles == 0 && chunk < t->o.sequence &&
        wanting <= chunks_save(t, &w) + (tiles ? tiles_save(t, &w) : 0)) {
        more.chunk = chunk;
        DT_TRY(add_way(s, &more));
    }
    if (!tiles || wanting > tiles_save(t, &w)) return DT_OK;
    w.tiles = w.tiles == 0 ? dti_tiles[0] : dti_tiles[1];
    DT_TRY(add_way(s, &w));
    return DT_OK;
}

/* Its bound becomes its time, or infinite. */
static dt_status count(dt_search *s, size_t i)
{
    dt_verdict *v = &s->verdicts[i];
    const dt_status st = dti_way_count(&s->task, &v->way, &v->cost);

    if (st == DT_ERR_MEMORY) return st;
    s->n_counted++;
    s->bounds[i] = INFINITY;
    if (st != DT_OK) {
        v->kind = DT_VERDICT_REFUSED;
        (void)dti_printable(dt_last_error()->message, v->reason, sizeof v->reason);
        return DT_OK;
    }
    v->counted = true;
    if (!dti_verdict_fits(&s->task, v)) { /* the list may move */
        const dt_verdict wanting = *v;
        return add_savers(s, &wanting);
    }
    v->kind = DT_VERDICT_RANKED;
    s->bounds[i] = v->cost.seconds;
    return DT_OK;
}

/* The least bound of those that have no place yet; of equal ones one that was not counted, then the
 * better. */
static size_t next_of(const dt_search *s)
{
    size_t best = s->n;

    for (size_t i = (size_t)s->n_ranked; i < s->n; i++) {
        const dt_verdict *v = &s->verdicts[i], *b = &s->verdicts[best < s->n ? best : i];
        if (v->kind != DT_VERDICT_SLOWER && v->kind != DT_VERDICT_RANKED) continue;
        if (s->end != DT_SEARCH_WHOLE && !v->counted) continue; /* no more may be counted */
        if (best == s->n || s->bounds[i] < s->bounds[best] ||
            (s->bounds[i] == s->bounds[best] && !v->counted && b->counted))
            best = i;
        else if (s->bounds[i] == s->bounds[best] && v->counted && b->counted && is_better(v, b))
            best = i;
    }
    return best;
}

/* Whether one more may be counted. */
static dt_search_end ends(const dt_search *s)
{
    const dt_planner_options *o = &s->task.o;

    if (s->n_counted >= o->most_counted) return DT_SEARCH_COUNTED;
    return s->n_counted > 0 && o->seconds > 0 &&
                   (double)(dti_now_ns() - s->begin_ns) > o->seconds * 1e9
               ? DT_SEARCH_TIMED
               : DT_SEARCH_WHOLE;
}

/* Whatever is counted and leads is as good as what is left can be, as long as more may be counted;
 * then the best of those that were. */
static dt_status rank(dt_search *s)
{
    const dti_task *t = &s->task;

    while (s->n_ranked < t->o.top) {
        const size_t i = next_of(s);
        dt_verdict found;
        if (i == s->n) break;
        if (!s->verdicts[i].counted) {
            s->end = ends(s);
            if (s->end == DT_SEARCH_WHOLE) DT_TRY(count(s, i));
            continue;
        }
        found = s->verdicts[i]; /* to its place at the front */
        memmove(&s->verdicts[s->n_ranked + 1], &s->verdicts[s->n_ranked],
                (i - (size_t)s->n_ranked) * sizeof found);
        memmove(&s->bounds[s->n_ranked + 1], &s->bounds[s->n_ranked],
                (i - (size_t)s->n_ranked) * sizeof s->bounds[0]);
        s->verdicts[s->n_ranked] = found;
        s->bounds[s->n_ranked++] = INFINITY;
    }
    return DT_OK;
}

/* What was counted and is too slow, and what cannot be fast enough. */
static void explain(dt_search *s)
{
    const double limit = s->n_ranked > 0 ? s->verdicts[s->n_ranked - 1].cost.seconds : 0;

    for (size_t i = (size_t)s->n_ranked; i < s->n; i++) {
        dt_verdict *v = &s->verdicts[i];
        if (v->kind != DT_VERDICT_SLOWER && v->kind != DT_VERDICT_RANKED) continue;
        v->kind = DT_VERDICT_SLOWER;
        v->number = v->counted ? v->cost.seconds : v->number;
        v->limit = limit;
        if (s->end == DT_SEARCH_COUNTED && !v->counted)
            (void)snprintf(v->reason, sizeof v->reason,
                           "not counted: takes at least %.4g s, and %d ways were to be counted",
                           v->number, s->task.o.most_counted);
        else if (s->end == DT_SEARCH_TIMED && !v->counted)
            (void)snprintf(v->reason, sizeof v->reason,
                           "not counted: takes at least %.4g s, and the search %.4g s", v->number,
                           s->task.o.seconds);
        else
            (void)snprintf(v->reason, sizeof v->reason, "takes %s%.4g s, the last one above %.4g s",
                           v->counted ? "" : "at least ", v->number, v->limit);
    }
}

/* --- the smallest machine that would do ------------------------------------------------------- */

static dt_status search(dt_search *s)
{
    DT_TRY(add_all(s));
    DT_TRY(rank(s));
    return DT_OK;
}

static void clear(dt_search *s)
{
    dti_free(s->verdicts);
    dti_free(s->bounds);
    s->verdicts = NULL;
    s->bounds = NULL;
    s->n = s->room = s->bounds_room = 0;
    s->n_ranked = s->n_counted = 0;
}

/* More devices in a node up to eight, then more nodes, twice as many each time, some times what one
 * device would need at most. */
static dt_status grow(dt_search *of)
{
    const dt_way plain = { .pp = 1, .dp = 1, .tp = 1, .recompute = DT_RECOMPUTED_BLOCKS };
    dt_machine *m = &of->task.machine;
    const dt_machine was = *m;
    const dt_planner_options asked = of->task.o;
    const bool step = asked.goal == DT_PLAN_STEP;
    const dti_profile *p;
    dt_status st = DT_OK;
    double most = of->task.all_params * (double)dt_dtype_size(of->task.dtype);

    if (step) {
        DT_TRY(dti_profile_of(&of->task, &plain, &p));
        most = (double)p->cost.peak_bytes;
    }
    most *= (double)MAX_SHARE / m->figure[DT_FIGURE_DEVICE_BYTES].value;
    while (of->least_devices == 0 && (double)dti_machine_ranks(m) < most && st == DT_OK) {
        dt_search more = { .task = of->task, .by_memory = true, .begin_ns = of->begin_ns };
        const bool wide = m->devices_per_node < 8 && m->nodes == 1 &&
                          m->figure[DT_FIGURE_INSIDE_BANDWIDTH].value > 0;
        if (!wide && m->figure[DT_FIGURE_BETWEEN_BANDWIDTH].value == 0) break;
        *(wide ? &m->devices_per_node : &m->nodes) *= 2;
        more.task.machine = *m;
        more.task.o.pp = more.task.o.dp = more.task.o.ep = more.task.o.tp = 0;
        if (step) more.task.o.batch = dti_max(asked.batch, dti_machine_ranks(m));
        more.task.o.top = 1;
        more.task.o.most_counted = 8;
        st = search(&more);
        of->task = more.task; /* with what it has found of the model */
        if (st == DT_OK && more.n_ranked > 0) of->least_devices = dti_machine_ranks(m);
        clear(&more);
    }
    of->task.machine = was;
    of->task.o = asked;
    return st;
}

/* --- public ----------------------------------------------------------------------------------- */

dt_status dt_search_ways(dt_runtime *rt, const char *dir, const dt_machine *machine,
                         const dt_planner_options *options, dt_search **out)
{
    dt_status st = DT_OK;
    dt_search *s;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_new(sizeof *s, &s));
    s->begin_ns = dti_now_ns();
    DT_TRY_TO(fail, st, dti_task_open(rt, dir, machine, options, &s->task));
    DT_TRY_TO(fail, st, dti_decide(&s->task, s->decision));
    DT_TRY_TO(fail, st, search(s));
    explain(s);
    if (s->n_ranked == 0 && s->end == DT_SEARCH_WHOLE &&
        s->task.o.pp + s->task.o.dp + s->task.o.ep + s->task.o.tp == 0)
        DT_TRY_TO(fail, st, grow(s));
    if (s->n_ranked > 0) {
        s->least_devices = dti_machine_ranks(machine);
        DT_TRY_TO(fail, st, dti_find_groups(&s->task, &s->verdicts[0].way, s->group));
        DT_TRY_TO(fail, st, dti_find_other_form(s));
    }
    *out = s;
    return DT_OK;

fail:
    dt_search_release(&s);
    return st;
}

void dt_search_release(dt_search **search)
{
    dt_search *s = search != NULL ? *search : NULL;

    if (s == NULL) return;
    *search = NULL;
    clear(s);
    dti_task_close(&s->task);
    dti_free(s);
}

const dt_verdict *dt_search_at(const dt_search *s, int64_t i)
{
    return s != NULL && i >= 0 && (size_t)i < s->n ? &s->verdicts[i] : NULL;
}

const char *dt_search_case(const dt_search *s, char text[DT_REASON_BYTES])
{
    (void)snprintf(text, DT_REASON_BYTES, "%s", s != NULL ? s->decision : "");
    return text;
}

dt_search_end dt_search_ended(const dt_search *s)
{
    return s != NULL ? s->end : DT_SEARCH_WHOLE;
}

int64_t dt_search_least_devices(const dt_search *s)
{
    return s != NULL ? s->least_devices : 0;
}
