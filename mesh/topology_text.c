/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine and who runs where, as text. */
#include <stdio.h>
#include <string.h>

#include "mesh/core_binding.h"

enum { LINE_BYTES = 320, LABEL_BYTES = 160 };

static const char *bytes_text(int64_t bytes, char text[32])
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes / 1024;
    size_t u = 0;

    while (value >= 1024 && u + 1 < DT_COUNT(units)) {
        value /= 1024;
        u++;
    }
    (void)snprintf(text, 32, value < 10 && value > (double)(int)value ? "%.1f %s" : "%.0f %s",
                   value, units[u]);
    return text;
}

/* "rank 5 dp=1,tp=1", or with a worker's number where a rank has several threads. */
static void label_of(const dt_core *c, const char *mesh, int threads, char label[LABEL_BYTES])
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], coord[DT_MAX_DIMS], n_dims = 0, n_ranks, place = c->rank;
    size_t used;

    label[0] = '\0';
    if (c->rank < 0) return;
    used = (size_t)snprintf(label, LABEL_BYTES, "rank %d", c->rank);
    if (mesh != NULL && dt_mesh_parse(mesh, &n_dims, names, sizes, &n_ranks) != DT_OK) n_dims = 0;
    for (int d = n_dims - 1; d >= 0; d--) {
        coord[d] = place % sizes[d];
        place /= sizes[d];
    }
    for (int d = 0; d < n_dims && used < LABEL_BYTES; d++)
        used += (size_t)snprintf(label + used, LABEL_BYTES - used, "%s%s=%d", d ? "," : " ",
                                 names[d], coord[d]);
    if (threads > 1 && used < LABEL_BYTES)
        (void)snprintf(label + used, LABEL_BYTES - used, " thread %d", c->worker);
}

/* Numbers that differ from core to core when a new package, node or cache begins. */
static int count_new(const dt_topology *t, int (*number)(const dt_core *c))
{
    int n = 0, last = -1;

    for (int i = 0; i < dt_topology_n_cores(t); i++) {
        dt_core c;
        dt_topology_core(t, i, &c);
        if (number(&c) != last) n++;
        last = number(&c);
    }
    return n;
}

static int package_of(const dt_core *c)
{
    return c->package;
}

static int node_of(const dt_core *c)
{
    return c->node;
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

static void draw_head(const dt_topology *t, dt_topology_line line, void *arg)
{
    const int n = dt_topology_n_cores(t), packages = count_new(t, package_of);
    const int nodes = count_new(t, node_of), gpus = dt_topology_n_gpus(t);
    char text[LINE_BYTES], more[32] = "";
    dt_core first;

    dt_topology_core(t, 0, &first);
    if (gpus > 0) (void)snprintf(more, sizeof more, ", %d GPU%s", gpus, plural(gpus));
    (void)snprintf(text, sizeof text, "%d package%s, %d NUMA node%s, %d core%s%s%s", packages,
                   plural(packages), nodes, plural(nodes), n, plural(n),
                   first.n_cpus > 1 ? " of several hyperthreads" : "", more);
    line(arg, text);
}

static void draw_gpu(int number, const dt_gpu *gpu, dt_topology_line line, void *arg)
{
    char text[LINE_BYTES];

    (void)snprintf(text, sizeof text, "    GPU %d at %s: %s, %s", number, gpu->bus, gpu->name,
                   gpu->devices[0] != '\0' ? gpu->devices : "no driver");
    line(arg, text);
}

static void draw_gpus_of(const dt_topology *t, int node, dt_topology_line line, void *arg)
{
    for (int i = 0; i < dt_topology_n_gpus(t); i++) {
        dt_gpu gpu;
        dt_topology_gpu(t, i, &gpu);
        if (gpu.node == node) draw_gpu(i, &gpu, line, arg);
    }
}

static bool node_is_drawn(const dt_topology *t, int node)
{
    for (int i = 0; node >= 0 && i < dt_topology_n_cores(t); i++) {
        dt_core c;
        dt_topology_core(t, i, &c);
        if (c.node == node) return true;
    }
    return false;
}

/* GPUs that are near to several nodes, or to one whose cores this process may not use. */
static void draw_other_gpus(const dt_topology *t, dt_topology_line line, void *arg)
{
    bool first = true;

    for (int i = 0; i < dt_topology_n_gpus(t); i++) {
        dt_gpu gpu;
        dt_topology_gpu(t, i, &gpu);
        if (node_is_drawn(t, gpu.node)) continue;
        if (first) line(arg, "near none of these nodes alone");
        first = false;
        draw_gpu(i, &gpu, line, arg);
    }
}

/* What begins at a core: its package, its node with the GPUs near to it, its cache. */
static void draw_containers(const dt_topology *t, const dt_core *c, const dt_core *before,
                            dt_topology_line line, void *arg)
{
    const bool package = before == NULL || c->package != before->package;
    const bool node = package || c->node != before->node;
    char text[LINE_BYTES], bytes[32];

    if (package && c->package >= 0) {
        (void)snprintf(text, sizeof text, "package %d", c->package);
        line(arg, text);
    }
    if (node && c->node >= 0) {
        (void)snprintf(text, sizeof text, "  NUMA node %d%s%s", c->node, c->node_bytes ? ", " : "",
                       c->node_bytes ? bytes_text(c->node_bytes, bytes) : "");
        line(arg, text);
        draw_gpus_of(t, c->node, line, arg);
    }
    if (c->l3 >= 0 && (node || c->l3 != before->l3)) {
        (void)snprintf(text, sizeof text, "    L3 cache %d%s%s", c->l3, c->l3_bytes ? ", " : "",
                       c->l3_bytes ? bytes_text(c->l3_bytes, bytes) : "");
        line(arg, text);
    }
}

void dt_topology_draw(const dt_topology *t, const char *mesh, dt_topology_line line, void *arg)
{
    dt_core c, before;

    if (t == NULL || line == NULL) return;
    draw_head(t, line, arg);
    for (int i = 0; i < dt_topology_n_cores(t); i++) {
        char text[LINE_BYTES], label[LABEL_BYTES];
        dt_topology_core(t, i, &c);
        draw_containers(t, &c, i > 0 ? &before : NULL, line, arg);
        label_of(&c, mesh, dt_topology_threads(t), label);
        (void)snprintf(text, sizeof text, "      core %-3d cpu %-7.100s %s", i, c.cpus, label);
        for (size_t n = strlen(text); n > 0 && text[n - 1] == ' ';) text[--n] = '\0';
        line(arg, text);
        before = c;
    }
    draw_other_gpus(t, line, arg);
}
