/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device itself: right kernels give right results, wrong ones are found out. Kernels
 * here are wrong on purpose where their names say so. */
#include <cuda_runtime.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fibres.h"

/* What DTI_LAUNCH wants of the module. */
struct holder {
    cudaStream_t stream;
    int64_t n_launches;
};
static int dti_cuda_launched(const char *)
{
    return cudaGetLastError() == cudaSuccess ? 0 : -1;
}

static int n_failed;
#define EXPECT(cond)                                                                         \
    do {                                                                                     \
        if (!(cond)) n_failed++, printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #cond); \
    } while (0)

static holder the_stream()
{
    static holder h = {};

    if (h.stream == nullptr) (void)cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking);
    return h;
}

/* The launch fails, or the wait after it, and the reason has these words. */
static void expect_fault(int launched, const char *words)
{
    const cudaError_t error = cudaStreamSynchronize(the_stream().stream);
    const char *text = cudaGetErrorString(cudaErrorLaunchFailure);

    (void)launched; /* a late launch fails where somebody waits */
    EXPECT(error == cudaErrorLaunchFailure);
    EXPECT(strstr(text, words) != nullptr);
    if (strstr(text, words) == nullptr) printf("    it says: %s\n", text);
    (void)cudaDeviceReset();
}

template <class T> struct device_array {
    T *at = nullptr;
    size_t n;
    explicit device_array(size_t n_) : n(n_)
    {
        (void)cudaMalloc((void **)&at, n * sizeof(T));
    }
    ~device_array()
    {
        (void)cudaFree(at);
    }
    void put(const T *from)
    {
        (void)cudaMemcpyAsync(at, from, n * sizeof(T), cudaMemcpyHostToDevice, the_stream().stream);
    }
    std::vector<T> get()
    {
        std::vector<T> to(n);
        (void)cudaMemcpyAsync(to.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost,
                              the_stream().stream);
        return to;
    }
};

/* --- threads of a block ----------------------------------------------------------------------*/

__global__ void sum_of_block(float *to, const float *from, int n)
{
    __shared__ float parts[32];
    const unsigned t = threadIdx.x;
    float x = 0.0f;

    for (int i = (int)t; i < n; i += (int)blockDim.x) x += from[(int)blockIdx.x * n + i];
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (t % 32 == 0) parts[t / 32] = x;
    __syncthreads();
    if (t < 32) {
        x = t < blockDim.x / 32 ? parts[t] : 0.0f;
        for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffffu, x, step);
        if (t == 0) to[blockIdx.x] = x;
    }
}

__global__ void neighbours(int *to, bool wait)
{
    DTI_SHARED(int, row);
    const unsigned t = threadIdx.x;

    row[t] = (int)t;
    if (wait) __syncthreads();
    to[t] = row[(t + 1) % blockDim.x] + row[(t + blockDim.x - 1) % blockDim.x];
}

__global__ void votes(unsigned *to)
{
    const unsigned t = threadIdx.x;

    to[t] = __ballot_sync(0xffffffffu, t % 3 == 0);
    if (t < 8) to[t] += (unsigned)__shfl_sync(0xffu, (int)t, 7 - (int)t);
    if (__syncthreads_count(t < 5) != 5) to[t] = 0;
}

static void test_blocks()
{
    holder s = the_stream();
    enum { BLOCKS = 3, LENGTH = 1000, THREADS = 96 };
    std::vector<float> from(BLOCKS * LENGTH);
    device_array<float> x(from.size()), sums(BLOCKS);
    device_array<int> near(THREADS);
    device_array<unsigned> ballots(32);

    for (size_t i = 0; i < from.size(); i++) from[i] = (float)(i % 17);
    x.put(from.data());
    EXPECT(DTI_LAUNCH(&s, sum_of_block, BLOCKS, THREADS, 0, sums.at, x.at, LENGTH) == 0);
    for (int b = 0; b < BLOCKS; b++) {
        float want = 0.0f;
        for (int i = 0; i < LENGTH; i++) want += from[(size_t)(b * LENGTH + i)];
        EXPECT(sums.get()[(size_t)b] == want);
    }
    for (int wait = 0; wait < 2; wait++) {
        bool right = true;
        EXPECT(DTI_LAUNCH(&s, neighbours, 1, THREADS, THREADS * 4, near.at, wait != 0) == 0);
        const std::vector<int> got = near.get();
        for (int t = 0; t < THREADS; t++)
            right = right && got[(size_t)t] == (t + 1) % THREADS + (t + THREADS - 1) % THREADS;
        EXPECT(right == (wait != 0)); /* without the barrier a thread is ahead of its neighbour */
    }
    EXPECT(DTI_LAUNCH(&s, votes, 1, 32, 0, ballots.at) == 0);
    for (unsigned t = 0; t < 32; t++) EXPECT(ballots.get()[t] == 0x49249249u + (t < 8 ? 7 - t : 0));
}

/* --- kernels that are wrong ------------------------------------------------------------------*/

__global__ void wrong_barrier(int)
{
    if (threadIdx.x < 16) __syncthreads();
}

__global__ void wrong_masks(int)
{
    if (threadIdx.x < 16)
        (void)__shfl_sync(0xffffffffu, 1, 0);
    else
        __syncthreads();
}

__global__ void wrong_lane(int)
{
    if (threadIdx.x < 16) (void)__shfl_xor_sync(0xffffu, 1, 16);
}

__global__ void wrong_mask(int)
{
    __syncwarp(0xfffffffeu);
}

__global__ void wrong_alignment(const float *x)
{
    (void)__ldg(reinterpret_cast<const float4 *>(x + 1));
}

__global__ void past_the_end(unsigned char *x, int at)
{
    x[at] = 1;
}

__global__ void past_shared(int at)
{
    DTI_SHARED(volatile int, row);

    row[at] = 1;
}

/* Waits for its neighbour's mark on another stream, and leaves its own there. */
__global__ void meet_neighbour(uint32_t *own, uint32_t *other, uint32_t mark)
{
    dti_store_release(other, mark);
    while (dti_load_acquire(own) < mark) {
    }
}

/* Whether the deed ends its process. */
template <class F> static bool is_deadly(F deed)
{
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        (void)fclose(stderr);
        deed();
        _exit(0);
    }
    (void)waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_wrong_kernels()
{
    holder s = the_stream();
    device_array<float> x(64);
    unsigned char *bytes = nullptr;
    float host[4];

    expect_fault(DTI_LAUNCH(&s, wrong_barrier, 1, 32, 0, 0), "thread 16 has ended");
    expect_fault(DTI_LAUNCH(&s, wrong_masks, 1, 32, 0, 0), "thread 0 waits in __shfl_sync");
    expect_fault(DTI_LAUNCH(&s, wrong_lane, 1, 32, 0, 0), "does not take part");
    expect_fault(DTI_LAUNCH(&s, wrong_mask, 1, 32, 0, 0), "lacks the calling lane");
    expect_fault(DTI_LAUNCH(&s, wrong_alignment, 1, 1, 0, x.at), "misaligned");
    expect_fault(DTI_LAUNCH(&s, meet_neighbour, 1, 1, 0, (uint32_t *)x.at, (uint32_t *)x.at, 1u),
                 "was not started by DTI_LAUNCH_SPINNING");
    expect_fault(DTI_LAUNCH(&s, wrong_alignment, 1, 1, 0, host), "memory of the host");
    EXPECT(DTI_LAUNCH(&s, wrong_lane, 1, 2048, 0, 0) == -1); /* too many threads */
    EXPECT(DTI_LAUNCH(&s, wrong_lane, 0, 32, 0, 0) == -1);   /* no blocks */

    EXPECT(DTI_LAUNCH(&s, past_shared, 1, 1, 64 * 1024, 0) == -1); /* more than was allowed */
    EXPECT(cudaFuncSetAttribute(past_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                64 * 1024) == cudaSuccess);
    EXPECT(DTI_LAUNCH(&s, past_shared, 1, 1, 64 * 1024, 0) == 0);
    EXPECT(cudaStreamSynchronize(s.stream) == cudaSuccess);
#ifndef DTI_SIM_ASAN
    EXPECT(is_deadly([&s] {
        (void)DTI_LAUNCH(&s, past_shared, 1, 1, 64, 16);
        (void)cudaStreamSynchronize(s.stream);
    }));
    EXPECT(cudaMalloc((void **)&bytes, 100) == cudaSuccess);
    (void)DTI_LAUNCH(&s, past_the_end, 1, 1, 0, bytes, 100);
    EXPECT(cudaFree(bytes) == cudaErrorIllegalAddress); /* found when it is given back */
    (void)cudaDeviceReset();
    EXPECT(cudaMalloc((void **)&bytes, 4096) == cudaSuccess);
    EXPECT(is_deadly([&s, bytes] {
        (void)DTI_LAUNCH(&s, past_the_end, 1, 1, 0, bytes, 4096);
        (void)cudaStreamSynchronize(s.stream);
    }));
    EXPECT(!is_deadly([&s, bytes] {
        (void)DTI_LAUNCH(&s, past_the_end, 1, 1, 0, bytes, 4095);
        (void)cudaStreamSynchronize(s.stream);
    }));
    EXPECT(is_deadly([bytes] { *(volatile unsigned char *)bytes = 1; })); /* by the host */
    (void)cudaFree(bytes);
#else
    (void)bytes, (void)is_deadly<void (*)()>;
#endif
}

/* --- tensor cores and copies -----------------------------------------------------------------*/

/* y [16, 8] = a [16, 16] b^T, b [8, 16], both of f16 bits. */
__global__ void one_product(float *y, const uint16_t *a, const uint16_t *b)
{
    __shared__ __align__(16) uint16_t tile_a[16][16], tile_b[8][16];
    const unsigned lane = threadIdx.x;
    uint32_t of_a[4], of_b[2], turned[4];
    float d[4] = { 0.0f, 0.0f, 0.0f, 0.0f };

    for (unsigned i = lane; i < 256; i += 32) tile_a[i / 16][i % 16] = a[i];
    for (unsigned i = lane; i < 128; i += 32) tile_b[i / 16][i % 16] = b[i];
    __syncwarp();
    dti_ldmatrix_x4(of_a, &tile_a[lane % 16][lane / 16 * 8]);
    dti_ldmatrix_x2(of_b, &tile_b[lane % 8][lane / 8 % 2 * 8]);
    dti_mma_f16(d, of_a, of_b);
    for (unsigned i = 0; i < 4; i++) y[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
    /* Row j of a matrix is column j of it turned: lane 4 i + j has elements 2 j, 2 j + 1 of i. */
    dti_ldmatrix_x4_trans(turned, &tile_a[lane % 16][lane / 16 * 8]);
    if ((turned[0] & 0xffffu) != tile_a[lane % 4 * 2][lane / 4] ||
        turned[3] >> 16 != tile_a[8 + lane % 4 * 2 + 1][8 + lane / 4])
        y[0] = -1.0f;
}

__global__ void copies(int *to, const int *from)
{
    __shared__ __align__(16) int line[3][4];

    for (int i = 0; i < 12; i++) line[i / 4][i % 4] = -1;
    dti_cp_async_16(line[0], from, 16);
    dti_cp_async_commit();
    dti_cp_async_16(line[1], from, 0); /* zeros */
    dti_cp_async_commit();
    dti_cp_async_16(line[2], from, 16);
    dti_cp_async_commit();
    dti_cp_async_wait<1>();
    for (int i = 0; i < 12; i++) to[i] = line[i / 4][i % 4];
    dti_cp_async_wait<0>();
    to[12] = line[2][3];
}

static void test_tensor_cores()
{
    holder s = the_stream();
    std::vector<uint16_t> a(256), b(128);
    device_array<uint16_t> on_a(256), on_b(128);
    device_array<float> y(128);
    device_array<int> from(4), to(13);
    const int four[4] = { 1, 2, 3, 4 };

    for (int i = 0; i < 256; i++) a[(size_t)i] = dti_f16_bits((float)(i * 37 % 23 - 9) / 8.0f);
    for (int i = 0; i < 128; i++) b[(size_t)i] = dti_f16_bits((float)(i * 29 % 31 - 11) / 4.0f);
    on_a.put(a.data());
    on_b.put(b.data());
    EXPECT(DTI_LAUNCH(&s, one_product, 1, 32, 0, y.at, on_a.at, on_b.at) == 0);
    const std::vector<float> got = y.get();
    for (size_t m = 0; m < 16; m++)
        for (size_t n = 0; n < 8; n++) {
            float want = 0.0f; /* exact */
            for (size_t k = 0; k < 16; k++)
                want += dti_f16_value(a[m * 16 + k]) * dti_f16_value(b[n * 16 + k]);
            EXPECT(got[m * 8 + n] == want);
        }
    for (unsigned bits = 0; bits < 65536; bits++) {
        const float x = dti_f16_value((uint16_t)bits);
        EXPECT(x != x || dti_f16_bits(x) == bits);
    }
    EXPECT(dti_f16_bits(1.00048828125f) == 0x3c00); /* half way: to the even one */
    EXPECT(dti_f16_bits(1.00146484375f) == 0x3c02);
    EXPECT(dti_f16_bits(65519.0f) == 0x7bff && dti_f16_bits(65520.0f) == 0x7c00);
    EXPECT(dti_f16_bits(5.9604644775390625e-8f) == 1 && dti_f16_bits(2.9e-8f) == 0);

    from.put(four);
    EXPECT(DTI_LAUNCH(&s, copies, 1, 1, 0, to.at, from.at) == 0);
    const std::vector<int> lines = to.get();
    for (int i = 0; i < 4; i++) {
        EXPECT(lines[(size_t)i] == four[i] && lines[(size_t)i + 4] == 0);
        EXPECT(lines[(size_t)i + 8] == -1); /* nobody has waited for it */
    }
    EXPECT(lines[12] == 4);
}

/* --- order -----------------------------------------------------------------------------------*/

__global__ void add_one(int *x)
{
    atomicAdd(x, 1);
}

static void test_graph_of_two_streams()
{
    holder a = the_stream();
    holder b = {};
    device_array<int> x(1);
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    const int zero = 0;
    void *p = nullptr;

    (void)cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    (void)cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    x.put(&zero);
    for (int joined = 0; joined < 2; joined++) {
        EXPECT(cudaStreamBeginCapture(a.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        EXPECT(DTI_LAUNCH(&a, add_one, 1, 32, 0, x.at) == 0);
        EXPECT(cudaEventRecord(fork, a.stream) == cudaSuccess);
        EXPECT(cudaStreamWaitEvent(b.stream, fork, 0) == cudaSuccess);
        EXPECT(DTI_LAUNCH(&b, add_one, 2, 32, 0, x.at) == 0);
        EXPECT(cudaEventRecord(join, b.stream) == cudaSuccess);
        if (joined) EXPECT(cudaStreamWaitEvent(a.stream, join, 0) == cudaSuccess);
        EXPECT(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported);
        EXPECT(cudaStreamEndCapture(a.stream, &graph) ==
               (joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined));
        (void)cudaGetLastError();
    }
    EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    (void)cudaGraphDestroy(graph);
    EXPECT(x.get()[0] == 0);
    for (int round = 1; round < 4; round++) {
        EXPECT(cudaGraphLaunch(exec, a.stream) == cudaSuccess);
        EXPECT(x.get()[0] == 96 * round);
    }
    EXPECT(cudaStreamBeginCapture(a.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(a.stream) == cudaErrorStreamCaptureUnsupported);
    EXPECT(cudaStreamEndCapture(a.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaEventDestroy(fork);
    (void)cudaEventDestroy(join);
    (void)cudaStreamDestroy(b.stream);
}

/* One thread starts both, waits for one alone, and the second time plays them. */
static void test_kernels_that_wait_for_each_other()
{
    holder s[2] = {};
    device_array<uint32_t> marks(2);
    const uint32_t zeros[2] = { 0, 0 };
    cudaGraphExec_t graphs[2];

    marks.put(zeros);
    EXPECT(cudaStreamSynchronize(the_stream().stream) == cudaSuccess);
    (void)cudaGetLastError(); /* of the tests before */
    for (int i = 0; i < 2; i++) {
        cudaGraph_t graph = nullptr;
        (void)cudaStreamCreateWithFlags(&s[i].stream, cudaStreamNonBlocking);
        EXPECT(cudaStreamBeginCapture(s[i].stream, cudaStreamCaptureModeThreadLocal) ==
               cudaSuccess);
        for (uint32_t mark = 6; mark < 9; mark++)
            EXPECT(DTI_LAUNCH_SPINNING(&s[i], meet_neighbour, 1, 1, 0, marks.at + i,
                                       marks.at + 1 - i, mark) == 0);
        EXPECT(cudaStreamEndCapture(s[i].stream, &graph) == cudaSuccess);
        EXPECT(cudaGraphInstantiate(&graphs[i], graph, 0) == cudaSuccess);
        (void)cudaGraphDestroy(graph);
    }
    for (int i = 0; i < 2; i++)
        EXPECT(DTI_LAUNCH_SPINNING(&s[i], meet_neighbour, 1, 1, 0, marks.at + i, marks.at + 1 - i,
                                   5u) == 0);
    EXPECT(cudaStreamSynchronize(s[0].stream) == cudaSuccess);
    for (int i = 0; i < 2; i++) EXPECT(cudaGraphLaunch(graphs[i], s[i].stream) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(s[1].stream) == cudaSuccess);
    EXPECT(marks.get()[0] == 8 && marks.get()[1] == 8);
    for (int i = 0; i < 2; i++) {
        (void)cudaGraphExecDestroy(graphs[i]);
        (void)cudaStreamDestroy(s[i].stream);
    }
}

/* With DTENSOR_SIM_LATE=1 nothing has happened before somebody waits. */
static void test_lateness()
{
    holder s = the_stream();
    device_array<int> x(1);
    int *pinned = nullptr;

    (void)cudaHostAlloc((void **)&pinned, sizeof *pinned, cudaHostAllocDefault);
    *pinned = 5;
    (void)cudaMemcpyAsync(x.at, pinned, sizeof *pinned, cudaMemcpyHostToDevice, s.stream);
    *pinned = 6; /* too early */
    EXPECT(x.get()[0] == (dti_sim::chosen().late ? 6 : 5));
    (void)cudaFreeHost(pinned);
}

int main()
{
    test_blocks();
    test_wrong_kernels();
    test_tensor_cores();
    test_graph_of_two_streams();
    test_kernels_that_wait_for_each_other();
    test_lateness();
    (void)cudaStreamDestroy(the_stream().stream);
    printf(n_failed == 0 ? "the simulated device is right\n" : "%d failures\n", n_failed);
    return n_failed == 0 ? 0 : 1;
}
