/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/call.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* A count is bad if it is negative or its bytes exceed the address space. */
static dt_status check_counts(const dti_comm *c, const dti_comm_call *call, const char *what,
                              const int64_t *counts, int n, int64_t *total)
{
    const char *op = dti_comm_op_name(call->op);
    const int64_t most = INT64_MAX / 8 / n;

    *total = 0;
    DT_CHECK(counts != NULL, DT_ERR_ARG, "%s on \"%s\": %s is NULL", op, c->name, what);
    for (int i = 0; i < n; i++) {
        DT_CHECK(counts[i] >= 0 && counts[i] <= most, DT_ERR_ARG, "%s on \"%s\": %s[%d] is %lld",
                 op, c->name, what, i, (long long)counts[i]);
        *total += counts[i];
    }
    return DT_OK;
}

static dt_status check_buffer(const dti_comm *c, const dti_comm_call *call, const char *what,
                              const void *buffer, int64_t n)
{
    DT_CHECK(n == 0 || buffer != NULL || c->dry, DT_ERR_ARG,
             "%s on \"%s\": %s is NULL for %lld elements", dti_comm_op_name(call->op), c->name,
             what, (long long)n);
    return DT_OK;
}

static dt_status check_reduction(const dti_comm *c, const dti_comm_call *call)
{
    DT_CHECK((unsigned)call->reduce < DT_N_REDUCES, DT_ERR_ARG,
             "%s on \"%s\": reduction %d is unknown", dti_comm_op_name(call->op), c->name,
             (int)call->reduce);
    DT_CHECK(call->dtype != DT_U8, DT_ERR_ARG,
             "%s on \"%s\": u8 can be moved but not reduced; convert it to i32",
             dti_comm_op_name(call->op), c->name);
    return DT_OK;
}

static dt_status check_peer(const dti_comm *c, const dti_comm_call *call)
{
    const bool message = call->op != DTI_COMM_BROADCAST;

    DT_CHECK(call->root >= 0 && call->root < c->size, DT_ERR_ARG,
             "%s on \"%s\": rank %d is not in 0..%d", dti_comm_op_name(call->op), c->name,
             call->root, c->size - 1);
    DT_CHECK(!message || call->root != c->rank, DT_ERR_ARG, "%s on \"%s\": rank %d names itself",
             dti_comm_op_name(call->op), c->name, call->root);
    return DT_OK;
}

static dt_status check_box(const dti_comm *c, const char *op, const char *what, int member,
                           const dti_box *b)
{
    DT_CHECK(b->n_axes >= 0 && b->n_axes <= DTI_BOX_MAX_AXES, DT_ERR_ARG,
             "%s on \"%s\": %s[%d] has %d axes", op, c->name, what, member, b->n_axes);
    for (int a = 0; a < b->n_axes; a++)
        DT_CHECK(b->extent[a] >= 0, DT_ERR_ARG, "%s on \"%s\": axis %d of %s[%d] has extent %lld",
                 op, c->name, a, what, member, (long long)b->extent[a]);
    return DT_OK;
}

static dt_status check_boxes(const dti_comm *c, const dti_comm_call *call, const char *what,
                             const dti_box *boxes, const void *buffer)
{
    const char *op = dti_comm_op_name(call->op);

    DT_CHECK(boxes != NULL, DT_ERR_ARG, "%s on \"%s\": %s is NULL", op, c->name, what);
    for (int m = 0; m < c->size; m++) {
        DT_TRY(check_box(c, op, what, m, &boxes[m]));
        DT_TRY(check_buffer(c, call, what, buffer, dti_box_count(&boxes[m])));
    }
    return DT_OK;
}

/* Blocks, or boxes of as many elements. */
static dt_status check_terms(const dti_comm *c, const dti_comm_call *call)
{
    int64_t n;

    DT_TRY(check_reduction(c, call));
    DT_TRY(check_counts(c, call, "counts", call->counts, c->size, &n));
    if (call->send_boxes == NULL) return check_buffer(c, call, "send", call->send, n);
    DT_TRY(check_boxes(c, call, "send_boxes", call->send_boxes, call->send));
    for (int m = 0; m < c->size; m++)
        DT_CHECK(dti_box_count(&call->send_boxes[m]) == call->counts[m], DT_ERR_ARG,
                 "%s on \"%s\": send_boxes[%d] has %lld elements, but counts[%d] is %lld",
                 dti_comm_op_name(call->op), c->name, m,
                 (long long)dti_box_count(&call->send_boxes[m]), m, (long long)call->counts[m]);
    return DT_OK;
}

/* Where blocks begin in a buffer. */
static dt_status check_displs(const dti_comm *c, const dti_comm_call *call, const char *what,
                              const int64_t *displs)
{
    for (int i = 0; displs != NULL && i < c->size; i++)
        DT_CHECK(displs[i] >= 0, DT_ERR_ARG, "%s on \"%s\": %s[%d] is %lld",
                 dti_comm_op_name(call->op), c->name, what, i, (long long)displs[i]);
    return DT_OK;
}

/* In a dry world nobody looks at who has which part, so a call may leave that out. */
static bool leaves_out_parts(const dti_comm *c, const dti_comm_call *call)
{
    return c->dry && call->counts == NULL && call->send_boxes == NULL && call->recv_boxes == NULL &&
           (call->op == DTI_COMM_EXCHANGE || call->op == DTI_COMM_REDUCE_SCATTER);
}

dt_status dti_call_check(const dti_comm *c, const dti_comm_call *call)
{
    const int me = c->rank;
    int64_t n, m;

    DT_CHECK((unsigned)call->op < DTI_COMM_N_OPS, DT_ERR_ARG, "operation %d on \"%s\" is unknown",
             (int)call->op, c->name);
    DT_CHECK((unsigned)call->dtype < DT_N_DTYPES, DT_ERR_ARG, "%s on \"%s\": dtype %d is unknown",
             dti_comm_op_name(call->op), c->name, (int)call->dtype);
    DT_CHECK(
        call->stream == NULL || c->cuda != NULL || c->dry, DT_ERR_UNSUPPORTED,
        "%s on \"%s\": the buffers lie on a device, and this communicator joins memory of hosts",
        dti_comm_op_name(call->op), c->name);
    if (leaves_out_parts(c, call))
        return call->op == DTI_COMM_EXCHANGE ? DT_OK : check_reduction(c, call);
    switch (call->op) {
    case DTI_COMM_BROADCAST:
        DT_TRY(check_peer(c, call));
        DT_TRY(check_counts(c, call, "counts", call->counts, 1, &n));
        if (me == call->root) DT_TRY(check_buffer(c, call, "send", call->send, n));
        return check_buffer(c, call, "recv", call->recv, n);
    case DTI_COMM_ALL_GATHER:
        DT_TRY(check_displs(c, call, "displs", call->displs));
        DT_TRY(check_counts(c, call, "counts", call->counts, c->size, &n));
        DT_TRY(check_buffer(c, call, "send", call->send, call->counts[me]));
        return check_buffer(c, call, "recv", call->recv, n);
    case DTI_COMM_ALL_REDUCE:
        DT_TRY(check_reduction(c, call));
        DT_TRY(check_counts(c, call, "counts", call->counts, 1, &n));
        DT_TRY(check_buffer(c, call, "send", call->send, n));
        return check_buffer(c, call, "recv", call->recv, n);
    case DTI_COMM_REDUCE_SCATTER:
        DT_TRY(check_terms(c, call));
        return check_buffer(c, call, "recv", call->recv, call->counts[me]);
    case DTI_COMM_ALL_TO_ALL:
        DT_TRY(check_displs(c, call, "displs", call->displs));
        DT_TRY(check_displs(c, call, "send_displs", call->send_displs));
        DT_TRY(check_counts(c, call, "send_counts", call->send_counts, c->size, &n));
        DT_TRY(check_counts(c, call, "counts", call->counts, c->size, &m));
        DT_TRY(check_buffer(c, call, "send", call->send, n));
        DT_CHECK(call->send_counts[me] == call->counts[me], DT_ERR_ARG,
                 "all_to_all on \"%s\": rank %d sends itself %lld elements but receives %lld",
                 c->name, me, (long long)call->send_counts[me], (long long)call->counts[me]);
        return check_buffer(c, call, "recv", call->recv, m);
    case DTI_COMM_EXCHANGE:
        DT_TRY(check_boxes(c, call, "send_boxes", call->send_boxes, call->send));
        DT_TRY(check_boxes(c, call, "recv_boxes", call->recv_boxes, call->recv));
        DT_CHECK(dti_box_same_extents(&call->send_boxes[me], &call->recv_boxes[me]), DT_ERR_ARG,
                 "exchange on \"%s\": the box of rank %d for itself has two extents", c->name, me);
        return DT_OK;
    case DTI_COMM_SEND:
    case DTI_COMM_RECV:
        DT_TRY(check_peer(c, call));
        DT_TRY(check_counts(c, call, "counts", call->counts, 1, &n));
        if (call->op == DTI_COMM_SEND) return check_buffer(c, call, "send", call->send, n);
        return check_buffer(c, call, "recv", call->recv, n);
    default:
        return DT_OK;
    }
}

const char *dti_call_text(dti_comm_op op, int64_t n, dt_dtype dtype, char text[DTI_CALL_TEXT_BYTES])
{
    const char *name = dti_comm_op_name(op);

    if (op == DTI_COMM_BARRIER)
        (void)snprintf(text, DTI_CALL_TEXT_BYTES, "%s", name);
    else if (op == DTI_COMM_EXCHANGE)
        (void)snprintf(text, DTI_CALL_TEXT_BYTES, "%s of %s", name, dt_dtype_name(dtype));
    else
        (void)snprintf(text, DTI_CALL_TEXT_BYTES, "%s of %lld %s", name, (long long)n,
                       dt_dtype_name(dtype));
    return text;
}

int64_t dti_call_count(const dti_comm *c, const dti_comm_call *call)
{
    int64_t n = 0;

    if (call->counts == NULL) return 0;
    switch (call->op) {
    case DTI_COMM_BROADCAST:
    case DTI_COMM_ALL_REDUCE:
    case DTI_COMM_SEND:
    case DTI_COMM_RECV:
        return call->counts[0];
    case DTI_COMM_ALL_GATHER:
        return call->counts[c->rank];
    case DTI_COMM_REDUCE_SCATTER:
        for (int m = 0; m < c->size; m++) n += call->counts[m];
        return n;
    default:
        return 0;
    }
}

/* The buffers may be the same, never half of each other. */
static void copy(void *to, int64_t to_at, const void *from, int64_t from_at, int64_t n,
                 size_t bytes)
{
    char *t;
    const char *f;

    if (n == 0) return;
    t = (char *)to + (size_t)to_at * bytes;
    f = (const char *)from + (size_t)from_at * bytes;
    if (t != f) memcpy(t, f, (size_t)n * bytes);
}

void dti_call_alone(const dti_comm_call *call)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const int64_t at = call->displs ? call->displs[0] : 0;
    const bool to_all = call->op == DTI_COMM_ALL_TO_ALL;
    const int64_t send_at = to_all && call->send_displs ? call->send_displs[0] : 0;

    switch (call->op) {
    case DTI_COMM_BROADCAST:
    case DTI_COMM_ALL_REDUCE:
        copy(call->recv, 0, call->send, 0, call->counts[0], bytes);
        break;
    case DTI_COMM_ALL_GATHER:
        copy(call->recv, at, call->send, 0, call->counts[0], bytes);
        break;
    case DTI_COMM_REDUCE_SCATTER:
        if (call->send_boxes == NULL)
            copy(call->recv, 0, call->send, at, call->counts[0], bytes);
        else if (call->counts[0] > 0)
            dti_box_pack(call->recv, call->send, call->send_boxes, 0, call->counts[0], bytes);
        break;
    case DTI_COMM_ALL_TO_ALL:
        copy(call->recv, at, call->send, send_at, call->counts[0], bytes);
        break;
    case DTI_COMM_EXCHANGE:
        dti_box_copy(call->recv, call->recv_boxes, call->send, call->send_boxes, bytes);
        break;
    default: /* a barrier; messages to oneself were refused */
        break;
    }
}
