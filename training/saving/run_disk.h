/* SPDX-License-Identifier: Apache-2.0
 *
 * The names in a run's folder, in an order in which it is whole at any moment. All of it is the
 * first rank's. */
#ifndef DTI_RUN_DISK_H
#define DTI_RUN_DISK_H

#include <sys/types.h>

#include "base/error.h"

enum { DTI_STEP_NAME_BYTES = 48 };
#define DTI_STEP_FORMAT "step-%08lld"

typedef struct dti_run_disk {
    const char *dir; /* borrowed */
    int lock;        /* -1: opened to be read */
    int64_t latest;  /* -1: none yet */
    dev_t device;    /* and number: the folder that was opened, which may be moved meanwhile */
    ino_t inode;
    size_t n_swept; /* folders and files of a save that was killed, which were removed */
} dti_run_disk;

/* Looks which step is the latest. With `write` it makes the folder unless it is there, takes its
 * lock, and removes what a save that was killed has left. */
dt_status dti_run_disk_open(dti_run_disk *disk, const char *dir, bool write) DT_MUST_USE;
void dti_run_disk_close(dti_run_disk *disk); /* accepts one that is closed */

/* "DIR/step-00001000" and, while it is written, "DIR/step-00001000.tmp"; freed with dti_free(). */
dt_status dti_run_disk_step(const char *dir, int64_t step, bool done, char **out) DT_MUST_USE;

/* An empty folder for a step. DT_ERR_IO, here and when it is named: another folder has the name of
 * the one that was opened, or none. */
dt_status dti_run_disk_begin(dti_run_disk *disk, int64_t step) DT_MUST_USE;

/* All its files are on the disk: the folder gets its name, then `latest` says it, then those that
 * are older than the `keep` newest up to it are removed (0: none). On error `latest` is as before
 * and the step can be abandoned. */
dt_status dti_run_disk_name(dti_run_disk *disk, int64_t step, int keep) DT_MUST_USE;

/* Removes what was begun of a step, and all that is in it. */
void dti_run_disk_abandon(dti_run_disk *disk, int64_t step);

/* "step 500, step 1000": the steps that are there, the newest ones if there are many. Returns text;
 * "none" if there are none. */
const char *dti_run_disk_steps(const char *dir, char *text, size_t bytes);

#endif
