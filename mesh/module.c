/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and opening the modules that speak MPI. */
#include <dtensor/mesh.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/module_file.h"
#include "mesh/launch.h"

_Static_assert((int)DTI_MODULE_PATH_BYTES == (int)DTI_LAUNCH_TEXT_BYTES, "paths of modules");

const char *const *dti_module_names(void)
{
    static const char *const names[] = { "openmpi", "mpich", "sockets", NULL };

    return names;
}

void dti_module_find(const dti_launch *launch, const char *name, dti_module_found *out)
{
    const dti_mpi_module *module;
    void *handle;

    *out = (dti_module_found){ .name = name };
    if (!dti_module_locate(launch->folder, name, out->path)) {
        (void)snprintf(out->library, sizeof out->library,
                       "not found: this build has no module "
                       "for it");
        return;
    }
    handle = dlopen(out->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        (void)snprintf(out->library, sizeof out->library, "cannot be opened: %s", dlerror());
        return;
    }
    module = dlsym(handle, DTI_MPI_MODULE_SYMBOL);
    if (module == NULL || module->version != DTI_MPI_API_VERSION) {
        (void)snprintf(out->library, sizeof out->library,
                       "is a module of another version of dtensor");
        return;
    }
    module->describe(out->library);
    out->module = module;
}

static dt_status check_choice(const dti_launch *launch)
{
    const char *const *names = dti_module_names();

    if (launch->choice == NULL) return DT_OK;
    DT_CHECK(strcmp(launch->choice, "off") != 0, DT_ERR_UNSUPPORTED,
             "%s is %d: this is one of several processes, but DTENSOR_MPI=off; unset it, or start "
             "one process without mpirun (its ranks are threads)",
             launch->variable, launch->n_processes);
    while (*names != NULL && strcmp(*names, launch->choice) != 0) names++;
    DT_CHECK(*names != NULL, DT_ERR_ARG,
             "DTENSOR_MPI is \"%s\"; choose openmpi, mpich, sockets or off, or leave it to the "
             "launcher",
             launch->choice);
    return DT_OK;
}

dt_status dti_module_choose(const dti_launch *launch, dti_module_found *out)
{
    const char *wanted = launch->choice != NULL ? launch->choice : launch->module;
    char tried[2 * DTI_LAUNCH_TEXT_BYTES] = "";

    DT_TRY(check_choice(launch));
    DT_CHECK(launch->joined_if == NULL || launch->choice != NULL, DT_ERR_UNSUPPORTED,
             "%s is %d: this is one of several processes started by %s, which can be joined if "
             "%s; start them with mpirun, or start one process (its ranks are threads)",
             launch->variable, launch->n_processes, launch->launcher, launch->joined_if);
    for (const char *const *name = dti_module_names(); *name != NULL; name++) {
        const size_t used = strlen(tried);
        if (strcmp(*name, wanted) != 0) continue;
        dti_module_find(launch, *name, out);
        if (out->module != NULL) return DT_OK;
        (void)snprintf(tried + used, sizeof tried - used, "%s%s %s", used ? "; " : "", *name,
                       out->library);
    }
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "%s is %d: this is one of several processes started by %s, and nothing can join them "
            "(%s); name the folder of the module by DTENSOR_MODULES, build with that MPI and start "
            "with its mpirun, or start one process (its ranks are threads)",
            launch->variable, launch->n_processes, launch->launcher, tried);
}

/* The module that hears whether this process comes, or NULL: without MPI in any case, an MPI's only
 * where its launcher has to be told that it does not. A question leaves no error behind. */
static const dti_mpi_module *who_hears(bool comes, dti_launch *launch)
{
    const dt_error before = *dt_last_error();
    dti_module_found found = { 0 };
    const char *wanted;

    if (dti_launch_read(launch) == DT_OK && launch->n_processes > 1) {
        wanted = launch->choice != NULL ? launch->choice : launch->module;
        if (wanted == NULL || (strcmp(wanted, "sockets") != 0 && (comes || launch->pmi < 0)) ||
            dti_module_choose(launch, &found) != DT_OK)
            found.module = NULL;
    }
    dti_error_restore(&before);
    return found.module;
}

void dt_launch_arrive(void)
{
    dti_launch launch;
    const dti_mpi_module *m = who_hears(true, &launch);

    if (m != NULL) m->arrive();
}

void dt_launch_give_up(const char *why)
{
    dti_launch launch;
    const dti_mpi_module *m = why != NULL ? who_hears(false, &launch) : NULL;

    if (m != NULL) m->stay_away(launch.pmi, why);
}
