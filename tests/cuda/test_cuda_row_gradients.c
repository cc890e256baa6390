/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of rows whose way back has no CUDA kernel, or calls of both kinds: against differences,
 * on a device. */
#include <dtensor/gradients.h>
#include <dtensor/ops.h>

#include "dtensor/ops/op_rules.h"
#include "tests/support/cuda.h"
#include "tests/support/dt_test.h"
#include "tests/support/row_cases.h"

/* All whole, then all float operands that are weights of experts, or else all, cut along axis 0. */
static dt_status check(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const int n = row_case_operands(c), first = c->op == &dti_op_experts ? 3 : 0;
    dt_tensor *in[DT_OP_MAX_IN] = { NULL };
    dt_gradient_check report;
    dt_status st = DT_OK;

    for (int cut = 0; cut < 2; cut++) {
        for (int i = 0; i < n; i++) {
            const bool ids = c->op == &dti_op_index_select && i == 1;
            const dt_placement place = cut == 1 && i >= first && !ids ? DT_SHARD(0) : DT_REPLICATE;
            DT_TRY_TO(done, st, row_case_operand(mesh, c, i, &place, &in[i]));
        }
        DT_TRY_TO(done, st, dt_op_check_gradient(mesh, c->op, c->attr, n, in, 0.0, &report));
        DT_EXPECT_TO(done, st, report.worst < 3e-3, "%s: operand %d: %.7g by differences, %.7g",
                     c->op->name, report.operand, report.expected, report.got);
        for (int i = 0; i < n; i++) dt_tensor_release(&in[i]);
    }
done:
    for (int i = 0; i < n; i++) dt_tensor_release(&in[i]);
    return st;
}

DT_TEST(cuda_row_gradients, agree_with_differences)
{
    static const dt_op *const ops[] = {
        &dti_op_experts, &dti_op_route_weights, &dti_op_where,
        &dti_op_max,     &dti_op_cumsum,        &dti_op_index_select
    };

    for (int k = 0; k < n_row_cases; k++)
        for (size_t o = 0; o < DT_COUNT(ops); o++)
            if (row_cases[k].op == ops[o] && row_cases[k].shape[0][0] > 1) {
                dt_test_on_gpus("tp=1", check, &row_cases[k]);
                dt_test_on_gpus("tp=2", check, &row_cases[k]);
            }
}
