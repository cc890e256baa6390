/* SPDX-License-Identifier: Apache-2.0
 *
 * Where modules lie: shared objects beside the library that are opened when a run needs them, for
 * MPI implementations and for CUDA. */
#ifndef DTI_MODULE_FILE_H
#define DTI_MODULE_FILE_H

#include <stdbool.h>

enum { DTI_MODULE_PATH_BYTES = 512 };

/* The file of module "dtensor_<name>.so": in `folder` if it is not NULL, beside the library if that
 * is a file of its own, or where modules were installed. False, and an empty path, if it lies in
 * none of them. */
bool dti_module_locate(const char *folder, const char *name, char path[DTI_MODULE_PATH_BYTES]);

/* The same of a program "dtensor_<name>", which lies beside them. */
bool dti_module_locate_program(const char *folder, const char *name,
                               char path[DTI_MODULE_PATH_BYTES]);

#endif
