/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines as figures: their table, files of them, and names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/writer.h"
#include "files/json.h"
#include "planner/machine.h"

enum { MAX_NODES = 1 << 16, MAX_DEVICES = 1 << 10, MAX_RANKS = 1 << 20, FILE_BYTES = 1 << 20 };

/* What a figure is needed for. One that never is may be 0: it is not known. */
typedef enum need { NEVER, ALWAYS, SEVERAL_DEVICES, SEVERAL_NODES } need;

static const struct figure_row {
    const char *name;
    need need;
    double least, most; /* of one that is known */
} rows[DT_N_FIGURES] = {
    [DT_FIGURE_DEVICE_BYTES] = { "device_bytes", ALWAYS, 1, 0x1p53 },
    [DT_FIGURE_HOST_BYTES] = { "host_bytes", NEVER, 1, 0x1p53 },
    [DT_FIGURE_DISK_BYTES] = { "disk_bytes", NEVER, 1, 0x1p53 },
    [DT_FIGURE_MEMORY_BANDWIDTH] = { "memory_bandwidth", ALWAYS, 1, 1e18 },
    [DT_FIGURE_FLOPS_F32] = { "flops_f32", ALWAYS, 1, 1e21 },
    [DT_FIGURE_FLOPS_BF16] = { "flops_bf16", NEVER, 1, 1e21 },
    [DT_FIGURE_FLOPS_F16] = { "flops_f16", NEVER, 1, 1e21 },
    [DT_FIGURE_EFFICIENCY] = { "efficiency", ALWAYS, 1e-6, 1 },
    [DT_FIGURE_INSIDE_LATENCY] = { "inside_latency", SEVERAL_DEVICES, 0, 60 },
    [DT_FIGURE_INSIDE_BANDWIDTH] = { "inside_bandwidth", SEVERAL_DEVICES, 1, 1e18 },
    [DT_FIGURE_BETWEEN_LATENCY] = { "between_latency", SEVERAL_NODES, 0, 60 },
    [DT_FIGURE_BETWEEN_BANDWIDTH] = { "between_bandwidth", SEVERAL_NODES, 1, 1e18 },
    [DT_FIGURE_HOST_BANDWIDTH] = { "host_bandwidth", NEVER, 1, 1e18 },
    [DT_FIGURE_DISK_BANDWIDTH] = { "disk_bandwidth", NEVER, 1, 1e18 },
    [DT_FIGURE_CALL_SECONDS] = { "call_seconds", NEVER, 0, 1 },
    [DT_FIGURE_OVERLAP_COST] = { "overlap_cost", NEVER, 0, 8 },
};

static const char *const words[] = { "name",  "gpus",    "nodes",     "devices_per_node",
                                     "cores", "threads", "processor", "version",
                                     "date",  "kernels", "links" };

const char *dt_figure_name(dt_figure_kind kind)
{
    return (unsigned)kind < DT_N_FIGURES ? rows[kind].name : NULL;
}

int64_t dti_machine_ranks(const dt_machine *m)
{
    return (int64_t)m->nodes * m->devices_per_node;
}

/* --- files ------------------------------------------------------------------------------------ */

static bool is_needed(const dt_machine *m, need when)
{
    return when == ALWAYS || (when == SEVERAL_DEVICES && m->devices_per_node > 1) ||
           (when == SEVERAL_NODES && m->nodes > 1);
}

/* {"value": 312e12, "source": "..."}, or a number alone. */
static dt_status read_figure(const dti_json *v, const struct figure_row *row, dt_figure *out)
{
    const dti_json none = { 0 };
    dti_json value = *v, source = none, member;
    const char *key = NULL, *said = v->file;

    if (dti_json_kind_of(v) == DT_CONFIG_OBJECT) {
        value = dti_json_get(v, "value");
        source = dti_json_get(v, "source");
        while (dti_json_next(v, &key, &member))
            if (strcmp(key, "value") != 0 && strcmp(key, "source") != 0)
                return dti_json_refuse(&member, DT_ERR_FORMAT,
                                       "left out: a figure has \"value\" and \"source\"");
    }
    DT_TRY(dti_json_as_number(&value, row->need == NEVER ? 0 : row->least, row->most, &out->value));
    if (out->value > 0 && out->value < row->least)
        return dti_json_refuse(&value, DT_ERR_FORMAT, "0 (not known) or a number from %g to %g",
                               row->least, row->most);
    if (dti_json_is_set(&source)) DT_TRY(dti_json_as_string(&source, &said));
    (void)dti_printable(said, out->source, sizeof out->source);
    return DT_OK;
}

static int figure_of(const char *key)
{
    int i = 0;

    while (i < DT_N_FIGURES && strcmp(rows[i].name, key) != 0) i++;
    return i;
}

static bool is_word(const char *key)
{
    for (size_t i = 0; i < DT_COUNT(words); i++)
        if (strcmp(words[i], key) == 0) return true;
    return false;
}

static dt_status read_figures(const dti_json *root, dt_machine *m)
{
    const char *key = NULL;
    dti_json v;

    while (dti_json_next(root, &key, &v)) {
        const int i = figure_of(key);
        if (i < DT_N_FIGURES)
            DT_TRY(read_figure(&v, &rows[i], &m->figure[i]));
        else if (!is_word(key))
            return dti_json_refuse(
                &v, DT_ERR_FORMAT,
                "left out: machines have name, gpus, nodes, devices_per_node, cores, threads, "
                "processor, version, date, kernels, links and figures such as device_bytes and "
                "inside_bandwidth");
    }
    for (int i = 0; i < DT_N_FIGURES; i++) {
        v = dti_json_get(root, rows[i].name);
        if (is_needed(m, rows[i].need) && m->figure[i].value == 0 && dti_json_kind_of(&v) == 0)
            return dti_json_refuse(&v, DT_ERR_FORMAT, "a number from %g to %g", rows[i].least,
                                   rows[i].most);
    }
    return DT_OK;
}

/* A text that may be left out. */
static dt_status read_text(const dti_json *root, const char *key, const char *otherwise, char *to,
                           size_t bytes)
{
    const char *said;

    DT_TRY(dti_json_string_or(root, key, otherwise, &said));
    if (said[0] != '\0') (void)dti_printable(said, to, bytes);
    return DT_OK;
}

static dt_status read_machine(const dti_json *root, dt_machine *m)
{
    int64_t nodes, devices, cores, threads;

    *m = (dt_machine){ .gpus = true };
    DT_TRY(read_text(root, "name", root->file, m->name, sizeof m->name));
    DT_TRY(read_text(root, "processor", "", m->processor, sizeof m->processor));
    DT_TRY(read_text(root, "version", "", m->version, sizeof m->version));
    DT_TRY(read_text(root, "date", "", m->date, sizeof m->date));
    DT_TRY(dti_json_bool_or(root, "gpus", true, &m->gpus));
    DT_TRY(dti_json_int_or(root, "nodes", 1, 1, MAX_NODES, &nodes));
    DT_TRY(dti_json_int(root, "devices_per_node", 1, MAX_DEVICES, &devices));
    DT_TRY(dti_json_int_or(root, "cores", 0, 0, MAX_NODES, &cores));
    DT_TRY(dti_json_int_or(root, "threads", 0, 0, MAX_NODES, &threads));
    m->nodes = (int)nodes;
    m->devices_per_node = (int)devices;
    m->cores = (int)cores;
    m->threads = (int)threads;
    DT_CHECK(dti_machine_ranks(m) <= MAX_RANKS, DT_ERR_FORMAT,
             "%s: %d nodes of %d devices are %lld; a plan is made for at most %d", root->file,
             m->nodes, m->devices_per_node, (long long)dti_machine_ranks(m), (int)MAX_RANKS);
    DT_TRY(read_figures(root, m));
    DT_TRY(dti_rates_read(root, m));
    return DT_OK;
}

static dt_status read_doc(dti_json_doc *doc, dt_machine *out)
{
    const dt_status st = read_machine(&doc->root, out);

    dti_json_free(doc);
    if (st != DT_OK) *out = (dt_machine){ 0 };
    DT_TRY(st);
    return DT_OK;
}

dt_status dt_machine_parse(const char *name, const char *text, size_t n, dt_machine *out)
{
    dti_json_doc doc;

    DT_CHECK(name != NULL && text != NULL && out != NULL, DT_ERR_ARG, "name, text or out is NULL");
    *out = (dt_machine){ 0 };
    DT_TRY(dti_json_parse(name, text, n, &doc));
    DT_TRY(read_doc(&doc, out));
    return DT_OK;
}

static void put_text(dti_writer *w, const char *key, const char *text)
{
    if (text[0] == '\0') return;
    dti_put(w, ",\n \"%s\": ", key);
    dti_put_json(w, text);
}

int dt_machine_print(const dt_machine *m, char *text, size_t bytes)
{
    dti_writer w = { text, bytes, 0 };

    dti_put(&w, "{\n \"name\": ");
    dti_put_json(&w, m->name);
    dti_put(&w, ",\n \"gpus\": %s,\n \"nodes\": %d,\n \"devices_per_node\": %d",
            m->gpus ? "true" : "false", m->nodes, m->devices_per_node);
    if (m->cores > 0) dti_put(&w, ",\n \"cores\": %d", m->cores);
    if (m->threads > 0) dti_put(&w, ",\n \"threads\": %d", m->threads);
    put_text(&w, "processor", m->processor);
    put_text(&w, "version", m->version);
    put_text(&w, "date", m->date);
    for (int i = 0; i < DT_N_FIGURES; i++) {
        char number[DTI_NUMBER_BYTES];
        if (m->figure[i].value == 0 && m->figure[i].source[0] == '\0') continue;
        dti_put(&w, ",\n \"%s\": { \"value\": %s, \"source\": ", rows[i].name,
                dti_number_text(m->figure[i].value, number));
        dti_put_json(&w, m->figure[i].source);
        dti_put(&w, " }");
    }
    dti_rates_put(&w, m);
    dti_put(&w, "\n}\n");
    return dti_written(&w);
}

/* --- names ------------------------------------------------------------------------------------ */

/* "128x8" behind the ":" of a name. */
static dt_status read_counts(const char *name, const char *text, dt_machine *m)
{
    char *end = NULL;
    const long nodes = strtol(text, &end, 10);
    const long devices =
        *end == 'x' && end[1] >= '0' && end[1] <= '9' ? strtol(end + 1, &end, 10) : 0;

    DT_CHECK(text[0] >= '0' && text[0] <= '9' && *end == '\0' && nodes >= 1 && nodes <= MAX_NODES &&
                 devices >= 1 && devices <= MAX_DEVICES && (int64_t)nodes * devices <= MAX_RANKS,
             DT_ERR_ARG,
             "\"%s\": behind \":\" stand nodes and devices of each, as in h100:16x8, up to %d "
             "devices",
             name, (int)MAX_RANKS);
    m->nodes = (int)nodes;
    m->devices_per_node = (int)devices;
    for (int i = 0; i < DT_N_FIGURES; i++)
        DT_CHECK(!is_needed(m, rows[i].need) || m->figure[i].source[0] != '\0', DT_ERR_ARG,
                 "\"%s\": %s of this machine is not known: write a file", name, rows[i].name);
    (void)snprintf(m->name, sizeof m->name, "%s", name);
    return DT_OK;
}

dt_status dt_machine_read(const char *name, dt_machine *out)
{
    const dt_machine *m;
    char known[128] = "";
    size_t n;

    DT_CHECK(name != NULL && out != NULL, DT_ERR_ARG, "name or out is NULL");
    *out = (dt_machine){ 0 };
    n = strcspn(name, ":");
    if (strpbrk(name, "./") != NULL) {
        dti_json_doc doc;
        DT_TRY(dti_json_read_stream(name, FILE_BYTES, &doc));
        DT_TRY(read_doc(&doc, out));
        return DT_OK;
    }
    for (int i = 0; (m = dt_machine_at(i)) != NULL; i++) {
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", m->name);
        if (strlen(m->name) != n || memcmp(m->name, name, n) != 0) continue;
        *out = *m;
        if (name[n] == ':') DT_TRY(read_counts(name, name + n + 1, out));
        return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "\"%.80s\" is no machine; there are %s, or name a .json file", name, known);
}
