/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients that travel in buckets: the bits and bytes of gradients that do not, for any size of
 * buckets, layouts, microbatches and ranks; leaves that nothing reads; and ranks that fail
 * meanwhile. */
#include "training/buckets.h"

#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/timeline.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/graph.h"
#include "dtensor/leaf_moves.h"
#include "placements/shard_over.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* x [B, D0] through layers of these widths and back; the first weight is used again at the end
 * (tied), one is read by nobody, one has no elements. */
enum { LEAVES = 6, BACK = 3, UNUSED = 4, EMPTY = 5, LARGEST = 17 * 13, MOST_RANKS = 4 };
static const int64_t shapes[LEAVES][2] = { { 17, 6 }, { 13, 17 }, { 1, 13 },
                                           { 6, 1 },  { 5, 5 },   { 0, 6 } };

typedef enum stage { WHOLE, STATE_CUT, ALL_CUT } stage; /* ZeRO 0, 1, 2 */

typedef struct plan {
    stage stage;
    int passes;
    int64_t bucket; /* 0: no buckets */
    int again;      /* parts that run again */
    int fails;      /* rank 1 does, when so many leaves were told */
} plan;

typedef struct outcome {
    float bits[LEAVES][LARGEST];
    int64_t bytes, calls, calls_within; /* what was counted when the last leaf was told */
} outcome;

typedef struct net {
    const plan *p;
    dt_tape *t;
    dt_gradients *g;
    dti_buckets *r;
    dt_tensor *w[LEAVES];
    const dt_layout *want[LEAVES];
    int told;
    int64_t calls_within;
} net;

static void close_net(net *s)
{
    dti_buckets_free(&s->r);
    dt_tape_release(&s->t);
    dt_gradients_release(&s->g);
    for (int i = 0; i < LEAVES; i++) dt_tensor_release(&s->w[i]);
}

static dt_status open_net(dt_mesh *mesh, const plan *p, net *s)
{
    const bool square = dt_mesh_n_dims(mesh) > 1;
    dt_status st = DT_OK;

    *s = (net){ .p = p };
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &s->t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &s->g));
    for (int i = 0; i < LEAVES; i++) {
        const dt_placement place[] = { DT_REPLICATE, i < 2 ? DT_SHARD(i) : DT_REPLICATE };
        DT_TRY_TO(
            done, st,
            dt_randn(mesh, place, DT_F32, 2, shapes[i], (dt_random){ 3, (uint64_t)i }, &s->w[i]));
        DT_TRY_TO(done, st, dt_gradients_watch(s->g, s->w[i]));
        s->want[i] = dt_tensor_layout(s->w[i]);
        if (p->stage != WHOLE)
            DT_TRY_TO(done, st, dti_shard_over(s->want[i], shapes[i], 0, &s->want[i]));
    }
    (void)square;
    if (p->bucket > 0)
        DT_TRY_TO(done, st, dti_buckets_create(s->g, LEAVES, s->want, p->bucket, &s->r));
done:
    return st;
}

static dt_tensor *stack(dt_tape *t, const void *arg, int n, dt_tensor *const *in)
{
    net *const *s = arg;
    dt_tensor *y = in[0];

    (void)n;
    for (int i = 0; i <= BACK; i++)
        y = dt_tanh(t, dt_test_reduced(t, dt_linear(t, y, (*s)->w[i], NULL)));
    return dt_linear(t, y, (*s)->w[0], NULL);
}

/* Microbatches have different numbers of rows: the record is another one each time. */
static dt_status forward(net *s, dt_mesh *mesh, int pass, dt_tensor **loss)
{
    const dt_placement rows[] = { DT_SHARD(0), DT_REPLICATE };
    const int64_t shape[] = { 5 + 2 * pass, 6 };
    dt_tensor *x, *y, *none;

    DT_TRY(dt_randn(mesh, rows, DT_F32, 2, shape, (dt_random){ 4, (uint64_t)pass }, &x));
    x = dt_tape_own(s->t, x);
    dt_tape_record(s->t, s->g);
    y = s->p->again ? dt_recompute(s->t, stack, &s, sizeof s, 1, &x) : stack(s->t, &s, 1, &x);
    none = dt_sum(s->t, dt_linear(s->t, x, s->w[EMPTY], NULL), DT_ALL_AXES);
    y = dt_test_reduced(s->t, dt_sum(s->t, dt_mul(s->t, y, y), DT_ALL_AXES));
    *loss = dt_add(s->t, y, dt_test_reduced(s->t, none));
    return dt_tape_status(s->t);
}

static int64_t calls_of(const dt_tape *t, bool bytes)
{
    int64_t n = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter c = dt_tape_comm(t, (dt_comm_kind)k);
        n += bytes ? c.bytes : c.calls;
    }
    return n;
}

static void is_ready(void *arg, dt_tape *t, dt_tensor *leaf)
{
    net *s = arg;
    const dt_status st = dti_buckets_take(s->r, t, dti_leaf_number(s->g, leaf));

    if (st != DT_OK) (void)dti_tape_latch(t, st);
    s->calls_within = calls_of(t, false);
    s->told++;
    if (s->p->fails == s->told && dt_runtime_rank(dt_tape_runtime(t)) == 1)
        (void)dt_tape_fail(t, DT_ERR_IO, "the disk is gone");
}

static dt_status settle(net *s)
{
    for (int i = 0; i < LEAVES; i++) {
        dti_sum *sum = &s->g->leaves.at[i].sum;
        dt_tensor *y;
        DT_TRY(dti_sum_take(s->t, sum, s->want[i], &y));
        sum->part[0] = y;
    }
    return DT_OK;
}

static dt_status run_pass(net *s, dt_mesh *mesh, int pass, outcome *out)
{
    const bool travels = s->p->stage == ALL_CUT || pass == s->p->passes - 1;
    dt_backward_options options = { .ready = is_ready, .arg = s };
    dt_tensor *loss;
    int64_t calls, bytes;

    DT_TRY(forward(s, mesh, pass, &loss));
    calls = calls_of(s->t, false);
    bytes = calls_of(s->t, true);
    if (!travels || s->r == NULL) {
        dt_backward(s->t, loss, NULL);
        DT_TRY(dt_tape_status(s->t));
        if (travels) DT_TRY(settle(s));
    } else {
        dti_buckets_open(s->r);
        dt_backward(s->t, loss, &options);
        DT_TRY(dt_tape_status(s->t));
        DT_TRY(dti_buckets_close(s->r, s->t));
        out->calls_within = s->calls_within - calls;
    }
    out->calls += calls_of(s->t, false) - calls;
    out->bytes += calls_of(s->t, true) - bytes;
    dt_tape_reset(s->t);
    return DT_OK;
}

static dt_status run_step(dt_mesh *mesh, const plan *p, outcome *out)
{
    dt_status st;
    net s;

    memset(out, 0, sizeof *out);
    st = open_net(mesh, p, &s);
    for (int pass = 0; pass < p->passes && st == DT_OK; pass++) st = run_pass(&s, mesh, pass, out);
    if (st == DT_OK && s.r != NULL) st = dti_buckets_finish(s.r, NULL);
    for (int i = 0; i < LEAVES && st == DT_OK; i++) {
        dt_tensor *dw = dt_gradient(s.g, s.w[i]);
        if (i == UNUSED) {
            DT_EXPECT_TO(done, st, dw == NULL, "a gradient of what nobody read");
            continue;
        }
        DT_EXPECT_TO(done, st, dw != NULL && dt_tensor_layout(dw) == s.want[i],
                     "leaf %d lies otherwise", i);
        if (!dt_runtime_is_dry(dt_mesh_runtime(mesh)))
            DT_TRY_TO(done, st, dt_tensor_read(dw, out->bits[i], dti_tensor_bytes(dw)));
    }
done:
    close_net(&s);
    return st;
}

/* Where the terms of the parts of one leaf lie is all the same; so are the kinds of moves. */
static dt_status any_bucket(dt_mesh *mesh, const void *arg)
{
    static const int64_t buckets[] = { 1, 700, 1 << 20, INT64_MAX };
    const plan *p = arg;
    plan with = *p;
    DT_FREED outcome *plain = NULL, *got = NULL;

    DT_TRY(dti_new(sizeof *plain, &plain));
    DT_TRY(dti_new(sizeof *got, &got));
    with.bucket = 0;
    DT_TRY(run_step(mesh, &with, plain));
    for (size_t i = 0; i < DT_COUNT(buckets); i++) {
        with.bucket = buckets[i];
        DT_TRY(run_step(mesh, &with, got));
        DT_EXPECT(memcmp(plain->bits, got->bits, sizeof got->bits) == 0,
                  "other bits, stage %d, %d passes, buckets of %lld", (int)p->stage, p->passes,
                  (long long)buckets[i]);
        DT_EXPECT(got->bytes == plain->bytes && got->calls <= plain->calls,
                  "%lld bytes in %lld calls, alone %lld in %lld", (long long)got->bytes,
                  (long long)got->calls, (long long)plain->bytes, (long long)plain->calls);
        if (dt_mesh_dim_size(mesh, 0) > 1)
            DT_EXPECT(i > 1 || got->calls_within > 0, "all went after the pass");
    }
    return DT_OK;
}

static const plan plans[] = {
    { WHOLE, 1, 0, 0, 0 },     { WHOLE, 3, 0, 1, 0 },   { STATE_CUT, 1, 0, 1, 0 },
    { STATE_CUT, 3, 0, 0, 0 }, { ALL_CUT, 1, 0, 0, 0 }, { ALL_CUT, 3, 0, 1, 0 },
};

DT_TEST(buckets, bits_and_bytes_do_not_depend_on_buckets)
{
    static const char *const meshes[] = { "dp=1", "dp=2", "dp=3", "dp=4", "dp=2,tp=2" };

    for (size_t i = 0; i < DT_COUNT(plans); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], any_bucket, &plans[i]);
}

/* --- dry -------------------------------------------------------------------------------------- */

typedef struct counted {
    const plan *p;
    outcome *of; /* [MOST_RANKS], each rank its own */
} counted;

static dt_status count(dt_mesh *mesh, const void *arg)
{
    const counted *c = arg;

    return run_step(mesh, c->p, &c->of[dt_runtime_rank(dt_mesh_runtime(mesh))]);
}

DT_TEST(buckets, dry_runs_count_the_same)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    DT_FREED outcome *dry = NULL, *of = NULL;

    if (dt_test_processes() > 1) dt_test_skip("ranks compare in one process");
    DT_ASSERT_OK(dti_alloc_array(MOST_RANKS, sizeof *of, (void **)&of));
    DT_ASSERT_OK(dti_new(sizeof *dry, &dry));
    o.n_ranks = 3;
    for (size_t i = 0; i < DT_COUNT(plans); i++) {
        plan p = plans[i];
        p.bucket = 500;
        dt_test_on_ranks("dp=3", count, &(counted){ &p, of });
        for (int r = 0; r < 3; r++) {
            dt_runtime *rt;
            dt_mesh *mesh;
            DT_ASSERT_OK(dt_runtime_create_dry(&o, r, NULL, &rt));
            DT_ASSERT_OK(dt_mesh_create(rt, "dp=3", &mesh));
            DT_ASSERT_OK(run_step(mesh, &p, dry));
            DT_ASSERT_EQ_INT(dry->bytes, of[r].bytes);
            DT_ASSERT_EQ_INT(dry->calls, of[r].calls);
            dt_mesh_release(&mesh);
            dt_runtime_release_dry(&rt);
        }
    }
}

/* --- sums that nothing drops (Automodel lost them with each other shape) --------------------- */

/* Three microbatches of different shapes are the sum of three steps of one; the control: one of
 * them alone is not. */
static dt_status keeps_all(dt_mesh *mesh, const void *arg)
{
    const plan *p = arg;
    DT_FREED outcome *all = NULL;
    float worst = 0, control = 0;
    DT_ENDS(close_net) net s = { .p = p };

    DT_TRY(dti_new(sizeof *all, &all));
    DT_TRY(run_step(mesh, p, all));
    for (int leaf = 0; leaf <= BACK; leaf++) {
        float sum[LARGEST] = { 0 }, one[LARGEST];
        int64_t n = 1;
        for (int pass = 0; pass < p->passes; pass++) {
            dt_tensor *loss, *dw;
            DT_TRY(open_net(mesh, p, &s));
            DT_TRY(forward(&s, mesh, pass, &loss));
            dt_backward(s.t, loss, NULL);
            DT_TRY(settle(&s));
            dw = dt_gradient(s.g, s.w[leaf]);
            n = dti_tensor_count(dw);
            DT_TRY(dt_tensor_read(dw, one, dti_tensor_bytes(dw)));
            for (int64_t e = 0; e < n; e++) sum[e] += one[e];
            close_net(&s);
            s = (net){ .p = p };
        }
        for (int64_t e = 0; e < n; e++) {
            const float size = 1e-3f + (sum[e] < 0 ? -sum[e] : sum[e]);
            const float off = all->bits[leaf][e] - sum[e], other = all->bits[leaf][e] - one[e];
            if (off * off > worst * worst * size * size) worst = off / size;
            if (other * other > control * control) control = other;
        }
    }
    DT_EXPECT(worst * worst < 1e-8f, "sums of passes are %g off", (double)worst);
    DT_EXPECT(dt_mesh_n_ranks(mesh) > 2 || control * control > 1e-4f,
              "the last pass alone would do: %g", (double)control);
    return DT_OK;
}

DT_TEST(buckets, microbatches_of_other_shapes_drop_no_sums)
{
    for (stage s = WHOLE; s <= ALL_CUT; s++) {
        const plan p = { s, 3, 300, 0, 0 };
        dt_test_on_ranks("dp=1", keeps_all, &p);
        dt_test_on_ranks("dp=2", keeps_all, &p);
        dt_test_on_ranks("dp=4", keeps_all, &p);
    }
}

/* --- what fails ------------------------------------------------------------------------------- */

static dt_status one_step(dt_mesh *mesh, const void *arg)
{
    outcome *out;
    dt_status st;

    DT_TRY(dti_new(sizeof *out, &out));
    st = run_step(mesh, arg, out);
    dti_free(out);
    return st;
}

DT_TEST(buckets, a_rank_that_fails_within_a_pass_ends_all)
{
    for (int at = 1; at <= LEAVES; at += 2) {
        const plan p = { at > 3 ? ALL_CUT : WHOLE, 1, 1, at > 1, at };
        dt_test_on_ranks_fail("dp=2", one_step, &p, DT_ERR_IO, "the disk is gone");
        dt_test_on_ranks_fail("dp=4", one_step, &p, DT_ERR_IO, "the disk is gone");
    }
}

/* An error that all ranks have, in the middle of a pass: its buckets come to nothing, and the next
 * step has the bits that it would have had. */
static void fails_everywhere(void *arg, dt_tape *t, dt_tensor *leaf)
{
    net *s = arg;

    is_ready(arg, t, leaf);
    if (s->told == 3) (void)dt_tape_fail(t, DT_ERR_ARG, "not now");
}

static dt_status goes_on(dt_mesh *mesh, const void *arg)
{
    const plan *p = arg;
    DT_FREED outcome *got = NULL, *plain = NULL;
    dt_tensor *loss;
    DT_ENDS(close_net) net s = { .p = p };

    DT_TRY(dti_new(sizeof *plain, &plain));
    DT_TRY(dti_new(sizeof *got, &got));
    DT_TRY(run_step(mesh, p, plain));
    DT_TRY(open_net(mesh, p, &s));
    DT_TRY(forward(&s, mesh, 1, &loss));
    dti_buckets_open(s.r);
    dt_backward(s.t, loss, &(dt_backward_options){ .ready = fails_everywhere, .arg = &s });
    DT_EXPECT_STATUS(dt_tape_status(s.t), DT_ERR_ARG, "not now");
    dt_gradients_clear(s.g);
    dt_tape_reset(s.t);
    DT_TRY(run_pass(&s, mesh, 0, got));
    DT_TRY(dti_buckets_finish(s.r, NULL));
    for (int i = 0; i <= BACK; i++) {
        dt_tensor *dw = dt_gradient(s.g, s.w[i]);
        DT_TRY(dt_tensor_read(dw, got->bits[i], dti_tensor_bytes(dw)));
        DT_EXPECT(memcmp(got->bits[i], plain->bits[i], sizeof got->bits[i]) == 0,
                  "leaf %d has something of the pass that failed", i);
    }
    return DT_OK;
}

DT_TEST(buckets, a_pass_that_failed_leaves_nothing)
{
    for (stage s = WHOLE; s <= ALL_CUT; s++) {
        const plan p = { s, 1, 1, 0, 0 };
        dt_test_on_ranks("dp=1", goes_on, &p);
        dt_test_on_ranks("dp=2", goes_on, &p);
        dt_test_on_ranks("dp=3", goes_on, &p);
    }
}

/* --- the order of events ---------------------------------------------------------------------- */

/* When the pass ended, and what of the transfers had then. */
typedef struct seen {
    int64_t pass_ends, bytes, first_begins, first_ends;
    int transfers;
} seen;

static dt_status step_on_line(dt_mesh *mesh, const plan *p, seen *s)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_timeline_event e;
    outcome *out;
    dt_status st;

    *s = (seen){ 0 };
    DT_TRY(dti_new(sizeof *out, &out));
    dt_timeline_start(rt);
    st = run_step(mesh, p, out);
    dt_timeline_stop(rt);
    for (int64_t i = 0; st == DT_OK && dt_timeline_at(rt, i, &e); i++) {
        if (s->pass_ends == 0 && strcmp(e.name, "backward") == 0) s->pass_ends = e.end_ns;
        if (e.lane != DT_LANE_TRANSFERS) continue;
        if (s->transfers++ == 0) {
            s->first_begins = e.begin_ns;
            s->first_ends = e.end_ns;
        }
        s->bytes += e.bytes;
    }
    /* of three ranks each tensor's share is rounded down, not the bucket's */
    if (st == DT_OK && (out->bytes > s->bytes ? out->bytes - s->bytes > 8 * LEAVES
                                              : s->bytes - out->bytes > 8 * LEAVES))
        st =
            dt_test_unexpected(__func__, __FILE__, __LINE__, "bytes", "%lld on the line, %lld sent",
                               (long long)s->bytes, (long long)out->bytes);
    dti_free(out);
    return st;
}

/* Four buckets at most are under way, so with one for each leaf the first has arrived before the
 * pass has ended, however slow the links; with one for all nothing sets out before. */
static dt_status overlaps(dt_mesh *mesh, const void *arg)
{
    plan p = { WHOLE, 1, 1, 0, 0 };
    seen s;

    (void)arg;
    DT_TRY(step_on_line(mesh, &p, &s));
    DT_EXPECT(s.transfers > 4 && s.pass_ends > 0, "%d transfers", s.transfers);
    DT_EXPECT(s.first_ends < s.pass_ends, "the first arrived %lld ns after the pass",
              (long long)(s.first_ends - s.pass_ends));
    p.bucket = INT64_MAX;
    DT_TRY(step_on_line(mesh, &p, &s));
    DT_EXPECT(s.transfers == 1 && s.first_begins > s.pass_ends, "%d transfers, within the pass",
              s.transfers);
    return DT_OK;
}

DT_TEST(buckets, arrive_while_the_pass_goes_on)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.links = "dp=3000,1";
    DT_ASSERT_OK(dt_test_run(&o, "dp=2", overlaps, NULL));
    DT_ASSERT_OK(dt_test_run(&o, "dp=3", overlaps, NULL));
}
