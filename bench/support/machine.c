/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* affinity */
#include "bench/support/machine.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"

_Static_assert(sizeof(cpu_set_t) <= sizeof((bench_machine){ 0 }.cores), "cores hold a cpu_set_t");

/* --- threads and memory ----------------------------------------------------------------------- */

/* The worker's place among the cores that this process may use. Binding may be forbidden: then the
 * system places the threads. */
static void bind_worker(void *arg, int worker)
{
    const cpu_set_t *allowed = arg;
    int nth = 0;

    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        cpu_set_t one;
        if (!CPU_ISSET(cpu, allowed) || nth++ != worker) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

static const bench_loops *best_loops(void)
{
#ifdef DT_HAVE_X86_KERNELS
    if (dti_isa_detect() >= DTI_ISA_AVX512) return &bench_loops_avx512;
    if (dti_isa_detect() == DTI_ISA_AVX2) return &bench_loops_avx2;
#endif
    return &bench_loops_portable;
}

/* Numbers between 1e-5 and 1 whichever float type they are read as: random bits would hold
 * subnormals, which cost hundreds of cycles each. */
static void fill_share(void *arg, int worker, int n_workers)
{
    const bench_machine *m = arg;
    uint64_t *words = (uint64_t *)(void *)m->memory;
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(worker + 1);
    int64_t begin, end;

    dti_pool_share((int64_t)(m->bytes / sizeof *words), 512, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = (state & 0x83ff83ff83ff83ffu) | 0x3800380038003800u;
    }
}

/* Files that the system keeps in memory count as available where it says so. */
static size_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    unsigned long long kib = 0;
    char line[128];

    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %llu", &kib) != 1) kib = 0;
    if (f != NULL) (void)fclose(f);
    if (kib > 0) return (size_t)kib * 1024;
    return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
}

/* Whether asking for lines early helps depends on the processor, and a limit has to be the best
 * there is. Small memories are not worth the time. */
static void choose_ahead(bench_machine *m)
{
    static const size_t choices[] = { 0, 1 << 10, 4 << 10 };
    size_t best = 0;
    double most = 0;

    if (m->bytes < 256 << 20) return;
    for (size_t i = 0; i < 3 * DT_COUNT(choices); i++) {
        double gbs;
        m->ahead = choices[i % DT_COUNT(choices)];
        gbs = bench_read_gbs(m);
        if (gbs <= most) continue;
        most = gbs;
        best = m->ahead;
    }
    m->ahead = best;
}

dt_status bench_machine_open(int n_threads, size_t bytes, bench_machine *m)
{
    const size_t limit = available_bytes() / 4;
    dt_status st = DT_OK;
    cpu_set_t allowed;

    *m = (bench_machine){ .loops = best_loops(), .n_threads = n_threads };
    m->bytes = (bytes < limit ? bytes : limit) / (2 << 20) * (2 << 20);
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof allowed, &allowed);
    memcpy(m->cores, &allowed, sizeof allowed);
    DT_TRY(dti_pool_create(n_threads, n_threads <= CPU_COUNT(&allowed), bind_worker, &allowed,
                           &m->pool));
    DT_TRY_TO(fail, st, dti_big_alloc(m->bytes, (void **)&m->memory));
    dti_pool_run(m->pool, fill_share, m); /* also: workers have read `allowed` by now */
    bind_worker(&allowed, 0);
    choose_ahead(m);
    return DT_OK;

fail:
    bench_machine_close(m);
    return st;
}

void bench_machine_close(bench_machine *m)
{
    cpu_set_t cores;

    memcpy(&cores, m->cores, sizeof cores);
    if (CPU_COUNT(&cores) > 0) (void)sched_setaffinity(0, sizeof cores, &cores);
    dti_pool_destroy(&m->pool);
    dti_big_free(m->memory, m->bytes);
    *m = (bench_machine){ 0 };
}

size_t bench_l3_bytes(void)
{
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);

    return bytes > 0 ? (size_t)bytes : 0;
}

/* --- bandwidth -------------------------------------------------------------------------------- */

typedef struct memory_job {
    const bench_machine *m;
    _Atomic uint64_t sum; /* keeps the reads alive */
} memory_job;

static void read_share(void *arg, int worker, int n_workers)
{
    memory_job *j = arg;
    int64_t begin, end;

    dti_pool_share((int64_t)j->m->bytes, 2 << 20, worker, n_workers, &begin, &end);
    j->sum += j->m->loops->read(j->m->memory + begin, (size_t)(end - begin), j->m->ahead);
}

double bench_read_gbs(const bench_machine *m)
{
    memory_job job = { .m = m };
    const int64_t start = dti_now_ns();

    dti_pool_run(m->pool, read_share, &job);
    return (double)m->bytes / (double)(dti_now_ns() - start);
}

static void copy_share(void *arg, int worker, int n_workers)
{
    const memory_job *j = arg;
    const size_t half = j->m->bytes / 2;
    int64_t begin, end;

    dti_pool_share((int64_t)half, 1 << 20, worker, n_workers, &begin, &end);
    j->m->loops->copy(j->m->memory + half + begin, j->m->memory + begin, (size_t)(end - begin));
}

double bench_copy_gbs(const bench_machine *m)
{
    memory_job job = { .m = m };
    const int64_t start = dti_now_ns();

    dti_pool_run(m->pool, copy_share, &job);
    return 2.0 * (double)(m->bytes / 2) / (double)(dti_now_ns() - start);
}

/* --- arithmetic ------------------------------------------------------------------------------- */

typedef struct flops_job {
    dti_peak_fn fn;
    int64_t rounds;
    double done[64]; /* of worker 0, 1, ... modulo 64 */
} flops_job;

static void flops_share(void *arg, int worker, int n_workers)
{
    flops_job *j = arg;

    (void)n_workers;
    j->done[worker % 64] = j->fn(j->rounds);
}

/* Rounds are doubled until a run takes long enough to be timed. */
static double gflops(const bench_machine *m, dti_isa isa, dt_dtype dtype)
{
    flops_job job = { .fn = dti_peak_of(isa, dtype), .rounds = 1 << 14 };

    if (dti_isa_detect() < isa) return 0.0;
    for (;;) {
        const int64_t start = dti_now_ns();
        int64_t ns;
        dti_pool_run(m->pool, flops_share, &job);
        ns = dti_now_ns() - start;
        if (ns > 30000000) return job.done[0] * m->n_threads / (double)ns;
        job.rounds *= 2;
    }
}

double bench_f32_gflops(const bench_machine *m)
{
    return gflops(m, dti_isa_detect(), DT_F32);
}

double bench_bf16_gflops(const bench_machine *m)
{
    return gflops(m, DTI_ISA_AVX512_BF16, DT_BF16);
}

double bench_amx_gflops(const bench_machine *m)
{
    return gflops(m, DTI_ISA_AMX, DT_BF16);
}

/* --- latency ---------------------------------------------------------------------------------- */

enum { HANDOFFS = 50000, SPINS = 10000 };

typedef struct line {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t turn;
} line;

static void handoff_share(void *arg, int worker, int n_workers)
{
    line *l = arg;

    (void)n_workers;
    if (worker > 1) return;
    for (uint32_t i = 0; i < HANDOFFS; i++) {
        const uint32_t mine = 2 * i + (uint32_t)worker;
        for (int spin = 0; atomic_load_explicit(&l->turn, memory_order_acquire) != mine; spin++)
            spin < SPINS ? dti_cpu_relax() : (void)sched_yield(); /* its core may be taken */
        atomic_store_explicit(&l->turn, mine + 1, memory_order_release);
    }
}

double bench_handoff_ns(const bench_machine *m)
{
    line l = { 0 };
    int64_t start;

    if (m->n_threads < 2) return 0.0;
    start = dti_now_ns();
    dti_pool_run(m->pool, handoff_share, &l);
    return (double)(dti_now_ns() - start) / (2.0 * HANDOFFS);
}

/* --- portable loops --------------------------------------------------------------------------- */

static uint64_t read_portable(const void *p, size_t bytes, size_t ahead)
{
    const uint64_t *words = p;
    uint64_t sum[8] = { 0 };

    for (size_t i = 0; i + 8 <= bytes / sizeof *words; i += 8) {
        if (ahead > 0) __builtin_prefetch((const char *)(words + i) + ahead);
        for (size_t lane = 0; lane < 8; lane++) sum[lane] += words[i + lane];
    }
    for (size_t lane = 1; lane < 8; lane++) sum[0] += sum[lane];
    return sum[0];
}

static void copy_portable(void *to, const void *from, size_t bytes)
{
    const uint64_t *x = from;
    uint64_t *y = to;

    for (size_t i = 0; i < bytes / sizeof *x; i++) y[i] = x[i];
}

const bench_loops bench_loops_portable = { read_portable, copy_portable };
