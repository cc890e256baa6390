/* SPDX-License-Identifier: Apache-2.0
 *
 * A file that is read at chosen offsets: weights, and the small JSON files beside them. */
#ifndef DTI_INPUT_H
#define DTI_INPUT_H

#include <sys/types.h>

#include "base/error.h"
#include "base/text.h"

enum { DTI_INPUT_LABEL_BYTES = 200 };

/* Immutable after open, so threads may share it. `pread` is a slot so that a test can make a disk
 * fail. */
typedef struct dti_input {
    int fd;
    int64_t bytes; /* size when it was opened */
    ssize_t (*pread)(int fd, void *to, size_t n, off_t at);
    char label[DTI_INPUT_LABEL_BYTES]; /* its path for messages, a long one without its head */
} dti_input;

/* Opens a regular file (a symbolic link to one will do). */
dt_status dti_input_open(const char *path, dti_input *out) DT_MUST_USE;
void dti_input_close(dti_input *in);

/* Reads exactly n bytes at offset `at`; a file that has become shorter is an error. */
dt_status dti_input_read(const dti_input *in, void *to, int64_t n, int64_t at) DT_MUST_USE;

/* Reads a whole regular file of at most max_bytes, however it was named in a checkpoint. *bytes is
 * freed with dti_free(). */
dt_status dti_input_read_file(const char *path, int64_t max_bytes, void **bytes,
                              int64_t *n) DT_MUST_USE;

/* Reads whatever `path` names to its end: a file, a pipe (/dev/stdin, a shell's "<(...)"), a
 * device. Waits for a pipe's writer. *bytes is freed with dti_free(). */
dt_status dti_input_read_all(const char *path, int64_t max_bytes, void **bytes,
                             int64_t *n) DT_MUST_USE;

#endif
