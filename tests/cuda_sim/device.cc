/* SPDX-License-Identifier: Apache-2.0
 *
 * What the simulated device says of itself, its errors, and the start of kernels. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>

using namespace dti_sim;

namespace dti_sim
{

const options &chosen()
{
    static const options o = [] {
        const char *n = getenv("DTENSOR_SIM_DEVICES"), *order = getenv("DTENSOR_SIM_ORDER");
        const char *protect = getenv("DTENSOR_SIM_PROTECT"), *late = getenv("DTENSOR_SIM_LATE");
        options read = { 1, false, true, false };

        if (n != nullptr && *n >= '0' && *n <= '8' && n[1] == '\0') read.n_devices = *n - '0';
        read.down = order != nullptr && strcmp(order, "down") == 0;
        read.protect = protect == nullptr || strcmp(protect, "0") != 0;
        read.late = late != nullptr && strcmp(late, "1") == 0;
        return read;
    }();
    return o;
}

static thread_local cudaError_t last_error;
static thread_local int current_device;

/* The failure that lasts, of all devices: a program that sees one has to end anyway. There before
 * anything runs, and never destroyed: who comes first and last is up to the program's threads. */
static struct sticky {
    std::mutex lock;
    cudaError_t error;
    char text[512];
} broken;

cudaError_t say(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

void fail_for_good(const std::string &text)
{
    std::lock_guard<std::mutex> hold(broken.lock);

    if (broken.error != cudaSuccess) return;
    broken.error = cudaErrorLaunchFailure;
    (void)snprintf(broken.text, sizeof broken.text, "unspecified launch failure: %s", text.c_str());
}

cudaError_t lasting()
{
    std::lock_guard<std::mutex> hold(broken.lock);

    return broken.error;
}

static std::mutex limits_lock;
static std::map<const void *, int> &shared_limits()
{
    static auto *limits = new std::map<const void *, int>;
    return *limits;
}

void set_shared_limit(const void *kernel, int bytes)
{
    std::lock_guard<std::mutex> hold(limits_lock);

    shared_limits()[kernel] = bytes;
}

static size_t shared_limit(const void *kernel)
{
    std::lock_guard<std::mutex> hold(limits_lock);
    const auto found = shared_limits().find(kernel);

    return found == shared_limits().end() ? 48 * 1024 : (size_t)found->second;
}

static cudaError_t check_launch(const launch_order &o)
{
    const uint64_t threads = (uint64_t)o.extent.x * o.extent.y * o.extent.z;

    if (threads == 0 || threads > 1024 || o.extent.z > 64) return cudaErrorInvalidConfiguration;
    if (o.grid.x == 0 || o.grid.y == 0 || o.grid.z == 0) return cudaErrorInvalidConfiguration;
    if (o.grid.x > 0x7fffffffu || o.grid.y > 65535 || o.grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (o.shared > shared_limit(o.kernel)) return cudaErrorInvalidValue;
    if (o.host_pointer < 0) return cudaSuccess;
    fail_for_good(std::string("kernel ") + o.name + ": argument " + std::to_string(o.host_pointer) +
                  " points to memory of the host");
    return cudaErrorLaunchFailure;
}

void launch(cudaStream_t stream, const launch_order &order)
{
    const cudaError_t error = check_launch(order);

    if (error != cudaSuccess)
        (void)say(error);
    else
        (void)say(enqueue(
            stream,
            [order] {
                const opened devices;
                (void)run_grid(order);
            },
            order.spins));
}

} // namespace dti_sim

/* --- errors ----------------------------------------------------------------------------------*/

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(e) \
    case e:     \
        return #e;
        NAME(cudaSuccess)
        NAME(cudaErrorInvalidValue)
        NAME(cudaErrorMemoryAllocation)
        NAME(cudaErrorInvalidConfiguration)
        NAME(cudaErrorInsufficientDriver)
        NAME(cudaErrorNoDevice)
        NAME(cudaErrorInvalidDevice)
        NAME(cudaErrorInvalidResourceHandle)
        NAME(cudaErrorNotReady)
        NAME(cudaErrorIllegalAddress)
        NAME(cudaErrorPeerAccessAlreadyEnabled)
        NAME(cudaErrorPeerAccessNotEnabled)
        NAME(cudaErrorLaunchFailure)
        NAME(cudaErrorNotSupported)
        NAME(cudaErrorStreamCaptureUnsupported)
        NAME(cudaErrorStreamCaptureInvalidated)
        NAME(cudaErrorStreamCaptureUnmatched)
        NAME(cudaErrorStreamCaptureUnjoined)
        NAME(cudaErrorStreamCaptureIsolation)
        NAME(cudaErrorUnknown)
#undef NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorLaunchFailure: {
        static thread_local std::string copy;
        std::lock_guard<std::mutex> hold(broken.lock);
        copy = broken.error == error ? broken.text : "unspecified launch failure";
        return copy.c_str();
    }
    default:
        return "an error of the simulated device";
    }
}

cudaError_t cudaPeekAtLastError(void)
{
    return lasting() != cudaSuccess ? lasting() : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaDeviceReset(void)
{
    std::lock_guard<std::mutex> hold(broken.lock);

    broken.error = last_error = cudaSuccess;
    return cudaSuccess;
}

/* --- devices ---------------------------------------------------------------------------------*/

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = chosen().n_devices;
    return say(*n > 0 ? cudaSuccess : cudaErrorNoDevice);
}

static bool is_device(int device)
{
    return device >= 0 && device < chosen().n_devices;
}

cudaError_t cudaSetDevice(int device)
{
    if (!is_device(device)) return say(cudaErrorInvalidDevice);
    current_device = device;
    return say(lasting());
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

/* Few multiprocessors, so that a grid that fills the device is a small one. */
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
    if (!is_device(device)) return say(cudaErrorInvalidDevice);
    memset(out, 0, sizeof *out);
    (void)snprintf(out->name, sizeof out->name, "simulated device %d", device);
    out->totalGlobalMem = DEVICE_BYTES;
    out->major = 9;
    out->multiProcessorCount = 4;
    out->l2CacheSize = 1 << 20;
    out->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (!is_device(device)) return say(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 * 1024;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 * 1024;
        return cudaSuccess;
    }
    return say(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    if (!is_device(device)) return say(cudaErrorInvalidDevice);
    (void)snprintf(text, (size_t)bytes, "0000:%02x:00.0", 0xf0 + device);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *bytes)
{
    *bytes = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - used_bytes();
    return say(lasting());
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!is_device(device) || !is_device(peer)) return say(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

/* All devices can read each other; asked for twice is an error, as with CUDA. */
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    static std::mutex lock;
    static bool enabled[9][9];
    std::lock_guard<std::mutex> hold(lock);

    if (!is_device(peer) || peer == current_device) return say(cudaErrorInvalidDevice);
    if (enabled[current_device][peer]) return say(cudaErrorPeerAccessAlreadyEnabled);
    enabled[current_device][peer] = true;
    return say(cudaSuccess);
}
