/* SPDX-License-Identifier: Apache-2.0
 *
 * Cores of this machine and their division among ranks. hwloc stays behind this header. */
#ifndef DTI_TOPOLOGY_H
#define DTI_TOPOLOGY_H

#include "base/error.h"

enum { DTI_CORES_TEXT_BYTES = 128 };

typedef struct dti_topology dti_topology;

/* The cores that the calling thread may use: those of the machine less what a cpuset or an earlier
 * binding forbids. `synthetic` describes an imaginary machine instead ("pack:2 core:8 pu:2", for
 * tests); NULL is this one. Where hwloc fails the cores are counted and nothing can be bound. */
dt_status dti_topology_load(const char *synthetic, dti_topology **out) DT_MUST_USE;
void dti_topology_free(dti_topology **topology); /* accepts NULL */

int dti_topology_n_cores(const dti_topology *t); /* at least 1; hyperthreads do not count */
bool dti_topology_can_bind(const dti_topology *t);

/* Gives each rank consecutive cores, within one NUMA node where that is possible. threads == 0
 * chooses cores / ranks, at least 1. */
dt_status dti_topology_divide(dti_topology *t, int n_ranks, int threads) DT_MUST_USE;

int dti_topology_threads(const dti_topology *t); /* per rank */
bool dti_topology_fits(const dti_topology *t);   /* every thread of every rank has its core */

/* OS numbers of a rank's cores, "0-3" ("0,8" for the two hyperthreads of one core). */
void dti_topology_cores_text(const dti_topology *t, int rank, char text[DTI_CORES_TEXT_BYTES]);

/* Binds the calling thread to the core of a rank's worker, and its memory to the NUMA node. Both
 * return false where the system refuses; the thread then runs as before. */
bool dti_topology_bind(const dti_topology *t, int rank, int worker);
bool dti_topology_bind_memory(const dti_topology *t, int rank);

/* Remembers where the calling thread may run, and puts it back. */
typedef struct dti_binding dti_binding;
dti_binding *dti_binding_save(const dti_topology *t); /* NULL if there is nothing to restore */
void dti_binding_restore(const dti_topology *t, dti_binding *b); /* frees b; accepts NULL */

#endif
