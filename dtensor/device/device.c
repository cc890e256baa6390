/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/device.h"

#include <dtensor/ops.h>

#include "base/memory.h"
#include "dtensor/move_cache.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

static void device_destroy(void *object)
{
    dti_device *d = object;

    for (dt_tensor *x = d->free_tensors, *next; x != NULL; x = next) {
        next = x->next;
        dti_free(x);
    }
    dti_move_cache_free(d);
    dti_cpu_destroy(&d->cpu);
    dti_memory_destroy(&d->memory);
    dti_free(d);
}

static dt_status device_create(dt_runtime *rt, void **out)
{
    dt_status st = DT_OK;
    dti_device *d = NULL;
    dti_isa isa;

    DT_TRY(dti_isa_parse(dti_runtime_isa(rt), &isa));
    DT_TRY(dti_new(sizeof *d, &d));
    d->rt = rt;
    d->dry = dt_runtime_is_dry(rt);
    DT_TRY_TO(fail, st, dti_memory_create(d->dry, &d->memory));
    DT_TRY_TO(fail, st, dti_cpu_create(isa, dti_runtime_pool(rt), &d->cpu));
    *out = d;
    return DT_OK;

fail:
    device_destroy(d);
    return st;
}

dt_status dti_device_of(dt_runtime *rt, dti_device **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, DTI_SLOT_DEVICE, device_create, device_destroy, &slot));
    *out = slot;
    return DT_OK;
}

const char *dt_kernels_name(int i)
{
#ifdef DT_HAVE_X86_KERNELS
    const int n = DTI_N_ISAS;
#else
    const int n = 1;
#endif

    return i >= 0 && i < n ? dti_isa_name((dti_isa)i) : NULL;
}

const char *dt_kernels_best(void)
{
    return dti_isa_name(dti_isa_detect());
}

dt_status dt_kernels_check(const char *isa)
{
    dti_isa unused;

    DT_CHECK(isa != NULL, DT_ERR_ARG, "isa is NULL");
    return dti_isa_parse(isa, &unused);
}

const char *dt_kernels_of(dt_runtime *rt)
{
    dti_device *d;

    return dti_device_of(rt, &d) == DT_OK ? dti_isa_name(dti_cpu_isa(d->cpu)) : NULL;
}
