/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/bench_gpu.h"

#include <string.h>

#include "base/cuda_load.h"
#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/program.h"
#include "dtensor/kernels/random_fill.h"

enum { MAX_COPIES = 64 };

static dt_status tried(const bench_gpu *g, int failed)
{
    DT_CHECK(failed == 0, DT_ERR_DEVICE, "%s", g->m->why());
    return DT_OK;
}

dt_status bench_gpu_open(const char *module, int device, bench_gpu *g)
{
    dti_cuda_versions versions;

    DT_TRY(dti_cuda_load(module, NULL, &g->m));
    g->m->versions(&versions);
    DT_CHECK(versions.n_devices > 0, DT_ERR_UNSUPPORTED, "%s", versions.no_device);
    DT_TRY(tried(g, g->m->open(device, &g->c)));
    return tried(g, g->m->properties(device, &g->about));
}

void bench_gpu_close(bench_gpu *g)
{
    if (g->m != NULL) g->m->close(g->c);
}

double bench_gpu_bytes(const bench_kernel *k)
{
    double bytes = (double)dti_local_count(&k->out) * (double)dt_dtype_size(k->out.dtype);

    if (k->bytes > 0.0) return k->bytes;
    for (int i = 0; i < k->n_in; i++)
        bytes +=
            (double)dti_local_count(&k->in[i].local) * (double)dt_dtype_size(k->in[i].local.dtype);
    return bytes;
}

/* --- operands --------------------------------------------------------------------------------- */

static size_t bytes_of(const dt_local *x)
{
    return ((size_t)dti_local_count(x) * dt_dtype_size(x->dtype) + 255) / 256 * 256;
}

static size_t case_bytes(const bench_kernel *k)
{
    size_t bytes = k->in_place > 0 ? 0 : bytes_of(&k->out);

    for (int i = 0; i < k->n_in; i++) bytes += bytes_of(&k->in[i].local);
    return bytes;
}

static dt_status fill_positions(const bench_gpu *g, const dt_local *x)
{
    const int64_t n = dti_local_count(x);
    dt_status st = DT_OK;
    int32_t *host;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *host, (void **)&host));
    for (int64_t i = 0; i < n; i++) host[i] = (int32_t)(g->context - n + i);
    st = tried(g, g->m->copy(g->c, x->data, host, (size_t)n * sizeof *host, DTI_CUDA_UP));
    dti_free(host);
    return st;
}

static dt_status fill(const bench_gpu *g, const bench_operand *o, const dt_local *x,
                      uint64_t stream)
{
    const dti_random_fill how = { .kind = o->kind == BENCH_IDS ? DTI_RANDOM_INTEGER
                                                               : DTI_RANDOM_UNIFORM,
                                  .dtype = x->dtype,
                                  .key = { .seed = 1, .stream = stream },
                                  .shift = -0.5,
                                  .scale = 1.0,
                                  .range = (uint64_t)g->n_ids };
    const dti_cuda_box all = { .n_axes = 1, .extent = { dti_local_count(x) }, .stride = { 1 } };

    if (o->kind == BENCH_POSITIONS) return fill_positions(g, x);
    return tried(g, g->m->kernels->fill_random(g->c, x->data, &all, &how));
}

/* --- time ------------------------------------------------------------------------------------- */

/* A case's operands, several times. */
typedef struct copies {
    unsigned char *memory;
    int n;
    dt_local in[MAX_COPIES][BENCH_MAX_IN], out[MAX_COPIES];
} copies;

static dt_status copies_open(const bench_gpu *g, const bench_kernel *k, copies *all)
{
    const size_t bytes = case_bytes(k), wanted = 4 * g->about.l2_bytes,
                 room = g->about.free_bytes / 4;
    size_t n = 1 + wanted / bytes, at = 0;

    if (n * bytes > room) n = room / bytes;
    all->n = (int)(n < 1 ? 1 : n > MAX_COPIES ? MAX_COPIES : n);
    DT_TRY(tried(
        g, g->m->alloc(g->c, (size_t)all->n * bytes, DTI_CUDA_DEVICE, (void **)&all->memory)));
    for (int i = 0; i < all->n; i++) {
        for (int j = 0; j < k->n_in; j++) {
            all->in[i][j] = k->in[j].local;
            all->in[i][j].data = all->memory + at;
            at += bytes_of(&all->in[i][j]);
            DT_TRY(fill(g, &k->in[j], &all->in[i][j], (uint64_t)(i * BENCH_MAX_IN + j)));
        }
        all->out[i] = k->out;
        all->out[i].data = k->in_place > 0 ? all->in[i][k->in_place - 1].data : all->memory + at;
        if (k->in_place == 0) at += bytes_of(&k->out);
    }
    return DT_OK;
}

static dt_status launch(const bench_gpu *g, dti_cuda_kernel run, const bench_kernel *k, copies *all,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t copy = i % all->n;
        const dt_kargs args = { .in = all->in[copy],
                                .out = &all->out[copy],
                                .attr = k->attr,
                                .n_in = k->n_in,
                                .n_out = 1 };
        DT_TRY(tried(g, run(g->c, &args)));
    }
    return DT_OK;
}

static dti_cuda_kernel kernel_of(const dti_cuda_module *m, const char *row)
{
    for (int i = 0; i < m->kernels->n_rows; i++)
        if (strcmp(m->kernels->rows[i].name, row) == 0) return m->kernels->rows[i].run;
    return NULL;
}

/* Median seconds of one launch. */
static dt_status time_graph(const bench_gpu *g, dti_cuda_graph *graph, double *seconds)
{
    bench_samples samples = { 0 };

    for (int64_t r = 0; r <= g->rounds; r++) {
        const int64_t start = dti_now_ns();
        DT_TRY(tried(g, g->m->graph_launch(g->c, graph)));
        DT_TRY(tried(g, g->m->sync(g->c)));
        if (r > 0) bench_add(&samples, (double)(dti_now_ns() - start) * 1e-9 / (double)g->launches);
    }
    *seconds = bench_median(&samples);
    return DT_OK;
}

dt_status bench_gpu_time(const bench_gpu *g, const bench_kernel *k, double *seconds)
{
    const dti_cuda_kernel run = kernel_of(g->m, k->row);
    copies *all = NULL;
    dti_cuda_graph *graph = NULL;
    dt_status st = DT_OK;

    DT_CHECK(run != NULL, DT_ERR_UNSUPPORTED, "the module has no kernel of row %s", k->row);
    DT_TRY(dti_new(sizeof *all, (void **)&all));
    DT_TRY_TO(done, st, copies_open(g, k, all));
    DT_TRY_TO(done, st, launch(g, run, k, all, 1)); /* scratch and plans are made */
    DT_TRY_TO(done, st, tried(g, g->m->sync(g->c)));
    DT_TRY_TO(done, st, tried(g, g->m->capture_begin(g->c)));
    st = launch(g, run, k, all, g->launches);
    if (g->m->capture_end(g->c, &graph) != 0 && st == DT_OK) st = tried(g, -1);
    if (st == DT_OK) st = time_graph(g, graph, seconds);
done:
    if (graph != NULL) g->m->graph_destroy(graph);
    if (all->memory != NULL) g->m->release(g->c, DTI_CUDA_DEVICE, all->memory);
    dti_free(all);
    return st;
}
