/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind a mesh. */
#ifndef DTI_MESH_INTERNAL_H
#define DTI_MESH_INTERNAL_H

#include <stdatomic.h>

#include "mesh/runtime.h"

struct dt_mesh {
    _Atomic int refs;
    dt_runtime *rt;
    int n_dims;
    int n_ranks;
    int place; /* of this rank, row-major; -1 for outsiders */
    int64_t timeout_ms;
    int size[DT_MAX_DIMS];
    int coord[DT_MAX_DIMS]; /* -1 for outsiders */
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int *ranks;       /* [n_ranks] world rank at each place */
    dti_comm **comms; /* [1 << n_dims] by the bits of dims, NULL until first used; borrowed */
};

/* A mesh of these dims over a copy of `ranks`, which are valid. */
dt_status dti_mesh_make(dt_runtime *rt, int n_dims, char names[][DT_DIM_NAME_BYTES],
                        const int *sizes, const int *ranks, dt_mesh **out) DT_MUST_USE;

/* Row-major strides of the places along each dim. */
void dti_mesh_strides(const dt_mesh *mesh, int *stride);

/* The places of the dims in `dims` (bits), at the coordinates `coord` of the others, row-major:
 * writes the world ranks and returns their number. */
int dti_mesh_fiber(const dt_mesh *mesh, uint32_t dims, const int *coord, int *world_ranks);

#endif
