/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of what ranks hold copies of: a layer's output that neighbours share, as key heads are,
 * gets terms, which its weight's gradient and its input's count once. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>

#include "tests/support/dt_test.h"

/* loss = sum of c * rows(3 k - k), k = x w', w cut in units of 2 rows that `replicas` share. */
static dt_status backward(dt_mesh *mesh, int replicas, bool sums_rows, dt_tensor **dx,
                          dt_tensor **dw, int64_t *reductions)
{
    const int64_t wide[] = { 3, 4 }, tall[] = { 8, 4 }, out[] = { 3, 8 };
    const dt_placement whole = DT_REPLICATE;
    dt_placement cut = DT_SHARD_UNITS(0, 2);
    DT_HELD(tensor) *x = NULL, *w = NULL, *c = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dt_tensor *k, *y;

    *dx = *dw = NULL;
    cut.replicas = replicas;
    if (replicas == 0) cut = whole;
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_randn(mesh, &whole, DT_F32, 2, wide, (dt_random){ 1, 1 }, &x));
    DT_TRY(dt_randn(mesh, &cut, DT_F32, 2, tall, (dt_random){ 1, 2 }, &w));
    DT_TRY(dt_randn(mesh, &whole, DT_F32, sums_rows ? 1 : 2, sums_rows ? out + 1 : out,
                    (dt_random){ 1, 3 }, &c));
    DT_TRY(dt_gradients_watch(g, x));
    DT_TRY(dt_gradients_watch(g, w));
    dt_tape_record(t, g);
    k = dt_linear(t, x, w, NULL);
    k = dt_sub(t, dt_mul_scalar(t, k, 3), k);
    if (sums_rows) k = dt_sum(t, k, 0);
    y = dt_sum(t, dt_mul(t, dt_move(t, k, &whole), c), DT_ALL_AXES);
    DT_TRY(dt_tape_status(t));
    for (int i = 0; i < DT_N_COMM_KINDS; i++) reductions[i] = -dt_tape_comm(t, i).calls;
    dt_backward(t, y, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    for (int i = 0; i < DT_N_COMM_KINDS; i++) reductions[i] += dt_tape_comm(t, i).calls;
    *dx = dt_tensor_retain(dt_gradient(g, x));
    *dw = dt_tensor_retain(dt_gradient(g, w));
    DT_EXPECT(dt_tensor_layout(*dw) == dt_tensor_layout(w), "dw lies elsewhere");
    return DT_OK;
}

static dt_status shared_as_whole(dt_mesh *mesh, const void *arg)
{
    const bool sums_rows = *(const bool *)arg;
    dt_tensor *dx[3] = { NULL }, *dw[3] = { NULL };
    const int replicas[] = { 0, 1, 2 };
    int64_t reductions[3][DT_N_COMM_KINDS];
    dt_status st = DT_OK;

    for (int i = 0; i < 3; i++)
        DT_TRY_TO(done, st, backward(mesh, replicas[i], sums_rows, &dx[i], &dw[i], reductions[i]));
    for (int i = 1; i < 3; i++) {
        bool same[2] = { false, false };
        DT_TRY_TO(done, st, dt_allclose(dx[0], dx[i], 1e-5, 1e-5, &same[0]));
        DT_TRY_TO(done, st, dt_allclose(dw[0], dw[i], 1e-5, 1e-5, &same[1]));
        DT_EXPECT_TO(done, st, same[0] && same[1], "%d replicas: dx %d, dw %d", replicas[i],
                     same[0], same[1]);
        /* dx, and what neighbours have of dw */
        DT_EXPECT_TO(done, st, reductions[i][DT_COMM_ALL_REDUCE] == i,
                     "%d replicas: %lld all-reduces", replicas[i],
                     (long long)reductions[i][DT_COMM_ALL_REDUCE]);
        DT_EXPECT_TO(done, st, reductions[i][DT_COMM_ALL_GATHER] == 0, "something was gathered");
    }
done:
    for (int i = 0; i < 3; i++) {
        dt_tensor_release(&dx[i]);
        dt_tensor_release(&dw[i]);
    }
    return st;
}

DT_TEST(backward_terms, shared_rows_give_the_gradients_of_whole_ones)
{
    dt_test_on_ranks("tp=4", shared_as_whole, &(bool){ false });
    dt_test_on_ranks("tp=4", shared_as_whole, &(bool){ true });
}
