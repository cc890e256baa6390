/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU of a rank: chosen, opened and joined with those of the other ranks when a run starts, so
 * that what cannot be had is said before anything is computed. */
#ifndef DTI_GPU_H
#define DTI_GPU_H

#include "mesh/comm/cuda_comm.h"
#include "mesh/runtime.h"

/* This rank's; NULL: it computes on the CPU. */
const dti_cuda_place *dti_runtime_gpu(const dt_runtime *rt);

/* Opens what dt_run_options.device asks for. Collective over the world. "auto" is the CPU unless
 * every rank has a GPU; with a module, but without a GPU, a line in the log says why.
 * Errors: DT_ERR_UNSUPPORTED there is none, or no module, or ranks cannot be joined; DT_ERR_DEVICE;
 * DT_ERR_COMM. */
dt_status dti_gpu_open(dt_runtime *rt) DT_MUST_USE;
void dti_gpu_close(dt_runtime *rt); /* after the last use of its memory */

/* DT_ERR_ARG unless it is "cpu", "auto", "cuda", "cuda:N" or NULL. */
dt_status dti_check_device(const char *device) DT_MUST_USE;

/* The CUDA module, as the environment and the place of the library say. DT_ERR_UNSUPPORTED. */
dt_status dti_gpu_module(const dti_cuda_module **out) DT_MUST_USE;

/* The number of the GPU for a rank that asks for `device` ("cuda", "cuda:1", "auto") and is the
 * place-th of its machine. DT_ERR_UNSUPPORTED says why there is none. */
dt_status dti_gpu_choose(const char *device, int place, const dti_cuda_module **module,
                         int *index) DT_MUST_USE;

/* GPU `index`, not opened yet, with what the environment says of it. */
dti_cuda_place dti_gpu_place(const dti_cuda_module *module, int index);

#endif
