/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the carrier nccl share. NCCL moves bytes of devices between ranks that have one
 * each; the communicator of the hosts carries its ids, compares what ranks do, and finds out who is
 * missing when a stream is stuck.
 *
 * An operation is started on the stream in start(), in the order of calls on all communicators of
 * a rank, which is the same on its peers; so streams cannot wait for each other in a circle.
 * Messages are kept until the rank waits for one, or on hosts, or starts a collective of devices,
 * and go as a group: ranks that send to each other first and receive then do not block each other,
 * if nothing of that comes in between. */
#ifndef DTI_NCCL_H
#define DTI_NCCL_H

#include "mesh/comm/cuda_comm.h"

enum { DTI_NCCL_MESSAGES = 16 };

/* Of one communicator. */
typedef struct dti_nccl_part {
    struct dti_nccl_part *next;
    dti_comm *comm; /* NULL: closed, waits for its end */
    dti_nccl *nccl; /* NULL: not opened yet */
    uint64_t seq;   /* collectives */
    uint64_t n_messages;
    int n_kept;       /* messages not yet started */
    uint64_t kept_at; /* when the first of them was kept, of all messages of this rank */
    dti_comm_call kept[DTI_NCCL_MESSAGES];
    int64_t kept_n[DTI_NCCL_MESSAGES]; /* their counts */
} dti_nccl_part;

/* Of one rank. */
typedef struct dti_nccl_rank {
    dti_nccl_part *parts;
    bool aborted;
    uint64_t n_kept; /* messages ever kept */
} dti_nccl_rank;

/* An operation that is being started. */
typedef struct dti_nccl_job {
    dti_comm *c;
    dti_nccl_part *part;
    const dti_comm_request *request; /* for words, and its deadline */
    const dti_cuda_place *place;
    const dti_nccl_calls *api;
} dti_nccl_job;

/* nccl.c: after each call of the api, which has said whether it `failed`: waits until the next one
 * may be made. */
dt_status dti_nccl_settle(const dti_nccl_job *j, int failed, const char *what) DT_MUST_USE;

/* nccl_ops.c: starts a collective on the stream. */
dt_status dti_nccl_collective(const dti_nccl_job *j, const dti_comm_call *call) DT_MUST_USE;

#endif
