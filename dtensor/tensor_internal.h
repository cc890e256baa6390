/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind dt_tensor, for this room only. */
#ifndef DTI_TENSOR_INTERNAL_H
#define DTI_TENSOR_INTERNAL_H

#include <dtensor/tensor.h>

#include "dtensor/create.h"
#include "dtensor/device/device.h"
#include "placements/layout.h"

struct dt_tensor {
    int refs;
    int n_axes;
    dt_mesh *mesh;
    const dt_layout *layout;
    dti_device *device;
    dti_storage *storage;
    int64_t shape[DT_MAX_AXES]; /* global */
    dt_local local;
    dt_tensor *next; /* in the list of free headers */

    /* The value that it is on the record with this stamp (graph.h); 0: on none. */
    uint32_t graph_stamp;
    int32_t graph_value;
    bool leaf; /* of a living collection of gradients, whose stamp it has */

    /* What an operator has reduced these terms to, for the next that wants them so; and the way
     * back. The tape owns it as it owns the terms, and the link ends with either. */
    dt_tensor *reduced, *terms;
    dt_tensor *also; /* in that of all headers */
};

/* Extents that are not negative, and bytes that fit into 63 bits. op: whose result it is; NULL. */
dt_status dti_check_shape(const char *op, dt_dtype dtype, int n_axes,
                          const int64_t *shape) DT_MUST_USE;

/* Elements of this rank's piece; 0 for outsiders of the mesh, also of a tensor without axes, where
 * the product of no extents would be 1. */
static inline int64_t dti_tensor_count(const dt_tensor *x)
{
    return dt_mesh_is_member(x->mesh) ? dti_local_count(&x->local) : 0;
}

static inline size_t dti_tensor_bytes(const dt_tensor *x)
{
    return (size_t)dti_tensor_count(x) * dt_dtype_size(x->local.dtype);
}

/* A tensor without storage: header, checked global shape, local shape. */
dt_status dti_tensor_header(dt_mesh *mesh, const dt_layout *layout, dt_dtype dtype,
                            const int64_t *shape, dt_tensor **out) DT_MUST_USE;

/* The same bytes under another shape and layout whose local piece has as many elements. */
dt_status dti_tensor_view(dt_tensor *x, const dt_layout *layout, int n_axes, const int64_t *shape,
                          dt_tensor **out) DT_MUST_USE;

/* Takes a header from the free list or the heap; every field but refs is the caller's to fill. */
dt_status dti_tensor_take(dti_device *device, dt_tensor **out) DT_MUST_USE;

/* This rank's piece of `shape` under `layout`; extents 0 for outsiders of the mesh. */
void dti_tensor_local_shape(const dt_mesh *mesh, const dt_layout *layout, int n_axes,
                            const int64_t *shape, dt_local *local);

/* Checks the arguments that creating functions share, and interns the layout. */
dt_status dti_check_create(dt_mesh *mesh, const dt_placement *place, int n_axes,
                           const int64_t *shape, const dt_layout **layout) DT_MUST_USE;

/* The same for a tensor that is made whole: not Partial. Checks out, too, and sets *out to NULL. */
dt_status dti_check_create_whole(dt_mesh *mesh, const dt_placement *place, int n_axes,
                                 const int64_t *shape, const dt_layout **layout,
                                 dt_tensor **out) DT_MUST_USE;

/* Lets go of what x was reduced to: x has other bytes, or there is something newer. */
void dti_tensor_forget_reduced(dt_tensor *x);

/* x's bytes are about to be written over: waits for begun moves that read them, here or at a peer,
 * and lets go of what was made of the old ones. */
void dti_tensor_begin_write(dt_tensor *x);

/* Interns `place` for tensors with x's mesh and axes. DT_ERR_ARG after the end of x's run. */
dt_status dti_tensor_layout(dt_tensor *x, const dt_placement *place,
                            const dt_layout **out) DT_MUST_USE;

/* x in another float dtype, where it lies. */
dt_status dti_tensor_cast(dt_tensor *x, dt_dtype dtype, dt_tensor **out) DT_MUST_USE;

/* dt_redistribute() to an interned layout; counters may be NULL. */
dt_status dti_redistribute(dt_tensor *x, const dt_layout *want, dt_comm_counter *counters,
                           dt_tensor **y) DT_MUST_USE;

/* The same into bytes that are there: those of `to`, in its layout. x is whole, not terms. */
dt_status dti_redistribute_into(dt_tensor *x, dt_tensor *to, dt_comm_counter *counters) DT_MUST_USE;

/* dt_redistribute_cast() of arguments that are not NULL; counters may be. */
dt_status dti_move_cast(dt_tensor *x, const dt_placement *place, dt_dtype dtype,
                        dt_comm_counter *counters, dt_tensor **y) DT_MUST_USE;

/* What ranks that compare their arguments say of their own, in short. */
enum { DTI_CLAIM_WHY_BYTES = 192 };

#endif
