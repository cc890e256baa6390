/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of which a few are open at a time: a model may have more of them than a process may open.
 * Threads share a set; who reads a file has it open as long as he reads. */
#ifndef DTI_OPEN_FILES_H
#define DTI_OPEN_FILES_H

#include "files/input.h"

typedef struct dti_open_files dti_open_files;
typedef struct dti_open_file dti_open_file;

/* `most` are open where nobody reads; more while more are read at once. */
dt_status dti_open_files_create(int most, dti_open_files **out) DT_MUST_USE;
void dti_open_files_free(dti_open_files **files); /* without members; accepts NULL */
int dti_open_files_count(dti_open_files *files);  /* that are open now */

/* A file that was opened as `in` becomes a member, which closes it when it has to. */
dt_status dti_open_file_add(dti_open_files *files, const char *path, dti_input *in,
                            dti_open_file **out) DT_MUST_USE;
void dti_open_file_remove(dti_open_file **file); /* nobody reads it; accepts NULL */

/* Its descriptor, until it is given back. Errors: DT_ERR_IO it cannot be opened again, or another
 * file has taken its place. */
dt_status dti_open_file_take(dti_open_file *file, int *fd) DT_MUST_USE;
void dti_open_file_give(dti_open_file *file);

#endif
