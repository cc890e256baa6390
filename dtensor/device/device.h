/* SPDX-License-Identifier: Apache-2.0
 *
 * The device of a rank: its memory and the state of its kernels. CPU only so far. */
#ifndef DTI_DEVICE_H
#define DTI_DEVICE_H

#include <dtensor/tensor.h>

#include "dtensor/device/memory.h"
#include "dtensor/kernels/cpu/cpu.h"

/* Told of every collective that a move of tensors makes: over which mesh dims (bits), and how many
 * bytes this rank receives. */
typedef void (*dti_observer)(void *arg, dt_comm_kind kind, uint32_t dims, int64_t bytes);

typedef struct dti_device {
    dt_runtime *rt;
    bool dry; /* memory is counted, not taken; kernels do not run */
    dti_memory *memory;
    dti_cpu *cpu;
    struct dt_tensor *free_tensors; /* headers to reuse */
    struct dti_move_cache *moves;   /* plans to reuse */
    dti_observer observer;          /* NULL: nobody listens */
    void *observer_arg;
} dti_device;

/* The device of this rank, made on first use (DTI_SLOT_DEVICE). */
dt_status dti_device_of(dt_runtime *rt, dti_device **out) DT_MUST_USE;

#endif
