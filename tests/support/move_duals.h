/* SPDX-License-Identifier: Apache-2.0
 *
 * Every move and its dual: <move(x), y> = <x, dual(y)>. */
#ifndef DT_TEST_MOVE_DUALS_H
#define DT_TEST_MOVE_DUALS_H

/* How a gradient is brought back: by the library's rule, or in a way that the property must see. */
typedef enum dt_test_dual {
    DT_DUAL_RIGHT,
    DT_DUAL_DROPS,  /* terms are taken for the value: a reduction is left out */
    DT_DUAL_TWICE,  /* scaled by 2 */
    DT_DUAL_COPIES, /* neighbours get copies of what they should have terms of */
    DT_N_DUALS
} dt_test_dual;

/* All pairs of layouts on a mesh ("tp=4", "dp=2,tp=3"), uneven and empty shapes, packed, at
 * offsets, with copies and with terms. Right duals must hold for all; wrong ones must be seen for
 * all pairs that they can make a difference to, of which there are `least` or more. */
void dt_test_move_duals(const char *mesh, dt_test_dual dual, int least);

#endif
