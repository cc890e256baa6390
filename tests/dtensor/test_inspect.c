/* SPDX-License-Identifier: Apache-2.0
 *
 * Comparing tensors, reading elements, and comparing what ranks pass. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>

#include <math.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { N_PLACES = 4 };

static dt_placement place_of(int i)
{
    const dt_placement all[N_PLACES] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1),
                                         DT_PARTIAL(DT_SUM) };

    return all[i];
}

/* Every pair of placements: equal values are equal, one changed element is seen on all ranks. */
static dt_status pairs(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 5, 3 };
    const int n = dt_mesh_n_dims(mesh), combos = n == 1 ? N_PLACES : N_PLACES * N_PLACES;
    dt_placement p[2], q[2];

    (void)arg;
    for (int i = 0; i < combos * combos; i++) {
        dt_status st = DT_OK;
        dt_tensor *a = NULL, *b = NULL;
        bool same = false;
        for (int m = 0, x = i / combos, y = i % combos; m < n; m++, x /= N_PLACES, y /= N_PLACES) {
            p[m] = place_of(x % N_PLACES);
            q[m] = place_of(y % N_PLACES);
        }
        DT_TRY_TO(done, st, dt_test_arange(mesh, p, DT_F32, 2, shape, &a));
        DT_TRY_TO(done, st, dt_test_arange(mesh, q, DT_F32, 2, shape, &b));
        DT_TRY_TO(done, st, dt_equal(a, b, &same));
        DT_EXPECT_TO(done, st, same, "pair %d", i);
        if (dt_mesh_coord(mesh, 0) == 0 && dt_tensor_local(b)->shape[0] > 0 &&
            dt_tensor_local(b)->shape[1] > 0)
            ((float *)dt_tensor_local(b)->data)[0] += 0.5f;
        DT_TRY_TO(done, st, dt_equal(a, b, &same));
        DT_EXPECT_TO(done, st, !same, "pair %d with another element", i);
        DT_TRY_TO(done, st, dt_allclose(a, b, 0.0, 1.0, &same));
        DT_EXPECT_TO(done, st, same, "pair %d within 1", i);
    done:
        dt_tensor_release(&b);
        dt_tensor_release(&a);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

DT_TEST(inspect, equality_looks_through_placements)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], pairs, NULL);
}

/* What two elements are, in every float dtype. */
static dt_status elements(dt_mesh *mesh, const void *arg)
{
    static const struct {
        float a, b;
        double relative, absolute;
        bool equal, close;
    } cases[] = {
        { 1.0f, 1.0f, 0, 0, true, true },
        { 0.0f, -0.0f, 0, 0, true, true },
        { NAN, NAN, 1, 1, false, false },
        { INFINITY, INFINITY, 0, 0, true, true },
        { INFINITY, -INFINITY, 1, 1, false, false },
        { INFINITY, 1.0f, 1, 1, false, false },
        { 1.0f, INFINITY, 1, 1, false, false },
        { 1.0f, 1.5f, 0, 0.25, false, false },
        { 1.0f, 1.5f, 0, 0.5, false, true },
        { 2.0f, 4.0f, 0.5, 0, false, true }, /* relative to the second */
        { 4.0f, 2.0f, 0.5, 0, false, false },
    };
    const dt_placement whole = DT_REPLICATE;

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int t = DT_F32; t <= DT_F64; t++) {
            dt_status st = DT_OK;
            dt_tensor *a = NULL, *b = NULL;
            bool equal = false, close = false;
            DT_TRY_TO(done, st,
                      dt_full(mesh, &whole, (dt_dtype)t, 0, NULL, (double)cases[i].a, &a));
            DT_TRY_TO(done, st,
                      dt_full(mesh, &whole, (dt_dtype)t, 0, NULL, (double)cases[i].b, &b));
            DT_TRY_TO(done, st, dt_equal(a, b, &equal));
            DT_TRY_TO(done, st, dt_allclose(a, b, cases[i].relative, cases[i].absolute, &close));
            DT_EXPECT_TO(done, st, equal == cases[i].equal && close == cases[i].close,
                         "case %zu, %s", i, dt_dtype_name((dt_dtype)t));
        done:
            dt_tensor_release(&b);
            dt_tensor_release(&a);
            if (st != DT_OK) return st;
        }
    return DT_OK;
}

DT_TEST(inspect, elements_compare_as_numbers)
{
    dt_test_on_ranks("tp=2", elements, NULL);
}

/* Replicas that differ on one rank only: all ranks hear of it. And shapes, dtypes, meshes. */
static dt_status differences(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 3, more = 4;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(tensor) *a = NULL, *b = NULL, *longer = NULL, *half = NULL;
    DT_HELD(mesh) *other = NULL;
    DT_HELD(tensor) *far = NULL;
    bool same = true;

    (void)arg;
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 1, &n, &a));
    DT_TRY(dt_full(mesh, &whole, DT_F32, 1, &n, dt_runtime_rank(rt) == 2 ? 2 : 1, &b));
    DT_TRY(dt_equal(a, b, &same));
    DT_EXPECT(!same, "rank 2 has another replica");
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 1, &more, &longer));
    DT_TRY(dt_ones(mesh, &whole, DT_BF16, 1, &n, &half));
    same = true;
    DT_TRY(dt_equal(a, longer, &same));
    DT_EXPECT(!same, "shapes differ");
    DT_TRY(dt_equal(a, half, &same));
    DT_EXPECT(!same, "dtypes differ");
    DT_TRY(dt_mesh_create(rt, "dp=3", &other));
    DT_TRY(dt_ones(other, &whole, DT_F32, 1, &n, &far));
    DT_EXPECT_STATUS(dt_equal(a, far, &same), DT_ERR_LAYOUT, "lie on different meshes");
    DT_EXPECT_STATUS(dt_allclose(a, b, -1, 0, &same), DT_ERR_ARG, "tolerances of -1 relative");
    DT_EXPECT_STATUS(dt_equal(a, NULL, &same), DT_ERR_ARG, "a or b is NULL");
    return DT_OK;
}

DT_TEST(inspect, all_ranks_hear_of_a_difference)
{
    dt_test_on_ranks("tp=3", differences, NULL);
}

/* --- elements --------------------------------------------------------------------------------- */

static dt_status every_element(dt_mesh *mesh, const void *arg)
{
    const dt_placement *place = arg;
    const int64_t shape[] = { 7, 5 };

    for (int t = 0; t < DT_N_DTYPES; t++) {
        dt_tensor *x;
        dt_status st = DT_OK;
        DT_TRY(dt_arange(mesh, place, (dt_dtype)t, 2, shape, (dt_steps){ 0, 1 }, &x));
        for (int64_t g = 0; g < 35; g++) {
            double v = -1.0;
            DT_TRY_TO(done, st, dt_item(x, (const int64_t[]){ g / 5, g % 5 }, &v));
            DT_EXPECT_TO(done, st, v == (double)g, "element %d is %g", (int)g, v);
        }
    done:
        dt_tensor_release(&x);
        if (st != DT_OK) return st;
    }
    return DT_OK;
}

DT_TEST(inspect, every_rank_reads_every_element)
{
    const dt_placement cases[][2] = {
        { DT_REPLICATE, DT_REPLICATE },
        { DT_SHARD(0), DT_SHARD(0) },
        { DT_SHARD(1), DT_REPLICATE },
        { DT_SHARD(1), DT_SHARD(0) },
        { DT_REPLICATE, DT_SHARD(1) },
        { DT_SHARD_PACKED(0, 3, 1, 3), DT_SHARD(1) },
        { DT_SHARD_OFFSETS(0, 0, 0, 7), DT_SHARD_NTH(1, 0) },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks("dp=2,tp=2", every_element, cases[i]);
    dt_test_on_ranks("tp=3", every_element, cases[1]);
}

static dt_status refused_items(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms = DT_PARTIAL(DT_SUM), rows = DT_SHARD(0);
    const int64_t n = 3, at = 1, past = 3, big = ((int64_t)1 << 53) + 1;
    const int64_t values[] = { 1, big, 3 };
    DT_HELD(tensor) *p = NULL, *x = NULL;
    double v = 5.0;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &terms, DT_F32, 1, &n, &p));
    DT_TRY(dt_distribute(mesh, &rows, DT_I64, 1, &n, (dt_source){ values, 0 }, &x));
    DT_EXPECT_STATUS(dt_item(p, &at, &v), DT_ERR_LAYOUT,
                     "x is P(sum) on mesh dim \"tp\": no rank has the element");
    DT_EXPECT(v == 0.0, "a refused element is %g", v);
    DT_EXPECT_STATUS(dt_item(x, &past, &v), DT_ERR_ARG, "index 3 of axis 0, which has 3 elements");
    DT_EXPECT_STATUS(dt_item(x, &at, &v), DT_ERR_ARG, "an i64 that no double equals");
    DT_EXPECT_STATUS(dt_item(x, NULL, &v), DT_ERR_ARG, "NULL");
    return DT_OK;
}

DT_TEST(inspect, elements_that_no_rank_has_are_refused) /* case 76 */
{
    dt_test_on_ranks("tp=2", refused_items, NULL);
}

/* --- what ranks pass -------------------------------------------------------------------------- */

typedef struct odd_rank {
    bool whole; /* of dt_distribute(), from rank 1 or as equal copies; else of dt_from_local() */
    int root;
    enum { DTYPE, SHAPE, PLACE, BYTES, NOTHING, NO_DATA, ROOT } odd; /* what rank 2 does */
    dt_placement place[2];
    dt_status code;
    const char *message;
} odd_rank;

static dt_status passes(dt_mesh *mesh, const void *arg)
{
    const odd_rank *c = arg;
    const bool odd = dt_runtime_rank(dt_mesh_runtime(mesh)) == 2;
    dt_placement place[2] = { c->place[0], c->place[1] };
    int64_t shape[] = { 6, 4 };
    float data[32] = { 0 };
    const void *passed = data;
    dt_dtype dtype = DT_F32;
    dt_tensor *x = NULL;
    dt_status st;

    if (odd && c->odd == DTYPE) dtype = DT_I32;
    if (odd && c->odd == SHAPE) shape[0] = 7;
    if (odd && c->odd == PLACE) place[0] = DT_REPLICATE;
    if (odd && c->odd == BYTES) data[1] = 1.0f;
    if (odd && c->odd == NO_DATA) passed = NULL;
    if (!c->whole)
        st = dt_from_local_checked(mesh, place, dtype, 2, shape, passed, &x);
    else
        st = dt_distribute_checked(mesh, place, dtype, 2, shape,
                                   (dt_source){ passed, odd && c->odd == ROOT ? 2 : c->root }, &x);
    dt_tensor_release(&x);
    if (odd && c->odd == NO_DATA && c->code != DT_OK) { /* it knows better than the others */
        DT_EXPECT_STATUS(st, DT_ERR_ARG, c->whole ? "full is NULL" : "data is NULL");
        return DT_OK;
    }
    if (c->code == DT_OK) return st;
    DT_EXPECT_STATUS(st, c->code, c->message);
    return DT_OK;
}

DT_TEST(inspect, ranks_that_disagree_are_named) /* case 46 */
{
    const odd_rank cases[] = {
        { false, 0, NOTHING, { DT_SHARD(0), DT_REPLICATE }, DT_OK, NULL },
        { false,
          0,
          DTYPE,
          { DT_SHARD(0), DT_REPLICATE },
          DT_ERR_SHAPE,
          "rank 0 passes f32, rank 2 i32" },
        { false,
          0,
          SHAPE,
          { DT_SHARD(0), DT_REPLICATE },
          DT_ERR_SHAPE,
          "rank 0 passes the global shape [6, 4], rank 2 [7, 4]" },
        { false,
          0,
          PLACE,
          { DT_SHARD(0), DT_REPLICATE },
          DT_ERR_LAYOUT,
          "ranks 0 and 2 pass different placements" },
        { false,
          0,
          BYTES,
          { DT_REPLICATE, DT_SHARD(1) },
          DT_ERR_ARG,
          "ranks 0 and 2 hold copies of one piece, but" },
        { false,
          0,
          BYTES,
          { DT_SHARD(0), DT_REPLICATE },
          DT_ERR_ARG,
          "ranks 2 and 3 hold copies of one piece, but" },
        { false, 0, BYTES, { DT_SHARD(0), DT_SHARD(1) }, DT_OK, NULL }, /* no copies */
        { false,
          0,
          BYTES,
          { DT_PARTIAL(DT_SUM), DT_SHARD(1) },
          DT_OK,
          NULL }, /* terms may differ */
        { false,
          0,
          BYTES,
          { DT_PARTIAL(DT_SUM), DT_REPLICATE },
          DT_ERR_ARG,
          "ranks 2 and 3 hold copies" },
        { false,
          0,
          NO_DATA,
          { DT_SHARD(0), DT_REPLICATE },
          DT_ERR_ARG,
          "what rank 2 passes is invalid: " },
        { true, 1, NOTHING, { DT_SHARD(0), DT_REPLICATE }, DT_OK, NULL },
        { true, 1, BYTES, { DT_SHARD(0), DT_REPLICATE }, DT_OK, NULL }, /* nobody's affair */
        { true, 1, NO_DATA, { DT_SHARD(0), DT_REPLICATE }, DT_OK, NULL },
        { true, 1, DTYPE, { DT_SHARD(0), DT_REPLICATE }, DT_ERR_SHAPE, "passes f32, rank 2 i32" },
        { true, 1, SHAPE, { DT_SHARD(0), DT_REPLICATE }, DT_ERR_SHAPE, "rank 2 [7, 4]" },
        { true, 1, PLACE, { DT_SHARD(0), DT_REPLICATE }, DT_ERR_LAYOUT, "different placements" },
        { true,
          1,
          ROOT,
          { DT_SHARD(0), DT_SHARD(1) },
          DT_ERR_ARG,
          "at place 1, rank 2 at place 2" },
        { true, DT_EQUAL_COPIES, NOTHING, { DT_SHARD(0), DT_SHARD(1) }, DT_OK, NULL },
        { true,
          DT_EQUAL_COPIES,
          BYTES,
          { DT_SHARD(0), DT_SHARD(1) },
          DT_ERR_ARG,
          "ranks 0 and 2 hold copies of one piece, but" },
        { true,
          DT_EQUAL_COPIES,
          NO_DATA,
          { DT_SHARD(0), DT_SHARD(1) },
          DT_ERR_ARG,
          "what rank 2 passes is invalid: " },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_ranks("dp=2,tp=2", passes, &cases[i]);
}

/* --- outsiders -------------------------------------------------------------------------------- */

/* Two members and two ranks outside: the same calls, nothing happens there. */
typedef struct outside {
    dt_mesh *mesh;
    dt_placement place;
    int n_axes;
    bool inside;
} outside;

static const int64_t extents[] = { 6, 4 };

/* dt_sum() over all leaves a tensor without axes; its bytes on outsiders are nobody's. */
static dt_status sums_are_equal(const outside *o, dt_tensor *x)
{
    bool same = false, close = false;
    DT_HELD(tape) *t = NULL;
    dt_tensor *sum, *copy;

    DT_TRY(dt_tape_create(dt_mesh_runtime(o->mesh), &t));
    sum = dt_move(t, dt_sum(t, x, DT_ALL_AXES), &(dt_placement){ 0 });
    copy = dt_mul_scalar(t, sum, 1.0);
    DT_TRY(dt_tape_status(t));
    if (!o->inside && dt_tensor_local(sum)->data != NULL) /* blocks of the pool have 256 bytes */
        memset(dt_tensor_local(sum)->data, 0x3f, sizeof(float));
    DT_TRY(dt_equal(sum, copy, &same));
    DT_TRY(dt_allclose(sum, copy, 0.0, 0.0, &close));
    DT_EXPECT(same && close, "sums of %d axes differ", o->n_axes);
    return DT_OK;
}

static dt_status outside_of(const outside *o)
{
    const float data[24] = { 0 };
    const int64_t origin[] = { 5, 3 }, mine[] = { 3, 4 };
    const int64_t *piece = o->inside ? mine : NULL;
    const void *bytes = o->inside ? data : NULL;
    dt_tensor *x = NULL, *y = NULL, *z[2] = { NULL, NULL };
    const double last = o->n_axes == 0 ? 0.0 : o->n_axes == 1 ? 5.0 : 23.0;
    dt_status st = DT_OK;
    char text[200];
    bool same = false;
    double v = -1.0;
    int length = 0;

    DT_TRY_TO(done, st,
              dt_arange(o->mesh, &o->place, DT_F32, o->n_axes, extents, (dt_steps){ 0, 1 }, &x));
    DT_TRY_TO(done, st, dt_full_tensor(x, &y));
    for (int a = 0; a < o->n_axes; a++)
        DT_EXPECT_TO(done, st, dt_tensor_local(y)->shape[a] == (o->inside ? extents[a] : 0),
                     "outsiders hold rows");
    DT_TRY_TO(done, st, dt_equal(x, y, &same));
    DT_EXPECT_TO(done, st, same, "a tensor of %d axes is not equal", o->n_axes);
    DT_TRY_TO(done, st, dt_allclose(x, y, 0.0, 0.0, &same));
    DT_EXPECT_TO(done, st, same, "a tensor of %d axes is not close", o->n_axes);
    DT_TRY_TO(done, st, dt_item(x, o->n_axes > 0 ? origin : NULL, &v));
    DT_EXPECT_TO(done, st, v == (o->inside ? last : 0.0), "element %g", v);
    DT_TRY_TO(done, st, dt_visualize(x, DT_DRAW_TEXT, text, sizeof text, &length));
    DT_TRY_TO(done, st,
              dt_from_local_checked(o->mesh, &o->place, DT_F32, o->n_axes, extents, bytes, &z[0]));
    DT_TRY_TO(done, st, dt_from_pieces(o->mesh, &o->place, DT_F32, o->n_axes, piece, bytes, &z[1]));
    DT_TRY_TO(done, st, sums_are_equal(o, x));
done:
    for (int i = 0; i < 2; i++) dt_tensor_release(&z[i]);
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return st;
}

static dt_status outsiders(dt_mesh *world, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(world);
    outside o = { .inside = dt_runtime_rank(rt) % 2 == 0 };
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(rt, "tp=2", (int[]){ 0, 2 }, &o.mesh));
    for (; o.n_axes <= 2 && st == DT_OK; o.n_axes++) {
        o.place = o.n_axes == 0 ? DT_REPLICATE : DT_SHARD(0);
        st = outside_of(&o);
    }
    dt_mesh_release(&o.mesh);
    return st;
}

DT_TEST(inspect, outsiders_make_the_same_calls) /* case 44 */
{
    dt_test_on_ranks("world=4", outsiders, NULL);
}
