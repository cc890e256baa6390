/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/factories.h>

#include "base/error.h"
#include "dtensor/create.h"
#include "dtensor/tensor_internal.h"

dt_status dt_empty(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                   const int64_t *shape, dt_tensor **out)
{
    const dt_layout *layout;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_check_create(mesh, place, n_axes, shape, &layout));
    DT_CHECK(layout->partial_dims == 0, DT_ERR_LAYOUT,
             "a tensor is not created Partial: use dt_from_local() for terms of a sum");
    DT_TRY(dti_tensor_create(mesh, layout, dtype, shape, out));
    return DT_OK;
}

/* Hands out *x if it was filled, and releases it otherwise. */
static dt_status filled(dt_tensor *x, dt_status st, dt_tensor **out)
{
    if (st == DT_OK)
        *out = x;
    else
        dt_tensor_release(&x);
    return st;
}

dt_status dt_full(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                  const int64_t *shape, double value, dt_tensor **out)
{
    dt_tensor *x;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, &x));
    DT_TRY(filled(x, dt_fill(x, value), out));
    return DT_OK;
}

dt_status dt_ones(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                  const int64_t *shape, dt_tensor **out)
{
    DT_TRY(dt_full(mesh, place, dtype, n_axes, shape, 1.0, out));
    return DT_OK;
}

dt_status dt_arange(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                    const int64_t *shape, dt_steps steps, dt_tensor **out)
{
    dt_tensor *x;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, &x));
    DT_TRY(filled(x, dt_fill_arange(x, steps), out));
    return DT_OK;
}

dt_status dt_rand(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                  const int64_t *shape, dt_random key, dt_tensor **out)
{
    dt_tensor *x;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, &x));
    DT_TRY(filled(x, dt_fill_rand(x, key, 0.0, 1.0), out));
    return DT_OK;
}

dt_status dt_randn(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                   const int64_t *shape, dt_random key, dt_tensor **out)
{
    dt_tensor *x;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, &x));
    DT_TRY(filled(x, dt_fill_randn(x, key, 0.0, 1.0), out));
    return DT_OK;
}
