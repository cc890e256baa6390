/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in stages over the mesh dim "pp": what the command line says of them. */
#ifndef DTI_CLI_PIPELINES_H
#define DTI_CLI_PIPELINES_H

#include <dtensor/models.h>
#include <dtensor/pipeline.h>

#include "cli/cli.h"

/* Microbatches of a step. Where --microbatches does not say they are as many as the pipeline has
 * ranks, or as its schedule needs; 1 without a pipeline. */
dt_status cli_pipeline_microbatches(const cli_args *args, const char *mesh,
                                    int64_t *out) DT_MUST_USE;

/* The schedule of a training step, --schedule on --mesh; *out is NULL without a pipeline. */
dt_status cli_pipeline_schedule(const cli_args *args, const char *mesh,
                                dt_pipeline_schedule **out) DT_MUST_USE;

/* --stages, and how many the schedule wants, into the options of loading. */
dt_status cli_load_stages(const cli_args *args, const char *mesh,
                          dt_load_options *load) DT_MUST_USE;

#endif
