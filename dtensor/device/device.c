/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/device.h"

#include <dtensor/devices.h>
#include <dtensor/ops.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "dtensor/away.h"
#include "dtensor/lane.h"
#include "dtensor/move_cache.h"
#include "dtensor/ops/fusion.h"
#include "dtensor/pending.h"
#include "dtensor/tensor_internal.h"
#include "mesh/gpu.h"

enum { NAMED_TENSORS = 8 };

/* Tensors that nobody released, by what they are. */
static void name_tensors(dti_device *d)
{
    char layout[4 * DTI_PLACEMENT_BYTES], shape[DTI_SHAPE_BYTES];
    int n = 0;

    for (const dt_tensor *x = d->tensors; x != NULL && n < NAMED_TENSORS; x = x->also) {
        if (x->refs == 0) continue;
        (void)dt_layout_print(x->layout, layout, sizeof layout);
        dti_runtime_log(d->rt, DT_LOG_INFO, "outlives the run: tensor %s %s %s%s",
                        dt_dtype_name(x->local.dtype),
                        dti_shape_text(x->shape, x->n_axes, shape, sizeof shape), layout,
                        ++n == NAMED_TENSORS ? " (and perhaps more)" : "");
    }
}

/* Memory and stream go with the run; handles that are still there become empty. */
static void device_end(void *object)
{
    dti_device *d = object;

    dti_fusion_close(d);
    dti_lane_close(&d->lane);
    dti_pending_end(d);
    name_tensors(d);
    for (dt_tensor *x = d->tensors; x != NULL; x = x->also) x->local.data = NULL;
    dti_move_cache_free(d);
    dti_cpu_destroy(&d->cpu);
    dti_memory_end(d->memory);
    dti_away_end(d);
    d->ops->close(d);
    d->ended = true;
}

static void device_free(void *object)
{
    dti_device *d = object;

    for (dt_tensor *x = d->tensors, *next; x != NULL; x = next) {
        next = x->also;
        dti_free(x);
    }
    dti_move_cache_free(d); /* of a move that was asked for after the end, and refused */
    dti_memory_destroy(&d->moving);
    dti_memory_destroy(&d->gathering);
    dti_away_close(d);
    dti_memory_destroy(&d->memory);
    dti_free(d);
}

static dt_status device_create(dt_runtime *rt, void **out)
{
    const dti_cuda_place *gpu = dti_runtime_gpu(rt);
    dt_status st = DT_OK;
    dti_device *d = NULL;
    dti_isa isa;

    DT_TRY(dti_isa_parse(dti_runtime_isa(rt), &isa));
    DT_TRY(dti_new(sizeof *d, &d));
    d->rt = rt;
    d->dry = dt_runtime_is_dry(rt);
    d->ops = &dti_device_cpu;
    if (gpu != NULL) DT_TRY_TO(fail, st, dti_device_cuda_open(d));
    if (gpu != NULL && gpu->fuses) DT_TRY_TO(fail, st, dti_fusion_open(d));
    DT_TRY_TO(fail, st, dti_memory_create(d->dry, &d->allocator, &d->memory));
    DT_TRY_TO(fail, st, dti_cpu_create(isa, dti_runtime_pool(rt), &d->cpu));
    if (dti_runtime_any_order(rt)) dti_cpu_allow_any_order(d->cpu);
    DT_TRY_TO(fail, st, dti_runtime_at_end(rt, device_end, d));
    *out = d;
    return DT_OK;

fail:
    dti_fusion_close(d);
    dti_cpu_destroy(&d->cpu);
    dti_memory_destroy(&d->memory);
    d->ops->close(d);
    dti_free(d);
    return st;
}

static const dti_slot device_slot = { device_create, device_free, false };

dt_status dti_device_of(dt_runtime *rt, dti_device **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &device_slot, &slot));
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
    const dti_cuda_module *module;
    int index;

    DT_CHECK(device != NULL, DT_ERR_ARG, "device is NULL");
    DT_TRY(dti_check_device(device));
    if (strncmp(device, "cuda", 4) == 0) DT_TRY(dti_gpu_choose(device, 0, &module, &index));
    return DT_OK;
}

const char *dt_device_of(dt_runtime *rt)
{
    dti_device *d;

    return rt != NULL && dti_device_of(rt, &d) == DT_OK ? d->ops->name : NULL;
}

dt_status dt_device_finish(dt_runtime *rt)
{
    dti_device *d;

    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_TRY(dti_device_of(rt, &d));
    if (!d->ops->host_visible) DT_TRY(d->ops->read(d, NULL, NULL, 0));
    return DT_OK;
}
