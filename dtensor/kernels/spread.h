/* SPDX-License-Identifier: Apache-2.0
 *
 * Operands of one shape but for axes of extent 1, which are read again and again where the result
 * has more: how kernels of every device walk over them. C11 and C++14. */
#ifndef DTI_SPREAD_H
#define DTI_SPREAD_H

#include <dtensor/ops.h>

enum { DTI_SPREAD_MAX_IN = 3 };

/* Neighbouring axes that every operand has, or lacks, are one. The last one is contiguous in each
 * operand that has it. */
typedef struct dti_spread {
    int n_in, n_axes;
    bool plain; /* all operands have the result's shape: one axis, every step 1 */
    int64_t n;  /* elements of the result */
    int64_t extent[DT_MAX_AXES + 1];
    int64_t step[DTI_SPREAD_MAX_IN][DT_MAX_AXES + 1]; /* elements to the next one; 0: the same */
} dti_spread;

static inline bool dti_spread_has(const dt_local *x, const dt_local *y, int axis)
{
    return x->shape[axis] == y->shape[axis];
}

/* Whether the axes of y but for those of extent 1 are alike in all operands from one to the next.
 */
static inline bool dti_spread_joins(const dt_kargs *a, int axis, int next)
{
    for (int i = 0; i < a->n_in; i++)
        if (dti_spread_has(&a->in[i], &a->out[0], axis) !=
            dti_spread_has(&a->in[i], &a->out[0], next))
            return false;
    return true;
}

/* Every operand has as many axes as the result. */
static inline void dti_spread_of(const dt_kargs *a, dti_spread *s)
{
    const dt_local *y = &a->out[0];
    int last = -1; /* axis of y that began the newest axis of s */

    s->n_in = a->n_in;
    s->plain = true;
    s->n = 1;
    for (int axis = 0; axis < y->n_axes; axis++) {
        s->n *= y->shape[axis];
        for (int i = 0; i < a->n_in; i++) s->plain = s->plain && dti_spread_has(&a->in[i], y, axis);
    }
    if (s->plain) {
        s->n_axes = 1;
        s->extent[0] = s->n;
        for (int i = 0; i < a->n_in; i++) s->step[i][0] = 1;
        return;
    }
    s->n_axes = 0;
    for (int axis = 0; axis < y->n_axes; axis++) {
        if (y->shape[axis] == 1) continue;
        if (last >= 0 && dti_spread_joins(a, last, axis)) {
            s->extent[s->n_axes - 1] *= y->shape[axis];
        } else {
            s->extent[s->n_axes] = y->shape[axis];
            for (int i = 0; i < a->n_in; i++)
                s->step[i][s->n_axes] = dti_spread_has(&a->in[i], y, axis);
            s->n_axes++;
        }
        last = axis;
    }
    for (int i = 0; i < a->n_in; i++) {
        int64_t step = 1;
        for (int axis = s->n_axes - 1; axis >= 0; axis--)
            if (s->step[i][axis] != 0) {
                s->step[i][axis] = step;
                step *= s->extent[axis];
            }
    }
}

#endif
