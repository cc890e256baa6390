/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a device, pinned memory of the host, and copies between them.
 *
 * A copy from pageable memory goes through two pinned buffers in turn: what the caller may do with
 * its memory afterwards then depends on no driver, and the copy of one half runs while the other is
 * filled. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/device/cuda/module_parts.h"

enum { STAGING_BYTES = 1 << 20, N_STAGING = 2, SCRATCH_GRAIN = 1 << 16 };

struct dti_cuda_staging {
    void *buffer[N_STAGING];
    cudaEvent_t free_again[N_STAGING]; /* after the last copy out of the buffer */
    int next;
};

/* Scratch that was too small. */
typedef struct outgrown {
    void *data;
    struct outgrown *next;
} outgrown;

/* Memory may be taken and given back while a graph is recorded: it is no part of the graph. */
static void allow_while_recording(const dti_cuda *c, enum cudaStreamCaptureMode *mode)
{
    if (c->capturing) (void)cudaThreadExchangeStreamCaptureMode(mode);
}

int dti_cuda_alloc(dti_cuda *c, size_t bytes, dti_cuda_memory kind, void **out)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error;

    *out = NULL;
    if (bytes == 0) return 0;
    if (dti_cuda_enter(c)) return -1;
    allow_while_recording(c, &mode);
    if (kind == DTI_CUDA_PINNED)
        error = cudaHostAlloc(out, bytes, cudaHostAllocPortable);
    else
        error = cudaMalloc(out, bytes);
    allow_while_recording(c, &mode);
    if (error == cudaSuccess) return 0;
    (void)cudaGetLastError();
    *out = NULL;
    if (error == cudaErrorMemoryAllocation && kind != DTI_CUDA_PINNED) {
        size_t left = 0, all = 0;
        (void)cudaMemGetInfo(&left, &all);
        return dti_cuda_fail("no memory of device %d for %zu bytes: %zu of %zu are free", c->device,
                             bytes, left, all);
    }
    return dti_cuda_check(error, kind == DTI_CUDA_PINNED ? "pinning memory of the host"
                                                         : "taking memory of the device");
}

void dti_cuda_release(dti_cuda *c, dti_cuda_memory kind, void *data)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    if (data == NULL) return;
    (void)dti_cuda_enter(c);
    allow_while_recording(c, &mode);
    (void)(kind == DTI_CUDA_PINNED ? cudaFreeHost(data) : cudaFree(data));
    allow_while_recording(c, &mode);
    (void)cudaGetLastError();
}

/* --- copies ----------------------------------------------------------------------------------- */

static int find(const void *p, enum cudaMemoryType *type)
{
    struct cudaPointerAttributes attributes;

    if (dti_cuda_check(cudaPointerGetAttributes(&attributes, p), "asking where memory lies"))
        return -1;
    *type = attributes.type;
    return 0;
}

/* Says which side is not where the way needs it. Pinned memory is as good as a device's. */
static int check_way(const void *to, const void *from, dti_cuda_way way, bool *pageable)
{
    enum cudaMemoryType at, source;

    if (find(to, &at) || find(from, &source)) return -1;
    if (way != DTI_CUDA_DOWN && at == cudaMemoryTypeUnregistered)
        return dti_cuda_fail("copy: the target %p is no memory of a device", to);
    if (way != DTI_CUDA_UP && source == cudaMemoryTypeUnregistered)
        return dti_cuda_fail("copy: the source %p is no memory of a device", from);
    if (way == DTI_CUDA_DOWN && at == cudaMemoryTypeDevice)
        return dti_cuda_fail("copy down: the target %p lies on a device", to);
    if (way == DTI_CUDA_UP && source == cudaMemoryTypeDevice)
        return dti_cuda_fail("copy up: the source %p lies on a device", from);
    *pageable = (way == DTI_CUDA_UP && source == cudaMemoryTypeUnregistered) ||
                (way == DTI_CUDA_DOWN && at == cudaMemoryTypeUnregistered);
    return 0;
}

static int make_staging(dti_cuda *c)
{
    struct dti_cuda_staging *s = c->staging;

    if (s != NULL) return 0;
    s = calloc(1, sizeof *s);
    if (s == NULL) return dti_cuda_fail("no memory of the host for copies");
    c->staging = s; /* what is made of it is closed with c */
    for (int k = 0; k < N_STAGING; k++)
        if (dti_cuda_check(cudaEventCreateWithFlags(&s->free_again[k], cudaEventDisableTiming),
                           "making an event") ||
            dti_cuda_check(cudaHostAlloc(&s->buffer[k], STAGING_BYTES, cudaHostAllocPortable),
                           "pinning memory of the host"))
            return -1;
    return 0;
}

static int copy_staged(dti_cuda *c, unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (make_staging(c)) return -1;
    while (bytes > 0) {
        struct dti_cuda_staging *const s = c->staging;
        const size_t n = bytes < STAGING_BYTES ? bytes : STAGING_BYTES;
        const int k = s->next;

        s->next = (k + 1) % N_STAGING;
        if (dti_cuda_check(cudaEventSynchronize(s->free_again[k]), "copy up")) return -1;
        memcpy(s->buffer[k], from, n);
        if (dti_cuda_check(cudaMemcpyAsync(to, s->buffer[k], n, cudaMemcpyDefault, c->stream),
                           "copy up") ||
            dti_cuda_check(cudaEventRecord(s->free_again[k], c->stream), "copy up"))
            return -1;
        to += n;
        from += n;
        bytes -= n;
    }
    return 0;
}

int dti_cuda_copy(dti_cuda *c, void *to, const void *from, size_t bytes, dti_cuda_way way)
{
    static const char *const names[] = { "copy up", "copy down", "copy within" };
    bool pageable = false;

    if (bytes == 0) return 0;
    if (dti_cuda_enter(c) || check_way(to, from, way, &pageable)) return -1;
    if (pageable && c->capturing)
        return dti_cuda_fail("%s: only pinned memory of the host can take part in a graph",
                             names[way]);
    if (pageable && way == DTI_CUDA_UP) return copy_staged(c, to, from, bytes);
    if (dti_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->stream), names[way]))
        return -1;
    return pageable ? dti_cuda_check(cudaStreamSynchronize(c->stream), names[way]) : 0;
}

int dti_cuda_clear(dti_cuda *c, void *to, size_t bytes)
{
    if (bytes == 0) return 0;
    if (dti_cuda_enter(c)) return -1;
    return dti_cuda_check(cudaMemsetAsync(to, 0, bytes, c->stream), "clear");
}

/* --- scratch ---------------------------------------------------------------------------------- */

/* Kernels that wait in the stream, and graphs, name the scratch of their time, so it stays. */
static int keep_old_scratch(dti_cuda *c)
{
    outgrown *o;

    if (c->scratch == NULL) return 0;
    o = malloc(sizeof *o);
    if (o == NULL) return dti_cuda_fail("no memory of the host");
    *o = (outgrown){ .data = c->scratch, .next = c->old_scratch };
    c->old_scratch = o;
    c->scratch = NULL;
    c->scratch_bytes = 0;
    return 0;
}

int dti_cuda_scratch(dti_cuda *c, size_t bytes, void **out)
{
    *out = c->scratch;
    if (bytes <= c->scratch_bytes) return 0;
    *out = NULL;
    if (bytes > SIZE_MAX / 4) return dti_cuda_fail("scratch of %zu bytes", bytes);
    if (bytes < 2 * c->scratch_bytes) bytes = 2 * c->scratch_bytes; /* outgrown ones stay few */
    bytes = (bytes + SCRATCH_GRAIN - 1) / SCRATCH_GRAIN * SCRATCH_GRAIN;
    if (keep_old_scratch(c)) return -1;
    if (dti_cuda_alloc(c, bytes, DTI_CUDA_DEVICE, &c->scratch)) return -1;
    c->scratch_bytes = bytes;
    *out = c->scratch;
    return 0;
}

void dti_cuda_memory_close(dti_cuda *c)
{
    while (c->old_scratch != NULL) {
        outgrown *o = c->old_scratch;
        c->old_scratch = o->next;
        (void)cudaFree(o->data);
        free(o);
    }
    if (c->scratch != NULL) (void)cudaFree(c->scratch);
    if (c->staging != NULL) {
        for (int k = 0; k < N_STAGING; k++) {
            if (c->staging->buffer[k] != NULL) (void)cudaFreeHost(c->staging->buffer[k]);
            if (c->staging->free_again[k] != NULL)
                (void)cudaEventDestroy(c->staging->free_again[k]);
        }
        free(c->staging);
    }
}
