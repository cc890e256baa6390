/* SPDX-License-Identifier: Apache-2.0
 *
 * What launchers leave in the environment. With run.c the only place of the library that reads it,
 * and, in a process that the library itself has started, the only one that writes it. */
#include "mesh/launch.h"

#include <dtensor/mesh.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

extern char **environ;

static const char *non_empty(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static dt_status read_number(const char *name, long min, long max, int *out)
{
    static const char own[] = "DTENSOR_"; /* set by users */
    const char *text = non_empty(name);
    char *end = NULL;
    long value = -1;

    if (text != NULL) value = strtol(text, &end, 10);
    DT_CHECK(text != NULL && *end == '\0' && value >= min && value <= max, DT_ERR_ARG,
             "%s is \"%s\", not a number from %ld to %ld%s", name, text != NULL ? text : "", min,
             max, strncmp(name, own, sizeof own - 1) == 0 ? "" : "; a launcher sets it");
    *out = (int)value;
    return DT_OK;
}

/* -1: none, or no number. Whether it is what it was is asked before something is written. */
static int read_descriptor(const char *name)
{
    const char *text = non_empty(name);
    char *end = NULL;
    const long value = text != NULL ? strtol(text, &end, 10) : -1;

    return text != NULL && *end == '\0' && value >= 0 && value <= INT_MAX ? (int)value : -1;
}

/* Processes of torchrun meet on one machine only, and have to have a number. */
static bool meet_here(int n_processes)
{
    const char *here = non_empty("LOCAL_WORLD_SIZE");

    return non_empty("RANK") != NULL && (here == NULL || atoi(here) == n_processes);
}

/* With pmi2 a step of srun looks like mpirun of MPICH, with pmix it has this variable, otherwise
 * its processes know nothing of each other. */
static bool speak_pmix(int n_processes)
{
    (void)n_processes;
    return non_empty("PMIX_RANK") != NULL;
}

/* The first row whose size is set counts. Shells of batch jobs have SLURM_NTASKS too; the number
 * of tasks of a step is there only for what srun started. */
static const struct {
    const char *launcher, *size, *rank, *module;
    bool (*can_join)(int n_processes); /* NULL: they always can */
    const char *joined_if;
    const char *pmi; /* descriptor at which it listens */
} launchers[] = {
    { "mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "openmpi", NULL, NULL,
      NULL },
    { "mpirun (MPICH)", "PMI_SIZE", "PMI_RANK", "mpich", NULL, NULL, "PMI_FD" },
    { "srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "openmpi", speak_pmix,
      "it is given --mpi=pmix, for Open MPI, or --mpi=pmi2, for MPICH", NULL },
    { "torchrun", "WORLD_SIZE", "RANK", "sockets", meet_here,
      "it says each one's RANK and they are on one machine (LOCAL_WORLD_SIZE)", NULL },
};

dt_status dti_launch_read_sums(const char *word, const char *from, bool *by_mpi)
{
    *by_mpi = word != NULL && strcmp(word, "mpi") == 0;
    DT_CHECK(*by_mpi || word == NULL || strcmp(word, "rank-order") == 0, DT_ERR_ARG,
             "%s is \"%s\"; choose \"rank-order\" or \"mpi\"", from, word);
    return DT_OK;
}

dt_status dti_launch_read(dti_launch *out)
{
    const char *shared = non_empty("DTENSOR_MPI_SHARED");

    *out = (dti_launch){ .n_processes = 1,
                         .pmi = -1,
                         .shares = shared == NULL || strcmp(shared, "off") != 0,
                         .choice = non_empty("DTENSOR_MPI"),
                         .folder = non_empty("DTENSOR_MODULES") };
    DT_CHECK(!out->shares || shared == NULL || strcmp(shared, "on") == 0, DT_ERR_ARG,
             "DTENSOR_MPI_SHARED is \"%s\"; choose \"on\" or \"off\"", shared);
    DT_TRY(
        dti_launch_read_sums(non_empty("DTENSOR_MPI_SUMS"), "DTENSOR_MPI_SUMS", &out->sums_by_mpi));
    if (non_empty("DTENSOR_HOSTS") != NULL)
        DT_TRY(read_number("DTENSOR_HOSTS", 1, INT_MAX, &out->n_hosts));
    for (size_t i = 0; i < DT_COUNT(launchers) && out->variable == NULL; i++) {
        if (non_empty(launchers[i].size) == NULL) continue;
        out->launcher = launchers[i].launcher;
        out->variable = launchers[i].size;
        out->module = launchers[i].module;
        if (launchers[i].pmi != NULL) out->pmi = read_descriptor(launchers[i].pmi);
        DT_TRY(read_number(launchers[i].size, 1, INT_MAX, &out->n_processes));
        if (launchers[i].can_join != NULL && !launchers[i].can_join(out->n_processes))
            out->joined_if = launchers[i].joined_if;
        if (out->n_processes > 1 && (out->joined_if == NULL || non_empty(launchers[i].rank)))
            DT_TRY(read_number(launchers[i].rank, 0, out->n_processes - 1, &out->process));
    }
    return DT_OK;
}

/* A question leaves no error behind: dt_run() will say what is wrong. */
static dti_launch ask(void)
{
    const dt_error before = *dt_last_error();
    dti_launch launch;

    if (dti_launch_read(&launch) == DT_OK) return launch;
    dti_error_restore(&before);
    return (dti_launch){ .n_processes = 1 };
}

int dt_launch_size(void)
{
    return ask().n_processes;
}

int dt_launch_process(void)
{
    return ask().process;
}

/* --- processes that this library starts --------------------------------------------------------
 */

static const char worker_variable[] = "DTENSOR_WORKER";

bool dti_launch_is_worker(void)
{
    return non_empty(worker_variable) != NULL;
}

dt_status dti_launch_worker_environment(char ***out)
{
    static const char is_worker[] = "DTENSOR_WORKER=1";
    size_t n = 0;

    while (environ != NULL && environ[n] != NULL) n++;
    DT_TRY(dti_alloc_array(n + 2, sizeof **out, (void **)out));
    if (n > 0) memcpy(*out, environ, n * sizeof **out);
    (*out)[n] = (char *)(uintptr_t)is_worker; /* nobody writes it */
    return DT_OK;
}

static dt_status set(const char *name, const char *value)
{
    DT_CHECK(setenv(name, value, 1) == 0, DT_ERR_MEMORY, "%s=%s: %s", name, value, strerror(errno));
    return DT_OK;
}

static dt_status set_number(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", value);
    return set(name, text);
}

dt_status dti_launch_as_worker(int process, int n_processes, const char *name)
{
    static const char *const others[] = { "PMIX_RANK", "LOCAL_WORLD_SIZE",
                                          "TORCHELASTIC_RESTART_COUNT", "DTENSOR_HOSTS",
                                          "DTENSOR_MPI_SUMS" };

    (void)unsetenv(worker_variable); /* what it starts is none */
    for (size_t i = 0; i < DT_COUNT(launchers); i++) {
        (void)unsetenv(launchers[i].size);
        (void)unsetenv(launchers[i].rank);
    }
    for (size_t i = 0; i < DT_COUNT(others); i++) (void)unsetenv(others[i]);
    if (n_processes == 1) return DT_OK;
    DT_TRY(set_number("WORLD_SIZE", n_processes));
    DT_TRY(set_number("RANK", process));
    DT_TRY(set("MASTER_ADDR", ""));
    DT_TRY(set("MASTER_PORT", "workers"));
    DT_TRY(set("TORCHELASTIC_RUN_ID", name));
    DT_TRY(set("DTENSOR_MPI", "sockets"));
    return DT_OK;
}
