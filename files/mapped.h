/* SPDX-License-Identifier: Apache-2.0
 *
 * A large file of which pieces are looked at: mapped, so that all who look share its pages, or read
 * through a window where it cannot be mapped. One thread at a time. */
#ifndef DTI_MAPPED_H
#define DTI_MAPPED_H

#include "files/input.h"

typedef struct dti_mapped {
    dti_input in;
    const unsigned char *map; /* of the whole file; NULL: what follows is used */
    void *window;
    size_t window_room;
    int64_t window_at, window_bytes; /* which of the file's bytes are in it */
} dti_mapped;

/* As dti_input_open(). Closing accepts a zeroed one. */
dt_status dti_mapped_open(const char *path, dti_mapped *out) DT_MUST_USE;
void dti_mapped_close(dti_mapped *m);
void dti_mapped_unmap(dti_mapped *m); /* it is read from now on, as where it cannot be mapped */

/* n bytes from `at` on, which lie in the file; valid until the next call. */
dt_status dti_mapped_at(dti_mapped *m, int64_t at, int64_t n,
                        const unsigned char **out) DT_MUST_USE;

/* Refuses a file that has become shorter since it was opened: whoever touches a page behind the end
 * of a mapped file is killed. */
dt_status dti_mapped_check(const dti_mapped *m) DT_MUST_USE;

/* These bytes are looked at next: the system may fetch them meanwhile. */
void dti_mapped_soon(const dti_mapped *m, int64_t at, int64_t n);

#endif
