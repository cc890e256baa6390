/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/recorder.h"

#include <string.h>

#include "base/memory.h"
#include "dtensor/tape.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

struct dti_recorder {
    dti_device *device;
    dti_memory *own;
    dti_memory *others; /* the device's while ours is in its place; else NULL */
    dti_comm *comm;     /* the ranks that record with this one */
    dt_tape *tape;
    void *recording; /* NULL: nothing yet */
};

bool dti_recorder_fits(const dt_tape *t)
{
    const dti_device *d = t->device;

    return !d->dry && t->see == NULL && t->moves == DT_MOVES_FORBID && d->observer == NULL &&
           d->ops->records(d);
}

dt_status dti_recorder_create(dt_mesh *mesh, dti_recorder **out)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_status st = DT_OK;
    dti_recorder *r;

    *out = NULL;
    DT_TRY(dti_new(sizeof *r, &r));
    DT_TRY_TO(fail, st, dti_device_of(rt, &r->device));
    DT_TRY_TO(fail, st, dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &r->comm));
    DT_TRY_TO(fail, st, dti_memory_create(false, &r->device->allocator, &r->own));
    dti_memory_part_of(r->own, r->device->memory, DTI_KIND_RECORDED);
    DT_TRY_TO(fail, st, dt_tape_create(rt, &r->tape));
    *out = r;
    return DT_OK;

fail:
    dti_recorder_free(&r);
    return st;
}

void dti_recorder_free(dti_recorder **recorder)
{
    dti_recorder *r = *recorder;

    if (r == NULL) return;
    *recorder = NULL;
    if (r->recording != NULL && !r->device->ended) r->device->ops->forget(r->device, r->recording);
    dt_tape_release(&r->tape);
    dti_memory_destroy(&r->own);
    dti_free(r);
}

dt_tape *dti_recorder_tape(dti_recorder *r)
{
    return r->tape;
}

void dti_recorder_enter(dti_recorder *r)
{
    DT_ASSERT(r->others == NULL);
    r->others = r->device->memory;
    r->device->memory = r->own;
    r->device->ops->rehearse(r->device, true);
}

void dti_recorder_leave(dti_recorder *r)
{
    DT_ASSERT(r->others != NULL);
    r->device->ops->rehearse(r->device, false);
    r->device->memory = r->others;
    r->others = NULL;
}

dt_status dti_recorder_agree(dti_recorder *r, dt_status own)
{
    const dt_error why = *dt_last_error();
    int32_t all = own == DT_OK;

    DT_TRY(dti_all_reduce(r->comm, &all, &all, 1, DT_I32, DT_MIN));
    if (own == DT_OK)
        DT_CHECK(all, DT_ERR_UNSUPPORTED, "another rank could not record its part of this pass");
    else
        dti_error_restore(&why);
    return own;
}

dt_status dti_recorder_begin(dti_recorder *r)
{
    DT_TRY(r->device->ops->record_begin(r->device));
    return DT_OK;
}

dt_status dti_recorder_end(dti_recorder *r)
{
    const dt_status pass = dt_tape_status(r->tape);
    const dt_error why = *dt_last_error();
    const dt_status end = r->device->ops->record_end(r->device, &r->recording);

    if (pass == DT_OK) return end;
    if (r->recording != NULL) r->device->ops->forget(r->device, r->recording);
    r->recording = NULL;
    dti_error_restore(&why);
    return dti_error_frame(pass, __func__, __FILE__, __LINE__);
}

dt_status dti_recorder_count(const dti_recorder *r, dt_tape *t)
{
    DT_TRY(dti_tape_count(t, "recorded pass", r->tape->comm));
    return DT_OK;
}

dt_status dti_recorder_play(dti_recorder *r, dt_tape *t)
{
    DT_TRY(r->device->ops->play(r->device, r->comm, r->recording));
    DT_TRY(dti_recorder_count(r, t));
    return DT_OK;
}

dt_tensor *dti_recorder_give(dt_tape *t, dt_tensor *x)
{
    dt_tensor *y;
    dt_status st = dti_tensor_create(x->mesh, x->layout, x->local.dtype, x->shape, &y);

    if (st != DT_OK) return dti_tape_latch(t, st);
    st = dti_tensor_copy_bytes(y, 0, x, 0, (int64_t)dti_tensor_bytes(x));
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, st);
}
