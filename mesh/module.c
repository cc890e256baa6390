/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding and opening the modules that speak MPI. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mesh/launch.h"

/* Where an installation has its modules. */
#ifndef DT_MODULE_DIR
#define DT_MODULE_DIR ""
#endif

enum { PATH_BYTES = DTI_LAUNCH_TEXT_BYTES };

const char *const *dti_module_names(void)
{
    static const char *const names[] = { "openmpi", "mpich", "sockets", NULL };

    return names;
}

/* "folder/of/file" + "/" + rest; false if it does not fit or `file` has no folder. */
static bool beside(const char *file, const char *rest, char path[PATH_BYTES])
{
    const char *slash = strrchr(file, '/');
    int n;

    if (slash == NULL) return false;
    n = snprintf(path, PATH_BYTES, "%.*s/%s", (int)(slash - file), file, rest);
    return n > 0 && n < PATH_BYTES;
}

/* The k-th place where modules may lie: as told, beside the library if it is shared, relative to
 * the program as in a build tree or a moved installation, where they were installed. */
static bool folder_at(const dti_launch *launch, int k, char path[PATH_BYTES])
{
    char program[PATH_BYTES] = "";
    Dl_info info;
    int n = 0;

    switch (k) {
    case 0:
        if (launch->folder != NULL) n = snprintf(path, PATH_BYTES, "%s", launch->folder);
        return n > 0 && n < PATH_BYTES;
    case 1:
        return dladdr((const void *)(uintptr_t)dti_module_names, &info) != 0 &&
               info.dli_fname != NULL && beside(info.dli_fname, "dtensor", path);
    case 2:
        if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return false;
        return beside(program, "../lib/dtensor", path);
    default:
        n = snprintf(path, PATH_BYTES, "%s", DT_MODULE_DIR);
        return n > 0 && n < PATH_BYTES;
    }
}

static bool locate(const dti_launch *launch, const char *name, char path[PATH_BYTES])
{
    enum { N_FOLDERS = 4 };
    char folder[PATH_BYTES];

    for (int k = 0; k < N_FOLDERS; k++) {
        int n;
        if (!folder_at(launch, k, folder)) continue;
        n = snprintf(path, PATH_BYTES, "%s/dtensor_%s.so", folder, name);
        if (n > 0 && n < PATH_BYTES && access(path, R_OK) == 0) return true;
    }
    path[0] = '\0';
    return false;
}

void dti_module_find(const dti_launch *launch, const char *name, dti_module_found *out)
{
    const dti_mpi_module *module;
    void *handle;

    *out = (dti_module_found){ .name = name };
    if (!locate(launch, name, out->path)) {
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
    DT_CHECK(launch->can_join || launch->choice != NULL, DT_ERR_UNSUPPORTED,
             "%s is %d: this is one of several processes started by %s, which can be joined if it "
             "says each one's RANK and they are on one machine (LOCAL_WORLD_SIZE); start them with "
             "mpirun, or start one process (its ranks are threads)",
             launch->variable, launch->n_processes, launch->launcher);
    for (const char *const *name = dti_module_names(); *name != NULL; name++) {
        const size_t used = strlen(tried);
        if (wanted != NULL && strcmp(*name, wanted) != 0) continue;
        if (wanted == NULL && strcmp(*name, "sockets") == 0) continue; /* speaks torchrun's only */
        dti_module_find(launch, *name, out);
        if (out->module != NULL) return DT_OK;
        (void)snprintf(tried + used, sizeof tried - used, "%s%s %s", used ? "; " : "", *name,
                       out->library);
    }
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "%s is %d: this is one of several processes started by %s, and no MPI can join them "
            "(%s); build with that MPI and start with its mpirun, or start one process (its ranks "
            "are threads)",
            launch->variable, launch->n_processes, launch->launcher, tried);
}
