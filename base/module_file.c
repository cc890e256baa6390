/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr */
#include "base/module_file.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Where an installation has its modules. */
#ifndef DT_MODULE_DIR
#define DT_MODULE_DIR ""
#endif

enum { PATH_BYTES = DTI_MODULE_PATH_BYTES };

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
static bool folder_at(const char *told, int k, char path[PATH_BYTES])
{
    char program[PATH_BYTES] = "";
    Dl_info info;
    int n = 0;

    switch (k) {
    case 0:
        if (told != NULL) n = snprintf(path, PATH_BYTES, "%s", told);
        return n > 0 && n < PATH_BYTES;
    case 1:
        return dladdr((const void *)(uintptr_t)dti_module_locate, &info) != 0 &&
               info.dli_fname != NULL && beside(info.dli_fname, "dtensor", path);
    case 2:
        if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return false;
        return beside(program, "../lib/dtensor", path);
    default:
        n = snprintf(path, PATH_BYTES, "%s", DT_MODULE_DIR);
        return n > 0 && n < PATH_BYTES;
    }
}

bool dti_module_locate(const char *folder, const char *name, char path[DTI_MODULE_PATH_BYTES])
{
    enum { N_FOLDERS = 4 };
    char at[PATH_BYTES];

    for (int k = 0; k < N_FOLDERS; k++) {
        int n;
        if (!folder_at(folder, k, at)) continue;
        n = snprintf(path, PATH_BYTES, "%s/dtensor_%s.so", at, name);
        if (n > 0 && n < PATH_BYTES && access(path, R_OK) == 0) return true;
    }
    path[0] = '\0';
    return false;
}
