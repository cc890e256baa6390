/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors over memory that is somebody else's. */
#include "dtensor/wrap.h"

#include "dtensor/tensor_internal.h"

dt_status dti_check_lent(const dt_tensor *x, const void *data)
{
    DT_CHECK(x->device->ops->host_visible, DT_ERR_UNSUPPORTED,
             "tensors of this rank lie on a GPU, whose memory cannot be lent; copy it there by "
             "dt_from_local()");
    DT_CHECK(data != NULL || dti_tensor_count(x) == 0 || x->device->dry, DT_ERR_ARG,
             "data is NULL, but this rank's piece has %zu bytes", dti_tensor_bytes(x));
    return DT_OK;
}

dt_status dti_tensor_lend(dt_tensor *x, void *data, dti_lender lender)
{
    DT_TRY(dti_storage_lend(x->device->memory, data, lender, &x->storage));
    if (!x->device->dry && dti_tensor_count(x) > 0) x->local.data = data;
    return DT_OK;
}

static dt_status make(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                      const int64_t *shape, const dt_memory *memory, dt_tensor **out)
{
    const dt_layout *layout;
    dt_status st = DT_OK;

    DT_TRY(dti_check_create(mesh, place, n_axes, shape, &layout));
    DT_TRY(dti_tensor_header(mesh, layout, dtype, shape, out));
    DT_CHECK_TO(fail, st, memory->bytes == dti_tensor_bytes(*out), DT_ERR_ARG,
                "memory of %zu bytes is given, but this rank's piece has %zu", memory->bytes,
                dti_tensor_bytes(*out));
    DT_TRY_TO(fail, st, dti_check_lent(*out, memory->data));
    DT_CHECK_TO(fail, st, (uintptr_t)memory->data % dt_dtype_size(dtype) == 0, DT_ERR_ARG,
                "memory at %p is not aligned to the %zu bytes of %s", memory->data,
                dt_dtype_size(dtype), dt_dtype_name(dtype));
    return DT_OK;

fail:
    dt_tensor_release(out);
    return st;
}

dt_status dt_wrap_local(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                        const int64_t *shape, dt_memory memory, dt_tensor **out)
{
    dt_tensor *x = NULL;
    dt_status st = DT_OK;

    DT_CHECK_TO(fail, st, out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY_TO(fail, st, make(mesh, place, dtype, n_axes, shape, &memory, &x));
    st = dti_tensor_lend(x, memory.data, (dti_lender){ memory.release, memory.arg });
    if (st != DT_OK) { /* and the lender has been told */
        dt_tensor_release(&x);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = x;
    return DT_OK;

fail:
    if (memory.release != NULL) memory.release(memory.arg, memory.data);
    return st;
}
