/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that are held back, so that one kernel may do the work of several rows: who calls rows need
 * not know. What may begin such a group waits here until the next call on the device. That is
 * either a row that goes with it, or anything else, which starts the group first: every slot of the
 * module passes dti_cuda_enter().
 *
 *   add, then a norm of its result        one kernel that writes both
 *   rms_norm of heads, rope, kv_write,    one kernel for queries, keys and values
 *   of up to three tensors
 *
 * Results and bits are those of the rows one after the other. Memory that an operand lies in may
 * have been given back after its call, so a later result may lie there: spans.h says when a kernel
 * can do with that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "dtensor/device/cuda/head_group.h"
#include "dtensor/device/cuda/module_parts.h"
#include "dtensor/kernels/cuda/cuda_rows.h"

enum { MAX_IN = 3, MAX_CALLS = 3 * DTI_MAX_HEAD_CHAINS };

#define ROW(row) int dti_##row##_cuda(dti_cuda *c, const dt_kargs *args);
DTI_CUDA_ROWS(ROW)
#undef ROW

/* Rows that are held back, or may follow one that is. */
typedef enum part { PART_ADD, PART_NORM, PART_ROPE, PART_WRITE } part;

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
    { dti_rope_cuda, PART_ROPE, DTI_RMS },
    { dti_kv_write_cuda, PART_WRITE, DTI_RMS },
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
    held_call calls[MAX_CALLS]; /* an add alone, or those of `heads` */
    dti_head_group heads;
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

/* The words of a failure are the kernel's; whose calls have failed is said here. */
static int name_failure(const struct dti_cuda_pending *p, int n)
{
    char why[DTI_CUDA_TEXT_BYTES], rows[128] = "";
    size_t at = 0;

    (void)snprintf(why, sizeof why, "%s", dti_cuda_why());
    for (int i = 0; i < n && at < sizeof rows; i++)
        at += (size_t)snprintf(rows + at, sizeof rows - at, "%s%s", i > 0 ? ", " : "",
                               p->calls[i].name);
    return dti_cuda_fail("earlier work, %s, could not be started: %.360s", rows, why);
}

int dti_cuda_pending_start(dti_cuda *c)
{
    struct dti_cuda_pending *p = c->pending;
    const int n = p->n_calls;
    int failed;

    if (p->failure[0] != '\0') {
        (void)dti_cuda_fail("%s", p->failure);
        p->failure[0] = '\0';
        return -1;
    }
    if (n == 0) return 0;
    p->n_calls = 0; /* kernels enter too, when they need scratch */
    if (n == 1)
        failed = run_held(c, &p->calls[0]);
    else
        failed = dti_heads_cuda(c, p->heads.chains, p->heads.n);
    return failed ? name_failure(p, n) : 0;
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

/* A sum whose operands are as large as it: none is repeated. */
static bool is_plain_sum(const dt_kargs *a)
{
    const int64_t n = dti_cuda_count(&a->out[0]);

    return dti_cuda_count(&a->in[0]) == n && dti_cuda_count(&a->in[1]) == n;
}

static int hold(struct dti_cuda_pending *p, const char *name, const fusing_row *row,
                const dt_kargs *a)
{
    held_call *call = &p->calls[p->n_calls++];

    *call = (held_call){ .name = name, .kernel = row->kernel, .n_in = a->n_in, .out = a->out[0] };
    for (int i = 0; i < a->n_in; i++) call->in[i] = a->in[i];
    if (row->part == PART_NORM) memcpy(&call->attr, a->attr, sizeof call->attr);
    return 0;
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

static int run_add_norm(dti_cuda *c, const fusing_row *norm, const dt_kargs *a)
{
    struct dti_cuda_pending *p = c->pending;
    const dt_kargs add = arguments_of(&p->calls[0]);

    if (dti_cuda_choose(c)) return -1;
    p->n_calls = 0;
    return dti_add_norm_cuda(c, &add, a, norm->form);
}

static bool holds_add(const struct dti_cuda_pending *p)
{
    return p->n_calls == 1 && p->calls[0].kernel == dti_add_cuda;
}

static bool joins_heads(struct dti_cuda_pending *p, const fusing_row *row, const dt_kargs *a)
{
    if (holds_add(p) || p->n_calls == MAX_CALLS || !can_be_held(a)) return false;
    if (p->n_calls == 0) p->heads = (dti_head_group){ .n = 0 };
    switch (row->part) {
    case PART_NORM:
        return row->form != DTI_LAYER && dti_head_group_norm(&p->heads, a, row->form);
    case PART_ROPE:
        return dti_head_group_rope(&p->heads, a);
    case PART_WRITE:
        return dti_head_group_write(&p->heads, a);
    case PART_ADD:
        break;
    }
    return false;
}

static const fusing_row *find_row(dti_cuda_kernel kernel)
{
    for (size_t i = 0; i < DT_COUNT(fusing_rows); i++)
        if (fusing_rows[i].kernel == kernel) return &fusing_rows[i];
    return NULL;
}

/* A row goes with what is held back, begins something, or runs alone. */
int dti_cuda_run_row(dti_cuda *c, const char *name, dti_cuda_kernel kernel, const dt_kargs *args)
{
    struct dti_cuda_pending *p = c->pending;
    const fusing_row *row = p->off ? NULL : find_row(kernel);

    if (row == NULL) return dti_cuda_enter(c) ? -1 : kernel(c, args);
    if (row->part == PART_NORM && holds_add(p) && goes_with_sum(&p->calls[0], args))
        return run_add_norm(c, row, args);
    if (joins_heads(p, row, args)) return hold(p, name, row, args);
    if (dti_cuda_enter(c)) return -1;
    if ((row->part == PART_ADD && can_be_held(args) && is_plain_sum(args)) ||
        joins_heads(p, row, args))
        return hold(p, name, row, args);
    return kernel(c, args);
}
