/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting between threads: spin, then yield, then futex; and the clock. */
#ifndef DTI_SYNC_H
#define DTI_SYNC_H

#include <stdatomic.h>
#include <stdint.h>

/* Cache lines are fetched in pairs: flags of different threads live this far apart. */
enum { DTI_LINE_BYTES = 128 };

int64_t dti_now_ns(void); /* monotonic */

static inline void dti_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == expected, at most timeout_ns (< 0: for ever). Wakes spuriously. */
void dti_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
void dti_futex_wake_all(_Atomic uint32_t *word);

/* The same for a word in memory that processes share. */
void dti_futex_wait_shared(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
void dti_futex_wake_all_shared(_Atomic uint32_t *word);

#endif
