/* SPDX-License-Identifier: Apache-2.0
 *
 * When things happen: the stream, events, graphs. */
#include <stdlib.h>

#include "dtensor/device/cuda/module_parts.h"

struct dti_cuda_event {
    cudaEvent_t event;
};

struct dti_cuda_graph {
    cudaGraphExec_t exec;
};

void *dti_cuda_stream(dti_cuda *c)
{
    return dti_cuda_enter(c) ? NULL : c->stream;
}

static int refuse_recording(const dti_cuda *c, const char *what)
{
    if (!c->capturing) return 0;
    return dti_cuda_fail("%s while a graph is recorded: nothing of it has run yet", what);
}

int dti_cuda_done(dti_cuda *c, bool *done)
{
    cudaError_t error;

    *done = false;
    if (refuse_recording(c, "asking what is done") || dti_cuda_enter(c)) return -1;
    error = cudaStreamQuery(c->stream);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return 0;
    }
    if (dti_cuda_check(error, "work on the device")) return -1;
    *done = true;
    return 0;
}

/* What kernels have found in contents since the last time. */
static int tell_fault(dti_cuda *c)
{
    const dti_cuda_fault_word found = *(volatile dti_cuda_fault_word *)c->fault;

    if (found.fault == DTI_CUDA_FINE) return 0;
    *(volatile dti_cuda_fault_word *)c->fault = (dti_cuda_fault_word){ .fault = DTI_CUDA_FINE };
    switch ((dti_cuda_fault)found.fault) {
    case DTI_CUDA_BAD_POSITION:
        return dti_cuda_fail("position %lld is outside the cache, which has %lld rows", found.value,
                             found.limit);
    case DTI_CUDA_BAD_EXPERT:
        return dti_cuda_fail("expert %lld: there are %lld, numbered from 0", found.value,
                             found.limit);
    case DTI_CUDA_TWICE_EXPERT:
        return dti_cuda_fail("token %lld names expert %lld twice", found.limit, found.value);
    case DTI_CUDA_BAD_TARGET:
        return dti_cuda_fail("target %lld is neither ignored nor in the vocabulary, which has %lld "
                             "entries",
                             found.value, found.limit);
    case DTI_CUDA_FALLING_SEGMENT:
        return dti_cuda_fail("attention: segment %lld is followed by %lld: documents lie one after "
                             "the other, their numbers do not fall",
                             found.value, found.limit);
    case DTI_CUDA_BAD_SEQUENCE:
        return dti_cuda_fail("a row of sequence %lld, but this rank's table has %lld", found.value,
                             found.limit);
    case DTI_CUDA_BAD_BLOCK:
        return dti_cuda_fail("keys in block %lld of this rank's pool, which has %lld", found.value,
                             found.limit);
    case DTI_CUDA_LATE_RANK:
        return dti_cuda_fail("kernel %lld of those that wait for other ranks has waited %lld ms "
                             "for rank %lld, which did not come",
                             found.number, found.limit, found.value);
    case DTI_CUDA_OTHER_CALL:
        return dti_cuda_fail("kernel %lld of those that wait for other ranks differs from that of "
                             "rank %lld: all ranks of a communicator issue the same operations, "
                             "of as many elements, in the same order",
                             found.number, found.value);
    case DTI_CUDA_FINE:
        break;
    }
    return dti_cuda_fail("a kernel reports fault %d (%lld of %lld)", found.fault, found.value,
                         found.limit);
}

int dti_cuda_sync(dti_cuda *c)
{
    if (refuse_recording(c, "waiting") || dti_cuda_enter(c)) return -1;
    if (dti_cuda_check(cudaStreamSynchronize(c->stream), "work on the device")) return -1;
    return tell_fault(c);
}

/* --- events ----------------------------------------------------------------------------------- */

int dti_cuda_event_create(dti_cuda *c, dti_cuda_event **out)
{
    dti_cuda_event *e;

    *out = NULL;
    if (dti_cuda_enter(c)) return -1;
    e = calloc(1, sizeof *e);
    if (e == NULL) return dti_cuda_fail("no memory of the host for an event");
    if (dti_cuda_check(cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming),
                       "making an event")) {
        free(e);
        return -1;
    }
    *out = e;
    return 0;
}

void dti_cuda_event_destroy(dti_cuda_event *e)
{
    if (e == NULL) return;
    (void)cudaEventDestroy(e->event);
    free(e);
}

int dti_cuda_event_record(dti_cuda *c, dti_cuda_event *e)
{
    if (dti_cuda_enter(c)) return -1;
    return dti_cuda_check(cudaEventRecord(e->event, c->stream), "recording an event");
}

int dti_cuda_event_await(dti_cuda *c, dti_cuda_event *e)
{
    if (dti_cuda_enter(c)) return -1;
    return dti_cuda_check(cudaStreamWaitEvent(c->stream, e->event, 0), "waiting for an event");
}

int dti_cuda_event_done(dti_cuda_event *e, bool *done)
{
    const cudaError_t error = cudaEventQuery(e->event);

    *done = error == cudaSuccess;
    if (error != cudaErrorNotReady) return dti_cuda_check(error, "work before an event");
    (void)cudaGetLastError();
    return 0;
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* Thread-local: what other ranks of the process do meanwhile, taking memory for one, is theirs. */
int dti_cuda_capture_begin(dti_cuda *c)
{
    if (c->capturing) return dti_cuda_fail("a graph is being recorded already");
    if (dti_cuda_enter(c) ||
        dti_cuda_check(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                       "recording a graph"))
        return -1;
    c->capturing = true;
    return 0;
}

int dti_cuda_capture_end(dti_cuda *c, dti_cuda_graph **out)
{
    cudaGraph_t recorded = NULL;
    dti_cuda_graph *g;
    int failed;

    *out = NULL;
    if (!c->capturing) return dti_cuda_fail("no graph is being recorded");
    failed = dti_cuda_enter(c); /* the recording ends all the same */
    c->capturing = false;
    if (failed) {
        if (cudaStreamEndCapture(c->stream, &recorded) == cudaSuccess)
            (void)cudaGraphDestroy(recorded);
        (void)cudaGetLastError();
        return -1;
    }
    if (dti_cuda_check(cudaStreamEndCapture(c->stream, &recorded), "recording a graph")) return -1;
    g = calloc(1, sizeof *g);
    failed = g == NULL
                 ? dti_cuda_fail("no memory of the host for a graph")
                 : dti_cuda_check(cudaGraphInstantiate(&g->exec, recorded, 0), "making a graph");
    (void)cudaGraphDestroy(recorded);
    if (failed) {
        free(g);
        return -1;
    }
    *out = g;
    return 0;
}

int dti_cuda_graph_launch(dti_cuda *c, dti_cuda_graph *graph)
{
    if (dti_cuda_enter(c)) return -1;
    return dti_cuda_check(cudaGraphLaunch(graph->exec, c->stream), "starting a graph");
}

void dti_cuda_graph_destroy(dti_cuda_graph *graph)
{
    if (graph == NULL) return;
    (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}
