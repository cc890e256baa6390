/* SPDX-License-Identifier: Apache-2.0
 *
 * What each dim of a mesh is for: layers are cut over one, batches over others, and rules of a plan
 * may speak of any. */
#ifndef DTI_MESH_DIMS_H
#define DTI_MESH_DIMS_H

#include <dtensor/models.h>

/* Names and sizes of a mesh, which need not be there yet. */
typedef struct dti_dims {
    int n;
    int size[DT_MAX_DIMS];
    char name[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
} dti_dims;

dti_dims dti_dims_of(const dt_mesh *mesh);

/* Refuses a dim of several ranks that nothing uses: they would all hold and compute the same. */
dt_status dti_dims_check(const dti_dims *dims, const dt_load_options *o) DT_MUST_USE;

/* The dims (bits) of several ranks that cut batches: those that the options name for it, unless
 * styles lay out values on them, as on options.dim and dims that rules name. Styles that do no more
 * than to cut what is stored leave them to batches. */
uint32_t dti_dims_batch(const dti_dims *dims, const dt_load_options *o);

/* Those of several ranks that the options name for batches, and that styles keep from it. */
uint32_t dti_dims_kept(const dti_dims *dims, const dt_load_options *o);

#endif
