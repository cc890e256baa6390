/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of a run on the cores that a topology has given them. hwloc stays behind this header. */
#ifndef DTI_CORE_BINDING_H
#define DTI_CORE_BINDING_H

#include <dtensor/topology.h>

#include "base/error.h"

bool dti_topology_can_bind(const dt_topology *t);

/* OS numbers of a rank's cores, "0-3" ("0,8" for the two hyperthreads of one core). */
void dti_topology_cores_text(const dt_topology *t, int rank, char text[DT_CORES_TEXT_BYTES]);

/* Binds the calling thread to the core of a rank's worker, and its memory to the NUMA node. Both
 * return false where the system refuses; the thread then runs as before. */
bool dti_topology_bind(const dt_topology *t, int rank, int worker);
bool dti_topology_bind_memory(const dt_topology *t, int rank);

/* Lets the calling thread, which began with the binding of another, run on all cores that the
 * process may use. */
void dti_topology_unbind(const dt_topology *t);

/* Remembers where the calling thread may run, and puts it back. */
typedef struct dti_binding dti_binding;
dti_binding *dti_binding_save(const dt_topology *t); /* NULL if there is nothing to restore */
void dti_binding_restore(const dt_topology *t, dti_binding *b); /* frees b; accepts NULL */

#endif
