/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: which there are, and a rank's hold of one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/device/cuda/module_parts.h"
#include "dtensor/kernels/cuda/attention_cudnn.h"

int dti_cuda_enter(const dti_cuda *c)
{
    int device = -1;

    if (cudaGetDevice(&device) == cudaSuccess && device == c->device) return 0;
    return dti_cuda_check(cudaSetDevice(c->device), "choosing the device");
}

int64_t dti_cuda_launches(const dti_cuda *c)
{
    return c->n_launches;
}

void dti_cuda_versions_read(dti_cuda_versions *out)
{
    cudaError_t error;

    memset(out, 0, sizeof *out);
    (void)cudaDriverGetVersion(&out->driver);
    (void)cudaRuntimeGetVersion(&out->runtime);
    dti_cuda_libraries_read(out);
    error = cudaGetDeviceCount(&out->n_devices);
    if (error == cudaSuccess && out->n_devices > 0) return;
    (void)cudaGetLastError();
    out->n_devices = 0;
    if (out->driver == 0)
        (void)snprintf(out->no_device, sizeof out->no_device,
                       "no NVIDIA driver is installed (libcuda.so.1 is not found)");
    else if (out->driver < out->runtime)
        (void)snprintf(out->no_device, sizeof out->no_device,
                       "the driver is for CUDA %d.%d, this build needs %d.%d (%s)",
                       out->driver / 1000, out->driver % 1000 / 10, out->runtime / 1000,
                       out->runtime % 1000 / 10, cudaGetErrorString(error));
    else
        (void)snprintf(out->no_device, sizeof out->no_device, "no device: %s",
                       error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error));
}

/* A device number that there is. */
static int check_device(int device)
{
    dti_cuda_versions versions;

    dti_cuda_versions_read(&versions);
    if (versions.n_devices == 0) return dti_cuda_fail("%s", versions.no_device);
    if (device >= 0 && device < versions.n_devices) return 0;
    return dti_cuda_fail("device %d: there are %d, numbered from 0", device, versions.n_devices);
}

int dti_cuda_properties_read(int device, dti_cuda_properties *out)
{
    struct cudaDeviceProp p;
    int before = 0;
    int failed;

    memset(out, 0, sizeof *out);
    if (check_device(device)) return -1;
    if (dti_cuda_check(cudaGetDeviceProperties(&p, device), "properties of the device")) return -1;
    (void)snprintf(out->name, sizeof out->name, "%.127s", p.name);
    (void)cudaDeviceGetPCIBusId(out->pci, (int)sizeof out->pci, device);
    for (char *at = out->pci; *at != '\0'; at++) /* as hwloc and sysfs write it */
        if (*at >= 'A' && *at <= 'F') *at = (char)(*at - 'A' + 'a');
    out->major = p.major;
    out->minor = p.minor;
    out->n_sms = p.multiProcessorCount;
    out->bytes = p.totalGlobalMem;
    out->l2_bytes = (size_t)p.l2CacheSize;
    (void)cudaGetDevice(&before);
    failed = dti_cuda_check(cudaSetDevice(device), "choosing the device") ||
             dti_cuda_check(cudaMemGetInfo(&out->free_bytes, &out->bytes), "asking for memory");
    (void)cudaSetDevice(before);
    return failed ? -1 : 0;
}

int dti_cuda_open(int device, dti_cuda **out)
{
    dti_cuda *c;

    *out = NULL;
    if (check_device(device)) return -1;
    c = calloc(1, sizeof *c);
    if (c == NULL) return dti_cuda_fail("no memory of the host for a device");
    c->device = device;
    if (dti_cuda_check(cudaSetDevice(device), "choosing the device") ||
        dti_cuda_check(cudaDeviceGetAttribute(&c->n_sms, cudaDevAttrMultiProcessorCount, device),
                       "counting multiprocessors") ||
        dti_cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking),
                       "making a stream") ||
        dti_cuda_check(cudaHostAlloc((void **)&c->fault, sizeof *c->fault,
                                     cudaHostAllocMapped | cudaHostAllocPortable),
                       "pinning memory")) {
        dti_cuda_close(c);
        return -1;
    }
    memset(c->fault, 0, sizeof *c->fault);
    *out = c;
    return 0;
}

void dti_cuda_close(dti_cuda *c)
{
    if (c == NULL) return;
    (void)cudaSetDevice(c->device);
    if (c->stream != NULL) (void)cudaStreamSynchronize(c->stream);
    dti_cudnn_close(c);
    dti_cuda_gemm_close(c);
    dti_cuda_memory_close(c);
    if (c->fault != NULL) (void)cudaFreeHost(c->fault);
    if (c->stream != NULL) (void)cudaStreamDestroy(c->stream);
    (void)cudaGetLastError();
    free(c);
}

int dti_cuda_reach(dti_cuda *c, int device)
{
    cudaError_t error;
    int can = 0;

    if (device == c->device) return 0;
    if (check_device(device) || dti_cuda_enter(c)) return -1;
    if (dti_cuda_check(cudaDeviceCanAccessPeer(&can, c->device, device), "asking about peers"))
        return -1;
    if (!can)
        return dti_cuda_fail("device %d cannot read memory of device %d (no NVLink and no peer "
                             "access over PCIe between them)",
                             c->device, device);
    error = cudaDeviceEnablePeerAccess(device, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return 0;
    }
    return dti_cuda_check(error, "enabling peer access");
}
