/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: its memory is the host's, and everything is done when a function returns. */
#include <string.h>

#include "base/dtype.h"
#include "dtensor/device/device.h"

static dt_status copy_bytes(dti_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    if (bytes > 0) memcpy(to, from, bytes);
    return DT_OK;
}

static dt_status copy_box(dti_device *d, void *to, const dti_box *to_box, const void *from,
                          const dti_box *from_box, size_t element_bytes)
{
    (void)d;
    dti_box_copy(to, to_box, from, from_box, element_bytes);
    return DT_OK;
}

static dt_status divide(dti_device *d, dt_local *x, int64_t divisor)
{
    const int64_t n = dti_local_count(x);

    (void)d;
    for (int64_t i = 0; i < n; i++) switch (x->dtype) {
        case DT_F64:
            ((double *)x->data)[i] /= (double)divisor;
            break;
        case DT_I32:
            ((int32_t *)x->data)[i] = (int32_t)(((int32_t *)x->data)[i] / divisor);
            break;
        case DT_I64:
            ((int64_t *)x->data)[i] /= divisor;
            break;
        default:
            dti_store_f32(x->data, x->dtype, i,
                          dti_load_f32(x->data, x->dtype, i) / (float)divisor);
            break;
        }
    return DT_OK;
}

static dt_status run(dti_device *d, const dt_op *op, dt_kargs *args)
{
    args->cpu = d->cpu;
    DT_TRY(op->cpu(args));
    return DT_OK;
}

static dt_status communicate(dti_device *d, dti_comm *comm, const dti_comm_call *call)
{
    (void)d;
    return dti_comm_run(comm, call);
}

/* Starting a kernel costs next to nothing here. */
static bool records(const dti_device *d)
{
    (void)d;
    return false;
}

static void close_cpu(dti_device *d)
{
    (void)d;
}

const dti_device_ops dti_device_cpu = {
    .name = "cpu",
    .host_visible = true,
    .write = copy_bytes,
    .read = copy_bytes,
    .copy = copy_bytes,
    .copy_box = copy_box,
    .divide = divide,
    .run = run,
    .communicate = communicate,
    .records = records,
    .close = close_cpu,
};
