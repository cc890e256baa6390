/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor topo: the machine, and where the ranks of a mesh would run on it. */
#include <jansson.h>
#include <stdio.h>

#include "cli/option_table.h"
#include "cli/print_report.h"
#include "cli/session.h"
#include <dtensor/topology.h>

/* What the command line asks to be placed. */
typedef struct topo {
    dt_topology *machine;
    const char *mesh;
    char default_mesh[CLI_DEFAULT_MESH];
    dt_division division;
    int n_ranks;
} topo;

static void print_line(void *arg, const char *line)
{
    (void)arg;
    (void)printf("%s\n", line);
}

static void print_verdict(const topo *t)
{
    const int threads = dt_topology_threads(t->machine), n = t->n_ranks;
    const int cores = dt_topology_n_cores(t->machine);

    (void)printf("\nmesh %s: %d rank%s of %d thread%s", t->mesh, n, n == 1 ? "" : "s", threads,
                 threads == 1 ? "" : "s");
    if (t->division.bind == DT_BIND_NONE)
        (void)printf(", not bound: the system chooses the cores\n");
    else if (!dt_topology_fits(t->machine))
        (void)printf(" on %d core%s: more threads than cores, so nothing is bound\n", cores,
                     cores == 1 ? "" : "s");
    else
        (void)printf(", %s\n", t->division.bind == DT_BIND_SPREAD ? "spread over the machine"
                                                                  : "side by side (compact)");
}

static json_t *json_core(const dt_core *c)
{
    return json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:o, s:o}", "cpus", c->cpus, "package",
                     c->package, "numa_node", c->node, "l3", c->l3, "l3_bytes",
                     (json_int_t)c->l3_bytes, "l2_bytes", (json_int_t)c->l2_bytes, "rank",
                     c->rank < 0 ? json_null() : json_integer(c->rank), "thread",
                     c->rank < 0 ? json_null() : json_integer(c->worker));
}

static json_t *json_gpu(const dt_gpu *g)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:i}", "bus", g->bus, "name", g->name, "devices",
                     g->devices, "package", g->package, "numa_node", g->node);
}

static dt_status print_json(const topo *t)
{
    json_t *cores = json_array(), *gpus = json_array(), *object;
    dt_core c;

    for (int i = 0; i < dt_topology_n_cores(t->machine); i++) {
        dt_topology_core(t->machine, i, &c);
        (void)json_array_append_new(cores, json_core(&c));
    }
    for (int i = 0; i < dt_topology_n_gpus(t->machine); i++) {
        dt_gpu g;
        dt_topology_gpu(t->machine, i, &g);
        (void)json_array_append_new(gpus, json_gpu(&g));
    }
    object = json_pack("{s:s, s:i, s:i, s:b, s:o, s:o}", "mesh", t->mesh, "ranks", t->n_ranks,
                       "threads", dt_topology_threads(t->machine), "bound",
                       t->division.bind != DT_BIND_NONE && dt_topology_fits(t->machine), "cores",
                       cores, "gpus", gpus);
    DT_TRY(cli_put_json(object, JSON_COMPACT));
    return DT_OK;
}

static dt_status read_arguments(const cli_args *args, topo *t)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_status st;

    t->mesh = cli_mesh_of(args, t->default_mesh);
    st = dt_mesh_parse(t->mesh, &n_dims, names, sizes, &t->n_ranks);
    if (st != DT_OK) dti_error_prefix("--mesh");
    DT_TRY(st);
    t->division = (dt_division){ .n_ranks = t->n_ranks,
                                 .threads = (int)args->threads,
                                 .together = sizes[n_dims - 1] };
    DT_TRY(cli_read_bind(args, &t->division.bind));
    st = dt_topology_load_with_gpus(args->machine, &t->machine);
    if (st != DT_OK) dti_error_prefix("--machine");
    DT_TRY(st);
    DT_TRY(dt_topology_divide(t->machine, &t->division));
    if (t->division.bind == DT_BIND_NONE) dt_topology_clear(t->machine);
    return DT_OK;
}

static dt_status run(const cli_args *args, const cli_env *env, const cli_console *console)
{
    dt_status st = DT_OK;
    topo t = { 0 };

    (void)env, (void)console;
    DT_TRY_TO(done, st, read_arguments(args, &t));
    if (args->json) {
        DT_TRY_TO(done, st, print_json(&t));
    } else {
        dt_topology_draw(t.machine, t.mesh, print_line, NULL);
        print_verdict(&t);
    }
    DT_TRY_TO(done, st, cli_flush());
done:
    dt_topology_release(&t.machine);
    return st;
}

const cli_command cli_topo = {
    .name = "topo",
    .bit = CLI_TOPO,
    .usage = "[--mesh MESH] [OPTION]...",
    .summary = "draws the machine and where ranks would run on it",
    .details =
        "Packages, NUMA nodes with the GPUs near to them, caches and cores that this process may\n"
        "use, with the rank and thread that a run on --mesh would bind to each core. Ranks of tp,\n"
        "or else of the last mesh dim, stay within one NUMA node where they fit. --machine tries\n"
        "this on a machine that is not there.",
    .run = run,
};
