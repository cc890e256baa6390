/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda_load.h"
#include "mesh/gpu.h"

/* The file of the module that tests use; skips the test where there is none. */
static const dti_cuda_module *open_module(char path[DT_TEST_PATH_BYTES])
{
    const char *which = getenv("DTENSOR_TEST_CUDA");
    const dti_cuda_module *m = NULL;
    dti_cuda_versions versions;

    if (which != NULL && strcmp(which, "real") == 0) {
        if (getenv("DTENSOR_SIM_ORDER") != NULL)
            dt_test_skip("skipped: orders can be turned round on the simulated device alone");
        (void)dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so");
        if (access(path, R_OK) != 0) dt_test_skip("skipped: this build has no module for CUDA");
        DT_ASSERT_OK(dti_cuda_load(path, NULL, &m));
        m->versions(&versions);
        if (versions.n_devices == 0) dt_test_skip("skipped: no device (%s)", versions.no_device);
        return m;
    }
    (void)dt_test_binary_path(path, "tests/dtensor_cuda_sim.so");
    if (access(path, R_OK) != 0) dt_test_skip("skipped: no C++ compiler for the simulated device");
    DT_ASSERT_OK(dti_cuda_load(path, NULL, &m));
    return m;
}

const dti_cuda_module *dt_test_cuda_module(void)
{
    char path[DT_TEST_PATH_BYTES];

    return open_module(path);
}

bool dt_test_cuda_is_real(const dti_cuda_module *m)
{
    return strcmp(m->name, "simulated") != 0;
}

const dti_cuda_module *dt_test_cuda_runs(void)
{
    char path[DT_TEST_PATH_BYTES];
    const dti_cuda_module *m = open_module(path);

    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_MODULE", path, 1), 0);
    return m;
}

dt_run_options dt_test_cuda_options(void)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    (void)dt_test_cuda_runs();
    options.device = "cuda";
    options.timeout_ms = 120000;
    return options;
}

void dt_test_on_gpus(const char *spec, dt_test_body body, const void *arg)
{
    const dt_run_options options = dt_test_cuda_options();
    const dt_status st = dt_test_run(&options, spec, body, arg);

    dt_test_ok(__FILE__, __LINE__, spec, st);
}

void dt_test_cuda_needs_eager(const dti_cuda_module *m)
{
    if (dti_gpu_place(m, 0).loads_late)
        dt_test_skip("skipped: kernels that wait for each other need CUDA_MODULE_LOADING=EAGER");
}

dti_cuda *dt_test_cuda_open(const dti_cuda_module *m)
{
    dti_cuda *c = NULL;

    DT_ASSERT_CUDA(m, m->open(0, &c));
    return c;
}

dti_cuda_kernel dt_test_cuda_row(const dti_cuda_module *m, const char *name)
{
    for (int i = 0; i < m->kernels->n_rows; i++)
        if (strcmp(m->kernels->rows[i].name, name) == 0) return m->kernels->rows[i].run;
    dt_test_fail(__FILE__, __LINE__, "the module has no kernel of row %s", name);
    return NULL;
}
