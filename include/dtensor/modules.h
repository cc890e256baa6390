/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules: shared objects of a user that add styles, operators, kinds of layers and architectures
 * to a program that was built without them, such as the command (`dtensor generate --load
 * ./mine.so`). A module is a source file with
 *
 *   static dt_status add_mine(dt_runtime *rt) { return dt_arch_register(rt, &mine); }
 *   DT_MODULE(add_mine)
 *
 * compiled with "cc -shared -fPIC mine.c -o mine.so" and the flags of the package; it is linked to
 * nothing, the program that opens it has the library. Opening one runs its code: paths come from
 * the user, never from a checkpoint or a search path. */
#ifndef DT_MODULES_H
#define DT_MODULES_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a module exports: the version of the headers it was compiled with, and what it adds to a
 * runtime. */
#define DT_MODULE(setup)                                             \
    DT_API int dt_module_version(void);                              \
    DT_API dt_status dt_module_setup(dt_runtime *rt);                \
    int dt_module_version(void)                                      \
    {                                                                \
        return DT_VERSION_MAJOR * 1000000 + DT_VERSION_MINOR * 1000; \
    }                                                                \
    dt_status dt_module_setup(dt_runtime *rt)                        \
    {                                                                \
        return setup(rt);                                            \
    }

typedef struct dt_module dt_module;

/**
 * Opens a module. It stays in the process for good: what it registers is code.
 *
 *   path  with a "/", so that no search path decides: "./mine.so"
 *
 * Not collective; processes of a run open the same module each.
 * Ownership   *out is released with dt_module_release(), which forgets the handle alone.
 * Errors      DT_ERR_ARG          a path without "/"
 *             DT_ERR_IO           no regular file, or none that the loader takes; its words
 *             DT_ERR_UNSUPPORTED  no DT_MODULE() in it, or compiled for another version
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_module_open(const char *path, dt_module **out);
DT_API void dt_module_release(dt_module **module); /* accepts NULL */

/**
 * Lets a module add what it has to a runtime: in dt_run_options.setup, or in rank_main before
 * anything is looked up by name.
 *
 * Collective  no communication; every rank adds the same.
 * Errors      those of the module, with its path before the message
 */
DT_API DT_MUST_USE dt_status dt_module_add(dt_runtime *rt, const dt_module *module);

#ifdef __cplusplus
}
#endif
#endif
