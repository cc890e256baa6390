/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/host.h"

#include "base/memory.h"
#include "dtensor/away.h"
#include "dtensor/tensor_internal.h"

dt_status dti_host_open(dt_tensor *x, dti_host_use use, dti_host *out)
{
    dti_device *d = x->device;
    const size_t bytes = dti_tensor_bytes(x);
    dt_status st = DT_OK;

    *out = (dti_host){ .local = x->local, .x = x, .use = use };
    if (use == DTI_HOST_WRITES) dti_tensor_begin_write(x);
    if (use == DTI_HOST_READS) DT_TRY(dti_away_bring(x));
    if (d->ops->host_visible) return DT_OK;
    DT_TRY(dti_big_alloc(bytes, &out->local.data));
    out->copied = true;
    if (use == DTI_HOST_READS)
        DT_TRY_TO(fail, st, d->ops->read(d, out->local.data, x->local.data, bytes));
    return DT_OK;

fail:
    return dti_host_close(out, st);
}

dt_status dti_host_close(dti_host *h, dt_status st)
{
    dti_device *d = h->x->device;
    const size_t bytes = dti_tensor_bytes(h->x);

    if (!h->copied) return st == DT_OK ? dti_away_leave(h->x, h->use == DTI_HOST_WRITES) : st;
    if (st == DT_OK && h->use == DTI_HOST_WRITES)
        st = d->ops->write(d, h->x->local.data, h->local.data, bytes);
    dti_big_free(h->local.data, bytes);
    h->copied = false;
    return st;
}
