/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels that wait for each other, of the devices that are late (queued_device.h): signals and
 * staging as the real ones have them (dtensor/kernels/cuda/spin.cuh), by one thread a kernel, so
 * that ThreadSanitizer sees what is read too early and overwritten too soon. */
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/dtype.h"
#include "tests/support/queued_device.h"

typedef struct queued_area {
    _Atomic uint32_t come[2][DTI_CUDA_SPIN_RANKS]; /* the operation that a member has come to */
    int64_t kind[2][DTI_CUDA_SPIN_RANKS];
    uint32_t ended;
    unsigned char rest[DTI_CUDA_SPIN_HEAD_BYTES - 196]; /* behind what stands above */
    unsigned char room[DTI_CUDA_SPIN_ROOM_BYTES];
    unsigned char terms[2][DTI_CUDA_SPIN_SUM_BYTES];
} queued_area;

_Static_assert(offsetof(queued_area, room) == DTI_CUDA_SPIN_HEAD_BYTES, "the head of an area");

typedef struct spin_task {
    dti_cuda *c;
    dti_cuda_circle with;
    dti_cuda_spin_job sum; /* n is 0: a meeting */
} spin_task;

size_t queued_spin_bytes(void)
{
    return sizeof(queued_area);
}

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static queued_area *area_of(const spin_task *t, int member)
{
    return t->with.areas[member];
}

static int64_t kind_of(const dti_cuda_spin_job *s)
{
    return (s->n * 64 + s->dtype) * 16 + s->reduce;
}

static bool give_up(const spin_task *t, const char *what, int member)
{
    queued_fault(t->c, "%s rank %d", what, t->with.names[member]);
    __atomic_store_n(t->with.stop, (uint32_t)DTI_CUDA_SPIN_FAULT, __ATOMIC_RELEASE);
    return false;
}

static bool await_member(const spin_task *t, int member, uint32_t count)
{
    queued_area *own = area_of(t, t->with.rank);
    const int64_t end = now_ms() + t->with.limit_ms;

    while (atomic_load(&own->come[count % 2][member]) != count) {
        if (__atomic_load_n(t->with.stop, __ATOMIC_ACQUIRE) != 0) return false;
        if (now_ms() > end) return give_up(t, "did not come:", member);
        (void)sched_yield();
    }
    if (own->kind[count % 2][member] == kind_of(&t->sum)) return true;
    return give_up(t, "differs from that of", member);
}

static bool meet(const spin_task *t, uint32_t count)
{
    const int me = t->with.rank;

    for (int m = 0; m < t->with.size; m++) {
        area_of(t, m)->kind[count % 2][me] = kind_of(&t->sum);
        atomic_store(&area_of(t, m)->come[count % 2][me], count);
    }
    for (int m = 0; m < t->with.size; m++)
        if (!await_member(t, m, count)) return false;
    return true;
}

static void run_spin(void *arg)
{
    const spin_task *t = arg;
    queued_area *own = area_of(t, t->with.rank);
    const uint32_t count = ++own->ended;
    const dti_cuda_box row = { 1, 0, { t->sum.n }, { 1 } };
    dti_cuda_sum sum = { t->sum.dtype, t->sum.reduce, t->with.size, 1, .box = row, .to_box = row };

    sum.to[0] = t->sum.recv;
    if (t->sum.n > 0)
        memcpy(own->terms[count % 2], t->sum.send,
               (size_t)t->sum.n * dt_dtype_size((dt_dtype)t->sum.dtype));
    if (!meet(t, count) || t->sum.n == 0) return;
    for (int m = 0; m < t->with.size; m++) sum.terms[m] = area_of(t, m)->terms[count % 2];
    queued_add(&sum);
}

int queued_spin_sum(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum)
{
    const spin_task t = { c, *with, *sum };

    if (queued_count_down(c) != 0) return -1;
    return sum->n > 0 ? queued_push(c, run_spin, &t, sizeof t) : 0;
}

int queued_spin_meet(dti_cuda *c, const dti_cuda_circle *with)
{
    const spin_task t = { .c = c, .with = *with };

    return queued_push(c, run_spin, &t, sizeof t);
}
