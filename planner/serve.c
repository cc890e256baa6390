/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: what prompts and tokens cost a way, by dry passes of one rank of each kind, and the
 * rows of its decision table. */
#include <math.h>
#include <stdio.h>

#include "base/numbers.h"
#include "base/text.h"
#include "dtensor/device/device.h"
#include "models/judge/prediction.h"
#include "planner/search.h"

/* For what sums and shares of passes leave out. */
static const double SLACK = 0.99;

int64_t dti_serve_groups(const dti_task *t, const dt_way *w)
{
    return dti_max(1, dti_min(w->pp, t->o.batch / w->dp)); /* dt_model_groups() */
}

/* --- passes ----------------------------------------------------------------------------------- */

static double price(void *arg, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                    double seconds)
{
    (void)seconds;
    return dti_kernel_seconds(arg, kernel, dtype, work);
}

/* Dry passes of so many sequences of each copy. */
static dt_status run(const dti_task *t, const dt_way *w, int place, int64_t rows,
                     dti_prediction *out)
{
    const dti_meter meter = { price, (void *)(uintptr_t)&t->machine };
    dt_load_options load = t->load;
    char mesh[DTI_MESH_BYTES];
    dti_predict_options o = { .mesh = dti_way_mesh(w, mesh),
                              .rank = place * dti_way_place(w),
                              .batch = rows * w->dp,
                              .sequence = t->o.sequence,
                              .load = &load,
                              .like = t->rt,
                              .device = t->machine.gpus ? "cuda" : NULL,
                              .meter = t->machine.n_rates > 0 ? &meter : NULL };

    load.plan = dti_way_plan(t, w);
    DT_TRY(dti_predict(t->dir, &o, out));
    return DT_OK;
}

/* Ranks that compute at a time on a core. */
static double crowd_of(const dti_task *t, const dt_way *w)
{
    const int64_t at_once = (int64_t)dti_way_place(w) * (w->microbatches > 1 ? w->pp : 1);
    const double share =
        (double)dti_min(at_once, t->machine.devices_per_node) / (double)t->machine.devices_per_node;

    return fmax(1, share * dti_machine_crowd(&t->machine));
}

/* What a pass takes a rank, in seconds; bytes that it receives are added to *out. */
static double seconds_of(const dti_task *t, const dt_way *w, const dt_pass_cost *p, double measured,
                         dt_way_cost *out)
{
    const double bandwidth = t->machine.figure[DT_FIGURE_MEMORY_BANDWIDTH].value;
    const double compute = t->machine.n_rates > 0
                               ? measured
                               : fmax(p->work.flops / t->rate, (double)p->work.bytes / bandwidth);
    double sum = compute * crowd_of(t, w);
    bool between;

    for (size_t i = 0; i < p->n; i++) {
        const uint32_t dims = dti_way_dims(w, p->items[i].dims);
        const double s =
            dti_comm_seconds(&t->machine, w, dims, p->items[i].kind, &p->items[i].count, &between);
        sum += s;
        dti_count_experts(t, w, dims, &p->items[i].count, p->items[i].most_bytes, s, out);
        *(between ? &out->between_bytes : &out->inside_bytes) += p->items[i].count.bytes;
    }
    return sum;
}

/* Sequences of a copy that are passed on at once. */
static int64_t rows_at_once(const dti_task *t, const dt_way *w)
{
    const int64_t rows = t->o.batch / w->dp;

    return (rows + w->microbatches - 1) / w->microbatches;
}

/* The most of any kind of rank, for all groups. */
static void hold_experts(const dt_experts_cost *mine, int64_t groups, dt_experts_cost *out)
{
    if (mine->seconds * (double)groups <= out->seconds) return;
    *out = (dt_experts_cost){ mine->bytes * groups, mine->most_bytes * groups,
                              mine->seconds * (double)groups };
}

/* A rank of one kind: what prompts and a token take it, and what it holds if that is the most so
 * far. */
static dt_status count_kind(const dti_task *t, const dt_way *w, int place, double times[2],
                            dt_way_cost *out)
{
    const int64_t each = rows_at_once(t, w);
    dti_prediction p = { 0 };
    dt_way_cost bytes = { 0 }, prompt = { 0 };
    int64_t peak;
    const dt_status st = run(t, w, place, each, &p);

    if (st == DT_OK) {
        const int64_t cache = p.cache_bytes / each * (t->o.batch / w->dp);
        const int64_t held = p.activation_bytes * w->microbatches;
        times[0] = seconds_of(t, w, &p.prefill, p.prefill_seconds, &prompt);
        times[1] = seconds_of(t, w, &p.decode, p.decode_seconds, &bytes);
        hold_experts(&prompt.experts[0], w->microbatches, &out->experts[0]);
        hold_experts(&bytes.experts[0], w->microbatches, &out->experts[1]);
        out->more_bytes = dti_max(out->more_bytes, bytes.more_bytes * w->microbatches);
        out->inside_bytes = dti_max(out->inside_bytes, bytes.inside_bytes * w->microbatches);
        out->between_bytes = dti_max(out->between_bytes, bytes.between_bytes * w->microbatches);
        out->flops = fmax(out->flops, p.prefill.work.flops * (double)w->microbatches);
        peak = p.weight_bytes + cache + held;
        if (peak > out->peak_bytes) {
            out->peak_bytes = peak;
            out->weight_bytes = p.weight_bytes;
            out->cache_bytes = cache;
            out->activation_bytes = held;
        }
    }
    dti_prediction_free(&p);
    DT_TRY(st);
    return DT_OK;
}

/* Groups follow each other through the stages: a prompt is through when all have been, and a group
 * begins its next token when it has the last one. */
dt_status dti_serve_count(dti_task *t, const dt_way *w, dt_way_cost *out)
{
    const int64_t groups = w->microbatches;
    int place[DTI_MAX_STAGES], kind_at[DTI_MAX_STAGES], n;
    double prompts = 0, tokens = 0, slowest_prompt = 0, slowest_token = 0, *times;
    dt_status st = DT_OK;

    *out = (dt_way_cost){ 0 };
    DT_CHECK(w->pp <= DTI_MAX_STAGES, DT_ERR_UNSUPPORTED, "a pipeline of %d ranks: at most %d",
             w->pp, (int)DTI_MAX_STAGES);
    DT_TRY(dti_find_kinds(t, w, place, kind_at, &n));
    DT_TRY(dti_alloc_array(2 * (size_t)n, sizeof *times, (void **)&times));
    for (int k = 0; k < n; k++)
        DT_TRY_TO(done, st, count_kind(t, w, place[k], &times[2 * (ptrdiff_t)k], out));
    for (int r = 0; r < w->pp; r++) {
        const double *mine = &times[2 * (ptrdiff_t)kind_at[r]];
        prompts += mine[0];
        tokens += mine[1];
        slowest_prompt = fmax(slowest_prompt, mine[0]);
        slowest_token = fmax(slowest_token, mine[1]);
    }
    out->prompt = prompts + (double)(groups - 1) * slowest_prompt;
    out->token = fmax(tokens, (double)groups * slowest_token);
    out->seconds = t->o.goal == DT_PLAN_PROMPT ? out->prompt : out->token;
done:
    dti_free(times);
    return st;
}

dt_status dti_serve_look(dti_task *t, const dt_way *w, dti_look *out)
{
    int place[DTI_MAX_STAGES], kind_at[DTI_MAX_STAGES], n;
    double times[2];

    DT_TRY(dti_find_kinds(t, w, place, kind_at, &n));
    for (int k = 0; k < n; k++) {
        dt_way_cost c = { 0 };
        DT_TRY(count_kind(t, w, place[k], times, &c));
        for (int r = 0; r < out->n; r++) {
            if (kind_at[r] != k) continue;
            out->part[r][0] = c.weight_bytes;
            out->part[r][1] = c.cache_bytes;
            out->part[r][2] = c.activation_bytes;
            out->peak[r] = c.peak_bytes;
        }
    }
    return DT_OK;
}

/* --- bounds ----------------------------------------------------------------------------------- */

/* Found once, or made; borrowed until the next call. */
static dt_status pass_of(dti_task *t, const dt_way *of, int64_t rows, const dti_pass **out)
{
    const int ep = dti_way_ep(of), tp = of->tp;
    const dt_way w = {
        .pp = 1, .dp = 1, .ep = ep, .tp = tp, .microbatches = 1, .dispatch = of->dispatch
    };
    dt_way_cost unused = { 0 };
    dti_prediction p = { 0 };
    dti_pass *made;

    for (size_t i = 0; i < t->n_passes; i++) {
        *out = &t->passes[i];
        if (t->passes[i].ep == ep && t->passes[i].tp == tp &&
            t->passes[i].dispatch == of->dispatch && t->passes[i].rows == rows)
            return DT_OK;
    }
    DT_TRY(dti_grow((void **)&t->passes, &t->passes_room, t->n_passes + 1, sizeof *made));
    made = &t->passes[t->n_passes];
    *made = (dti_pass){ .ep = ep, .tp = tp, .dispatch = of->dispatch, .rows = rows };
    made->refused = run(t, &w, 0, rows, &p);
    if (made->refused == DT_OK) {
        made->prompt = seconds_of(t, &w, &p.prefill, p.prefill_seconds, &unused);
        made->token = seconds_of(t, &w, &p.decode, p.decode_seconds, &unused);
    }
    dti_prediction_free(&p);
    if (made->refused == DT_ERR_MEMORY) return DT_ERR_MEMORY;
    t->n_passes++;
    *out = made;
    return DT_OK;
}

/* Stages take together what the whole model does, and more than its share of the busiest. */
dt_status dti_serve_bound(dti_task *t, const dt_way *w, double *bytes, double *seconds)
{
    const bool packed = t->load.weights != NULL, prompts = t->o.goal == DT_PLAN_PROMPT;
    const int64_t rows = t->o.batch / w->dp;
    const dti_pass *p;
    double blocks = (double)t->info.n_layers;
    const dti_split *s;

    if (w->pp > 1) {
        DT_TRY(dti_split_of(t, w, &s));
        blocks = s->blocks[0];
    }
    *bytes = packed ? 0 : SLACK * dti_block_share(t, w) * blocks * (double)dt_dtype_size(t->dtype);
    DT_TRY(pass_of(t, w, dti_max(rows / w->microbatches, 1), &p));
    *seconds = SLACK * (prompts ? p->prompt : p->token);
    if (p->refused != DT_OK) *bytes = *seconds = 0; /* counting it says why */
    return DT_OK;
}

/* --- the decision table ----------------------------------------------------------------------- */

enum { NO, YES, ANY };

static const struct row {
    const char *id;
    char several, nodes, fits, node_fits; /* on a device, on a node */
    const char *text;
} cases[] = {
    { "I1", NO, ANY, YES, ANY, "one device, fits: plain" },
    { "I2", NO, ANY, NO, ANY, "one device, does not fit: packed weights, or more devices" },
    { "I3", YES, ANY, YES, ANY, "fits on a device: copies (DP) for many sequences, TP for few" },
    { "I4", YES, NO, NO, ANY, "one node, does not fit on a device: TP, then PP" },
    { "I5", YES, YES, NO, YES, "many nodes, fits on one: TP within, DP between" },
    { "I6", YES, YES, NO, NO, "many nodes, fits on none: TP within, PP between" },
};

static bool meets(char want, bool is)
{
    return want == ANY || (want == YES) == is;
}

dt_status dti_serve_decide(dti_task *t, char text[DT_REASON_BYTES])
{
    const dt_machine *m = &t->machine;
    const dt_way plain = { .pp = 1, .dp = 1, .tp = 1, .microbatches = 1 };
    const double device = m->figure[DT_FIGURE_DEVICE_BYTES].value;
    char needs[DTI_NUMBER_BYTES], has[DTI_NUMBER_BYTES];
    dt_way_cost c;
    size_t i = 0;
    bool fits;

    DT_TRY(dti_serve_count(t, &plain, &c));
    fits = (double)c.peak_bytes <= device;
    while (!meets(cases[i].several, dti_machine_ranks(m) > 1) ||
           !meets(cases[i].nodes, m->nodes > 1) || !meets(cases[i].fits, fits) ||
           !meets(cases[i].node_fits, (double)c.peak_bytes <= device * m->devices_per_node))
        i++;
    (void)snprintf(text, DT_REASON_BYTES, "%s: %s (on one device %s, a device has %s)", cases[i].id,
                   cases[i].text, dti_bytes_text(c.peak_bytes, needs),
                   dti_bytes_text((int64_t)device, has));
    return DT_OK;
}
