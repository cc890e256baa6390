/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* dladdr1 */
#include "base/module_file.h"

#include <dlfcn.h>
#include <link.h>
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

/* The file of the library if it is one. Where it is part of the program, what lies beside that, or
 * beside what argv[0] says, is nobody's business here: who can write there need not be trusted. */
static const char *own_file(void)
{
    struct link_map *map = NULL;
    Dl_info info;

    if (!dladdr1((const void *)(uintptr_t)dti_module_locate, &info, (void **)&map, RTLD_DL_LINKMAP))
        return NULL;
    return map != NULL ? map->l_name : NULL; /* "" of a program */
}

/* The k-th place where modules may lie: as told, beside the library if it is shared, where they
 * were installed. */
static bool folder_at(const char *told, int k, char path[PATH_BYTES])
{
    const char *own;
    int n = 0;

    switch (k) {
    case 0:
        if (told != NULL) n = snprintf(path, PATH_BYTES, "%s", told);
        return n > 0 && n < PATH_BYTES;
    case 1:
        own = own_file();
        return own != NULL && beside(own, "dtensor", path);
    default:
        n = snprintf(path, PATH_BYTES, "%s", DT_MODULE_DIR);
        return n > 0 && n < PATH_BYTES;
    }
}

/* "dtensor_<name><end>" in one of them. */
static bool locate(const char *folder, const char *name, const char *end, int mode,
                   char path[PATH_BYTES])
{
    enum { N_FOLDERS = 3 };
    char at[PATH_BYTES];

    for (int k = 0; k < N_FOLDERS; k++) {
        int n;
        if (!folder_at(folder, k, at)) continue;
        n = snprintf(path, PATH_BYTES, "%s/dtensor_%s%s", at, name, end);
        if (n > 0 && n < PATH_BYTES && access(path, mode) == 0) return true;
    }
    path[0] = '\0';
    return false;
}

bool dti_module_locate(const char *folder, const char *name, char path[DTI_MODULE_PATH_BYTES])
{
    return locate(folder, name, ".so", R_OK, path);
}

bool dti_module_locate_program(const char *folder, const char *name,
                               char path[DTI_MODULE_PATH_BYTES])
{
    return locate(folder, name, "", X_OK, path);
}
