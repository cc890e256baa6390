/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/run_folder.h"
#include "cli/training_costs.h"

/* The first world rank at coordinate r of the dim "pp". */
static dt_status leader_of(const char *mesh, int r, int *rank)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n, n_ranks;

    DT_TRY(dt_mesh_parse(mesh, &n, names, sizes, &n_ranks));
    *rank = 0;
    for (int m = 0; m < n; m++) *rank = *rank * sizes[m] + (strcmp(names[m], "pp") == 0 ? r : 0);
    return DT_OK;
}

static dt_status flops_of(const cli_costs *costs, int rank, double *forward, double *backward)
{
    const bool known = rank < CLI_SHOWN_RANKS && costs->flops[rank].forward > 0;
    dt_training_cost c;

    if (!known)
        DT_TRY(dt_predict_training(costs->args->registry, costs->args->folder, costs->predict,
                                   &costs->step, rank, &c));
    *forward = known ? costs->flops[rank].forward : c.forward.work.flops;
    *backward = known ? costs->flops[rank].backward : c.backward.work.flops;
    return DT_OK;
}

/* Times of each stage's actions by the operations of its rank, of which half of those on the way
 * back are taken for each of I and W. The longest F takes 1. */
static dt_status measure(const cli_costs *costs, double *f, double *i)
{
    const dt_pipeline_schedule *s = costs->step.schedule;
    const int n = dt_pipeline_schedule_stages(s);
    double most = 0, forward, backward;
    int rank;

    for (int r = 0; r < dt_pipeline_schedule_ranks(s); r++) {
        DT_TRY(leader_of(costs->predict->mesh, r, &rank));
        DT_TRY(flops_of(costs, rank, &forward, &backward));
        for (int k = 0; k < n; k++) {
            if (dt_pipeline_schedule_rank_of(s, k) != r) continue;
            f[k] = forward;
            i[k] = backward / 2;
        }
        most = fmax(most, forward);
    }
    for (int k = 0; k < n; k++) {
        f[k] = most > 0 ? f[k] / most : 1;
        i[k] = most > 0 ? i[k] / most : 1;
    }
    return DT_OK;
}

static dt_status drawn(const dt_pipeline_timing *t, dt_drawing form, char **out)
{
    const int n = dt_pipeline_timing_draw(t, form, NULL, 0);

    *out = malloc((size_t)n + 1);
    DT_CHECK(*out != NULL, DT_ERR_MEMORY, "the picture does not fit into memory");
    (void)dt_pipeline_timing_draw(t, form, *out, (size_t)n + 1);
    return DT_OK;
}

dt_status cli_pipeline_time(const cli_costs *costs, dt_pipeline_timing **out)
{
    const int n = dt_pipeline_schedule_stages(costs->step.schedule);
    dt_pipeline_costs times = DT_PIPELINE_COSTS_INIT;
    dt_status st;
    double *f;

    *out = NULL;
    DT_TRY(dti_alloc_array(2 * (size_t)n, sizeof *f, (void **)&f));
    times.f = f;
    times.i = times.w = f + n;
    times.together = 0;
    st = measure(costs, f, f + n);
    if (st == DT_OK) st = dt_pipeline_simulate(costs->step.schedule, &times, out);
    dti_free(f);
    DT_TRY(st);
    return DT_OK;
}

dt_status cli_pipeline_draw(const cli_costs *costs)
{
    dt_pipeline_timing *timing;
    char *text = NULL, *svg = NULL;
    dt_status st = DT_OK;

    DT_TRY(cli_pipeline_time(costs, &timing));
    DT_TRY_TO(done, st, drawn(timing, DT_DRAW_TEXT, &text));
    (void)fputs(text, stdout);
    if (costs->args->picture == NULL) goto done;
    DT_TRY_TO(done, st, drawn(timing, DT_DRAW_SVG, &svg));
    st = cli_write_text(costs->args->picture, svg, strlen(svg));
    if (st != DT_OK) dti_error_prefix("--picture");
    if (st == DT_ERR_IO && costs->failed_output != NULL) *costs->failed_output = true;
done:
    free(text);
    free(svg);
    dt_pipeline_timing_release(&timing);
    return st;
}
