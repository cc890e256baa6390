/* SPDX-License-Identifier: Apache-2.0
 *
 * The module's NCCL: its calls as base/cuda_api.h has them. Communicators do not block: each call
 * returns at once, and ready() polls what NCCL says of its progress. What they are used for stands
 * in mesh/comm/nccl*.c. */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/device/cuda/module_parts.h"

/* Non-blocking communicators, and configurations that say their size. */
_Static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 1), "NCCL 2.18.1 or newer is needed");
_Static_assert(sizeof(ncclUniqueId) == DTI_CUDA_ID_BYTES, "an id of NCCL has 128 bytes");

struct dti_nccl {
    dti_cuda *c;
    ncclComm_t comm; /* NULL: aborted */
    bool finishing;
};

/* What is still going on is no failure. */
static int check(ncclResult_t result, ncclComm_t comm, const char *what)
{
    const char *more;

    if (result == ncclSuccess || result == ncclInProgress) return 0;
    more = ncclGetLastError(comm);
    return dti_cuda_fail("%s: %s%s%s (NCCL_DEBUG=WARN says more)", what, ncclGetErrorString(result),
                         more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* A library older than the header would read a configuration that it does not know. */
static int check_version(void)
{
    int found = 0;

    if (check(ncclGetVersion(&found), NULL, "the version of NCCL")) return -1;
    if (found >= NCCL_VERSION_CODE) return 0;
    return dti_cuda_fail("NCCL %d was found, but this module was built with %d: an older library "
                         "does not fit; let the loader find the newer one (LD_LIBRARY_PATH)",
                         found, NCCL_VERSION_CODE);
}

static int make_id(unsigned char id[DTI_CUDA_ID_BYTES])
{
    ncclUniqueId unique;

    if (check_version() || check(ncclGetUniqueId(&unique), NULL, "making an id of NCCL")) return -1;
    memcpy(id, &unique, sizeof unique);
    return 0;
}

static int open_comm(dti_cuda *c, const unsigned char id[DTI_CUDA_ID_BYTES], int rank, int size,
                     dti_nccl **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId unique;
    dti_nccl *n;

    *out = NULL;
    if (check_version() || dti_cuda_enter(c)) return -1;
    n = calloc(1, sizeof *n);
    if (n == NULL) return dti_cuda_fail("no memory of the host for a communicator of NCCL");
    n->c = c;
    config.blocking = 0;
    memcpy(&unique, id, sizeof unique);
    if (check(ncclCommInitRankConfig(&n->comm, size, unique, rank, &config), NULL,
              "opening a communicator of NCCL")) {
        free(n);
        return -1;
    }
    *out = n;
    return 0;
}

static int ready(dti_nccl *n)
{
    ncclResult_t state = ncclSuccess;

    if (n->comm == NULL) return dti_cuda_fail("this communicator of NCCL was aborted");
    if (check(ncclCommGetAsyncError(n->comm, &state), n->comm, "asking NCCL how it is")) return -1;
    if (check(state, n->comm, "NCCL")) return -1;
    return state == ncclSuccess;
}

static void abort_comm(dti_nccl *n)
{
    if (n->comm == NULL) return;
    (void)dti_cuda_enter(n->c);
    (void)ncclCommAbort(n->comm);
    n->comm = NULL;
}

static int finish(dti_nccl *n)
{
    if (n->comm == NULL || dti_cuda_enter(n->c)) return -1;
    n->finishing = true;
    return check(ncclCommFinalize(n->comm), n->comm, "finishing a communicator of NCCL");
}

static void close_comm(dti_nccl *n)
{
    if (n->comm != NULL && n->finishing && ready(n) == 1) {
        (void)ncclCommDestroy(n->comm);
        n->comm = NULL;
    }
    abort_comm(n);
    free(n);
}

/* --- operations ---------------------------------------------------------------------------------
 */

static ncclDataType_t type_of(int dtype)
{
    switch ((dt_dtype)dtype) {
    case DT_F32:
        return ncclFloat32;
    case DT_F64:
        return ncclFloat64;
    case DT_BF16:
        return ncclBfloat16;
    case DT_F16:
        return ncclFloat16;
    case DT_I32:
        return ncclInt32;
    case DT_I64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

static ncclRedOp_t operation_of(int reduce)
{
    switch ((dt_reduce)reduce) {
    case DT_AVG:
        return ncclAvg;
    case DT_PROD:
        return ncclProd;
    case DT_MIN:
        return ncclMin;
    case DT_MAX:
        return ncclMax;
    default:
        return ncclSum;
    }
}

/* Aborted, or on another device than the thread's. */
static int enter(dti_nccl *n)
{
    if (n->comm == NULL) return dti_cuda_fail("this communicator of NCCL was aborted");
    return dti_cuda_enter(n->c);
}

static int all_reduce(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                      int reduce)
{
    if (enter(n)) return -1;
    return check(ncclAllReduce(send, recv, (size_t)count, type_of(dtype), operation_of(reduce),
                               n->comm, n->c->stream),
                 n->comm, "ncclAllReduce");
}

static int all_gather(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype)
{
    if (enter(n)) return -1;
    return check(ncclAllGather(send, recv, (size_t)count, type_of(dtype), n->comm, n->c->stream),
                 n->comm, "ncclAllGather");
}

static int reduce_scatter(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                          int reduce)
{
    if (enter(n)) return -1;
    return check(ncclReduceScatter(send, recv, (size_t)count, type_of(dtype), operation_of(reduce),
                                   n->comm, n->c->stream),
                 n->comm, "ncclReduceScatter");
}

static int broadcast(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype, int root)
{
    if (enter(n)) return -1;
    return check(
        ncclBroadcast(send, recv, (size_t)count, type_of(dtype), root, n->comm, n->c->stream),
        n->comm, "ncclBroadcast");
}

static int group_begin(dti_nccl *n)
{
    return enter(n) ? -1 : check(ncclGroupStart(), n->comm, "ncclGroupStart");
}

static int post_send(dti_nccl *n, const void *send, int64_t count, int dtype, int peer)
{
    if (enter(n)) return -1;
    return check(ncclSend(send, (size_t)count, type_of(dtype), peer, n->comm, n->c->stream),
                 n->comm, "ncclSend");
}

static int post_recv(dti_nccl *n, void *recv, int64_t count, int dtype, int peer)
{
    if (enter(n)) return -1;
    return check(ncclRecv(recv, (size_t)count, type_of(dtype), peer, n->comm, n->c->stream),
                 n->comm, "ncclRecv");
}

/* The group belongs to the thread and is ended whatever has become of the communicator. */
static int group_end(dti_nccl *n)
{
    return check(ncclGroupEnd(), n->comm, "ncclGroupEnd");
}

const dti_nccl_calls dti_nccl_calls_table = {
    .id = make_id,
    .open = open_comm,
    .ready = ready,
    .abort = abort_comm,
    .finish = finish,
    .close = close_comm,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .group_begin = group_begin,
    .send = post_send,
    .recv = post_recv,
    .group_end = group_end,
};
