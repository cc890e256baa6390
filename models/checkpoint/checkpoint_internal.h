/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind an open checkpoint. */
#ifndef DTI_CHECKPOINT_INTERNAL_H
#define DTI_CHECKPOINT_INTERNAL_H

#include "models/checkpoint/checkpoint.h"

typedef struct dti_ckpt_tensor {
    const dti_st_entry *entry;
    const dti_st_file *file;
} dti_ckpt_tensor;

struct dti_ckpt {
    char *folder;
    dti_st_file **files;
    size_t n_files;
    dti_ckpt_tensor *tensors; /* sorted by name once the checkpoint is open */
    size_t n_tensors;
    int64_t bytes;
};

/* Opens the shards that the index file names and lists its tensors. */
dt_status dti_ckpt_open_index(dti_ckpt *ckpt, const char *index_path) DT_MUST_USE;

/* The error for a folder without weights: it says what is there instead. */
dt_status dti_ckpt_no_weights(const char *folder);

#endif
