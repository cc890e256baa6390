/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor calibrate: what this machine reaches, as a file for plan --auto. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/outputs.h"
#include "cli/print_report.h"
#include "cli/run_folder.h"
#include "cli/search_ways.h"

enum { MACHINE_BYTES = 1 << 18, SECONDS = 20 };

dt_status cli_measure_machine(const cli_args *args, const cli_console *console, double seconds,
                              dt_machine *out)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    if (args->nodes > 0) o.nodes = (int)args->nodes;
    o.ranks = (int)args->ranks;
    o.threads = (int)args->threads;
    o.seconds = seconds;
    o.log = cli_log;
    o.log_arg = (void *)(uintptr_t)console;
    o.links = args->link;
    o.isa = args->isa;
    o.products = args->products;
    DT_TRY(dt_machine_calibrate(&o, out));
    return DT_OK;
}

static void print_figures(const dt_machine *m, const char *path)
{
    (void)printf("%s, %d core%s, %d rank%s of %d thread%s on each of %d node%s\n", m->processor,
                 m->cores, m->cores == 1 ? "" : "s", m->devices_per_node,
                 m->devices_per_node == 1 ? "" : "s", m->threads, m->threads == 1 ? "" : "s",
                 m->nodes, m->nodes == 1 ? "" : "s");
    for (int i = 0; i < DT_N_FIGURES; i++)
        if (m->figure[i].source[0] != '\0')
            (void)printf("  %-18s %10.4g  %s\n", dt_figure_name((dt_figure_kind)i),
                         m->figure[i].value, m->figure[i].source);
    for (int i = 0; i < m->n_links; i++)
        (void)printf("  %-14s among %3d %s %10.4g s a call, %10.4g bytes/s\n",
                     dt_comm_kind_name(m->link[i].kind), m->link[i].ranks,
                     m->link[i].between ? "nodes" : "ranks", m->link[i].latency,
                     m->link[i].bandwidth);
    (void)printf("  %d calls of kernels and %d of collectives are in %s\n", m->n_rates, m->n_links,
                 path);
}

static dt_status calibrate(const cli_args *args, const cli_env *env, const cli_console *console)
{
    dt_machine *m = calloc(1, sizeof *m);
    char *text = malloc(MACHINE_BYTES);
    dt_status st = DT_OK;
    int n;

    (void)env;
    DT_CHECK_TO(done, st, m != NULL && text != NULL, DT_ERR_MEMORY,
                "no memory for what is to be measured");
    if (args->output != NULL) DT_TRY_TO(done, st, cli_check_place("--output", args->output, args));
    DT_TRY_TO(
        done, st,
        cli_measure_machine(args, console, args->seconds > 0 ? (double)args->seconds : SECONDS, m));
    n = dt_machine_print(m, text, MACHINE_BYTES);
    if (args->output != NULL) st = cli_write_text(args->output, text, (size_t)n);
    if (st == DT_ERR_IO) *console->failed_output = true; /* a full disk is no bad input */
    DT_TRY_TO(done, st, st);
    if (args->output == NULL || args->json)
        (void)fputs(text, stdout);
    else
        print_figures(m, args->output);
    st = cli_flush();
done:
    free(text);
    free(m);
    return st;
}

const cli_command cli_calibrate = {
    .name = "calibrate",
    .bit = CLI_CALIBRATE,
    .usage = "[--output FILE] [OPTION]...",
    .summary = "measures what kernels and links of this machine take, for plan --auto",
    .details =
        "Runs steps of small models with the time of every kernel noted, on as many ranks as "
        "there\n"
        "are cores for, then collectives among groups of all sizes, and writes a JSON file for\n"
        "\"dtensor plan --auto --machine FILE\": rates by operator, size and dtype, latency and\n"
        "bandwidth of each collective, with processor, date and version. Ranks may be more than\n"
        "cores, which they then share. Without --output the file goes to standard output. Nothing\n"
        "else should run meanwhile.",
    .run = calibrate,
};
