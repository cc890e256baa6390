/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between meshes, as the tape records them. */
#ifndef DTI_COPY_TO_H
#define DTI_COPY_TO_H

#include <dtensor/tensor.h>

#include "base/error.h"

/* Words of 8 bytes that the ranks of both meshes reduce before a copy, so that all plan alike. */
enum { DTI_COPY_WORDS = 2 + 2 * DT_MAX_DIMS };

/* dt_copy_to() of arguments that are not NULL; what this rank receives is added to `counters`,
 * NULL: nobody counts. */
dt_status dti_copy_to(dt_tensor *x, dt_mesh *mesh, const dt_placement *want,
                      dt_comm_counter *counters, dt_tensor **y) DT_MUST_USE;

#endif
