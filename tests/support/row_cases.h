/* SPDX-License-Identifier: Apache-2.0
 *
 * A small call of every row of the operator table, and operands for it under any placement. */
#ifndef DT_TEST_ROW_CASES_H
#define DT_TEST_ROW_CASES_H

#include <dtensor/ops.h>

/* One call: shapes of operands by their axes, 0 ends. */
typedef struct row_case {
    const dt_op *op;
    int64_t shape[DT_OP_MAX_IN][5];
    uint64_t attr[DT_OP_MAX_VALUE_BYTES / 8];
    int64_t modulo;                   /* integer operands count up by 5 modulo this, */
    const int32_t *ids[DT_OP_MAX_IN]; /* unless they are these */
    bool positive;                    /* operands lie between 1 and 3 */
    bool apart; /* elements differ from each other and from 0 by 0.07 at least: up to 31 of them */
    int accepted; /* at least so many combinations on one mesh dim of 2 ranks */
} row_case;

extern const row_case row_cases[];
extern const int n_row_cases;

int row_case_axes(const int64_t *shape);
int row_case_operands(const row_case *c);
int row_case_results(const row_case *c);
bool row_case_is_ints(const row_case *c, int i); /* or a mask */

/* Operand i; terms of a sum add up to what it is otherwise. */
dt_status row_case_operand(dt_mesh *mesh, const row_case *c, int i, const dt_placement *place,
                           dt_tensor **out) DT_MUST_USE;

#endif
