/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving a tensor between placements. Every rank rewrites its piece, all meet at a barrier, then
 * the move is timed from the last rank's start to the last rank's end: without the rewriting,
 * pieces would lie in the caches of the rank that read them last.
 *
 * Two limits, measured in the same loop: every rank copying, with plain memcpy, as many bytes out
 * of all ranks' pieces as the move has to read and write at the least; and for small tensors the
 * time of handing one cache line over. */
#include <dtensor/tensor.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_report.h"
#include "dtensor/move_cache.h"

enum { MAX_RANKS = 64, WARM_UP = 3, PLANS = 200, LOOKUPS = 20000 };

/* clang-format off */
static const bench_column columns[] = {
    { "move", "move", 15, -1 },
    { "mesh", "mesh", 6, -1 },
    { "bytes", "bytes", 9, 0 }, /* of the whole tensor */
    { "move_us", "us", 10, 2 },
    { "received_gbs", "recv GB/s", 9, 2 }, /* by all ranks from others, as plans count it */
    { "traffic_gbs", "GB/s", 7, 2 },       /* read and written, at the least, by all ranks */
    { "copy_us", "memcpy us", 10, 2 },
    { "ratio", "ratio", 6, 3 }, /* memcpy / move */
    { "ratio_quarter", "quarter", 7, 3 },
    { "ratio_3_quarters", "3/4", 6, 3 },
    { "handoff_ns", "handoff ns", 10, 0 },
    { "handoffs", "handoffs", 8, 1 }, /* move / handoff */
    { "plan_us", "plan us", 7, 2 },   /* made anew */
    { "lookup_ns", "lookup ns", 9, 0 },
};
/* clang-format on */

typedef enum move_kind {
    SHARD_TO_WHOLE,
    SUM_TO_WHOLE,
    SUM_TO_SHARD,
    SHARD_TO_SHARD,
    WHOLE_TO_SHARD
} move_kind;

typedef struct move {
    const char *name;
    move_kind kind;
    dt_placement from, to;
} move;

/* clang-format off */
static const move moves[] = {
    { "S(0) -> R",       SHARD_TO_WHOLE, { .kind = DT_PLACE_SHARD },            { .kind = DT_PLACE_REPLICATE } },
    { "S(1) -> R",       SHARD_TO_WHOLE, { .kind = DT_PLACE_SHARD, .axis = 1 }, { .kind = DT_PLACE_REPLICATE } },
    { "P -> R",          SUM_TO_WHOLE,   { .kind = DT_PLACE_PARTIAL },          { .kind = DT_PLACE_REPLICATE } },
    { "P -> S(0)",       SUM_TO_SHARD,   { .kind = DT_PLACE_PARTIAL },          { .kind = DT_PLACE_SHARD } },
    { "P -> S(1)",       SUM_TO_SHARD,   { .kind = DT_PLACE_PARTIAL },          { .kind = DT_PLACE_SHARD, .axis = 1 } },
    { "S(0) -> S(1)",    SHARD_TO_SHARD, { .kind = DT_PLACE_SHARD },            { .kind = DT_PLACE_SHARD, .axis = 1 } },
    { "R -> S(0)",       WHOLE_TO_SHARD, { .kind = DT_PLACE_REPLICATE },        { .kind = DT_PLACE_SHARD } },
    { "R -> S(1)",       WHOLE_TO_SHARD, { .kind = DT_PLACE_REPLICATE },        { .kind = DT_PLACE_SHARD, .axis = 1 } },
    { "S(0) -> halves",  SHARD_TO_SHARD, { .kind = DT_PLACE_SHARD },            { .kind = DT_PLACE_SHARD, .n_blocks = 2 } },
};
/* clang-format on */

typedef struct redistribute_options {
    bench_common common;
    int64_t most_bytes;
    int64_t samples;
} redistribute_options;

typedef struct rank_slot { /* each rank writes its own, all read after a barrier */
    _Alignas(2 * DTI_LINE_BYTES) const char *piece;
    int64_t begin, end;
} rank_slot;

typedef struct redistribute_job {
    const redistribute_options *options;
    const char *mesh;
    const bench_machine *limits;
    bench_report *report;
    rank_slot slots[MAX_RANKS];
} redistribute_job;

/* Bytes that a rank has to read, and as many on average to write, so that the move happens. */
static double least_copy(move_kind kind, double bytes, double ranks)
{
    switch (kind) {
    case SHARD_TO_WHOLE: /* p pieces in, the whole out */
    case SUM_TO_WHOLE:   /* p terms of its slice in, its slice out to p ranks */
        return bytes;
    case SUM_TO_SHARD: /* p terms of its slice in, its slice out */
        return (bytes + bytes / ranks) / 2;
    default: /* its piece in and out */
        return bytes / ranks;
    }
}

/* One rank's side of one row. */
typedef struct row {
    redistribute_job *job;
    dt_runtime *rt;
    const move *move;
    dt_placement to[DT_MAX_DIMS];
    dt_tensor *x;
    char *copy; /* what memcpy writes to */
    int64_t copy_bytes;
    int64_t bytes; /* of the tensor */
} row;

/* New values, small so that sums stay finite. */
static void rewrite(const row *r, int64_t round)
{
    const dt_local *x = dt_tensor_local(r->x);
    float *to = x->data;

    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++) to[i] = (float)((i + round) & 255);
}

/* From the last start to the last end; from the first start where ranks take turns on the cores. */
static double span(const redistribute_job *j, int n_ranks)
{
    const bool turns = n_ranks > bench_cores();
    int64_t begin = j->slots[0].begin, end = j->slots[0].end;

    for (int r = 1; r < n_ranks; r++) {
        const int64_t start = j->slots[r].begin;
        if (turns ? start < begin : start > begin) begin = start;
        if (j->slots[r].end > end) end = j->slots[r].end;
    }
    return (double)(end - begin);
}

static dt_status time_move(const row *r, int64_t round, double *ns)
{
    rank_slot *slot = &r->job->slots[dt_runtime_rank(r->rt)];
    dt_tensor *y;
    dt_status st;

    rewrite(r, round);
    DT_TRY(bench_barrier(r->rt));
    slot->begin = dti_now_ns();
    st = dt_redistribute(r->x, r->to, &y);
    slot->end = dti_now_ns();
    dt_tensor_release(&y);
    DT_TRY(st);
    DT_TRY(bench_barrier(r->rt));
    *ns = span(r->job, dt_runtime_size(r->rt));
    DT_TRY(bench_barrier(r->rt));
    return DT_OK;
}

static dt_status time_copy(const row *r, int64_t round, double *ns)
{
    const int me = dt_runtime_rank(r->rt), n = dt_runtime_size(r->rt);
    const size_t part = (size_t)(r->copy_bytes / n);
    rank_slot *slot = &r->job->slots[me];

    rewrite(r, round);
    DT_TRY(bench_barrier(r->rt));
    slot->begin = dti_now_ns();
    for (int k = 0; k < n; k++) { /* not all from the same rank at once */
        const int from = (me + k) % n;
        memcpy(r->copy + (size_t)from * part, r->job->slots[from].piece, part);
    }
    slot->end = dti_now_ns();
    DT_TRY(bench_barrier(r->rt));
    *ns = span(r->job, n);
    DT_TRY(bench_barrier(r->rt));
    return DT_OK;
}

/* Small moves are noisy and cheap, large ones the other way round. */
static int64_t samples_for(const redistribute_options *o, int64_t bytes)
{
    if (o->common.quick) return 2;
    return bytes <= 64 << 10 ? o->samples : bytes <= 4 << 20 ? o->samples / 4 : o->samples / 16;
}

/* A plan made anew, and one that is found again. */
static dt_status time_plans(const row *r, double *cold_ns, double *warm_ns, int64_t *received)
{
    const dt_layout *from = dt_tensor_layout(r->x), *to;
    const int me[DT_MAX_DIMS] = { dt_mesh_coord(dt_tensor_mesh(r->x), 0) };
    const int64_t shape[] = { dt_tensor_extent(r->x, 0), dt_tensor_extent(r->x, 1) };
    dti_cost_model model = { .shape = shape, .element_bytes = 4 };
    const dti_move *found = NULL;
    dti_move plan;
    bool any;

    DT_TRY(dti_tensor_layout(r->x, r->to, &to));
    model.link[0] = dt_mesh_link(dt_tensor_mesh(r->x), 0);
    int64_t begin = dti_now_ns();
    for (int i = 0; i < PLANS; i++) DT_TRY(dti_plan(from, to, &model, &plan, &any));
    *cold_ns = (double)(dti_now_ns() - begin) / PLANS;
    begin = dti_now_ns();
    for (int i = 0; i < LOOKUPS; i++) DT_TRY(dti_move_cache_plan(r->x, to, &found));
    *warm_ns = (double)(dti_now_ns() - begin) / LOOKUPS;
    *received = 0;
    for (int i = 0; i < found->n_steps; i++)
        *received += dti_move_bytes(&found->step[i], shape, 4, me);
    return DT_OK;
}

static dt_status measure(const row *r)
{
    redistribute_job *j = r->job;
    const int64_t n = samples_for(j->options, r->bytes);
    bench_samples move_ns = { 0 }, copy_ns = { 0 }, ratio = { 0 }, handoff = { 0 };
    const double traffic = 2.0 * (double)r->copy_bytes * dt_runtime_size(r->rt);
    double ns[2] = { 0 }, hand = 0, cold_ns = 0, warm_ns = 0;
    int64_t received = 0;

    j->slots[dt_runtime_rank(r->rt)].piece = dt_tensor_local(r->x)->data;
    DT_TRY(time_plans(r, &cold_ns, &warm_ns, &received));
    DT_TRY(bench_alone(r->rt, bench_handoff_ns, j->limits, &hand));
    bench_add(&handoff, hand);
    for (int64_t i = -WARM_UP; i < n; i++) {
        DT_TRY(time_move(r, i, &ns[0]));
        DT_TRY(time_copy(r, i, &ns[1]));
        if (i < 0) continue;
        bench_add(&move_ns, ns[0]);
        bench_add(&copy_ns, ns[1]);
        bench_add(&ratio, ns[1] / ns[0]);
    }
    DT_TRY(bench_alone(r->rt, bench_handoff_ns, j->limits, &hand));
    bench_add(&handoff, hand);
    if (dt_runtime_rank(r->rt) == 0)
        bench_report_row(
            j->report, r->move->name, j->mesh, (double)r->bytes, bench_median(&move_ns) * 1e-3,
            (double)received * dt_runtime_size(r->rt) / bench_median(&move_ns),
            traffic / bench_median(&move_ns), bench_median(&copy_ns) * 1e-3, bench_median(&ratio),
            bench_quantile(&ratio, 0.25), bench_quantile(&ratio, 0.75), bench_median(&handoff),
            bench_median(&move_ns) / bench_median(&handoff), cold_ns * 1e-3, warm_ns);
    return DT_OK;
}

static dt_status run_row(redistribute_job *j, dt_mesh *mesh, const move *m, int64_t bytes)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const int64_t side = (int64_t)llround(sqrt((double)bytes / 4)), shape[] = { side, side };
    const double ranks = dt_runtime_size(rt);
    const int64_t halves[] = { side / 2, side - side / 2 };
    row r = { .job = j, .rt = rt, .move = m, .to = { m->to }, .bytes = side * side * 4 };
    const dt_placement from[DT_MAX_DIMS] = { m->from };
    dt_placement start[DT_MAX_DIMS] = { m->from };
    dt_status st = DT_OK;
    dt_tensor *zero = NULL;
    void *memory = NULL;

    if (m->to.n_blocks > 0) r.to[0] = dt_shard_packed(0, 2, halves);
    r.copy_bytes = (int64_t)least_copy(m->kind, (double)r.bytes, ranks);
    if (m->from.kind == DT_PLACE_PARTIAL) start[0] = DT_REPLICATE;
    DT_TRY(dt_zeros(mesh, start, DT_F32, 2, shape, &zero));
    DT_TRY_TO(done, st,
              dt_from_local(mesh, from, DT_F32, 2, shape, dt_tensor_local(zero)->data, &r.x));
    dt_tensor_release(&zero);
    DT_TRY_TO(done, st, dti_big_alloc((size_t)r.copy_bytes, &memory));
    memset(memory, 1, (size_t)r.copy_bytes);
    r.copy = memory;
    DT_TRY_TO(done, st, measure(&r));
done:
    dti_big_free(memory, (size_t)r.copy_bytes);
    dt_tensor_release(&r.x);
    dt_tensor_release(&zero);
    return st;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    redistribute_job *j = arg;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;

    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    for (size_t m = 0; m < DT_COUNT(moves); m++)
        for (int64_t bytes = 1 << 10; bytes <= j->options->most_bytes;
             bytes *= bytes < 64 << 20 ? 16 : 4)
            DT_TRY_TO(done, st, run_row(j, mesh, &moves[m], bytes));
done:
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run_mesh(const redistribute_options *o, const char *spec,
                          const bench_machine *limits, bench_report *report)
{
    redistribute_job j = { .options = o, .mesh = spec, .limits = limits, .report = report };
    bench_case c;

    DT_TRY(bench_case_of(&o->common, spec, &c));
    DT_CHECK(c.n_ranks <= MAX_RANKS, DT_ERR_ARG, "--mesh \"%s\": at most %d ranks", spec,
             MAX_RANKS);
    c.threads = 1; /* moves are made by the rank's own thread */
    DT_TRY(bench_run(&o->common, &c, on_rank, &j));
    return DT_OK;
}

static dt_status run(const redistribute_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=2", "tp=4" };
    const size_t bytes = o->common.quick ? 4 << 20 : 1 << 30;
    bench_machine limits;
    dt_status st = DT_OK;

    DT_TRY(bench_limits_open((int)o->common.threads, bytes, &limits));
    bench_report_fact(report, "copy", "%.1f GB/s read and written, %d threads, %zu MiB",
                      bench_copy_gbs(&limits), limits.n_threads, limits.bytes >> 20);
    if (o->common.mesh != NULL) DT_TRY_TO(done, st, run_mesh(o, o->common.mesh, &limits, report));
    for (size_t i = 0; o->common.mesh == NULL && i < DT_COUNT(meshes); i++)
        DT_TRY_TO(done, st, run_mesh(o, meshes[i], &limits, report));
done:
    bench_machine_close(&limits);
    return st;
}

int main(int argc, char **argv)
{
    redistribute_options o = { .most_bytes = 256 << 20, .samples = 200 };
    const bench_option own[] = {
        { "--most-bytes", "N",
          "largest tensor (default: 256 MiB; sizes are 1 KiB, 16 KiB, ... 64 MiB, 256 MiB)",
          BENCH_COUNT, &o.most_bytes },
        { "--samples", "N", "for small tensors, fewer for large ones (default: 200)", BENCH_COUNT,
          &o.samples },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Moving tensors between placements, against copying as much.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) o.most_bytes = 16 << 10;
    if (o.samples < 16) o.samples = 16;
    bench_report_open(&report, "redistribute", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
