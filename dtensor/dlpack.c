/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/dlpack.h>

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/device/lease.h"
#include "dtensor/tensor_internal.h"
#include "dtensor/wrap.h"
#include "mesh/runtime.h"

enum { MAJOR = 1, MINOR = 0, READ_ONLY = 1 };

static const struct {
    uint8_t code, bits;
} codes[DT_N_DTYPES] = {
    [DT_F32] = { DT_DL_FLOAT, 32 }, [DT_BF16] = { DT_DL_BFLOAT, 16 },
    [DT_F16] = { DT_DL_FLOAT, 16 }, [DT_F64] = { DT_DL_FLOAT, 64 },
    [DT_I32] = { DT_DL_INT, 32 },   [DT_I64] = { DT_DL_INT, 64 },
    [DT_U8] = { DT_DL_UINT, 8 },
};

/* --- out -------------------------------------------------------------------------------------- */

/* What a consumer holds. */
typedef struct dlpack_out {
    union {
        dt_dlpack now;
        dt_dlpack_old old;
    } as;
    dti_lease *lease;
    int64_t shape[DT_MAX_AXES], strides[DT_MAX_AXES];
} dlpack_out;

static void give_back(dlpack_out *e)
{
    dti_lease_return(e->lease);
    dti_free(e);
}

static void delete_now(dt_dlpack *self)
{
    give_back(self->manager_ctx);
}

static void delete_old(dt_dlpack_old *self)
{
    give_back(self->manager_ctx);
}

static dt_status check_out(const dt_tensor *x)
{
    char text[4 * DTI_PLACEMENT_BYTES];

    DT_CHECK(x != NULL, DT_ERR_ARG, "x is NULL");
    (void)dt_layout_print(x->layout, text, sizeof text);
    DT_CHECK(x->layout->partial_dims == 0, DT_ERR_LAYOUT,
             "a tensor that lies %s is a term on each rank, not a value; redistribute it first",
             text);
    DT_CHECK(!x->device->dry, DT_ERR_UNSUPPORTED, "a dry tensor has no elements");
    DT_CHECK(!x->device->ended, DT_ERR_ARG, "the run that this tensor belongs to has ended");
    DT_CHECK(x->device->ops->host_visible, DT_ERR_UNSUPPORTED,
             "the tensor lies on a GPU; copy its piece by dt_tensor_read()");
    DT_CHECK(!dti_tensor_is_away(x), DT_ERR_UNSUPPORTED,
             "the tensor lies in a file; copy its piece by dt_tensor_read()");
    return DT_OK;
}

static dt_status make_out(dt_tensor *x, dlpack_out **out, dt_dl_tensor *t)
{
    dt_status st = DT_OK;
    dlpack_out *e = NULL;
    int64_t stride = 1;

    DT_TRY(check_out(x));
    DT_TRY_TO(fail, st, dti_new(sizeof *e, &e));
    DT_TRY_TO(fail, st, dti_storage_lease(x->storage, &e->lease));
    for (int a = x->n_axes - 1; a >= 0; a--) {
        e->shape[a] = x->local.shape[a];
        e->strides[a] = stride;
        stride *= e->shape[a] > 0 ? e->shape[a] : 1;
    }
    *t = (dt_dl_tensor){ .data = x->local.data,
                         .device = { DT_DL_CPU, 0 },
                         .ndim = x->n_axes,
                         .dtype = { codes[x->local.dtype].code, codes[x->local.dtype].bits, 1 },
                         .shape = e->shape,
                         .strides = e->strides };
    *out = e;
    return DT_OK;

fail:
    dti_free(e);
    return dti_runtime_alone(x->device->rt, st);
}

dt_status dt_to_dlpack(dt_tensor *x, dt_dlpack **out)
{
    dt_dl_tensor t;
    dlpack_out *e = NULL;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(make_out(x, &e, &t));
    e->as.now = (dt_dlpack){
        .version = { MAJOR, MINOR }, .manager_ctx = e, .deleter = delete_now, .dl_tensor = t
    };
    *out = &e->as.now;
    return DT_OK;
}

dt_status dt_to_dlpack_old(dt_tensor *x, dt_dlpack_old **out)
{
    dt_dl_tensor t;
    dlpack_out *e = NULL;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(make_out(x, &e, &t));
    e->as.old = (dt_dlpack_old){ .dl_tensor = t, .manager_ctx = e, .deleter = delete_old };
    *out = &e->as.old;
    return DT_OK;
}

/* --- in --------------------------------------------------------------------------------------- */

/* What came in, in either form. */
typedef struct dlpack_in {
    const dt_dl_tensor *t; /* NULL: of a version that cannot be read */
    bool read_only;
    dt_dl_copy copy;
    dti_lender lender; /* calls the deleter */
} dlpack_in;

static void delete_in(void *arg, void *data)
{
    dt_dlpack *from = arg;

    (void)data;
    if (from->deleter != NULL) from->deleter(from);
}

static void delete_in_old(void *arg, void *data)
{
    dt_dlpack_old *from = arg;

    (void)data;
    if (from->deleter != NULL) from->deleter(from);
}

static dt_status dtype_of(dt_dl_dtype d, dt_dtype *out)
{
    for (int t = 0; t < DT_N_DTYPES && d.lanes == 1; t++)
        if (codes[t].code == d.code && codes[t].bits == d.bits) {
            *out = (dt_dtype)t;
            return DT_OK;
        }
    DT_FAIL(DT_ERR_UNSUPPORTED, "elements of DLPack code %d with %d bits in %d lanes have no dtype",
            d.code, d.bits, d.lanes);
}

/* The size of this rank's piece. */
static dt_status check_extents(const dt_tensor *x, const dt_dl_tensor *t)
{
    DT_CHECK(t->ndim == x->n_axes, DT_ERR_SHAPE, "memory of %d axes is given for a tensor of %d",
             (int)t->ndim, x->n_axes);
    DT_CHECK(t->shape != NULL || t->ndim == 0, DT_ERR_ARG, "memory of %d axes has no shape",
             (int)t->ndim);
    for (int a = 0; a < x->n_axes; a++)
        DT_CHECK(t->shape[a] == x->local.shape[a], DT_ERR_SHAPE,
                 "axis %d of the memory has extent %lld, but this rank's piece has %lld", a,
                 (long long)t->shape[a], (long long)x->local.shape[a]);
    return DT_OK;
}

static bool is_row_major(const dt_tensor *x, const dt_dl_tensor *t)
{
    int64_t stride = 1;

    if (t->strides == NULL || dti_tensor_count(x) == 0) return true;
    for (int a = x->n_axes - 1; a >= 0; a--) {
        if (t->shape[a] != 1 && t->strides[a] != stride) return false;
        stride *= t->shape[a];
    }
    return true;
}

static char *first_byte(const dt_dl_tensor *t)
{
    return t->data != NULL ? (char *)t->data + t->byte_offset : NULL;
}

/* Why the memory cannot be the tensor's; NULL: it can. */
static const char *why_not_in_place(const dt_tensor *x, const dlpack_in *in)
{
    if (!is_row_major(x, in->t)) return "its strides are not row-major";
    if (in->read_only) return "it is read-only";
    if ((uintptr_t)first_byte(in->t) % dt_dtype_size(x->local.dtype) != 0)
        return "it is not aligned to its elements";
    return NULL;
}

static dt_status copy_in(dt_tensor *x, const dlpack_in *in)
{
    dti_box from = { .n_axes = x->n_axes }, to = { .n_axes = x->n_axes };
    int64_t stride = 1;

    DT_TRY(dti_storage_create(x->device->memory, dti_tensor_bytes(x), true, &x->storage));
    x->local.data = x->storage->data;
    for (int a = x->n_axes - 1; a >= 0; a--) {
        from.extent[a] = to.extent[a] = x->local.shape[a];
        to.stride[a] = stride;
        from.stride[a] = in->t->strides != NULL ? in->t->strides[a] : stride;
        stride *= x->local.shape[a];
    }
    if (dti_tensor_count(x) > 0 && !x->device->dry)
        dti_box_copy(x->local.data, &to, first_byte(in->t), &from, dt_dtype_size(x->local.dtype));
    return DT_OK;
}

/* x gets its bytes; *lent says whether the memory is the tensor's from now on, or was given back by
 * a call that failed. */
static dt_status fill(dt_tensor *x, const dlpack_in *in, bool *lent)
{
    const char *why;

    DT_TRY(check_extents(x, in->t));
    DT_TRY(dti_check_lent(x, first_byte(in->t)));
    why = why_not_in_place(x, in);
    DT_CHECK(why == NULL || in->copy != DT_DL_COPY_NEVER, DT_ERR_ARG,
             "the memory cannot be taken in place: %s; allow a copy by DT_DL_COPY_IF_NEEDED", why);
    if (why != NULL || in->copy == DT_DL_COPY_ALWAYS) return copy_in(x, in);
    *lent = true;
    return dti_tensor_lend(x, first_byte(in->t), in->lender);
}

static dt_status take_in(dt_mesh *mesh, const dt_placement *place, int n_axes, const int64_t *shape,
                         const dlpack_in *in, dt_tensor **out)
{
    const dt_layout *layout;
    bool lent = false;
    dt_status st = DT_OK;
    dt_tensor *x = NULL;
    dt_dtype dtype;

    DT_CHECK_TO(done, st, out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK_TO(done, st, in->t != NULL, DT_ERR_UNSUPPORTED,
                "the memory comes in a version of DLPack that is not %d", MAJOR);
    DT_CHECK_TO(
        done, st,
        in->t->device.device_type == DT_DL_CPU || in->t->device.device_type == DT_DL_CUDA_HOST,
        DT_ERR_UNSUPPORTED, "the memory lies on a device (DLPack's type %d), not on the host",
        (int)in->t->device.device_type);
    DT_TRY_TO(done, st, dtype_of(in->t->dtype, &dtype));
    DT_TRY_TO(done, st, dti_check_create(mesh, place, n_axes, shape, &layout));
    DT_TRY_TO(done, st, dti_tensor_header(mesh, layout, dtype, shape, &x));
    DT_TRY_TO(done, st, fill(x, in, &lent));
    *out = x;
    x = NULL;
done:
    dt_tensor_release(&x);
    if (!lent) in->lender.release(in->lender.arg, NULL);
    return mesh != NULL ? dti_runtime_alone(dt_mesh_runtime(mesh), st) : st;
}

dt_status dt_from_dlpack(dt_mesh *mesh, const dt_placement *place, int n_axes, const int64_t *shape,
                         dt_dlpack *from, dt_dl_copy copy, dt_tensor **out)
{
    const bool known = from != NULL && from->version.major == MAJOR;

    DT_CHECK(from != NULL, DT_ERR_ARG, "from is NULL");
    DT_TRY(take_in(mesh, place, n_axes, shape,
                   &(dlpack_in){ .t = known ? &from->dl_tensor : NULL,
                                 .read_only = known && (from->flags & READ_ONLY) != 0,
                                 .copy = copy,
                                 .lender = { delete_in, from } },
                   out));
    return DT_OK;
}

dt_status dt_from_dlpack_old(dt_mesh *mesh, const dt_placement *place, int n_axes,
                             const int64_t *shape, dt_dlpack_old *from, dt_dl_copy copy,
                             dt_tensor **out)
{
    DT_CHECK(from != NULL, DT_ERR_ARG, "from is NULL");
    DT_TRY(take_in(
        mesh, place, n_axes, shape,
        &(dlpack_in){ .t = &from->dl_tensor, .copy = copy, .lender = { delete_in_old, from } },
        out));
    return DT_OK;
}
