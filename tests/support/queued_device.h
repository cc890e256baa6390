/* SPDX-License-Identifier: Apache-2.0
 *
 * A module of devices that are late. Each dti_cuda has a thread that does what was started on its
 * stream, in order, some time later, so that what does not await the right event meets memory that
 * is not ready: wrong values, and under ThreadSanitizer a race. Memory is the host's. It has no
 * kernels of operators; for those there is the simulated device (tests/cuda_sim/), whose streams
 * run at once.
 *
 * Its NCCL does each operation on the streams of all its ranks, which wait for each other there as
 * GPUs do: a rank that is missing leaves the others' streams stuck until they abort. So do its
 * kernels that wait for each other. Graphs can be recorded of everything but events. */
#ifndef TESTS_QUEUED_DEVICE_H
#define TESTS_QUEUED_DEVICE_H

#include "base/cuda_api.h"

/* With NCCL, or without. */
const dti_cuda_module *queued_module(void);
const dti_cuda_module *queued_module_without_nccl(void);

/* All dti_cuda of one device number lie on it. Numbers from 0 to 7; devices 4 to 7 cannot be
 * reached from 0 to 3. */
enum { QUEUED_DEVICES = 8, QUEUED_REACH = 4 };

/* Copies and sums of c fail from now on, after `n` more. */
void queued_fail_after(dti_cuda *c, int n);

/* For the other files of this module: runs `run` with a copy of `bytes` bytes of `arg`, in order of
 * c's stream. */
int queued_push(dti_cuda *c, void (*run)(void *arg), const void *arg, size_t bytes);
int queued_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void queued_add(const dti_cuda_sum *sum);
int queued_count_down(dti_cuda *c); /* as queued_fail_after() wants it */
/* From a task: what sync() says. */
void queued_fault(dti_cuda *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern const dti_nccl_calls queued_nccl;

size_t queued_spin_bytes(void);
int queued_spin_sum(dti_cuda *c, const dti_cuda_circle *with, const dti_cuda_spin_job *sum);
int queued_spin_meet(dti_cuda *c, const dti_cuda_circle *with);

#endif
