/* SPDX-License-Identifier: Apache-2.0
 *
 * Public configuration structs of several versions of the library: each begins with its own size,
 * new fields come at the end. */
#ifndef DTI_OPTIONS_H
#define DTI_OPTIONS_H

#include "base/error.h"

/* Lays a caller's struct over the defaults in `to` (of to_bytes, which then stands in its size
 * field too). A shorter struct comes from a caller compiled against an older version: fields that
 * it lacks keep their defaults. A longer one comes from a newer version and is accepted if what is
 * not known here is zero. `from` may be NULL. `name` and `init` are for messages: "dt_run_options",
 * "start from DT_RUN_OPTIONS_INIT".
 *
 * Errors: DT_ERR_ARG for a size that no version has, or for a field that is not known here. */
dt_status dti_options_read(const char *name, const char *init, const void *from, void *to,
                           size_t to_bytes) DT_MUST_USE;

#endif
