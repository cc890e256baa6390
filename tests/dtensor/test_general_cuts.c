/* SPDX-License-Identifier: Apache-2.0
 *
 * General operators on what has copies, terms and halves: small cases beside test_general.c. */
#include <dtensor/ops.h>
#include <string.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* Pairs of ranks hold the same part of each block, and so of each row. */
static dt_status splits_copies(dt_mesh *mesh, const void *arg)
{
    static const int64_t shape[] = { 12 }, want[] = { 2, 6 };
    const dt_layout *layout;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    dt_placement place;
    char text[64];

    (void)arg;
    DT_TRY(dt_layout_parse(mesh, 1, "S(0,replicas=2,blocks=6:6)", &layout));
    place = dt_layout_placement(layout, 0);
    DT_TRY(dt_test_arange(mesh, &place, DT_F32, 1, shape, &x));
    y = dt_reshape(t, x, 2, want);
    DT_TRY(dt_tape_status(t));
    (void)dt_layout_print(dt_tensor_layout(y), text, sizeof text);
    DT_EXPECT(strcmp(text, "S(1,replicas=2)") == 0, "%s", text);
    y = dt_move(t, y, &(dt_placement){ 0 });
    DT_TRY(dt_tape_status(t));
    return dt_test_expect_arange(y);
}

DT_TEST(general_cuts, blocks_that_ranks_hold_twice_are_split_twice)
{
    dt_test_on_ranks("tp=4", splits_copies, NULL);
}

static dt_status divides_by_terms(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE, sum = DT_PARTIAL(DT_SUM);
    static const int64_t shape[] = { 2 };
    static const float values[] = { 2.0f, 4.0f };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *terms = NULL;

    (void)arg;
    DT_TRY(dt_from_local(mesh, &sum, DT_F32, 1, shape, values, &terms));
    DT_TRY(dt_from_local(mesh, &whole, DT_F32, 1, shape, values, &x));
    (void)dt_div(t, x, terms);
    return dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                                 "operand 1 is Partial and must be reduced");
}

DT_TEST(general_cuts, nothing_is_divided_by_terms)
{
    dt_test_on_ranks("tp=2", divides_by_terms, NULL);
}

/* A column of halves, and the same number written five times. */
static dt_status spreads_halves(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole = DT_REPLICATE;
    static const int64_t shape[] = { 2, 5 }, column[] = { 2, 1 };
    uint16_t values[10], once[2], five[10];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *z = NULL, *wide = NULL;
    dt_tensor *a, *b;

    (void)arg;
    for (int i = 0; i < 10; i++) {
        values[i] = (uint16_t)(0x3f80 + i);
        five[i] = once[i / 5] = (uint16_t)(0x4040 + i / 5);
    }
    DT_TRY(dt_from_local(mesh, &whole, DT_BF16, 2, shape, values, &x));
    DT_TRY(dt_from_local(mesh, &whole, DT_BF16, 2, column, once, &z));
    DT_TRY(dt_from_local(mesh, &whole, DT_BF16, 2, shape, five, &wide));
    a = dt_mul(t, x, z);
    b = dt_mul(t, x, wide);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(memcmp(dt_tensor_local(a)->data, dt_tensor_local(b)->data, sizeof values) == 0,
              "a column is not what it is five times");
    return DT_OK;
}

DT_TEST(general_cuts, a_column_of_halves_is_spread)
{
    dt_test_on_ranks("tp=1", spreads_halves, NULL);
}
