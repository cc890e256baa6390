/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening the CUDA module, and whether that can be of use. */
#ifndef DTI_CUDA_LOAD_H
#define DTI_CUDA_LOAD_H

#include <dtensor/base.h>

#include "base/cuda_api.h"

/**
 * The module, which stays in the process for good. It opens on machines without a driver too: ask
 * its versions() for devices.
 *
 *   file    DTENSOR_CUDA_MODULE: the file of the module, or NULL: it is searched for
 *   folder  DTENSOR_MODULES: where it is looked for first, or NULL
 *
 * Not collective.
 * Errors  DT_ERR_UNSUPPORTED  there is none, it cannot be opened (the loader's words say why), or
 *                             belongs to another version of the library
 */
dt_status dti_cuda_load(const char *file, const char *folder,
                        const dti_cuda_module **out) DT_MUST_USE;

/* Whether this machine has a driver. Asking costs nothing where there is none, whereas opening the
 * module brings in CUDA's libraries. */
bool dti_cuda_has_driver(void);

#endif
