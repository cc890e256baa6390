/* SPDX-License-Identifier: Apache-2.0
 *
 * The flight recorder of a rank: its last collectives, written to a file when one fails. Belongs to
 * the rank's own thread, as everything that starts and waits. */
#ifndef DTI_FLIGHT_H
#define DTI_FLIGHT_H

#include "mesh/comm/comm.h"

enum { DTI_FLIGHT_ENTRIES = 64, DTI_FLIGHT_ABOUT_BYTES = 160 };

typedef enum dti_flight_state {
    DTI_FLIGHT_UNDER_WAY,
    DTI_FLIGHT_DONE,
    DTI_FLIGHT_FAILED
} dti_flight_state;

typedef struct dti_flight_entry {
    dti_flight_state state;
    dti_comm_op op;
    dt_dtype dtype;
    int root;
    uint64_t seq;
    int64_t count;
    uint64_t begin, end; /* ticks */
    char comm[DTI_COMM_NAME_BYTES];
    char about[DTI_FLIGHT_ABOUT_BYTES]; /* with agreement checks: what the caller did */
} dti_flight_entry;

typedef struct dti_flight {
    const char *path; /* files are "<path>.<rank>"; NULL: nothing is written */
    int rank, size;
    bool dumped;
    int error;       /* errno of a file that could not be written; 0: none */
    int64_t open_ns; /* the same moment in two units */
    uint64_t open_ticks;
    uint64_t n; /* recorded since the rank began */
    dti_flight_entry entries[DTI_FLIGHT_ENTRIES];
} dti_flight;

void dti_flight_open(dti_flight *f, const char *path, int rank, int size);

/* Around each operation. */
void dti_flight_begin(dti_flight *f, const dti_comm *c, dti_comm_request *r);
void dti_flight_end(dti_flight *f, const dti_comm_request *r, bool failed);

/* Writes the file, the first time. The thread's error record stays as it is and is its headline.
 * If it cannot be written f->error says why. */
void dti_flight_dump(dti_flight *f);

#endif
