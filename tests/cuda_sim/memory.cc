/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the simulated devices: with a page in front and one behind that nobody may touch. The
 * host may not touch the rest either while no kernel and no copy runs, so a host access to device
 * memory ends the program as an access to no memory does.
 *
 * All of the devices' lies in one stretch of addresses, which one call to the system opens or
 * closes. What is between allocations is mapped from a file of no bytes: no protection makes that
 * accessible. Large allocations have huge pages, of which there are fewer to open. */
#include "fibres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <map>

#ifdef DTI_SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace dti_sim
{

namespace
{

enum { PAGE = 4096, ALIGNMENT = 256, SLACK_BYTE = 0x5a };
enum : size_t { STRETCH = (size_t)256 << 30, HUGE = (size_t)2 << 20 };

struct piece {
    cudaMemoryType type;
    int device;
    size_t bytes, mapped; /* what was asked for; whole pages, without the guards */
};

std::mutex lock; /* of all of it */

struct memory {
    std::map<const char *, piece> pieces;
    int n_open = 0;
    size_t used = 0;      /* of devices */
    int nothing = -1;     /* the file of no bytes */
    char *base = nullptr; /* of the devices' stretch */
    size_t next = PAGE;   /* where in it the next allocation may lie */
};

/* Never destroyed: threads may still run when the program exits. */
memory &all()
{
    static memory *m = new memory;
    return *m;
}

/* Past the sanitizers, which would keep books on each page of the stretch. */
char *map_nothing(memory &m, char *at, size_t bytes)
{
    const long done = syscall(SYS_mmap, at, bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0),
                              m.nothing, at != nullptr ? at - m.base : 0);

    return done == -1 ? nullptr : reinterpret_cast<char *>(done);
}

bool have_stretch(memory &m)
{
    if (m.base != nullptr) return true;
    if (m.nothing < 0) m.nothing = memfd_create("nothing", MFD_CLOEXEC);
    if (m.nothing < 0) return false;
    char *at = map_nothing(m, nullptr, STRETCH + HUGE);
    if (at == nullptr) return false;
    m.base = at + (HUGE - reinterpret_cast<uintptr_t>(at) % HUGE) % HUGE;
    return map_nothing(m, m.base, STRETCH) !=
           nullptr; /* so that offsets are those of the stretch */
}

/* Where so many bytes fit between guards, from the last allocation on and then from the beginning:
 * what was given back is not used again soon. Null: nowhere. */
char *find_room(memory &m, size_t mapped)
{
    for (int round = 0; round < 2; round++) {
        for (;;) {
            if (mapped >= HUGE) m.next = (m.next + HUGE - 1) / HUGE * HUGE;
            if (m.next + mapped + PAGE > STRETCH) break;
            const auto after = m.pieces.lower_bound(m.base + m.next);
            if (after == m.pieces.end() || after->first >= m.base + m.next + mapped + PAGE)
                return m.base + m.next;
            m.next = (size_t)(after->first - m.base) + after->second.mapped + PAGE;
        }
        m.next = PAGE;
    }
    return nullptr;
}

/* Opens or closes what the devices have. */
void protect_all(const memory &m, bool open)
{
    if (m.base == nullptr || !chosen().protect) return;
    const auto first = m.pieces.lower_bound(m.base), end = m.pieces.upper_bound(m.base + STRETCH);
    if (first == end) return;
    const auto last = std::prev(end);
    (void)mprotect(const_cast<char *>(first->first),
                   (size_t)(last->first - first->first) + last->second.mapped,
                   open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void protect(const char *at, const piece &p, bool open)
{
    if (p.type != cudaMemoryTypeDevice || !chosen().protect) return;
    (void)mprotect(const_cast<char *>(at), p.mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Pages that can be read and written, between guards. Null: there are none. */
char *map_piece(memory &m, const piece &p)
{
    if (p.type == cudaMemoryTypeDevice) {
        char *at = have_stretch(m) ? find_room(m, p.mapped) : nullptr;
        if (at == nullptr ||
            mmap(at, p.mapped, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            return nullptr;
        if (p.mapped >= HUGE) (void)madvise(at, p.mapped, MADV_HUGEPAGE);
        m.next = (size_t)(at - m.base) + p.mapped + PAGE;
        return at;
    }
    char *at = static_cast<char *>(mmap(nullptr, p.mapped + 2 * PAGE, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (at == MAP_FAILED) return nullptr;
    if (mprotect(at + PAGE, p.mapped, PROT_READ | PROT_WRITE) == 0) return at + PAGE;
    (void)munmap(at, p.mapped + 2 * PAGE);
    return nullptr;
}

void unmap_piece(memory &m, char *at, const piece &p)
{
    if (p.type != cudaMemoryTypeDevice)
        (void)munmap(at - PAGE, p.mapped + 2 * PAGE);
    else if (map_nothing(m, at, p.mapped) == nullptr)
        abort();
}

cudaError_t take(void **out, size_t bytes, cudaMemoryType type, int device)
{
    memory &m = all();
    const size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
    const piece p = { type, device, bytes, mapped };
    std::lock_guard<std::mutex> hold(lock);

    *out = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > SIZE_MAX / 2 || (type == cudaMemoryTypeDevice && m.used + mapped > DEVICE_BYTES))
        return cudaErrorMemoryAllocation;
    char *at = map_piece(m, p);
    if (at == nullptr) return cudaErrorMemoryAllocation;
    memset(at + bytes, SLACK_BYTE, mapped - bytes);
#ifdef DTI_SIM_ASAN
    __asan_poison_memory_region(at + bytes, mapped - bytes);
#endif
    m.pieces[at] = p;
    if (type == cudaMemoryTypeDevice) m.used += mapped;
    protect(at, p, m.n_open > 0);
    *out = at;
    return cudaSuccess;
}

/* Whether nothing was written behind the end. */
bool is_intact(const char *at, const piece &p)
{
    for (size_t i = p.bytes; i < p.mapped; i++)
        if (at[i] != SLACK_BYTE) return false;
    return true;
}

cudaError_t give_back(void *data, cudaMemoryType type)
{
    memory &m = all();
    std::lock_guard<std::mutex> hold(lock);

    if (data == nullptr) return cudaSuccess;
    const auto found = m.pieces.find(static_cast<char *>(data));
    if (found == m.pieces.end() || found->second.type != type) return cudaErrorInvalidValue;
    const piece p = found->second;
    char *at = static_cast<char *>(data);
    m.pieces.erase(found);
    if (type == cudaMemoryTypeDevice) m.used -= p.mapped;
    protect(at, p, true);
#ifdef DTI_SIM_ASAN
    __asan_unpoison_memory_region(at, p.mapped);
#endif
    const bool intact = is_intact(at, p);
    unmap_piece(m, at, p);
    if (intact) return cudaSuccess;
    fail_for_good("memory was written behind the end of an allocation of " +
                  std::to_string(p.bytes) + " bytes");
    return cudaErrorIllegalAddress;
}

} // namespace

memory_info find_memory(const void *p)
{
    memory &m = all();
    std::lock_guard<std::mutex> hold(lock);
    const char *at = static_cast<const char *>(p);
    auto after = m.pieces.upper_bound(at);

    if (after == m.pieces.begin()) return memory_info{ cudaMemoryTypeUnregistered, -1, 0 };
    --after;
    const size_t offset = (size_t)(at - after->first);
    if (offset >= after->second.mapped) return memory_info{ cudaMemoryTypeUnregistered, -1, 0 };
    return memory_info{ after->second.type, after->second.device,
                        offset < after->second.bytes ? after->second.bytes - offset : 0 };
}

bool is_host_pointer(const void *p)
{
    return p != nullptr && find_memory(p).type == cudaMemoryTypeUnregistered;
}

size_t used_bytes()
{
    memory &m = all();
    std::lock_guard<std::mutex> hold(lock);

    return m.used;
}

opened::opened()
{
    memory &m = all();
    std::lock_guard<std::mutex> hold(lock);

    if (m.n_open++ == 0) protect_all(m, true);
}

opened::~opened()
{
    memory &m = all();
    std::lock_guard<std::mutex> hold(lock);

    if (--m.n_open == 0) protect_all(m, false);
}

/* One for each thread, of the largest size that a block may have. */
static unsigned char *shared_end()
{
    struct region {
        char *at;
        region()
            : at(static_cast<char *>(mmap(nullptr, SHARED_BYTES + PAGE, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
        {
            if (at == MAP_FAILED) abort();
            (void)mprotect(at + SHARED_BYTES, PAGE, PROT_NONE);
        }
        ~region()
        {
            (void)munmap(at, SHARED_BYTES + PAGE);
        }
    };
    static thread_local region own;

    return reinterpret_cast<unsigned char *>(own.at) + SHARED_BYTES;
}

shared_memory::shared_memory(size_t bytes) : bytes_((bytes + 15) / 16 * 16)
{
    data_ = shared_end() - bytes_;
}

void shared_memory::spoil()
{
    memset(data_, 0xff, bytes_);
}

} // namespace dti_sim

using namespace dti_sim;

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    int device = 0;

    if (is_capturing()) return say(cudaErrorStreamCaptureUnsupported);
    (void)cudaGetDevice(&device);
    return say(take(out, bytes, cudaMemoryTypeDevice, device));
}

cudaError_t cudaFree(void *data)
{
    const memory_info info = find_memory(data);

    if (is_capturing()) return say(cudaErrorStreamCaptureUnsupported);
    if (info.type == cudaMemoryTypeDevice) drain_device(info.device);
    return say(give_back(data, cudaMemoryTypeDevice));
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    int device = 0;

    if (is_capturing()) return say(cudaErrorStreamCaptureUnsupported);
    (void)cudaGetDevice(&device);
    return say(take(out, bytes, cudaMemoryTypeHost, device));
}

cudaError_t cudaFreeHost(void *data)
{
    const memory_info info = find_memory(data);

    if (is_capturing()) return say(cudaErrorStreamCaptureUnsupported);
    if (info.type == cudaMemoryTypeHost) drain_device(info.device);
    return say(give_back(data, cudaMemoryTypeHost));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *data)
{
    const memory_info info = find_memory(data);

    memset(out, 0, sizeof *out);
    out->type = info.type;
    out->device = info.device < 0 ? 0 : info.device;
    if (info.type != cudaMemoryTypeUnregistered) out->devicePointer = const_cast<void *>(data);
    if (info.type == cudaMemoryTypeHost) out->hostPointer = const_cast<void *>(data);
    return cudaSuccess;
}

/* Each side has to be where the kind says, and as long; by default it may lie anywhere. */
static cudaError_t check_side(const void *p, size_t bytes, cudaMemcpyKind kind, bool device)
{
    const memory_info info = find_memory(p);

    if (kind != cudaMemcpyDefault && (info.type == cudaMemoryTypeDevice) != device)
        return cudaErrorInvalidValue;
    if (info.type != cudaMemoryTypeUnregistered && info.left < bytes) return cudaErrorInvalidValue;
    return cudaSuccess;
}

static cudaError_t copy_bytes(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    return enqueue(stream, [to, from, bytes] {
        const opened devices;
        memmove(to, from, bytes);
    });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const bool any = kind == cudaMemcpyDefault;
    const bool up = kind == cudaMemcpyHostToDevice || (any && is_host_pointer(from));
    const bool down = kind == cudaMemcpyDeviceToHost || (any && is_host_pointer(to));
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error;

    if (bytes == 0) return say(lasting());
    if (!up && !down && !any && kind != cudaMemcpyDeviceToDevice) return say(cudaErrorInvalidValue);
    if ((error = check_side(to, bytes, kind, !down)) != cudaSuccess) return say(error);
    if ((error = check_side(from, bytes, kind, !up)) != cudaSuccess) return say(error);
    (void)cudaStreamIsCapturing(stream, &capture);
    if (capture != cudaStreamCaptureStatusNone) return say(copy_bytes(to, from, bytes, stream));
    if (up && find_memory(from).type == cudaMemoryTypeUnregistered) {
        const auto staged = std::make_shared<std::vector<char>>(
            static_cast<const char *>(from), static_cast<const char *>(from) + bytes);
        return say(enqueue(stream, [to, staged] {
            const opened devices;
            memcpy(to, staged->data(), staged->size());
        }));
    }
    error = copy_bytes(to, from, bytes, stream);
    if (error == cudaSuccess && down && find_memory(to).type == cudaMemoryTypeUnregistered)
        error = cudaStreamSynchronize(stream);
    return say(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);

    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const memory_info info = find_memory(to);

    if (bytes == 0) return say(lasting());
    if (info.type == cudaMemoryTypeUnregistered || info.left < bytes)
        return say(cudaErrorInvalidValue);
    return say(enqueue(stream, [to, value, bytes] {
        const opened devices;
        memset(to, value, bytes);
    }));
}
