/* SPDX-License-Identifier: Apache-2.0
 *
 * The slots of the module table, by file. Their contracts stand in base/cuda_api.h. */
#ifndef DTI_CUDA_MODULE_PARTS_H
#define DTI_CUDA_MODULE_PARTS_H

#include "dtensor/kernels/cuda/cuda_internal.h"

/* cuda_runtime.c */
void dti_cuda_versions_read(dti_cuda_versions *out);
int dti_cuda_properties_read(int device, dti_cuda_properties *out);
int dti_cuda_open(int device, dti_cuda **out);
void dti_cuda_close(dti_cuda *c);
int dti_cuda_reach(dti_cuda *c, int device);
int64_t dti_cuda_launches(const dti_cuda *c);

/* libraries.c */
void dti_cuda_libraries_read(dti_cuda_versions *out);

/* errors.c */
const char *dti_cuda_why(void);

/* cuda_memory.c */
int dti_cuda_alloc(dti_cuda *c, size_t bytes, dti_cuda_memory kind, void **out);
void dti_cuda_release(dti_cuda *c, dti_cuda_memory kind, void *data);
int dti_cuda_copy(dti_cuda *c, void *to, const void *from, size_t bytes, dti_cuda_way way);
int dti_cuda_clear(dti_cuda *c, void *to, size_t bytes);
void dti_cuda_memory_close(dti_cuda *c); /* scratch and staging */

/* norms.cu, heads.cu */
int dti_add_norm_cuda(dti_cuda *c, const dti_fused_chain *chains, int n);
int dti_heads_cuda(dti_cuda *c, const dti_fused_chain *chains, int n);

/* boxes.cu, box_sums.cu, spin.cu, random.cu in dtensor/kernels/cuda */
int dti_cuda_copy_box(dti_cuda *c, void *to, const dti_cuda_box *to_box, const void *from,
                      const dti_cuda_box *from_box, size_t element_bytes);
int dti_cuda_sum_boxes(dti_cuda *c, const dti_cuda_sum *sum);
size_t dti_cuda_spin_bytes(void);
int dti_cuda_spin_sum(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum);
int dti_cuda_spin_meet(dti_cuda *c, const dti_cuda_circle *with);
int dti_cuda_divide(dti_cuda *c, void *x, int64_t n, int dtype, int64_t divisor);
int dti_cuda_fill(dti_cuda *c, void *to, int64_t n, const void *element, size_t element_bytes);
int dti_cuda_fill_random(dti_cuda *c, void *to, const dti_cuda_box *global,
                         const struct dti_random_fill *how);

/* order.c */
void *dti_cuda_stream(dti_cuda *c);
int dti_cuda_done(dti_cuda *c, bool *done);
int dti_cuda_sync(dti_cuda *c);
int dti_cuda_event_create(dti_cuda *c, dti_cuda_event **out);
void dti_cuda_event_destroy(dti_cuda_event *e);
int dti_cuda_event_record(dti_cuda *c, dti_cuda_event *e);
int dti_cuda_event_await(dti_cuda *c, dti_cuda_event *e);
int dti_cuda_event_done(dti_cuda_event *e, bool *done);
int dti_cuda_capture_begin(dti_cuda *c);
int dti_cuda_capture_end(dti_cuda *c, dti_cuda_graph **out);
int dti_cuda_graph_launch(dti_cuda *c, dti_cuda_graph *graph);
void dti_cuda_graph_destroy(dti_cuda_graph *graph);

/* nccl_module.c, where there is NCCL */
extern const dti_nccl_calls dti_nccl_calls_table;

#endif
