/* SPDX-License-Identifier: Apache-2.0
 *
 * One save's hold of a folder. A lock, which another process meets as another thread does and
 * which ends with the one who held it, and in the same file a list of what was made: so that an
 * end in the middle, also a sudden one, takes away what this save has made and nothing else. */
#ifndef DTI_HOLD_H
#define DTI_HOLD_H

#include <sys/types.h>

#include "base/error.h"

/* The file that is locked; it is there while somebody saves, or after one was killed. */
#define DTI_HOLD_NAME ".dtensor-save"

/* A file that this save has made. */
typedef struct dti_made {
    char *path, *temporary;
    dev_t device; /* the two say which file it is, whatever it is called */
    ino_t inode;
    bool named; /* it has its final name */
} dti_made;

typedef struct dti_hold {
    const char *dir; /* borrowed */
    char *path;      /* of the lock */
    int fd;
    bool held, made_dir;
    dti_made *made;
    size_t n, room;
    size_t n_swept; /* files of a save that was killed, which were removed */
} dti_hold;

/* Makes the folder unless it is there, takes the lock, and removes what a save that was killed has
 * left. Errors: DT_ERR_IO the folder cannot be made or written, or another save has it. */
dt_status dti_hold_take(dti_hold *hold, const char *dir) DT_MUST_USE;

/* Whether a save that was killed has left the file DIR/name: it is in nobody's way. */
bool dti_hold_is_left_over(const char *dir, const char *name);

/* Makes DIR/name under its temporary name, "name.tmp", which has to be free. */
dt_status dti_hold_create(dti_hold *hold, const char *name, int *fd) DT_MUST_USE;

/* The lock and all files made are still those of this save. */
dt_status dti_hold_check(const dti_hold *hold) DT_MUST_USE;

/* Gives the i-th file made its name, which has to be free. */
dt_status dti_hold_name(dti_hold *hold, size_t i) DT_MUST_USE;

/* Lets go of the folder. Of a save that failed nothing stays. Accepts a zeroed one. */
void dti_hold_end(dti_hold *hold, dt_status st);

#endif
