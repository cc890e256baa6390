/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves that are begun and waited for: the bits of dt_redistribute(), while ranks do other
 * things, in any order of waits; dropped ones; and how ranks that fail, leave or never come end
 * the wait. */
#include <dtensor/async.h>
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/half.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "tests/support/dt_test.h"

enum { MS = 1000 * 1000 };

static void sleep_ms(int ms)
{
    (void)nanosleep(&(struct timespec){ ms / 1000, (long)(ms % 1000) * MS }, NULL);
}

/* Both pieces have the same bytes. */
static dt_status same_bytes(const dt_tensor *a, const dt_tensor *b)
{
    const dt_local *x = dt_tensor_local(a), *y = dt_tensor_local(b);
    size_t bytes = dt_dtype_size(x->dtype);

    DT_EXPECT(dt_tensor_layout(a) == dt_tensor_layout(b), "layouts differ");
    for (int i = 0; i < x->n_axes; i++) bytes *= (size_t)x->shape[i];
    DT_EXPECT(bytes == 0 || memcmp(x->data, y->data, bytes) == 0, "%zu bytes differ", bytes);
    return DT_OK;
}

/* Every layout to every other one, all begun before the first is waited for, from the last one on.
 */
typedef struct pairs {
    dt_dtype dtype;
    int n;
    const char *layout[6];
} pairs;

static dt_status all_pairs(dt_mesh *mesh, const void *arg)
{
    enum { MOST = 36 };
    const pairs *c = arg;
    const int64_t shape[] = { 13, 12 };
    dt_tensor *x[6], *want[MOST], *got;
    dt_pending *pending[MOST];
    int n = 0;

    for (int i = 0; i < c->n; i++) {
        const dt_layout *layout;
        DT_TRY(dt_layout_parse(mesh, 2, c->layout[i], &layout));
        DT_TRY(dt_empty_laid(mesh, layout, c->dtype, shape, &x[i]));
        if (strchr(c->layout[i], 'P') == NULL) {
            DT_TRY(dt_fill_randint(x[i], (dt_random){ 5, 0 }, -40, 40));
            continue;
        }
        const dt_local *l = dt_tensor_local(x[i]); /* terms that do not fit into bf16 exactly */
        float terms[13 * 12];
        int64_t k = l->shape[0] * l->shape[1];
        for (int64_t e = 0; e < k; e++)
            terms[e] = 1.01f * (float)((e * 7 + 3 * dt_group_place(mesh, NULL)) % 31 - 15);
        DT_TRY(dt_convert(l->data, c->dtype, terms, DT_F32, k));
    }
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->n; j++) {
            dt_placement place[DT_MAX_DIMS];
            (void)dt_layout_placements(dt_tensor_layout(x[j]), place);
            if (strchr(c->layout[j], 'P') != NULL && i != j) continue;
            DT_TRY(dt_redistribute(x[i], place, &want[n]));
            DT_TRY(dt_redistribute_begin(x[i], place, &pending[n]));
            n++;
        }
    for (int i = 0; i < c->n; i++) dt_tensor_release(&x[i]); /* the moves hold them */
    for (int i = n - 1; i >= 0; i--) {
        DT_TRY(dt_pending_wait(&pending[i], &got));
        DT_EXPECT(pending[i] == NULL, "the pending move is gone");
        DT_TRY(same_bytes(got, want[i]));
        dt_tensor_release(&got);
        dt_tensor_release(&want[i]);
    }
    return DT_OK;
}

DT_TEST(overlap, moves_give_the_bits_of_redistribute)
{
    static const pairs line[] = {
        { DT_F32, 6, { "S(0)", "S(1)", "R", "P(sum)", "S(0,blocks=6:7)", "S(1,unit=4)" } },
        { DT_BF16, 4, { "S(0)", "R", "P(sum)", "P(avg)" } },
        { DT_I64, 3, { "S(1)", "R", "S(0)" } },
    };
    static const pairs square[] = {
        { DT_F32, 5, { "S(0)S(0)", "S(1)S(0)", "RR", "P(sum)P(sum)", "S(0)[1]S(0)[0]" } },
        { DT_F16, 4, { "P(sum)S(0)", "RS(1)", "RR", "S(0)P(sum)" } },
    };

    for (size_t i = 0; i < DT_COUNT(line); i++)
        for (int n = 1; n <= 4; n++) {
            char spec[8];
            (void)snprintf(spec, sizeof spec, "tp=%d", n);
            dt_test_on_ranks(spec, all_pairs, &line[i]);
        }
    for (size_t i = 0; i < DT_COUNT(square); i++) {
        dt_test_on_ranks("dp=2,tp=2", all_pairs, &square[i]);
        dt_test_on_ranks("dp=3,tp=2", all_pairs, &square[i]);
    }
}

/* Nobody calls the library between begin and done. */
static dt_status by_itself(dt_mesh *mesh, const void *arg)
{
    const dt_placement term[] = { DT_PARTIAL(DT_SUM) }, whole[] = { DT_REPLICATE };
    const float one[4] = { 1, 2, 3, 4 };
    const int64_t shape[] = { 4 };
    const int64_t begin = dti_now_ns();
    dt_pending *p;
    dt_tensor *x, *y;

    (void)arg;
    DT_TRY(dt_from_local(mesh, term, DT_F32, 1, shape, one, &x));
    DT_TRY(dt_redistribute_begin(x, whole, &p));
    dt_tensor_release(&x);
    while (!dt_pending_is_done(p) && dti_now_ns() - begin < (int64_t)15000 * MS) sleep_ms(1);
    DT_EXPECT(dt_pending_is_done(p), "it does not travel by itself");
    DT_TRY(dt_pending_wait(&p, &y));
    DT_EXPECT_CLOSE(((const float *)dt_tensor_local(y)->data)[3], 4 * dt_mesh_n_ranks(mesh), 0);
    dt_tensor_release(&y);
    return DT_OK;
}

DT_TEST(overlap, a_move_travels_while_its_rank_is_elsewhere)
{
    dt_test_on_ranks("tp=1", by_itself, NULL);
    dt_test_on_ranks("tp=2", by_itself, NULL);
    dt_test_on_ranks("tp=4", by_itself, NULL);
}

/* Rank 0 waits for its move with a collective started that rank 1 waits for before it begins. */
static dt_status crossed(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 6 };
    float sum = 1;
    dt_request *r;
    dt_pending *p;
    dt_tensor *x, *y;

    (void)arg;
    DT_TRY(dt_ones(mesh, rows, DT_F32, 1, shape, &x));
    DT_TRY(dt_collective_start(
        mesh, NULL,
        &(dt_collective){ .op = DT_CALL_ALL_REDUCE, .send = &sum, .recv = &sum, .count = 1 }, &r));
    if (dt_mesh_coord(mesh, 0) == 1) DT_TRY(dt_collective_wait(&r));
    DT_TRY(dt_redistribute_begin(x, whole, &p));
    DT_TRY(dt_pending_wait(&p, &y));
    DT_TRY(dt_collective_wait(&r));
    DT_EXPECT_CLOSE(sum, 2, 0);
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    return DT_OK;
}

DT_TEST(overlap, who_waits_for_a_move_does_its_part_elsewhere)
{
    dt_test_on_ranks("tp=2", crossed, NULL);
}

/* --- the tape --------------------------------------------------------------------------------- */

static dt_status on_the_tape(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 12, 3 };
    const int64_t live = dt_runtime_live(dt_mesh_runtime(mesh));
    const int64_t calls = dt_mesh_n_ranks(mesh) > 1 ? 3 : 0;
    dt_comm_counter counted;
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y = NULL, *z;
    dt_pending *p, *left;
    dt_tape *t;

    (void)arg;
    DT_TRY(dt_rand(mesh, rows, DT_F32, 2, shape, (dt_random){ 1, 2 }, &x));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int round = 0; round < 3; round++) {
        dt_scope_begin(t, "inner");
        p = dt_move_begin(t, x, whole);
        left = dt_move_begin(t, x, whole); /* which nobody waits for */
        y = dt_move(t, x, whole);
        counted = dt_tape_comm(t, DT_COMM_ALL_GATHER);
        DT_EXPECT(counted.calls == calls && left != NULL, "%d calls", (int)counted.calls);
        DT_EXPECT(counted.bytes % 3 == 0, "counted alike");
        y = dt_scope_end(t, y);
        z = dt_move_wait(t, p);
        DT_TRY(dt_tape_status(t));
        DT_TRY(same_bytes(y, z));
        dt_tape_reset(t);
    }
    DT_EXPECT(dt_move_begin(t, NULL, whole) == NULL, "an error");
    DT_EXPECT(dt_move_wait(t, NULL) == NULL, "nothing to wait for");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "dt_move_begin: x or want is NULL");
    dt_tape_reset(t);
    DT_EXPECT(dt_move_wait(t, NULL) == NULL, "nothing to wait for");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG, "dt_move_wait: the pending move is NULL");
    dt_tape_reset(t);
    p = dt_move_begin(t, x, whole);
    dt_tape_fail(t, DT_ERR_ARG, "a later one");
    DT_EXPECT(dt_move_wait(t, p) == NULL, "the tape is down");
    dt_tape_release(&t); /* drops it */
    DT_TRY(dt_redistribute(x, rows, &y));
    dt_tensor_release(&y);
    for (int i = 0; i < 2000 && dt_runtime_live(dt_mesh_runtime(mesh)) > live + 1; i++) {
        DT_TRY(dt_redistribute_begin(x, rows, &p)); /* nothing to move; looks after */
        dt_pending_release(&p);                     /* those that were dropped */
        sleep_ms(1);
    }
    return DT_OK;
}

DT_TEST(overlap, a_tape_owns_what_it_has_begun)
{
    dt_test_on_ranks("tp=1", on_the_tape, NULL);
    dt_test_on_ranks("tp=3", on_the_tape, NULL);
}

/* --- misuse, and the end ------------------------------------------------------------------------
 */

static dt_status mistakes(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, bad[] = { DT_SHARD(3) };
    const dt_placement term[] = { DT_PARTIAL(DT_SUM) };
    const int64_t shape[] = { 4 };
    dt_pending *p = NULL;
    dt_tensor *x, *y;

    (void)arg;
    DT_TRY(dt_ones(mesh, rows, DT_F32, 1, shape, &x));
    DT_EXPECT_STATUS(dt_redistribute_begin(NULL, rows, &p), DT_ERR_ARG, "x or want is NULL");
    DT_EXPECT_STATUS(dt_redistribute_begin(x, rows, NULL), DT_ERR_ARG, "out is NULL");
    DT_EXPECT_STATUS(dt_redistribute_begin(x, bad, &p), DT_ERR_LAYOUT, NULL);
    DT_EXPECT_STATUS(dt_redistribute_begin(x, term, &p), DT_ERR_LAYOUT, NULL);
    DT_EXPECT_STATUS(dt_pending_wait(&p, &y), DT_ERR_ARG, "the pending move or y is NULL");
    DT_EXPECT(p == NULL && dt_pending_is_done(NULL), "nothing is under way");
    dt_pending_release(&p);
    DT_TRY(dt_redistribute_begin(x, rows, &p)); /* as it lies */
    DT_TRY(dt_pending_wait(&p, &y));
    DT_EXPECT(y == x, "one more reference of x");
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return DT_OK;
}

DT_TEST(overlap, mistakes_begin_nothing)
{
    dt_test_on_ranks("tp=2", mistakes, NULL);
}

typedef struct ending {
    dt_pending *pending[2];
    dt_tensor *x[2];
    dt_mesh *mesh[2];
} ending;

static dt_status leave_pending(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 1 << 16 };
    ending *e = arg;
    const int r = dt_runtime_rank(rt);

    DT_TRY(dt_mesh_create(rt, "tp=2", &e->mesh[r]));
    DT_TRY(dt_ones(e->mesh[r], rows, DT_F32, 1, shape, &e->x[r]));
    if (r == 1) sleep_ms(20); /* the other has returned by then */
    DT_TRY(dt_redistribute_begin(e->x[r], whole, &e->pending[r]));
    return DT_OK;
}

DT_TEST(overlap, the_end_of_a_run_awaits_what_travels)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    ending e = { 0 };
    dt_tensor *y;

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = 2;
    DT_ASSERT_OK(dt_run(&o, leave_pending, &e));
    DT_ASSERT(dt_pending_is_done(e.pending[0]));
    DT_ASSERT_STATUS(dt_pending_wait(&e.pending[0], &y), DT_ERR_ARG, "has ended");
    dt_pending_release(&e.pending[1]);
    for (int r = 0; r < 2; r++) {
        dt_tensor_release(&e.x[r]);
        dt_mesh_release(&e.mesh[r]);
    }
}

static void see_line(void *arg, dt_log_level level, int rank, const char *line)
{
    (void)level, (void)rank;
    if (strstr(line, "outlive") != NULL) atomic_fetch_add((_Atomic int *)arg, 1);
}

static dt_status drop_pending(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 1 << 16 };
    dt_pending *p;
    dt_tensor *x;
    dt_mesh *mesh;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "tp=2", &mesh));
    DT_TRY(dt_ones(mesh, rows, DT_F32, 1, shape, &x));
    if (dt_runtime_rank(rt) == 1) sleep_ms(20);
    DT_TRY(dt_redistribute_begin(x, whole, &p));
    dt_pending_release(&p);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return DT_OK;
}

DT_TEST(overlap, what_was_dropped_is_gone_at_the_end)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    _Atomic int lines = 0;

    o.n_ranks = 2;
    o.log = see_line;
    o.log_arg = &lines;
    DT_ASSERT_OK(dt_run(&o, drop_pending, NULL));
    DT_ASSERT_EQ_INT(lines, 0);
}

/* --- bytes that are written while they travel ------------------------------------------------- */

/* Rank 1 comes late: what rank 0 writes meanwhile is no part of what either gathers. */
static dt_status write_behind(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    const float after[] = { 7, 7 };
    float got[4] = { 0 };
    DT_HELD(tensor) *x = NULL, *y = NULL;
    dt_pending *p = NULL;

    (void)arg;
    DT_TRY(dt_ones(mesh, rows, DT_F32, 1, (const int64_t[]){ 4 }, &x));
    if (dt_mesh_coord(mesh, 0) == 1) sleep_ms(50);
    DT_TRY(dt_redistribute_begin(x, whole, &p));
    DT_TRY(dt_tensor_write(x, after, sizeof after));
    DT_TRY(dt_pending_wait(&p, &y));
    DT_TRY(dt_tensor_read(y, got, sizeof got));
    for (int i = 0; i < 4; i++) DT_EXPECT(got[i] == 1.0f, "[%d] is %g", i, (double)got[i]);
    return DT_OK;
}

DT_TEST(overlap, a_write_waits_for_moves_that_read)
{
    dt_test_on_ranks("tp=2", write_behind, NULL);
}

/* --- ranks that fail -------------------------------------------------------------------------- */

typedef enum how { LEAVES, FAILS, IS_LATE, DIFFERS } how;

static dt_status one_of_two(dt_mesh *mesh, const void *arg)
{
    const how h = *(const how *)arg;
    const bool culprit = dt_mesh_coord(mesh, 0) == 1;
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE },
                       cols[] = { DT_SHARD(1) };
    const int64_t shape[] = { 4, 4 };
    dt_status st = DT_OK;
    dt_pending *p = NULL;
    dt_tensor *x = NULL, *y = NULL;

    if (h == IS_LATE) DT_TRY(dt_mesh_set_timeout(mesh, 200));
    DT_TRY(dt_ones(mesh, rows, DT_F32, 2, shape, &x));
    if (culprit && h == FAILS) {
        sleep_ms(20);
        st = dt_fail(DT_ERR_IO, "the disk is gone");
    } else if (culprit && h == IS_LATE) {
        sleep_ms(1500);
    } else if (!culprit || h == DIFFERS) {
        st = dt_redistribute_begin(x, culprit ? cols : whole, &p);
        if (st == DT_OK) st = dt_pending_wait(&p, &y);
    }
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return st;
}

DT_TEST(overlap, waits_end_when_a_rank_fails_leaves_or_is_late)
{
    static const how all[] = { LEAVES, FAILS, IS_LATE, DIFFERS };
    dt_run_options checked = DT_TEST_RUN_OPTIONS;

    dt_test_on_ranks_fail("tp=2", one_of_two, &all[0], DT_ERR_COMM, "rank 1 has left");
    dt_test_on_ranks_fail("tp=2", one_of_two, &all[1], DT_ERR_IO, "the disk is gone");
    dt_test_on_ranks_fail("tp=2", one_of_two, &all[2], DT_ERR_COMM, "after 200 ms");
    checked.check = "agree"; /* a release build compares nothing of itself */
    DT_ASSERT_STATUS(dt_test_run(&checked, "tp=2", one_of_two, &all[3]), DT_ERR_ARG, "differs");
}

/* Rank 1 fails and stays in its function until rank 0 has heard of it. */
static dt_status fails_and_stays(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, whole[] = { DT_REPLICATE };
    _Atomic int *heard = *(_Atomic int *const *)arg;
    const int64_t shape[] = { 4 };
    dt_status st = DT_OK;
    dt_pending *p = NULL;
    dt_tensor *x = NULL, *y = NULL;
    dt_tape *t = NULL;

    DT_TRY(dt_ones(mesh, rows, DT_F32, 1, shape, &x));
    if (dt_mesh_coord(mesh, 0) == 0) {
        st = dt_redistribute_begin(x, whole, &p);
        if (st == DT_OK) st = dt_pending_wait(&p, &y);
        atomic_store(heard, 1);
    } else {
        DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
        (void)dt_tape_fail(t, DT_ERR_IO, "the disk is gone");
        for (int i = 0; i < 12000 && atomic_load(heard) == 0; i++) sleep_ms(1);
        st = dt_tape_status(t);
        dt_tape_release(&t);
        if (atomic_load(heard) == 0) st = dt_fail(DT_ERR_INTERNAL, "nobody heard of it");
        if (atomic_load(heard) == 1) atomic_store(heard, 2);
    }
    dt_tensor_release(&x);
    return st;
}

DT_TEST(overlap, a_failure_reaches_those_who_wait_for_a_move_at_once)
{
    _Atomic int heard = 0, *const arg = &heard;

    if (dt_test_processes() > 1) dt_test_skip("a rank hears of the other in memory of one process");
    dt_test_on_ranks_fail("tp=2", fails_and_stays, &arg, DT_ERR_IO, "the disk is gone");
    DT_ASSERT_EQ_INT(heard, 2);
}

/* Steps that repeat take no more memory. */
static dt_status many_steps(dt_mesh *mesh, const void *arg)
{
    const dt_placement term[] = { DT_PARTIAL(DT_SUM) }, rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 1024 };
    float *values = NULL;
    dt_tensor *x[4], *y[4];
    dt_pending *p[4];

    (void)arg;
    for (int i = 0; i < 4; i++) {
        DT_TRY(dt_from_local(mesh, term, DT_F32, 1, shape,
                             (const float[1024]){ [0] = (float)i, [1023] = (float)(2 * i) },
                             &x[i]));
    }
    for (int step = 0; step < 50; step++) {
        for (int i = 0; i < 4; i++) DT_TRY(dt_redistribute_begin(x[i], rows, &p[i]));
        for (int i = 0; i < 4; i++) DT_TRY(dt_pending_wait(&p[(i + step) % 4], &y[(i + step) % 4]));
        for (int i = 0; i < 4; i++) {
            const dt_local *l = dt_tensor_local(y[i]);
            const bool first = l->offset[0] == 0;
            values = l->data;
            if (l->shape[0] > 0)
                DT_EXPECT_CLOSE(first ? values[0] : values[l->shape[0] - 1],
                                (first ? 1 : 2) * i * dt_mesh_n_ranks(mesh), 0);
            dt_tensor_release(&y[i]);
        }
    }
    for (int i = 0; i < 4; i++) dt_tensor_release(&x[i]);
    return DT_OK;
}

DT_TEST(overlap, steps_repeat)
{
    dt_test_on_ranks("tp=2", many_steps, NULL);
}
