/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors over memory of the caller's: in place, given back once by the rank's own thread whatever
 * happens; and tensors like others. */
#include <dtensor/factories.h>
#include <dtensor/half.h>
#include <dtensor/ops.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"

typedef struct lent {
    pthread_t owner;
    float values[8];
    int calls;
    bool elsewhere; /* released by another thread, or with other memory */
} lent;

static void give_back(void *arg, void *data)
{
    lent *l = arg;

    l->calls++;
    if (!pthread_equal(l->owner, pthread_self()) || data != (void *)l->values) l->elsewhere = true;
}

static dt_memory memory_of(lent *l)
{
    *l = (lent){ .owner = pthread_self() };
    return (dt_memory){ l->values, sizeof l->values, give_back, l };
}

static dt_status in_place(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 4 * dt_mesh_n_ranks(mesh), 2 };
    const int me = dt_mesh_coord(mesh, 0);
    dt_tensor *x, *y, *same;
    lent l;

    (void)arg;
    DT_TRY(dt_wrap_local(mesh, rows, DT_F32, 2, shape, memory_of(&l), &x));
    DT_EXPECT(dt_tensor_local(x)->data == l.values, "not copied");
    for (int i = 0; i < 8; i++) l.values[i] = (float)(8 * me + i);
    DT_TRY(dt_redistribute(x, rows, &same)); /* another reference */
    DT_TRY(dt_full_tensor(x, &y));
    for (int i = 0; i < 8 * dt_mesh_n_ranks(mesh); i++)
        DT_EXPECT_CLOSE(((const float *)dt_tensor_local(y)->data)[i], i, 0);
    dt_tensor_release(&y);
    DT_TRY(dt_fill(x, 3));
    DT_EXPECT_CLOSE(l.values[7], 3, 0);
    dt_tensor_release(&x);
    DT_EXPECT_EQ_INT(l.calls, 0);
    dt_tensor_release(&same);
    DT_EXPECT(l.calls == 1 && !l.elsewhere, "%d calls", l.calls);
    return DT_OK;
}

DT_TEST(wrap, bytes_are_the_callers_and_come_back_once)
{
    dt_test_on_ranks("tp=1", in_place, NULL);
    dt_test_on_ranks("tp=3", in_place, NULL);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) }, wrong[] = { DT_SHARD(5) };
    const int64_t shape[] = { 8, 2 };
    dt_tensor *x = NULL;
    dt_memory m;
    lent l;

    (void)arg;
    DT_EXPECT_STATUS(dt_wrap_local(mesh, rows, DT_F64, 2, shape, memory_of(&l), &x), DT_ERR_ARG,
                     "memory of 32 bytes is given, but this rank's piece has 64");
    DT_EXPECT(l.calls == 1 && !l.elsewhere && x == NULL, "%d calls", l.calls);
    DT_EXPECT_STATUS(dt_wrap_local(mesh, wrong, DT_F32, 2, shape, memory_of(&l), &x), DT_ERR_LAYOUT,
                     NULL);
    DT_EXPECT_EQ_INT(l.calls, 1);
    DT_EXPECT_STATUS(dt_wrap_local(NULL, rows, DT_F32, 2, shape, memory_of(&l), &x), DT_ERR_ARG,
                     NULL);
    DT_EXPECT_EQ_INT(l.calls, 1);
    DT_EXPECT_STATUS(dt_wrap_local(mesh, rows, DT_F32, 2, shape, memory_of(&l), NULL), DT_ERR_ARG,
                     "out is NULL");
    DT_EXPECT_EQ_INT(l.calls, 1);
    m = memory_of(&l);
    m.data = (char *)m.data + 1;
    DT_EXPECT_STATUS(dt_wrap_local(mesh, rows, DT_F32, 2, shape, m, &x), DT_ERR_ARG,
                     "is not aligned to the 4 bytes of f32");
    DT_EXPECT_EQ_INT(l.calls, 1);
    m = memory_of(&l);
    m.data = NULL;
    DT_EXPECT_STATUS(dt_wrap_local(mesh, rows, DT_F32, 2, shape, m, &x), DT_ERR_ARG,
                     "data is NULL");
    DT_EXPECT_EQ_INT(l.calls, 1);
    return DT_OK;
}

DT_TEST(wrap, memory_comes_back_from_calls_that_fail)
{
    dt_test_on_ranks("tp=2", refused, NULL);
}

typedef struct outliving {
    lent l[2];
    dt_tensor *x[2];
} outliving;

static dt_status leave_wrapped(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { 16 };
    outliving *o = arg;
    const int r = dt_runtime_rank(rt);
    dt_status st;
    dt_mesh *mesh;

    DT_TRY(dt_mesh_create(rt, "tp=2", &mesh));
    st = dt_wrap_local(mesh, rows, DT_F32, 1, shape, memory_of(&o->l[r]), &o->x[r]);
    dt_mesh_release(&mesh);
    return st;
}

DT_TEST(wrap, memory_comes_back_at_the_end_of_the_run)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    outliving all = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("the handles are this process's");
    o.n_ranks = 2;
    DT_ASSERT_OK(dt_run(&o, leave_wrapped, &all));
    for (int r = 0; r < 2; r++) {
        DT_ASSERT(all.l[r].calls == 1 && !all.l[r].elsewhere);
        DT_ASSERT(dt_tensor_local(all.x[r])->data == NULL);
        dt_tensor_release(&all.x[r]);
        DT_ASSERT_EQ_INT(all.l[r].calls, 1);
    }
}

/* --- like others, by layout ------------------------------------------------------------------- */

static dt_status alike(dt_mesh *mesh, const void *arg)
{
    const dt_placement places[] = { DT_SHARD_NTH(0, 1), DT_SHARD_NTH(0, 0) };
    const dt_placement terms[] = { DT_PARTIAL(DT_SUM), DT_REPLICATE };
    const int64_t shape[] = { 7, 3 };
    dt_placement found[DT_MAX_DIMS];
    const dt_layout *layout, *foreign;
    dt_layouts *others;
    dt_tensor *x, *y, *z;

    (void)arg;
    DT_TRY(dt_ones(mesh, places, DT_BF16, 2, shape, &x));
    DT_EXPECT_EQ_INT(dt_layout_placements(dt_tensor_layout(x), found), 2);
    DT_TRY(dt_layout_get(mesh, 2, found, NULL, &layout));
    DT_EXPECT(layout == dt_tensor_layout(x), "placements are all of a layout");
    DT_EXPECT_EQ_INT(dt_layout_placements(NULL, found), -1);
    DT_TRY(dt_zeros_like(x, &y));
    DT_EXPECT(dt_tensor_layout(y) == layout && dt_tensor_dtype(y) == DT_BF16, "as x");
    DT_EXPECT_EQ_INT(dt_tensor_extent(y, 0), 7);
    for (int64_t i = 0; i < dt_tensor_local(y)->shape[0] * 3; i++)
        DT_EXPECT_EQ_INT(((const uint16_t *)dt_tensor_local(y)->data)[i], 0);
    DT_TRY(dt_empty_like(y, &z));
    DT_EXPECT(dt_tensor_layout(z) == layout, "as y");
    dt_tensor_release(&z);
    dt_tensor_release(&y);
    dt_tensor_release(&x);

    DT_TRY(dt_layout_get(mesh, 2, terms, NULL, &layout));
    DT_TRY(dt_zeros_laid(mesh, layout, DT_F32, shape, &x));
    DT_EXPECT(dt_tensor_layout(x) == layout, "zeros are terms of a sum");
    dt_tensor_release(&x);
    DT_TRY(dt_layouts_create(&others));
    DT_TRY(dt_layouts_parse(others, "dp=2,tp=2", 2, "S(0)[1]S(0)[0]", &foreign));
    DT_TRY(dt_empty_laid(mesh, foreign, DT_F32, shape, &x));
    DT_TRY(dt_layout_get(mesh, 2, places, NULL, &layout));
    DT_EXPECT(dt_tensor_layout(x) == layout, "the mesh's own layout of the same placements");
    dt_tensor_release(&x);
    DT_TRY(dt_layouts_parse(others, "dp=4", 2, "S(0)", &foreign));
    DT_EXPECT_STATUS(dt_zeros_laid(mesh, foreign, DT_F32, shape, &x), DT_ERR_LAYOUT,
                     "is of another grid than the mesh");
    dt_layouts_release(&others);
    DT_EXPECT_STATUS(dt_zeros_laid(mesh, NULL, DT_F32, shape, &x), DT_ERR_ARG, NULL);
    DT_EXPECT_STATUS(dt_zeros_like(NULL, &x), DT_ERR_ARG, "x is NULL");
    return DT_OK;
}

DT_TEST(wrap, tensors_are_made_like_others_and_by_layout)
{
    dt_test_on_ranks("dp=2,tp=2", alike, NULL);
}

/* Sums that the lender writes between two operators of one tape are not those of before. */
static dt_status written_between(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms[] = { DT_PARTIAL(DT_SUM) };
    const int n = dt_mesh_n_ranks(mesh);
    const int64_t shape[] = { 4, 2 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    lent l;

    (void)arg;
    DT_TRY(dt_wrap_local(mesh, terms, DT_F32, 2, shape, memory_of(&l), &x));
    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    for (int step = 1; step <= 3; step++) {
        l.values[7] = (float)step;
        y = dt_soft_cap(t, x, 1e9);
        DT_TRY(dt_tape_status(t));
        DT_EXPECT(fabsf(((const float *)dt_tensor_local(y)->data)[7] - (float)(n * step)) < 1e-3f,
                  "step %d: %g", step, (double)((const float *)dt_tensor_local(y)->data)[7]);
    }
    return DT_OK;
}

DT_TEST(wrap, what_the_lender_writes_is_reduced_anew)
{
    dt_test_on_ranks("tp=2", written_between, NULL);
}

/* --- conversion ------------------------------------------------------------------------------- */

DT_TEST(convert, halves_round_as_the_reference_does)
{
    enum { ALL = 1 << 16 };
    uint16_t *bits = malloc(ALL * sizeof *bits), *back = malloc(ALL * sizeof *back);
    float *wide = malloc(ALL * sizeof *wide);

    for (int i = 0; i < ALL; i++) bits[i] = (uint16_t)i;
    for (dt_dtype t = DT_BF16; t <= DT_F16; t++) {
        DT_ASSERT_OK(dt_convert(wide, DT_F32, bits, t, ALL));
        DT_ASSERT_OK(dt_convert(back, t, wide, DT_F32, ALL));
        for (int i = 0; i < ALL; i++) { /* every number and NaN of 16 bits */
            const float one = t == DT_F16 ? dt_f16_to_f32(bits[i]) : dt_bf16_to_f32(bits[i]);
            const uint16_t again = t == DT_F16 ? dt_f32_to_f16(wide[i]) : dt_f32_to_bf16(wide[i]);
            DT_ASSERT(isnan(one) ? isnan(wide[i]) : memcmp(&one, &wide[i], sizeof one) == 0);
            if (!isnan(one)) {
                DT_ASSERT_EQ_INT(back[i], bits[i]);
                DT_ASSERT_EQ_INT(again, bits[i]);
                continue;
            }
            DT_ASSERT_OK(dt_convert(&wide[i], DT_F32, &back[i], t, 1));
            DT_ASSERT(isnan(wide[i]) && (back[i] >> 15) == (bits[i] >> 15)); /* its sign, too */
        }
    }
    free(bits);
    free(back);
    free(wide);
}

DT_TEST(convert, f64_is_rounded_once)
{
    /* Just above the middle of two f16 numbers, by less than f32 can tell. */
    const double up = 1 + 0x1p-11 + 0x1p-40, even = 1 + 0x1p-11;
    const double all[] = { up, even, 65520, 65519.99, 0x1p-25, 0x1.8p-25, -0.0 };
    const uint16_t want[] = { 0x3c01, 0x3c00, 0x7c00, 0x7bff, 0, 1, 0x8000 };
    const int32_t integer = 1;
    uint16_t got[DT_COUNT(all)];

    DT_ASSERT_OK(dt_convert(got, DT_F16, all, DT_F64, DT_COUNT(all)));
    for (size_t i = 0; i < DT_COUNT(all); i++) DT_ASSERT_EQ_INT(got[i], want[i]);
    DT_ASSERT_STATUS(dt_convert(got, DT_F16, &integer, DT_I32, 1), DT_ERR_UNSUPPORTED,
                     "from i32 to f16");
    DT_ASSERT_STATUS(dt_convert(got, DT_F16, NULL, DT_F32, 1), DT_ERR_ARG, NULL);
    DT_ASSERT_STATUS(dt_convert(got, DT_F16, got, DT_F32, -1), DT_ERR_ARG, NULL);
    DT_ASSERT_OK(dt_convert(NULL, DT_F16, NULL, DT_F32, 0));
}
