/* SPDX-License-Identifier: Apache-2.0
 *
 * The device of a rank: its memory and the state of its kernels. CPU only so far. */
#ifndef DTI_DEVICE_H
#define DTI_DEVICE_H

#include <dtensor/tensor.h>

#include "dtensor/device/memory.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "placements/move.h"

/* Told of every step of a move that communicates, with the bytes that this rank receives, and of
 * every tensor that gets memory of its own. `step` and `shape` (global) hold during the call. */
typedef struct dti_observer {
    void (*moved)(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                  int64_t bytes);
    void (*made)(void *arg, const dt_layout *layout, const int64_t *shape);
    void *arg;
} dti_observer;

typedef struct dti_device {
    dt_runtime *rt;
    bool dry; /* memory is counted, not taken; kernels do not run */
    dti_memory *memory;
    dti_cpu *cpu;
    struct dt_tensor *free_tensors; /* headers to reuse */
    struct dti_move_cache *moves;   /* plans to reuse */
    const dti_observer *observer;   /* NULL: nobody listens */
} dti_device;

/* The device of this rank, made on first use (DTI_SLOT_DEVICE). */
dt_status dti_device_of(dt_runtime *rt, dti_device **out) DT_MUST_USE;

#endif
