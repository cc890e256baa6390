/* SPDX-License-Identifier: Apache-2.0
 *
 * Shards whose neighbours hold terms of a sum: which operators take them, what comes out, and who
 * else looks at elements. Values are small integers, so sums are exact in any order. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>
#include <string.h>

#include "placements/layout.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* Small numbers that differ between ranks where the layout has terms. */
static dt_status make(dt_mesh *mesh, const char *text, int n_axes, const int64_t *shape,
                      dt_tensor **out)
{
    static const float numbers[] = { 1, 2, 4, -1, -2, 1, 4, 2, -4, 2, 1 };
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *l;
    float data[512];
    uint32_t h = 1;

    *out = NULL;
    DT_TRY(dt_layout_parse(mesh, n_axes, text, &l));
    (void)dt_layout_placements(l, place);
    for (int m = 0; m < l->n_dims; m++)
        if (place[m].terms || place[m].kind == DT_PLACE_PARTIAL)
            h = h * 7u + (uint32_t)dt_mesh_coord(mesh, m);
        else if (place[m].kind == DT_PLACE_SHARD)
            h = h * 5u + (uint32_t)(dt_mesh_coord(mesh, m) / place[m].replicas);
    for (uint32_t i = 0; i < DT_COUNT(data); i++) data[i] = numbers[(i + 3 * h) % 11];
    return dt_from_local(mesh, place, DT_F32, n_axes, shape, data, out);
}

typedef dt_tensor *(*row)(dt_tape *t, dt_tensor *x, dt_tensor *other);

#define ROW(name, call)                                                \
    static dt_tensor *name(dt_tape *t, dt_tensor *x, dt_tensor *other) \
    {                                                                  \
        (void)other;                                                   \
        return call;                                                   \
    }
ROW(neg, dt_neg(t, x))
ROW(twice, dt_add(t, x, x))
ROW(none_left, dt_sub(t, dt_mul_scalar(t, x, 3), x))
ROW(add, dt_add(t, x, other))
ROW(mul, dt_mul(t, other, x))
ROW(square, dt_mul(t, x, x))
ROW(divided, dt_div(t, x, other))
ROW(divides, dt_div(t, other, x))
ROW(choose, dt_where(t, dt_compare(t, other, DT_LESS, dt_mul_scalar(t, other, 2)), x, dt_neg(t, x)))
ROW(as_x, dt_linear(t, x, other, NULL))
ROW(as_w, dt_linear(t, other, x, NULL))
ROW(biased, dt_linear(t, x, other, dt_slice(t, dt_sum(t, other, 1), 0, 0, 4)))
ROW(product, dt_matmul(t, x, true, other, false))
ROW(sum_cut, dt_sum(t, x, 1))
ROW(sum_rows, dt_sum(t, x, 0))
ROW(sum_all, dt_sum(t, x, DT_ALL_AXES))
ROW(slice_cut, dt_slice(t, x, 1, 2, 5))
ROW(slice_rows, dt_slice(t, x, 0, 2, 3))
ROW(turn, dt_transpose(t, x, 0, 1))
ROW(split_rows, dt_reshape(t, x, 3, (const int64_t[]){ 2, 3, 8 }))
ROW(split_cut, dt_reshape(t, x, 3, (const int64_t[]){ 6, 4, 2 }))
ROW(pad_zeros, dt_pad(t, x, 1, 1, 2, 0))
ROW(pad_ones, dt_pad(t, x, 0, 1, 2, 1))
ROW(join, dt_concat(t, 2, (dt_tensor *[]){ x, x }, 0))
ROW(running, dt_cumsum(t, x, 0))
ROW(exponential, dt_exp(t, x))
ROW(largest, dt_max(t, x, 0))
ROW(one_more, dt_add_scalar(t, x, 1))
ROW(normed, dt_rms_norm(t, x, dt_slice(t, dt_sum(t, other, 0), 0, 0, 8), 1e-5F))
ROW(heads, dt_heads(t, x, 4))
ROW(heads_and_back, dt_unheads(t, dt_heads(t, x, 4)))
ROW(turned, dt_rope(t, dt_heads(t, x, 4), other))
ROW(blocks, dt_slice(t, x, 1, 4, 2))
#undef ROW

typedef struct terms_case {
    const char *name;
    row row;
    const char *x, *other; /* layouts; other NULL: there is none */
    const char *y;         /* NULL: refused, and reduced if moves are allowed */
    int n_axes, n_other;
    int64_t shape[3], other_shape[3];
} terms_case;

#define TERMS  "S(1,unit=2,replicas=2,sum)"
#define COPIES "S(1,unit=2,replicas=2)"
#define X    \
    2, 2,    \
    {        \
        6, 8 \
    }

static const terms_case cases[] = {
    { "neg", neg, TERMS, NULL, TERMS, X, { 0 } },
    { "x + x", twice, TERMS, NULL, TERMS, X, { 0 } },
    { "3 x - x", none_left, TERMS, NULL, TERMS, X, { 0 } },
    { "x + copies", add, TERMS, COPIES, NULL, X, { 6, 8 } },
    { "x + whole", add, TERMS, "R", NULL, X, { 6, 8 } },
    { "copies * x", mul, TERMS, COPIES, TERMS, X, { 6, 8 } },
    { "whole * x", mul, TERMS, "R", TERMS, X, { 6, 8 } },
    { "cut elsewhere * x", mul, TERMS, "S(0)", NULL, X, { 6, 8 } },
    { "x * x", square, TERMS, NULL, NULL, X, { 0 } },
    { "x / copies", divided, TERMS, COPIES, TERMS, X, { 6, 8 } },
    { "copies / x", divides, TERMS, COPIES, NULL, X, { 6, 8 } },
    { "where", choose, TERMS, COPIES, TERMS, X, { 6, 8 } },
    { "x w', contracted", as_x, TERMS, COPIES, "P(sum)", X, { 4, 8 } },
    { "x w', w sliced", as_x, TERMS, "R", "P(sum)", X, { 4, 8 } },
    { "x w' + b", biased, TERMS, "R", NULL, X, { 4, 8 } },
    { "other x', the letter stays",
      as_w,
      "S(0,replicas=2,sum)",
      "R",
      "S(1,replicas=2,sum)",
      X,
      { 3, 8 } },
    { "x' other, the letter stays",
      product,
      TERMS,
      "R",
      "S(0,unit=2,replicas=2,sum)",
      X,
      { 6, 3 } },
    { "sum over the cut", sum_cut, TERMS, NULL, "P(sum)", X, { 0 } },
    { "sum over rows", sum_rows, TERMS, NULL, "S(0,unit=2,replicas=2,sum)", X, { 0 } },
    { "sum over all", sum_all, TERMS, NULL, "P(sum)", X, { 0 } },
    { "columns", slice_cut, TERMS, NULL, "P(sum)", X, { 0 } },
    { "rows", slice_rows, TERMS, NULL, TERMS, X, { 0 } },
    { "transpose", turn, TERMS, NULL, "S(0,unit=2,replicas=2,sum)", X, { 0 } },
    { "rows split", split_rows, TERMS, NULL, "S(2,unit=2,replicas=2,sum)", X, { 0 } },
    { "columns split", split_cut, TERMS, NULL, "S(1,replicas=2,sum)", X, { 0 } },
    { "zeros around", pad_zeros, TERMS, NULL, "S(1,replicas=2,sum,offsets=0:5:11)", X, { 0 } },
    { "ones around", pad_ones, TERMS, NULL, NULL, X, { 0 } },
    { "concat", join, TERMS, NULL, TERMS, X, { 0 } },
    { "cumsum", running, TERMS, NULL, TERMS, X, { 0 } },
    { "exp", exponential, TERMS, NULL, NULL, X, { 0 } },
    { "max", largest, TERMS, NULL, NULL, X, { 0 } },
    { "x + 1", one_more, TERMS, NULL, NULL, X, { 0 } },
    { "rms_norm", normed, "S(0,replicas=2,sum)", "R", NULL, X, { 6, 8 } },
    { "blocks", blocks, "S(1,replicas=2,sum,blocks=4:2:2)", NULL, "S(1,replicas=2,sum)", X, { 0 } },
    { "heads",
      heads,
      "S(2,unit=4,replicas=2,sum)",
      NULL,
      "S(2,replicas=2,sum)",
      3,
      3,
      { 1, 3, 16 },
      { 0 } },
    { "heads and back",
      heads_and_back,
      "S(2,unit=4,replicas=2,sum)",
      NULL,
      "S(2,unit=4,replicas=2,sum)",
      3,
      3,
      { 1, 3, 16 },
      { 0 } },
    { "rope",
      turned,
      "S(2,unit=4,replicas=2,sum)",
      "R",
      "S(2,replicas=2,sum)",
      3,
      3,
      { 1, 3, 16 },
      { 1, 3, 4 } },
};

/* The row of the whole operands. */
static dt_status expected(const terms_case *c, dt_tape *t, dt_tensor *x, dt_tensor *other,
                          dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    x = dt_move(t, x, whole);
    *out = c->row(t, x, other == NULL ? NULL : dt_move(t, other, whole));
    return dt_tape_status(t);
}

static dt_status check_layout(const dt_tensor *y, const char *want, dt_mesh *mesh)
{
    const dt_layout *l;

    DT_TRY(dt_layout_parse(mesh, dt_tensor_n_axes(y), want, &l));
    if (l == dt_tensor_layout(y)) return DT_OK;
    char text[128];
    (void)dt_layout_print(dt_tensor_layout(y), text, sizeof text);
    DT_EXPECT(false, "%s, not %s", text, want);
    return DT_OK;
}

static dt_status one_case(const terms_case *c, dt_mesh *mesh)
{
    DT_HELD(tape) *t = NULL, *allowed = NULL;
    DT_HELD(tensor) *x = NULL, *other = NULL;
    dt_tensor *want, *y;
    bool same = false;

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &allowed));
    DT_TRY(make(mesh, c->x, c->n_axes, c->shape, &x));
    if (c->other != NULL) DT_TRY(make(mesh, c->other, c->n_other, c->other_shape, &other));
    DT_TRY(expected(c, t, x, other, &want));
    if (c->y == NULL) {
        (void)c->row(t, x, other);
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "redistribute it first");
    } else {
        y = c->row(t, x, other);
        DT_TRY(dt_tape_status(t));
        DT_TRY(check_layout(y, c->y, mesh));
        DT_TRY(dt_equal(want, y, &same));
        DT_EXPECT(same, "another value");
    }
    dt_tape_set_moves(allowed, DT_MOVES_ALLOW);
    y = c->row(allowed, x, other);
    DT_TRY(dt_tape_status(allowed));
    DT_TRY(dt_equal(want, y, &same));
    DT_EXPECT(same, "another value where moves are allowed");
    return DT_OK;
}

static dt_status all_cases(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dt_status st = one_case(&cases[i], mesh);
        if (st == DT_OK) continue;
        dti_error_prefix("%s", cases[i].name);
        return st;
    }
    return DT_OK;
}

DT_TEST(terms, pass_through_what_is_linear_in_them)
{
    dt_test_on_ranks("tp=4", all_cases, NULL);
}

/* --- a layer with shared key heads ------------------------------------------------------------ */

/* dk of two key heads that four ranks hold twice; x: 5 tokens of 6. Both products of a linear
 * layer's backward are sums of terms, none counted twice. */
static dt_status backward_of_shared_heads(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *dk = NULL, *w = NULL, *x = NULL;
    dt_tensor *dx, *dw, *all, *dx_whole, *dw_whole;
    const int last = dt_mesh_n_dims(mesh) - 1;
    const bool two = last == 1;
    bool same = false;

    (void)arg;
    DT_TRY(make(mesh, two ? "S(0)S(1,unit=3,replicas=2,sum)" : "S(1,unit=3,replicas=2,sum)", 2,
                (const int64_t[]){ 5, 6 }, &dk));
    DT_TRY(make(mesh, two ? "RS(0,unit=3,replicas=2)" : "S(0,unit=3,replicas=2)", 2,
                (const int64_t[]){ 6, 4 }, &w));
    DT_TRY(make(mesh, two ? "S(0)R" : "R", 2, (const int64_t[]){ 5, 4 }, &x));
    dx = dt_matmul(t, dk, false, w, false);
    dw = dt_matmul(t, dk, true, x, false);
    DT_TRY(dt_tape_status(t));
    DT_TRY(check_layout(dx, two ? "S(0)P(sum)" : "P(sum)", mesh));
    DT_TRY(check_layout(dw, two ? "P(sum)S(0,unit=3,replicas=2,sum)" : "S(0,unit=3,replicas=2,sum)",
                        mesh));
    all = dt_move(t, dk, whole);
    dx_whole = dt_matmul(t, all, false, dt_move(t, w, whole), false);
    dw_whole = dt_matmul(t, all, true, dt_move(t, x, whole), false);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_equal(dx_whole, dx, &same));
    DT_EXPECT(same, "dx");
    DT_TRY(dt_equal(dw_whole, dw, &same));
    DT_EXPECT(same, "dw");
    /* to where the parameter lies: over dp and the two holders at once */
    dw = dt_move(
        t, dw,
        two ? (const dt_placement[]){ DT_REPLICATE, dt_layout_placement(dt_tensor_layout(w), 1) }
            : (const dt_placement[]){ dt_layout_placement(dt_tensor_layout(w), 0) });
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_equal(dw_whole, dw, &same));
    DT_EXPECT(same, "dw where w lies");
    return DT_OK;
}

DT_TEST(terms, products_of_shared_heads_count_nothing_twice)
{
    dt_test_on_ranks("tp=4", backward_of_shared_heads, NULL);
    dt_test_on_ranks("dp=2,tp=4", backward_of_shared_heads, NULL);
}

/* --- moves, counted --------------------------------------------------------------------------- */

static dt_status counted(dt_mesh *mesh, const void *arg)
{
    static const struct {
        const char *to;
        dt_comm_kind kind;
        int64_t bytes; /* of 8 x 6 f32, N = 192, pieces of 96 */
    } moves[] = {
        { "S(0,replicas=2)", DT_COMM_ALL_REDUCE, 96 },
        { "S(0)", DT_COMM_REDUCE_SCATTER, 48 },
    };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(make(mesh, "S(0,replicas=2,sum)", 2, (const int64_t[]){ 8, 6 }, &x));
    for (size_t i = 0; i < DT_COUNT(moves); i++) {
        const dt_layout *to;
        dt_placement place[1];
        DT_TRY(dt_layout_parse(mesh, 2, moves[i].to, &to));
        (void)dt_layout_placements(to, place);
        dt_tape_reset(t);
        (void)dt_move(t, x, place);
        DT_TRY(dt_tape_status(t));
        for (int k = 0; k < DT_N_COMM_KINDS; k++) {
            const dt_comm_counter got = dt_tape_comm(t, (dt_comm_kind)k);
            const bool is = k == (int)moves[i].kind;
            DT_EXPECT(got.calls == is && got.bytes == (is ? moves[i].bytes : 0),
                      "%s: %lld bytes of kind %d", moves[i].to, (long long)got.bytes, k);
        }
    }
    return DT_OK;
}

DT_TEST(terms, are_reduced_by_their_holders_alone)
{
    dt_test_on_ranks("tp=4", counted, NULL);
}

/* --- who else looks at elements --------------------------------------------------------------- */

static dt_status looked_at(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 4, 2 };
    dt_placement terms = dt_shard_terms(0, 1, 2), copies = terms;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;
    float mine[4];
    double value;
    char text[600];
    bool same = false;

    (void)arg;
    copies.terms = false;
    for (int i = 0; i < 4; i++) mine[i] = (float)(i + dt_mesh_coord(mesh, 0));
    DT_TRY(dt_from_local(mesh, &terms, DT_F32, 2, shape, mine, &x));
    DT_TRY(dt_redistribute(x, &copies, &y));
    DT_TRY(dt_equal(x, y, &same));
    DT_EXPECT(same, "terms are not their sum");
    DT_TRY(dt_full_tensor(x, &z));
    DT_TRY(dt_item(z, (const int64_t[]){ 3, 1 }, &value));
    DT_EXPECT(value > 10.5 && value < 11.5, "3 + 2 and 3 + 3 are %g", value);
    DT_EXPECT_STATUS(dt_item(x, (const int64_t[]){ 3, 1 }, &value), DT_ERR_LAYOUT,
                     "x is S(0,replicas=2,sum) on mesh dim \"tp\": no rank has the element");
    dt_tensor_release(&z);
    DT_EXPECT_STATUS(dt_zeros(mesh, &terms, DT_F32, 2, shape, &z), DT_ERR_LAYOUT,
                     "not created Partial");
    DT_TRY(dt_visualize(x, DT_DRAW_TEXT, text, sizeof text, NULL));
    DT_EXPECT(strstr(text, "0 + 1") != NULL && strstr(text, "2 + 3") != NULL, "%s", text);
    /* each of the copies that a rank brings must be that of its neighbour; terms need not */
    dt_tensor_release(&z);
    DT_TRY(dt_from_local_checked(mesh, &terms, DT_F32, 2, shape, mine, &z));
    dt_tensor_release(&z);
    DT_EXPECT_STATUS(dt_from_local_checked(mesh, &copies, DT_F32, 2, shape, mine, &z), DT_ERR_ARG,
                     "hold copies of one piece, but their bytes differ");
    /* the first holder keeps the value */
    DT_TRY(dt_redistribute(y, &terms, &z));
    for (int i = 0; i < 4; i++) {
        const float *got = dt_tensor_local(z)->data, *sum = dt_tensor_local(y)->data;
        const bool first = dt_mesh_coord(mesh, 0) % 2 == 0;
        DT_EXPECT(memcmp(&got[i], first ? &sum[i] : &(float){ 0 }, sizeof *got) == 0,
                  "element %d of rank %d", i, dt_mesh_coord(mesh, 0));
    }
    return DT_OK;
}

DT_TEST(terms, are_no_elements_before_they_are_added)
{
    dt_test_on_ranks("tp=4", looked_at, NULL);
}
