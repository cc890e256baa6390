/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tape counts: communication by scope, kind and reason. Scopes of one name inside one scope
 * are one node, so that a loop does not make the tree grow. */
#ifndef DTI_COMM_LOG_H
#define DTI_COMM_LOG_H

#include <dtensor/tensor.h>

#include "base/error.h"

enum { DTI_LOG_NAME_BYTES = 64 };

typedef struct dti_comm_entry {
    dt_comm_kind kind;
    char reason[DTI_LOG_NAME_BYTES];
    dt_comm_counter counter;
    int next; /* entry of the same node, or -1 */
} dti_comm_entry;

/* Indices of nodes; -1 for none. Node 0 is the whole tape. */
typedef struct dti_comm_node {
    char name[DTI_LOG_NAME_BYTES];
    int first, last; /* children, in the order of their first communication */
    int next;        /* sibling */
    int cursor;      /* child that was asked for last: the next one is probably its sibling */
    int entry;
} dti_comm_node;

typedef struct dti_comm_log {
    dti_comm_node *nodes;
    size_t n_nodes, nodes_capacity;
    dti_comm_entry *entries;
    size_t n_entries, entries_capacity;
} dti_comm_log;

void dti_comm_log_free(dti_comm_log *log);

/* Forgets all, keeps the memory. */
void dti_comm_log_clear(dti_comm_log *log);

/* The node `name` inside `parent`, made if it is new; parent -1 is the root of all. */
dt_status dti_comm_log_node(dti_comm_log *log, int parent, const char *name, int *out) DT_MUST_USE;

/* Adds to the counters of a node. */
dt_status dti_comm_log_add(dti_comm_log *log, int node, const char *reason,
                           const dt_comm_counter counters[DT_N_COMM_KINDS]) DT_MUST_USE;

#endif
