/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine at hand: what the system says of it, then what is measured. */
#include "planner/measure.h"

#include <dtensor/topology.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/options.h"
#include "mesh/launch.h"

enum { MOST_RANKS = 1024 };

/* Of the time, kernels take so much, links the rest. */
static const double FOR_KERNELS = 0.65;

void dti_figure_set(dt_machine *m, dt_figure_kind kind, double value, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    m->figure[kind].value = value;
    (void)vsnprintf(m->figure[kind].source, sizeof m->figure[kind].source, fmt, args);
    va_end(args);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double dti_quick_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[n / 4];
}

dt_run_options dti_calibrate_run(const dt_calibrate_options *o, int n_ranks, int threads)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;

    run.n_ranks = n_ranks;
    run.threads_per_rank = threads;
    run.links = o->links;
    run.isa = o->isa;
    run.products = o->products;
    return run;
}

dt_status dt_machine_here(int ranks, dt_machine *out)
{
    const double pages = (double)sysconf(_SC_PHYS_PAGES);
    const double bytes = pages * (double)sysconf(_SC_PAGESIZE);
    dt_topology *t;

    DT_CHECK(out != NULL && ranks >= 0, DT_ERR_ARG, "out is NULL, or %d ranks", ranks);
    *out = (dt_machine){ .name = "here", .nodes = 1 };
    DT_TRY(dt_topology_load(NULL, &t));
    out->cores = dt_topology_n_cores(t);
    (void)snprintf(out->processor, sizeof out->processor, "%s", dt_topology_processor(t));
    dt_topology_release(&t);
    out->devices_per_node = ranks > 0 ? ranks : out->cores;
    out->threads = (int)dti_max(out->cores / out->devices_per_node, 1);
    if (pages > 0)
        dti_figure_set(out, DT_FIGURE_DEVICE_BYTES, bytes / out->devices_per_node,
                       "exact: memory of this machine / %d ranks", out->devices_per_node);
    return DT_OK;
}

static void sign(dt_machine *m)
{
    const time_t now = time(NULL);
    struct tm day;

    (void)snprintf(m->version, sizeof m->version, "%s", dt_version());
    if (gmtime_r(&now, &day) != NULL) (void)strftime(m->date, sizeof m->date, "%Y-%m-%d", &day);
}

dt_status dt_machine_calibrate(const dt_calibrate_options *options, dt_machine *out)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = (dt_machine){ 0 };
    DT_TRY(dti_options_read("dt_calibrate_options", "start from DT_CALIBRATE_OPTIONS_INIT", options,
                            &o, sizeof o));
    DT_CHECK(o.nodes >= 1 && o.nodes <= MOST_RANKS && o.ranks >= 0 && o.ranks <= MOST_RANKS &&
                 o.threads >= 0 && o.seconds > 0,
             DT_ERR_ARG,
             "%d nodes of %d ranks of %d threads, %g seconds: must not be negative, nodes and "
             "seconds not 0",
             o.nodes, o.ranks, o.threads, o.seconds);
    DT_CHECK(dt_launch_size() <= 1, DT_ERR_UNSUPPORTED,
             "a calibration is of one process, which starts ranks of its own; this is one of %d",
             dt_launch_size());
    if (o.ranks == 0) o.ranks = (int)dti_max(dt_machine_cores() / o.nodes, 1);
    DT_TRY(dt_machine_here(o.ranks * o.nodes, out)); /* all nodes are here */
    out->nodes = o.nodes;
    out->devices_per_node = o.ranks;
    out->cores = (int)dti_max(out->cores / o.nodes, 1);
    if (o.threads > 0) out->threads = o.threads;
    st = dti_measure_kernels(&o, FOR_KERNELS * o.seconds, out);
    if (st == DT_OK) st = dti_measure_links(&o, (1 - FOR_KERNELS) * o.seconds, out);
    if (st != DT_OK) *out = (dt_machine){ 0 };
    DT_TRY(st);
    sign(out);
    return DT_OK;
}
