/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/devices.h>
#include <dtensor/factories.h>
#include <dtensor/limits.h>
#include <dtensor/ops.h>

#include <string.h>

#include "base/memory.h"
#include "base/pool.h"
#include "dtensor/device/device.h"
#include "dtensor/device/rates.h"
#include "dtensor/kernels/cpu/peak.h"
#include "mesh/runtime.h"
#include "models/judge/least_work.h"

enum { WIDTH = 2048, GRAIN_WORDS = 512, ROUNDS = 1 << 20 };

/* Neighbouring bytes of one parameter. */
typedef struct span {
    const uint64_t *words;
    int64_t n;
} span;

struct dt_limits {
    dt_model *model;
    dti_rates *rates; /* of a GPU; NULL: everything else is of cores */
    dti_pool *pool;
    span *spans;
    int64_t n_spans;
    uint64_t *sums; /* one per thread: what was read is used */
    dti_peak_fn peak;
    double n_threads; /* of all ranks */
    int64_t chosen;   /* experts of a token; 0: the model has none */
    int64_t rows;
    dt_tape *tape;
    dt_tensor *x, *w; /* [rows, WIDTH], [WIDTH, WIDTH] */
};

/* --- reading ---------------------------------------------------------------------------------- */

static uint64_t sum(const uint64_t *words, int64_t n)
{
    uint64_t s[8] = { 0 };

    for (int64_t i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) s[k] += words[i + k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void read_share(void *arg, int worker, int n_workers)
{
    dt_limits *l = arg;

    l->sums[worker] = 0;
    for (int64_t i = 0; i < l->n_spans; i++) {
        int64_t begin, end;
        dti_pool_share(l->spans[i].n, GRAIN_WORDS, worker, n_workers, &begin, &end);
        l->sums[worker] += sum(l->spans[i].words + begin, end - begin);
    }
}

dt_status dt_limits_read(dt_limits *l)
{
    if (l->rates != NULL) DT_TRY(dti_rates_copy(l->rates));
    if (l->rates == NULL) dti_pool_run(l->pool, read_share, l);
    return DT_OK;
}

static dt_status add_span(dt_limits *l, const dt_layer *layer, int param, size_t *room)
{
    const int64_t bytes = dti_work_param_bytes(layer, param, l->chosen);

    if (bytes == 0) return DT_OK;
    DT_TRY(dti_grow((void **)&l->spans, room, (size_t)l->n_spans + 1, sizeof *l->spans));
    l->spans[l->n_spans++] = (span){ dt_tensor_local(dt_layer_param(layer, param))->data,
                                     bytes / (int64_t)sizeof(uint64_t) };
    return DT_OK;
}

static dt_status find_spans(dt_limits *l)
{
    dt_layers *layers = dt_model_layers(l->model);
    size_t room = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) DT_TRY(add_span(l, layer, p, &room));
    }
    return DT_OK;
}

/* --- products --------------------------------------------------------------------------------- */

dt_status dt_limits_multiply(dt_limits *l)
{
    if (l->rates != NULL) {
        DT_TRY(dti_rates_multiply(l->rates));
        return DT_OK;
    }
    dt_tape_reset(l->tape);
    (void)dt_linear(l->tape, l->x, l->w, NULL);
    DT_TRY(dt_tape_status(l->tape));
    return DT_OK;
}

static dt_status make_product(dt_limits *l)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t x[] = { l->rows, WIDTH }, w[] = { WIDTH, WIDTH };
    const dt_dtype dtype = dt_model_info_of(l->model)->dtype;
    dt_mesh *mesh = dt_model_mesh(l->model);

    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &l->tape));
    DT_TRY(dt_randn(mesh, whole, dtype, 2, x, (dt_random){ 1, 0 }, &l->x));
    DT_TRY(dt_randn(mesh, whole, dtype, 2, w, (dt_random){ 1, 1 }, &l->w));
    return DT_OK;
}

/* --- multiply-adds ---------------------------------------------------------------------------- */

static void peak_share(void *arg, int worker, int n_workers)
{
    const dt_limits *l = arg;

    (void)n_workers;
    l->sums[worker] = (uint64_t)l->peak(ROUNDS);
}

dt_status dt_limits_peak(dt_limits *l, double *operations)
{
    if (l->rates != NULL) {
        *operations = dti_rates_operations(l->rates) * dt_mesh_n_ranks(dt_model_mesh(l->model));
        DT_TRY(dti_rates_multiply(l->rates));
        return DT_OK;
    }
    dti_pool_run(l->pool, peak_share, l);
    *operations = (double)l->sums[0] * l->n_threads;
    return DT_OK;
}

/* --- counting --------------------------------------------------------------------------------- */

static dt_status sum_ranks(dt_mesh *mesh, int64_t own, double *all)
{
    const int64_t n_ranks = dt_mesh_n_ranks(mesh);
    dt_status st = DT_OK;
    int64_t *each;

    DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof *each, (void **)&each));
    DT_TRY_TO(done, st, dti_rates_gather(mesh, own, each));
    *all = 0;
    for (int64_t r = 0; r < n_ranks; r++) *all += (double)each[r];
done:
    dti_free(each);
    return st;
}

dt_status dt_limits_count(dt_limits *l, int64_t n_prompt, double *bytes, double *products,
                          double *flops)
{
    dt_mesh *mesh = dt_model_mesh(l->model);
    int64_t own = 0;

    if (l->rates != NULL) own = dti_work_token_bytes(l->model, l->chosen);
    for (int64_t i = 0; i < l->n_spans; i++) own += l->spans[i].n * (int64_t)sizeof(uint64_t);
    DT_TRY(sum_ranks(mesh, own, bytes));
    *products =
        l->rates != NULL ? dti_rates_operations(l->rates) : 2.0 * (double)l->rows * WIDTH * WIDTH;
    *products *= dt_mesh_n_ranks(mesh);
    DT_TRY(dti_work_prompt(l->model, n_prompt, 1, l->chosen, flops));
    return DT_OK;
}

dt_status dt_limits_weights(const dt_limits *l, double *weights)
{
    double all, attention;

    DT_TRY(dti_work_prompt(l->model, 1, 1, l->chosen, &all));
    DT_TRY(dti_work_attention(dt_model_info_of(l->model), 1, &attention));
    *weights = (all - attention) / 2;
    return DT_OK;
}

const char *dt_limits_of_bytes(const dt_limits *l)
{
    return l->rates != NULL ? "copying as many bytes" : "reading the weights alone";
}

/* --- all -------------------------------------------------------------------------------------- */

static dt_status open_on_cores(dt_limits *l)
{
    dt_mesh *mesh = dt_model_mesh(l->model);
    dti_device *device;

    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    l->peak = dti_peak_of(dti_cpu_isa(device->cpu), dt_model_info_of(l->model)->dtype);
    l->pool = dti_runtime_pool(dt_mesh_runtime(mesh));
    DT_TRY(sum_ranks(mesh, dti_pool_size(l->pool), &l->n_threads));
    DT_TRY(dti_alloc_array((size_t)dti_pool_size(l->pool), sizeof *l->sums, (void **)&l->sums));
    DT_TRY(find_spans(l));
    DT_TRY(make_product(l));
    return DT_OK;
}

static dt_status open_on_gpu(dt_limits *l)
{
    const dt_dtype dtype = dt_model_info_of(l->model)->dtype;
    dt_mesh *mesh = dt_model_mesh(l->model);
    int64_t side;

    DT_TRY(dti_rates_side(mesh, dtype, &side));
    DT_TRY(dti_rates_open(mesh, dti_work_token_bytes(l->model, l->chosen), dtype, side, &l->rates));
    return DT_OK;
}

dt_status dt_limits_open(dt_model *model, const char *folder, int64_t n_prompt, dt_limits **out)
{
    const char *device;
    dt_status st = DT_OK;
    dt_limits *l;

    DT_CHECK(model != NULL && folder != NULL && out != NULL && n_prompt >= 1, DT_ERR_ARG,
             "model, folder or out is NULL, or a prompt of %lld tokens", (long long)n_prompt);
    *out = NULL;
    device = dt_device_of(dt_mesh_runtime(dt_model_mesh(model)));
    DT_TRY(dti_new(sizeof *l, &l));
    l->model = model;
    l->rows = n_prompt;
    DT_TRY_TO(fail, st, dti_work_experts(folder, &l->chosen));
    if (device != NULL && strcmp(device, "cpu") != 0)
        DT_TRY_TO(fail, st, open_on_gpu(l));
    else
        DT_TRY_TO(fail, st, open_on_cores(l));
    *out = l;
    return DT_OK;

fail:
    dt_limits_close(&l);
    return st;
}

void dt_limits_close(dt_limits **limits)
{
    dt_limits *l = *limits;

    *limits = NULL;
    if (l == NULL) return;
    dti_rates_close(&l->rates);
    dt_tensor_release(&l->x);
    dt_tensor_release(&l->w);
    dt_tape_release(&l->tape);
    dti_free(l->spans);
    dti_free(l->sums);
    dti_free(l);
}
