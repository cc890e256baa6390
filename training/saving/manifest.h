/* SPDX-License-Identifier: Apache-2.0
 *
 * "training.json": what a checkpoint is of, and what its files hold. */
#ifndef DTI_MANIFEST_H
#define DTI_MANIFEST_H

#include <dtensor/training_checkpoints.h>

#include "base/facts.h"
#include "files/json.h"
#include "training/saving/snapshot.h"

#define DTI_MANIFEST_NAME "training.json"

/* What stands before the files and tensors. */
typedef struct dti_manifest_head {
    dt_run_progress progress;
    bool has_state;            /* of an optimizer */
    int64_t steps, good_steps; /* the optimizer's */
    double loss_scale;
    const char *mesh;       /* of those who saved, for humans: "dp=2,tp=2" */
    dti_facts facts, model; /* the caller's, and what of config.json makes the model another */
    const char *json;       /* the caller's object */
} dti_manifest_head;

/* Writes DIR/training.json and brings it to the disk. Errors: DT_ERR_IO, DT_ERR_MEMORY. */
dt_status dti_manifest_write(const char *dir, const dti_manifest_head *head,
                             const dti_snapshot *s) DT_MUST_USE;

/* A manifest that was read; head and snapshot point into it. */
typedef struct dti_manifest {
    char *path;
    dti_json_doc doc;
    dti_manifest_head head;
    dti_snapshot snapshot;
    char *json;
} dti_manifest;

/* Reads DIR/training.json; what it says of itself is checked, and that it has every element once.
 * Errors: DT_ERR_IO; DT_ERR_FORMAT names the file. On error there is nothing to free. */
dt_status dti_manifest_read(const char *dir, dti_manifest *out) DT_MUST_USE;
void dti_manifest_free(dti_manifest *m); /* accepts a zeroed one */

/* Text of the caller's: an object. */
dt_status dti_manifest_check_json(const char *json) DT_MUST_USE;

#endif
