/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sync.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

int64_t dti_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void wait_on(_Atomic uint32_t *word, int how, uint32_t expected, int64_t timeout_ns)
{
    const struct timespec t = { .tv_sec = timeout_ns / NS_PER_S, .tv_nsec = timeout_ns % NS_PER_S };

    (void)syscall(SYS_futex, word, how, expected, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

void dti_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
    wait_on(word, FUTEX_WAIT_PRIVATE, expected, timeout_ns);
}

void dti_futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void dti_futex_wait_shared(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
    wait_on(word, FUTEX_WAIT, expected, timeout_ns);
}

void dti_futex_wake_all_shared(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
