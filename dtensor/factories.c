/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/factories.h>

#include "base/error.h"
#include "dtensor/create.h"
#include "dtensor/tensor_internal.h"

dt_status dt_empty(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                   const int64_t *shape, dt_tensor **out)
{
    const dt_layout *layout;

    DT_TRY(dti_check_create_whole(mesh, place, n_axes, shape, &layout, out));
    DT_TRY(dti_tensor_create(mesh, layout, dtype, shape, out));
    return DT_OK;
}

static dt_status check_like(const dt_tensor *x, dt_tensor **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(x != NULL, DT_ERR_ARG, "x is NULL");
    return DT_OK;
}

dt_status dt_empty_like(const dt_tensor *x, dt_tensor **out)
{
    DT_TRY(check_like(x, out));
    DT_TRY(dti_tensor_create(x->mesh, x->layout, x->local.dtype, x->shape, out));
    return DT_OK;
}

dt_status dt_zeros_like(const dt_tensor *x, dt_tensor **out)
{
    DT_TRY(check_like(x, out));
    DT_TRY(dti_tensor_create_exact(x->mesh, x->layout, x->local.dtype, x->shape, out));
    return DT_OK;
}

/* *own: the mesh's own layout with the placements of `layout`. */
static dt_status check_laid(dt_mesh *mesh, const dt_layout *layout, const int64_t *shape,
                            const dt_layout **own, dt_tensor **out)
{
    bool same;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL && layout != NULL, DT_ERR_ARG, "mesh or layout is NULL");
    DT_CHECK(shape != NULL || layout->n_axes == 0, DT_ERR_ARG, "shape is NULL");
    same = layout->n_dims == dt_mesh_n_dims(mesh);
    for (int m = 0; same && m < layout->n_dims; m++)
        same = layout->dim_size[m] == dt_mesh_dim_size(mesh, m);
    DT_CHECK(same, DT_ERR_LAYOUT, "the layout is of another grid than the mesh");
    DT_TRY(dt_layout_get(mesh, layout->n_axes, layout->place, NULL, own));
    return DT_OK;
}

dt_status dt_empty_laid(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                        const int64_t *shape, dt_tensor **out)
{
    DT_TRY(check_laid(mesh, layout, shape, &layout, out));
    DT_TRY(dti_tensor_create(mesh, layout, dtype, shape, out));
    return DT_OK;
}

dt_status dt_zeros_laid(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                        const int64_t *shape, dt_tensor **out)
{
    DT_TRY(check_laid(mesh, layout, shape, &layout, out));
    DT_TRY(dti_tensor_create_exact(mesh, layout, dtype, shape, out));
    return DT_OK;
}

/* Releases *x again if it could not be filled. */
static dt_status filled(dt_tensor **x, dt_status st)
{
    if (st != DT_OK) dt_tensor_release(x);
    return st;
}

dt_status dt_full(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                  const int64_t *shape, double value, dt_tensor **out)
{
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, out));
    DT_TRY(filled(out, dt_fill(*out, value)));
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
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, out));
    DT_TRY(filled(out, dt_fill_arange(*out, steps)));
    return DT_OK;
}

dt_status dt_rand(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                  const int64_t *shape, dt_random key, dt_tensor **out)
{
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, out));
    DT_TRY(filled(out, dt_fill_rand(*out, key, 0.0, 1.0)));
    return DT_OK;
}

dt_status dt_randn(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                   const int64_t *shape, dt_random key, dt_tensor **out)
{
    DT_TRY(dt_empty(mesh, place, dtype, n_axes, shape, out));
    DT_TRY(filled(out, dt_fill_randn(*out, key, 0.0, 1.0)));
    return DT_OK;
}
