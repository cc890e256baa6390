/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/surroundings.h>
#include <stdio.h>

#include "mesh/comm/mpi_region.h"
#include "mesh/gpu.h"
#include "mesh/launch.h"

/* --- processes -------------------------------------------------------------------------------- */

static void note(const dti_module_found *m, dt_join *out)
{
    *out = (dt_join){ .name = m->name, .usable = m->module != NULL };
    (void)snprintf(out->path, sizeof out->path, "%s", m->path);
    (void)snprintf(out->library, sizeof out->library, "%s", m->library);
}

/* The choice that a run would make, with its reason, or why it could not run. */
static void choose(const dti_launch *launch, dt_launch_info *out)
{
    dti_module_found found;

    if (launch->n_processes == 1) {
        out->chosen = "threads";
        (void)snprintf(out->why, sizeof out->why, "%s%s",
                       launch->launcher != NULL ? launch->launcher : "no launcher",
                       launch->launcher != NULL ? " started this process alone"
                                                : " started this process");
        return;
    }
    if (dti_module_choose(launch, &found) != DT_OK) {
        (void)snprintf(out->why, sizeof out->why, "%s", dt_last_error()->message);
        return;
    }
    out->chosen = found.name;
    (void)snprintf(out->why, sizeof out->why, "%s started %d processes%s", launch->launcher,
                   launch->n_processes,
                   launch->choice != NULL ? ", and DTENSOR_MPI chooses it" : "");
}

void dt_launch_look(dt_launch_info *out)
{
    const dt_error before = *dt_last_error();
    dti_module_found found;
    dti_launch launch;
    bool sane;

    *out = (dt_launch_info){ .process = 0 };
    out->can_share = dti_mpi_region_possible(out->share_why);
    sane = dti_launch_read(&launch) == DT_OK;
    if (!sane) (void)snprintf(out->why, sizeof out->why, "%s", dt_last_error()->message);
    out->process = launch.process;
    out->n_processes = launch.n_processes;
    out->launcher = launch.launcher;
    out->variable = launch.variable;
    out->wants_shared = launch.shares;
    out->sums_by_mpi = launch.sums_by_mpi && launch.n_processes > 1;
    for (const char *const *name = dti_module_names(); *name != NULL; name++) {
        if (out->n_joins == DT_MAX_JOINS) break;
        dti_module_find(&launch, *name, &found);
        note(&found, &out->joins[out->n_joins++]);
    }
    if (sane) choose(&launch, out);
    dti_error_restore(&before);
}

/* --- GPUs ------------------------------------------------------------------------------------- */

/* What does not fit, in words, or NULL. Within one major version newer libraries serve older
 * programs, and drivers serve all programs that are not newer. */
static const char *misfit(const dti_cuda_versions *v)
{
    if (v->driver > 0 && v->driver / 1000 < v->runtime / 1000)
        return "the driver is older than the CUDA runtime: install a newer driver";
    if (v->nccl_built > 0 && v->nccl_loaded > 0 && v->nccl_loaded < v->nccl_built)
        return "the NCCL that is found is older than the one that was built with";
    return NULL;
}

static void look_at(const dti_cuda_module *module, int i, dt_gpu_found *out)
{
    dti_cuda_properties p;

    *out = (dt_gpu_found){ .major = 0 };
    if (module->properties(i, &p) != 0) {
        (void)snprintf(out->name, sizeof out->name, "cannot be asked: %.90s", module->why());
        return;
    }
    (void)snprintf(out->name, sizeof out->name, "%s", p.name);
    (void)snprintf(out->pci, sizeof out->pci, "%s", p.pci);
    out->major = p.major;
    out->minor = p.minor;
    out->n_sms = p.n_sms;
    out->bytes = (int64_t)p.bytes;
    out->free_bytes = (int64_t)p.free_bytes;
}

void dt_gpus_look(dt_gpus *out)
{
    const dt_error before = *dt_last_error();
    const dti_cuda_module *module;
    dti_cuda_versions v;

    *out = (dt_gpus){ .built_in = dti_gpu_module(&module) == DT_OK };
    if (!out->built_in) {
        (void)snprintf(out->why, sizeof out->why, "%s", dt_last_error()->message);
        dti_error_restore(&before);
        return;
    }
    module->versions(&v);
    (void)snprintf(out->why, sizeof out->why, "%s", v.no_device);
    out->runtime = v.runtime;
    out->driver = v.driver;
    out->cublas_lt = v.cublas_lt;
    out->nccl_built = v.nccl_built;
    out->nccl = v.nccl_loaded;
    out->misfit = misfit(&v);
    for (int i = 0; i < v.n_devices && out->n < DT_MAX_GPUS; i++)
        look_at(module, i, &out->each[out->n++]);
}
