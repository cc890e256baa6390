/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA module for tests: the simulated device (tests/cuda_sim/), or a real one where
 * DTENSOR_TEST_CUDA=real. */
#ifndef DT_TEST_CUDA_H
#define DT_TEST_CUDA_H

#include "dtensor/device/cuda_kernels.h"
#include "tests/support/dt_test.h"

/* The module, on the test's thread. Skips the test where there is none: "no C++ compiler" at
 * configuring, or no device; and on a GPU where the simulator is asked to turn orders round. */
const dti_cuda_module *dt_test_cuda_module(void);

/* Whether that is a GPU: some tests ask for what only the simulator promises, others run longer on
 * a GPU than the simulator could. */
bool dt_test_cuda_is_real(const dti_cuda_module *m);

/* The same for runs of this process: dt_run_options.device "cuda" opens it. */
const dti_cuda_module *dt_test_cuda_runs(void);

/* Options of tests for a run on GPUs, which that opens: a collective may take two minutes there, as
 * the simulated device runs a thread at a time. */
dt_run_options dt_test_cuda_options(void);

/* dt_test_on_ranks() so. */
void dt_test_on_gpus(const char *spec, dt_test_body body, const void *arg);

/* Skips the test where kernels may not wait for each other, as they are loaded late. */
void dt_test_cuda_needs_eager(const dti_cuda_module *m);

/* A rank's hold of device 0; m->close() ends it. */
dti_cuda *dt_test_cuda_open(const dti_cuda_module *m);

/* The kernel of a row; fails the test if the module has none. */
dti_cuda_kernel dt_test_cuda_row(const dti_cuda_module *m, const char *name);

/* A slot that returns 0 or -1: the test fails with the module's reason. */
#define DT_ASSERT_CUDA(m, call)                                                         \
    do {                                                                                \
        if ((call) != 0) dt_test_fail(__FILE__, __LINE__, "%s: %s", #call, (m)->why()); \
    } while (0)

/* The call fails, and the reason contains `substring`. */
#define DT_ASSERT_CUDA_FAILS(m, call, substring)                                           \
    do {                                                                                   \
        if ((call) == 0) dt_test_fail(__FILE__, __LINE__, "%s does not fail", #call);      \
        if (strstr((m)->why(), (substring)) == NULL)                                       \
            dt_test_fail(__FILE__, __LINE__, "%s: \"%s\" lacks \"%s\"", #call, (m)->why(), \
                         (substring));                                                     \
    } while (0)

#endif
