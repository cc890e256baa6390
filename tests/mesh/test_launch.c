/* SPDX-License-Identifier: Apache-2.0
 *
 * What is read from the environment of a launcher, and what is said where it cannot be joined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mesh/launch.h"
#include "tests/support/dt_test.h"

static const char *const variables[] = {
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE",
    "PMI_RANK",
    "PMI_FD",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "PMIX_RANK",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_WORLD_SIZE",
    "DTENSOR_MPI",
    "DTENSOR_MODULES",
    "DTENSOR_MPI_SHARED",
    "DTENSOR_MPI_SUMS",
    "DTENSOR_HOSTS",
};

/* "NAME=VALUE NAME=VALUE": these and no others. */
static void set_environment(const char *text)
{
    char copy[256], *word;

    for (size_t i = 0; i < DT_COUNT(variables); i++) (void)unsetenv(variables[i]);
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        (void)setenv(word, equals + 1, 1);
    }
}

DT_TEST(launch, every_launcher_is_recognised)
{
    static const struct {
        const char *environment, *launcher, *module;
        int process, n_processes;
    } cases[] = {
        { "", NULL, NULL, 0, 1 },
        { "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3", "mpirun (Open MPI)", "openmpi", 3, 4 },
        { "PMI_SIZE=3 PMI_RANK=1", "mpirun (MPICH)", "mpich", 1, 3 },
        { "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", "srun", "openmpi", 1, 2 },
        { "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMIX_RANK=1", "srun", "openmpi", 1, 2 },
        { "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5",
          "mpirun (Open MPI)", "openmpi", 5, 8 },
        { "WORLD_SIZE=1 RANK=0", "torchrun", "sockets", 0, 1 },
        { "WORLD_SIZE=4 RANK=3", "torchrun", "sockets", 3, 4 },
        { "WORLD_SIZE=4 RANK=3 LOCAL_WORLD_SIZE=4", "torchrun", "sockets", 3, 4 },
        { "OMPI_COMM_WORLD_SIZE=1", "mpirun (Open MPI)", "openmpi", 0, 1 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dti_launch l;
        set_environment(cases[i].environment);
        DT_ASSERT_OK(dti_launch_read(&l));
        DT_ASSERT((l.launcher == NULL) == (cases[i].launcher == NULL));
        if (l.launcher != NULL) DT_ASSERT_EQ_STR(l.launcher, cases[i].launcher);
        DT_ASSERT((l.module == NULL) == (cases[i].module == NULL));
        if (l.module != NULL) DT_ASSERT_EQ_STR(l.module, cases[i].module);
        DT_ASSERT_EQ_INT(l.process, cases[i].process);
        DT_ASSERT_EQ_INT(l.n_processes, cases[i].n_processes);
    }
    set_environment("");
}

DT_TEST(launch, nonsense_is_refused_by_its_name)
{
    dti_launch l;

    set_environment("PMI_SIZE=many PMI_RANK=0");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG, "PMI_SIZE is \"many\"");
    set_environment("PMI_SIZE=4 PMI_RANK=4");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG,
                     "PMI_RANK is \"4\", not a number from 0 to 3");
    set_environment("OMPI_COMM_WORLD_SIZE=2");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG, "OMPI_COMM_WORLD_RANK is \"\"");
    set_environment("OMPI_COMM_WORLD_SIZE=0");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG, "OMPI_COMM_WORLD_SIZE is \"0\"");
    DT_ASSERT(strstr(dt_last_error()->message, "; a launcher sets it") != NULL);
    set_environment("DTENSOR_HOSTS=0");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG,
                     "DTENSOR_HOSTS is \"0\", not a number from 1");
    DT_ASSERT(strstr(dt_last_error()->message, "launcher") == NULL);
    set_environment("DTENSOR_MPI_SUMS=tree");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG,
                     "DTENSOR_MPI_SUMS is \"tree\"; choose \"rank-order\" or \"mpi\"");
    set_environment("DTENSOR_MPI_SUMS=mpi");
    DT_ASSERT_OK(dti_launch_read(&l));
    DT_ASSERT(l.sums_by_mpi);
    set_environment("DTENSOR_MPI_SHARED=never");
    DT_ASSERT_STATUS(dti_launch_read(&l), DT_ERR_ARG,
                     "DTENSOR_MPI_SHARED is \"never\"; choose \"on\" or \"off\"");
    set_environment("");
}

static dt_status nothing(dt_runtime *rt, void *arg)
{
    (void)rt, (void)arg;
    return DT_OK;
}

DT_TEST(launch, what_cannot_be_joined_names_mpirun)
{
    set_environment("WORLD_SIZE=4 RANK=1 LOCAL_WORLD_SIZE=2");
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "on one machine");
    set_environment("WORLD_SIZE=4");
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "start them with mpirun");
    set_environment("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1");
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "it is given --mpi=pmix");
    set_environment("OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 DTENSOR_MPI=off");
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "DTENSOR_MPI=off");
    set_environment("OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 DTENSOR_MPI=lam");
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_ARG, "DTENSOR_MPI is \"lam\"");
    set_environment("");
}

/* A module that is a file of its own making, as in a half-finished installation. */
DT_TEST(launch, a_module_that_cannot_be_opened_says_why)
{
    char folder[DT_TEST_PATH_BYTES], environment[DT_TEST_PATH_BYTES + 64];
    dti_module_found found;
    dti_launch l;

    dt_test_write_file(dt_test_temp_dir(folder), "dtensor_mpich.so", "no module", 9);
    (void)snprintf(environment, sizeof environment, "PMI_SIZE=2 PMI_RANK=0 DTENSOR_MODULES=%s",
                   folder);
    set_environment(environment);
    DT_ASSERT_OK(dti_launch_read(&l));
    dti_module_find(&l, "mpich", &found);
    DT_ASSERT(found.module == NULL);
    DT_ASSERT(strstr(found.library, "cannot be opened") != NULL);
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "nothing can join them");
    DT_ASSERT(strstr(dt_last_error()->message, "mpirun") != NULL);
    set_environment("");
}
