/* SPDX-License-Identifier: Apache-2.0
 *
 * How this process was started: alone, or as one of several by a launcher; and the MPI library that
 * joins them. */
#ifndef DTI_LAUNCH_H
#define DTI_LAUNCH_H

#include "base/error.h"
#include "mesh/comm/mpi_api.h"

enum { DTI_LAUNCH_TEXT_BYTES = 512 };

/* What the environment says. Texts are borrowed from it or constant. */
typedef struct dti_launch {
    const char *launcher;  /* "mpirun (Open MPI)", ...; NULL: none was recognised */
    const char *variable;  /* which says how many processes there are; NULL: none */
    const char *module;    /* the one that speaks the launcher's language; NULL: none does */
    const char *joined_if; /* NULL, or what the launcher has to do before they can be joined */
    const char *choice;    /* DTENSOR_MPI: a module, "off", or NULL */
    const char *folder;    /* DTENSOR_MODULES: where modules are looked for first, or NULL */
    int pmi;               /* descriptor at which MPICH's launcher listens; -1: none does */
    bool sums_by_mpi;      /* DTENSOR_MPI_SUMS is "mpi", not "rank-order" */
    bool shares;           /* memory between processes: DTENSOR_MPI_SHARED is not "off" */
    int process, n_processes;
    int n_hosts; /* DTENSOR_HOSTS: among which ranks are divided; 0: as it is */
} dti_launch;

/* Who makes sums: "mpi", or "rank-order" (NULL). Errors: another word; `from` has it. */
dt_status dti_launch_read_sums(const char *word, const char *from, bool *by_mpi) DT_MUST_USE;

/* Errors: a variable that is no number, or a process number outside the processes. */
dt_status dti_launch_read(dti_launch *out) DT_MUST_USE;

/* --- processes that this library starts ------------------------------------------------------- */

/* Whether this process is one that has not taken its place yet. */
bool dti_launch_is_worker(void);

/* The environment of such a process, for who starts it: a list that is freed, of texts that are
 * not. */
dt_status dti_launch_worker_environment(char ***out) DT_MUST_USE;

/* In such a process, before it has threads: its place among the others, under a name of their own,
 * in the words of a launcher that dt_run() knows. Those of any other are forgotten. */
dt_status dti_launch_as_worker(int process, int n_processes, const char *name) DT_MUST_USE;

/* --- modules ---------------------------------------------------------------------------------- */

/* A module that was looked for. */
typedef struct dti_module_found {
    const char *name;
    char path[DTI_LAUNCH_TEXT_BYTES];    /* of the module, or empty: not there */
    char library[DTI_LAUNCH_TEXT_BYTES]; /* its MPI's version, or why it cannot be opened */
    const dti_mpi_module *module;        /* NULL: not usable */
} dti_module_found;

/* Looks for one module ("openmpi", "mpich") and opens it. An MPI library that was opened stays in
 * the process, and two of them do not get along: ask for one only, apart from reports. */
void dti_module_find(const dti_launch *launch, const char *name, dti_module_found *out);

/* The names of the modules that builds make, in the order in which they are tried; NULL ends. */
const char *const *dti_module_names(void);

/* The module that joins the processes of this launch. Errors name mpirun and say what was tried. */
dt_status dti_module_choose(const dti_launch *launch, dti_module_found *out) DT_MUST_USE;

#endif
