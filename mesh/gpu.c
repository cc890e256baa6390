/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_load.h"
#include "base/memory.h"
#include "base/module_file.h"
#include "mesh/runtime_internal.h"

enum {
    OLDEST_MAJOR = 8,  /* sm_80: cp.async, mma of bf16 */
    DEFAULT_QUEUES = 8 /* of CUDA_DEVICE_MAX_CONNECTIONS */
};

dt_status dti_check_device(const char *device)
{
    int index, end = 0;

    if (device == NULL || strcmp(device, "cpu") == 0 || strcmp(device, "auto") == 0 ||
        strcmp(device, "cuda") == 0)
        return DT_OK;
    DT_CHECK(strlen(device) < DTI_DEVICE_BYTES && sscanf(device, "cuda:%3d%n", &index, &end) == 1 &&
                 device[5] >= '0' && device[5] <= '9' && device[end] == '\0',
             DT_ERR_ARG, "device \"%s\": choose \"cpu\", \"cuda\", \"cuda:0\", ... or \"auto\"",
             device);
    return DT_OK;
}

const dti_cuda_place *dti_runtime_gpu(const dt_runtime *rt)
{
    return rt->gpu;
}

dt_status dti_gpu_module(const dti_cuda_module **out)
{
    DT_TRY(dti_cuda_load(getenv("DTENSOR_CUDA_MODULE"), getenv("DTENSOR_MODULES"), out));
    return DT_OK;
}

/* Whether this build's own module is there, which needs a driver. One that DTENSOR_CUDA_MODULE
 * names may need none, as the simulated device of the tests. */
static bool finds_module(void)
{
    char path[DTI_MODULE_PATH_BYTES];

    return getenv("DTENSOR_CUDA_MODULE") == NULL &&
           dti_module_locate(getenv("DTENSOR_MODULES"), "cuda", path);
}

dt_status dti_gpu_choose(const char *device, int place, const dti_cuda_module **module, int *index)
{
    dti_cuda_properties p;
    dti_cuda_versions v;
    int wish = -1;

    *module = NULL;
    DT_CHECK(!finds_module() || dti_cuda_has_driver(), DT_ERR_UNSUPPORTED,
             "no GPU can be used: no NVIDIA driver is installed (libcuda.so.1 is not found); "
             "device \"cpu\" needs none, \"dtensor env\" says more");
    DT_TRY(dti_gpu_module(module));
    (*module)->versions(&v);
    (void)sscanf(device, "cuda:%3d", &wish);
    DT_CHECK(v.n_devices > 0, DT_ERR_UNSUPPORTED,
             "no GPU can be used: %s; device \"cpu\" needs none, \"dtensor env\" says more",
             v.no_device);
    DT_CHECK(wish < v.n_devices, DT_ERR_UNSUPPORTED,
             "device \"%s\": this machine's GPUs are 0 to %d", device, v.n_devices - 1);
    *index = wish >= 0 ? wish : place % v.n_devices;
    DT_CHECK((*module)->properties(*index, &p) == 0, DT_ERR_UNSUPPORTED, "GPU %d: %s", *index,
             (*module)->why());
    DT_CHECK(p.major >= OLDEST_MAJOR, DT_ERR_UNSUPPORTED,
             "GPU %d, %s, has compute capability %d.%d; kernels need %d.0 or newer", *index, p.name,
             p.major, p.minor, OLDEST_MAJOR);
    return DT_OK;
}

/* Whether every rank found a GPU. Ranks of one process have found the same. */
static dt_status all_have(dt_runtime *rt, bool mine, bool *all)
{
    int32_t least = mine;

    if (dt_launch_size() > 1) DT_TRY(dti_all_reduce(rt->world, &least, &least, 1, DT_I32, DT_MIN));
    *all = least != 0;
    return DT_OK;
}

/* DTENSOR_CUDA_FUSE=0: each operator its own kernel, to compare. */
static dt_status choose_fusing(dti_cuda_place *gpu)
{
    const char *wish = getenv("DTENSOR_CUDA_FUSE");

    gpu->fuses = wish == NULL || wish[0] == '\0' || strcmp(wish, "1") == 0;
    DT_CHECK(gpu->fuses || strcmp(wish, "0") == 0, DT_ERR_ARG,
             "DTENSOR_CUDA_FUSE is \"%s\": 0 starts a kernel for each operator, 1 (default) one "
             "for several",
             wish);
    return DT_OK;
}

/* Modules of tests may have no cuDNN to ask. */
static int ask_cudnn(const dti_cuda_place *gpu)
{
    const char *how = getenv("DTENSOR_CUDNN");

    if (how == NULL || *how == '\0' || gpu->module->cudnn_ask == NULL) return 0;
    return gpu->module->cudnn_ask(gpu->cuda, how);
}

/* By CUDA's variables and their defaults; a simulated device has nothing to load, and no queues. */
dti_cuda_place dti_gpu_place(const dti_cuda_module *module, int index)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    dti_cuda_place place = { .module = module, .device = index };
    int n = 0;

    if (strcmp(module->name, "cuda") != 0) return place;
    place.loads_late = loading == NULL || strcmp(loading, "EAGER") != 0;
    place.n_queues = DEFAULT_QUEUES;
    if (queues != NULL && sscanf(queues, "%3d", &n) == 1 && n > 0) place.n_queues = n;
    return place;
}

static dt_status open_place(dt_runtime *rt, const dti_cuda_module *module, int index)
{
    dt_status st = DT_OK;
    dti_cuda_place *gpu;

    DT_TRY(dti_new(sizeof *gpu, &gpu));
    *gpu = dti_gpu_place(module, index);
    DT_CHECK_TO(fail, st, module->open(index, &gpu->cuda) == 0, DT_ERR_DEVICE, "GPU %d: %s", index,
                module->why());
    DT_TRY_TO(fail, st, choose_fusing(gpu));
    DT_CHECK_TO(fail, st, ask_cudnn(gpu) == 0, DT_ERR_UNSUPPORTED, "GPU %d: %s", index,
                module->why());
    rt->gpu = gpu;
    return DT_OK;

fail:
    module->close(gpu->cuda);
    dti_free(gpu);
    return st;
}

/* What cuDNN did, where it was asked for. */
static void tell_cudnn(dt_runtime *rt, const dti_cuda_place *gpu)
{
    dti_cuda_cudnn_use use;
    char dropped[DTI_CUDA_TEXT_BYTES + 64] = "";

    if (gpu->module->cudnn_use == NULL || !gpu->module->cudnn_use(gpu->cuda, &use)) return;
    if (use.why[0] != '\0')
        (void)snprintf(dropped, sizeof dropped, "; %lld dropped: %s", (long long)use.n_dropped,
                       use.why);
    dti_runtime_log(rt, use.why[0] != '\0' ? DT_LOG_WARNING : DT_LOG_INFO,
                    "cuDNN took %lld of %lld calls of attention by %lld plans%s",
                    (long long)use.n_taken, (long long)use.n_calls, (long long)use.n_plans,
                    dropped);
}

static void close_place(dt_runtime *rt)
{
    dti_cuda_place *gpu = rt->gpu;

    tell_cudnn(rt, gpu);
    rt->gpu = NULL;
    gpu->module->close(gpu->cuda);
    dti_free(gpu);
}

/* Whether nobody can have meant a GPU here: this build or this machine has nothing for one. */
static bool expects_none(void)
{
    return getenv("DTENSOR_CUDA_MODULE") == NULL && !(finds_module() && dti_cuda_has_driver());
}

/* "auto": a GPU that cannot be had on one rank leaves all on the CPU. */
static dt_status settle(dt_runtime *rt, dt_status own)
{
    bool all;

    if (own != DT_OK && rt->place == 0)
        dti_runtime_log(rt, expects_none() ? DT_LOG_DETAIL : DT_LOG_INFO, "running on the CPU: %s",
                        dt_last_error()->message);
    DT_TRY(all_have(rt, own == DT_OK, &all));
    if (!all && rt->gpu != NULL) close_place(rt);
    return DT_OK;
}

dt_status dti_gpu_open(dt_runtime *rt)
{
    const dt_error before = *dt_last_error();
    const dti_cuda_module *module = NULL;
    int index = 0;
    dt_status st;

    if (rt->dry || strcmp(rt->device, "cpu") == 0) return DT_OK;
    st = dti_gpu_choose(rt->device, rt->place, &module, &index);
    if (st == DT_OK) st = open_place(rt, module, index);
    if (strcmp(rt->device, "auto") == 0) {
        DT_TRY(settle(rt, st));
        if (rt->gpu == NULL) {
            dti_error_restore(&before);
            return DT_OK;
        }
    }
    DT_TRY(st);
    DT_TRY(dti_runtime_use_cuda(rt, rt->gpu, NULL));
    if (rt->rank == 0 && rt->size > 1)
        dti_runtime_log(rt, DT_LOG_INFO, "%s", dti_cuda_world_text(rt->cuda));
    return DT_OK;
}

void dti_gpu_close(dt_runtime *rt)
{
    if (rt->gpu == NULL) return;
    dti_runtime_leave_cuda(rt);
    close_place(rt);
}
