/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of training would hold, send and compute, rank by rank: of `dtensor plan --train`, of
 * `dtensor train --dry-run`, and in the folder of every run. */
#ifndef DTI_CLI_TRAINING_COSTS_H
#define DTI_CLI_TRAINING_COSTS_H

#include <dtensor/predict.h>

#include "cli/cli.h"

struct json_t;

enum { CLI_SHOWN_RANKS = 16 };

typedef struct cli_costs {
    const cli_args *args; /* folder, registry, json */
    const dt_predict_options *predict;
    dt_step_options step;
    bool *failed_output; /* set where --picture could not be written */
    struct {
        double forward, backward;
    } flops[CLI_SHOWN_RANKS]; /* of ranks whose step was predicted; 0: not yet */
} cli_costs;

/* To stdout, as text or with --json as an object; of large meshes the first ranks. */
dt_status cli_costs_print(cli_costs *costs) DT_MUST_USE;

/* The object; freed with json_decref(). */
dt_status cli_costs_json(cli_costs *costs, struct json_t **out) DT_MUST_USE;

/* Of a model in stages: what its schedule comes to in time, and that as a picture, on stdout and as
 * SVG in the file of --picture (draw_pipeline.c). */
dt_status cli_pipeline_time(const cli_costs *costs, dt_pipeline_timing **out) DT_MUST_USE;
dt_status cli_pipeline_draw(const cli_costs *costs) DT_MUST_USE;

#endif
