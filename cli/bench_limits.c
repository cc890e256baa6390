/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_limits.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"
#include "mesh/runtime.h"
#include "models/checkpoint/json.h"

enum { WIDTH = 2048, GRAIN_WORDS = 512, PATH_BYTES = 4096 };

/* Neighbouring bytes of one parameter. */
typedef struct span {
    const uint64_t *words;
    int64_t n;
} span;

struct cli_limits {
    dt_model *model;
    dti_pool *pool;
    span *spans;
    int64_t n_spans;
    uint64_t *sums; /* one per thread: what was read is used */
    int64_t chosen; /* experts of a token; 0: the model has none */
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
    cli_limits *l = arg;

    l->sums[worker] = 0;
    for (int64_t i = 0; i < l->n_spans; i++) {
        int64_t begin, end;
        dti_pool_share(l->spans[i].n, GRAIN_WORDS, worker, n_workers, &begin, &end);
        l->sums[worker] += sum(l->spans[i].words + begin, end - begin);
    }
}

void cli_limits_read(cli_limits *l)
{
    dti_pool_run(l->pool, read_share, l);
}

/* A token reads all of a parameter, but of experts as many as its router chooses, and of an
 * embedding, unless it is the head too, one row. */
static dt_status add_span(cli_limits *l, const dt_layer *layer, int param, size_t *room)
{
    const dt_local *x = dt_tensor_local(dt_layer_param(layer, param));
    int64_t n = (int64_t)dt_dtype_size(x->dtype);

    for (int a = 0; a < x->n_axes; a++) n *= x->shape[a];
    if (dt_layer_kind_of(layer) == DT_LAYER_EXPERTS && l->chosen > 0)
        n = n / dt_layer_param_info(layer, param).axis[0].extent * l->chosen;
    DT_TRY(dti_grow((void **)&l->spans, room, (size_t)l->n_spans + 1, sizeof *l->spans));
    l->spans[l->n_spans++] = (span){ x->data, n / (int64_t)sizeof(uint64_t) };
    return DT_OK;
}

static dt_status find_spans(cli_limits *l)
{
    dt_layers *layers = dt_model_layers(l->model);
    size_t room = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        if (dt_layer_kind_of(layer) == DT_LAYER_EMBEDDING) continue;
        for (int p = 0; p < dt_layer_n_params(layer); p++) DT_TRY(add_span(l, layer, p, &room));
    }
    return DT_OK;
}

/* --- products --------------------------------------------------------------------------------- */

dt_status cli_limits_multiply(cli_limits *l)
{
    dt_tape_reset(l->tape);
    (void)dt_linear(l->tape, l->x, l->w, NULL);
    DT_TRY(dt_tape_status(l->tape));
    return DT_OK;
}

static dt_status make_product(cli_limits *l)
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

/* --- counting --------------------------------------------------------------------------------- */

/* Products of all layers, the head's of the last token alone, and causal attention; a multiply-add
 * counts as two. */
static double prompt_flops(const cli_limits *l, int64_t n)
{
    const dt_model_info *info = dt_model_info_of(l->model);
    const double pairs = 0.5 * (double)n * (double)(n + 1);
    double flops = 4.0 * (double)(info->n_heads * info->head_dim) * pairs * (double)info->n_layers;
    dt_layers *layers = dt_model_layers(l->model);

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        const dt_layer_kind kind = dt_layer_kind_of(layer);
        const bool experts = kind == DT_LAYER_EXPERTS;
        dt_param_info w;

        if (!experts && kind != DT_LAYER_LINEAR) continue;
        w = dt_layer_param_info(layer, DT_PARAM_WEIGHT);
        flops += 2.0 * (double)w.axis[experts].extent * (double)w.axis[1 + experts].extent *
                 (experts                                        ? (double)(l->chosen * n)
                  : strcmp(dt_layer_name(layer), "lm_head") == 0 ? 1.0
                                                                 : (double)n);
    }
    return flops;
}

dt_status cli_limits_count(cli_limits *l, int64_t n_prompt, double *bytes, double *products,
                           double *flops)
{
    dt_mesh *mesh = dt_model_mesh(l->model);
    const int64_t n_ranks = dt_mesh_n_ranks(mesh), shape[] = { n_ranks };
    dt_placement by_rank[DT_MAX_DIMS];
    dt_tensor *mine = NULL, *all = NULL;
    dt_status st = DT_OK;
    int64_t own = 0, *each = NULL;

    *bytes = *products = *flops = 0;
    for (int64_t i = 0; i < l->n_spans; i++) own += l->spans[i].n * (int64_t)sizeof(uint64_t);
    for (int d = 0; d < DT_MAX_DIMS; d++) by_rank[d] = DT_SHARD(0);
    DT_TRY(dti_alloc_array((size_t)n_ranks, sizeof *each, (void **)&each));
    DT_TRY_TO(done, st, dt_from_local(mesh, by_rank, DT_I64, 1, shape, &own, &mine));
    DT_TRY_TO(done, st, dt_full_tensor(mine, &all));
    DT_TRY_TO(done, st, dt_tensor_read(all, each, (size_t)n_ranks * sizeof *each));
    for (int64_t r = 0; r < n_ranks; r++) *bytes += (double)each[r];
    *products = 2.0 * (double)l->rows * WIDTH * WIDTH * (double)n_ranks;
    *flops = prompt_flops(l, n_prompt);
done:
    dt_tensor_release(&mine);
    dt_tensor_release(&all);
    dti_free(each);
    return st;
}

/* --- all -------------------------------------------------------------------------------------- */

static dt_status read_chosen(const char *folder, int64_t *chosen)
{
    char path[PATH_BYTES];
    dti_json_doc doc = { 0 };
    dt_status st;

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DT_TRY(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    st = dti_json_int_or(&doc.root, "num_experts_per_tok", 0, 1, INT32_MAX, chosen);
    dti_json_free(&doc);
    return st;
}

dt_status cli_limits_open(dt_model *model, const char *folder, int64_t n_prompt, cli_limits **out)
{
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(model));
    const char *device = dt_device_of(rt);
    dt_status st = DT_OK;
    cli_limits *l;

    *out = NULL;
    DT_CHECK(device != NULL && strcmp(device, "cpu") == 0, DT_ERR_UNSUPPORTED,
             "bench: weights lie on the device \"%s\"; limits are measured of cores alone",
             device != NULL ? device : "none");
    DT_TRY(dti_new(sizeof *l, &l));
    l->model = model;
    l->rows = n_prompt;
    l->pool = dti_runtime_pool(rt);
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)dti_pool_size(l->pool), sizeof *l->sums, (void **)&l->sums));
    DT_TRY_TO(fail, st, read_chosen(folder, &l->chosen));
    DT_TRY_TO(fail, st, find_spans(l));
    DT_TRY_TO(fail, st, make_product(l));
    *out = l;
    return DT_OK;

fail:
    cli_limits_close(&l);
    return st;
}

void cli_limits_close(cli_limits **limits)
{
    cli_limits *l = *limits;

    *limits = NULL;
    if (l == NULL) return;
    dt_tensor_release(&l->x);
    dt_tensor_release(&l->w);
    dt_tape_release(&l->tape);
    dti_free(l->spans);
    dti_free(l->sums);
    dti_free(l);
}
