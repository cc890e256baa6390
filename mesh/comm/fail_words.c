/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/fail_words.h"

#include <stdio.h>

#include "base/error.h"

enum { REACHED_BYTES = 192, CALL_BYTES = 64 };

/* "all_reduce #7", "recv of message 3" */
static void call_text(const dti_comm_request *r, char text[CALL_BYTES])
{
    const char *op = dti_comm_op_name(r->call.op);

    if (r->what != NULL)
        (void)snprintf(text, CALL_BYTES, "%s of %s", op, r->what);
    else
        (void)snprintf(text, CALL_BYTES, "%s #%llu", op, (unsigned long long)r->seq);
}

/* Where a rank is instead of here, as far as it has told. */
static void reached_text(int rank, const dti_reached *p, char text[REACHED_BYTES])
{
    if (!p->begun)
        (void)snprintf(text, REACHED_BYTES, "rank %d has not begun any collective", rank);
    else
        (void)snprintf(text, REACHED_BYTES,
                       "the last collective that rank %d began is %s #%llu on \"%s\"", rank,
                       dti_comm_op_name(p->op), (unsigned long long)p->seq, p->comm);
}

void dti_say_left(const dti_comm *c, const dti_comm_request *r, int rank,
                  const dti_reached *reached, char why[DTI_WHY_BYTES])
{
    char where[REACHED_BYTES], call[CALL_BYTES];

    call_text(r, call);
    reached_text(rank, reached, where);
    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                     "%s on \"%s\": rank %d has left, its function returned before taking part; %s",
                     call, c->name, rank, where);
    (void)snprintf(why, DTI_WHY_BYTES, "it has left before %s on \"%s\"; %s", call, c->name, where);
}

void dti_say_expired(const dti_comm *c, const dti_comm_request *r, const dti_late *late,
                     const dti_reached *reached, char why[DTI_WHY_BYTES])
{
    const long long ms = r->timeout_ms;
    char where[REACHED_BYTES], call[CALL_BYTES], keeper[64] = "";

    call_text(r, call);
    reached_text(late->culprit, reached, where);
    if (late->culprit != late->rank)
        (void)snprintf(keeper, sizeof keeper, " since it waits for rank %d", late->culprit);
    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                     "%s on \"%s\": rank %d has not %s after %lld ms%s; %s; if it is only "
                     "slow, allow more (timeout_ms; the command reads DTENSOR_TIMEOUT_MS)",
                     call, c->name, late->rank, late->verb, ms, keeper, where);
    (void)snprintf(why, DTI_WHY_BYTES, "rank %d has not %s at %s on \"%s\" within %lld ms%s; %s",
                   late->rank, late->verb, call, c->name, ms, keeper, where);
}
