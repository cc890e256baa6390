/* SPDX-License-Identifier: Apache-2.0
 *
 * General operators as a caller sees them: broadcasting, a softmax over an axis that ranks share
 * and what it costs, which cuts a reshape keeps, joined and padded axes that stay where they are,
 * and dropout that is the same everywhere. */
#include <dtensor/ops.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

enum { MOST = 1024 };

/* Random values on `mesh`, placed by the text of a layout, on the tape. */
static dt_tensor *make(dt_tape *t, dt_mesh *mesh, const char *place, dt_dtype dtype, int n_axes,
                       const int64_t *shape, uint32_t seed)
{
    const dt_layout *layout;
    dt_placement where[DT_MAX_DIMS];
    float values[MOST];
    char bytes[MOST * sizeof(float)];
    dt_tensor *x;
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= shape[a];
    dt_test_random(values, n, seed);
    for (int64_t i = 0; i < n; i++) dti_store_f32(bytes, dtype, i, values[i]);
    if (dt_layout_parse(mesh, n_axes, place, &layout) != DT_OK)
        return dt_tape_fail(t, DT_ERR_ARG, "the test's layout %s", place);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) where[m] = dt_layout_placement(layout, m);
    if (dt_distribute(mesh, where, dtype, n_axes, shape, (dt_source){ bytes, DT_EQUAL_COPIES },
                      &x) != DT_OK)
        return dt_tape_fail(t, DT_ERR_ARG, "%s", dt_last_error()->message);
    return dt_tape_own(t, x);
}

/* Both have one value, to `tolerance`; bits if that is 0. */
static dt_status same_value(dt_tape *t, dt_tensor *a, dt_tensor *b, double tolerance)
{
    DT_HELD(tensor) *x = NULL, *y = NULL;
    int64_t n = 1;

    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(a, &x));
    DT_TRY(dt_full_tensor(b, &y));
    DT_EXPECT(dt_tensor_n_axes(x) == dt_tensor_n_axes(y), "numbers of axes");
    for (int i = 0; i < dt_tensor_n_axes(x); i++) {
        DT_EXPECT(dt_tensor_extent(x, i) == dt_tensor_extent(y, i), "axis %d", i);
        n *= dt_tensor_extent(x, i);
    }
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)dti_load_f32(dt_tensor_local(x)->data, dt_tensor_dtype(x), i);
        const double w = (double)dti_load_f32(dt_tensor_local(y)->data, dt_tensor_dtype(y), i);
        DT_EXPECT(v == w || fabs(v - w) <= tolerance, "element %lld: %.9g, not %.9g", (long long)i,
                  v, w);
    }
    return DT_OK;
}

/* On one rank nothing is cut, and nothing said. */
static dt_status expect_layout(dt_tensor *x, const char *want)
{
    char text[128];

    if (dt_mesh_n_ranks(dt_tensor_mesh(x)) == 1) return DT_OK;
    (void)dt_layout_print(dt_tensor_layout(x), text, sizeof text);
    DT_EXPECT(strcmp(text, want) == 0, "the result lies as %s, not %s", text, want);
    return DT_OK;
}

static dt_status expect_failure(dt_tape *t, dt_status code, const char *words)
{
    const dt_status st =
        dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), code, words);

    dt_tape_reset(t);
    return st;
}

typedef dt_status (*body)(dt_tape *t, dt_mesh *mesh);

static dt_status on_tape(dt_mesh *mesh, const void *arg)
{
    dt_tape *t;
    dt_status st;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    st = (*(const body *)arg)(t, mesh);
    dt_tape_release(&t);
    return st;
}

static void everywhere(body b)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], on_tape, &b);
}

/* --- broadcasting ----------------------------------------------------------------------------- */

static dt_status spreads(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 2, 3, 5 }, row[] = { 5 }, column[] = { 3, 1 };
    static const char *const places[] = { "R", "S(0)", "S(1)", "S(2)" };
    static const char *const rows[] = { "R", "R", "R", "S(0)" };
    static const char *const columns[] = { "R", "R", "S(0)", "R" };

    for (size_t p = 0; p < DT_COUNT(places); p++) {
        dt_tensor *x = make(t, mesh, places[p], DT_F32, 3, shape, 1);
        dt_tensor *y = make(t, mesh, rows[p], DT_F32, 1, row, 2);
        dt_tensor *z = make(t, mesh, columns[p], DT_F32, 2, column, 3);
        dt_tensor *all = dt_div(t, dt_sub(t, dt_mul(t, dt_add(t, x, y), z), y), dt_exp(t, z));
        dt_tensor *whole_x = make(t, mesh, "R", DT_F32, 3, shape, 1);
        dt_tensor *whole_y = make(t, mesh, "R", DT_F32, 1, row, 2);
        dt_tensor *whole_z = make(t, mesh, "R", DT_F32, 2, column, 3);
        dt_tensor *want =
            dt_div(t, dt_sub(t, dt_mul(t, dt_add(t, whole_x, whole_y), whole_z), whole_y),
                   dt_exp(t, whole_z));
        float values[30], got;
        DT_TRY(same_value(t, all, want, 0.0));
        DT_EXPECT(dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls == 0, "something was moved");
        DT_TRY(expect_layout(all, places[p]));
        /* one element by hand, [1, 2, 3] */
        dt_test_random(values, 30, 1);
        got = values[1 * 15 + 2 * 5 + 3];
        dt_test_random(values, 5, 2);
        const float of_row = values[3];
        dt_test_random(values, 3, 3);
        got = ((got + of_row) * values[2] - of_row) / expf(values[2]);
        DT_EXPECT(fabsf(((const float *)dt_tensor_local(want)->data)[28] - got) < 1e-6f,
                  "element [1, 2, 3] is %g, not %g",
                  (double)((const float *)dt_tensor_local(want)->data)[28], (double)got);
        dt_tape_reset(t);
    }
    if (dt_mesh_n_ranks(mesh) == 1) return DT_OK;
    (void)dt_add(t, make(t, mesh, "R", DT_F32, 3, shape, 1),
                 make(t, mesh, "S(1)", DT_F32, 2, column, 3));
    DT_TRY(expect_failure(t, DT_ERR_LAYOUT, "an axis of one element"));
    (void)dt_add(t, make(t, mesh, "R", DT_F32, 3, shape, 1),
                 make(t, mesh, "R", DT_F32, 1, shape, 3));
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "leading axis 2 is 5 in operand 0"));
    return DT_OK;
}

DT_TEST(general, operands_broadcast_and_their_cuts_with_them)
{
    everywhere(spreads);
}

/* A mask, and the larger of two by it. */
static dt_status chooses(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 3, 5 }, row[] = { 5 };
    dt_tensor *x = make(t, mesh, "S(0)", DT_BF16, 2, shape, 1);
    dt_tensor *y = make(t, mesh, "R", DT_BF16, 1, row, 2);
    dt_tensor *larger = dt_where(t, dt_compare(t, x, DT_LESS, y), y, x);
    dt_tensor *whole = make(t, mesh, "R", DT_BF16, 2, shape, 1);
    const dt_local *a, *b, *l;
    dt_tensor *full;

    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(larger, &full));
    full = dt_tape_own(t, full);
    a = dt_tensor_local(whole);
    b = dt_tensor_local(y);
    l = dt_tensor_local(full);
    for (int64_t i = 0; i < 15; i++) {
        const float v = dti_load_f32(a->data, DT_BF16, i),
                    w = dti_load_f32(b->data, DT_BF16, i % 5);
        DT_EXPECT(dti_load_f32(l->data, DT_BF16, i) == fmaxf(v, w), "element %lld", (long long)i);
    }
    (void)dt_compare(t, x, (dt_relation)7, y);
    return expect_failure(t, DT_ERR_ARG, "7 is no relation");
}

DT_TEST(general, masks_choose)
{
    everywhere(chooses);
}

/* --- softmax ---------------------------------------------------------------------------------- */

static dt_status softens(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 2, 3, 7 };
    static const char *const places[] = { "R", "S(0)", "S(1)", "S(2)" };
    const bool ranks = dt_mesh_n_ranks(mesh) > 1;

    for (int axis = 0; axis < 3; axis++)
        for (int p = 0; p < 4; p++)
            for (int form = 0; form < 4; form++) {
                const dt_dtype dtype = form & 1 ? DT_BF16 : DT_F32;
                const int calls = ranks && p == axis + 1 ? 2 : 0;
                dt_tensor *x = make(t, mesh, places[p], dtype, 3, shape, 5);
                dt_tensor *whole = make(t, mesh, "R", dtype, 3, shape, 5);
                dt_tensor *y = form & 2 ? dt_log_softmax(t, x, axis) : dt_softmax(t, x, axis - 3);
                char text[512];
                DT_TRY(dt_tape_status(t));
                DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls == calls &&
                              dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls == calls,
                          "axis %d of %s: %lld moves", axis, places[p],
                          (long long)dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls);
                (void)dt_tape_comm_print(t, text, sizeof text);
                DT_EXPECT(calls == 0 ||
                              strstr(text, form & 2 ? ": log_softmax" : ": softmax") != NULL,
                          "the moves are called %s", text);
                DT_TRY(expect_layout(y, places[p]));
                DT_TRY(same_value(
                    t, y, form & 2 ? dt_log_softmax(t, whole, axis) : dt_softmax(t, whole, axis),
                    form & 1 ? 0x1p-8 : 4e-7));
                DT_EXPECT(dt_tensor_dtype(y) == dtype, "another dtype");
                dt_tape_reset(t);
            }
    (void)dt_softmax(t, make(t, mesh, "R", DT_F32, 3, shape, 5), 3);
    return expect_failure(t, DT_ERR_ARG, "softmax: axis 3 of a tensor of 3 axes");
}

DT_TEST(general, a_softmax_over_a_cut_axis_reduces_twice_and_says_so)
{
    everywhere(softens);
}

/* The axis is cut by both dims of a mesh, the larger one's ranks get no row at all. */
static dt_status softens_over_two_dims(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 3, 3 };
    dt_tensor *x = make(t, mesh, "S(1)S(1)", DT_F32, 2, shape, 5);
    dt_tensor *whole = make(t, mesh, "RR", DT_F32, 2, shape, 5);

    return same_value(t, dt_softmax(t, x, 1), dt_softmax(t, whole, 1), 4e-7);
}

DT_TEST(general, a_softmax_over_two_mesh_dims)
{
    const body b = softens_over_two_dims;

    dt_test_on_ranks("dp=2,tp=2", on_tape, &b);
}

/* --- reshape ---------------------------------------------------------------------------------- */

typedef struct reshape_case {
    const char *from;
    int n_from;
    int64_t shape[5];
    int n_to;
    int64_t want[5];
    const char *to; /* or, of a refusal, its words */
    bool refused;
} reshape_case;

/* clang-format off */
static const reshape_case reshapes[] = { /* on two ranks */
    { "R",        2, { 4, 6 },       1, { 24 },          "R", false },
    { "S(0)",     2, { 4, 6 },       1, { -1 },          "S(0,unit=6)", false },
    { "S(0,unit=2)", 2, { 6, 3 },    1, { 18 },          "S(0,unit=6)", false },
    { "S(0)",     3, { 3, 2, 5 },    2, { 3, 10 },       "S(0)", false },
    { "S(0)",     3, { 3, 2, 5 },    2, { 6, -1 },       "S(0,unit=2)", false },
    { "S(2)",     3, { 3, 2, 5 },    2, { 6, 5 },        "S(1)", false },
    { "S(1)",     2, { 2, 6 },       1, { 12 },          "S(0,blocks=6:6)", false },
    { "S(0,blocks=6:6)", 1, { 12 },  2, { 2, 6 },        "S(1)", false },
    { "S(0,unit=3)", 1, { 12 },      2, { 4, 3 },        "S(0)", false },
    { "S(0,unit=6)", 1, { 24 },      3, { 4, 2, 3 },     "S(0)", false },
    { "S(1,unit=4)", 2, { 3, 16 },   3, { 3, 4, 4 },     "S(1)", false },
    { "S(0)",     2, { 5, 1 },       1, { 5 },           "S(0)", false },
    { "S(0)",     1, { 5 },          3, { 1, 5, 1 },     "S(1)", false },
    { "S(1)",     3, { 1, 5, 2 },    2, { 5, 2 },        "S(0)", false },
    { "S(1)",     4, { 2, 6, 3, 4 }, 3, { 2, 6, 12 },    "S(1)", false },
    { "S(3)",     4, { 2, 3, 2, 5 }, 3, { 6, 2, 5 },     "S(2)", false },
    { "S(0,offsets=0:1:4)", 2, { 4, 3 }, 3, { 4, 1, 3 }, "S(0,offsets=0:1:4)", false },
    { "S(0,unit=4611686018427387904)", 2, { 4, 3 }, 1, { 12 }, "S(0,unit=9223372036854775807)", false },
    { "S(0)",     1, { 12 },         2, { 4, 3 },        "which splits rows of 3 elements", true },
    { "S(0)",     1, { 12 },         2, { 4, 3 },        "DT_SHARD_UNITS(0, 3)", true },
    { "S(0)",     2, { 1, 5 },       1, { 5 },           "an axis of one element that goes", true },
    { "S(1)",     2, { 40, 4 },      1, { 160 },         "40 rows of 4 elements become one axis", true },
    { "S(0,offsets=0:1:4)", 2, { 4, 3 }, 1, { 12 },      "become one axis", true },
};
/* clang-format on */

static dt_status reshapes_to(dt_mesh *mesh, const void *arg)
{
    const reshape_case *c = arg;
    const dt_layout *layout;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    dt_placement place;

    DT_TRY(dt_layout_parse(mesh, c->n_from, c->from, &layout));
    place = dt_layout_placement(layout, 0);
    DT_TRY(dt_test_arange(mesh, &place, DT_F32, c->n_from, c->shape, &x));
    y = dt_reshape(t, x, c->n_to, c->want);
    if (c->refused) {
        return expect_failure(t, DT_ERR_LAYOUT, c->to);
    }
    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_layout(y, c->to));
    DT_EXPECT(dt_tensor_local(y)->data == dt_tensor_local(x)->data, "it was copied");
    y = dt_move(t, y, &(dt_placement){ 0 });
    DT_TRY(dt_tape_status(t));
    return dt_test_expect_arange(y);
}

DT_TEST(general, a_reshape_keeps_cuts_that_leave_one_piece)
{
    for (size_t i = 0; i < DT_COUNT(reshapes); i++)
        dt_test_on_ranks("tp=2", reshapes_to, &reshapes[i]);
}

static dt_status refuses_shapes(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 4, 6 };

    (void)dt_reshape(t, make(t, mesh, "R", DT_F32, 2, shape, 1), 1, (const int64_t[]){ 23 });
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "24 elements do not fill"));
    (void)dt_reshape(t, make(t, mesh, "R", DT_F32, 2, shape, 1), 2, (const int64_t[]){ -1, 5 });
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "24 elements do not fill"));
    (void)dt_reshape(t, make(t, mesh, "R", DT_F32, 2, shape, 1), 2, (const int64_t[]){ -1, -1 });
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "axis 1 of -1 elements"));
    (void)dt_reshape(t, make(t, mesh, "R", DT_F32, 2, shape, 1), 2,
                     (const int64_t[]){ 24, (1LL << 61) + 1 }); /* 24 modulo 2^64 */
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "24 elements do not fill"));
    (void)dt_permute(t, make(t, mesh, "R", DT_F32, 2, shape, 1), (const int[]){ 0, 0 });
    DT_TRY(expect_failure(t, DT_ERR_ARG, "each once"));
    return DT_OK;
}

DT_TEST(general, shapes_that_do_not_fit_are_refused)
{
    everywhere(refuses_shapes);
}

/* --- joined, padded, exchanged axes ----------------------------------------------------------- */

static dt_status joins(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t a[] = { 5, 2 }, b[] = { 3, 2 };
    dt_tensor *in[] = { make(t, mesh, "S(0)", DT_F32, 2, a, 1), make(t, mesh, "R", DT_F32, 2, b, 2),
                        make(t, mesh, "S(0)", DT_F32, 2, a, 3) };
    dt_tensor *y = dt_concat(t, 3, in, -2), *many[8];

    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_layout(y, "S(0,blocks=5:3:5)"));
    DT_TRY(same_value(t, dt_slice(t, y, 0, 0, 5), in[0], 0.0));
    DT_TRY(same_value(t, dt_slice(t, y, 0, 5, 3), in[1], 0.0));
    DT_TRY(same_value(t, dt_slice(t, y, 0, 8, 5), in[2], 0.0));
    DT_EXPECT(dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).calls == 0, "something was moved");
    for (int i = 0; i < 8; i++) many[i] = make(t, mesh, "R", DT_F32, 2, b, (uint32_t)i);
    y = dt_concat(t, 8, many, 0); /* more than one call takes */
    for (int i = 0; i < 8; i++) DT_TRY(same_value(t, dt_slice(t, y, 0, 3 * i, 3), many[i], 0.0));
    (void)dt_concat(t, 2, (dt_tensor *[]){ in[0], make(t, mesh, "R", DT_F32, 1, b, 1) }, 0);
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "leading axes"));
    (void)dt_concat(
        t, 2,
        (dt_tensor *[]){ make(t, mesh, "R", DT_F32, 2, a, 1), make(t, mesh, "R", DT_F32, 2, b, 1) },
        1);
    return expect_failure(t, DT_ERR_SHAPE, "axis 0 is 5 in operand 0 but 3 in operand 1");
}

DT_TEST(general, axes_that_are_cut_are_joined_where_they_lie)
{
    everywhere(joins);
}

static dt_status pads(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 5, 2 };
    const int ranks = dt_mesh_n_ranks(mesh);
    dt_tensor *x = make(t, mesh, "S(0)", DT_BF16, 2, shape, 1);
    dt_tensor *whole = make(t, mesh, "R", DT_BF16, 2, shape, 1);
    dt_tensor *y = dt_pad(t, x, 0, 2, 1, -0.75);

    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_layout(y, ranks == 2   ? "S(0,offsets=0:5:8)"
                            : ranks == 3 ? "S(0,offsets=0:4:6:8)"
                                         : "S(0,offsets=0:4:6:7:8)"));
    DT_TRY(same_value(t, dt_slice(t, y, 0, 2, 5), whole, 0.0));
    DT_TRY(same_value(t, y, dt_pad(t, whole, 0, 2, 1, -0.75), 0.0));
    DT_EXPECT(dti_load_f32(dt_tensor_local(dt_pad(t, whole, 1, 1, 0, 3.0))->data, DT_BF16, 0) ==
                  3.0f,
              "what was padded");
    (void)dt_pad(t, whole, 0, -1, 0, 0.0);
    DT_TRY(expect_failure(t, DT_ERR_ARG, "-1 elements before"));
    (void)dt_pad(t, make(t, mesh, "R", DT_BF16, 2, shape, 1), 0, INT64_MAX, 1, 0.0);
    DT_TRY(expect_failure(t, DT_ERR_SHAPE, "around 5 of axis 0"));
    (void)dt_pad(t, make(t, mesh, "S(0)", DT_BF16, 2, shape, 1), 0, INT64_MAX - 5, 1, 0.0);
    return expect_failure(t, DT_ERR_SHAPE, "around 5 of axis 0");
}

DT_TEST(general, a_cut_axis_is_padded_at_its_ends)
{
    everywhere(pads);
}

/* An attribute that holds half of a double would be read on into its neighbour. */
static dt_status pads_doubles(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 3 };
    dt_tensor *x = make(t, mesh, "R", DT_F64, 1, shape, 1);
    const dt_tensor *tenth = dt_pad(t, x, 0, 2, 1, 0.1), *zero = dt_pad(t, x, 0, 2, 1, 0.0);
    const double *with, *without;

    DT_TRY(dt_tape_status(t));
    with = dt_tensor_local(tenth)->data;
    without = dt_tensor_local(zero)->data;
    DT_EXPECT(dt_tensor_extent(tenth, 0) == 6, "%lld", (long long)dt_tensor_extent(tenth, 0));
    for (int i = 0; i < 6; i += i == 1 ? 4 : 1) /* 0, 1, 5 */
        DT_EXPECT(with[i] == 0.1 && without[i] == 0.0, "element %d is %.17g, %.17g", i, with[i],
                  without[i]);
    return DT_OK;
}

DT_TEST(general, doubles_are_padded_with_doubles)
{
    everywhere(pads_doubles);
}

/* Their extents alone would be too much for 64 bits. */
static dt_status joins_nothing(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 1LL << 61, 0 };
    dt_tensor *x = make(t, mesh, "R", DT_BF16, 2, shape, 1);

    (void)dt_concat(t, 5, (dt_tensor *[]){ x, x, x, x, x }, 0);
    return expect_failure(t, DT_ERR_SHAPE, "more than 2^63 rows");
}

DT_TEST(general, rows_of_nothing_are_counted_all_the_same)
{
    everywhere(joins_nothing);
}

/* Zeros fit terms of anything; another number would be counted once for each rank. */
static dt_status pads_terms(dt_tape *t, dt_mesh *mesh)
{
    static const float values[] = { 2.0f, 3.0f };
    static const int64_t shape[] = { 2 };

    for (int op = 0; op < DT_N_REDUCES; op++) {
        const bool counts = op == DT_SUM || op == DT_PROD;
        const dt_placement place = DT_PARTIAL((dt_reduce)op);
        dt_tensor *x, *y;
        DT_TRY(dt_from_local(mesh, &place, DT_F32, 1, shape, values, &x));
        x = dt_tape_own(t, x);
        y = dt_move(t, dt_pad(t, x, 0, 1, 0, 0.0), &(dt_placement){ 0 });
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(((const float *)dt_tensor_local(y)->data)[0] == 0.0f, "reduction %d", op);
        y = dt_move(t, dt_pad(t, x, 0, 1, 0, 1.5), &(dt_placement){ 0 });
        if (counts && dt_mesh_n_ranks(mesh) > 1) {
            DT_TRY(expect_failure(t, DT_ERR_LAYOUT, "and the padding not zero"));
            continue;
        }
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(((const float *)dt_tensor_local(y)->data)[0] == 1.5f, "reduction %d", op);
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(general, terms_are_padded_with_what_their_reduction_leaves)
{
    everywhere(pads_terms);
}

static dt_status exchanges(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 4, 6, 5 };
    dt_tensor *x = make(t, mesh, "S(1,unit=2)", DT_F32, 3, shape, 1);
    dt_tensor *y = dt_transpose(t, x, -1, 1);

    DT_TRY(dt_tape_status(t));
    DT_TRY(expect_layout(y, "S(2,unit=2)"));
    DT_TRY(same_value(t, dt_transpose(t, y, 1, 2), x, 0.0));
    return same_value(
        t, y, dt_permute(t, make(t, mesh, "R", DT_F32, 3, shape, 1), (const int[]){ 0, 2, 1 }),
        0.0);
}

DT_TEST(general, axes_take_their_cuts_along)
{
    everywhere(exchanges);
}

/* Terms of a product of halves are not rounded before they are added. */
static dt_status multiplies(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t a[] = { 2, 3, 8 }, b[] = { 2, 8, 5 };
    dt_tensor *x = make(t, mesh, "S(2)", DT_BF16, 3, a, 1),
              *y = make(t, mesh, "R", DT_BF16, 3, b, 2);
    dt_tensor *z = dt_matmul(t, x, false, y, false);
    dt_tensor *whole = dt_matmul(t, make(t, mesh, "R", DT_BF16, 3, a, 1), false, y, false);
    dt_tensor *other = dt_matmul(t, dt_transpose(t, x, 1, 2), true, dt_transpose(t, y, 1, 2), true);

    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_dtype(z) == (dt_mesh_n_ranks(mesh) > 1 ? DT_F32 : DT_BF16), "its dtype");
    DT_TRY(same_value(t, z, other, 1e-6));
    return same_value(t, dt_cast(t, z, DT_F32), dt_cast(t, whole, DT_F32), 0x1p-7);
}

DT_TEST(general, products_over_a_cut_axis_are_terms_in_f32)
{
    for (size_t m = 0; m < 2; m++) {
        const body b = multiplies;
        dt_test_on_ranks(meshes[m], on_tape, &b);
    }
}

/* --- dropout ---------------------------------------------------------------------------------- */

static dt_status drops(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 5, 7, 9 };
    static const char *const places[] = { "S(0)", "S(1)", "S(2)" };
    const dt_random key = { 11, 3 }, next = { 11, 4 };
    dt_tensor *whole = make(t, mesh, "R", DT_F32, 3, shape, 1);
    dt_tensor *want = dt_dropout(t, whole, 0.25, key), *other = dt_dropout(t, whole, 0.25, next);
    const float *x = dt_tensor_local(whole)->data, *y, *z;
    int zeros = 0, differ = 0;

    DT_TRY(dt_tape_status(t));
    for (int p = 0; p < 3; p++)
        DT_TRY(same_value(
            t, dt_dropout(t, make(t, mesh, places[p], DT_F32, 3, shape, 1), 0.25, key), want, 0.0));
    y = dt_tensor_local(want)->data;
    z = dt_tensor_local(other)->data;
    for (int i = 0; i < 315; i++) {
        DT_EXPECT(y[i] == 0.0f || fabsf(y[i] - x[i] / 0.75f) < 1e-6f, "element %d", i);
        zeros += y[i] == 0.0f;
        differ += (y[i] == 0.0f) != (z[i] == 0.0f);
    }
    DT_EXPECT(zeros > 50 && zeros < 110 && differ > 60, "%d dropped, %d by one key alone", zeros,
              differ);
    DT_EXPECT(dt_dropout(t, whole, 0.0, key) == whole, "p = 0 is x");
    DT_TRY(same_value(t, dt_dropout(t, whole, 1.0, key), dt_mul_scalar(t, whole, 0.0), 0.0));
    (void)dt_dropout(t, whole, 1.5, key);
    return expect_failure(t, DT_ERR_ARG, "p is 1.5");
}

DT_TEST(general, dropout_is_the_same_on_every_mesh)
{
    everywhere(drops);
}

/* --- activations ------------------------------------------------------------------------------ */

static dt_status activates(dt_tape *t, dt_mesh *mesh)
{
    static const int64_t shape[] = { 3, 40 };
    dt_tensor *gate = make(t, mesh, "S(1)", DT_BF16, 2, shape, 1);
    dt_tensor *up = make(t, mesh, "S(1)", DT_BF16, 2, shape, 2);

    for (int i = 0; dt_activation_at(i) != NULL; i++) {
        const dt_activation *a = dt_activation_at(i);
        DT_EXPECT(dt_activation_find(a->name) == a, "%s is there twice", a->name);
        DT_TRY(same_value(t, dt_activate_mul(t, a, gate, up),
                          dt_mul(t, dt_activate(t, a, gate), up), 0.0));
    }
    DT_EXPECT(dt_activation_find("prelu") == NULL && dt_activation_find(NULL) == NULL,
              "names that are none");
    DT_EXPECT(dt_activate(t, dt_activation_find("linear"), gate) == gate, "linear is x");
    (void)dt_activate(t, NULL, gate);
    return expect_failure(t, DT_ERR_ARG, "no activation");
}

DT_TEST(general, gated_activations_are_the_activation_times_up)
{
    const body b = activates;

    dt_test_on_ranks("tp=2", on_tape, &b);
}
