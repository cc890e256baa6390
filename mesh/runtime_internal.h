/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind a runtime, and its making: for dt_run() only. */
#ifndef DTI_RUNTIME_INTERNAL_H
#define DTI_RUNTIME_INTERNAL_H

#include <stdatomic.h>

#include "mesh/comm/flight.h"
#include "mesh/comm/slow_link.h"
#include "mesh/comm/track.h"
#include "mesh/core_binding.h"
#include "mesh/runtime.h"

enum {
    DTI_ISA_BYTES = 24,
    DTI_DEVICE_BYTES = 24,
    DTI_MAX_AT_END = 4,
    DTI_MAX_SLOTS = 16,
    DTI_MAX_OPEN = 8
};

struct dt_runtime {
    int rank;
    int size;
    int n_threads;
    bool dry;
    dt_runtime *like; /* of a dry runtime: the one whose registries it looks into, or NULL */
    dti_comm *world;
    dti_slow_links links; /* simulated; none: n is 0 */
    dti_beside beside;
    struct dti_world *lanes;     /* whose ranks may have helpers; NULL: they may not */
    const dt_topology *bound_by; /* whose cores the rank's threads keep to; NULL: to none */
    dti_cuda_world *cuda;        /* or NULL */
    const char *cuda_wish;       /* what carries memory of devices (DTENSOR_CUDA_COMM), or NULL */
    dti_pool *pool;              /* NULL: this rank computes alone */
    dt_log_fn log;
    void *log_arg;
    char isa[DTI_ISA_BYTES];
    bool any_order; /* of additions in products of many rows */
    char device[DTI_DEVICE_BYTES];
    struct dti_shares *shares; /* of the ranks of this process; NULL: none */
    int place;                 /* among the ranks of this machine */
    dti_cuda_place *gpu;       /* gpu.h; NULL: none */
    char cores[DT_CORES_TEXT_BYTES];
    dti_flight flight;
    dti_track tracks[DT_N_LANES];
    struct {
        int64_t begin_ns;
        char name[DT_EVENT_NAME_BYTES];
    } open[DTI_MAX_OPEN]; /* events of the program that have not ended */
    int n_open;           /* may be more than there is room for */
    _Atomic int64_t live; /* handles, and one for the run until it has ended */
    struct {
        const dti_live *kind;
        int64_t n;
    } of_kind[DTI_MAX_LIVE]; /* of live, meshes left out, in the order of their first ones */
    bool ended;              /* rank_main has returned: nothing can be made any more */
    bool failed;             /* with an error, which leaves objects behind */
    struct {
        dti_slot_destroy end;
        void *object;
    } at_end[DTI_MAX_AT_END];
    int n_at_end;

    struct {
        const dti_slot *slot;
        void *object;
    } slots[DTI_MAX_SLOTS]; /* in order of creation */
    int n_slots;

    dti_comm **comms; /* every communicator made by meshes of this rank, until the rank ends */
    size_t n_comms;
    size_t comms_capacity;
};

/* DT_ERR_ARG for a name that is too long; kernels check the others when they are made. */
dt_status dti_check_isa(const char *isa) DT_MUST_USE;

/* DT_ERR_ARG unless it is NULL or one of the words of dt_run_options.products. */
dt_status dti_check_products(const char *products) DT_MUST_USE;

/* Takes the world communicator and the pool, even when it fails. */
dt_status dti_runtime_create(const dt_run_options *options, dti_comm *world, dti_pool *pool,
                             const char *cores, dt_runtime **out) DT_MUST_USE;

/* Ends the rank's part in the run: what it holds of the machine is given back, and what it did not
 * release is named in the log. The struct stays until the last object of it is released. Accepts
 * NULL. */
void dti_runtime_destroy(dt_runtime **runtime);

/* The communicator of these world ranks (this rank among them), made on first use. */
dt_status dti_runtime_comm(dt_runtime *rt, const int *world_ranks, int n, const char *name,
                           dti_comm **out) DT_MUST_USE;

/* dti_first_says() among the ranks of a communicator. */
dt_status dti_first_of_comm_says(dti_comm *comm, bool first, dt_status mine) DT_MUST_USE;

#endif
