/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/queued_device.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/dtype.h"
#include "mesh/comm/call.h"
#include "mesh/comm/reduce.h"

enum { ALIGNMENT = 256, PAUSE_NS = 20 * 1000, PAUSES = 16 };

typedef struct task {
    struct task *next;
    void (*run)(void *arg);
    size_t bytes;
    _Alignas(max_align_t) unsigned char arg[];
} task;

typedef struct pinned {
    struct pinned *next;
    void *data;
    size_t bytes;
} pinned;

struct dti_cuda_graph {
    task *first, **last;
};

struct dti_cuda {
    int device;
    int fail_after; /* -1: never */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    task *first, **last;
    uint64_t n_started, n_done;
    bool closing;
    pinned *pinned;           /* the owner's */
    dti_cuda_graph *recorded; /* the owner's: what is started is kept here; NULL: it runs */
    char fault[128];          /* what a task has found; "": nothing */
};

struct dti_cuda_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_recorded, n_reached;
};

static _Thread_local char reason[DTI_CUDA_TEXT_BYTES];

int queued_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return -1;
}

static const char *why(void)
{
    return reason;
}

/* --- streams ------------------------------------------------------------------------------------
 */

/* Now and then the device is busy with something else. */
static void dawdle(uint64_t step)
{
    const uint64_t h = (step + 1) * 0x9e3779b97f4a7c15u >> 40;

    if (h % PAUSES == 0)
        (void)nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
    else if (h % 2 == 0)
        (void)sched_yield();
}

static void *work(void *arg)
{
    dti_cuda *c = arg;

    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        task *t = c->first;
        if (t == NULL) {
            if (c->closing) break;
            (void)pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        c->first = t->next;
        if (c->first == NULL) c->last = &c->first;
        (void)pthread_mutex_unlock(&c->lock);
        dawdle(c->n_done + (uint64_t)(uintptr_t)c);
        t->run(t->arg);
        free(t);
        (void)pthread_mutex_lock(&c->lock);
        c->n_done++;
        (void)pthread_cond_broadcast(&c->changed);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

int queued_push(dti_cuda *c, void (*run)(void *arg), const void *arg, size_t bytes)
{
    task *t = malloc(sizeof *t + bytes);

    if (t == NULL) return queued_fail("no memory for a task");
    t->next = NULL;
    t->run = run;
    t->bytes = bytes;
    memcpy(t->arg, arg, bytes);
    if (c->recorded != NULL) {
        *c->recorded->last = t;
        c->recorded->last = &t->next;
        return 0;
    }
    (void)pthread_mutex_lock(&c->lock);
    *c->last = t;
    c->last = &t->next;
    c->n_started++;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    return 0;
}

static int stream_done(dti_cuda *c, bool *done)
{
    (void)pthread_mutex_lock(&c->lock);
    *done = c->n_done == c->n_started;
    (void)pthread_mutex_unlock(&c->lock);
    return 0;
}

static int stream_sync(dti_cuda *c)
{
    char found[sizeof c->fault];

    if (c->recorded != NULL) return queued_fail("waiting while a graph is recorded");
    (void)pthread_mutex_lock(&c->lock);
    while (c->n_done < c->n_started) (void)pthread_cond_wait(&c->changed, &c->lock);
    (void)snprintf(found, sizeof found, "%s", c->fault);
    c->fault[0] = '\0';
    (void)pthread_mutex_unlock(&c->lock);
    return found[0] == '\0' ? 0 : queued_fail("%s", found);
}

void queued_fault(dti_cuda *c, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)pthread_mutex_lock(&c->lock);
    (void)vsnprintf(c->fault, sizeof c->fault, format, args);
    (void)pthread_mutex_unlock(&c->lock);
    va_end(args);
}

static void *stream_of(dti_cuda *c)
{
    return c;
}

/* --- the machine --------------------------------------------------------------------------------
 */

static void versions(dti_cuda_versions *out)
{
    *out = (dti_cuda_versions){ .driver = 13000,
                                .runtime = 13000,
                                .nccl_built = 22809,
                                .nccl_loaded = 22809,
                                .n_devices = QUEUED_DEVICES };
}

static int properties(int device, dti_cuda_properties *out)
{
    *out = (dti_cuda_properties){ .name = "queued", .major = 9, .n_sms = 1 };
    (void)snprintf(out->pci, sizeof out->pci, "0000:%02x:00.0", (unsigned)device & 0xffu);
    return 0;
}

static int open_device(int device, dti_cuda **out)
{
    dti_cuda *c = calloc(1, sizeof *c);

    *out = NULL;
    if (c == NULL) return queued_fail("no memory for a device");
    c->device = device;
    c->fail_after = -1;
    c->last = &c->first;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    if (pthread_create(&c->thread, NULL, work, c) != 0) {
        free(c);
        return queued_fail("no thread for a stream");
    }
    *out = c;
    return 0;
}

static void close_device(dti_cuda *c)
{
    if (c == NULL) return;
    (void)pthread_mutex_lock(&c->lock);
    c->closing = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    while (c->pinned != NULL) {
        pinned *p = c->pinned;
        c->pinned = p->next;
        free(p);
    }
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

static int reach(dti_cuda *c, int device)
{
    if ((c->device < QUEUED_REACH) == (device < QUEUED_REACH)) return 0;
    return queued_fail("device %d cannot reach device %d", c->device, device);
}

void queued_fail_after(dti_cuda *c, int n)
{
    c->fail_after = n;
}

int queued_count_down(dti_cuda *c)
{
    if (c->fail_after < 0) return 0;
    if (c->fail_after == 0) return queued_fail("device %d fell off the bus", c->device);
    c->fail_after--;
    return 0;
}

/* --- memory -------------------------------------------------------------------------------------
 */

static int alloc(dti_cuda *c, size_t bytes, dti_cuda_memory kind, void **out)
{
    pinned *p;

    *out = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (*out == NULL) return queued_fail("no memory of %zu bytes", bytes);
    if (kind != DTI_CUDA_PINNED) return 0;
    p = calloc(1, sizeof *p);
    if (p == NULL) return queued_fail("no memory");
    *p = (pinned){ c->pinned, *out, bytes };
    c->pinned = p;
    return 0;
}

/* As cudaFree, it waits for this device's stream. */
static void release(dti_cuda *c, dti_cuda_memory kind, void *data)
{
    (void)kind;
    (void)stream_sync(c);
    for (pinned **p = &c->pinned; *p != NULL; p = &(*p)->next)
        if ((*p)->data == data) {
            pinned *gone = *p;
            *p = gone->next;
            free(gone);
            break;
        }
    free(data);
}

static bool is_pinned(const dti_cuda *c, const void *data)
{
    const char *at = data;

    for (const pinned *p = c->pinned; p != NULL; p = p->next)
        if (at >= (char *)p->data && at < (char *)p->data + p->bytes) return true;
    return false;
}

typedef struct copy_task {
    void *to;
    const void *from;
    void *own; /* a copy of pageable memory, freed afterwards */
    size_t bytes;
} copy_task;

static void run_copy(void *arg)
{
    const copy_task *t = arg;

    memcpy(t->to, t->from, t->bytes);
    free(t->own);
}

static int copy(dti_cuda *c, void *to, const void *from, size_t bytes, dti_cuda_way way)
{
    copy_task t = { to, from, NULL, bytes };
    int failed = queued_count_down(c);

    if (failed != 0 || bytes == 0) return failed;
    if (way == DTI_CUDA_UP && !is_pinned(c, from)) {
        t.own = malloc(bytes);
        if (t.own == NULL) return queued_fail("no memory for a copy");
        memcpy(t.own, from, bytes);
        t.from = t.own;
    }
    failed = queued_push(c, run_copy, &t, sizeof t);
    if (failed == 0 && way == DTI_CUDA_DOWN && !is_pinned(c, to)) failed = stream_sync(c);
    return failed;
}

static void run_clear(void *arg)
{
    const copy_task *t = arg;

    memset(t->to, 0, t->bytes);
}

static int clear(dti_cuda *c, void *to, size_t bytes)
{
    const copy_task t = { to, NULL, NULL, bytes };

    return queued_push(c, run_clear, &t, sizeof t);
}

typedef struct box_task {
    void *to;
    const void *from;
    dti_cuda_box to_box, from_box;
    size_t element_bytes;
} box_task;

static dti_box box_of(const dti_cuda_box *b)
{
    dti_box box = { .n_axes = b->n_axes, .offset = b->offset };

    memcpy(box.extent, b->extent, sizeof box.extent);
    memcpy(box.stride, b->stride, sizeof box.stride);
    return box;
}

static void run_box(void *arg)
{
    const box_task *t = arg;
    const dti_box to = box_of(&t->to_box), from = box_of(&t->from_box);

    dti_box_copy(t->to, &to, t->from, &from, t->element_bytes);
}

static int copy_box(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
                    const dti_cuda_box *from_box, size_t element_bytes)
{
    const box_task t = { to, from, *to_box, *from_box, element_bytes };
    const int failed = queued_count_down(c);

    return failed != 0 ? failed : queued_push(c, run_box, &t, sizeof t);
}

typedef struct terms_of {
    const dti_cuda_sum *sum;
    dti_box box;
} terms_of;

static const void *term(const void *arg, int source, const dti_box **box)
{
    const terms_of *t = arg;

    *box = &t->box;
    return t->sum->terms[source];
}

void queued_add(const dti_cuda_sum *s)
{
    const terms_of from = { s, box_of(&s->box) };
    const dti_box to = box_of(&s->to_box), packed = dti_box_packed(&to);
    const size_t bytes = dt_dtype_size((dt_dtype)s->dtype);
    const int64_t n = dti_box_count(&to);
    dti_box_terms terms = { .dtype = (dt_dtype)s->dtype,
                            .op = (dt_reduce)s->reduce,
                            .n_sources = s->n_terms,
                            .source = term,
                            .arg = &from };
    void *result = malloc((size_t)(n > 0 ? n : 1) * bytes);

    if (result == NULL) abort();
    if (s->n_terms == 1) {
        dti_box_copy(result, &packed, s->terms[0], &from.box, bytes);
    } else {
        dti_box_terms_look(&terms);
        dti_reduce_boxes(&terms, result, 0, n);
    }
    for (int k = 0; k < s->n_to; k++) dti_box_copy(s->to[k], &to, result, &packed, bytes);
    free(result);
}

static void run_sum(void *arg)
{
    queued_add(arg);
}

static int sum(dti_cuda *c, const dti_cuda_sum *s)
{
    const int failed = queued_count_down(c);

    return failed != 0 ? failed : queued_push(c, run_sum, s, sizeof *s);
}

/* --- events -------------------------------------------------------------------------------------
 */

typedef struct event_task {
    dti_cuda_event *event;
    uint64_t ticket;
} event_task;

static int event_create(dti_cuda *c, dti_cuda_event **out)
{
    (void)c;
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return queued_fail("no memory for an event");
    (void)pthread_mutex_init(&(*out)->lock, NULL);
    (void)pthread_cond_init(&(*out)->changed, NULL);
    return 0;
}

static void event_destroy(dti_cuda_event *e)
{
    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

static void run_record(void *arg)
{
    const event_task *t = arg;

    (void)pthread_mutex_lock(&t->event->lock);
    t->event->n_reached = t->ticket;
    (void)pthread_cond_broadcast(&t->event->changed);
    (void)pthread_mutex_unlock(&t->event->lock);
}

static void run_await(void *arg)
{
    const event_task *t = arg;

    (void)pthread_mutex_lock(&t->event->lock);
    while (t->event->n_reached < t->ticket)
        (void)pthread_cond_wait(&t->event->changed, &t->event->lock);
    (void)pthread_mutex_unlock(&t->event->lock);
}

static int event_record(dti_cuda *c, dti_cuda_event *e)
{
    event_task t = { e, 0 };

    if (c->recorded != NULL) return queued_fail("an event in a graph");
    (void)pthread_mutex_lock(&e->lock);
    t.ticket = ++e->n_recorded;
    (void)pthread_mutex_unlock(&e->lock);
    return queued_push(c, run_record, &t, sizeof t);
}

static int event_await(dti_cuda *c, dti_cuda_event *e)
{
    event_task t = { e, 0 };

    if (c->recorded != NULL) return queued_fail("an event in a graph");
    (void)pthread_mutex_lock(&e->lock);
    t.ticket = e->n_recorded;
    (void)pthread_mutex_unlock(&e->lock);
    return queued_push(c, run_await, &t, sizeof t);
}

static int event_done(dti_cuda_event *e, bool *done)
{
    (void)pthread_mutex_lock(&e->lock);
    *done = e->n_reached == e->n_recorded;
    (void)pthread_mutex_unlock(&e->lock);
    return 0;
}

/* --- graphs -------------------------------------------------------------------------------------
 */

static int capture_begin(dti_cuda *c)
{
    if (c->recorded != NULL) return queued_fail("a graph is being recorded already");
    c->recorded = calloc(1, sizeof *c->recorded);
    if (c->recorded == NULL) return queued_fail("no memory for a graph");
    c->recorded->last = &c->recorded->first;
    return 0;
}

static int capture_end(dti_cuda *c, dti_cuda_graph **out)
{
    *out = c->recorded;
    c->recorded = NULL;
    return *out != NULL ? 0 : queued_fail("no graph is being recorded");
}

static int graph_launch(dti_cuda *c, dti_cuda_graph *graph)
{
    int failed = 0;

    for (const task *t = graph->first; t != NULL && failed == 0; t = t->next)
        failed = queued_push(c, t->run, t->arg, t->bytes);
    return failed;
}

static void graph_destroy(dti_cuda_graph *graph)
{
    while (graph != NULL && graph->first != NULL) {
        task *t = graph->first;
        graph->first = t->next;
        free(t);
    }
    free(graph);
}

/* --- the table ----------------------------------------------------------------------------------
 */

/* clang-format off */
#define QUEUED_FUNCTIONS                                                                  \
    .version = DTI_CUDA_API_VERSION, .name = "queued", .versions = versions,              \
    .properties = properties, .open = open_device, .close = close_device, .reach = reach, \
    .why = why, .alloc = alloc, .release = release, .copy = copy, .clear = clear,         \
    .copy_box = copy_box, .sum = sum, .spin_bytes = queued_spin_bytes, .spin_sum = queued_spin_sum,    \
    .spin_meet = queued_spin_meet, .stream = stream_of, .done = stream_done,                     \
    .sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,    \
    .event_record = event_record, .event_await = event_await, .event_done = event_done,   \
    .capture_begin = capture_begin, .capture_end = capture_end,                           \
    .graph_launch = graph_launch, .graph_destroy = graph_destroy
/* clang-format on */

const dti_cuda_module *queued_module(void)
{
    static const dti_cuda_module module = { QUEUED_FUNCTIONS, .nccl = &queued_nccl };

    return &module;
}

const dti_cuda_module *queued_module_without_nccl(void)
{
    static const dti_cuda_module module = { QUEUED_FUNCTIONS };

    return &module;
}
