/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading a checkpoint, against reading its file alone: plain preads, by as many threads, into one
 * buffer of 16 MiB per thread that is used again and again. A second limit reads into memory that
 * is fresh from the system, as a loader must: what the first touch of a page costs is in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"

enum { BLOCK_BYTES = 16 << 20 };

/* clang-format off */
static const bench_column columns[] = {
    { "file_dtype", "file", 5, -1 },
    { "run_dtype", "run", 5, -1 },
    { "cache", "cache", 5, -1 },
    { "mesh", "mesh", 6, -1 },
    { "threads_per_rank", "threads", 7, 0 },
    { "load_s", "load s", 7, 3 },
    { "load_gbs", "file GB/s", 9, 2 },
    { "read_s", "read s", 7, 3 },
    { "ratio", "ratio", 6, 3 }, /* read / load */
    { "ratio_least", "least", 6, 3 },
    { "ratio_most", "most", 6, 3 },
    { "fresh_read_s", "fresh s", 7, 3 },
    { "fresh_ratio", "ratio", 6, 3 },
    { "others_percent", "others %", 8, 1 },
};
/* clang-format on */

typedef struct load_options {
    bench_common common;
    const char *model;
    bool keep;
    bool no_cold;
    bool no_prime;
    int64_t layers;
    int64_t rounds;
} load_options;

/* --- reading alone ---------------------------------------------------------------------------- */

typedef struct reader {
    int fd;
    int64_t bytes;
    bool reuse;
    unsigned char *buffer; /* a block per worker, or as large as the file */
    _Atomic bool failed;
} reader;

static void read_share(void *arg, int worker, int n_workers)
{
    reader *r = arg;
    int64_t begin, end;

    dti_pool_share(r->bytes, BLOCK_BYTES, worker, n_workers, &begin, &end);
    while (begin < end) {
        const size_t want = end - begin < BLOCK_BYTES ? (size_t)(end - begin) : BLOCK_BYTES;
        unsigned char *to = r->buffer + (r->reuse ? (int64_t)worker * BLOCK_BYTES : begin);
        const ssize_t got = pread(r->fd, to, want, (off_t)begin);
        if (got <= 0) {
            if (got < 0 && errno == EINTR) continue;
            r->failed = true;
            return;
        }
        begin += got;
    }
}

/* Opening the file, and in the second form getting the memory, is part of the time. */
static dt_status read_alone(const char *path, dti_pool *pool, bool reuse, double *seconds)
{
    const int64_t start = dti_now_ns();
    reader r = { .fd = open(path, O_RDONLY | O_CLOEXEC), .reuse = reuse };
    dt_status st = DT_OK;
    struct stat info;
    size_t room = 0;

    DT_CHECK(r.fd >= 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    DT_CHECK_TO(done, st, fstat(r.fd, &info) == 0, DT_ERR_IO, "%s: %s", path, strerror(errno));
    r.bytes = info.st_size;
    room = reuse ? (size_t)dti_pool_size(pool) * BLOCK_BYTES : (size_t)r.bytes;
    DT_TRY_TO(done, st, dti_big_alloc(room, (void **)&r.buffer));
    dti_pool_run(pool, read_share, &r);
    DT_CHECK_TO(done, st, !r.failed, DT_ERR_IO, "%s could not be read", path);
    *seconds = (double)(dti_now_ns() - start) * 1e-9;
done:
    dti_big_free(r.buffer, room);
    (void)close(r.fd);
    return st;
}

/* --- the page cache --------------------------------------------------------------------------- */

/* The share of the file's pages that are in memory; 1 where the system does not say. */
static double cached_share(int fd, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *state = NULL;
    double share = 1.0;
    size_t found = 0;

    if (map == MAP_FAILED) return share;
    if (dti_alloc(n, (void **)&state) == DT_OK && mincore(map, bytes, state) == 0) {
        for (size_t i = 0; i < n; i++) found += state[i] & 1u;
        share = (double)found / (double)n;
    }
    dti_free(state);
    (void)munmap(map, bytes);
    return share;
}

/* Asks the system to forget the file. False if most of it stayed. */
static bool drop_cache(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    bool dropped;

    if (fd < 0) return false;
    dropped = fstat(fd, &info) == 0 && info.st_size > 0 &&
              posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 &&
              cached_share(fd, (size_t)info.st_size) < 0.05;
    (void)close(fd);
    return dropped;
}

/* --- memory ----------------------------------------------------------------------------------- */

static void touch_share(void *arg, int worker, int n_workers)
{
    const reader *r = arg;
    int64_t begin, end;

    dti_pool_share(r->bytes, 2 << 20, worker, n_workers, &begin, &end);
    for (; begin < end; begin += 4 << 10) r->buffer[begin] = 1;
}

/* A virtual machine gives memory that nobody uses back to its host after a while, and getting it
 * again can take ten times as long as reading the file. Touching as much right before keeps that
 * out of the figures. */
static void prime(dti_pool *pool, int64_t bytes)
{
    reader r = { .bytes = bytes };

    if (dti_big_alloc((size_t)bytes, (void **)&r.buffer) != DT_OK) return;
    dti_pool_run(pool, touch_share, &r);
    dti_big_free(r.buffer, (size_t)bytes);
}

/* --- loading ---------------------------------------------------------------------------------- */

typedef struct load_job {
    const char *mesh;
    const char *folder;
    dt_dtype dtype;
    double seconds; /* of rank 0, from and to a barrier */
} load_job;

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    load_job *j = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;
    int64_t start;

    load.keep_dtype = false;
    load.dtype = j->dtype;
    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, bench_barrier(rt));
    start = dti_now_ns();
    DT_TRY_TO(done, st, dt_model_load(mesh, j->folder, &load, &m));
    DT_TRY_TO(done, st, bench_barrier(rt));
    if (dt_runtime_rank(rt) == 0) j->seconds = (double)(dti_now_ns() - start) * 1e-9;
done:
    dt_model_release(&m);
    dt_mesh_release(&mesh);
    return st;
}

typedef struct load_figures {
    bench_rounds rounds;
    bench_samples load, again, fresh, ratio, fresh_ratio, others;
} load_figures;

static void count_round(load_figures *f, double load, double again, double fresh)
{
    double others;
    const bench_verdict verdict = bench_round_end(&f->rounds, &others);

    if (verdict == BENCH_DROP_IT) return;
    if (verdict == BENCH_DROP_EARLIER)
        f->load.n = f->again.n = f->fresh.n = f->ratio.n = f->fresh_ratio.n = f->others.n = 0;
    bench_add(&f->load, load);
    bench_add(&f->again, again);
    bench_add(&f->fresh, fresh);
    bench_add(&f->ratio, again / load);
    bench_add(&f->fresh_ratio, fresh / load);
    bench_add(&f->others, others);
}

/* One checkpoint on one mesh, with the file in memory or not. */
typedef struct load_case {
    const load_options *options;
    const bench_folder *folder;
    const char *mesh;
    bool cold;
    int64_t bytes; /* of the weights */
    bench_case ranks;
    dti_pool *pool; /* reads the file alone */
} load_case;

/* What every measured step begins with: `memory` says that it takes as much as the weights for
 * itself. A file that comes from the disk needs memory in the page cache, too. */
static void prepare(const load_case *c, bool memory)
{
    const int64_t bytes = c->bytes * ((memory ? 1 : 0) + (c->cold ? 1 : 0));

    if (c->cold) (void)drop_cache(c->folder->weights);
    if (bytes > 0 && !c->options->no_prime) prime(c->pool, bytes);
}

static dt_status run_round(const load_case *c, load_job *j, load_figures *figures)
{
    double again, fresh;

    bench_round_begin(&figures->rounds);
    prepare(c, false);
    DT_TRY(read_alone(c->folder->weights, c->pool, true, &again));
    prepare(c, true);
    DT_TRY(bench_run(&c->options->common, &c->ranks, on_rank, j));
    prepare(c, true);
    DT_TRY(read_alone(c->folder->weights, c->pool, false, &fresh));
    count_round(figures, j->seconds, again, fresh);
    return DT_OK;
}

static dt_status run_case(load_case *c, bench_report *report)
{
    load_job j = { .mesh = c->mesh, .folder = c->folder->path, .dtype = DT_BF16 };
    bench_machine limits = { 0 };
    dt_status st = DT_OK;
    dt_model_info info;
    load_figures f = { .load = { 0 } };

    DT_TRY(dt_model_inspect(c->folder->path, &info, NULL, &c->bytes));
    DT_TRY(bench_case_of(&c->options->common, c->mesh, &c->ranks));
    DT_TRY(bench_limits_open(bench_case_width(&c->ranks), 1, &limits));
    c->pool = limits.pool;
    if (!c->cold) DT_TRY_TO(done, st, run_round(c, &j, &f)); /* brings the file into memory */
    f = (load_figures){ .load = { 0 } };
    bench_rounds_open(&f.rounds, c->options->rounds);
    while (f.rounds.more) DT_TRY_TO(done, st, run_round(c, &j, &f));
    bench_report_row(report, dt_dtype_name(info.dtype), dt_dtype_name(j.dtype),
                     c->cold ? "cold" : "hot", c->mesh, (double)c->ranks.threads,
                     bench_median(&f.load), (double)c->bytes * 1e-9 / bench_median(&f.load),
                     bench_median(&f.again), bench_median(&f.ratio), bench_quantile(&f.ratio, 0),
                     bench_quantile(&f.ratio, 1), bench_median(&f.fresh),
                     bench_median(&f.fresh_ratio), 100 * bench_median(&f.others));
done:
    bench_machine_close(&limits);
    return st;
}

static dt_status run_folder(const load_options *o, const bench_folder *folder, bool cold,
                            bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        load_case c = { .options = o, .folder = folder, .mesh = meshes[i], .cold = cold };

        if (o->common.mesh != NULL && i > 0) break;
        if (o->common.mesh != NULL) c.mesh = o->common.mesh;
        DT_TRY(run_case(&c, report));
    }
    return DT_OK;
}

/* One checkpoint, hot and cold. */
static dt_status run_shapes(const load_options *o, const bench_shapes *shapes, const char *key,
                            bench_report *report)
{
    dt_status st = DT_OK;
    dt_model_info info;
    bench_folder folder;
    int64_t bytes;

    DT_TRY(bench_folder_open(o->model, shapes, &folder));
    DT_TRY_TO(done, st, dt_model_inspect(folder.path, &info, NULL, &bytes));
    bench_report_fact(report, key, "%s, %lld layers, %s, %.3f GB", info.model_type,
                      (long long)info.n_layers, dt_dtype_name(info.dtype), (double)bytes * 1e-9);
    DT_TRY_TO(done, st, run_folder(o, &folder, false, report));
    if (!o->no_cold && drop_cache(folder.weights))
        DT_TRY_TO(done, st, run_folder(o, &folder, true, report));
    else if (!o->no_cold)
        bench_report_fact(report, "cold", "left out: the system keeps the file in memory");
done:
    bench_folder_close(&folder, o->keep);
    return st;
}

static dt_status run(const load_options *o, bench_report *report)
{
    bench_shapes shapes = o->common.quick ? bench_llama_tiny : bench_llama_1b;

    if (o->layers > 0) shapes.layers = o->layers;
    DT_TRY(run_shapes(o, &shapes, "model", report));
    if (o->model != NULL) return DT_OK;
    shapes.dtype = DT_F32;
    if (!o->common.quick) shapes.layers = shapes.layers * 3 / 8; /* as many bytes */
    DT_TRY(run_shapes(o, &shapes, "model_f32", report));
    return DT_OK;
}

int main(int argc, char **argv)
{
    load_options o = { .rounds = 5 };
    const bench_option own[] = {
        { "--model", "DIR", "a folder with one model.safetensors instead of random weights",
          BENCH_TEXT, &o.model },
        { "--keep", NULL, "leave the random checkpoints on the disk and print where", BENCH_FLAG,
          &o.keep },
        { "--no-cold", NULL, "only with the file in the page cache", BENCH_FLAG, &o.no_cold },
        { "--no-prime", NULL, "take memory as the system gives it, however long it was unused",
          BENCH_FLAG, &o.no_prime },
        { "--layers", "N", "of the bf16 checkpoint (default: 16, 2.47 GB)", BENCH_COUNT,
          &o.layers },
        { "--rounds", "N", "of which medians are taken (default: 5)", BENCH_COUNT, &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv,
                     "Loading a checkpoint to run in bf16, against reading its file alone.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) o.rounds = 1;
    bench_report_open(&report, "load", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
