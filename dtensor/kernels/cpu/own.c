/* SPDX-License-Identifier: Apache-2.0
 *
 * What a kernel of a user's own asks of its rank: threads and scratch memory. */
#include "dtensor/kernels/cpu/cpu_internal.h"

void dt_kernel_run(const dt_kargs *args, int64_t bytes, dt_kernel_fn fn, void *arg)
{
    dti_cpu_run(args->cpu, bytes, fn, arg);
}

void dt_kernel_share(int64_t n, int64_t grain, int worker, int n_workers, int64_t *begin,
                     int64_t *end)
{
    dti_pool_share(n, grain < 1 ? 1 : grain, worker, n_workers, begin, end);
}

int dt_kernel_workers(const dt_kargs *args)
{
    return dti_pool_size(args->cpu->pool);
}

dt_status dt_kernel_scratch(const dt_kargs *args, size_t bytes, void **out)
{
    DT_CHECK(args != NULL && out != NULL, DT_ERR_ARG, "args or out is NULL");
    *out = NULL;
    DT_CHECK(args->cpu != NULL, DT_ERR_ARG, "args are not those that the kernel was called with");
    if (args->cpu->lend != NULL) return args->cpu->lend(args->cpu->lend_arg, bytes, out);
    DT_TRY(dti_cpu_scratch(args->cpu, bytes, out));
    return DT_OK;
}

void dti_cpu_lend_scratch(dti_cpu *cpu, dti_scratch_fn take, void *arg)
{
    cpu->lend = take;
    cpu->lend_arg = arg;
}
