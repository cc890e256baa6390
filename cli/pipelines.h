/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in stages over the mesh dim "pp": what the command line says of them. */
#ifndef DTI_CLI_PIPELINES_H
#define DTI_CLI_PIPELINES_H

#include <dtensor/models.h>
#include <dtensor/pipeline.h>

#include "cli/cli.h"

typedef struct cli_pipeline {
    dt_pipeline_schedule *schedule; /* NULL: none */
    int64_t microbatches;           /* of a step; at least 1 */
} cli_pipeline;

/* The size of the mesh dim "pp"; 0: there is none. */
int cli_pipeline_ranks(const char *mesh);

/* --schedule, --microbatches and --stages-per-rank of a training step on `mesh`, read once: a file
 * may be one that cannot be read again. The caller releases the schedule. */
dt_status cli_pipeline_read(const cli_args *args, const char *mesh, cli_pipeline *out) DT_MUST_USE;

/* --stages into the options of loading, and how many the schedule wants; NULL: there is none. */
dt_status cli_load_stages(const cli_args *args, const char *mesh,
                          const dt_pipeline_schedule *schedule, dt_load_options *load) DT_MUST_USE;

#endif
