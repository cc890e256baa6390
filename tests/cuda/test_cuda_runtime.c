/* SPDX-License-Identifier: Apache-2.0
 *
 * The module without its kernels: memory, copies, streams, events, graphs, errors. */
#include "tests/support/cuda.h"

#include <string.h>

enum { N = 5000 };

DT_TEST(cuda_runtime, copies_go_up_within_and_down)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    static unsigned char from[3 << 20], to[3 << 20];
    void *a = NULL, *b = NULL;

    /* more than both staging buffers, and no multiple of them */
    for (size_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)(i * 7 + i / 251);
    for (size_t bytes = sizeof from - 3; bytes > 0; bytes /= 100) {
        DT_ASSERT_CUDA(m, m->alloc(c, bytes, DTI_CUDA_DEVICE, &a));
        DT_ASSERT_CUDA(m, m->alloc(c, bytes, DTI_CUDA_SHARED, &b));
        DT_ASSERT_EQ_INT((uintptr_t)a % 256, 0);
        DT_ASSERT_CUDA(m, m->copy(c, a, from, bytes, DTI_CUDA_UP));
        DT_ASSERT_CUDA(m, m->copy(c, b, a, bytes, DTI_CUDA_WITHIN));
        memset(to, 0, sizeof to);
        DT_ASSERT_CUDA(m, m->copy(c, to, b, bytes, DTI_CUDA_DOWN)); /* waits */
        DT_ASSERT_EQ_INT(memcmp(from, to, bytes), 0);
        DT_ASSERT_CUDA(m, m->clear(c, b, bytes));
        DT_ASSERT_CUDA(m, m->copy(c, to, b, bytes, DTI_CUDA_DOWN));
        for (size_t i = 0; i < bytes; i++) DT_ASSERT_EQ_INT(to[i], 0);
        m->release(c, DTI_CUDA_DEVICE, a);
        m->release(c, DTI_CUDA_SHARED, b);
    }
    m->close(c);
}

/* The caller's memory is its own again when a copy up returns, also while the stream waits. */
DT_TEST(cuda_runtime, pageable_memory_has_been_read)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    int32_t from[N], to[N];
    void *data = NULL;

    DT_ASSERT_CUDA(m, m->alloc(c, sizeof from, DTI_CUDA_DEVICE, &data));
    for (int i = 0; i < N; i++) from[i] = i;
    DT_ASSERT_CUDA(m, m->copy(c, data, from, sizeof from, DTI_CUDA_UP));
    for (int i = 0; i < N; i++) from[i] = -1;
    DT_ASSERT_CUDA(m, m->copy(c, to, data, sizeof to, DTI_CUDA_DOWN));
    for (int i = 0; i < N; i++) DT_ASSERT_EQ_INT(to[i], i);
    m->release(c, DTI_CUDA_DEVICE, data);
    m->close(c);
}

DT_TEST(cuda_runtime, pinned_copies_are_done_when_the_stream_is)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    int32_t *from = NULL, *to = NULL;
    void *data = NULL;
    bool done = false;

    DT_ASSERT_CUDA(m, m->alloc(c, N * 4, DTI_CUDA_PINNED, (void **)&from));
    DT_ASSERT_CUDA(m, m->alloc(c, N * 4, DTI_CUDA_PINNED, (void **)&to));
    DT_ASSERT_CUDA(m, m->alloc(c, N * 4, DTI_CUDA_DEVICE, &data));
    for (int i = 0; i < N; i++) from[i] = i;
    DT_ASSERT_CUDA(m, m->copy(c, data, from, N * 4, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->copy(c, to, data, N * 4, DTI_CUDA_DOWN));
    while (!done) DT_ASSERT_CUDA(m, m->done(c, &done));
    for (int i = 0; i < N; i++) DT_ASSERT_EQ_INT(to[i], i);
    m->release(c, DTI_CUDA_PINNED, from);
    m->release(c, DTI_CUDA_PINNED, to);
    m->release(c, DTI_CUDA_DEVICE, data);
    m->close(c);
}

DT_TEST(cuda_runtime, a_copy_says_which_side_lies_elsewhere)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    char host[16] = "", other[16] = "";
    void *data = NULL;

    DT_ASSERT_CUDA(m, m->alloc(c, 16, DTI_CUDA_DEVICE, &data));
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, other, host, 16, DTI_CUDA_UP), "target");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, data, 16, DTI_CUDA_UP), "source");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, host, 16, DTI_CUDA_DOWN), "source");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, data, 16, DTI_CUDA_DOWN), "target");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, host, 16, DTI_CUDA_WITHIN), "source");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, host, 32, DTI_CUDA_UP), "cudaErrorInvalidValue");
    DT_ASSERT_CUDA(m, m->copy(c, NULL, NULL, 0, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->sync(c)); /* the errors have not stayed */
    m->release(c, DTI_CUDA_DEVICE, data);
    m->close(c);
}

DT_TEST(cuda_runtime, too_much_memory_is_refused_with_numbers)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    void *data = &data;

    DT_ASSERT_CUDA_FAILS(m, m->alloc(c, (size_t)1 << 50, DTI_CUDA_DEVICE, &data),
                         "no memory of device 0 for 1125899906842624 bytes");
    DT_ASSERT(data == NULL);
    DT_ASSERT_CUDA(m, m->alloc(c, 0, DTI_CUDA_DEVICE, &data));
    DT_ASSERT(data == NULL);
    m->release(c, DTI_CUDA_DEVICE, NULL);
    m->close(c);
}

DT_TEST(cuda_runtime, events_order_two_streams)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *a = dt_test_cuda_open(m), *b = dt_test_cuda_open(m);
    dti_cuda_event *e = NULL;
    int32_t from[N], to[N];
    void *x = NULL, *y = NULL;
    bool done = false;

    DT_ASSERT_CUDA(m, m->alloc(a, sizeof from, DTI_CUDA_DEVICE, &x));
    DT_ASSERT_CUDA(m, m->alloc(b, sizeof from, DTI_CUDA_DEVICE, &y));
    DT_ASSERT_CUDA(m, m->event_create(a, &e));
    DT_ASSERT_CUDA(m, m->event_done(e, &done));
    DT_ASSERT(done); /* nothing was recorded */
    DT_ASSERT_CUDA(m, m->event_await(b, e));
    for (int i = 0; i < N; i++) from[i] = i;
    DT_ASSERT_CUDA(m, m->clear(a, x, sizeof from));
    DT_ASSERT_CUDA(m, m->copy(a, x, from, sizeof from, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->event_record(a, e));
    DT_ASSERT_CUDA(m, m->event_await(b, e));
    DT_ASSERT_CUDA(m, m->copy(b, y, x, sizeof from, DTI_CUDA_WITHIN));
    DT_ASSERT_CUDA(m, m->copy(b, to, y, sizeof from, DTI_CUDA_DOWN));
    DT_ASSERT_EQ_INT(memcmp(from, to, sizeof from), 0);
    m->release(a, DTI_CUDA_DEVICE, x);
    m->close(a);
    DT_ASSERT_CUDA(m, m->event_await(b, e)); /* an event outlives its stream */
    DT_ASSERT_CUDA(m, m->event_done(e, &done));
    DT_ASSERT(done);
    m->event_destroy(e);
    m->release(b, DTI_CUDA_DEVICE, y);
    m->close(b);
}

DT_TEST(cuda_runtime, a_graph_runs_when_it_is_launched)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    dti_cuda_graph *g = NULL;
    int32_t *from = NULL, to[8], host[8] = { 0 };
    void *x = NULL, *y = NULL;
    bool done;

    DT_ASSERT_CUDA(m, m->alloc(c, sizeof to, DTI_CUDA_PINNED, (void **)&from));
    DT_ASSERT_CUDA(m, m->alloc(c, sizeof to, DTI_CUDA_DEVICE, &x));
    DT_ASSERT_CUDA(m, m->alloc(c, sizeof to, DTI_CUDA_DEVICE, &y));
    DT_ASSERT_CUDA(m, m->clear(c, y, sizeof to));
    DT_ASSERT_CUDA(m, m->capture_begin(c));
    DT_ASSERT_CUDA_FAILS(m, m->capture_begin(c), "already");
    DT_ASSERT_CUDA(m, m->copy(c, x, from, sizeof to, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->copy(c, y, x, sizeof to, DTI_CUDA_WITHIN));
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, x, host, sizeof to, DTI_CUDA_UP), "pinned");
    DT_ASSERT_CUDA_FAILS(m, m->sync(c), "recorded");
    DT_ASSERT_CUDA_FAILS(m, m->done(c, &done), "recorded");
    DT_ASSERT_CUDA(m, m->capture_end(c, &g));
    DT_ASSERT_CUDA_FAILS(m, m->capture_end(c, &(dti_cuda_graph *){ NULL }), "no graph");

    DT_ASSERT_CUDA(m, m->copy(c, to, y, sizeof to, DTI_CUDA_DOWN));
    for (int i = 0; i < 8; i++) DT_ASSERT_EQ_INT(to[i], 0); /* nothing has run */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) from[i] = 100 * round + i;
        DT_ASSERT_CUDA(m, m->graph_launch(c, g));
        DT_ASSERT_CUDA(m, m->copy(c, to, y, sizeof to, DTI_CUDA_DOWN));
        for (int i = 0; i < 8; i++) DT_ASSERT_EQ_INT(to[i], 100 * round + i);
    }
    m->graph_destroy(g);
    m->release(c, DTI_CUDA_PINNED, from);
    m->release(c, DTI_CUDA_DEVICE, x);
    m->release(c, DTI_CUDA_DEVICE, y);
    m->close(c);
}

/* Scratch and tensors may be taken while a graph is recorded: they are no part of it. */
DT_TEST(cuda_runtime, memory_can_be_taken_while_recording)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda *c = dt_test_cuda_open(m);
    dti_cuda_graph *g = NULL;
    void *x = NULL;

    DT_ASSERT_CUDA(m, m->capture_begin(c));
    DT_ASSERT_CUDA(m, m->alloc(c, 64, DTI_CUDA_DEVICE, &x));
    DT_ASSERT_CUDA(m, m->clear(c, x, 64));
    DT_ASSERT_CUDA(m, m->capture_end(c, &g));
    DT_ASSERT_CUDA(m, m->graph_launch(c, g));
    DT_ASSERT_CUDA(m, m->sync(c));
    m->graph_destroy(g);
    m->release(c, DTI_CUDA_DEVICE, x);
    m->close(c);
}

DT_TEST(cuda_runtime, devices_are_described_and_counted)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    dti_cuda_versions v;
    dti_cuda_properties p;
    dti_cuda *c = NULL;

    m->versions(&v);
    DT_ASSERT(v.n_devices >= 1);
    DT_ASSERT_EQ_STR(v.no_device, "");
    DT_ASSERT(v.runtime >= 12000 && v.driver >= v.runtime);
    DT_ASSERT_CUDA(m, m->properties(0, &p));
    DT_ASSERT(p.n_sms > 0 && p.bytes > 0 && p.free_bytes <= p.bytes && p.major >= 7);
    DT_ASSERT(p.name[0] != '\0' && strlen(p.pci) == strlen("0000:3b:00.0"));
    DT_ASSERT_CUDA_FAILS(m, m->properties(v.n_devices, &p), "numbered from 0");
    DT_ASSERT_CUDA_FAILS(m, m->open(-1, &c), "device -1");
    DT_ASSERT(c == NULL);
    m->close(NULL);
}
