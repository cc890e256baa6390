/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions on local pieces, and what operators moved being kept for the next. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <math.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* --- a softmax over an axis that is cut ------------------------------------------------------- */

enum { ROWS = 3, COLUMNS = 10 };

/* x [r, c] -> its largest of each row [r]; of no columns the smallest number. */
static dt_status largest(const dt_kargs *a)
{
    const int64_t n = a->in[0].shape[1];

    for (int64_t r = 0; r < a->in[0].shape[0]; r++) {
        float *y = (float *)a->out[0].data + r;
        *y = -INFINITY;
        for (int64_t c = 0; c < n; c++) *y = fmaxf(*y, ((const float *)a->in[0].data)[r * n + c]);
    }
    return DT_OK;
}

/* x [r, c], largest [r] -> e^(scale (x - largest)) [r, c], its sums [r] */
static dt_status exponents(const dt_kargs *a)
{
    const float *scale = a->attr, *x = a->in[0].data, *most = a->in[1].data;
    float *y = a->out[0].data, *sum = a->out[1].data;
    const int64_t n = a->in[0].shape[1];

    DT_CHECK(a->n_in == 2 && a->n_out == 2 && a->out[0].offset[1] == a->in[0].offset[1],
             DT_ERR_INTERNAL, "pieces");
    for (int64_t r = 0; r < a->in[0].shape[0]; r++) {
        sum[r] = 0;
        for (int64_t c = 0; c < n; c++)
            sum[r] += y[r * n + c] = expf(*scale * (x[r * n + c] - most[r]));
    }
    return DT_OK;
}

static dt_status divide(const dt_kargs *a)
{
    const int64_t n = a->in[0].shape[1];

    for (int64_t r = 0; r < a->in[0].shape[0]; r++)
        for (int64_t c = 0; c < n; c++)
            ((float *)a->out[0].data)[r * n + c] =
                ((const float *)a->in[0].data)[r * n + c] / ((const float *)a->in[1].data)[r];
    return DT_OK;
}

static dt_status softmax(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, columns = DT_SHARD(1), most = DT_PARTIAL(DT_MAX);
    const dt_placement terms = DT_PARTIAL(DT_SUM), *place = arg;
    const int64_t shape[] = { ROWS, COLUMNS };
    const float scale = 0.25f;
    const dt_local_call first = { .name = "largest",
                                  .run = largest,
                                  .n_in = 1,
                                  .n_out = 1,
                                  .in_place = { &columns },
                                  .out = { { &most, DT_F32, 1, shape } } };
    const dt_local_call second = {
        .name = "exponents",
        .run = exponents,
        .attr = &scale,
        .n_in = 2,
        .n_out = 2,
        .in_place = { &columns, &whole },
        .out = { { &columns, DT_F32, 2, shape }, { &terms, DT_F32, 1, shape } },
    };
    const dt_local_call third = { .name = "divide",
                                  .run = divide,
                                  .n_in = 2,
                                  .n_out = 1,
                                  .in_place = { NULL, &whole },
                                  .out = { { &columns, DT_F32, 2, shape } } };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_tensor *y[2], *e[2];
    const bool alone = dt_mesh_n_ranks(mesh) == 1;

    DT_TRY(dt_test_arange(mesh, place, DT_F32, 2, shape, &x));
    dt_local_map(t, &first, &x, &y[0]);
    dt_local_map(t, &second, (dt_tensor *[]){ x, y[0] }, e);
    dt_local_map(t, &third, (dt_tensor *[]){ e[0], e[1] }, &y[1]);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls >= (alone ? 0 : 2), "counted");
    DT_TRY(dt_full_tensor(y[1], &full));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        double sum = 0;
        for (int c = 0; c < COLUMNS; c++) sum += exp(0.25 * (c - i % COLUMNS));
        DT_EXPECT(fabs(((const float *)dt_tensor_local(full)->data)[i] - 1.0 / sum) < 1e-6,
                  "element %d", i);
    }
    return DT_OK;
}

DT_TEST(local_map, a_softmax_over_a_cut_axis)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    const dt_placement places[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1) };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t p = 0; p < DT_COUNT(places); p++)
            dt_test_on_ranks(meshes[m], softmax, &places[p]);
}

static dt_status refuses_itself(const dt_kargs *a)
{
    DT_FAIL(DT_ERR_ARG, "no: %d operands", a->n_in);
}

static dt_status bad_calls(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, beyond = DT_SHARD(2);
    const int64_t shape[] = { 2, 2 }, negative[] = { 2, -1 };
    const dt_local_call good = {
        .name = "f", .run = divide, .n_in = 1, .n_out = 1, .out = { { &whole, DT_F32, 2, shape } }
    };
    dt_local_call no_name = good, no_run = good, many = good, none = good, nowhere = good;
    dt_local_call bad_place = good, bad_shape = good, refuses = good, moved = good;
    const struct {
        const dt_local_call *call;
        dt_status code;
        const char *message;
    } bad[] = {
        { NULL, DT_ERR_ARG, "call, in or out is NULL" },
        { &no_name, DT_ERR_ARG, "a call needs a name and a function" },
        { &no_run, DT_ERR_ARG, "a call needs a name and a function" },
        { &many, DT_ERR_ARG, "f: 10 operands and 1 results: 1 to 9 and 1 to 6 are possible" },
        { &none, DT_ERR_ARG, "f: 1 operands and 0 results" },
        { &nowhere, DT_ERR_ARG, "f: result 0 has no placements or no shape" },
        { &bad_place, DT_ERR_LAYOUT, "f: result 0: " },
        { &bad_shape, DT_ERR_SHAPE, "f: result 0: " },
        { &moved, DT_ERR_LAYOUT, "Shard(2)" },
        { &refuses, DT_ERR_ARG, "no: 1 operands" },
    };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y[DT_OP_MAX_OUT];

    (void)arg;
    no_name.name = NULL;
    no_run.run = NULL;
    many.n_in = DT_OP_MAX_IN + 1;
    none.n_out = 0;
    nowhere.out[0].place = NULL;
    bad_place.out[0].place = &beyond;
    bad_shape.out[0].shape = negative;
    refuses.run = refuses_itself;
    moved.in_place[0] = &beyond;
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 2, shape, &x));
    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        y[0] = x;
        dt_local_map(t, bad[i].call, &x, y);
        DT_EXPECT_STATUS(dt_tape_status(t), bad[i].code, bad[i].message);
        DT_EXPECT(i == 0 || i == 4 || y[0] == NULL, "no result %zu", i);
        dt_tape_reset(t);
    }
    return DT_OK;
}

DT_TEST(local_map, bad_calls_are_refused)
{
    dt_test_on_ranks("tp=1", bad_calls, NULL);
    dt_test_on_ranks("tp=2", bad_calls, NULL);
}

/* --- what operators moved --------------------------------------------------------------------- */

static int64_t reductions(const dt_tape *t)
{
    return dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls;
}

/* Terms of a sum that several operators read, also in scopes, are reduced once; after the bytes
 * have changed, and on a fresh tape, once more. */
static dt_status reduced_once(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms = DT_PARTIAL(DT_SUM);
    const int64_t shape[] = { 2, 3 };
    const float ones[] = { 1, 1, 1, 1, 1, 1 }, p = (float)dt_mesh_n_ranks(mesh);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y, *z;

    (void)arg;
    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    DT_TRY(dt_test_arange(mesh, &terms, DT_F32, 2, shape, &x));
    for (int pass = 0; pass < 2; pass++) {
        dt_tape_reset(t);
        dt_scope_begin(t, "first");
        (void)dt_silu(t, x);
        (void)dt_silu(t, x);
        (void)dt_scope_end(t, NULL);
        dt_scope_begin(t, "second");
        (void)dt_gelu_tanh(t, x);
        (void)dt_scope_end(t, NULL);
        y = dt_soft_cap(t, x, 1e9);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(reductions(t) == 1, "%d reductions", (int)reductions(t));
        DT_EXPECT(fabsf(((const float *)dt_tensor_local(y)->data)[5] - 5) < 1e-3f, "the sum");
    }
    /* a value of the tape, made inside a scope: it goes with the scope */
    dt_scope_begin(t, "block");
    z = dt_add(t, x, x);
    dt_scope_begin(t, "layer");
    (void)dt_silu(t, z);
    (void)dt_scope_end(t, NULL);
    (void)dt_silu(t, z);
    DT_EXPECT(reductions(t) == 2, "%d reductions", (int)reductions(t));
    dt_tape_drop(t, z);
    (void)dt_scope_end(t, NULL);
    (void)dt_silu(t, x);
    DT_EXPECT(reductions(t) == 2, "%d reductions", (int)reductions(t));
    /* other bytes, other sums */
    DT_TRY(dt_tensor_write(x, ones, sizeof ones));
    y = dt_soft_cap(t, x, 1e9);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(reductions(t) == 3, "%d reductions", (int)reductions(t));
    DT_EXPECT(fabsf(((const float *)dt_tensor_local(y)->data)[5] - p) < 1e-3f, "the new sum");
    /* the value goes before what it was moved to, which is still the tape's */
    dt_tensor_release(&x);
    (void)dt_silu(t, y);
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

DT_TEST(local_map, what_operators_moved_is_moved_once)
{
    dt_test_on_ranks("tp=2", reduced_once, NULL);
    dt_test_on_ranks("tp=3", reduced_once, NULL);
}
