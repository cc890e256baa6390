/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/slow_link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "base/text.h"

/* Slower than any link that somebody would try: a wait of theirs still ends. */
static const double MOST_LATENCY_NS = 60e9, LEAST_BYTES_PER_NS = 1e-6;

static bool is_link(const dt_link *link)
{
    return link->latency_ns >= 0 && link->latency_ns <= MOST_LATENCY_NS &&
           isfinite(link->bytes_per_ns) && link->bytes_per_ns >= LEAST_BYTES_PER_NS;
}

dt_status dti_slow_link_check(const dt_link *link)
{
    DT_CHECK(link == NULL || is_link(link), DT_ERR_ARG,
             "simulated_link: a latency of %g ns and %g bytes per ns; the one is 0 to 6e10, the "
             "other at least 1e-6",
             link->latency_ns, link->bytes_per_ns);
    return DT_OK;
}

/* --- by mesh dim ------------------------------------------------------------------------------ */

/* One link, "dp=50,1" or "50,1"; *at is behind it then. */
static bool parse_one(const char **at, char *dim, dt_link *link)
{
    const size_t word = strcspn(*at, "=,;");
    const bool named = (*at)[word] == '=';
    char *end;

    dim[0] = '\0';
    if (named && (word == 0 || word >= DT_DIM_NAME_BYTES)) return false;
    if (named) {
        memcpy(dim, *at, word);
        dim[word] = '\0';
        *at += word + 1;
    }
    link->latency_ns = strtod(*at, &end) * 1e3;
    if (end == *at || *end != ',') return false;
    *at = end + 1;
    link->bytes_per_ns = strtod(*at, &end);
    if (end == *at || (*end != '\0' && *end != ';')) return false;
    *at = *end == ';' ? end + 1 : end;
    return is_link(link);
}

/* The word "unbuffered" instead of a link. */
static bool parse_unbuffered(const char **at, dti_slow_links *out)
{
    static const char word[] = "unbuffered";
    const size_t n = strcspn(*at, ";");

    if (n != sizeof word - 1 || memcmp(*at, word, n) != 0) return false;
    *at += (*at)[n] == ';' ? n + 1 : n;
    return out->unbuffered = true;
}

dt_status dti_slow_links_parse(const char *text, dti_slow_links *out)
{
    char shown[DTI_SHOWN_BYTES];

    out->n = 0;
    out->unbuffered = false;
    for (const char *at = text; *at != '\0';) {
        if (parse_unbuffered(&at, out)) continue;
        DT_CHECK(out->n < DTI_MAX_SLOW_LINKS &&
                     parse_one(&at, out->of[out->n].dim, &out->of[out->n].link),
                 DT_ERR_ARG,
                 "links \"%s\": microseconds and GB/s, as in \"50,1\", or by mesh dim, as in "
                 "\"dp=200,0.5;tp=2,20\"; the one is 0 to 6e7, the other at least 1e-6; "
                 "\"unbuffered\" among them",
                 dti_printable(text, shown, sizeof shown));
        out->n++;
    }
    return DT_OK;
}

static double megabyte_ns(const dt_link *l)
{
    return l->latency_ns + 1e6 / l->bytes_per_ns;
}

/* Of one dim; its own before the one of all others. */
static const dt_link *link_of_dim(const dti_slow_links *links, const char *dim, size_t n)
{
    const dt_link *rest = NULL;

    for (int i = 0; i < links->n; i++) {
        if (links->of[i].dim[0] == '\0') rest = &links->of[i].link;
        if (strlen(links->of[i].dim) == n && memcmp(links->of[i].dim, dim, n) == 0)
            return &links->of[i].link;
    }
    return rest;
}

const dt_link *dti_slow_link_of(const dti_slow_links *links, const char *name)
{
    const dt_link *slowest = NULL;

    for (const char *at = name; links != NULL && *at != '\0';) {
        const size_t n = strcspn(at, ",");
        const dt_link *l = link_of_dim(links, at, n);
        if (l != NULL && (slowest == NULL || megabyte_ns(l) > megabyte_ns(slowest))) slowest = l;
        at += at[n] == ',' ? n + 1 : n;
    }
    return slowest;
}

/* --- waiting ---------------------------------------------------------------------------------- */

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
