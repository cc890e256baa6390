/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan from a JSON file: {"model.layers.*.mlp.up_proj": "colwise", ...}. Instead of a style a
 * pattern may have one per mesh dim: {"tp": "colwise", "cp": "rowwise"}. */
#ifndef DTI_CLI_PLAN_H
#define DTI_CLI_PLAN_H

#include "cli/cli.h"
#include "models/checkpoint/json.h"

typedef struct cli_plan {
    dti_json_doc doc;          /* owns the texts of the rules */
    dt_plan_rule *rules;       /* of all plans */
    dt_plan plan[DT_MAX_DIMS]; /* a chain: first that of no named dim, then one per dim. Strict: a
                                * rule that matches nothing is a slip of the pen */
} cli_plan;

/* Zeroed before; freed with cli_plan_free() whether it could be read or not. */
dt_status cli_plan_read(const char *path, cli_plan *out) DT_MUST_USE;

void cli_plan_free(cli_plan *plan); /* accepts a zeroed plan */

#endif
