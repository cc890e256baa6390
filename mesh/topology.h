/* SPDX-License-Identifier: Apache-2.0
 *
 * Cores of this machine and their division among ranks. hwloc stays behind this header. */
#ifndef DTI_TOPOLOGY_H
#define DTI_TOPOLOGY_H

#include <dtensor/mesh.h>

#include "base/error.h"

enum { DTI_CORES_TEXT_BYTES = 128, DTI_GPU_BUS_BYTES = 16, DTI_GPU_TEXT_BYTES = 64 };

typedef struct dti_topology dti_topology;

/* The cores that the calling thread may use: those of the machine less what a cpuset or an earlier
 * binding forbids. `machine` is another one: imaginary ("pack:2 core:8 pu:2"), or recorded in a
 * file whose name ends in ".xml" (by lstopo); NULL is this one. Where hwloc fails cores are counted
 * and nothing can be bound. */
dt_status dti_topology_load(const char *machine, dti_topology **out) DT_MUST_USE;
void dti_topology_free(dti_topology **topology); /* accepts NULL */

/* The same with its GPUs, for those who draw it: finding them takes six times as long. */
dt_status dti_topology_load_devices(const char *machine, dti_topology **out) DT_MUST_USE;

int dti_topology_n_cores(const dti_topology *t); /* at least 1; hyperthreads do not count */
bool dti_topology_can_bind(const dti_topology *t);

/* How the cores are to be divided. */
typedef struct dti_division {
    int n_ranks;
    int threads;  /* 0: cores / ranks, at least 1 */
    dt_bind bind; /* compact or spread; none is as compact */
    int together; /* ranks in a row that shall share a NUMA node; 0: each by itself */
} dti_division;

/* Gives each rank consecutive cores, within one NUMA node where that is possible. Ranks follow each
 * other as cores do, neighbours first, so that the last dim of a mesh joins the nearest. */
dt_status dti_topology_divide(dti_topology *t, const dti_division *d) DT_MUST_USE;

/* Takes the ranks off their cores again; the number of threads stays. */
void dti_topology_clear(dti_topology *t);

int dti_topology_threads(const dti_topology *t); /* per rank */
bool dti_topology_fits(const dti_topology *t);   /* every thread of every rank has its core */

/* One core of those that may be used, and who runs on it. */
typedef struct dti_core {
    int package, node;                      /* logical numbers; -1: the system names none */
    int64_t node_bytes, l3_bytes, l2_bytes; /* 0: unknown */
    int l3;                                 /* logical number of its L3 cache, or -1 */
    int n_cpus;                             /* hyperthreads */
    char cpus[DTI_CORES_TEXT_BYTES];        /* OS numbers, "0,8" */
    int rank, worker;                       /* -1: nobody */
} dti_core;

void dti_topology_core(const dti_topology *t, int core, dti_core *out);

/* One GPU to compute on, in the order of the buses. What a management controller draws on is none.
 * `devices` is as drivers call it, "cuda0 nvml0", or "" without a driver. */
typedef struct dti_gpu {
    int package, node;             /* that it is near to, logical numbers; -1: to no single one */
    char bus[DTI_GPU_BUS_BYTES];   /* "0000:18:00.0" */
    char name[DTI_GPU_TEXT_BYTES]; /* its model, or "10de:2330" where hwloc knows no name */
    char devices[DTI_GPU_TEXT_BYTES];
} dti_gpu;

int dti_topology_n_gpus(const dti_topology *t); /* 0 unless loaded with devices */
void dti_topology_gpu(const dti_topology *t, int gpu, dti_gpu *out);

/* Draws the machine and the division as text, a line at a time without its newline. `mesh` ("dp=2,
 * tp=4", valid, or NULL) adds coordinates to the ranks. */
typedef void (*dti_topology_line)(void *arg, const char *line);
void dti_topology_draw(const dti_topology *t, const char *mesh, dti_topology_line line, void *arg);

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
