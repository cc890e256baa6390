/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/comm_log.h"

#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "dtensor/tape.h"

void dti_comm_log_free(dti_comm_log *log)
{
    dti_free(log->nodes);
    dti_free(log->entries);
    memset(log, 0, sizeof *log);
}

void dti_comm_log_clear(dti_comm_log *log)
{
    log->n_nodes = 0;
    log->n_entries = 0;
}

/* As much of a name as fits. */
static void copy_name(char to[DTI_LOG_NAME_BYTES], const char *name)
{
    size_t n = 0;

    while (n + 1 < DTI_LOG_NAME_BYTES && name[n] != '\0') n++;
    memcpy(to, name, n);
    to[n] = '\0';
}

static bool is_named(const char have[DTI_LOG_NAME_BYTES], const char *name)
{
    return strncmp(have, name, DTI_LOG_NAME_BYTES - 1) == 0;
}

static int find_child(const dti_comm_log *log, int parent, const char *name)
{
    const int cursor = log->nodes[parent].cursor;
    const int after = cursor >= 0 ? log->nodes[cursor].next : -1;

    if (after >= 0 && is_named(log->nodes[after].name, name)) return after;
    for (int i = log->nodes[parent].first; i >= 0; i = log->nodes[i].next)
        if (is_named(log->nodes[i].name, name)) return i;
    return -1;
}

dt_status dti_comm_log_node(dti_comm_log *log, int parent, const char *name, int *out)
{
    int i = parent >= 0 ? find_child(log, parent, name) : log->n_nodes > 0 ? 0 : -1;

    if (i < 0) {
        DT_TRY(dti_grow((void **)&log->nodes, &log->nodes_capacity, log->n_nodes + 1,
                        sizeof *log->nodes));
        i = (int)log->n_nodes++;
        log->nodes[i] =
            (dti_comm_node){ .first = -1, .last = -1, .next = -1, .cursor = -1, .entry = -1 };
        copy_name(log->nodes[i].name, name);
        if (parent >= 0) {
            dti_comm_node *p = &log->nodes[parent];
            if (p->last >= 0)
                log->nodes[p->last].next = i;
            else
                p->first = i;
            p->last = i;
        }
    }
    if (parent >= 0) log->nodes[parent].cursor = i;
    *out = i;
    return DT_OK;
}

/* The entry of a node for this kind and reason, made if it is new, behind the others. */
static dt_status entry_of(dti_comm_log *log, int node, dt_comm_kind kind, const char *reason,
                          dti_comm_entry **out)
{
    int last = -1;

    for (int i = log->nodes[node].entry; i >= 0; i = log->entries[i].next) {
        *out = &log->entries[i];
        if ((*out)->kind == kind && is_named((*out)->reason, reason)) return DT_OK;
        last = i;
    }
    DT_TRY(dti_grow((void **)&log->entries, &log->entries_capacity, log->n_entries + 1,
                    sizeof *log->entries));
    if (last >= 0)
        log->entries[last].next = (int)log->n_entries;
    else
        log->nodes[node].entry = (int)log->n_entries;
    *out = &log->entries[log->n_entries++];
    **out = (dti_comm_entry){ .kind = kind, .next = -1 };
    copy_name((*out)->reason, reason);
    return DT_OK;
}

dt_status dti_comm_log_add(dti_comm_log *log, int node, const char *reason,
                           const dt_comm_counter counters[DT_N_COMM_KINDS])
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        dti_comm_entry *e;
        if (counters[k].calls == 0) continue;
        DT_TRY(entry_of(log, node, (dt_comm_kind)k, reason, &e));
        e->counter.calls += counters[k].calls;
        e->counter.bytes += counters[k].bytes;
    }
    return DT_OK;
}

/* --- the tape's side -------------------------------------------------------------------------- */

/* The node of the innermost scope; scopes without communication never get one. */
static dt_status current_node(dt_tape *t, int *out)
{
    for (int i = 0; i < t->n_scopes; i++) {
        if (t->scopes[i].node < 0)
            DT_TRY(dti_comm_log_node(&t->log, i > 0 ? t->scopes[i - 1].node : -1,
                                     i > 0 ? t->scopes[i].name : "total", &t->scopes[i].node));
        *out = t->scopes[i].node;
    }
    return DT_OK;
}

dt_status dti_tape_count(dt_tape *t, const char *reason,
                         const dt_comm_counter counters[DT_N_COMM_KINDS])
{
    int64_t calls = 0;
    int node = 0;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        t->comm[k].calls += counters[k].calls;
        t->comm[k].bytes += counters[k].bytes;
        calls += counters[k].calls;
    }
    if (calls == 0) return DT_OK;
    DT_TRY(current_node(t, &node));
    DT_TRY(dti_comm_log_add(&t->log, node, reason, counters));
    return DT_OK;
}

const char *dt_tape_because(dt_tape *t, const char *reason)
{
    const char *before = t != NULL ? t->reason : NULL;

    if (t != NULL) t->reason = reason;
    return before;
}

const char *dt_comm_kind_name(dt_comm_kind kind)
{
    static const char *const names[DT_N_COMM_KINDS] = { "all_gather", "all_reduce",
                                                        "reduce_scatter", "all_to_all", "send" };

    return (unsigned)kind < DT_N_COMM_KINDS ? names[kind] : "?";
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Sum over a node and all below it, of one kind or of all (DT_N_COMM_KINDS). Depth is that of
 * scopes. */
static dt_comm_counter sum_of(const dti_comm_log *log, int node, dt_comm_kind kind)
{
    dt_comm_counter sum = { 0, 0 };

    for (int i = log->nodes[node].entry; i >= 0; i = log->entries[i].next) {
        const dti_comm_entry *e = &log->entries[i];
        if (kind != DT_N_COMM_KINDS && e->kind != kind) continue;
        sum.calls += e->counter.calls;
        sum.bytes += e->counter.bytes;
    }
    for (int c = log->nodes[node].first; c >= 0; c = log->nodes[c].next) {
        const dt_comm_counter below = sum_of(log, c, kind);
        sum.calls += below.calls;
        sum.bytes += below.bytes;
    }
    return sum;
}

dt_comm_counter dt_tape_comm_in(const dt_tape *t, const char *const *scopes, int n_scopes,
                                dt_comm_kind kind)
{
    const dt_comm_counter none = { 0, 0 };
    int node = t != NULL && t->log.n_nodes > 0 && (scopes != NULL || n_scopes <= 0) ? 0 : -1;

    for (int i = 0; i < n_scopes && node >= 0; i++) node = find_child(&t->log, node, scopes[i]);
    return node >= 0 && (unsigned)kind <= DT_N_COMM_KINDS ? sum_of(&t->log, node, kind) : none;
}

static void print_node(const dti_comm_log *log, int node, int depth, dti_writer *w)
{
    const dt_comm_counter all = sum_of(log, node, DT_N_COMM_KINDS);

    dti_put(w, "%*s%s: %lld call%s, %lld bytes\n", 2 * depth, "", log->nodes[node].name,
            (long long)all.calls, all.calls == 1 ? "" : "s", (long long)all.bytes);
    for (int i = log->nodes[node].entry; i >= 0; i = log->entries[i].next) {
        const dti_comm_entry *e = &log->entries[i];
        dti_put(w, "%*s- %s x%lld, %lld bytes: %s\n", 2 * depth + 2, "", dt_comm_kind_name(e->kind),
                (long long)e->counter.calls, (long long)e->counter.bytes, e->reason);
    }
    for (int c = log->nodes[node].first; c >= 0; c = log->nodes[c].next)
        print_node(log, c, depth + 1, w);
}

static void put_counter(dti_writer *w, dt_comm_counter c)
{
    dti_put(w, "\"calls\":%lld,\"bytes\":%lld", (long long)c.calls, (long long)c.bytes);
}

static void json_node(const dti_comm_log *log, int node, dti_writer *w)
{
    dti_put(w, "{\"name\":");
    dti_put_json(w, log->nodes[node].name);
    dti_put(w, ",");
    put_counter(w, sum_of(log, node, DT_N_COMM_KINDS));
    dti_put(w, ",\"own\":[");
    for (int i = log->nodes[node].entry, n = 0; i >= 0; i = log->entries[i].next, n++) {
        const dti_comm_entry *e = &log->entries[i];
        dti_put(w, "%s{\"kind\":\"%s\",\"reason\":", n ? "," : "", dt_comm_kind_name(e->kind));
        dti_put_json(w, e->reason);
        dti_put(w, ",");
        put_counter(w, e->counter);
        dti_put(w, "}");
    }
    dti_put(w, "],\"scopes\":[");
    for (int c = log->nodes[node].first, n = 0; c >= 0; c = log->nodes[c].next, n++) {
        dti_put(w, "%s", n ? "," : "");
        json_node(log, c, w);
    }
    dti_put(w, "]}");
}

int dt_tape_comm_print(const dt_tape *t, char *text, size_t text_bytes)
{
    dti_writer w = { text, text_bytes, 0 };

    if (t == NULL || t->log.n_nodes == 0)
        dti_put(&w, "total: 0 calls, 0 bytes\n");
    else
        print_node(&t->log, 0, 0, &w);
    return dti_written(&w);
}

int dt_tape_comm_json(const dt_tape *t, char *text, size_t text_bytes)
{
    dti_writer w = { text, text_bytes, 0 };

    if (t == NULL || t->log.n_nodes == 0)
        dti_put(&w, "{\"name\":\"total\",\"calls\":0,\"bytes\":0,\"own\":[],\"scopes\":[]}");
    else
        json_node(&t->log, 0, &w);
    return dti_written(&w);
}
