/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do at most, measured in the same process and the same minute as the figures
 * that stand beside it: reading and copying memory, multiplying, handing a cache line over. */
#ifndef DT_BENCH_MACHINE_H
#define DT_BENCH_MACHINE_H

#include "base/error.h"
#include "base/pool.h"
#include "dtensor/kernels/cpu/peak.h"

/* The innermost loops of memory, one table per instruction set; those of multiply-adds are the
 * library's (dtensor/kernels/cpu/peak.h). */
typedef struct bench_loops {
    /* a sum, so that nothing is optimised away; fetches lines `ahead` bytes early if it is not 0 */
    uint64_t (*read)(const void *p, size_t bytes, size_t ahead);
    void (*copy)(void *to, const void *from, size_t bytes); /* past the caches where possible */
} bench_loops;

extern const bench_loops bench_loops_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const bench_loops bench_loops_avx2;
extern const bench_loops bench_loops_avx512;
#endif

/* Threads bound to cores, and memory of 2 MiB pages larger than the caches. */
typedef struct bench_machine {
    const bench_loops *loops;
    dti_pool *pool;
    int n_threads;
    unsigned char *memory;
    size_t bytes;
    size_t ahead;             /* what makes reading fastest here */
    unsigned char cores[128]; /* that the caller could run on before: a cpu_set_t */
} bench_machine;

/* The caller becomes the first of the threads and is bound, too, until the machine is closed.
 * Memory of at most `bytes`, or a quarter of what the machine has free if that is less, filled with
 * numbers (zeros would be measured too fast). */
dt_status bench_machine_open(int n_threads, size_t bytes, bench_machine *m) DT_MUST_USE;
void bench_machine_close(bench_machine *m);

/* Each measures once, for about 0.1 s, with all threads. Repeat and take medians. */
double bench_read_gbs(const bench_machine *m); /* bytes read */
double bench_copy_gbs(const bench_machine *m); /* bytes read + bytes written, as STREAM counts */
double bench_f32_gflops(const bench_machine *m);
double bench_bf16_gflops(const bench_machine *m); /* 0: no such instruction */
double bench_amx_gflops(const bench_machine *m);  /* 0: no such instruction */

/* One hand-over of a cache line between two threads, in ns; 0 with one thread. Tells whether the
 * two cores share a cache right now: virtual machines move. */
double bench_handoff_ns(const bench_machine *m);

size_t bench_l3_bytes(void); /* of the last cache level, 0 if unknown */

#endif
