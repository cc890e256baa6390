/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives against a serial model: every rank computes by itself what it must receive, from
 * inputs that are functions of (salt, rank, element), and compares all bytes, guards included. */
#ifndef TESTS_COMM_MODEL_H
#define TESTS_COMM_MODEL_H

#include <dtensor/mesh.h>

#include "mesh/comm/comm.h"
#include "mesh/comm/cuda_comm.h"

typedef struct comm_case {
    dti_comm_op op; /* SEND: each rank sends to the next one and receives from the one before */
    dt_dtype dtype;
    dt_reduce reduce;
    int root;
    int64_t n;      /* elements per block; of uneven blocks the most */
    bool uneven;    /* counts from 0 to n */
    bool displaced; /* blocks in reverse order, with gaps */
    bool in_place;  /* where the operation allows it; of reduce_scatter: terms in strided boxes */
    uint32_t salt;
    int n_hosts, n_world;        /* among which the ranks of the run are divided; 0: there is one */
    const dti_cuda_place *place; /* buffers lie on this rank's device; NULL: on the host */
} comm_case;

/* A case under way on one rank. */
typedef struct comm_trial {
    comm_case kase;
    dti_comm_request requests[2]; /* the second one for messages */
    int64_t *counts, *displs, *send_counts, *send_displs;
    dti_box *send_boxes, *recv_boxes;
    void *send, *recv, *want;
    size_t send_bytes, recv_bytes;
    void *send_there, *recv_there; /* on the device */
} comm_trial;

dt_status comm_trial_start(dti_comm *c, const comm_case *kase, comm_trial *t) DT_MUST_USE;
dt_status comm_trial_finish(dti_comm *c, comm_trial *t) DT_MUST_USE; /* waits, compares, frees */
dt_status comm_trial_run(dti_comm *c, const comm_case *kase) DT_MUST_USE;
void comm_trial_free(comm_trial *t); /* after a failure, when no operation is under way */

/* Random cases on all communicators of the mesh, many under way, waited for in any order; with a
 * place, half of them on the device. */
dt_status comm_random_steps(dt_mesh *mesh, uint64_t seed, int n_steps,
                            const dti_cuda_place *place) DT_MUST_USE;

/* --- on devices -------------------------------------------------------------------------------
 */

/* Rank r has device r modulo n_devices of a module, and `wish` carries the bytes between them. */
typedef struct comm_devices {
    const dti_cuda_module *module;
    const char *wish;
    int n_devices;
    dt_status (*body)(dt_mesh *mesh, const dti_cuda_place *place);
} comm_devices;

/* A dt_test_body: runs arg->body with the device open. */
dt_status comm_on_devices(dt_mesh *mesh, const void *arg) DT_MUST_USE;

/* Each operation, dtype and count in one form on each number of ranks, others for the next. */
dt_status comm_device_table(dt_mesh *mesh, const dti_cuda_place *place) DT_MUST_USE;

/* Pseudo-random bits of three numbers. */
uint64_t comm_hash(uint64_t a, uint64_t b, uint64_t c);

#endif
