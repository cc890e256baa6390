/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the CPU kernels of one rank, and how kernels split their work over its pool. */
#ifndef DTI_CPU_INTERNAL_H
#define DTI_CPU_INTERNAL_H

#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/kernels/cpu/cpu_random.h"
#include "dtensor/kernels/cpu/cpu_rows.h"
#include "dtensor/kernels/cpu/cpu_steps.h"
#include "dtensor/kernels/cpu/delta_step.h"
#include "dtensor/kernels/cpu/dots.h"
#include "dtensor/kernels/cpu/onednn.h"
#include "dtensor/kernels/cpu/panels.h"

struct dti_attention_ops;

struct dti_cpu {
    dti_isa isa;
    bool any_order;          /* of additions, in products of many rows */
    dti_pool *pool;          /* borrowed */
    const dti_row_ops *rows; /* by dtype */
    dti_random_fn random;
    const dti_step_ops *steps;
    dti_delta_fn delta;
    const dti_dots_ops *dots[DTI_N_DOTS_DTYPES];
    const dti_panel_ops *panels[DTI_N_DOTS_DTYPES]; /* NULL: there are none */
    const struct dti_attention_ops *attention;
    dti_onednn *onednn; /* NULL until the first large product */
    void *scratch;
    size_t scratch_bytes;
    void *outer; /* scratch of kernels that call others */
    size_t outer_bytes;
    dti_scratch_fn lend; /* scratch of a user's kernel on a GPU; NULL: none runs */
    void *lend_arg;
    void (*beside)(void *arg); /* what else the rank's thread has to do; NULL: nothing */
    void *beside_arg;
};

/* Waking a worker costs some microseconds: worth it from this many bytes of traffic. The products
 * and the attention of a decode step read their bytes once and are often the only parallel work for
 * a while, so that workers have fallen asleep: there it takes a tenth of a millisecond of reading.
 * With less, two threads made a model of 2 M parameters up to three times slower than one. */
enum { DTI_PARALLEL_BYTES = 64 << 10, DTI_PARALLEL_STREAM_BYTES = 512 << 10 };

/* Runs fn on every worker if the work touches enough bytes, else on the caller alone. */
static inline void dti_cpu_run(const dti_cpu *cpu, int64_t bytes, dti_pool_fn fn, void *arg)
{
    dti_pool_run(bytes >= DTI_PARALLEL_BYTES ? cpu->pool : NULL, fn, arg);
}

/* The same for kernels of a decode step. */
static inline void dti_cpu_run_stream(const dti_cpu *cpu, int64_t bytes, dti_pool_fn fn, void *arg)
{
    dti_pool_run(bytes >= DTI_PARALLEL_STREAM_BYTES ? cpu->pool : NULL, fn, arg);
}

/* Between parts of a kernel that may take long. */
static inline void dti_cpu_beside(const dti_cpu *cpu, int worker)
{
    if (worker == 0 && cpu->beside != NULL) cpu->beside(cpu->beside_arg);
}

static inline int64_t dti_bytes(const dt_local *x)
{
    return dti_local_count(x) * (int64_t)dt_dtype_size(x->dtype);
}

/* DT_ERR_UNSUPPORTED unless x is f32, bf16 or f16; otherwise the loops for it. */
dt_status dti_cpu_rows(const dti_cpu *cpu, const char *op, const dt_local *x,
                       const dti_row_ops **out) DT_MUST_USE;

/* The loops of an instruction set, [DTI_N_ROW_DTYPES]. */
const dti_row_ops *dti_cpu_rows_of(dti_isa isa);

/* Positions are contents of a tensor, so no rule saw them: each must be a row of the cache. */
dt_status dti_check_positions(const char *op, const dt_local *positions, int64_t n_rows);

#endif
