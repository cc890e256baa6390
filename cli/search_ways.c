/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/search_ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print_report.h"
#include "cli/session.h"
#include "cli/training.h"

dt_status cli_check_auto(const cli_args *args)
{
    const char *of_auto = args->machine != NULL   ? "machine"
                          : args->explain != NULL ? "explain"
                          : args->top > 0         ? "top"
                                                  : NULL;
    const char *of_mesh = args->mesh != NULL                   ? "mesh"
                          : args->fully_shard != NULL          ? "fully-shard"
                          : args->offload != NULL              ? "offload-parameters"
                          : args->stages != NULL               ? "stages"
                          : args->sequence_parallel            ? "sequence-parallel"
                          : args->recompute != NULL            ? "recompute"
                          : args->training.zero >= 0           ? "zero"
                          : args->training.microbatches > 0    ? "microbatches"
                          : args->training.pipeline != NULL    ? "schedule"
                          : args->training.stages_per_rank > 0 ? "stages-per-rank"
                          : args->training.offload != NULL     ? "offload"
                          : args->training.bucket > 0          ? "bucket"
                          : args->picture != NULL              ? "picture"
                                                               : NULL;

    DT_CHECK(args->automatic || of_auto == NULL, DT_ERR_ARG, "--%s is of --auto; add it", of_auto);
    if (!args->automatic) return DT_OK;
    DT_CHECK(
        of_mesh == NULL, DT_ERR_ARG,
        "--%s is what --auto finds; leave it out, or leave out --auto (--explain MESH looks at "
        "one mesh alone)",
        of_mesh);
    DT_CHECK(args->train, DT_ERR_ARG, "--auto plans steps of training so far; add --train");
    DT_CHECK(args->machine != NULL, DT_ERR_ARG,
             "for which machine? give --machine h100:16x8, or a .json file of one");
    return DT_OK;
}

/* "pp=2,dp=2,tp=2" are the only degrees to look at. */
static dt_status pin(const char *mesh, dt_planner_options *o)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n, n_ranks;

    if (mesh == NULL) return DT_OK;
    DT_TRY(dt_mesh_parse(mesh, &n, names, sizes, &n_ranks));
    o->pp = o->dp = o->tp = 1;
    for (int m = 0; m < n; m++) {
        int *at = strcmp(names[m], "pp") == 0   ? &o->pp
                  : strcmp(names[m], "dp") == 0 ? &o->dp
                  : strcmp(names[m], "tp") == 0 ? &o->tp
                                                : NULL;
        DT_CHECK(at != NULL, DT_ERR_ARG, "--explain %s: dims are pp, dp and tp", mesh);
        *at = sizes[m];
    }
    return DT_OK;
}

static dt_status print(const dt_search *s, bool json)
{
    const int n = dt_search_print(s, json, NULL, 0);
    char *text = malloc((size_t)n + 1);

    DT_CHECK(text != NULL, DT_ERR_MEMORY, "the result does not fit into memory");
    (void)dt_search_print(s, json, text, (size_t)n + 1);
    (void)fputs(text, stdout);
    free(text);
    DT_TRY(cli_flush());
    return DT_OK;
}

/* Whether there is a way. */
static dt_status judge(const dt_search *s, const char *machine)
{
    const dt_verdict *first = dt_search_at(s, 0);
    const long long least = dt_search_least_devices(s);
    char more[96] = "";

    if (first != NULL && first->kind == DT_VERDICT_RANKED) return DT_OK;
    if (least > 0) (void)snprintf(more, sizeof more, "; %lld devices of that kind would do", least);
    DT_FAIL(DT_ERR_ARG, "the model fits in no way on --machine %s%s", machine, more);
}

dt_status cli_search_ways(const cli_args *args, const cli_console *console)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;
    dt_machine machine;
    dt_search *s = NULL;
    dt_plan *plan = NULL;
    dt_status st;

    (void)console;
    st = dt_machine_read(args->machine, &machine);
    if (st != DT_OK) dti_error_prefix("--machine");
    DT_TRY(st);
    DT_TRY(pin(args->explain, &o));
    DT_TRY(cli_read_dtype(args->dtype, &load));
    DT_TRY(cli_optimizer_read(args, &optimizer));
    DT_TRY(cli_read_plan(args, &plan, &load));
    o.batch = args->batch;
    o.sequence = args->sequence;
    o.load = &load;
    o.optimizer = &optimizer;
    if (args->top > 0) o.top = (int)args->top;
    DT_TRY_TO(done, st, dt_search_ways(args->registry, args->folder, &machine, &o, &s));
    DT_TRY_TO(done, st, print(s, args->json));
    st = judge(s, args->machine);
done:
    dt_search_release(&s);
    dt_plan_release(&plan);
    return st;
}
