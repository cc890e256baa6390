/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

static const dti_live tensors = { "tensor", "tensors" };

void dti_tensor_local_shape(const dt_mesh *mesh, const dt_layout *layout, int n_axes,
                            const int64_t *shape, dt_local *local)
{
    int coord[DT_MAX_DIMS];

    local->n_axes = n_axes;
    for (int a = 0; a < n_axes; a++) {
        local->shape[a] = shape[a];
        local->offset[a] = 0;
    }
    if (!dt_mesh_is_member(mesh)) {
        for (int a = 0; a < n_axes; a++) local->shape[a] = 0;
        return;
    }
    if (layout->shard_dims == 0) return;
    for (int m = 0; m < layout->n_dims; m++) coord[m] = dt_mesh_coord(mesh, m);
    for (int a = 0; a < n_axes; a++)
        dti_layout_axis_extent(layout, a, shape[a], coord, &local->offset[a], &local->shape[a]);
}

dt_status dti_tensor_take(dti_device *device, dt_tensor **out)
{
    dt_tensor *x = device->free_tensors;

    if (x != NULL) {
        device->free_tensors = x->next;
    } else {
        DT_TRY(dti_new(sizeof *x, &x));
        x->also = device->tensors;
        device->tensors = x;
    }
    x->device = device;
    x->refs = 1;
    x->reduced = x->terms = NULL;
    x->graph_stamp = 0;
    x->leaf = false;
    dti_runtime_count(device->rt, &tensors, 1);
    *out = x;
    return DT_OK;
}

dt_status dti_check_shape(const char *op, dt_dtype dtype, int n_axes, const int64_t *shape)
{
    const char *of = op == NULL ? "a tensor" : op, *result = op == NULL ? "" : ": a result";
    int64_t n = (int64_t)dt_dtype_size(dtype);

    DT_CHECK(n > 0, DT_ERR_ARG, "%d is no dtype", (int)dtype);
    for (int a = 0; a < n_axes; a++) {
        DT_CHECK(shape[a] >= 0, DT_ERR_SHAPE, "%s%s whose axis %d has extent %lld", of, result, a,
                 (long long)shape[a]);
        DT_CHECK(dti_mul_i64(n, shape[a] > 0 ? shape[a] : 1, &n), DT_ERR_SHAPE,
                 "%s%s of %d axes exceeds 2^63 bytes at axis %d (extent %lld)", of, result, n_axes,
                 a, (long long)shape[a]);
    }
    return DT_OK;
}

dt_status dti_tensor_header(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                            const int64_t *shape, dt_tensor **out)
{
    dti_device *device;
    dt_tensor *x;

    *out = NULL;
    DT_TRY(dti_check_shape(NULL, dtype, layout->n_axes, shape));
    if (layout->table_axes != 0) DT_TRY(dti_layout_check_shape(layout, shape));
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dti_tensor_take(device, &x));
    x->mesh = dt_mesh_retain(mesh);
    x->layout = layout;
    x->n_axes = layout->n_axes;
    if (x->n_axes > 0) memcpy(x->shape, shape, (size_t)x->n_axes * sizeof *shape);
    x->storage = NULL;
    x->next = NULL;
    x->local.data = NULL;
    x->local.dtype = dtype;
    dti_tensor_local_shape(mesh, layout, x->n_axes, shape, &x->local);
    *out = x;
    return DT_OK;
}

/* memory: NULL is the device's. */
static dt_status create(dti_memory *memory, dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                        const int64_t *shape, bool pool, dt_tensor **out)
{
    dt_tensor *x;
    dt_status st;

    DT_TRY(dti_tensor_header(mesh, layout, dtype, shape, &x));
    st = dti_storage_create(memory != NULL ? memory : x->device->memory, dti_tensor_bytes(x), pool,
                            &x->storage);
    if (st != DT_OK) {
        dt_tensor_release(&x);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    x->local.data = x->storage->data;
    if (x->device->observer != NULL)
        x->device->observer->made(x->device->observer->arg, layout, shape);
    *out = x;
    return DT_OK;
}

dt_status dti_tensor_create(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                            const int64_t *shape, dt_tensor **out)
{
    *out = NULL;
    DT_TRY(create(NULL, mesh, layout, dtype, shape, true, out));
    return DT_OK;
}

dt_status dti_tensor_create_exact(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                                  const int64_t *shape, dt_tensor **out)
{
    *out = NULL;
    DT_TRY(create(NULL, mesh, layout, dtype, shape, false, out));
    return DT_OK;
}

dt_status dti_tensor_create_in(dti_memory *memory, dt_mesh *mesh, const dt_layout *layout,
                               dt_dtype dtype, const int64_t *shape, dt_tensor **out)
{
    *out = NULL;
    DT_TRY(create(memory, mesh, layout, dtype, shape, false, out));
    return DT_OK;
}

void dti_tensor_set_kind(dt_tensor *x, dti_memory_kind kind)
{
    dti_storage_set_kind(x->storage, kind);
}

dt_status dti_tensor_view(dt_tensor *x, const dt_layout *layout, int n_axes, const int64_t *shape,
                          dt_tensor **out)
{
    dt_tensor *y;

    *out = NULL;
    DT_ASSERT(layout->n_axes == n_axes);
    (void)n_axes;
    DT_TRY(dti_tensor_header(x->mesh, layout, x->local.dtype, shape, &y));
    DT_ASSERT(dti_tensor_count(y) == dti_tensor_count(x));
    y->storage = dti_storage_retain(x->storage);
    y->local.data = x->local.data;
    *out = y;
    return DT_OK;
}

uint32_t dti_tensor_partial_dims(const dt_tensor *x)
{
    return x->layout->partial_dims;
}

dt_status dti_tensor_as_term(dt_tensor *x, uint32_t dims, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *layout;
    bool first = true;

    *out = NULL;
    memcpy(place, x->layout->place, sizeof place);
    for (int m = 0; m < x->layout->n_dims; m++) {
        if ((dims >> m & 1u) == 0) continue;
        DT_CHECK(place[m].kind == DT_PLACE_REPLICATE, DT_ERR_LAYOUT,
                 "a term of a sum over mesh dim \"%s\" has to be whole on it",
                 dt_mesh_dim_name(x->mesh, m));
        place[m] = DT_PARTIAL(DT_SUM);
        first = first && dt_mesh_coord(x->mesh, m) == 0;
    }
    DT_TRY(dti_tensor_layout(x, place, &layout));
    if (first) return dti_tensor_view(x, layout, x->n_axes, x->shape, out);
    return dti_tensor_create_exact(x->mesh, layout, x->local.dtype, x->shape, out);
}

void dti_tensor_forget_reduced(dt_tensor *x)
{
    if (x->reduced != NULL) x->reduced->terms = NULL;
    x->reduced = NULL;
}

dt_tensor *dt_tensor_retain(dt_tensor *x)
{
    if (x != NULL) x->refs++;
    return x;
}

void dt_tensor_release(dt_tensor **tensor)
{
    dt_tensor *x = tensor ? *tensor : NULL;

    if (x == NULL) return;
    *tensor = NULL;
    if (--x->refs > 0) return;
    dti_tensor_forget_reduced(x);
    if (x->terms != NULL) x->terms->reduced = NULL;
    dti_storage_release(x->storage);
    dt_mesh_release(&x->mesh);
    x->storage = NULL;
    x->next = x->device->free_tensors;
    x->device->free_tensors = x;
    dti_runtime_count(x->device->rt, &tensors, -1);
}

dt_status dti_tensor_layout(dt_tensor *x, const dt_placement *place, const dt_layout **out)
{
    dti_layouts *table;

    DT_CHECK(!x->device->ended, DT_ERR_ARG, "the run that this tensor belongs to has ended");
    DT_TRY(dti_layouts_of(dt_mesh_runtime(x->mesh), &table));
    return dti_layout_intern(table, x->layout->n_dims, x->layout->dim_size, x->n_axes, place, NULL,
                             out);
}

dt_status dti_check_create(dt_mesh *mesh, const dt_placement *place, int n_axes,
                           const int64_t *shape, const dt_layout **layout)
{
    DT_CHECK(mesh != NULL && place != NULL, DT_ERR_ARG, "mesh or place is NULL");
    DT_CHECK(n_axes >= 0 && n_axes <= DT_MAX_AXES, DT_ERR_ARG, "%d axes: 0 to %d are possible",
             n_axes, DT_MAX_AXES);
    DT_CHECK(shape != NULL || n_axes == 0, DT_ERR_ARG, "shape is NULL");
    DT_TRY(dt_layout_get(mesh, n_axes, place, NULL, layout));
    return DT_OK;
}

dt_status dti_check_create_whole(dt_mesh *mesh, const dt_placement *place, int n_axes,
                                 const int64_t *shape, const dt_layout **layout, dt_tensor **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_check_create(mesh, place, n_axes, shape, layout));
    DT_CHECK((*layout)->partial_dims == 0, DT_ERR_LAYOUT,
             "a tensor is not created Partial: use dt_from_local() for terms of a sum");
    return DT_OK;
}

dt_status dt_zeros(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                   const int64_t *shape, dt_tensor **out)
{
    const dt_layout *layout;

    DT_TRY(dti_check_create_whole(mesh, place, n_axes, shape, &layout, out));
    DT_TRY(dti_tensor_create_exact(mesh, layout, dtype, shape, out));
    return DT_OK;
}

dt_status dt_from_local(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                        const int64_t *shape, const void *data, dt_tensor **out)
{
    const dt_layout *layout;
    dt_tensor *x;
    size_t bytes;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_check_create(mesh, place, n_axes, shape, &layout));
    DT_TRY(dti_tensor_create(mesh, layout, dtype, shape, &x));
    bytes = dti_tensor_bytes(x);
    if (bytes > 0 && data == NULL && !x->device->dry) {
        dt_tensor_release(&x);
        DT_FAIL(DT_ERR_ARG, "data is NULL, but this rank's piece has %zu bytes", bytes);
    }
    if (!x->device->dry) {
        const dt_status st = x->device->ops->write(x->device, x->local.data, data, bytes);
        if (st != DT_OK) {
            dt_tensor_release(&x);
            return dti_error_frame(st, __func__, __FILE__, __LINE__);
        }
    }
    *out = x;
    return DT_OK;
}

dt_status dti_tensor_copy_bytes(dt_tensor *to, int64_t to_at, const dt_tensor *from,
                                int64_t from_at, int64_t bytes)
{
    dti_device *d = to->device;
    dt_status st;

    if (d->dry || bytes <= 0) return DT_OK;
    if (dti_away_write(to, to_at, (const char *)from->local.data + from_at, (size_t)bytes, &st))
        return st;
    DT_TRY(d->ops->copy(d, (char *)to->local.data + to_at, (const char *)from->local.data + from_at,
                        (size_t)bytes));
    return DT_OK;
}

static dt_status check_piece(const dt_tensor *x, const void *host, size_t bytes)
{
    DT_CHECK(x != NULL, DT_ERR_ARG, "x is NULL");
    DT_CHECK(bytes == dti_tensor_bytes(x), DT_ERR_ARG,
             "%zu bytes are given, but this rank's piece has %zu", bytes, dti_tensor_bytes(x));
    DT_CHECK(host != NULL || bytes == 0, DT_ERR_ARG, "the host's memory is NULL");
    DT_CHECK(!x->device->dry, DT_ERR_UNSUPPORTED, "a dry tensor has no elements");
    DT_CHECK(!x->device->ended, DT_ERR_ARG, "the run that this tensor belongs to has ended");
    return DT_OK;
}

dt_status dt_tensor_read(const dt_tensor *x, void *to, size_t bytes)
{
    DT_TRY(check_piece(x, to, bytes));
    DT_TRY(dti_away_bring(x));
    DT_TRY(x->device->ops->read(x->device, to, x->local.data, bytes));
    DT_TRY(dti_away_leave(x, false));
    return DT_OK;
}

dt_status dt_tensor_write(dt_tensor *x, const void *from, size_t bytes)
{
    DT_TRY(check_piece(x, from, bytes));
    dti_tensor_begin_write(x);
    DT_TRY(x->device->ops->write(x->device, x->local.data, from, bytes));
    DT_TRY(dti_away_leave(x, true));
    return DT_OK;
}

dt_mesh *dt_tensor_mesh(const dt_tensor *x)
{
    return x != NULL ? x->mesh : NULL;
}

const dt_layout *dt_tensor_layout(const dt_tensor *x)
{
    return x != NULL ? x->layout : NULL;
}

dt_dtype dt_tensor_dtype(const dt_tensor *x)
{
    return x != NULL ? x->local.dtype : DT_N_DTYPES;
}

int dt_tensor_n_axes(const dt_tensor *x)
{
    return x != NULL ? x->n_axes : -1;
}

int64_t dt_tensor_extent(const dt_tensor *x, int axis)
{
    if (x == NULL) return -1;
    if (axis < 0) axis += x->n_axes;
    return axis >= 0 && axis < x->n_axes ? x->shape[axis] : -1;
}

const dt_local *dt_tensor_local(const dt_tensor *x)
{
    return x != NULL ? &x->local : NULL;
}
