/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sync.h"

/* The table is the first member of its profile. */
static bench_profile *profile_of(const dti_device *d)
{
    return (bench_profile *)(uintptr_t)d->ops;
}

static void add(bench_profile *p, const char *name, int64_t start)
{
    bench_profile_item *item = p->items;

    while (item < p->items + p->n && strcmp(item->name, name) != 0) item++;
    if (item == p->items + p->n) {
        if (p->n == BENCH_MAX_PROFILE) return;
        *item = (bench_profile_item){ .name = name };
        p->n++;
    }
    item->calls[p->turned]++;
    item->seconds[p->turned] += (double)(dti_now_ns() - start) * 1e-9;
}

static dt_status timed_run(dti_device *d, const dt_op *op, dt_kargs *args)
{
    const int64_t start = dti_now_ns();
    bench_profile *p = profile_of(d);
    const dt_status st = p->ops->run(d, op, args);

    add(p, op->name, start);
    return st;
}

static dt_status timed_communicate(dti_device *d, dti_comm *comm, const dti_comm_call *call)
{
    const int64_t start = dti_now_ns();
    bench_profile *p = profile_of(d);
    const dt_status st = p->ops->communicate(d, comm, call);

    add(p, "(collectives)", start);
    return st;
}

static dt_status timed_copy_box(dti_device *d, void *to, const dti_box *to_box, const void *from,
                                const dti_box *from_box, size_t element_bytes)
{
    const int64_t start = dti_now_ns();
    bench_profile *p = profile_of(d);
    const dt_status st = p->ops->copy_box(d, to, to_box, from, from_box, element_bytes);

    add(p, "(copies)", start);
    return st;
}

dt_status bench_profile_begin(bench_profile *p, dt_runtime *rt)
{
    DT_TRY(dti_device_of(rt, &p->device));
    p->ops = p->device->ops;
    p->timed = *p->ops;
    p->timed.run = timed_run;
    p->timed.communicate = timed_communicate;
    p->timed.copy_box = timed_copy_box;
    p->device->ops = &p->timed;
    p->turned = 0;
    return DT_OK;
}

void bench_profile_turn(bench_profile *p)
{
    p->turned = 1;
}

void bench_profile_end(bench_profile *p, double seconds)
{
    if (p->device == NULL) return;
    p->device->ops = p->ops;
    p->device = NULL;
    p->rounds++;
    p->all += seconds;
}

static double seconds_of(const bench_profile_item *item)
{
    return item->seconds[0] + item->seconds[1];
}

static int by_time(const void *a, const void *b)
{
    const double x = seconds_of(a), y = seconds_of(b);

    return (x < y) - (x > y);
}

void bench_profile_report(bench_profile *p, const char *dtype, const char *mesh, bench_report *r)
{
    const double ms = 1e3 / p->rounds;
    double rest = p->all;
    char key[96];

    qsort(p->items, (size_t)p->n, sizeof *p->items, by_time);
    for (int i = 0; i < p->n; i++) {
        const bench_profile_item *item = &p->items[i];
        (void)snprintf(key, sizeof key, "%s %s %s", dtype, mesh, item->name);
        bench_report_fact(r, key,
                          "%.1f %% of the time: forward %.2f ms in %.0f calls, backward %.2f ms in "
                          "%.0f",
                          100 * seconds_of(item) / p->all, ms * item->seconds[0],
                          (double)item->calls[0] / p->rounds, ms * item->seconds[1],
                          (double)item->calls[1] / p->rounds);
        rest -= seconds_of(item);
    }
    (void)snprintf(key, sizeof key, "%s %s (rest)", dtype, mesh);
    bench_report_fact(r, key, "%.1f %% of the time, %.2f ms", 100 * rest / p->all, ms * rest);
}
