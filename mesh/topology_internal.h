/* SPDX-License-Identifier: Apache-2.0
 *
 * What topology_hwloc.c and topology_gpus.c share. */
#ifndef DTI_TOPOLOGY_INTERNAL_H
#define DTI_TOPOLOGY_INTERNAL_H

#include <hwloc.h>

#include "mesh/core_binding.h"

struct dt_topology {
    hwloc_topology_t hw; /* NULL: hwloc could not read this machine */
    int n_cores;
    hwloc_obj_t *cores; /* [n_cores] in logical order; PUs where the system names no cores */
    int *node_end;      /* [n_cores] the first core behind that is of another NUMA node */
    hwloc_bitmap_t usable;
    int n_ranks; /* after the division */
    int threads;
    int *first; /* [n_ranks] index of a rank's first core; NULL if the threads do not fit */
};

/* Refuses a machine in hwloc's words that is too large to be drawn in reasonable time. */
dt_status dti_synthetic_check(const char *machine) DT_MUST_USE;

#endif
