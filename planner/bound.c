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

/* Over tp or ep, whichever is quicker: which of them has how much is not known. */
static double inner_seconds(const dti_task *t, const dt_way *w, dt_comm_kind kind,
                            const dt_comm_counter *c)
{
    bool between;
    const double tp = dti_comm_seconds(&t->machine, w, DTI_OVER_TP, kind, c, &between);
    const double ep = dti_comm_seconds(&t->machine, w, DTI_OVER_EP, kind, c, &between);

    return w->ep <= 1 ? tp : w->tp == 1 ? ep : fmin(tp, ep);
}

/* Of what a pass of many sequences sends for each, the least share that it may be of what that of
 * one sends. Tokens that all ranks have are sent in parts, along sequences or their tokens,
 * whichever are more, which may be less even here or there. */
static double share_of_parts(const dti_task *t, const dt_way *w, double rows)
{
    const int64_t n = t->o.sequence;

    if (!w->dispatch || w->ep <= 1) return 1;
    if (w->sequence_parallel) return 0.25; /* parts of sequences alone: one of one has none */
    return n < w->ep ? 0 : n % w->ep == 0 && rows <= (double)n ? 1 : 0.5;
}

/* Seconds of tp and ep in a pass of a microbatch through the whole model. */
static double tensor_seconds(const dti_task *t, const dti_profile *p, const dt_way *w, double rows)
{
    const dt_training_part *const parts[] = { &p->cost.forward, &p->cost.backward };
    double sum = 0;

    if (w->tp == 1 && w->ep <= 1) return 0;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < DT_N_COMM_KINDS; k++) {
            dt_comm_counter c = parts[i]->comm[k];
            c.bytes = (int64_t)((double)c.bytes * rows);
            sum += inner_seconds(t, w, (dt_comm_kind)k, &c);
        }
    return sum * share_of_parts(t, w, rows);
}

double dti_block_share(const dti_task *t, const dt_way *w)
{
    return (t->block_params - t->expert_params + t->expert_params / dti_way_ep(w)) / w->tp;
}

/* What a bound of a pipeline is made of: seconds of a microbatch, of a message. */
typedef struct pipe_passes {
    double block, head; /* computed for each block, and for the head beside its rank's blocks */
    double wait;        /* of a block, that later stages wait for at the begin or the end */
    double round;       /* from a microbatch's begin to its end, without messages */
    int ways;           /* of messages, likewise */
    int64_t rounds;     /* microbatches that begin when the one before has ended */
} pipe_passes;

static double message_bytes(const dti_task *t, const dt_way *w)
{
    return (double)(dti_way_rows(t, w) * t->o.sequence * t->info.hidden_size) *
           (double)dt_dtype_size(t->dtype) / (w->sequence_parallel ? w->tp : 1);
}

/* The busiest rank of a pipeline, with what others do before it begins and after it ends; or all
 * microbatches of which one begins when another has ended: under "1f1b" and "zb-h1" the first rank
 * passes microbatch i + p on behind the way back of i, interleaved that of i + 2 p. */
static double pipeline_seconds(const dti_task *t, const dti_split *s, const dt_way *w,
                               const pipe_passes *a)
{
    const double bytes = SLACK * message_bytes(t, w);
    const int v = s->n / s->pp;
    double before = 0, most = 0, messages = 0;

    for (int r = 0; r < s->pp; r++) {
        double mine = r == s->pp - 1 ? a->head : 0;
        for (int i = 0; i < v; i++) mine += s->blocks[i * s->pp + r] * a->block;
        most = fmax(most, before + (double)w->microbatches * mine);
        before += s->blocks[r] * a->wait +
                  a->ways * dti_message_seconds(&t->machine, w, r, (r + 1) % s->pp, bytes);
    }
    for (int k = 1; k < s->n; k++)
        messages += dti_message_seconds(&t->machine, w, (k - 1) % s->pp, k % s->pp, bytes);
    return fmax(most, (double)a->rounds * (a->round + 2 * messages));
}

/* What reducing and gathering parameters adds that nothing can hide; of tiles all that is gathered,
 * there and, of blocks, back. */
static double data_seconds(const dti_task *t, const dt_way *w, double weights, double passes)
{
    const double share = (double)(w->dp - 1) / w->dp, size = (double)dt_dtype_size(t->dtype);
    const double elements = weights / size * share, m = (double)w->microbatches;
    const double blocks = dti_block_share(t, w) * (double)t->info.n_layers * share;
    const dt_comm_counter gathers = { 0, (int64_t)(elements * size) };
    const dt_comm_counter tiled = { 0, (int64_t)(2 * blocks * size * m) };
    const dt_comm_counter all = { 0, (int64_t)(elements * (size + 4) * m) };
    const dt_comm_counter *shows = w->zero == 3 ? &tiled : &gathers;
    bool between;

    if (w->zero == 0 || w->dp == 1) return passes;
    if (w->zero < 3 || w->tiles > 1)
        passes += dti_comm_seconds(&t->machine, w, DTI_OVER_DP, DT_N_COMM_KINDS, shows, &between);
    if (w->zero < 3) return passes;
    return fmax(passes,
                dti_comm_seconds(&t->machine, w, DTI_OVER_DP, DT_N_COMM_KINDS, &all, &between));
}

/* State that comes from the host and goes back. */
static double host_seconds(const dti_task *t, const dt_way *w, double state)
{
    const double host = t->machine.figure[DT_FIGURE_HOST_BANDWIDTH].value;

    return w->offload && host > 0 ? 2 * state / w->dp / host : 0;
}

/* Of a microbatch, at the least, what a block keeps: its input, and what full recomputation lacks;
 * and what the way back makes again of one block. */
dt_status dti_kept_by_block(dti_task *t, const dt_way *w, double rows, double *out, double *again)
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

/* What a rank of a pipeline has: blocks, and passes of a microbatch through one that it keeps at a
 * time; those that are left when the first microbatch has come back through all of its stages;
 * whether others are on their way by then. */
typedef struct rank_load {
    double blocks, live, left;
    bool goes_on;
} rank_load;

static rank_load load_of(const dti_task *t, const dti_split *s, const dt_way *w, int rank)
{
    const int p = w->pp, v = s != NULL ? s->n / s->pp : 1;
    const int64_t m = w->microbatches, begun = dti_min(m, v > 1 ? p : p - rank);
    const int64_t passes = dti_min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v);
    rank_load r = { .goes_on = v > 1 ? m >= 2 * p : m > p };

    for (int c = 0; c < v; c++) {
        const double blocks = s != NULL ? s->blocks[c * p + rank] : (double)t->info.n_layers;
        /* interleaved: p microbatches through a stage, then through the next */
        const int64_t first = dti_max(dti_min(passes - (int64_t)c * p, begun), 0);
        const int64_t more = dti_min(dti_max(passes - ((int64_t)v + c) * p, 0), p);
        r.blocks += blocks;
        r.live += blocks * (double)(v > 1 ? first + more : begun);
        if (c == 0) r.left = blocks * (double)(begun - 1);
    }
    return r;
}

/* Of a rank whose parameters are this share of the model's. Gradients come to be as the first way
 * back goes on. */
static double memory_of(const dti_profile *p, const dt_way *w, const rank_load *r, double share,
                        double kept, double again)
{
    const double weights = w->zero < 3 ? 1.0 : w->offload ? 0 : 1.0 / w->dp;
    const double state = w->offload ? 0 : w->zero > 0 ? 1.0 / w->dp : 1.0;
    const double gradients = share * (double)p->cost.gradient_bytes / (w->zero > 1 ? w->dp : 1);
    const double live = r->live * kept + again;

    return share * (weights * (double)p->cost.weight_bytes + state * (double)p->cost.state_bytes) +
           (r->goes_on ? live + gradients : fmax(live, r->left * kept + gradients));
}

/* Passes of all microbatches through the model, with what tp sends. */
static double passes_seconds(const dti_task *t, const dti_profile *p, const dti_split *s,
                             const dt_way *w)
{
    const double rows = (double)dti_way_rows(t, w), tokens = rows * (double)t->o.sequence;
    const double there = rows * p->cost.forward.work.flops / t->rate;
    const double back = rows * p->cost.backward.work.flops / t->rate;
    const double head = fmin(3 * t->head_flops * tokens / w->tp / t->rate, there + back);
    const double tensor = tensor_seconds(t, p, w, rows);
    /* in chunks it runs again */
    const double more = w->chunk > 0 ? t->head_flops * tokens / w->tp / t->rate : 0;
    const double blocks = (double)t->info.n_layers, block = (there + back - head) / blocks;
    const int64_t m = w->microbatches;
    const bool halved = s != NULL && strcmp(w->schedule, "zb-h1") == 0;
    pipe_passes a;

    if (s == NULL) return (double)m * (there + back + tensor + more);
    a = (pipe_passes){
        .head = head + more, .wait = block, .round = there + back + tensor, .ways = 2
    };
    /* embedding and head send less than a block each; whose rank is the busiest is not known */
    a.block = block + tensor / (blocks + 2);
    if (halved) { /* the second half of the way back, at most so much, fills the end and any gap */
        a.wait *= there / (there + back) / 2;
        a.round -= fmin(there, back / 2);
        a.ways = 1;
    }
    a.rounds = halved || strcmp(w->schedule, "1f1b") == 0 ? (m + w->pp - 1) / w->pp
               : strcmp(w->schedule, "interleaved") == 0  ? (m / w->pp + 1) / 2
                                                          : 1;
    return pipeline_seconds(t, s, w, &a);
}

/* The most that a rank needs, and the largest share of the model's parameters that one has: of what
 * is in no block, nothing. */
static double most_memory(const dti_task *t, const dti_profile *p, const dti_split *s,
                          const dt_way *w, double kept, double again, double *most_share)
{
    const double block = dti_block_share(t, w) * (double)dt_dtype_size(t->dtype) /
                         (double)dti_max(p->cost.weight_bytes, 1);
    double most = 0;

    *most_share = 0;
    for (int r = 0; r < w->pp; r++) {
        const rank_load load = load_of(t, s, w, r);
        const double share = s != NULL || w->ends ? load.blocks * block : 1;
        most = fmax(most, memory_of(p, w, &load, share, kept, again));
        *most_share = fmax(*most_share, share);
    }
    return most;
}

dt_status dti_way_bound(dti_task *t, const dt_way *w, double *bytes, double *seconds)
{
    const dti_split *s = NULL;
    const dti_profile *p;
    double kept, again, share;

    if (t->o.goal != DT_PLAN_STEP) return dti_serve_bound(t, w, bytes, seconds);
    DT_TRY(dti_kept_by_block(t, w, (double)dti_way_rows(t, w), &kept, &again));
    if (w->pp > 1) DT_TRY(dti_split_of(t, w, &s));
    DT_TRY(dti_profile_of(t, w, &p));
    if (p->refused != DT_OK) { /* counting it says why */
        *bytes = *seconds = 0;
        return DT_OK;
    }
    *bytes = SLACK * most_memory(t, p, s, w, kept, again, &share);
    *seconds = SLACK * (data_seconds(t, w, share * (double)p->cost.weight_bytes,
                                     passes_seconds(t, p, s, w)) +
                        host_seconds(t, w, share * (double)p->cost.state_bytes));
    return DT_OK;
}
