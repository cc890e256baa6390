/* SPDX-License-Identifier: Apache-2.0
 *
 * A model in stages: runs of its parts (embed, blocks, head), each on the ranks of one coordinate
 * of a mesh dim. A layer's stage is the mesh that it lies on; the rest follows from that. */
#ifndef DTI_STAGES_H
#define DTI_STAGES_H

#include <dtensor/models.h>

#include "models/describe/describe.h"

/* One stage: blocks first .. first + n - 1, maybe none. */
typedef struct dti_stage {
    int place; /* of its ranks on the dim */
    bool embeds, heads;
    int64_t first, n;
} dti_stage;

typedef struct dti_stages {
    int n;                      /* 1: the model is in one piece */
    int dim;                    /* of the mesh */
    int token_dim;              /* mesh dim that cuts tokens between blocks; -1: none does */
    int n_meshes;               /* 0: all of it lies on the whole mesh */
    dti_stage *stage;           /* [n] */
    dt_mesh **meshes;           /* [n_meshes], by place on the dim */
    struct dt_channel **before; /* [n]: which stage i gets its x by; NULL: it is on the ranks of the
                                 * one before it, or none of this rank's affairs */
    struct dt_channel *result;  /* from the last stage to all; NULL: they are its ranks */
} dti_stages;

/* Cuts a described model for a mesh, and says of each layer which stage's mesh it lies on. */
dt_status dti_stages_cut(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                         dti_stages *out) DT_MUST_USE;

/* What dti_stages_cut() would refuse. */
dt_status dti_stages_check(const dti_described *d, const dt_mesh *mesh,
                           const dt_load_options *o) DT_MUST_USE;
void dti_stages_free(dti_stages *s);

/* Opens the ways from stage to stage. Collective over the mesh. */
dt_status dti_stages_open(dti_stages *s, dt_mesh *mesh) DT_MUST_USE;

/* The mesh that this rank's stages lie on; the whole mesh where there are none, and for outsiders.
 */
dt_mesh *dti_stages_here(const dti_stages *s, dt_mesh *mesh);

/* The dim that stages are cut over, if it has several ranks here or several stages are asked for;
 * -1: there are none. */
int dti_stages_dim(const dt_mesh *mesh, const dt_load_options *o);

#endif
