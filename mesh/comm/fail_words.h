/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank says of one that left or does not come: the same words whatever moves the bytes. Each
 * sets the caller's own error and writes `why`, which the other ranks will read. */
#ifndef DTI_FAIL_WORDS_H
#define DTI_FAIL_WORDS_H

#include "mesh/comm/comm.h"

enum { DTI_WHY_BYTES = 512 };

/* How far a rank has come. */
typedef struct dti_reached {
    bool begun; /* any collective; else the rest does not count */
    dti_comm_op op;
    uint64_t seq;
    const char *comm; /* its name */
} dti_reached;

/* `rank` returned from its function before it took part in `r`. */
void dti_say_left(const dti_comm *c, const dti_comm_request *r, int rank,
                  const dti_reached *reached, char why[DTI_WHY_BYTES]);

/* `rank` has not `verb` ("arrived") in time, since it waits for `culprit`, which may be the rank
 * itself; reached: by the culprit. */
typedef struct dti_late {
    int rank, culprit;
    const char *verb;
} dti_late;

void dti_say_expired(const dti_comm *c, const dti_comm_request *r, const dti_late *late,
                     const dti_reached *reached, char why[DTI_WHY_BYTES]);

#endif
