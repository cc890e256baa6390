/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters on GPUs have the bytes that they have on the CPU, whatever the size of the buffers
 * they come through; a load that fails leaves nothing behind. */
#include <dtensor/generation.h>
#include <dtensor/parallelize.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "dtensor/create.h"
#include "dtensor/device/upload.h"
#include "files/checkpoint_internal.h"
#include "files/safetensors_internal.h"
#include "mesh/gpu.h"
#include "mesh/runtime_internal.h"
#include "models/model.h"
#include "tests/support/cuda.h"
#include "tests/support/watched_cuda.h"
#include "weights/param_tensors.h"

enum { MAX_RANKS = 3, MAX_PARAMS = 256, MAX_TOLD = 256, TIMEOUT_MS = 20000 };

/* What a run on the CPU has found, for one on GPUs to compare. */
typedef struct loaded {
    const char *folder;
    dt_dtype dtype;
    bool random, on_gpu;
    struct {
        char *bytes;
        size_t n;
    } params[MAX_RANKS][MAX_PARAMS];
    int64_t told[2][MAX_TOLD]; /* done, of rank 0 */
    int n_told[2];
} loaded;

static size_t bytes_of(const dt_tensor *x)
{
    size_t n = dt_dtype_size(dt_tensor_dtype(x));

    for (int a = 0; a < dt_tensor_n_axes(x); a++) n *= (size_t)dt_tensor_local(x)->shape[a];
    return n;
}

/* Reads a parameter's piece into memory of the host, which the caller frees. */
static dt_status read_piece(const dt_tensor *x, char **out)
{
    DT_TRY(dti_alloc(bytes_of(x) + 1, (void **)out));
    DT_TRY(dt_tensor_read(x, *out, bytes_of(x)));
    return DT_OK;
}

static dt_status compare_param(loaded *all, int rank, int at, const char *name, const dt_tensor *x)
{
    char *got = NULL;
    dt_status st = DT_OK;
    bool same;

    DT_TRY(read_piece(x, &got));
    if (!all->on_gpu) {
        all->params[rank][at].bytes = got;
        all->params[rank][at].n = bytes_of(x);
        return DT_OK;
    }
    same = all->params[rank][at].n == bytes_of(x) &&
           memcmp(all->params[rank][at].bytes, got, bytes_of(x)) == 0;
    dti_free(got);
    DT_EXPECT_TO(done, st, same, "%s: other bytes than on the CPU", name);
done:
    return st;
}

static void on_progress(void *arg, int64_t done, int64_t total)
{
    loaded *all = arg;
    int *n = &all->n_told[all->on_gpu];

    if (*n < MAX_TOLD) all->told[all->on_gpu][(*n)++] = done;
    if (done > total) all->told[all->on_gpu][0] = -1;
}

static dt_status load(dt_mesh *mesh, loaded *all, dt_model **out)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];

    options.keep_dtype = false;
    options.dtype = all->dtype;
    options.progress = on_progress;
    options.progress_arg = all;
    (void)dt_test_source_path(path, "%s", all->folder);
    if (all->random)
        DT_TRY(dt_model_create_random(mesh, path, &options, 11, out));
    else
        DT_TRY(dt_model_load(mesh, path, &options, out));
    return DT_OK;
}

static dt_status compare_model(dt_mesh *mesh, const void *arg)
{
    loaded *all = *(loaded *const *)arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    DT_HELD(model) *m = NULL;
    dt_layers *layers;
    int at = 0;

    DT_TRY(load(mesh, all, &m));
    layers = dt_model_layers(m);
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++, at++) {
            const dt_tensor *x = dt_layer_param(layer, p);
            DT_EXPECT(at < MAX_PARAMS, "too many parameters");
            if (x != NULL)
                DT_TRY(compare_param(all, rank, at, dt_layer_param_info(layer, p).layer, x));
        }
    }
    return DT_OK;
}

static void compare_runs(const char *folder, const char *mesh, dt_dtype dtype, bool random)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    loaded *all = calloc(1, sizeof *all);

    DT_ASSERT(all != NULL);
    *all = (loaded){ .folder = folder, .dtype = dtype, .random = random };
    options.threads_per_rank = 2;
    dt_test_cuda_runs();
    DT_ASSERT_OK(dt_test_run(&options, mesh, compare_model, &all));
    all->on_gpu = true;
    options.device = "cuda";
    DT_ASSERT_OK(dt_test_run(&options, mesh, compare_model, &all));
    DT_ASSERT_EQ_INT(all->n_told[0], all->n_told[1]);
    DT_ASSERT(random || all->n_told[0] > 5);
    DT_ASSERT(memcmp(all->told[0], all->told[1], sizeof all->told[0]) == 0);
    for (int r = 0; r < MAX_RANKS; r++)
        for (int p = 0; p < MAX_PARAMS; p++) dti_free(all->params[r][p].bytes);
    free(all);
}

DT_TEST(cuda_load, parameters_have_the_bytes_of_the_cpu)
{
    compare_runs("tests/golden/llama/uneven", "tp=1", DT_F32, false);
    compare_runs("tests/golden/llama/uneven", "tp=2", DT_BF16, false);
    compare_runs("tests/golden/phi3/uneven", "tp=2", DT_F32, false);
    compare_runs("tests/golden/gemma3/uneven", "tp=3", DT_BF16, false);
    compare_runs("tests/golden/gpt_neo/uneven", "dp=2", DT_F16, false);
    compare_runs("tests/golden/qwen3_moe/uneven", "tp=2", DT_F32, false);
}

DT_TEST(cuda_load, random_weights_have_the_bytes_of_the_cpu)
{
    compare_runs("tests/golden/llama/uneven", "tp=2", DT_BF16, true);
    compare_runs("tests/golden/phi3/uneven", "tp=3", DT_F32, true);
    compare_runs("tests/golden/qwen3_moe/uneven", "tp=2", DT_F32, true);
}

/* --- dt_parallelize() ------------------------------------------------------------------------- */

static dt_status parallelize_as(dt_runtime *rt, const char *device, const char *backend)
{
    dt_parallelize_options o = DT_PARALLELIZE_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];
    dt_model *m = NULL;
    dt_status st;

    o.device = device;
    o.backend = backend;
    dt_test_source_path(path, "tests/golden/llama/uneven");
    st = dt_parallelize(rt, path, &o, &m);
    dt_model_release(&m);
    return st;
}

static dt_status on_gpus(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);

    (void)arg;
    DT_TRY(parallelize_as(rt, "cuda", "cuda_local"));
    DT_TRY(parallelize_as(rt, "auto", "local")); /* its threads */
    DT_EXPECT_STATUS(parallelize_as(rt, "cpu", NULL), DT_ERR_UNSUPPORTED,
                     "computes on \"cuda:0\": set dt_run_options.device to \"cpu\"");
    DT_EXPECT_STATUS(parallelize_as(rt, "cuda:777", NULL), DT_ERR_UNSUPPORTED,
                     "device \"cuda:777\": this machine's GPUs are 0 to");
    DT_EXPECT_STATUS(parallelize_as(rt, NULL, "nccl"), DT_ERR_UNSUPPORTED,
                     "joined by \"cuda_local\": set DTENSOR_CUDA_COMM=nccl");
    return DT_OK;
}

static dt_status on_cpus(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);

    (void)arg;
    DT_EXPECT_STATUS(parallelize_as(rt, "cuda", NULL), DT_ERR_UNSUPPORTED,
                     "computes on \"cpu\": set dt_run_options.device to \"cuda\"");
    DT_EXPECT_STATUS(parallelize_as(rt, NULL, "nccl"), DT_ERR_UNSUPPORTED,
                     "backend \"nccl\" joins GPUs, but this run computes on \"cpu\"");
    return DT_OK;
}

DT_TEST(cuda_load, a_model_is_parallelized_on_the_device_that_the_run_has)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    dt_test_cuda_runs();
    DT_ASSERT_OK(dt_test_run(&options, "tp=2", on_cpus, NULL));
    options.device = "cuda:0";
    DT_ASSERT_OK(dt_test_run(&options, "tp=2", on_gpus, NULL));
}

static dt_status is_on_device(dt_runtime *rt, void *arg)
{
    const char *device = arg;
    const int want = device[4] == ':' ? device[5] - '0' : dt_runtime_rank(rt) % 2;

    DT_EXPECT(rt->gpu != NULL && rt->gpu->device == want, "\"%s\" is GPU %d on rank %d", device,
              rt->gpu != NULL ? rt->gpu->device : -1, dt_runtime_rank(rt));
    return DT_OK;
}

/* A number is that GPU on every rank; without one ranks take them in turn. */
DT_TEST(cuda_load, ranks_are_on_the_gpu_that_was_named)
{
    static const char *const devices[] = { "cuda", "cuda:0", "cuda:1" };
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    const dti_cuda_module *m;
    dti_cuda_versions versions;

    (void)setenv("DTENSOR_SIM_DEVICES", "2", 1);
    m = dt_test_cuda_runs();
    m->versions(&versions);
    if (versions.n_devices != 2) dt_test_skip("skipped: %d devices", versions.n_devices);
    options.n_ranks = 2;
    for (size_t i = 0; i < DT_COUNT(devices); i++) {
        options.device = devices[i];
        DT_ASSERT_OK(dt_run(&options, is_on_device, (void *)(uintptr_t)devices[i]));
    }
}

/* --- buffers of any size ---------------------------------------------------------------------- */

enum { OUT = 14, IN = 9 };

typedef struct ring_case {
    const char *folder;
    dt_layer_spec spec;
    const char *tensor;
    dt_dtype dtype;
} ring_case;

static dt_status fill(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)t;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)(first + i);
    return DT_OK;
}

/* Reads the parameter through buffers of `bytes` and compares it with `want`. */
static dt_status through_ring(const dti_param_source *from, dt_tensor *x, size_t bytes,
                              const char *want)
{
    dt_runtime *rt = dt_mesh_runtime(dt_tensor_mesh(x));
    dti_upload *upload = NULL;
    dt_status st = DT_OK;
    char *got = NULL;

    DT_TRY(dti_upload_open(dti_runtime_gpu(rt), bytes, TIMEOUT_MS, &upload));
    st = dti_upload_param(from, x, upload);
    DT_TRY_TO(done, st, dti_upload_close(&upload, st));
    DT_TRY_TO(done, st, read_piece(x, &got));
    DT_EXPECT_TO(done, st, memcmp(got, want, bytes_of(x)) == 0,
                 "%s, %s, by buffers of %zu bytes: other bytes than on the CPU", from->name,
                 dt_dtype_name(dt_tensor_dtype(x)), bytes);
done:
    dti_free(got);
    return st;
}

/* The same read into place, as on the CPU. */
static dt_status read_in_place(const dti_param_source *from, dt_tensor *x, char **want)
{
    const dti_part whole = dti_whole_part(x, from->reversed);

    DT_TRY(dti_alloc(bytes_of(x) + 1, (void **)want));
    for (size_t i = 0; i < from->n_tensors; i++)
        DT_TRY(dti_read_part(from->ckpt, &from->tensors[i], &whole, from->stage, *want));
    return DT_OK;
}

static dt_status any_buffers(dt_mesh *mesh, const void *arg)
{
    const ring_case *c = arg;
    dti_param_tensor tensor = { .whole = true };
    dti_param_source from = { .tensors = &tensor, .n_tensors = 1 };
    DT_HELD(layers) *layers = NULL;
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    DT_HELD(tensor) *x = NULL;
    DT_FREED char *want = NULL;
    dt_param_info info;
    int64_t shape[3];

    DT_TRY(dt_layers_create(mesh, "tp", &c->spec, 1, NULL, &layers));
    info = dt_layer_param_info(dt_layers_at(layers, 0), 0);
    for (int a = 0; a < info.n_axes; a++) shape[a] = info.axis[a].extent;
    DT_TRY(dti_ckpt_open(c->folder, &ckpt));
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    tensor.entry = dti_ckpt_find(ckpt, c->tensor);
    tensor.name = from.name = c->tensor;
    from.ckpt = ckpt;
    from.stage = &stage;
    from.reversed = info.reversed;
    DT_TRY(dti_tensor_create_exact(mesh, dt_layer_param_layout(dt_layers_at(layers, 0), 0),
                                   c->dtype, shape, &x));
    DT_TRY(read_in_place(&from, x, &want));
    {
        const size_t all = bytes_of(x);
        const size_t sizes[] = { 8, 20, 36, 64, 100, 128, all - 1, all, all + 1, 1 << 16 };
        for (size_t i = 0; i < DT_COUNT(sizes); i++) DT_TRY(through_ring(&from, x, sizes[i], want));
    }
    return DT_OK;
}

DT_TEST(cuda_load, buffers_of_any_size_bring_the_same_bytes)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F64 };
    const dt_axis_blocks none = { 0 };
    const dt_axis_blocks gate_up = { 2, { { 7, DT_UNIT_ROW }, { 7, DT_UNIT_ROW } } };
    const dt_axis_blocks parts = { 3,
                                   { { 1, DT_UNIT_ROW }, { 6, DT_UNIT_ROW }, { 2, DT_UNIT_ROW } } };
    const dti_st_spec files[] = { { "plain", DT_F32, 2, { OUT, IN } },
                                  { "reversed", DT_F32, 2, { IN, OUT } } };
    const struct {
        const char *style;
        bool reversed;
        dt_axis_blocks blocks[2];
    } rows[] = {
        { "replicate", false, { none, none } },
        { "colwise", false, { none, none } },
        { "rowwise", false, { none, none } },
        { "packed_colwise", false, { gate_up, none } },
        { "packed_rowwise", false, { none, parts } },
        { "colwise", true, { none, none } },
        { "rowwise", true, { none, none } },
        { "packed_colwise", true, { gate_up, none } },
    };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    dt_test_write_file(folder, "config.json", "{}", 2);
    DT_ASSERT_OK(dti_st_write(path, files, 2, NULL, fill, NULL));
    for (size_t i = 0; i < DT_COUNT(rows); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            for (size_t t = 0; t < DT_COUNT(dtypes); t++) {
                ring_case c = { folder,
                                { .name = "x",
                                  .kind = &dt_linear_kind,
                                  .axis = { { OUT, DT_UNIT_ROW }, { IN, DT_UNIT_ROW } },
                                  .blocks = { rows[i].blocks[0], rows[i].blocks[1] },
                                  .reversed = rows[i].reversed,
                                  .style = rows[i].style },
                                rows[i].reversed ? "reversed" : "plain",
                                dtypes[t] };
                dt_test_on_gpus(meshes[m], any_buffers, &c);
            }
}

/* --- files that end early --------------------------------------------------------------------- */

typedef struct cut_file {
    char folder[DT_TEST_PATH_BYTES], weights[DT_TEST_PATH_BYTES + 32];
} cut_file;

/* A parameter has come; the file loses what follows its header. */
static void cut_short(void *arg, int64_t done, int64_t total)
{
    const cut_file *f = arg;

    (void)done;
    (void)total;
    if (truncate(f->weights, 5000) != 0) abort();
}

/* From now on the rank's memory is watched. */
static void watch(dt_runtime *rt)
{
    dti_cuda_place *place = (dti_cuda_place *)(uintptr_t)dti_runtime_gpu(rt);

    place->module = watched_module(place->module);
}

static dt_status load_what_ends_early(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const cut_file *f = arg;
    dt_model *m = NULL;
    dt_status st;

    watch(dt_mesh_runtime(mesh));
    options.progress = cut_short;
    options.progress_arg = (void *)(uintptr_t)f;
    st = dt_model_load(mesh, f->folder, &options, &m);
    DT_EXPECT(m == NULL && watched_pinned() == 0 && watched_most_pinned() > 0,
              "pinned: %d, %d at most", watched_pinned(), watched_most_pinned());
    return st;
}

static void copy_file(const char *source, const char *folder, const char *name)
{
    char from[2 * DT_TEST_PATH_BYTES];
    DT_FREED void *data = NULL;
    int64_t n = 0;

    (void)snprintf(from, sizeof from, "%s/%s", source, name);
    DT_ASSERT_OK(dti_input_read_all(from, 1 << 26, &data, &n));
    dt_test_write_file(folder, name, data, (size_t)n);
}

DT_TEST(cuda_load, a_file_that_ends_early_leaves_nothing_behind)
{
    char source[DT_TEST_PATH_BYTES];
    dt_run_options options = dt_test_cuda_options();
    cut_file f;

    options.threads_per_rank = 2;
    (void)dt_test_temp_dir(f.folder);
    (void)snprintf(f.weights, sizeof f.weights, "%s/model.safetensors", f.folder);
    (void)dt_test_source_path(source, "tests/golden/llama/uneven");
    copy_file(source, f.folder, "config.json");
    copy_file(source, f.folder, "model.safetensors");
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=1", load_what_ends_early, &f), DT_ERR_IO, "tensor");
}
