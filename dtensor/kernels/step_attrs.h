/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels of an optimizer's step are told, for every device (dtensor/optimize.h has the
 * formulas). Factors are computed in double and rounded to f32 once, as PyTorch hands them to its
 * kernels. C11 and C++14. */
#ifndef DTI_STEP_ATTRS_H
#define DTI_STEP_ATTRS_H

#include <dtensor/factories.h>

#include "dtensor/kernels/random.h"

/* Where the elements of a call lie in the whole parameter: number `skip` + i of a box. */
typedef struct dti_step_where {
    int n_axes; /* the last one has stride 1 */
    int64_t skip, offset;
    int64_t extent[DT_MAX_AXES], stride[DT_MAX_AXES];
} dti_step_where;

/* How a parameter of 16 bits is rounded: to nearest even, or by uniform numbers of the key, that of
 * an element's global index (random.h). */
typedef struct dti_step_rounding {
    bool stochastic;
    dt_random key;
    dti_step_where where; /* stochastic alone */
} dti_step_rounding;

/* in: g, p, m, v (, master); out: p, m, v (, master), the same bytes. */
typedef struct dti_adamw_attr {
    float scale, decay, lerp, beta2, rest2, root2, eps, step;
    dti_step_rounding rounding;
} dti_adamw_attr;

/* in: g, p (, momentum) (, master); out: all but g, the same bytes. */
typedef struct dti_sgd_attr {
    float scale, decay, momentum, rest, step;
    bool has_momentum, has_master, first, nesterov;
    dti_step_rounding rounding;
} dti_sgd_attr;

/* Global index of element i, and how many neighbours follow in order, itself included. */
DTI_BOTH int64_t dti_step_global(const dti_step_where *w, int64_t i, int64_t *left)
{
    int64_t at = w->offset;

    i += w->skip;
    *left = w->n_axes > 0 ? w->extent[w->n_axes - 1] - i % w->extent[w->n_axes - 1] : 1;
    for (int a = w->n_axes - 1; a >= 0; a--) {
        at += (a > 0 ? i % w->extent[a] : i) * w->stride[a];
        if (a > 0) i /= w->extent[a];
    }
    return at;
}

#endif
