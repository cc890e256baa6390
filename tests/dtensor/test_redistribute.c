/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors move between any two placements and keep their value. */
#include <dtensor/tensor.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { N_PLACES = 5 };

/* Placement number i of one mesh dim. */
static dt_placement place_of(int i)
{
    switch (i) {
    case 0:
        return DT_REPLICATE;
    case 1:
        return DT_SHARD(0);
    case 2:
        return DT_SHARD(1);
    case 3:
        return DT_SHARD(-1);
    default:
        return DT_PARTIAL(DT_SUM);
    }
}

static bool legal(const dt_placement *from, const dt_placement *to, int n)
{
    for (int m = 0; m < n; m++)
        if (to[m].kind == DT_PLACE_PARTIAL && from[m].kind != DT_PLACE_PARTIAL) return false;
    return true;
}

typedef struct shape_case {
    int n_axes;
    int64_t shape[3];
} shape_case;

static dt_status move_keeps_value(dt_mesh *mesh, const shape_case *c, const dt_placement *from,
                                  const dt_placement *to)
{
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;

    DT_TRY(dt_test_arange(mesh, from, DT_F32, c->n_axes, c->shape, &x));
    DT_TRY(dt_redistribute(x, to, &y));
    DT_TRY(dt_full_tensor(y, &z));
    DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

static dt_status every_move(dt_mesh *mesh, const void *arg)
{
    const shape_case *c = arg;
    const int n = dt_mesh_n_dims(mesh);
    int combos = 1;

    for (int m = 0; m < n; m++) combos *= N_PLACES;
    for (int i = 0; i < combos; i++)
        for (int j = 0; j < combos; j++) {
            dt_placement from[DT_MAX_DIMS], to[DT_MAX_DIMS];
            for (int m = 0, a = i, b = j; m < n; m++, a /= N_PLACES, b /= N_PLACES) {
                from[m] = place_of(a % N_PLACES);
                to[m] = place_of(b % N_PLACES);
            }
            if (!legal(from, to, n)) continue;
            if (move_keeps_value(mesh, c, from, to) != DT_OK) {
                dti_error_prefix("move %d -> %d (digits base %d per mesh dim)", i, j, N_PLACES);
                return dt_last_error()->code;
            }
        }
    return DT_OK;
}

DT_TEST(redistribute, every_move_keeps_the_global_value)
{
    static const shape_case cases[] = {
        { 2, { 4, 6 } }, { 2, { 5, 7 } }, { 2, { 1, 3 } }, { 3, { 3, 2, 5 } }, { 2, { 0, 4 } },
    };
    static const char *const meshes[] = {
        "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2", "dp=3,tp=2"
    };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t c = 0; c < DT_COUNT(cases); c++)
            dt_test_on_ranks(meshes[m], every_move, &cases[c]);
}

static dt_status units_move(dt_mesh *mesh, const void *arg)
{
    const shape_case c = { 2, { 24, 5 } };
    const dt_placement heads = DT_SHARD_UNITS(0, 8), rows = DT_SHARD(0), columns = DT_SHARD(1);
    dt_placement shared = DT_SHARD_UNITS(0, 12);

    (void)arg;
    shared.replicas = dt_mesh_n_ranks(mesh) == 4 ? 2 : 1;
    DT_TRY(move_keeps_value(mesh, &c, &heads, &rows));
    DT_TRY(move_keeps_value(mesh, &c, &rows, &heads));
    DT_TRY(move_keeps_value(mesh, &c, &columns, &shared));
    DT_TRY(move_keeps_value(mesh, &c, &shared, &heads));
    return DT_OK;
}

DT_TEST(redistribute, units_and_shared_parts_move_exactly)
{
    dt_test_on_ranks("tp=2", units_move, NULL);
    dt_test_on_ranks("tp=3", units_move, NULL);
    dt_test_on_ranks("tp=4", units_move, NULL);
}

static dt_status partial_is_refused(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, partial = DT_PARTIAL(DT_SUM),
                       maximum = DT_PARTIAL(DT_MAX);
    const int64_t shape[] = { 4, 4 };
    DT_HELD(tensor) *x = NULL, *p = NULL;
    dt_tensor *y = NULL;

    (void)arg;
    DT_TRY(dt_zeros(mesh, &whole, DT_F32, 2, shape, &x));
    DT_EXPECT(dt_redistribute(x, &partial, &y) == DT_ERR_LAYOUT && y == NULL,
              "a whole value became Partial");
    DT_TRY(dt_from_local(mesh, &partial, DT_F32, 2, shape, dt_tensor_local(x)->data, &p));
    DT_EXPECT(dt_redistribute(p, &maximum, &y) == DT_ERR_LAYOUT, "sum became max");
    DT_EXPECT(dt_zeros(mesh, &partial, DT_F32, 2, shape, &y) == DT_ERR_LAYOUT,
              "zeros were made Partial");
    return DT_OK;
}

DT_TEST(redistribute, partial_is_never_invented)
{
    dt_test_on_ranks("tp=2", partial_is_refused, NULL);
}

/* Every rank's term is 1 .. n; bf16 terms are added in f32 and rounded once. */
static dt_status reductions(dt_mesh *mesh, const void *arg)
{
    static const dt_reduce ops[] = { DT_SUM, DT_AVG, DT_MIN, DT_MAX, DT_PROD };
    const dt_dtype dtype = *(const dt_dtype *)arg;
    const int p = dt_mesh_n_ranks(mesh);
    const int64_t n = 5;
    const float want[] = { (float)(p * (p + 1)) / 2, (float)(p + 1) / 2, 1, (float)p,
                           p == 1   ? 1
                           : p == 2 ? 2
                           : p == 3 ? 6
                                    : 24 };

    for (size_t k = 0; k < DT_COUNT(ops); k++) {
        const dt_placement partial = DT_PARTIAL(ops[k]);
        dt_status st = DT_OK;
        dt_tensor *x = NULL, *y = NULL;
        float term[5];
        char data[20];
        for (int i = 0; i < n; i++) term[i] = (float)(dt_mesh_coord(mesh, 0) + 1);
        dti_convert(data, dtype, term, DT_F32, n);
        DT_TRY_TO(done, st, dt_from_local(mesh, &partial, dtype, 1, &n, data, &x));
        DT_TRY_TO(done, st, dt_full_tensor(x, &y));
        for (int i = 0; i < n && p <= 4; i++)
            DT_EXPECT_TO(done, st, dti_load_f32(dt_tensor_local(y)->data, dtype, i) == want[k],
                         "reduction %d of %d ranks: element %d", (int)ops[k], p, i);
    done:
        dt_tensor_release(&x);
        dt_tensor_release(&y);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

DT_TEST(redistribute, every_reduction_is_right)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F16 };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t d = 0; d < DT_COUNT(dtypes); d++)
            dt_test_on_ranks(meshes[m], reductions, &dtypes[d]);
}

static dt_status distributes(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[] = { DT_SHARD(1), DT_SHARD(0) };
    const int64_t shape[] = { 5, 7 };
    float full[35];

    (void)arg;
    for (int i = 0; i < 35; i++) full[i] = (float)i;
    for (int root = DT_EQUAL_COPIES; root < dt_mesh_n_ranks(mesh); root++) {
        const int me = dt_runtime_rank(dt_mesh_runtime(mesh));
        dt_status st = DT_OK;
        dt_tensor *x = NULL, *y = NULL;
        DT_TRY_TO(
            done, st,
            dt_distribute(mesh, place, DT_F32, 2, shape,
                          (dt_source){ root == DT_EQUAL_COPIES || root == me ? full : NULL, root },
                          &x));
        DT_TRY_TO(done, st, dt_full_tensor(x, &y));
        DT_TRY_TO(done, st, dt_test_expect_arange(y));
    done:
        dt_tensor_release(&x);
        dt_tensor_release(&y);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

DT_TEST(redistribute, a_whole_tensor_is_distributed_from_any_root)
{
    dt_test_on_ranks("dp=2,tp=2", distributes, NULL);
    dt_test_on_ranks("dp=1,tp=3", distributes, NULL);
}

static dt_status root_has_nothing(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int64_t shape[] = { 4, 4 };
    dt_tensor *x = NULL;

    (void)arg;
    DT_TRY(dt_distribute(mesh, &rows, DT_F32, 2, shape, (dt_source){ NULL, 1 }, &x));
    return DT_OK;
}

DT_TEST(redistribute, a_root_without_data_frees_the_others_at_once)
{
    dt_test_on_ranks_fail("tp=3", root_has_nothing, NULL, DT_ERR_ARG, "full is NULL");
}

typedef struct counted {
    dt_placement from, to;
    dt_comm_kind kind;
    int64_t calls, bytes; /* of rank 0 */
} counted;

static dt_status counts(dt_mesh *mesh, const void *arg)
{
    const counted *c = arg;
    const int64_t shape[] = { 8, 6 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    DT_TRY(dt_test_arange(mesh, &c->from, DT_F32, 2, shape, &x));
    (void)dt_move(t, x, &c->to);
    DT_TRY(dt_tape_status(t));
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter got = dt_tape_comm(t, (dt_comm_kind)k);
        const int64_t calls = k == (int)c->kind ? c->calls : 0, bytes = calls ? c->bytes : 0;
        DT_EXPECT(got.calls == calls && got.bytes == bytes,
                  "kind %d: %lld calls of %lld bytes, wanted %lld of %lld", k, (long long)got.calls,
                  (long long)got.bytes, (long long)calls, (long long)bytes);
    }
    return DT_OK;
}

DT_TEST(redistribute, moves_are_counted_by_the_documented_formulas)
{
    const int64_t n = 8 * 6 * 4; /* bytes of the tensor */
    const counted cases[] = {
        { DT_SHARD(0), DT_REPLICATE, DT_COMM_ALL_GATHER, 1, n / 2 },
        { DT_REPLICATE, DT_SHARD(0), DT_COMM_ALL_GATHER, 0, 0 },
        { DT_PARTIAL(DT_SUM), DT_REPLICATE, DT_COMM_ALL_REDUCE, 1, n },
        { DT_PARTIAL(DT_SUM), DT_SHARD(1), DT_COMM_REDUCE_SCATTER, 1, n / 2 },
        { DT_SHARD(0), DT_SHARD(1), DT_COMM_ALL_TO_ALL, 1, n / 4 },
        { DT_SHARD(1), DT_SHARD(1), DT_COMM_ALL_TO_ALL, 0, 0 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks("tp=2", counts, &cases[i]);
}

/* --- ranks that disagree ---------------------------------------------------------------------- */

/* Rank 1 takes the tensor for one of another shape, or wants it elsewhere; the bytes are as many.
 */
static dt_status move_differently(dt_mesh *mesh, const void *arg)
{
    const bool wants_other = *(const int *)arg == 1, odd = dt_mesh_coord(mesh, 0) == 1;
    const int64_t shape[] = { odd && !wants_other ? 6 : 4, odd && !wants_other ? 4 : 6 };
    const dt_placement from = DT_PARTIAL(DT_SUM);
    const dt_placement to = !wants_other ? DT_REPLICATE : odd ? DT_SHARD(1) : DT_SHARD(0);
    DT_HELD(tensor) *x = NULL, *y = NULL;

    DT_TRY(dt_test_arange(mesh, &from, DT_F32, 2, shape, &x));
    DT_TRY(dt_redistribute(x, &to, &y));
    return DT_OK;
}

DT_TEST(redistribute, ranks_that_disagree_are_told_both_sides)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "agree";
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", move_differently, &(int){ 0 }), DT_ERR_ARG,
                     "rank 0 calls all_reduce of 24 f32 (redistribute f32[4, 6] P(sum) -> R");
    DT_ASSERT(strstr(dt_last_error()->message,
                     "rank 1 calls all_reduce of 24 f32 (redistribute f32[6, 4] P(sum) -> R"));
    DT_ASSERT_STATUS(
        dt_test_run(&o, "tp=2", move_differently, &(int){ 1 }), DT_ERR_ARG,
        "rank 0 calls reduce_scatter of 24 f32 (redistribute f32[4, 6] P(sum) -> S(0)");
    DT_ASSERT(strstr(dt_last_error()->message, "rank 1 calls reduce_scatter of 24 f32"));
}
