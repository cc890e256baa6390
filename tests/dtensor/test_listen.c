/* SPDX-License-Identifier: Apache-2.0
 *
 * Who listens to collectives hears each of them once, when it is over, also those that travel
 * beside the rank. */
#include <dtensor/async.h>
#include <dtensor/listen.h>
#include <pthread.h>
#include <string.h>

#include "tests/support/dt_test.h"

typedef struct heard {
    pthread_mutex_t lock;
    int reductions, gathers, behind;
    int64_t elements;
    bool in_order;
} heard;

static void hear(void *arg, const dt_comm_event *event)
{
    heard *h = arg;

    (void)pthread_mutex_lock(&h->lock);
    if (strcmp(event->op, "all_reduce") == 0) h->reductions++;
    if (strcmp(event->op, "all_gather") == 0) h->gathers++;
    if (event->behind) h->behind++;
    if (strcmp(event->op, "all_reduce") == 0) h->elements += event->count;
    h->in_order = h->in_order && event->begin_ns > 0 && event->end_ns >= event->begin_ns &&
                  strcmp(event->group, "tp") == 0 && event->dtype == DT_F32;
    (void)pthread_mutex_unlock(&h->lock);
}

static dt_status listen(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms[] = { DT_PARTIAL(DT_SUM) }, whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 6 };
    const float ones[] = { 1, 1, 1, 1, 1, 1 };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    heard h = { .lock = PTHREAD_MUTEX_INITIALIZER, .in_order = true };
    dt_tensor *x = NULL, *y = NULL, *z = NULL, *w = NULL;
    dt_pending *pending = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY(dt_from_local(mesh, terms, DT_F32, 1, shape, ones, &x));
    dt_comm_listen(rt, hear, &h);
    DT_TRY_TO(done, st, dt_redistribute(x, whole, &y));
    DT_TRY_TO(done, st, dt_redistribute_begin(x, whole, &pending));
    DT_TRY_TO(done, st, dt_pending_wait(&pending, &z));
    dt_comm_listen(rt, NULL, NULL);
    DT_TRY_TO(done, st, dt_redistribute(x, whole, &w));
    DT_EXPECT_TO(done, st, h.reductions == 2 && h.elements == 12, "%d reductions of %lld elements",
                 h.reductions, (long long)h.elements);
    DT_EXPECT_TO(done, st, h.behind == (dt_test_processes() == 1), "%d behind", h.behind);
    DT_EXPECT_TO(done, st, h.in_order, "times, group or dtype");
done:
    dt_comm_listen(rt, NULL, NULL);
    dt_pending_release(&pending);
    dt_tensor_release(&w);
    dt_tensor_release(&z);
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    return st;
}

DT_TEST(listen, collectives_are_told_when_they_are_over)
{
    dt_test_on_ranks("tp=2", listen, NULL);
    dt_comm_listen(NULL, NULL, NULL);
}
