/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind an open checkpoint. */
#ifndef DTI_CHECKPOINT_INTERNAL_H
#define DTI_CHECKPOINT_INTERNAL_H

#include "files/checkpoint.h"
#include "files/open_files.h"

typedef struct dti_ckpt_tensor {
    const dti_st_entry *entry;
    const dti_st_file *file;
} dti_ckpt_tensor;

struct dti_ckpt {
    char *folder;
    dti_st_file **files; /* NULL where one could not be opened: of faulty ones only */
    size_t n_files;
    dti_ckpt_tensor *tensors; /* sorted by name once the checkpoint is open */
    size_t n_tensors;
    int64_t bytes;
    dti_open_files *open; /* those of them that are */
    bool kept_some;       /* of the tensors: n_unused were forgotten, the first of which was */
    size_t n_unused;
    char *first_unused; /* or NULL */

    const dti_faults *faults; /* while it is opened, or NULL */
    char **bad;               /* names of tensors with faults */
    size_t n_bad, n_bad_room;
    size_t n_sorted; /* of them, from the first on */
    bool forgot;     /* one of them, for want of memory */
};

/* A dti_faults.fn, whose argument is the checkpoint: remembers the name and says the fault. */
void dti_ckpt_note(void *ckpt, const char *tensor, const char *text);

/* Remembers the name alone. dti_ckpt_is_faulty() knows of it once they are sorted. */
void dti_ckpt_note_name(dti_ckpt *ckpt, const char *tensor);
void dti_ckpt_sort_names(dti_ckpt *ckpt);

/* Opens one of its files; faults are noted where somebody wants to know of them. */
dt_status dti_ckpt_open_file(dti_ckpt *ckpt, const char *path, dti_st_file **out) DT_MUST_USE;

/* Opens the shards that the index file names and lists its tensors. */
dt_status dti_ckpt_open_index(dti_ckpt *ckpt, const char *index_path) DT_MUST_USE;

/* The error for a folder without weights: it says what is there instead. */
dt_status dti_ckpt_no_weights(const char *folder);

#endif
