/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine: its cores and GPUs, and how the ranks of a run would be divided among them. What
 * dt_run() does by itself, for those who want to see or draw it before. */
#ifndef DT_TOPOLOGY_H
#define DT_TOPOLOGY_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_CORES_TEXT_BYTES = 128, DT_GPU_BUS_BYTES = 16, DT_GPU_TEXT_BYTES = 64 };

/* Cores, caches, NUMA nodes and GPUs of a machine, and a division among ranks. */
typedef struct dt_topology dt_topology;

/**
 * The cores that the calling thread may use: those of the machine less what a cpuset or an earlier
 * binding forbids. Where the system says nothing cores are counted and nothing can be bound.
 *
 *   machine  another one: imaginary, in hwloc's words ("pack:2 core:8 pu:2"), or recorded in a file
 *            whose name ends in ".xml" (by lstopo); NULL is this one
 *
 * Not collective.
 * Ownership   *out is released with dt_topology_release().
 * Errors      DT_ERR_ARG     a description that cannot be understood
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_topology_load(const char *machine, dt_topology **out);

/** The same with its GPUs: finding them takes six times as long. As dt_topology_load(). */
DT_API DT_MUST_USE dt_status dt_topology_load_with_gpus(const char *machine, dt_topology **out);
DT_API void dt_topology_release(dt_topology **topology); /* accepts NULL */

/* How the cores are to be divided. */
typedef struct dt_division {
    int n_ranks;
    int threads;  /* 0: cores / ranks, at least 1 */
    dt_bind bind; /* compact or spread; none is as compact */
    int together; /* ranks in a row that shall share a NUMA node; 0: each by itself */
} dt_division;

/**
 * Gives each rank consecutive cores, within one NUMA node where that is possible. Ranks follow each
 * other as cores do, neighbours first, so that the last dim of a mesh joins the nearest.
 *
 * Not collective.
 * Errors      DT_ERR_ARG     fewer than one rank, a negative number of threads
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_topology_divide(dt_topology *t, const dt_division *d);

/** Takes the ranks off their cores again; the number of threads stays. Not collective. Errors:
 * none. */
DT_API void dt_topology_clear(dt_topology *t);

/* Queries. Not collective, no errors. */
DT_API int dt_topology_n_cores(const dt_topology *t); /* at least 1; hyperthreads do not count */
DT_API const char *dt_topology_processor(const dt_topology *t); /* its model; "": unknown */
DT_API int dt_topology_n_gpus(const dt_topology *t);            /* 0 unless loaded with them */
DT_API int dt_topology_threads(const dt_topology *t);           /* per rank */
DT_API bool dt_topology_fits(const dt_topology *t); /* every thread of every rank has its core */

/* One core of those that may be used, and who runs on it. */
typedef struct dt_core {
    int package, node;                      /* logical numbers; -1: the system names none */
    int64_t node_bytes, l3_bytes, l2_bytes; /* 0: unknown */
    int l3;                                 /* logical number of its L3 cache, or -1 */
    int n_cpus;                             /* hyperthreads */
    char cpus[DT_CORES_TEXT_BYTES];         /* OS numbers, "0,8" */
    int rank, worker;                       /* -1: nobody */
} dt_core;

/* One GPU to compute on, in the order of the buses. What a management controller draws on is none.
 * `devices` is as drivers call it, "cuda0 nvml0", or "" without a driver. */
typedef struct dt_gpu {
    int package, node;            /* that it is near to, logical numbers; -1: to no single one */
    char bus[DT_GPU_BUS_BYTES];   /* "0000:18:00.0" */
    char name[DT_GPU_TEXT_BYTES]; /* its model, or "10de:2330" where no name is known */
    char devices[DT_GPU_TEXT_BYTES];
} dt_gpu;

/* Number `core` below dt_topology_n_cores(), `gpu` below dt_topology_n_gpus(). Not collective, no
 * errors. */
DT_API void dt_topology_core(const dt_topology *t, int core, dt_core *out);
DT_API void dt_topology_gpu(const dt_topology *t, int gpu, dt_gpu *out);

/** Draws the machine and the division as text, a line at a time without its newline. `mesh`
 * ("dp=2,tp=4", valid, or NULL) adds coordinates to the ranks. Not collective. Errors: none. */
typedef void (*dt_topology_line)(void *arg, const char *line);
DT_API void dt_topology_draw(const dt_topology *t, const char *mesh, dt_topology_line line,
                             void *arg);

#ifdef __cplusplus
}
#endif
#endif
