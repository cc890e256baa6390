/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that are held back, so that one kernel may do the work of several rows: who calls rows need
 * not know. What may begin such a group waits here until the next call on the device. That is
 * either a row that goes with it, or anything else, which starts the group first: every slot of the
 * module passes dti_cuda_enter().
 *
 *   add, then a norm of its result        one kernel that writes both
 *
 * Results and bits are those of the rows one after the other. Memory that an operand lies in may
 * have been given back after its call, so a later result may lie there: spans.h says when a kernel
 * can do with that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "dtensor/device/cuda/module_parts.h"
#include "dtensor/device/cuda/spans.h"
#include "dtensor/kernels/cuda/fused.h"
#include "dtensor/kernels/cuda/rows.h"

enum { MAX_IN = 3 };

#define ROW(row) int dti_##row##_cuda(dti_cuda *c, const dt_kargs *args);
DTI_CUDA_ROWS(ROW)
#undef ROW

/* Rows that are held back, or may follow one that is. */
typedef enum part { PART_OTHER, PART_ADD, PART_NORM } part;

typedef struct fusing_row {
    dti_cuda_kernel kernel;
    part part;
    dti_norm_form form; /* of a norm */
} fusing_row;

static const fusing_row fusing_rows[] = {
    { dti_add_cuda, PART_ADD, DTI_RMS },
    { dti_rms_norm_cuda, PART_NORM, DTI_RMS },
    { dti_rms_norm_1p_cuda, PART_NORM, DTI_RMS_1P },
    { dti_layer_norm_cuda, PART_NORM, DTI_LAYER },
};

/* A call by value. */
typedef struct held_call {
    const char *name;
    dti_cuda_kernel kernel;
    int n_in;
    dt_local in[MAX_IN], out;
    dti_norm_attr attr; /* zeros if it has none */
} held_call;

struct dti_cuda_pending {
    bool off;
    int n_calls;
    held_call call;
    char failure[DTI_CUDA_TEXT_BYTES]; /* of a start that nobody has heard of; or "" */
};

int dti_cuda_pending_open(dti_cuda *c)
{
    c->pending = calloc(1, sizeof *c->pending);
    return c->pending != NULL ? 0 : dti_cuda_fail("no memory of the host for a device");
}

void dti_cuda_pending_close(dti_cuda *c)
{
    free(c->pending);
    c->pending = NULL;
}

/* --- starting ---------------------------------------------------------------------------------*/

static dt_kargs arguments_of(held_call *call)
{
    return (dt_kargs){
        .in = call->in, .out = &call->out, .attr = &call->attr, .n_in = call->n_in, .n_out = 1
    };
}

static int run_held(dti_cuda *c, held_call *call)
{
    const dt_kargs args = arguments_of(call);

    return call->kernel(c, &args);
}

/* The words of a failure are the kernel's; whose call has failed is said here. */
static int name_failure(const char *held)
{
    char why[DTI_CUDA_TEXT_BYTES];

    (void)snprintf(why, sizeof why, "%s", dti_cuda_why());
    return dti_cuda_fail("an earlier call, of %s, could not be started: %.400s", held, why);
}

int dti_cuda_pending_start(dti_cuda *c)
{
    struct dti_cuda_pending *p = c->pending;

    if (p->failure[0] != '\0') {
        (void)dti_cuda_fail("%s", p->failure);
        p->failure[0] = '\0';
        return -1;
    }
    if (p->n_calls == 0) return 0;
    p->n_calls = 0; /* kernels enter too, when they need scratch */
    return run_held(c, &p->call) ? name_failure(p->call.name) : 0;
}

void dti_cuda_pending_start_unheard(dti_cuda *c)
{
    if (dti_cuda_enter(c) == 0) return;
    (void)snprintf(c->pending->failure, sizeof c->pending->failure, "%s", dti_cuda_why());
}

int dti_cuda_fuse(dti_cuda *c, bool on)
{
    if (dti_cuda_enter(c)) return -1;
    c->pending->off = !on;
    return 0;
}

/* --- holding ----------------------------------------------------------------------------------*/

static bool is_float(dt_dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

/* Something to do, for which a kernel would not be refused. */
static bool can_be_held(const dt_kargs *a)
{
    if (a->n_in > MAX_IN || a->n_out != 1) return false;
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i].data == NULL || dti_cuda_count(&a->in[i]) == 0) return false;
    return a->out[0].data != NULL && is_float(a->in[0].dtype) && a->out[0].dtype == a->in[0].dtype;
}

static void hold(held_call *call, const char *name, dti_cuda_kernel kernel, const dt_kargs *a)
{
    *call = (held_call){ .name = name, .kernel = kernel, .n_in = a->n_in, .out = a->out[0] };
    for (int i = 0; i < a->n_in; i++) call->in[i] = a->in[i];
    if (a->attr != NULL) memcpy(&call->attr, a->attr, sizeof call->attr);
}

/* Whether norm is of the sum, all of it, and nothing lies where one kernel would read too late. */
static bool goes_with_sum(const held_call *add, const dt_kargs *norm)
{
    dti_spans spans = { .n = 0 };

    if (!can_be_held(norm) || norm->in[0].data != add->out.data ||
        norm->in[0].dtype != add->out.dtype ||
        dti_cuda_count(&norm->in[0]) != dti_cuda_count(&add->out))
        return false;
    for (int i = 1; i < norm->n_in; i++)
        if (norm->in[i].dtype != norm->in[0].dtype || !dti_spans_read(&spans, &norm->in[i], -1))
            return false;
    return dti_spans_read(&spans, &add->in[0], 0) && dti_spans_read(&spans, &add->in[1], 0) &&
           dti_spans_write(&spans, &add->out, 0) && dti_spans_write(&spans, &norm->out[0], 0);
}

static int run_norm(dti_cuda *c, const fusing_row *row, const dt_kargs *a)
{
    struct dti_cuda_pending *p = c->pending;
    dt_kargs add;

    if (p->n_calls == 0 || !goes_with_sum(&p->call, a))
        return dti_cuda_enter(c) ? -1 : row->kernel(c, a);
    if (dti_cuda_choose(c)) return -1;
    p->n_calls = 0;
    add = arguments_of(&p->call);
    return dti_add_norm_cuda(c, &add, a, row->form);
}

static const fusing_row *find_row(dti_cuda_kernel kernel)
{
    for (size_t i = 0; i < DT_COUNT(fusing_rows); i++)
        if (fusing_rows[i].kernel == kernel) return &fusing_rows[i];
    return NULL;
}

int dti_cuda_run_row(dti_cuda *c, const char *name, dti_cuda_kernel kernel, const dt_kargs *args)
{
    struct dti_cuda_pending *p = c->pending;
    const fusing_row *row = p->off ? NULL : find_row(kernel);

    if (row != NULL && row->part == PART_NORM) return run_norm(c, row, args);
    if (dti_cuda_enter(c)) return -1;
    if (row == NULL || !can_be_held(args)) return kernel(c, args);
    hold(&p->call, name, kernel, args);
    p->n_calls = 1;
    return 0;
}
