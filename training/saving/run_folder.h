/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder of checkpoints, opened on a rank, and the save under way. */
#ifndef DTI_RUN_FOLDER_H
#define DTI_RUN_FOLDER_H

#include <dtensor/training_checkpoints.h>

#include "training/behind.h"
#include "training/saving/manifest.h"
#include "training/saving/run_disk.h"
#include "training/saving/snapshot_files.h"

/* A save is in one phase on all ranks: what ends one they tell each other. */
typedef enum dti_save_phase {
    DTI_SAVE_NONE,
    DTI_SAVE_WRITING, /* each rank its files */
    DTI_SAVE_NAMING   /* the first rank the manifest and the names */
} dti_save_phase;

struct dt_run_folder {
    dt_mesh *mesh;
    dt_runtime *rt;
    bool first; /* this is the mesh's first rank */
    bool reads; /* opened to be read */
    int keep;
    bool direct;
    char *dir;
    char mesh_text[256];
    dti_facts facts;
    int64_t latest;
    dti_run_disk disk; /* the first rank's */

    dti_save_phase phase;
    dti_behind *behind;
    dti_snapshot snapshot; /* of the save under way */
    dti_rank_files files;
    dti_manifest_head head;
    char *json, *step_dir;

    dti_manifest loaded; /* the last that was read: what was handed out points into it */
};

/* What a run saves: parameters, and with an optimizer its state. */
dt_status dti_run_list(dti_snapshot *s, dt_layers *layers, dt_optimizer *optimizer,
                       bool wanted) DT_MUST_USE;

#endif
