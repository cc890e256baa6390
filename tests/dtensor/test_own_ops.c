/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators of the caller's own, and calls of built-in ones that no tensor can result from: each is
 * refused with words, on the tape. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"

static dt_status no_kernel(const dt_kargs *args)
{
    (void)args;
    return DT_OK;
}

static char attributes[4096];

typedef struct bad_row {
    dt_op op;
    int n;
    dt_status code;
    const char *message;
} bad_row;

#define OWN(name_, axes_, types_, cpu_, flags_, bytes)                               \
    {                                                                                \
        .name = name_, .axes = axes_, .types = types_, .cpu = cpu_, .flags = flags_, \
        .attr_bytes = bytes                                                          \
    }

static const bad_row bad_rows[] = {
    { OWN("big", "... -> ...", "F>F", no_kernel, 0, sizeof attributes), 1, DT_ERR_ARG,
      "big: 4096 bytes of attributes, at most 40" },
    { OWN("big", "... -> ...", "F>F", no_kernel, DT_OP_VALUE_ATTR, 129), 1, DT_ERR_ARG,
      "big: 129 bytes of attributes, at most 128" },
    { OWN("diagonal", "aa -> a", "F>F", no_kernel, 0, 0), 1, DT_ERR_ARG,
      "letter a stands twice in one term" },
    { OWN("outer", "ab -> ba[b]", "F>F", no_kernel, 0, 0), 1, DT_ERR_ARG,
      "letter b stands twice in one term" },
    { OWN("add", "ab, ab -> ab", "FF>F", no_kernel, 0, 0), 1, DT_ERR_ARG, "1 operands given" },
    { OWN("none", "ab -> ab", "F>F", NULL, 0, 0), 1, DT_ERR_ARG, "none has no CPU kernel" },
    { OWN(NULL, "ab -> ab", "F>F", no_kernel, 0, 0), 1, DT_ERR_ARG,
      "needs a name, axes and types" },
    { OWN("no_types", "ab -> ab", NULL, no_kernel, 0, 0), 1, DT_ERR_ARG,
      "needs a name, axes and types" },
    { OWN("many", "ab -> ab", "F>F", no_kernel, 0, 0), DT_OP_MAX_IN + 1, DT_ERR_ARG,
      "many is called with 10 operands: 1 to 9" },
};

static dt_status refuses(dt_mesh *mesh, const void *arg)
{
    const dt_placement cut = DT_SHARD(0);
    dt_tensor *in[7] = { NULL };
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_ones(mesh, &cut, DT_F32, 2, (const int64_t[]){ 4, 4 }, &in[0]));
    for (int i = 1; i < 7; i++) in[i] = in[0];
    for (size_t i = 0; i < DT_COUNT(bad_rows); i++) {
        const bad_row *r = &bad_rows[i];
        (void)dt_apply(t, &r->op, attributes, r->n, in);
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), r->code,
                                   r->message);
        if (st != DT_OK) goto done;
        dt_tape_reset(t);
    }
done:
    dt_tensor_release(&in[0]);
    dt_tape_release(&t);
    return st;
}

DT_TEST(own_ops, malformed_rows_are_refused)
{
    dt_test_on_ranks("tp=1", refuses, NULL);
    dt_test_on_ranks("tp=2", refuses, NULL);
}

/* --- several results -------------------------------------------------------------------------- */

enum { ROWS = 5, COLUMNS = 7 };

/* x [r, c] -> 2 x [r, c], and the sums of its rows [r]; by threads. */
typedef struct row_job {
    const float *x;
    float *twice, *sums;
    int64_t rows, columns;
    int64_t *shares; /* rows that each worker took */
} row_job;

static void rows_of_worker(void *arg, int worker, int n_workers)
{
    const row_job *j = arg;
    int64_t begin, end;

    dt_kernel_share(j->rows, 1, worker, n_workers, &begin, &end);
    j->shares[worker] = end - begin;
    for (int64_t r = begin; r < end; r++) {
        double sum = 0;
        for (int64_t c = 0; c < j->columns; c++) {
            sum += (double)j->x[r * j->columns + c];
            j->twice[r * j->columns + c] = 2 * j->x[r * j->columns + c];
        }
        j->sums[r] = (float)sum;
    }
}

static dt_status twice_and_sums(const dt_kargs *a)
{
    row_job j = { .x = a->in[0].data,
                  .twice = a->out[0].data,
                  .sums = a->out[1].data,
                  .rows = a->in[0].shape[0],
                  .columns = a->in[0].shape[1] };
    const int n = dt_kernel_workers(a);
    int64_t taken = 0;
    void *scratch;

    DT_EXPECT(a->n_in == 1 && a->n_out == 2, "%d results", a->n_out);
    DT_TRY(dt_kernel_scratch(a, (size_t)n * sizeof *j.shares, &scratch));
    j.shares = scratch;
    for (int w = 0; w < n; w++) j.shares[w] = 0;
    dt_kernel_run(a, j.columns % 2 == 0 ? 1 << 30 : 1, rows_of_worker, &j);
    for (int w = 0; w < n; w++) taken += j.shares[w];
    DT_EXPECT(taken == j.rows, "workers took %lld of %lld rows", (long long)taken,
              (long long)j.rows);
    return DT_OK;
}

static const dt_op parts_op = {
    .name = "twice_and_sums", .axes = "rc -> rc, r", .types = "f>ff", .cpu = twice_and_sums
};

/* Each result lies as its own letters say: a cut of columns reaches the first and leaves the second
 * Partial. */
static dt_status two_results(dt_mesh *mesh, const void *arg)
{
    const dt_placement *place = arg, whole = DT_REPLICATE;
    const int64_t shape[] = { ROWS, COLUMNS };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_tensor *y[2];
    uint64_t misses[2];

    DT_TRY(dt_arange(mesh, place, DT_F32, 2, shape, ((dt_steps){ 0, 1 }), &x));
    for (int pass = 0; pass < 2; pass++) {
        dt_apply_n(t, &parts_op, NULL, 1, &x, 2, y);
        DT_TRY(dt_tape_status(t));
        dt_op_counts(dt_mesh_runtime(mesh), NULL, &misses[pass]);
    }
    DT_EXPECT(misses[0] == misses[1], "a warm call misses no cache");
    DT_EXPECT(dt_tensor_n_axes(y[0]) == 2 && dt_tensor_n_axes(y[1]) == 1, "axes");
    if (place->kind == DT_PLACE_SHARD && dt_mesh_n_ranks(mesh) > 1)
        DT_EXPECT(dt_layout_placement(dt_tensor_layout(y[1]), 0).kind ==
                      (place->axis == 1 ? DT_PLACE_PARTIAL : DT_PLACE_SHARD),
                  "the placement of the sums");
    DT_TRY(dt_full_tensor(y[0], &full));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        DT_EXPECT(((float *)dt_tensor_local(full)->data)[i] == (float)(2 * i), "%d", i);
    dt_tensor_release(&full);
    DT_TRY(dt_redistribute(y[1], &whole, &full));
    for (int r = 0; r < ROWS; r++)
        DT_EXPECT(((float *)dt_tensor_local(full)->data)[r] ==
                      (float)(COLUMNS * r * COLUMNS + COLUMNS * (COLUMNS - 1) / 2),
                  "sum %d is %g", r, (double)((float *)dt_tensor_local(full)->data)[r]);
    return DT_OK;
}

DT_TEST(own_ops, several_results_each_lie_as_their_letters_say)
{
    const dt_placement places[] = { DT_REPLICATE, DT_SHARD(0), DT_SHARD(1) };
    static const char *const specs[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t p = 0; p < DT_COUNT(places); p++)
        for (size_t m = 0; m < DT_COUNT(specs); m++)
            dt_test_on_ranks(specs[m], two_results, &places[p]);
}

static dt_status refuses_results(dt_mesh *mesh, const void *arg)
{
    static const dt_op view = {
        .name = "turned", .axes = "ab -> ba", .types = "F>F", .flags = DT_OP_VIEW | DT_OP_LINEAR
    };
    static const dt_op in_place = { .name = "in_place",
                                    .axes = "ab -> ab",
                                    .types = "F>F",
                                    .cpu = no_kernel,
                                    .flags = DT_OP_INPLACE_LAST };
    static const dt_op unknown = {
        .name = "unknown", .axes = "ab -> ab", .types = "F>F", .cpu = no_kernel, .flags = 1u << 30
    };
    static const dt_op chosen = {
        .name = "chosen", .axes = "ab -> ab", .types = "F>a", .cpu = no_kernel
    };
    static const dt_op types = {
        .name = "short", .axes = "ab -> ab, ab", .types = "F>F", .cpu = no_kernel
    };
    static const dt_op many = { .name = "many",
                                .axes = "ab -> ab, ab, ab, ab, ab, ab, ab",
                                .types = "F>FFFFFFF",
                                .cpu = no_kernel };
    const struct {
        const dt_op *op;
        int n_out;
        const char *message;
    } rows[] = {
        { &view, 1,
          "operator turned has the flags 0x5, of which 0x4 are not for rows of one's own" },
        { &in_place, 1, "of which 0x8 are not for rows of one's own" },
        { &unknown, 1, "of which 0x40000000 are not for rows of one's own" },
        { &chosen, 1, "is the dtype that the attributes begin with, which have 0 bytes" },
        { &types, 2, "operator short: types \"F>F\" do not fit axes" },
        { &many, 2, "more than 6 results" },
        { &parts_op, 1, "1 results are asked for; dt_apply() gives one, dt_apply_n() several" },
        { &parts_op, 3, "3 results are asked for" },
        { &parts_op, 7, "twice_and_sums is asked for 7 results: 1 to 6 are possible" },
        { &parts_op, 0, "is asked for 0 results" },
    };
    const dt_placement cut = DT_SHARD(0);
    dt_tensor *x = NULL, *y[DT_OP_MAX_OUT + 1];
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_ones(mesh, &cut, DT_F32, 2, (const int64_t[]){ 4, 4 }, &x));
    dt_apply_n(t, &parts_op, NULL, 1, &x, 2, y); /* and now it is in the cache */
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const bool by_apply = rows[i].op == &parts_op && rows[i].n_out == 1;
        if (by_apply) /* a row with two results is refused too, also when it is warm */
            (void)dt_apply(t, rows[i].op, NULL, 1, &x);
        else
            dt_apply_n(t, rows[i].op, NULL, 1, &x, rows[i].n_out, y);
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                                   rows[i].message);
        for (int r = 0; r < rows[i].n_out && !by_apply && st == DT_OK; r++)
            DT_EXPECT_TO(done, st, y[r] == NULL, "no result %d", r);
        if (st != DT_OK) goto done;
        dt_tape_reset(t);
    }
    dt_apply_n(t, &parts_op, NULL, 1, &x, 2, NULL);
    DT_TRY_TO(done, st,
              dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                                    "twice_and_sums: out is NULL"));
    dt_tape_reset(t);
    dt_apply_n(t, &parts_op, NULL, 1, NULL, 2, y);
    DT_TRY_TO(done, st,
              dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_ARG,
                                    "twice_and_sums: in is NULL"));
done:
    dt_tensor_release(&x);
    dt_tape_release(&t);
    return st;
}

DT_TEST(own_ops, wrong_numbers_of_results_are_refused)
{
    dt_test_on_ranks("tp=1", refuses_results, NULL);
    dt_test_on_ranks("tp=2", refuses_results, NULL);
}

/* --- refusals --------------------------------------------------------------------------------- */

/* A product of two tensors that exist, which has more bytes than a tensor can have. */
DT_TEST(own_ops, a_result_beyond_63_bits_is_refused)
{
    const int64_t shape[] = { (int64_t)1 << 40, 2 };
    const dt_placement place = DT_SHARD(0);
    const dt_run_options o = DT_RUN_OPTIONS_INIT;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(tensor) *x = NULL;
    DT_HELD(tape) *t = NULL;

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=1", &mesh));
    DT_ASSERT_OK(dt_tape_create(rt, &t));
    DT_ASSERT_OK(dt_zeros(mesh, &place, DT_F32, 2, shape, &x));
    DT_ASSERT(dt_linear(t, x, x, NULL) == NULL);
    DT_ASSERT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "linear: a result of 2 axes exceeds 2^63 bytes at axis 1");
}

/* Slices that leave the axis, also by numbers whose sums do not fit. */
static dt_status slices(dt_mesh *mesh, const void *arg)
{
    static const struct {
        int axis;
        int64_t begin, count;
        dt_status code;
        const char *message;
    } bad[] = {
        { 1, 1, INT64_MAX, DT_ERR_SHAPE,
          "slice: 9223372036854775807 rows from row 1 on of axis 1" },
        { 1, INT64_MAX, 1, DT_ERR_SHAPE, "which has 4" },
        { 1, INT64_MIN, 1, DT_ERR_SHAPE, "which has 4" },
        { 1, 0, -1, DT_ERR_SHAPE, "slice: -1 rows" },
        { 0, 1, 1, DT_ERR_SHAPE, "axis 0, which has 1" },
        { 2, 0, 0, DT_ERR_ARG, "axis 2 of a tensor of 2 axes" },
        { -3, 0, 0, DT_ERR_ARG, "axis -3 of a tensor of 2 axes" },
    };
    const dt_placement whole = DT_REPLICATE;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_arange(mesh, &whole, DT_F32, 2, (const int64_t[]){ 1, 4 }, (dt_steps){ 0, 1 }, &x));
    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        (void)dt_slice(t, x, bad[i].axis, bad[i].begin, bad[i].count);
        DT_EXPECT_STATUS(dt_tape_status(t), bad[i].code, bad[i].message);
        dt_tape_reset(t);
    }
    dt_tensor *y = dt_slice(t, x, -1, -3, 2); /* and one that does not */
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_extent(y, 1) == 2, "two columns");
    DT_EXPECT(((const float *)dt_tensor_local(y)->data)[0] == 1.0f, "from column 1");
    return DT_OK;
}

DT_TEST(own_ops, slices_outside_the_axis_are_refused)
{
    dt_test_on_ranks("tp=1", slices, NULL);
    dt_test_on_ranks("tp=2", slices, NULL);
}

/* Rows 2.. of x [2, 7, 3] in bf16, whole numbers; the axis is cut, some ranks have no such row. */
static dt_status slice_of_a_cut(dt_mesh *mesh, const void *arg)
{
    static const struct {
        int64_t begin, count, first;
    } rows[] = { { -1, 1, 6 }, { -7, 2, 0 }, { 2, 4, 2 }, { 0, 7, 0 }, { 3, 0, 3 } };
    const dt_placement cuts[] = { DT_SHARD(1), DT_SHARD(1) }; /* over one dim or two */
    const dt_placement mixed[] = { DT_PARTIAL(DT_MAX), DT_SHARD(1) };
    const int64_t shape[] = { 2, 7, 3 };
    dt_tensor *x = NULL, *full = NULL;
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_arange(mesh, cuts, DT_BF16, 3, shape, (dt_steps){ 0, 1 }, &x));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_tensor *y = dt_slice(t, x, -2, rows[i].begin, rows[i].count);
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_EXPECT_TO(done, st, dt_tensor_dtype(y) == DT_BF16, "one term counts: no wider dtype");
        DT_EXPECT_TO(done, st,
                     dt_mesh_n_ranks(mesh) == 1 ||
                         dt_layout_placement(dt_tensor_layout(y), 0).kind == DT_PLACE_PARTIAL,
                     "a sum");
        DT_TRY_TO(done, st, dt_full_tensor(y, &full));
        for (int64_t k = 0; k < 2 * rows[i].count * 3; k++) {
            const int64_t b = k / (3 * rows[i].count), row = k / 3 % rows[i].count;
            const float want = (float)(21 * b + 3 * (rows[i].first + row) + k % 3);
            DT_EXPECT_TO(done, st, dti_load_f32(dt_tensor_local(full)->data, DT_BF16, k) == want,
                         "case %zu, element %d", i, (int)k);
        }
        dt_tensor_release(&full);
    }
    (void)dt_slice(t, x, 1, -8, 1);
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_SHAPE,
                               "slice: 1 rows from row -8 on of axis 1, which has 7");
    dt_tensor_release(&x);
    dt_tape_reset(t);
    if (st != DT_OK || dt_mesh_n_dims(mesh) < 2) goto done;
    DT_TRY_TO(done, st, dt_from_local(mesh, mixed, DT_F32, 3, shape, (const float[42]){ 0 }, &x));
    (void)dt_slice(t, x, 1, 0, 1); /* zeros of a rank without the row would enter the maximum */
    st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                               "mesh dim \"tp\" operand 0 is Shard(1) along the axis");
done:
    dt_tensor_release(&full);
    dt_tensor_release(&x);
    dt_tape_release(&t);
    return st;
}

DT_TEST(own_ops, a_slice_of_a_cut_axis_is_a_sum_of_one_term)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], slice_of_a_cut, NULL);
}

/* --- words ------------------------------------------------------------------------------------ */

/* Cuts that no placement of the result could have are not cuts at different rows. */
static dt_status two_cuts(dt_mesh *mesh, const void *arg)
{
    static const dt_op outer = {
        .name = "outer", .axes = "a, b -> ab", .types = "FF>F", .cpu = no_kernel
    };
    static const dt_op vanishes = {
        .name = "vanishes", .axes = "ab, b -> a", .types = "FF>F", .cpu = no_kernel
    };
    const dt_placement rows = DT_SHARD(0), twos = DT_SHARD_UNITS(0, 2);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL, *w = NULL;

    (void)arg;
    DT_TRY(dt_ones(mesh, &rows, DT_F32, 1, (const int64_t[]){ 4 }, &x));
    DT_TRY(dt_ones(mesh, &twos, DT_F32, 1, (const int64_t[]){ 4 }, &y));
    DT_TRY(dt_ones(mesh, &rows, DT_F32, 2, (const int64_t[]){ 4, 4 }, &w));
    (void)dt_apply(t, &outer, NULL, 2, (dt_tensor *[]){ x, x });
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT,
                     "operand 0 is Shard(0), which cuts axis a, and operand 1 is "
                     "Shard(0), which cuts axis b: one mesh dim cannot cut two axes "
                     "of the result; redistribute");
    dt_tape_reset(t);
    (void)dt_linear(t, w, w, NULL);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT,
                     "which cuts leading axis 0, and operand 1 is Shard(0), which "
                     "cuts axis o: one mesh dim cannot cut two axes of the result");
    dt_tape_reset(t);
    (void)dt_apply(t, &vanishes, NULL, 2, (dt_tensor *[]){ w, x });
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT,
                     "one mesh dim cannot cut two axes; redistribute");
    dt_tape_reset(t);
    (void)dt_add(t, x, y);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT,
                     "operand 1 is Shard(0, unit=2), cut elsewhere");
    return DT_OK;
}

DT_TEST(own_ops, a_clash_of_cuts_is_named_for_what_it_is)
{
    dt_test_on_ranks("tp=2", two_cuts, NULL);
}

/* --- what mutations of the rules found missing ------------------------------------------------ */

/* Copies of a cut axis would be counted by whatever sums over it. */
static dt_status copies(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 4, 4 };
    dt_placement place = DT_SHARD(1);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    place.replicas = 2;
    DT_TRY(dt_ones(mesh, &place, DT_F32, 2, shape, &x));
    for (int row = 0; row < 3; row++) {
        (void)(row == 0   ? dt_linear(t, x, x, NULL)
               : row == 1 ? dt_sum(t, x, 1)
                          : dt_slice(t, x, 1, 0, 1));
        DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "would count copies");
        dt_tape_reset(t);
    }
    (void)dt_max(t, x, 1); /* a maximum may see them twice */
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

DT_TEST(own_ops, copies_are_not_counted)
{
    dt_test_on_ranks("tp=4", copies, NULL);
}

/* x [a, b], y [a, b] -> sums over b. Cuts of a in two orders clash and become whole; a cut of b
 * leaves terms, which alone decide whether the result is kept in f32. */
static dt_status clash_of_orders(dt_mesh *mesh, const void *arg)
{
    static const dt_op dot = {
        .name = "dot", .axes = "ab, ab -> a", .types = "FF>F", .cpu = no_kernel
    };
    const dt_placement b[] = { DT_REPLICATE, DT_SHARD(1) };
    const int64_t shape[] = { 8, 4 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL;
    dt_tensor *z;

    (void)arg;
    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    for (int cut = 0; cut < 4; cut++) { /* bit 0: pp cuts b; bit 1: the clash is on b, not on a */
        const int axis = cut >> 1, other = 1 - axis;
        const dt_placement in_order[] = { DT_SHARD_NTH(axis, 0), DT_SHARD_NTH(axis, 1), b[0] };
        const dt_placement turned[] = { DT_SHARD_NTH(axis, 1), DT_SHARD_NTH(axis, 0), b[0] };
        dt_placement xs[3], ys[3];
        for (int m = 0; m < 3; m++) {
            xs[m] = m < 2 ? in_order[m] : (cut & 1) ? DT_SHARD(other) : b[0];
            ys[m] = m < 2 ? turned[m] : xs[2];
        }
        DT_TRY(dt_ones(mesh, xs, DT_BF16, 2, shape, &x));
        DT_TRY(dt_ones(mesh, ys, DT_BF16, 2, shape, &y));
        z = dt_apply(t, &dot, NULL, 2, (dt_tensor *[]){ x, y });
        DT_TRY(dt_tape_status(t));
        for (int m = 0; m < 2; m++)
            DT_EXPECT(dt_layout_placement(dt_tensor_layout(z), m).kind == DT_PLACE_REPLICATE,
                      "case %d: whole on dim %d", cut, m);
        DT_EXPECT(dt_tensor_dtype(z) == (cut == 1 ? DT_F32 : DT_BF16), "case %d: %s", cut,
                  dt_dtype_name(dt_tensor_dtype(z)));
        dt_tensor_release(&x);
        dt_tensor_release(&y);
    }
    return DT_OK;
}

DT_TEST(own_ops, terms_alone_decide_the_dtype_after_a_clash_of_cuts)
{
    dt_test_on_ranks("dp=2,tp=2,pp=2", clash_of_orders, NULL);
}

static dt_status leading_axes(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { 3, 3 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *y = NULL;

    (void)arg;
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 1, shape, &x));
    DT_TRY(dt_ones(mesh, &whole, DT_F32, 2, shape, &y));
    (void)dt_silu_mul(t, x, y); /* which does not broadcast */
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "operand 1 [3, 3] has 2 leading axes, operands before it 1");
    dt_tape_reset(t);
    (void)dt_silu_mul(t, y, x);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "operand 1 [3] has 1 leading axes, operands before it 2");
    return DT_OK;
}

DT_TEST(own_ops, operands_have_equally_many_leading_axes)
{
    dt_test_on_ranks("tp=1", leading_axes, NULL);
}
