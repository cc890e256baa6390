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

static dt_status refuses(dt_mesh *mesh, const void *arg)
{
    static const bad_row rows[] = {
        { { "big", "... -> ...", "F>F", NULL, NULL, no_kernel, 0, sizeof attributes },
          1,
          DT_ERR_ARG,
          "big: 4096 bytes of attributes, at most 32" },
        { { "big", "... -> ...", "F>F", NULL, NULL, no_kernel, DT_OP_VALUE_ATTR, 33 },
          1,
          DT_ERR_ARG,
          "big: 33 bytes of attributes, at most 32" },
        { { "diagonal", "aa -> a", "F>F", NULL, NULL, no_kernel, 0, 0 },
          1,
          DT_ERR_ARG,
          "letter a stands twice in one term" },
        { { "outer", "ab -> ba[b]", "F>F", NULL, NULL, no_kernel, 0, 0 },
          1,
          DT_ERR_ARG,
          "letter b stands twice in one term" },
        { { "add", "ab, ab -> ab", "FF>F", NULL, NULL, no_kernel, 0, 0 },
          1,
          DT_ERR_ARG,
          "1 operands given" },
        { { "none", "ab -> ab", "F>F", NULL, NULL, NULL, 0, 0 },
          1,
          DT_ERR_ARG,
          "none has no CPU kernel" },
        { { NULL, "ab -> ab", "F>F", NULL, NULL, no_kernel, 0, 0 },
          1,
          DT_ERR_ARG,
          "needs a name, axes and types" },
        { { "no_types", "ab -> ab", NULL, NULL, NULL, no_kernel, 0, 0 },
          1,
          DT_ERR_ARG,
          "needs a name, axes and types" },
        { { "many", "ab -> ab", "F>F", NULL, NULL, no_kernel, 0, 0 },
          7,
          DT_ERR_ARG,
          "many is called with 7 operands: 1 to 6" },
    };
    const dt_placement cut = DT_SHARD(0);
    dt_tensor *in[7] = { NULL };
    dt_status st = DT_OK;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_ones(mesh, &cut, DT_F32, 2, (const int64_t[]){ 4, 4 }, &in[0]));
    for (int i = 1; i < 7; i++) in[i] = in[0];
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const bad_row *r = &rows[i];
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

/* A product of two tensors that exist, which has more bytes than a tensor can have. */
DT_TEST(own_ops, a_result_beyond_63_bits_is_refused)
{
    const int64_t shape[] = { (int64_t)1 << 40, 2 };
    const dt_placement place = DT_SHARD(0);
    const dt_run_options o = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt;
    dt_tensor *x = NULL;
    dt_mesh *mesh;
    dt_tape *t;

    DT_ASSERT_OK(dt_runtime_create_dry(&o, 0, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=1", &mesh));
    DT_ASSERT_OK(dt_tape_create(rt, &t));
    DT_ASSERT_OK(dt_zeros(mesh, &place, DT_F32, 2, shape, &x));
    DT_ASSERT(dt_linear(t, x, x, NULL) == NULL);
    DT_ASSERT_STATUS(dt_tape_status(t), DT_ERR_SHAPE,
                     "linear: a result of 2 axes exceeds 2^63 bytes at axis 1");
    dt_tape_release(&t);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
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
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    dt_tape *t = NULL;

    (void)arg;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(
        done, st,
        dt_arange(mesh, &whole, DT_F32, 2, (const int64_t[]){ 1, 4 }, (dt_steps){ 0, 1 }, &x));
    for (size_t i = 0; i < DT_COUNT(bad); i++) {
        (void)dt_slice(t, x, bad[i].axis, bad[i].begin, bad[i].count);
        st = dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), bad[i].code,
                                   bad[i].message);
        if (st != DT_OK) goto done;
        dt_tape_reset(t);
    }
    dt_tensor *y = dt_slice(t, x, -1, -3, 2); /* and one that does not */
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_EXPECT_TO(done, st, dt_tensor_extent(y, 1) == 2, "two columns");
    DT_EXPECT_TO(done, st, ((const float *)dt_tensor_local(y)->data)[0] == 1.0f, "from column 1");
done:
    dt_tensor_release(&x);
    dt_tape_release(&t);
    return st;
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
