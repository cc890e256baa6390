/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind a loaded model. */
#ifndef DTI_MODEL_H
#define DTI_MODEL_H

#include <dtensor/architectures.h>

#include "base/memory.h"
#include "models/load/stages.h"

/* "model.layers.3": of a block, and of its scope on tapes. */
typedef struct dti_block_name {
    char text[48];
} dti_block_name;

struct dt_model {
    int refs; /* the caller's and one per state; a model belongs to its rank's thread */
    const dt_arch *arch;
    void *self;
    char *folder;                             /* that it was loaded from; NULL: none */
    struct dti_beside *beside;                /* what lay there beside weights; NULL: no folder */
    bool parallelized;                        /* by dt_parallelize(), whose list it is on */
    struct dti_generation_config *generation; /* NULL: could not be read */
    dt_model_info info;
    dt_mesh *mesh;
    dt_mesh *here; /* of this rank's stages; the whole mesh where there are none. Borrowed */
    dti_stages stages;
    dt_layers *layers;
    dti_block_name *block_names; /* [n_layers] */
    uint32_t batch_dims;         /* bit m: batches are cut over mesh dim m, outer ones first */
    uint32_t kept_dims;          /* over which they would be, but for styles that lay out values */
    bool said_idle;              /* that a batch is too small for them */
};

#endif
