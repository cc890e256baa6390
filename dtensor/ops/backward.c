/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward by name: each packs its attributes and applies its rows. */
#include <dtensor/ops_backward.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"

/* dy in the dtype of what it is multiplied with. */
static dt_tensor *narrowed(dt_tape *t, dt_tensor *dy, const dt_tensor *like)
{
    const bool wide = dy != NULL && like != NULL && dy->local.dtype == DT_F32;

    return wide && dy->layout->partial_dims == 0 ? dt_cast(t, dy, like->local.dtype) : dy;
}

void dt_linear_backward(dt_tape *t, dt_tensor *dy, dt_tensor *x, dt_tensor *w, dt_tensor **dx,
                        dt_tensor **dw, dt_tensor **db)
{
    dt_tensor *narrow = narrowed(t, dy, w != NULL ? w : x);
    const dti_dtype_attr attr = { narrow != NULL ? narrow->local.dtype : DT_F32 };

    if (dx != NULL)
        *dx = dt_apply(t, &dti_op_linear_backward_x, &attr, 2, (dt_tensor *[]){ narrow, w });
    if (dw != NULL)
        *dw = dt_apply(t, &dti_op_linear_backward_w, NULL, 2, (dt_tensor *[]){ narrow, x });
    if (db != NULL) *db = dt_add_bias_backward(t, dy);
}

dt_tensor *dt_add_bias_backward(dt_tape *t, dt_tensor *dy)
{
    return dt_apply(t, &dti_op_add_bias_backward, NULL, 1, &dy);
}
