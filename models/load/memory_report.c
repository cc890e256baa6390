/* SPDX-License-Identifier: Apache-2.0
 *
 * What every rank holds of a model, gathered and told. */
#include <dtensor/devices.h>
#include <dtensor/parallelize.h>

#include "dtensor/device/device.h"
#include "dtensor/kernels/kernel.h"
#include "mesh/runtime.h"
#include "models/load/load.h"

/* Weights of which this rank has a part, and those that it has whole. */
static void count_weights(const dt_model *m, dt_rank_memory *out)
{
    for (int i = 0; i < dt_layers_count(m->layers); i++) {
        const dt_layer *layer = dt_layers_at(m->layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_tensor *x = dt_layer_param(layer, p);
            int64_t local, global = 1;
            if (x == NULL || !dt_layer_holds_param(layer, p)) continue;
            local = dti_local_count(dt_tensor_local(x));
            for (int a = 0; a < dt_tensor_n_axes(x); a++) global *= dt_tensor_extent(x, a);
            *(local == global ? &out->whole_bytes : &out->cut_bytes) +=
                local * (int64_t)dt_dtype_size(dt_tensor_dtype(x));
        }
    }
}

/* Every rank's `mine`, of `bytes` bytes. */
static dt_status gather(dt_mesh *mesh, const void *mine, size_t bytes, void *all)
{
    const int n = dt_mesh_n_ranks(mesh);
    dt_status st = DT_OK;
    int64_t *counts;
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &comm));
    DT_TRY(dti_alloc_array((size_t)n, sizeof *counts, (void **)&counts));
    for (int r = 0; r < n; r++) counts[r] = (int64_t)bytes;
    st = dti_all_gather(comm, mine, all, counts, NULL, DT_U8);
    dti_free(counts);
    DT_TRY(st);
    return DT_OK;
}

/* The memory of this rank's device; *out NULL: the rank is no member, and has nothing to tell. */
static dt_status own_memory(const dt_model *model, const void *ranks, const dti_memory **out)
{
    dti_device *device;

    *out = NULL;
    DT_CHECK(model != NULL, DT_ERR_ARG, "model is NULL");
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(model->mesh)), DT_ERR_UNSUPPORTED,
             "a model on a dry mesh has no memory; \"dtensor plan\" predicts what it would have");
    if (!dt_mesh_is_member(model->mesh)) return DT_OK;
    DT_CHECK(ranks != NULL, DT_ERR_ARG, "ranks is NULL");
    DT_TRY(dti_device_of(dt_mesh_runtime(model->mesh), &device));
    *out = device->memory;
    return DT_OK;
}

dt_status dt_model_memory(dt_model *model, dt_rank_memory *ranks)
{
    dt_rank_memory mine = { 0 };
    const dti_memory *memory;

    DT_TRY(own_memory(model, ranks, &memory));
    if (memory == NULL) return DT_OK;
    mine.rank = dt_runtime_rank(dt_mesh_runtime(model->mesh));
    count_weights(model, &mine);
    mine.allocated_bytes = (int64_t)dti_memory_used(memory);
    mine.peak_bytes = (int64_t)dti_memory_peak(memory);
    mine.reserved_bytes = (int64_t)dti_memory_held(memory);
    DT_TRY(gather(model->mesh, &mine, sizeof mine, ranks));
    return DT_OK;
}

dt_status dt_model_memory_kinds(dt_model *model, dt_rank_memory_kinds *ranks)
{
    dt_rank_memory_kinds mine = { 0 };
    const dti_memory *memory;

    DT_TRY(own_memory(model, ranks, &memory));
    if (memory == NULL) return DT_OK;
    mine.rank = dt_runtime_rank(dt_mesh_runtime(model->mesh));
    mine.weights_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_WEIGHTS);
    mine.caches_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_CACHES);
    mine.states_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_STATES);
    mine.recorded_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_RECORDED);
    mine.values_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_VALUES);
    mine.gathered_bytes = (int64_t)dti_memory_of_kind(memory, DTI_KIND_GATHERED);
    DT_TRY(gather(model->mesh, &mine, sizeof mine, ranks));
    return DT_OK;
}

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

dt_status dti_memory_report(dt_model *m, const char *backend, int verbose)
{
    dt_runtime *rt = dt_mesh_runtime(m->mesh);
    dt_rank_memory *ranks = NULL;
    const int n = dt_mesh_n_ranks(m->mesh);
    char mesh[128];
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *ranks, (void **)&ranks));
    DT_TRY_TO(done, st, dt_model_memory(m, ranks));
    if (dt_runtime_rank(rt) != 0 || verbose == DT_VERBOSE_NONE) goto done;
    (void)dt_mesh_print(m->mesh, mesh, sizeof mesh);
    if (verbose == DT_VERBOSE_DETAIL)
        dti_runtime_log(rt, DT_LOG_INFO,
                        "%s: %s of %lld layers in %s on mesh %s, device %s, backend %s", m->folder,
                        m->info.model_type, (long long)m->info.n_layers,
                        dt_dtype_name(m->info.dtype), mesh, dt_device_of(rt), backend);
    for (int r = 0; r < n; r++) {
        const dt_rank_memory *x = &ranks[r];
        if (verbose == DT_VERBOSE_SIMPLE)
            dti_runtime_log(rt, DT_LOG_INFO, "rank %d: %.2f MiB allocated, %.2f MiB reserved",
                            x->rank, mib(x->allocated_bytes), mib(x->reserved_bytes));
        else
            dti_runtime_log(rt, DT_LOG_INFO,
                            "rank %d: %.2f MiB allocated (most: %.2f), %.2f MiB reserved; weights: "
                            "%.2f MiB cut, %.2f MiB whole",
                            x->rank, mib(x->allocated_bytes), mib(x->peak_bytes),
                            mib(x->reserved_bytes), mib(x->cut_bytes), mib(x->whole_bytes));
    }
done:
    dti_free(ranks);
    return st;
}
