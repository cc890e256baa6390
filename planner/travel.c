/* SPDX-License-Identifier: Apache-2.0
 *
 * What collectives and messages of a way take on a machine's links: which of its ranks lie in one
 * node, and how many share a way out of it. */
#include "base/numbers.h"
#include "planner/search.h"

/* --- collectives ------------------------------------------------------------------------------ */

/* Ranks that a group over `dims` has in a node, and in all. */
static void group_of(const dt_machine *m, const dt_way *w, uint32_t dims, int *inside, int *all)
{
    const int size[] = { w->pp, w->dp, dti_way_ep(w), w->tp };
    const int stride[] = { dti_way_place(w), dti_way_ep(w) * w->tp, w->tp, 1 };

    *inside = *all = 1;
    for (int d = 0; d < DTI_N_DIMS; d++) {
        if (!dti_has(dims, d)) continue;
        *all *= size[d];
        *inside *= (int)dti_min(dti_max(m->devices_per_node / stride[d], 1), size[d]);
    }
}

double dti_comm_seconds(const dt_machine *m, const dt_way *w, uint32_t dims, dt_comm_kind kind,
                        const dt_comm_counter *c, bool *between)
{
    double latency, bandwidth;
    int inside, all;

    group_of(m, w, dims, &inside, &all);
    *between = all > inside;
    if (all == 1) return 0;
    dti_link_seconds(m, kind, all, *between, &latency, &bandwidth);
    if (*between) bandwidth *= inside; /* groups inside a node share a way out */
    return (double)c->calls * latency + (double)c->bytes / bandwidth;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Ranks of two places are as far from each other as their first ones: if these and the last ones
 * lie in one node each, so do those between. */
bool dti_message_leaves(const dt_machine *m, const dt_way *w, int a, int b)
{
    const int n = dti_way_place(w), each = m->devices_per_node;

    return a * n / each != b * n / each || ((a + 1) * n - 1) / each != ((b + 1) * n - 1) / each;
}

/* All ranks of a stage send at once: those of them that a node has share its way out. */
double dti_message_seconds(const dt_machine *m, const dt_way *w, int a, int b, double bytes)
{
    const int64_t each = m->devices_per_node, n = dti_min(each, dti_way_place(w));
    const bool between = dti_message_leaves(m, w, a, b);
    double latency, bandwidth;

    if (a == b) return 0;
    dti_link_seconds(m, DT_COMM_SEND, 2, between, &latency, &bandwidth);
    if (between) bandwidth *= (double)each / (double)n;
    return latency + bytes / bandwidth;
}

double dti_messages_between(const dt_machine *m, const dt_way *w, int place)
{
    const int n = w->pp * w->stages_per_rank;
    int all = 0, between = 0;

    for (int k = place; k < n; k += w->pp) /* from the stage before it and the one behind */
        for (int other = k - 1; other <= k + 1; other += 2) {
            if (other < 0 || other == n) continue;
            all++;
            between += dti_message_leaves(m, w, other % w->pp, place);
        }
    return all > 0 ? (double)between / all : 0;
}
