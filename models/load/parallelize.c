/* SPDX-License-Identifier: Apache-2.0
 *
 * dt_parallelize(): the ranks agree on what they were asked, then load a model together. */
#include <dtensor/devices.h>
#include <dtensor/parallelize.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/numbers.h"
#include "base/options.h"
#include "base/text.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "mesh/gpu.h"
#include "mesh/runtime.h"
#include "models/load/agreement.h"
#include "models/load/load.h"

enum { SPEC_BYTES = 64 };

/* --- models that this rank holds -------------------------------------------------------------- */

/* A folder that was parallelized, and its model. */
typedef struct holding {
    dev_t device;
    ino_t inode;
    const dt_model *model;
    struct holding *next;
} holding;

typedef struct holdings {
    holding *first;
} holdings;

static void holdings_destroy(void *object)
{
    holdings *h = object;

    for (holding *next; h->first != NULL; h->first = next) {
        next = h->first->next;
        dti_free(h->first);
    }
    dti_free(h);
}

static dt_status holdings_create(dt_runtime *rt, void **out)
{
    (void)rt;
    DT_TRY(dti_alloc(sizeof(holdings), out));
    return DT_OK;
}

static const dti_slot holdings_slot = { holdings_create, holdings_destroy, false };

static dt_status holdings_of(dt_runtime *rt, holdings **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &holdings_slot, &slot));
    *out = slot;
    return DT_OK;
}

static dt_status refuse_second(dt_runtime *rt, const char *dir)
{
    char shown[DTI_SHOWN_BYTES];
    struct stat folder;
    holdings *held;

    DT_TRY(holdings_of(rt, &held));
    if (stat(dir, &folder) != 0) return DT_OK; /* reading it will say why */
    for (const holding *h = held->first; h != NULL; h = h->next)
        DT_CHECK(h->device != folder.st_dev || h->inode != folder.st_ino, DT_ERR_ARG,
                 "%s is parallelized already, with %lld bytes on this rank; release that model "
                 "and the states that still hold it first, or load a second copy by "
                 "dt_model_load()",
                 dti_printable(dir, shown, sizeof shown),
                 (long long)dt_model_local_bytes(h->model));
    return DT_OK;
}

static dt_status hold(dt_runtime *rt, const char *dir, dt_model *model)
{
    struct stat folder;
    holdings *held;
    holding *h;

    DT_TRY(holdings_of(rt, &held));
    if (stat(dir, &folder) != 0) return DT_OK;
    DT_TRY(dti_new(sizeof *h, &h));
    *h = (holding){ folder.st_dev, folder.st_ino, model, held->first };
    held->first = h;
    model->parallelized = true;
    return DT_OK;
}

void dti_parallelized_forget(const dt_model *model)
{
    holdings *held;

    if (!model->parallelized || holdings_of(dt_mesh_runtime(model->mesh), &held) != DT_OK) return;
    for (holding **at = &held->first; *at != NULL; at = &(*at)->next)
        if ((*at)->model == model) {
            holding *gone = *at;
            *at = gone->next;
            dti_free(gone);
            return;
        }
}

/* --- arguments -------------------------------------------------------------------------------- */

static dt_status check_size(const dt_runtime *rt, const dt_parallelize_options *o,
                            char spec[SPEC_BYTES])
{
    const int size = dt_runtime_size(rt);
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int n_dims, sizes[DT_MAX_DIMS], n;

    DT_CHECK(o->n_ranks >= 0, DT_ERR_ARG, "n_ranks is %d", o->n_ranks);
    DT_CHECK(o->n_ranks == 0 || o->n_ranks == size, DT_ERR_ARG,
             "n_ranks is %d, but the run has %d rank%s: set dt_run_options.n_ranks to %d (under "
             "mpirun -n %d), or n_ranks to 0",
             o->n_ranks, size, size == 1 ? "" : "s", o->n_ranks, o->n_ranks);
    n = o->mesh != NULL ? snprintf(spec, SPEC_BYTES, "%s", o->mesh)
                        : snprintf(spec, SPEC_BYTES, "%s=%d", o->dim, size);
    DT_CHECK(n < SPEC_BYTES, DT_ERR_ARG, "the mesh \"%.40s...\" has more than %d characters",
             o->mesh != NULL ? o->mesh : o->dim, (int)SPEC_BYTES - 1);
    DT_TRY(dt_mesh_parse(spec, &n_dims, names, sizes, &n));
    DT_CHECK(n == size, DT_ERR_ARG,
             "mesh \"%s\" has %d rank%s, but the run has %d: all ranks of the run take part", spec,
             n, n == 1 ? "" : "s", size);
    return DT_OK;
}

/* What joins the ranks, by the names that options use; what carries memory between GPUs, if they
 * have any. */
static const char *backend_of(dt_runtime *rt)
{
    const dti_comm *world = dti_runtime_world(rt);
    const dti_cuda_carrier *carrier = dti_cuda_carrier_of(world->cuda);

    return carrier != NULL ? carrier->name : world->ops->name;
}

static bool is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

/* The run has chosen its device: asking for another is refused as dt_run() would refuse it, or with
 * what dt_run() has to be told. */
static dt_status check_device(const dt_runtime *rt, const char *device)
{
    const dti_cuda_place *gpu = dti_runtime_gpu(rt);
    char has[16] = "cpu";
    bool same;

    if (is_auto(device)) return DT_OK;
    if (gpu != NULL) (void)snprintf(has, sizeof has, "cuda:%d", gpu->device);
    same = strcmp(device, has) == 0 || (gpu != NULL && strcmp(device, "cuda") == 0);
    DT_TRY(dti_check_device(device));
    if (same) return DT_OK;
    if (strcmp(device, "cpu") != 0) DT_TRY(dt_device_check(device));
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "device \"%s\", but this rank of the run computes on \"%s\": set "
            "dt_run_options.device to \"%s\"",
            device, has, device);
}

/* Names of options, of what they join, and of what makes a run have them. */
static const struct {
    const char *name;
    bool gpus;
    const char *how;
} backends[] = {
    { "local", false, "start the program as one process" },
    { "mpi", false, "start the program under mpirun" },
    { "sockets", false, "start the program with torchrun's variables" },
    { "nccl", true, "set DTENSOR_CUDA_COMM=nccl" },
    { "cuda_local", true, "set DTENSOR_CUDA_COMM=cuda_local" },
    { "cuda_local_spin", true, "set DTENSOR_CUDA_COMM=cuda_local_spin" },
    { "staged", true, "set DTENSOR_CUDA_COMM=staged" },
};

/* Beside GPUs ranks are joined by what joins processes, too. */
static dt_status check_backend(dt_runtime *rt, const char *backend)
{
    char shown[DTI_SHOWN_BYTES];

    if (is_auto(backend) || strcmp(backend, backend_of(rt)) == 0 ||
        strcmp(backend, dti_runtime_world(rt)->ops->name) == 0)
        return DT_OK;
    (void)dti_printable(backend, shown, sizeof shown);
    for (size_t i = 0; i < DT_COUNT(backends); i++) {
        if (strcmp(backend, backends[i].name) != 0) continue;
        if (backends[i].gpus && dti_runtime_gpu(rt) == NULL) {
            DT_TRY(dt_device_check("cuda"));
            DT_FAIL(DT_ERR_UNSUPPORTED,
                    "backend \"%s\" joins GPUs, but this run computes on \"cpu\": set "
                    "dt_run_options.device to \"cuda\"",
                    shown);
        }
        DT_FAIL(DT_ERR_UNSUPPORTED,
                "backend \"%s\", but the ranks of this run are joined by \"%s\": %s", shown,
                backend_of(rt), backends[i].how);
    }
    DT_FAIL(DT_ERR_ARG,
            "unknown backend \"%s\"; there are \"local\" (threads), \"mpi\" and \"sockets\" "
            "(processes), and between GPUs \"nccl\", \"cuda_local\", \"cuda_local_spin\", "
            "\"staged\"",
            shown);
}

static dt_load_options load_options(const dt_parallelize_options *o)
{
    dt_load_options l = DT_LOAD_OPTIONS_INIT;

    l.keep_dtype = o->keep_dtype;
    l.dtype = o->dtype;
    l.dim = o->dim;
    l.plan = o->plan;
    l.policies = o->policies;
    l.n_policies = o->n_policies;
    l.sequence_parallel = o->sequence_parallel;
    l.progress = o->progress;
    l.progress_arg = o->progress_arg;
    l.batch_dim = o->batch_dim;
    l.fully_shard = o->fully_shard;
    l.weights = o->weights;
    l.offload = o->offload;
    l.plan_name = o->plan_name;
    return l;
}

/* --- what a rank was asked -------------------------------------------------------------------- */

/* The bytes of config.json: hosts may keep one model in different folders. */
static dt_status hash_config(const char *dir, uint64_t *hash)
{
    dt_status st = DT_OK;
    char *path = NULL;
    void *bytes = NULL;
    int64_t n = 0;

    DT_TRY(dti_ckpt_check_folder(dir));
    DT_TRY(dti_ckpt_path(dir, "config.json", &path));
    DT_TRY_TO(done, st, dti_input_read_all(path, DTI_JSON_CONFIG_BYTES, &bytes, &n));
    *hash = dti_hash_bytes(7, bytes, (size_t)n);
done:
    dti_free(bytes);
    dti_free(path);
    return st;
}

/* Judges a rank's own arguments and says them in `w`. */
static dt_status judge_alone(dt_runtime *rt, const char *dir, const dt_parallelize_options *o,
                             char spec[SPEC_BYTES], dti_word *w)
{
    const dt_load_options given = load_options(o);
    dt_load_options l;
    uint64_t config = 0;

    DT_CHECK(dir != NULL, DT_ERR_ARG, "dir is NULL");
    DT_CHECK(!dt_runtime_is_dry(rt), DT_ERR_UNSUPPORTED,
             "dt_parallelize() needs the ranks of a run; dt_model_check() judges a plan without");
    DT_TRY(dti_load_options_read(&given, &l));
    DT_CHECK((int)o->verbose >= 0 && o->verbose <= DT_VERBOSE_DETAIL, DT_ERR_ARG, "verbose is %d",
             (int)o->verbose);
    DT_TRY(check_size(rt, o, spec));
    DT_TRY(check_device(rt, o->device));
    DT_TRY(check_backend(rt, o->backend));
    DT_TRY(refuse_second(rt, dir));
    DT_TRY(hash_config(dir, &config));
    (void)snprintf(
        w->asked, sizeof w->asked,
        "mesh %s, dtype %s, dim %.24s, batch dim %.24s%s, plan %06llx, config.json %06llx", spec,
        o->keep_dtype ? "of the checkpoint" : dt_dtype_name(o->dtype), o->dim,
        o->batch_dim != NULL ? o->batch_dim : "none",
        o->sequence_parallel ? ", sequence parallel" : "",
        (unsigned long long)(dti_hash_plans(&l) & 0xffffff),
        (unsigned long long)(config & 0xffffff));
    w->hash = dti_hash_text(
        dti_hash_bytes(config, &(uint64_t){ dti_hash_plans(&l) }, sizeof(uint64_t)), w->asked);
    return DT_OK;
}

/* --- the call --------------------------------------------------------------------------------- */

static dt_status load(dt_runtime *rt, const char *dir, const char *spec,
                      const dt_parallelize_options *o, dt_model **out)
{
    const dt_load_options l = load_options(o);
    dt_model *model = NULL;
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dt_mesh_create(rt, spec, &mesh));
    st = dt_model_load(mesh, dir, &l, &model);
    DT_TRY_TO(done, st, dti_agree_on_model(rt, st, model));
    DT_TRY_TO(done, st, hold(rt, dir, model));
    DT_TRY_TO(done, st, dti_memory_report(model, backend_of(rt), (int)o->verbose));
    *out = model;
    model = NULL;
done:
    dt_model_release(&model);
    dt_mesh_release(&mesh);
    return dti_runtime_alone(rt, st);
}

dt_status dt_parallelize(dt_runtime *rt, const char *dir, const dt_parallelize_options *options,
                         dt_model **out)
{
    dt_parallelize_options own = DT_PARALLELIZE_OPTIONS_INIT;
    char spec[SPEC_BYTES] = "";
    dti_word w = { .status = DT_OK };

    if (out != NULL) *out = NULL;
    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    w.status = (int32_t)dti_options_read("dt_parallelize_options",
                                         "start from DT_PARALLELIZE_OPTIONS_INIT", options, &own,
                                         sizeof own);
    if (w.status == DT_OK) w.status = (int32_t)judge_alone(rt, dir, &own, spec, &w);
    if (w.status == DT_OK && out == NULL)
        w.status = (int32_t)dt_fail_at(DT_ERR_ARG, __func__, __FILE__, __LINE__, "out is NULL");
    if (w.status != DT_OK)
        (void)snprintf(w.message, sizeof w.message, "%s", dt_last_error()->message);
    if (dt_runtime_is_dry(rt))
        return dti_error_frame((dt_status)w.status, __func__, __FILE__, __LINE__);
    DT_TRY(dti_agree_on_words(rt, &w));
    DT_TRY(load(rt, dir, spec, &own, out));
    return DT_OK;
}
