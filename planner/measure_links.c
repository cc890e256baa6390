/* SPDX-License-Identifier: Apache-2.0
 *
 * What collectives take among groups of every size, all groups at once: moves of tensors of few
 * bytes and of many, messages to and fro, and a sum that travels beside products. */
#include <dtensor/async.h>
#include <dtensor/channels.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/sync.h"
#include "planner/measure.h"

enum {
    SMALL = 16,
    LARGE = 1 << 20,
    MOST_ROUNDS = 5,
    LEAST_ROUNDS = 2,
    TURNS = 3,
    IN_A_ROW = 32,
    PRODUCT = 256
};

typedef struct job {
    double seconds;      /* for each measurement */
    double long_call;    /* a call of many bytes takes so long at least, if LARGE allows it */
    int turns;           /* in which all is measured */
    dt_machine *machine; /* written by rank 0 */
    double overlap;      /* likewise; < 0: not measured */
    /* of each row of the machine's: calls of few bytes and of many, the quickest of all turns */
    struct timing {
        double few, small, many, large;
    } timing[DT_MAX_LINKS];
} job;

typedef struct rank_state {
    job *job;
    dt_runtime *rt;
    dt_mesh *mesh, *ends[2]; /* of messages: the first and the last rank of the dim */
    dt_channel *there, *back;
    dt_tape *tape;
    int dim, ranks; /* that is measured */
    bool between, root;
} rank_state;

/* --- one call --------------------------------------------------------------------------------- */

typedef dt_status (*call_fn)(rank_state *r, dt_tensor *x);

static dt_status move(rank_state *r, dt_tensor *x, dt_placement want)
{
    (void)dt_move_dim(r->tape, x, r->dim, want);
    return dt_tape_status(r->tape);
}

static dt_status gather(rank_state *r, dt_tensor *x)
{
    return move(r, x, DT_REPLICATE);
}

static dt_status scatter(rank_state *r, dt_tensor *x)
{
    return move(r, x, DT_SHARD(0));
}

static dt_status turn(rank_state *r, dt_tensor *x)
{
    return move(r, x, DT_SHARD(1));
}

/* There and back again: two messages. */
static dt_status send(rank_state *r, dt_tensor *x)
{
    const int place = dt_mesh_coord(r->mesh, r->dim);
    dt_channel *const out = place == 0 ? r->there : r->back;
    dt_channel *const in = place == 0 ? r->back : r->there;
    dt_parcel *parcel = NULL;
    dt_tensor *y = NULL;

    if (place != 0 && place != r->ranks - 1) return DT_OK;
    if (place == 0) DT_TRY(dt_channel_send(out, x, NULL));
    DT_TRY(dt_channel_recv(in, NULL, &parcel));
    DT_TRY(dt_parcel_wait(&parcel, &y));
    dt_tensor_release(&y);
    if (place != 0) DT_TRY(dt_channel_send(out, x, NULL));
    return dt_channel_wait(out);
}

static const struct call {
    dt_comm_kind kind;
    call_fn run;
} calls[] = {
    { DT_COMM_ALL_GATHER, gather },
    { DT_COMM_ALL_REDUCE, gather },
    { DT_COMM_REDUCE_SCATTER, scatter },
    { DT_COMM_ALL_TO_ALL, turn },
    { DT_COMM_SEND, send },
};

/* How what a call moves lies along the dim before. */
static dt_placement lies(dt_comm_kind kind)
{
    switch (kind) {
    case DT_COMM_ALL_GATHER:
    case DT_COMM_ALL_TO_ALL:
        return DT_SHARD(0);
    case DT_COMM_ALL_REDUCE:
    case DT_COMM_REDUCE_SCATTER:
        return DT_PARTIAL(DT_SUM);
    default:
        return DT_REPLICATE;
    }
}

/* --- times ------------------------------------------------------------------------------------ */

/* [rows, ranks] in f32, as the call has it. */
static dt_status make(rank_state *r, const struct call *c, int64_t rows, dt_tensor **out)
{
    const int64_t shape[] = { rows, r->ranks };
    dt_placement place[DT_MAX_DIMS];

    for (int d = 0; d < DT_MAX_DIMS; d++) place[d] = DT_REPLICATE;
    place[r->dim] = lies(c->kind);
    if (c->kind == DT_COMM_SEND) {
        const int at = dt_mesh_coord(r->mesh, r->dim) == 0 ? 0 : 1;
        return dt_zeros(r->ends[at], place, DT_F32, 2, shape, out);
    }
    if (lies(c->kind).kind != DT_PLACE_PARTIAL)
        return dt_zeros(r->mesh, place, DT_F32, 2, shape, out);
    dt_tensor *term;
    place[r->dim] = DT_REPLICATE;
    DT_TRY(dt_zeros(r->mesh, place, DT_F32, 2, shape, &term));
    place[r->dim] = lies(c->kind);
    const dt_status st =
        dt_from_local(r->mesh, place, DT_F32, 2, shape, dt_tensor_local(term)->data, out);
    dt_tensor_release(&term);
    return st;
}

/* The most of all ranks, so that all of them go on alike. */
static dt_status agree(rank_state *r, double *x)
{
    return dt_all_reduce(r->mesh, NULL, x, x, 1, DT_F64, DT_MAX);
}

/* One of n calls that follow each other. */
static dt_status once(rank_state *r, const struct call *c, dt_tensor *x, int n, double *seconds)
{
    int64_t from;

    DT_TRY(dt_barrier(r->mesh, NULL));
    from = dti_now_ns();
    for (int i = 0; i < n; i++) DT_TRY(c->run(r, x));
    *seconds = (double)(dti_now_ns() - from) * 1e-9 / n / (c->kind == DT_COMM_SEND ? 2 : 1);
    dt_tape_reset(r->tape);
    return DT_OK;
}

/* The quicker of as many calls as there is time for, of the slowest rank; what a rank receives. */
static dt_status measure(rank_state *r, const struct call *c, int64_t rows, double *seconds,
                         double *bytes)
{
    double times[MOST_ROUNDS], first = 0;
    dt_tensor *x = NULL;
    dt_status st = DT_OK;
    int n, in_a_row;

    DT_TRY_TO(done, st, make(r, c, rows, &x));
    DT_TRY_TO(done, st, c->run(r, x)); /* plans and memory */
    *bytes = (double)dt_tape_comm(r->tape, c->kind).bytes;
    if (c->kind == DT_COMM_SEND) *bytes = (double)(rows * r->ranks) * sizeof(float);
    dt_tape_reset(r->tape);
    DT_TRY_TO(done, st, once(r, c, x, 1, &first));
    DT_TRY_TO(done, st, agree(r, &first));
    n = (int)fmax(LEAST_ROUNDS, fmin(MOST_ROUNDS, r->job->seconds / 2 / fmax(first, 1e-9)));
    in_a_row = (int)fmax(1, fmin(IN_A_ROW, r->job->long_call / 4 / fmax(first, 1e-9)));
    for (int i = 0; i < n; i++) DT_TRY_TO(done, st, once(r, c, x, in_a_row, &times[i]));
    *seconds = dti_quick_of(times, n);
    DT_TRY_TO(done, st, agree(r, seconds));
done:
    dt_tensor_release(&x);
    return st;
}

/* The machine's row of what is measured now; -1: there is no room. */
static int row_of(dt_machine *m, const rank_state *r, dt_comm_kind kind)
{
    int i = 0;

    while (i < m->n_links && (m->link[i].kind != kind || m->link[i].ranks != r->ranks ||
                              m->link[i].between != r->between))
        i++;
    if (i == DT_MAX_LINKS) return -1;
    if (i == m->n_links)
        m->link[m->n_links++] =
            (dt_link_rate){ .kind = kind, .ranks = r->ranks, .between = r->between };
    return i;
}

static dt_status measure_call(rank_state *r, const struct call *c)
{
    struct timing now = { 0 }, *all;
    int64_t rows = SMALL;
    int i;

    DT_TRY(measure(r, c, SMALL, &now.small, &now.few));
    do {
        rows *= 8;
        DT_TRY(measure(r, c, rows, &now.large, &now.many));
    } while (now.large < r->job->long_call && rows * r->ranks * 8 <= LARGE);
    i = r->root ? row_of(r->job->machine, r, c->kind) : -1;
    if (i < 0) return DT_OK;
    all = &r->job->timing[i];
    now.small = all->few > 0 ? fmin(all->small, now.small) : now.small;
    if (all->many > now.many) {
        now.many = all->many;
        now.large = all->large;
    } else if (all->many == now.many) {
        now.large = fmin(all->large, now.large);
    }
    *all = now;
    return DT_OK;
}

/* --- a sum beside products -------------------------------------------------------------------- */

/* Products, a sum, or both: the sum begins first and is awaited last. */
static dt_status beside(rank_state *r, dt_tensor *const *x, int products, dt_tensor *terms,
                        double *seconds)
{
    dt_placement want[DT_MAX_DIMS];
    dt_pending *pending = NULL;
    int64_t from;

    for (int d = 0; d < DT_MAX_DIMS; d++) want[d] = DT_REPLICATE;
    DT_TRY(dt_barrier(r->mesh, NULL));
    from = dti_now_ns();
    if (terms != NULL) pending = dt_move_begin(r->tape, terms, want);
    for (int i = 0; i < products; i++) (void)dt_linear(r->tape, x[0], x[1], NULL);
    if (terms != NULL) (void)dt_move_wait(r->tape, pending);
    *seconds = (double)(dti_now_ns() - from) * 1e-9;
    DT_TRY(dt_tape_status(r->tape));
    dt_tape_reset(r->tape);
    DT_TRY(agree(r, seconds));
    return DT_OK;
}

static dt_status measure_overlap(rank_state *r)
{
    const int64_t shape[] = { PRODUCT, PRODUCT };
    const struct call sum = { DT_COMM_ALL_REDUCE, gather };
    double alone, travels, times[3][MOST_ROUNDS], quick[3];
    dt_placement whole[DT_MAX_DIMS];
    dt_tensor *x[2] = { NULL, NULL }, *terms = NULL;
    dt_status st = DT_OK;
    int64_t rows = SMALL;
    int n;

    for (int d = 0; d < DT_MAX_DIMS; d++) whole[d] = DT_REPLICATE;
    for (int i = 0; i < 2; i++)
        DT_TRY_TO(done, st, dt_rand(r->mesh, whole, DT_F32, 2, shape, (dt_random){ 1, 0 }, &x[i]));
    do { /* a sum that is long enough, and as many products */
        rows *= 8;
        dt_tensor_release(&terms);
        DT_TRY_TO(done, st, make(r, &sum, rows, &terms));
        DT_TRY_TO(done, st, beside(r, x, 0, terms, &travels));
        DT_TRY_TO(done, st, beside(r, x, 0, terms, &travels));
    } while (travels < r->job->long_call && rows * r->ranks * 8 <= LARGE);
    DT_TRY_TO(done, st, beside(r, x, 1, NULL, &alone));
    DT_TRY_TO(done, st, beside(r, x, 4, NULL, &alone));
    n = (int)fmin(1000, ceil(4 * travels / alone));
    for (int i = 0; i < MOST_ROUNDS; i++) {
        DT_TRY_TO(done, st, beside(r, x, 0, terms, &times[0][i]));
        DT_TRY_TO(done, st, beside(r, x, n, NULL, &times[1][i]));
        DT_TRY_TO(done, st, beside(r, x, n, terms, &times[2][i]));
    }
    for (int i = 0; i < 3; i++) quick[i] = dti_quick_of(times[i], MOST_ROUNDS);
    alone = fmax((quick[2] - fmax(quick[0], quick[1])) / fmin(quick[0], quick[1]), 0);
    r->job->overlap = r->job->overlap < 0 ? alone : fmin(r->job->overlap, alone);
done:
    dt_tensor_release(&x[0]);
    dt_tensor_release(&x[1]);
    dt_tensor_release(&terms);
    return st;
}

/* --- groups ----------------------------------------------------------------------------------- */

static dt_status open_channels(rank_state *r)
{
    const char *name = dt_mesh_dim_name(r->mesh, r->dim);

    DT_TRY(dt_mesh_stage(r->mesh, name, 0, &r->ends[0]));
    DT_TRY(dt_mesh_stage(r->mesh, name, r->ranks - 1, &r->ends[1]));
    DT_TRY(dt_channel_create(r->ends[0], r->ends[1], name, &r->there));
    DT_TRY(dt_channel_create(r->ends[1], r->ends[0], name, &r->back));
    return DT_OK;
}

/* All calls over groups of so many ranks of a node, or of one rank of each of so many nodes. */
static dt_status measure_group(rank_state *r, int ranks, bool between, bool overlap)
{
    const dt_machine *m = r->job->machine;
    const int nodes = m->nodes, devices = m->devices_per_node;
    dt_status st = DT_OK;
    char mesh[96];

    r->ranks = ranks;
    r->between = between;
    r->dim = between ? 1 : 2;
    if (between)
        (void)snprintf(mesh, sizeof mesh, "apart=%d,dp=%d,tp=%d", nodes / ranks, ranks, devices);
    else
        (void)snprintf(mesh, sizeof mesh, "dp=%d,apart=%d,tp=%d", nodes, devices / ranks, ranks);
    DT_TRY_TO(done, st, dt_mesh_create(r->rt, mesh, &r->mesh));
    DT_TRY_TO(done, st, open_channels(r));
    for (size_t i = 0; i < DT_COUNT(calls); i++) DT_TRY_TO(done, st, measure_call(r, &calls[i]));
    if (overlap) DT_TRY_TO(done, st, measure_overlap(r));
done:
    dt_channel_release(&r->there);
    dt_channel_release(&r->back);
    dt_mesh_release(&r->ends[0]);
    dt_mesh_release(&r->ends[1]);
    dt_mesh_release(&r->mesh);
    return st;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    rank_state r = { .job = arg, .rt = rt, .root = dt_runtime_rank(rt) == 0 };
    const int nodes = r.job->machine->nodes, devices = r.job->machine->devices_per_node;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(rt, &r.tape));
    for (int turn = 0; turn < r.job->turns; turn++) {
        for (int n = 2; n <= devices; n++)
            if (devices % n == 0)
                DT_TRY_TO(done, st, measure_group(&r, n, false, nodes == 1 && n == devices));
        for (int n = 2; n <= nodes; n++)
            if (nodes % n == 0) DT_TRY_TO(done, st, measure_group(&r, n, true, n == nodes));
    }
done:
    dt_tape_release(&r.tape);
    return st;
}

/* What few bytes take and what more of them add; and what stands for collectives without a row. */
static void set_links(dt_machine *m, const job *j)
{
    for (int i = 0; i < m->n_links; i++) {
        const struct timing *t = &j->timing[i];
        dt_link_rate *l = &m->link[i];
        l->bandwidth = fmax((t->many - t->few) / fmax(t->large - t->small, 1e-9), 1);
        l->latency = t->small;
        if (l->kind != DT_COMM_ALL_REDUCE || l->ranks != 2) continue;
        dti_figure_set(m, l->between ? DT_FIGURE_BETWEEN_LATENCY : DT_FIGURE_INSIDE_LATENCY,
                       l->latency, "measured: a sum of few bytes over 2 ranks");
        dti_figure_set(m, l->between ? DT_FIGURE_BETWEEN_BANDWIDTH : DT_FIGURE_INSIDE_BANDWIDTH,
                       l->bandwidth * (l->between ? m->devices_per_node : 1),
                       "measured: a sum of many bytes over 2 ranks");
    }
}

/* Ways in which groups can be made: divisors from 2 on. */
static int n_groups(int n)
{
    int k = 0;

    for (int d = 2; d <= n; d++) k += n % d == 0;
    return k;
}

/* Seconds of a call that its bytes decide, not its latency. */
static const double LONG_CALL = 0.01;

dt_status dti_measure_links(const dt_calibrate_options *o, double seconds, dt_machine *m)
{
    const int n = m->nodes * m->devices_per_node;
    const dt_run_options run = dti_calibrate_run(o, n, m->threads);
    const int groups = n_groups(m->nodes) + n_groups(m->devices_per_node);
    job *j;
    dt_status st = DT_OK;

    if (n == 1) return DT_OK;
    DT_TRY(dti_new(sizeof *j, &j));
    j->machine = m;
    j->overlap = -1;
    j->turns = (int)fmax(1, fmin(TURNS, seconds));
    j->seconds = seconds / (j->turns * groups * (double)DT_COUNT(calls) * 5);
    j->long_call = fmin(LONG_CALL, j->seconds);
    DT_TRY_TO(done, st, dt_run(&run, on_rank, j));
    set_links(m, j);
    if (j->overlap >= 0)
        dti_figure_set(m, DT_FIGURE_OVERLAP_COST, fmin(j->overlap, 8),
                       "measured: a sum over %d ranks beside products as long",
                       m->nodes > 1 ? m->nodes : n);
done:
    dti_free(j);
    return st;
}
