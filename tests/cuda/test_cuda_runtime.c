/* SPDX-License-Identifier: Apache-2.0
 *
 * The module without its kernels: memory, copies, streams, events, graphs, errors. */
#include "tests/support/cuda.h"

#include <dtensor/ops.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda_load.h"

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
    char host[32] = "", other[16] = "";
    void *data = NULL;

    DT_ASSERT_CUDA(m, m->alloc(c, 16, DTI_CUDA_DEVICE, &data));
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, other, host, 16, DTI_CUDA_UP), "target");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, data, 16, DTI_CUDA_UP), "source");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, host, 16, DTI_CUDA_DOWN), "source");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, data, 16, DTI_CUDA_DOWN), "target");
    DT_ASSERT_CUDA_FAILS(m, m->copy(c, data, host, 16, DTI_CUDA_WITHIN), "source");
    if (!dt_test_cuda_is_real(m)) /* a GPU hands out more than it was asked for */
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

/* --- contents ---------------------------------------------------------------------------------*/

/* A kernel finds a position that the cache does not have: sync says so once. */
DT_TEST(cuda_runtime, what_kernels_find_in_contents_is_said_by_sync)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    const dti_cuda_kernel kv_write = dt_test_cuda_row(m, "kv_write");
    dti_cuda *c = dt_test_cuda_open(m);
    const float k[2] = { 1.0f, 2.0f };
    const int32_t positions[2] = { 3, 4 };
    float cache[4] = { 0.0f };
    dt_local in[3] = { { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 2, 1, 1 } },
                       { .dtype = DT_I32, .n_axes = 2, .shape = { 1, 2 } },
                       { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 4, 1, 1 } } };
    dt_kargs args = { .in = in, .out = &in[2], .n_in = 3, .n_out = 1 };

    DT_ASSERT_CUDA(m, m->alloc(c, sizeof k, DTI_CUDA_DEVICE, &in[0].data));
    DT_ASSERT_CUDA(m, m->alloc(c, sizeof positions, DTI_CUDA_DEVICE, &in[1].data));
    DT_ASSERT_CUDA(m, m->alloc(c, sizeof cache, DTI_CUDA_DEVICE, &in[2].data));
    DT_ASSERT_CUDA(m, m->copy(c, in[0].data, k, sizeof k, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->copy(c, in[1].data, positions, sizeof positions, DTI_CUDA_UP));
    DT_ASSERT_CUDA(m, m->clear(c, in[2].data, sizeof cache));
    DT_ASSERT_CUDA(m, kv_write(c, &args));
    DT_ASSERT_CUDA_FAILS(m, m->sync(c), "position 4 is outside the cache, which has 4 rows");
    DT_ASSERT_CUDA(m, m->sync(c));
    DT_ASSERT_CUDA(m, m->copy(c, cache, in[2].data, sizeof cache, DTI_CUDA_DOWN));
    DT_ASSERT(cache[3] == 1.0f && cache[0] == 0.0f);
    for (int i = 0; i < 3; i++) m->release(c, DTI_CUDA_DEVICE, in[i].data);
    m->close(c);
}

/* --- devices and threads ----------------------------------------------------------------------*/

DT_TEST(cuda_runtime, two_devices_reach_each_other)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    const float three = 3.0f;
    float to[N];
    dti_cuda_versions v;
    dti_cuda *a = NULL, *b = NULL;
    void *x = NULL, *y = NULL;

    m->versions(&v);
    if (v.n_devices < 2) dt_test_skip("skipped: one device");
    DT_ASSERT_CUDA(m, m->open(0, &a));
    DT_ASSERT_CUDA(m, m->open(1, &b));
    DT_ASSERT_CUDA(m, m->alloc(a, sizeof to, DTI_CUDA_DEVICE, &x));
    DT_ASSERT_CUDA(m, m->alloc(b, sizeof to, DTI_CUDA_DEVICE, &y));
    DT_ASSERT_CUDA(m, m->reach(a, 1));
    DT_ASSERT_CUDA(m, m->reach(a, 1));
    DT_ASSERT_CUDA(m, m->reach(a, 0));
    DT_ASSERT_CUDA_FAILS(m, m->reach(a, v.n_devices), "numbered from 0");
    DT_ASSERT_CUDA(m, m->fill(b, y, N, &three, sizeof three));
    DT_ASSERT_CUDA(m, m->sync(b));
    DT_ASSERT_CUDA(m, m->copy(a, x, y, sizeof to, DTI_CUDA_WITHIN));
    DT_ASSERT_CUDA(m, m->copy(a, to, x, sizeof to, DTI_CUDA_DOWN));
    for (int i = 0; i < N; i++) DT_ASSERT(to[i] == 3.0f);
    m->release(a, DTI_CUDA_DEVICE, x);
    m->release(b, DTI_CUDA_DEVICE, y);
    m->close(a);
    m->close(b);
}

enum { THREADS = 4, ROUNDS = 20 };

typedef struct rank {
    const dti_cuda_module *m;
    int number;
    const char *failed; /* what, or NULL */
} rank;

/* Fills, replays and copies on a stream of its own, with numbers of its own. */
static void *work_as_a_rank(void *arg)
{
    rank *r = arg;
    const dti_cuda_module *m = r->m;
    dti_cuda *c = NULL;
    dti_cuda_graph *g = NULL;
    int32_t to[N], *element = NULL;
    void *x = NULL, *y = NULL;

#define STEP(call) \
    if ((call) != 0) r->failed = #call
    STEP(m->open(0, &c));
    STEP(m->alloc(c, sizeof to, DTI_CUDA_DEVICE, &x));
    STEP(m->alloc(c, sizeof to, DTI_CUDA_DEVICE, &y));
    STEP(m->alloc(c, sizeof to, DTI_CUDA_PINNED, (void **)&element));
    STEP(m->capture_begin(c));
    STEP(m->copy(c, y, x, sizeof to, DTI_CUDA_WITHIN));
    STEP(m->capture_end(c, &g));
    for (int round = 0; round < ROUNDS && r->failed == NULL; round++) {
        const int32_t value = 1000 * r->number + round;
        STEP(m->fill(c, x, N, &value, sizeof value));
        STEP(m->graph_launch(c, g));
        STEP(m->copy(c, to, y, sizeof to, DTI_CUDA_DOWN));
        for (int i = 0; i < N; i++)
            if (to[i] != value) r->failed = "another value came back";
    }
#undef STEP
    m->graph_destroy(g);
    m->release(c, DTI_CUDA_DEVICE, x);
    m->release(c, DTI_CUDA_DEVICE, y);
    m->release(c, DTI_CUDA_PINNED, element);
    m->close(c);
    return NULL;
}

DT_TEST(cuda_runtime, threads_of_a_process_share_a_device)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    pthread_t threads[THREADS];
    rank ranks[THREADS];

    for (int t = 0; t < THREADS; t++) {
        ranks[t] = (rank){ .m = m, .number = t };
        DT_ASSERT_EQ_INT(pthread_create(&threads[t], NULL, work_as_a_rank, &ranks[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) DT_ASSERT_EQ_INT(pthread_join(threads[t], NULL), 0);
    for (int t = 0; t < THREADS; t++)
        if (ranks[t].failed != NULL)
            dt_test_fail(__FILE__, __LINE__, "thread %d: %s", t, ranks[t].failed);
}

/* --- modules ----------------------------------------------------------------------------------*/

DT_TEST(cuda_runtime, a_file_that_is_no_module_is_refused)
{
    const dti_cuda_module *m = (const dti_cuda_module *)"";
    char path[DT_TEST_PATH_BYTES];

    DT_ASSERT_STATUS(dti_cuda_load("/no/such/module.so", NULL, &m), DT_ERR_UNSUPPORTED,
                     "DTENSOR_CUDA_MODULE");
    DT_ASSERT(m == NULL);
    DT_ASSERT_STATUS(
        dti_cuda_load(dt_test_binary_path(path, "lib/dtensor/dtensor_sockets.so"), NULL, &m),
        DT_ERR_UNSUPPORTED, "is no module for CUDA");
    DT_ASSERT_STATUS(dti_cuda_load(dt_test_source_path(path, "README.md"), NULL, &m),
                     DT_ERR_UNSUPPORTED, "cannot be opened");
}

/* What was compiled with the toolkit starts where no driver is, and says so. */
DT_TEST(cuda_runtime, the_real_module_opens_without_a_device)
{
    const dti_cuda_module *m = NULL;
    dti_cuda_versions v;
    dti_cuda_properties p;
    dti_cuda *c = NULL;
    char path[DT_TEST_PATH_BYTES];

    if (access(dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so"), R_OK) != 0)
        dt_test_skip("skipped: this build has no module for CUDA");
    DT_ASSERT_OK(dti_cuda_load(path, NULL, &m));
    DT_ASSERT_EQ_STR(m->name, "cuda");
    m->versions(&v);
    DT_ASSERT(v.runtime >= 12000);
    if (v.n_devices > 0) dt_test_skip("skipped: there is a device");
    DT_ASSERT(v.no_device[0] != '\0');
    DT_ASSERT_CUDA_FAILS(m, m->open(0, &c), v.no_device);
    DT_ASSERT(c == NULL);
    DT_ASSERT_CUDA_FAILS(m, m->properties(0, &p), v.no_device);
}

/* Both modules have the same rows: nothing is tested that is not built, and the other way round. */
DT_TEST(cuda_runtime, both_modules_have_the_same_rows)
{
    const dti_cuda_module *m = dt_test_cuda_module(), *real = NULL;
    char path[DT_TEST_PATH_BYTES];

    for (int i = 0; i < m->kernels->n_rows; i++) DT_ASSERT(m->kernels->rows[i].run != NULL);
    if (access(dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so"), R_OK) != 0)
        dt_test_skip("skipped: this build has no module for CUDA");
    DT_ASSERT_OK(dti_cuda_load(path, NULL, &real));
    DT_ASSERT_EQ_INT(real->kernels->n_rows, m->kernels->n_rows);
    for (int i = 0; i < m->kernels->n_rows; i++)
        DT_ASSERT_EQ_STR(real->kernels->rows[i].name, m->kernels->rows[i].name);
}
