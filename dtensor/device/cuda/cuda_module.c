/* SPDX-License-Identifier: Apache-2.0
 *
 * The module's one symbol. Compiled twice: against CUDA, and against the simulated device of the
 * tests. */
#include "dtensor/device/cuda/module_parts.h"
#include "dtensor/kernels/cuda/attention_cudnn.h"
#include "dtensor/kernels/cuda/cuda_rows.h"

/* A kernel is started on the device that is the thread's at that moment. */
#define ROW(row)                                                   \
    int dti_##row##_cuda(dti_cuda *c, const dt_kargs *args);       \
    static int run_##row(dti_cuda *c, const dt_kargs *args)        \
    {                                                              \
        return dti_cuda_enter(c) ? -1 : dti_##row##_cuda(c, args); \
    }
DTI_CUDA_ROWS(ROW)
#undef ROW

static int add_norm(dti_cuda *c, const dti_fused_chain *chains, int n)
{
    return dti_cuda_enter(c) ? -1 : dti_add_norm_cuda(c, chains, n);
}

static int heads(dti_cuda *c, const dti_fused_chain *chains, int n)
{
    return dti_cuda_enter(c) ? -1 : dti_heads_cuda(c, chains, n);
}

static int copy_box(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
                    const dti_cuda_box *from_box, size_t element_bytes)
{
    if (dti_cuda_enter(c)) return -1;
    return dti_cuda_copy_box(c, to, to_box, from, from_box, element_bytes);
}

static int sum_boxes(dti_cuda *c, const dti_cuda_sum *sum)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_sum_boxes(c, sum);
}

static int spin_sum(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_spin_sum(c, with, sum);
}

static int spin_meet(dti_cuda *c, const dti_cuda_circle *with)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_spin_meet(c, with);
}

static int divide(dti_cuda *c, void *x, int64_t n, int dtype, int64_t divisor)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_divide(c, x, n, dtype, divisor);
}

static int fill(dti_cuda *c, void *to, int64_t n, const void *element, size_t element_bytes)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_fill(c, to, n, element, element_bytes);
}

static int fill_random(dti_cuda *c, void *to, const dti_cuda_box *global,
                       const struct dti_random_fill *how)
{
    return dti_cuda_enter(c) ? -1 : dti_cuda_fill_random(c, to, global, how);
}

#define ROW(row) { #row, run_##row },
static const dti_cuda_row rows[] = { DTI_CUDA_ROWS(ROW){ NULL, NULL } };
#undef ROW

static const dti_cuda_kernels kernels = {
    .rows = rows,
    .n_rows = (int)(sizeof rows / sizeof rows[0]) - 1,
    .fused = { [DTI_FUSED_ADD_NORM] = add_norm, [DTI_FUSED_HEADS] = heads },
    .fill_random = fill_random
};

extern const dti_cuda_module dti_cuda_module_table;

__attribute__((visibility("default"))) const dti_cuda_module dti_cuda_module_table = {
    .version = DTI_CUDA_API_VERSION,
#ifdef DTI_CUDA_SIMULATED
    .name = "simulated",
#else
    .name = "cuda",
#endif
    .versions = dti_cuda_versions_read,
    .properties = dti_cuda_properties_read,
    .open = dti_cuda_open,
    .close = dti_cuda_close,
    .reach = dti_cuda_reach,
    .launches = dti_cuda_launches,
    .why = dti_cuda_why,
    .alloc = dti_cuda_alloc,
    .release = dti_cuda_release,
    .copy = dti_cuda_copy,
    .clear = dti_cuda_clear,
    .copy_box = copy_box,
    .sum = sum_boxes,
    .spin_bytes = dti_cuda_spin_bytes,
    .spin_sum = spin_sum,
    .spin_meet = spin_meet,
    .divide = divide,
    .fill = fill,
    .stream = dti_cuda_stream,
    .done = dti_cuda_done,
    .sync = dti_cuda_sync,
    .event_create = dti_cuda_event_create,
    .event_destroy = dti_cuda_event_destroy,
    .event_record = dti_cuda_event_record,
    .event_await = dti_cuda_event_await,
    .event_done = dti_cuda_event_done,
    .capture_begin = dti_cuda_capture_begin,
    .capture_end = dti_cuda_capture_end,
    .graph_launch = dti_cuda_graph_launch,
    .graph_destroy = dti_cuda_graph_destroy,
    .kernels = &kernels,
    .cudnn_ask = dti_cudnn_ask,
    .cudnn_use = dti_cudnn_use_read,
#ifdef DTI_WITH_NCCL
    .nccl = &dti_nccl_calls_table,
#endif
};
