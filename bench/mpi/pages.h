/* SPDX-License-Identifier: Apache-2.0
 *
 * Buffers as bench_comm has them, so that the loops without communication, which are subtracted,
 * take as long: large pages where the kernel gives them. */
#ifndef BENCH_PAGES_H
#define BENCH_PAGES_H

#include <stdlib.h>
#include <sys/mman.h>

enum { BENCH_PAGE_BYTES = 2 << 20 };

/* NULL without memory; free() takes it back. */
static inline void *bench_alloc_pages(size_t bytes)
{
    const size_t all = (bytes + BENCH_PAGE_BYTES - 1) / BENCH_PAGE_BYTES * BENCH_PAGE_BYTES;
    void *p = aligned_alloc(BENCH_PAGE_BYTES, all);

    if (p != NULL) (void)madvise(p, all, MADV_HUGEPAGE);
    return p;
}

#endif
