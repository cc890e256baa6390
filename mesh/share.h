/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ranks of one process have in common: the first that asks makes it, the last that is done
 * with it destroys it. For what is large, does not change and is the same for all of them, such as
 * the headers of a checkpoint. */
#ifndef DTI_SHARE_H
#define DTI_SHARE_H

#include "mesh/runtime.h"

typedef struct dti_share {
    void *object;
    struct dti_shares *among; /* NULL: the rank's own */
    struct dti_share *next;
    char *key;
    dti_slot_destroy destroy;
    int refs;
} dti_share;

typedef dt_status (*dti_share_create)(void *arg, void **out);

/* The object of that name, made with create(arg, ..) unless another rank of the process has it.
 * Ranks wait while one makes it; where that fails the next one tries, so each has its own message.
 * Errors: those of `create`; DT_ERR_MEMORY. */
dt_status dti_share_get(dt_runtime *rt, const char *key, dti_share_create create, void *arg,
                        dti_slot_destroy destroy, dti_share **out) DT_MUST_USE;
void dti_share_put(dti_share **share); /* accepts NULL */

/* For dt_run(): what the ranks of a process share through. */
typedef struct dti_shares dti_shares;
dt_status dti_shares_create(dti_shares **out) DT_MUST_USE;
void dti_shares_free(dti_shares **shares); /* no rank is left; accepts NULL */

#endif
