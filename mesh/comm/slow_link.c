/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/slow_link.h"

#include <time.h>

#include "base/sync.h"

dt_status dti_slow_link_check(const dt_link *link)
{
    DT_CHECK(link == NULL || (link->latency_ns >= 0 && link->bytes_per_ns > 0), DT_ERR_ARG,
             "simulated_link: a latency of %g ns and %g bytes per ns; the one is not negative, the "
             "other positive",
             link->latency_ns, link->bytes_per_ns);
    return DT_OK;
}

/* The sum of n counts without the one at `without`. */
static int64_t sum_of(const int64_t *counts, int n, int without)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++) sum += i == without ? 0 : counts[i];
    return sum;
}

static int64_t elements_received(const dti_comm *c, const dti_comm_call *call)
{
    int64_t n = 0;

    switch (call->op) {
    case DTI_COMM_BROADCAST:
        return c->rank == call->root ? 0 : call->counts[0];
    case DTI_COMM_ALL_GATHER:
    case DTI_COMM_ALL_TO_ALL:
        return sum_of(call->counts, c->size, c->rank);
    case DTI_COMM_ALL_REDUCE:
        return 2 * (c->size - 1) * call->counts[0] / c->size;
    case DTI_COMM_REDUCE_SCATTER:
        return (c->size - 1) * call->counts[c->rank];
    case DTI_COMM_EXCHANGE:
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) n += dti_box_count(&call->recv_boxes[r]);
        return n;
    case DTI_COMM_RECV:
        return call->counts[0];
    default:
        return 0;
    }
}

int64_t dti_call_received(const dti_comm *c, const dti_comm_call *call)
{
    return elements_received(c, call) * (int64_t)dt_dtype_size(call->dtype);
}

void dti_slow_link_wait(const dti_comm *c, const dti_comm_request *r)
{
    const double bytes = (double)dti_call_received(c, &r->call);
    const double ns = c->link->latency_ns + bytes / c->link->bytes_per_ns;
    int64_t left;

    while ((left = r->begun_ns + (int64_t)ns - dti_now_ns()) > 0)
        (void)nanosleep(&(struct timespec){ left / 1000000000, left % 1000000000 }, NULL);
}
