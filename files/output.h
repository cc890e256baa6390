/* SPDX-License-Identifier: Apache-2.0
 *
 * A file that is written under another name until it is complete, so that a reader never sees half
 * of it. */
#ifndef DTI_OUTPUT_H
#define DTI_OUTPUT_H

#include "base/error.h"

typedef struct dti_output {
    const char *path; /* borrowed */
    char *temporary;
    int fd;     /* -1: not open */
    int64_t at; /* bytes written by dti_output_write() */
} dti_output;

/* Creates a temporary file beside `path`. `name` is its whole name, which must be free, or NULL for
 * one that is not used yet. On error there is nothing to close. */
dt_status dti_output_open(dti_output *out, const char *path, const char *name) DT_MUST_USE;

dt_status dti_output_write(dti_output *out, const void *data, size_t n) DT_MUST_USE;

/* Writes n bytes at offset `at` of an open file; `label` is its name in messages. */
dt_status dti_write_at(int fd, const char *label, const void *data, size_t n,
                       int64_t at) DT_MUST_USE;

/* A file in a folder that has no name, or loses it at once where a file system has none such. Not
 * two at a time of one `number` in a process. */
dt_status dti_output_nameless(const char *dir, int number, int *fd) DT_MUST_USE;

/* Brings the bytes to the disk; the file keeps its temporary name. */
dt_status dti_output_sync(const dti_output *out) DT_MUST_USE;

/* Brings the bytes to the disk and gives the file its name if `st` is DT_OK, otherwise removes it.
 * Returns the first error. */
dt_status dti_output_close(dti_output *out, dt_status st);

/* Brings the names in a folder to the disk. */
dt_status dti_folder_sync(const char *dir) DT_MUST_USE;

#endif
