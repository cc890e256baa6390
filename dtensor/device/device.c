/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/device.h"

#include <dtensor/devices.h>
#include <dtensor/ops.h>
#include <stdio.h>
#include <string.h>

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
    if (d->ops != NULL) d->ops->close(d);
    dti_free(d);
}

dt_status dti_cuda_available(int index)
{
    (void)index;
    DT_FAIL(DT_ERR_UNSUPPORTED, "this build has no GPU back end; device \"cpu\" needs none");
}

dt_status dti_device_cuda_open(dti_device *d, int index, dti_allocator *memory)
{
    (void)d;
    (void)memory;
    return dti_cuda_available(index);
}

/* GPU number of "cuda:1"; -1: any. */
static int index_of(const char *name)
{
    int index;

    return sscanf(name, "cuda:%d", &index) == 1 ? index : -1;
}

/* "auto" is a GPU where there is one; why there is none is worth a line. */
static dt_status choose(dti_device *d, dti_allocator *memory)
{
    const char *name = dti_runtime_device(d->rt);
    const bool automatic = strcmp(name, "auto") == 0;
    const dt_error before = *dt_last_error();

    d->ops = &dti_device_cpu;
    if (d->dry || strcmp(name, "cpu") == 0) return DT_OK;
    if (!automatic || dti_cuda_available(-1) == DT_OK) {
        DT_TRY(dti_device_cuda_open(d, index_of(name), memory));
        return DT_OK;
    }
    if (dt_runtime_rank(d->rt) == 0)
        dti_runtime_log(d->rt, DT_LOG_INFO, "running on the CPU: %s", dt_last_error()->message);
    dti_error_restore(&before);
    return DT_OK;
}

static dt_status device_create(dt_runtime *rt, void **out)
{
    dt_status st = DT_OK;
    dti_allocator memory = { 0 };
    dti_device *d = NULL;
    dti_isa isa;

    DT_TRY(dti_isa_parse(dti_runtime_isa(rt), &isa));
    DT_TRY(dti_new(sizeof *d, &d));
    d->rt = rt;
    d->dry = dt_runtime_is_dry(rt);
    DT_TRY_TO(fail, st, choose(d, &memory));
    DT_TRY_TO(fail, st,
              dti_memory_create(d->dry, memory.take != NULL ? &memory : NULL, &d->memory));
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

    return rt != NULL && dti_device_of(rt, &d) == DT_OK ? dti_isa_name(dti_cpu_isa(d->cpu)) : NULL;
}

dt_status dt_device_check(const char *device)
{
    DT_CHECK(device != NULL, DT_ERR_ARG, "device is NULL");
    if (strcmp(device, "cpu") == 0 || strcmp(device, "auto") == 0) return DT_OK;
    DT_CHECK(strcmp(device, "cuda") == 0 || index_of(device) >= 0, DT_ERR_ARG,
             "device \"%s\": choose \"cpu\", \"cuda\", \"cuda:0\", ... or \"auto\"", device);
    return dti_cuda_available(index_of(device));
}

const char *dt_device_of(dt_runtime *rt)
{
    dti_device *d;

    return rt != NULL && dti_device_of(rt, &d) == DT_OK ? d->ops->name : NULL;
}
