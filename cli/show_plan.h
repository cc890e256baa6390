/* SPDX-License-Identifier: Apache-2.0
 *
 * What `dtensor plan` has found out, for its two ways of printing it. */
#ifndef DTI_CLI_SHOW_PLAN_H
#define DTI_CLI_SHOW_PLAN_H

#include "cli/cli.h"
#include "models/judge/predict.h"

typedef struct cli_resolved {
    const char *folder;
    const char *mesh; /* "dp=4,tp=8" */
    const char *plan; /* its file, or NULL */
    bool sequence_parallel;
    bool manual; /* the plan leaves no layer to its built-in style */
    int64_t batch;
    int64_t sequence;
    int64_t n_params;
    int n_ranks;
    dti_rank_cost *ranks; /* [n_ranks] */
    dti_prediction first; /* as rank 0 sees it */
} cli_resolved;

dt_status cli_resolved_print(const cli_resolved *r) DT_MUST_USE;
dt_status cli_resolved_json(const cli_resolved *r) DT_MUST_USE;

enum { CLI_DIMS_BYTES = 96, CLI_STYLE_BYTES = 96 };

/* Where the styles of a layer come from: "plan" (a file), "checkpoint", for a tied weight by a rule
 * for either of its layers; "manual", which leaves the layer whole; or "built-in". */
const char *cli_plan_source(const cli_resolved *r, const dt_layer *layer);

/* "dp,tp": the dims (bits) of a mesh; their number of ranks. */
const char *cli_dims_text(const dt_mesh *mesh, uint32_t dims, char text[CLI_DIMS_BYTES]);
int cli_dims_ranks(const dt_mesh *mesh, uint32_t dims);

#endif
