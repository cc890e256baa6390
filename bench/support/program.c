/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* affinity */
#include "bench/support/program.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/runtime.h"

/* --- command line ----------------------------------------------------------------------------- */

static void print_option(const bench_option *o)
{
    char left[40];

    (void)snprintf(left, sizeof left, "%s %s", o->name, o->value != NULL ? o->value : "");
    printf("  %-18s %s\n", left, o->help);
}

static const bench_option *find(const bench_option *options, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(options[i].name, name) == 0) return &options[i];
    return NULL;
}

static bool assign(const bench_option *o, const char *text)
{
    char *end;
    long long number;

    if (o->kind == BENCH_FLAG) {
        *(bool *)o->to = true;
        return true;
    }
    if (text == NULL) {
        (void)fprintf(stderr, "%s needs a value: %s %s\n", o->name, o->name, o->value);
        return false;
    }
    if (o->kind == BENCH_TEXT) {
        *(const char **)o->to = text;
        return true;
    }
    number = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || number < 1) {
        (void)fprintf(stderr, "%s \"%s\": a number from 1 on is needed\n", o->name, text);
        return false;
    }
    *(int64_t *)o->to = number;
    return true;
}

bool bench_parse(int argc, char **argv, const char *summary, const bench_option *own, size_t n_own,
                 bench_common *common, int *exit_code)
{
    const bench_option shared[] = {
        { "--mesh", "SPEC", "one mesh instead of the built-in list, \"tp=2\"", BENCH_TEXT,
          &common->mesh },
        { "--threads", "N", "threads of all ranks together (default: one per core)", BENCH_COUNT,
          &common->threads },
        { "--isa", "NAME", "portable, avx2, avx512, ... (default: auto)", BENCH_TEXT,
          &common->isa },
        { "--quick", NULL, "tiny sizes: shows that it runs, measures nothing", BENCH_FLAG,
          &common->quick },
        { "--json", NULL, "one JSON object instead of the table", BENCH_FLAG, &common->json },
    };

    *common = (bench_common){ .threads = bench_cores() };
    for (int i = 1; i < argc; i++) {
        const bench_option *o = find(own, n_own, argv[i]);
        if (o == NULL) o = find(shared, DT_COUNT(shared), argv[i]);
        if (o == NULL && strcmp(argv[i], "--help") == 0) {
            printf("%s\n\n", summary);
            for (size_t k = 0; k < n_own; k++) print_option(&own[k]);
            for (size_t k = 0; k < DT_COUNT(shared); k++) print_option(&shared[k]);
            *exit_code = 0;
            return false;
        }
        *exit_code = 2;
        if (o == NULL) {
            (void)fprintf(stderr, "%s: no such option; --help lists those there are\n", argv[i]);
            return false;
        }
        if (!assign(o, i + 1 < argc ? argv[i + 1] : NULL)) return false;
        if (o->kind != BENCH_FLAG) i++;
    }
    return true;
}

int bench_cores(void)
{
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    return CPU_COUNT(&allowed) > 0 ? CPU_COUNT(&allowed) : 1;
}

/* --- ranks ------------------------------------------------------------------------------------ */

dt_status bench_case_of(const bench_common *common, const char *mesh, bench_case *out)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int n_dims, sizes[DT_MAX_DIMS];

    *out = (bench_case){ .mesh = mesh };
    DT_TRY(dt_mesh_parse(mesh, &n_dims, names, sizes, &out->n_ranks));
    out->threads = (int)common->threads / out->n_ranks;
    if (out->threads < 1) out->threads = 1;
    return DT_OK;
}

int bench_case_width(const bench_case *c)
{
    const int all = c->n_ranks * c->threads, cores = bench_cores();

    return all < cores ? all : cores;
}

static void print_line(void *arg, dt_log_level level, int rank, const char *line)
{
    (void)arg;
    if (level == DT_LOG_WARNING) (void)fprintf(stderr, "rank %d: %s\n", rank, line);
}

dt_status bench_run(const bench_common *common, const bench_case *c, dt_rank_main rank_main,
                    void *arg)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;

    o.n_ranks = c->n_ranks;
    o.threads_per_rank = c->threads;
    o.isa = common->isa;
    o.log = print_line;
    DT_TRY(dt_run(&o, rank_main, arg));
    return DT_OK;
}

dt_status bench_limits_open(int n_threads, size_t bytes, bench_machine *out)
{
    const size_t page = 2 << 20;
    cpu_set_t before;
    dt_status st;

    CPU_ZERO(&before);
    (void)sched_getaffinity(0, sizeof before, &before);
    st = bench_machine_open(n_threads, (bytes + page - 1) / page * page, out);
    if (CPU_COUNT(&before) > 0) (void)sched_setaffinity(0, sizeof before, &before);
    if (st != DT_OK) (void)dti_error_frame(st, __func__, __FILE__, __LINE__);
    return st;
}

dt_status bench_barrier(dt_runtime *rt)
{
    DT_TRY(dti_barrier(dti_runtime_world(rt)));
    return DT_OK;
}

/* Waiting threads spin and yield for a millisecond before they sleep. */
static void let_others_sleep(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 4000000 }, NULL);
}

dt_status bench_alone(dt_runtime *rt, double (*measure)(const bench_machine *m),
                      const bench_machine *m, double *out)
{
    DT_TRY(bench_barrier(rt));
    if (dt_runtime_rank(rt) == 0) {
        let_others_sleep();
        *out = measure(m);
    }
    DT_TRY(bench_barrier(rt));
    return DT_OK;
}

/* --- rounds ----------------------------------------------------------------------------------- */

/* Seconds of processor time so far: of everybody, idle time included and not. 0 where the system
 * does not say; then every round is quiet. */
static void machine_clocks(double *total, double *busy)
{
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    long long t[8] = { 0 }; /* user nice system idle iowait irq softirq steal */
    FILE *f = fopen("/proc/stat", "r");
    double all = 0;

    if (f != NULL && fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &t[0], &t[1], &t[2],
                            &t[3], &t[4], &t[5], &t[6], &t[7]) != 8)
        memset(t, 0, sizeof t);
    if (f != NULL) (void)fclose(f);
    for (size_t i = 0; i < DT_COUNT(t); i++) all += (double)t[i] * tick;
    *total = all;
    *busy = all - (double)(t[3] + t[4]) * tick;
}

static double own_clock(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

void bench_rounds_open(bench_rounds *r, int64_t wanted)
{
    *r = (bench_rounds){ .wanted = wanted, .more = true };
}

void bench_round_begin(bench_rounds *r)
{
    machine_clocks(&r->total, &r->busy);
    r->own = own_clock();
}

bench_verdict bench_round_end(bench_rounds *r, double *others)
{
    double total, busy, own;
    bool quiet;

    machine_clocks(&total, &busy);
    total -= r->total;
    busy -= r->busy;
    own = own_clock() - r->own;
    *others = total > 0 && busy > own ? (busy - own) / total : 0.0;
    quiet = *others <= 0.05;
    r->tried++;
    r->quiet += quiet;
    r->more = r->quiet < r->wanted && r->tried < 4 * r->wanted;
    if (quiet) return r->quiet == 1 ? BENCH_DROP_EARLIER : BENCH_COUNT_IT;
    return r->quiet == 0 ? BENCH_COUNT_IT : BENCH_DROP_IT;
}

/* --- samples ---------------------------------------------------------------------------------- */

dt_status bench_repeat(const bench_common *o, int64_t ns, dt_status (*pass)(void *arg), void *arg,
                       double *seconds)
{
    const int64_t start = dti_now_ns();
    int64_t n = 0;

    do {
        DT_TRY(pass(arg));
        n++;
    } while (dti_now_ns() - start < (o->quick ? 1 : ns));
    *seconds = (double)(dti_now_ns() - start) * 1e-9 / (double)n;
    return DT_OK;
}

void bench_add(bench_samples *s, double value)
{
    if (s->n < BENCH_MAX_SAMPLES) s->value[s->n++] = value;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_quantile(const bench_samples *s, double q)
{
    bench_samples sorted = *s;
    double at;
    int below;

    if (s->n == 0) return NAN;
    qsort(sorted.value, (size_t)sorted.n, sizeof sorted.value[0], by_size);
    at = q * (s->n - 1);
    below = (int)at < s->n - 1 ? (int)at : s->n - 1;
    if (below == s->n - 1) return sorted.value[below];
    return sorted.value[below] + (at - below) * (sorted.value[below + 1] - sorted.value[below]);
}

double bench_median(const bench_samples *s)
{
    return bench_quantile(s, 0.5);
}
