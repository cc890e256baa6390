/* SPDX-License-Identifier: Apache-2.0
 *
 * The device of a rank: its memory, its kernels, and how bytes reach it. Everything above sees
 * tensors and this table; on the CPU its functions are plain copies, on a GPU they are started on
 * the rank's stream, in order, and only what says so waits. */
#ifndef DTI_DEVICE_H
#define DTI_DEVICE_H

#include <dtensor/tensor.h>

#include "dtensor/device/device_memory.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/kernels/fused.h"
#include "placements/move.h"

/* Told of every step of a move that communicates, with the bytes that this rank receives, and of
 * every tensor that gets memory of its own. `step` and `shape` (global) hold during the call. Of
 * tensors that travel together the first is a call, the others are none. */
typedef struct dti_observer {
    void (*moved)(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                  const dt_comm_counter *count);
    void (*made)(void *arg, const dt_layout *layout, const int64_t *shape);
    void *arg;
} dti_observer;

/* Of what kernels take. A dry run asks it, others tell it: `seconds` is 0, or what the call took.
 * Returns what is counted. */
typedef struct dti_meter {
    double (*took)(void *arg, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                   double seconds);
    void *arg;
} dti_meter;

typedef struct dti_device dti_device;
struct dti_random_fill; /* dtensor/kernels/random_fill.h */
struct dti_upload;

/* `to` and `from` are memory of the device unless it says host. */
typedef struct dti_device_ops {
    const char *name;  /* "cpu", "cuda" */
    bool host_visible; /* the host may read and write the device's memory in place */

    /* From and to the host: write() has read `from` when it returns, read() waits. */
    dt_status (*write)(dti_device *d, void *to, const void *from_host, size_t bytes);
    dt_status (*read)(dti_device *d, void *to_host, const void *from, size_t bytes);

    /* For many bytes of the host: device/upload.h. Not called where host_visible. */
    dt_status (*upload)(dti_device *d, struct dti_upload **out);

    /* Within the device; source and destination do not overlap. */
    dt_status (*copy)(dti_device *d, void *to, const void *from, size_t bytes);
    dt_status (*copy_box)(dti_device *d, void *to, const dti_box *to_box, const void *from,
                          const dti_box *from_box, size_t element_bytes);

    /* n times the bit pattern of `element`; random values as slot fill_random of base/cuda_api.h
     * says. Not called where host_visible: workers of the host fill there. */
    dt_status (*fill)(dti_device *d, void *to, int64_t n, const void *element,
                      size_t element_bytes);
    dt_status (*fill_random)(dti_device *d, void *to, const dti_box *global,
                             const struct dti_random_fill *how);

    /* x / divisor in place, for a sum that is an average in part or by steps: integers towards
     * zero, as the collectives do. Half floats are divided in f32 and rounded once. */
    dt_status (*divide)(dti_device *d, dt_local *x, int64_t divisor);

    /* An operator's kernel. */
    dt_status (*run)(dti_device *d, const dt_op *op, dt_kargs *args);

    /* Of a device that holds calls back (dtensor/ops/fusion.h), which all other functions start:
     * run() that leaves them held, for a call that needs none of them; and one kernel for n chains
     * of them. NULL: none is ever held. */
    dt_status (*run_beside)(dti_device *d, const dt_op *op, dt_kargs *args);
    dt_status (*run_fused)(dti_device *d, dti_fused which, const dti_fused_chain *chains, int n);

    /* A collective whose buffers are memory of the device; see dti_comm_run(). Its effect is in
     * order with what is started before and after it. */
    dt_status (*communicate)(dti_device *d, dti_comm *comm, const dti_comm_call *call);

    /* Recording: whether it can be done; what runs between rehearse() on and off is what will be
     * recorded; what is started between begin and end is kept, not run; play() starts all of it, on
     * all ranks of comm. While it is on, memory is not taken and the host is not asked:
     * DT_ERR_UNSUPPORTED. Not called where records() says false. */
    bool (*records)(const dti_device *d);
    void (*rehearse)(dti_device *d, bool on);
    dt_status (*record_begin)(dti_device *d);
    dt_status (*record_end)(dti_device *d, void **recording);
    dt_status (*play)(dti_device *d, dti_comm *comm, void *recording);
    void (*forget)(dti_device *d, void *recording);

    void (*close)(dti_device *d); /* tensors' memory has been given back */
} dti_device_ops;

/* What exchanges that are started now are for: back ends compare the tag, messages have the name.
 */
typedef struct dti_exchange_claim {
    const char *name; /* NULL: nothing is claimed */
    uint8_t tag;
} dti_exchange_claim;

struct dti_device {
    dt_runtime *rt;
    const dti_device_ops *ops;
    bool dry;                /* memory is counted, not taken; kernels do not run */
    bool gathers_tokens;     /* none goes to the ranks of its experts alone (dispatch.h) */
    dti_allocator allocator; /* of memory: the device's; take NULL: the host's */
    dti_allocator pinned;    /* of the host's that kernels of a GPU reach; take NULL: none */
    dti_memory *memory;
    dti_cpu *cpu;                 /* kernels of the host */
    struct dti_cuda_device *cuda; /* NULL on the CPU */
    struct dti_fusion *fusion;    /* calls that are held back; NULL: none ever is */
    int64_t n_on_host;            /* operators so far that ran on copies, having no kernel there */
    bool ended;                   /* the run has: there is no memory and no stream any more */
    struct dt_tensor *free_tensors; /* headers to reuse */
    struct dt_tensor *tensors;      /* all headers */
    struct dti_move_cache *moves;   /* plans to reuse */
    uint32_t stamps;                /* given to records and collections of gradients so far */
    const dti_observer *observer;   /* NULL: nobody listens */
    const dti_meter *meter;         /* NULL: nobody counts time */
    struct dti_lane *lane;          /* the rank's second pair of hands; NULL: not yet, or none */
    struct dti_job *job;            /* what the lane is to do, while it is written down */
    dti_memory *moving;             /* part of memory, where moves go on that were begun */
    dti_memory *gathering;          /* part of memory, of what is gathered (gather.h) */
    struct dti_away *away;          /* what lies elsewhere (away.h) */
    dti_exchange_claim claim;
    struct dt_pending *dropped;    /* begun moves that nobody waits for */
    struct dti_channels *channels; /* NULL: none were ever made */
};

/* The device of this rank, made on first use. */
dt_status dti_device_of(dt_runtime *rt, dti_device **out) DT_MUST_USE;

/* device_cpu.c, device_cuda.c */
extern const dti_device_ops dti_device_cpu;
extern const dti_device_ops dti_device_cuda;

/* The GPU that the runtime has: sets d's ops, cuda and allocator. */
dt_status dti_device_cuda_open(dti_device *d) DT_MUST_USE;

#endif
