/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a kernel of the CUDA module takes. Launches are recorded into a graph, as a decode step
 * is, so the time is the GPU's; operands rotate over memory that is larger than its caches. */
#ifndef DT_BENCH_GPU_H
#define DT_BENCH_GPU_H

#include "dtensor/device/cuda_kernels.h"
#include "dtensor/kernels/kernel.h"

/* Floats are random in +- 1/2, ids random rows of a table, positions the last of the context. */
typedef enum bench_kind_of { BENCH_FLOATS, BENCH_IDS, BENCH_POSITIONS } bench_kind_of;

typedef struct bench_operand {
    bench_kind_of kind;
    dt_local local; /* no data */
} bench_operand;

enum { BENCH_MAX_IN = 4 };

typedef struct bench_kernel {
    const char *row, *of; /* the operator, and of what */
    int n_in;
    bench_operand in[BENCH_MAX_IN];
    dt_local out;
    int in_place; /* out is operand in_place - 1; 0: none */
    const void *attr;
    double bytes; /* moved at the least; 0: every operand and the result once */
    double flop;
} bench_kernel;

typedef struct bench_gpu {
    const dti_cuda_module *m;
    dti_cuda *c;
    dti_cuda_properties about;
    int64_t rounds, launches; /* samples, and kernels in each */
    int64_t n_ids, context;   /* rows of tables; positions end here */
} bench_gpu;

/* `module`: its file, or NULL. */
dt_status bench_gpu_open(const char *module, int device, bench_gpu *g) DT_MUST_USE;
void bench_gpu_close(bench_gpu *g);

/* Median seconds of one launch. */
dt_status bench_gpu_time(const bench_gpu *g, const bench_kernel *k, double *seconds) DT_MUST_USE;

double bench_gpu_bytes(const bench_kernel *k); /* k->bytes, or what stands for 0 */

#endif
