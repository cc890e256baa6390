/* SPDX-License-Identifier: Apache-2.0
 *
 * What a way takes at the least, by arithmetic on passes of one sequence: memory of the first rank
 * and time of the busiest. A bound is never above what dry runs then count, so what it rules out
 * need not be counted. */
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "planner/search.h"

/* For what arithmetic leaves out: rounding, norms, what a block has less of than another. */
static const double SLACK = 0.99;

/* Ranks that a group over `dims` has in a node, and in all. */
static void group_of(const dt_machine *m, const dt_way *w, uint32_t dims, int *inside, int *all)
{
    const int size[] = { w->pp, w->dp, w->tp }, stride[] = { w->dp * w->tp, w->tp, 1 };

    *inside = *all = 1;
    for (int d = 0; d < 3; d++) {
        if (!dti_has(dims, d)) continue;
        *all *= size[d];
        *inside *= (int)dti_min(dti_max(m->devices_per_node / stride[d], 1), size[d]);
    }
}

double dti_comm_seconds(const dt_machine *m, const dt_way *w, uint32_t dims, dt_comm_kind kind,
                        const dt_comm_counter *c, bool *between)
{
    double latency, bandwidth;
    int inside, all;

    group_of(m, w, dims, &inside, &all);
    *between = all > inside;
    if (all == 1) return 0;
    dti_link_seconds(m, kind, all, *between, &latency, &bandwidth);
    if (*between) bandwidth *= inside; /* groups inside a node share a way out */
    return (double)c->calls * latency + (double)c->bytes / bandwidth;
}

/* Seconds of tp in a pass of a microbatch through the whole model. */
static double tensor_seconds(const dti_task *t, const dti_profile *p, const dt_way *w, double rows)
{
    const dt_training_part *const parts[] = { &p->cost.forward, &p->cost.backward };
    double sum = 0;
    bool between;

    if (w->tp == 1) return 0;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < DT_N_COMM_KINDS; k++) {
            dt_comm_counter c = parts[i]->comm[k];
            c.bytes = (int64_t)((double)c.bytes * rows);
            sum += dti_comm_seconds(&t->machine, w, 4u, (dt_comm_kind)k, &c, &between);
        }
    return sum;
}

/* The busiest rank of a pipeline, with what others do before it begins and after it ends, `wait`
 * for each of their blocks. */
static double pipeline_seconds(const dti_split *s, const dt_way *w, double block, double head,
                               double wait)
{
    const int v = s->n / s->pp;
    double before = 0, most = 0;

    for (int r = 0; r < s->pp; r++) {
        double mine = r == s->pp - 1 ? head : 0;
        for (int i = 0; i < v; i++) mine += s->blocks[i * s->pp + r] * block;
        most = fmax(most, before + (double)w->microbatches * mine);
        before += s->blocks[r] * wait;
    }
    return most;
}

/* What reducing and gathering parameters adds that nothing can hide. */
static double data_seconds(const dti_task *t, const dt_way *w, double weights, double passes)
{
    const double share = (double)(w->dp - 1) / w->dp, size = (double)dt_dtype_size(t->dtype);
    const double elements = weights / size * share;
    const dt_comm_counter gathers = { 0, (int64_t)(elements * size) };
    const dt_comm_counter all = { 0, (int64_t)(elements * (size + 4) * (double)w->microbatches) };
    bool between;

    if (w->zero == 0 || w->dp == 1) return passes;
    if (w->zero == 3)
        return fmax(passes, dti_comm_seconds(&t->machine, w, 2u, DT_N_COMM_KINDS, &all, &between));
    return passes + dti_comm_seconds(&t->machine, w, 2u, DT_N_COMM_KINDS, &gathers, &between);
}

/* Of a microbatch, at the least, what a block keeps: its input, and what full recomputation lacks;
 * and what the way back makes again of one block. */
static dt_status kept_by_block(dti_task *t, const dt_way *w, double rows, double *out,
                               double *again)
{
    const double per_block = rows / (double)t->info.n_layers;
    dt_way other = *w;
    const dti_profile *p;
    double mine, least;

    DT_TRY(dti_profile_of(t, w, &p));
    mine = (double)p->cost.kept_bytes;
    other.recompute = DT_RECOMPUTED_BLOCKS;
    DT_TRY(dti_profile_of(t, &other, &p));
    least = (double)p->cost.kept_bytes;
    *out = per_block * (mine - least) + rows * (double)(t->o.sequence * t->info.hidden_size) *
                                            (double)dt_dtype_size(t->dtype) /
                                            (w->sequence_parallel ? w->tp : 1);
    *again = 0;
    if (w->recompute != DT_RECOMPUTED_BLOCKS) return DT_OK;
    other.recompute = DT_RECOMPUTED_NOTHING;
    DT_TRY(dti_profile_of(t, &other, &p));
    if (p->refused == DT_OK) *again = per_block * ((double)p->cost.kept_bytes - least);
    return DT_OK;
}

/* What the first rank has: blocks, and passes of a microbatch through one that it keeps at a time;
 * those that are left when the first microbatch has come back through all of its stages; whether
 * others are on their way by then. */
typedef struct first_rank {
    double blocks, live, left;
    bool goes_on;
} first_rank;

static first_rank first_of(const dti_task *t, const dti_split *s, const dt_way *w)
{
    const int p = w->pp, v = s != NULL ? s->n / s->pp : 1;
    const int64_t m = w->microbatches, passes = dti_min(2 * (p - 1) + (v - 1) * p + 1, m * v);
    first_rank r = { .goes_on = v > 1 ? m >= 2 * p : m > p };

    for (int c = 0; c < v; c++) {
        const double blocks = s != NULL ? s->blocks[c * p] : (double)t->info.n_layers;
        /* interleaved: p microbatches through a stage, then through the next */
        const int64_t more = dti_min(dti_max(passes - ((int64_t)v + c) * p, 0), p);
        r.blocks += blocks;
        r.live += blocks * (double)(v > 1 ? dti_min(m, p) + more : dti_min(m, p));
        if (c == 0) r.left = blocks * (double)(dti_min(m, p) - 1);
    }
    return r;
}

/* The most of the first rank. Gradients come to be as the first way back goes on. */
static double memory_of(const dti_profile *p, const dt_way *w, const first_rank *r, double share,
                        double kept, double again)
{
    const double weights = w->zero < 3 ? 1.0 : w->offload ? 0 : 1.0 / w->dp;
    const double state = w->offload ? 0 : w->zero > 0 ? 1.0 / w->dp : 1.0;
    const double gradients = share * (double)p->cost.gradient_bytes / (w->zero > 1 ? w->dp : 1);
    const double live = r->live * kept + again;

    return share * (weights * (double)p->cost.weight_bytes + state * (double)p->cost.state_bytes) +
           (r->goes_on ? live + gradients : fmax(live, r->left * kept + gradients));
}

dt_status dti_way_bound(dti_task *t, const dt_way *w, double *bytes, double *seconds)
{
    const double rows = (double)dti_way_rows(t, w), tokens = rows * (double)t->o.sequence;
    const dti_split *s = NULL;
    const dti_profile *p;
    double all, head, wait, messages, kept, again, share = 1, blocks = (double)t->info.n_layers;
    first_rank first;

    if (t->o.goal != DT_PLAN_STEP) return dti_serve_bound(t, w, bytes, seconds);
    DT_TRY(kept_by_block(t, w, rows, &kept, &again));
    if (w->pp > 1) DT_TRY(dti_split_of(t, w, &s));
    first = first_of(t, s, w);
    DT_TRY(dti_profile_of(t, w, &p));
    if (p->refused != DT_OK) { /* counting it says why */
        *bytes = *seconds = 0;
        return DT_OK;
    }
    all = rows * (p->cost.forward.work.flops + p->cost.backward.work.flops) / t->rate;
    head = fmin(3 * t->head_flops * tokens / w->tp / t->rate, all);
    wait = (all - head) / blocks;
    messages = tensor_seconds(t, p, w, rows);
    if (s == NULL) {
        *seconds = (double)w->microbatches * (all + messages);
    } else {
        const double there = p->cost.forward.work.flops;
        if (strcmp(w->schedule, "zb-h1") == 0) /* the second half of the way back fills the end */
            wait *= there / (there + p->cost.backward.work.flops) / 2;
        /* embedding and head send less than a block each; whose rank is the busiest is not known */
        messages /= blocks + 2;
        *seconds = pipeline_seconds(s, w, (all - head) / blocks + messages, head, wait);
        share = t->block_params * first.blocks * (double)dt_dtype_size(t->dtype) /
                (w->tp * (double)dti_max(p->cost.weight_bytes, 1));
    }
    *bytes = SLACK * memory_of(p, w, &first, share, kept, again);
    *seconds = SLACK * data_seconds(t, w, share * (double)p->cost.weight_bytes, *seconds);
    return DT_OK;
}
