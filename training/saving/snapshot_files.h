/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a snapshot that one rank writes. */
#ifndef DTI_SNAPSHOT_FILES_H
#define DTI_SNAPSHOT_FILES_H

#include <stdatomic.h>

#include "files/safetensors.h"
#include "training/saving/snapshot.h"

/* A box on its way into a file. */
typedef struct dti_part_of_file {
    const dti_stored_tensor *tensor;
    const dti_stored_box *box;
    int64_t at, bytes; /* in the file */
} dti_part_of_file;

typedef struct dti_rank_file {
    size_t number;           /* among the snapshot's files */
    char *path;              /* where it is written */
    dti_part_of_file *parts; /* [n] in the order of the file */
    size_t n, room;
    dti_st_file_plan plan;
    void *image; /* all that it will be; NULL: taken from the tensors while it is written */
} dti_rank_file;

typedef struct dti_rank_files {
    dti_rank_file *files; /* [n] */
    size_t n;
    int64_t bytes; /* of all */
    void *image;   /* of all, one after the other */
    size_t room;   /* of the image, which is kept for the next snapshot */
    dti_snapshot *of;
} dti_rank_files;

/* What the rank at `place` writes of s, which stays as it is as long, into the folder `dir`. */
dt_status dti_rank_files_plan(dti_rank_files *f, dti_snapshot *s, int place,
                              const char *dir) DT_MUST_USE;

/* Copies all values: the tensors may change from then on. */
dt_status dti_rank_files_copy(dti_rank_files *f) DT_MUST_USE;

/* Writes all files and brings them to the disk; their bytes and checksums stand in the snapshot
 * then. Errors: DT_ERR_IO, also when it was cancelled. */
dt_status dti_rank_files_write(dti_rank_files *f, const atomic_bool *cancelled) DT_MUST_USE;

void dti_rank_files_clear(dti_rank_files *f); /* keeps the room of the image */
void dti_rank_files_free(dti_rank_files *f);

#endif
