/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run would find here: how this process was started and what would join it with others, and
 * the GPUs. Known before any run; nothing is started, nothing fails, what cannot be had is said in
 * words. */
#ifndef DT_SURROUNDINGS_H
#define DT_SURROUNDINGS_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_MAX_JOINS = 8, DT_MAX_GPUS = 64, DT_JOIN_TEXT_BYTES = 512, DT_SHARE_WHY_BYTES = 192 };

/* A module that joins processes. */
typedef struct dt_join {
    const char *name;                 /* "openmpi" */
    char path[DT_JOIN_TEXT_BYTES];    /* or empty: not there */
    char library[DT_JOIN_TEXT_BYTES]; /* its MPI's version, or why it cannot be opened */
    bool usable;
} dt_join;

typedef struct dt_launch_info {
    int process, n_processes; /* that a launcher started together */
    const char *launcher;     /* "mpirun (Open MPI)", ...; NULL: none was recognised */
    const char *variable;     /* of the environment, which says how many there are; NULL: none */
    const char *chosen;       /* what a run would use: a module's name, or "threads"; NULL: nothing
                               * can join these processes */
    char why[DT_ERROR_MESSAGE_BYTES]; /* it is chosen, or why there is nothing */
    int n_joins;
    dt_join joins[DT_MAX_JOINS];
    bool sums_by_mpi;  /* over all ranks; otherwise in rank order */
    bool wants_shared; /* memory between processes of a machine: DTENSOR_MPI_SHARED is not "off" */
    bool can_share;    /* and it is possible; otherwise ... */
    char share_why[DT_SHARE_WHY_BYTES]; /* ... what the system answers */
} dt_launch_info;

/** How this process was started, and what would join it with others. Modules are opened, so ask
 * for reports only: two MPI libraries in one process do not get along. Not collective. Errors:
 * none. */
DT_API void dt_launch_look(dt_launch_info *out);

/* One GPU of this machine. */
typedef struct dt_gpu_found {
    char name[128]; /* or why it cannot be asked */
    char pci[32];   /* "0000:3b:00.0" */
    int major, minor, n_sms;
    int64_t bytes, free_bytes;
} dt_gpu_found;

/* Versions as CUDA and NCCL count them: 13000 is CUDA 13.0, 22809 is NCCL 2.28.9; 0: there is
 * none. */
typedef struct dt_gpus {
    bool built_in;                    /* the library's part for CUDA can be opened */
    char why[DT_ERROR_MESSAGE_BYTES]; /* why it cannot, or why there is no GPU; or empty */
    int runtime;
    int driver; /* the newest CUDA that it can run */
    int cublas_lt;
    int nccl_built, nccl;
    const char *misfit; /* of these versions, in words with the remedy; NULL: they fit */
    int n;
    dt_gpu_found each[DT_MAX_GPUS];
} dt_gpus;

/** The GPUs of this machine, and the libraries that compute on them. Not collective. Errors: none.
 */
DT_API void dt_gpus_look(dt_gpus *out);

#ifdef __cplusplus
}
#endif
#endif
