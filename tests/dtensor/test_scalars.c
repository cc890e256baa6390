/* SPDX-License-Identifier: Apache-2.0
 *
 * What operators make of layouts where PyTorch's were silently wrong: numbers and Partial, means of
 * uneven and empty pieces, operands that are cut at different rows. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>

#include <math.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* --- numbers and terms, case 76 --------------------------------------------------------------- */

typedef struct number_case {
    dt_placement place;
    bool add, mul; /* accepted */
} number_case;

/* Every rank's term is 1, 2, ..., n of three elements. */
static dt_status numbers(dt_mesh *mesh, const void *arg)
{
    const number_case *c = arg;
    const dt_placement place[2] = { DT_REPLICATE, c->place },
                       whole[2] = { DT_REPLICATE, DT_REPLICATE };
    const float mine = (float)(dt_mesh_coord(mesh, 1) + 1);
    const float terms[] = { mine, mine, mine };
    const int64_t n = 3;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    double before, after;

    DT_TRY(dt_from_local(mesh, place, DT_F32, 1, &n, terms, &x));
    y = dt_move(t, x, whole);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_item(y, (const int64_t[]){ 1 }, &before));
    dt_tape_reset(t);
    for (int op = 0; op < 2; op++) {
        const bool accepted = op == 0 ? c->add : c->mul;
        y = op == 0 ? dt_add_scalar(t, x, 10.0) : dt_mul_scalar(t, x, -3.0);
        if (!accepted) {
            DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "redistribute it first");
            dt_tape_reset(t);
            continue;
        }
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls == 0,
                  "the operator moved something");
        y = dt_move(t, y, whole);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_item(y, (const int64_t[]){ 1 }, &after));
        DT_EXPECT(after == (op == 0 ? before + 10.0 : before * -3.0), "%g became %g", before,
                  after);
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(scalars, a_number_is_added_once)
{
    const number_case cases[] = {
        { DT_PARTIAL(DT_SUM), true, true },    { DT_PARTIAL(DT_AVG), true, true },
        { DT_PARTIAL(DT_MAX), true, false },   { DT_PARTIAL(DT_MIN), true, false },
        { DT_PARTIAL(DT_PROD), false, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dt_test_on_ranks("dp=1,tp=2", numbers, &cases[i]);
        dt_test_on_ranks("dp=1,tp=4", numbers, &cases[i]);
        dt_test_on_ranks("dp=2,tp=3", numbers, &cases[i]);
    }
}

/* Terms over two mesh dims, one of a sum and one of an average. */
static dt_status mixture(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[] = { DT_PARTIAL(DT_AVG), DT_PARTIAL(DT_SUM) };
    const float one = 1.0f;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *full = NULL;

    (void)arg;
    DT_TRY(dt_from_local(mesh, place, DT_F32, 0, NULL, &one, &x));
    DT_TRY(dt_full_tensor(dt_add_scalar(t, x, 0.5), &full));
    DT_EXPECT(((float *)dt_tensor_local(full)->data)[0] == 3.5f, "%g",
              (double)((float *)dt_tensor_local(full)->data)[0]);
    return DT_OK;
}

DT_TEST(scalars, sums_of_averages_get_it_once)
{
    dt_test_on_ranks("dp=2,tp=3", mixture, NULL);
}

/* Numbers that change make no new decisions. */
static dt_status decides_once(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int64_t n = 5;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    uint64_t first = 0, last = 0;

    (void)arg;
    DT_TRY(dt_ones(mesh, &rows, DT_F32, 1, &n, &x));
    for (int i = 0; i < 20; i++) {
        (void)dt_mul_scalar(t, x, (double)i);
        dt_op_counts(dt_mesh_runtime(mesh), NULL, i == 0 ? &first : &last);
        dt_tape_reset(t);
    }
    DT_EXPECT(first == last, "%d misses", (int)(last - first));
    return DT_OK;
}

DT_TEST(scalars, values_are_no_part_of_decisions) /* PyTorch issue 153603 */
{
    dt_test_on_ranks("tp=2", decides_once, NULL);
}

/* --- means ------------------------------------------------------------------------------------ */

typedef struct mean_case {
    int64_t shape[2];
    int axis;
    double first; /* element 0 of the mean of 0, 1, 2, ... */
} mean_case;

static dt_status means(dt_mesh *mesh, const void *arg)
{
    const mean_case *c = arg;

    for (int cut = -1; cut < 2; cut++)
        for (int dtype = DT_F32; dtype <= DT_F16; dtype++) {
            const dt_placement place = cut < 0 ? DT_REPLICATE : DT_SHARD(cut);
            dt_status st = DT_OK;
            dt_tape *t = NULL;
            dt_tensor *x = NULL, *full = NULL;
            double v = -1.0;
            DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
            DT_TRY_TO(
                done, st,
                dt_arange(mesh, &place, (dt_dtype)dtype, 2, c->shape, (dt_steps){ 0, 1 }, &x));
            DT_TRY_TO(done, st, dt_full_tensor(dt_mean(t, x, c->axis), &full));
            v = (double)dti_load_f32(dt_tensor_local(full)->data, dt_tensor_local(full)->dtype, 0);
            DT_EXPECT_TO(done, st, v == c->first, "mean over %d of [%d, %d], cut %d: %g", c->axis,
                         (int)c->shape[0], (int)c->shape[1], cut, v);
        done:
            dt_tensor_release(&full);
            dt_tensor_release(&x);
            dt_tape_release(&t);
            if (st != DT_OK) return st;
        }
    return DT_OK;
}

DT_TEST(scalars, means_count_global_elements) /* case 76, PyTorch issue 162692 */
{
    static const mean_case cases[] = {
        { { 3, 4 }, DT_ALL_AXES, 5.5 }, { { 1, 4 }, DT_ALL_AXES, 1.5 }, { { 5, 3 }, 0, 6.0 },
        { { 5, 3 }, -1, 1.0 },          { { 1, 1 }, 0, 0.0 },
    };
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "tp=8" };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], means, &cases[i]);
}

/* Ranks without rows have -inf and inf to say of largest and smallest; NaN wins wherever it is. */
static dt_status extremes(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int64_t n = 3, none = 0;
    const float values[] = { -2.0f, -7.0f, -5.0f }, odd[] = { 1.0f, NAN, 2.0f };
    dt_status st = DT_OK;
    dt_tape *t = NULL;
    dt_tensor *x = NULL, *y = NULL, *empty = NULL, *full[3] = { NULL, NULL, NULL };
    const dt_source source = { values, DT_EQUAL_COPIES }, nan = { odd, DT_EQUAL_COPIES };

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_distribute(mesh, &rows, DT_F32, 1, &n, source, &x));
    DT_TRY_TO(done, st, dt_distribute(mesh, &rows, DT_F32, 1, &n, nan, &y));
    DT_TRY_TO(done, st, dt_full_tensor(dt_max(t, x, 0), &full[0]));
    DT_TRY_TO(done, st, dt_full_tensor(dt_min(t, x, DT_ALL_AXES), &full[1]));
    DT_TRY_TO(done, st, dt_full_tensor(dt_max(t, y, -1), &full[2]));
    DT_EXPECT_TO(done, st, ((float *)dt_tensor_local(full[0])->data)[0] == -2.0f, "max");
    DT_EXPECT_TO(done, st, ((float *)dt_tensor_local(full[1])->data)[0] == -7.0f, "min");
    DT_EXPECT_TO(done, st, isnan(((float *)dt_tensor_local(full[2])->data)[0]), "NaN was lost");
    DT_TRY_TO(done, st, dt_zeros(mesh, &rows, DT_F32, 1, &none, &empty));
    (void)dt_max(t, empty, 0);
    DT_TRY_TO(done, st,
              dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_SHAPE,
                                    "max over axis 0, which has no elements"));
    dt_tape_reset(t);
    (void)dt_sum(t, x, 1);
    DT_TRY_TO(done, st,
              dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                                    "sum: axis 1 of a tensor of 1 axes"));
done:
    for (int i = 0; i < 3; i++) dt_tensor_release(&full[i]);
    dt_tensor_release(&empty);
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    dt_tape_release(&t);
    return st;
}

DT_TEST(scalars, largest_and_smallest_with_empty_pieces)
{
    dt_test_on_ranks("tp=1", extremes, NULL);
    dt_test_on_ranks("tp=2", extremes, NULL);
    dt_test_on_ranks("tp=4", extremes, NULL);
}

/* --- boundaries, case 78 ---------------------------------------------------------------------- */

typedef struct cut_case {
    dt_placement a[2], b[2];
    bool fits;
} cut_case;

static dt_status boundaries(dt_mesh *mesh, const void *arg)
{
    const cut_case *c = arg;
    const int64_t shape[] = { 7, 2 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *a = NULL, *b = NULL, *full = NULL;
    dt_tensor *sum;

    DT_TRY(dt_arange(mesh, c->a, DT_F32, 2, shape, (dt_steps){ 0, 0.25 }, &a));
    DT_TRY(dt_arange(mesh, c->b, DT_F32, 2, shape, (dt_steps){ 0, 0.75 }, &b));
    (void)dt_add(t, a, b);
    if (c->fits)
        DT_TRY(dt_tape_status(t));
    else
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "redistribute");
    dt_tape_reset(t);
    dt_tape_set_moves(t, DT_MOVES_ALLOW); /* asked for, it moves and is right */
    sum = dt_add(t, a, b);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(sum, &full));
    DT_TRY(dt_test_expect_arange(full));
    return DT_OK;
}

DT_TEST(scalars, operands_cut_at_other_rows_are_refused_or_moved)
{
    const dt_placement uneven = DT_SHARD_OFFSETS(0, 0, 1, 7), even = DT_SHARD_OFFSETS(0, 0, 4, 7);
    const cut_case cases[] = {
        { { DT_SHARD(0), DT_REPLICATE }, { DT_SHARD(0), DT_REPLICATE }, true },
        { { DT_SHARD(0), DT_REPLICATE }, { DT_SHARD_UNITS(0, 3), DT_REPLICATE }, false },
        { { DT_SHARD(0), DT_REPLICATE }, { uneven, DT_REPLICATE }, false },
        { { even, DT_REPLICATE }, { uneven, DT_REPLICATE }, false },
        { { uneven, DT_REPLICATE }, { uneven, DT_REPLICATE }, true },
        { { DT_SHARD(0), DT_SHARD(0) }, { DT_SHARD(0), DT_SHARD(0) }, true },
        { { DT_SHARD(0), DT_SHARD(0) }, { DT_SHARD_NTH(0, 1), DT_SHARD_NTH(0, 0) }, false },
        { { DT_SHARD(0), DT_REPLICATE }, { DT_REPLICATE, DT_SHARD(0) }, false },
        { { DT_SHARD_PACKED(0, 3, 4), DT_REPLICATE }, { DT_SHARD(0), DT_REPLICATE }, false },
        { { DT_SHARD_PACKED(0, 3, 4), DT_REPLICATE },
          { DT_SHARD_PACKED(0, 3, 4), DT_REPLICATE },
          true },
        { { DT_SHARD(0), DT_REPLICATE }, { DT_SHARD(1), DT_REPLICATE }, false },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("dp=2,tp=2", boundaries, &cases[i]);
}

/* --- long rows -------------------------------------------------------------------------------- */

enum { PIECE = 8192, N_PIECES = 20 };

static float value_at(const dt_tensor *x, int64_t i)
{
    return ((const float *)dt_tensor_local(x)->data)[i];
}

/* Ones after 2^54 are lost one by one, and count where they were added up first: whole pieces of a
 * row are, so that they can be shared by any number of threads with the same bits. The first and
 * the last piece lose those that are in a lane, one of eight, with +-2^54. */
static dt_status sums_of_pieces(dt_tape *t, dt_tensor *x)
{
    const int64_t n_rows = dt_tensor_extent(x, 0), n = dt_tensor_extent(x, 1);
    const int axis = n_rows == 1 ? DT_ALL_AXES : 1;
    const double want = PIECE * (N_PIECES - 2) + 2 * (PIECE / 8 * 7);
    dt_tensor *sum, *most, *least;

    for (int64_t r = 0; r < n_rows; r++) {
        float *row = (float *)dt_tensor_local(x)->data + r * n;
        row[0] = 0x1p54f;
        row[n - 1] = -0x1p54f;
    }
    sum = dt_sum(t, x, axis);
    most = dt_max(t, x, axis);
    least = dt_min(t, x, axis);
    DT_TRY(dt_tape_status(t));
    for (int64_t r = 0; r < n_rows; r++) {
        DT_EXPECT_CLOSE(value_at(sum, r), want, 0.25 * PIECE);
        DT_EXPECT(value_at(sum, r) == value_at(sum, 0), "equal rows have equal bits");
        DT_EXPECT(value_at(most, r) == 0x1p54f, "max %g", (double)value_at(most, r));
        DT_EXPECT(value_at(least, r) == -0x1p54f, "min %g", (double)value_at(least, r));
    }
    return DT_OK;
}

/* A NaN in any piece is the largest and the smallest. */
static dt_status extremes_of_pieces(dt_tape *t, dt_tensor *x)
{
    dt_tensor *most, *least;

    ((float *)dt_tensor_local(x)->data)[3 * PIECE + 77] = (float)NAN;
    most = dt_max(t, x, 1);
    least = dt_min(t, x, 1);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(isnan(value_at(most, 0)) && isnan(value_at(least, 0)), "a NaN is lost");
    return DT_OK;
}

static dt_status long_rows(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { *(const int64_t *)arg, PIECE * N_PIECES - 5 };
    const dt_placement whole = DT_REPLICATE;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    DT_TRY(dt_ones(mesh, &whole, DT_F32, 2, shape, &x));
    DT_TRY(sums_of_pieces(t, x));
    DT_TRY(extremes_of_pieces(t, x));
    return DT_OK;
}

DT_TEST(scalars, long_rows_are_taken_in_pieces)
{
    for (int threads = 1; threads <= 3; threads++)
        for (int64_t n_rows = 1; n_rows <= 3; n_rows += 2) {
            dt_run_options o = DT_TEST_RUN_OPTIONS;
            o.threads_per_rank = threads;
            DT_ASSERT_OK(dt_test_run(&o, "tp=1", long_rows, &n_rows));
        }
}
