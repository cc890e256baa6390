/* SPDX-License-Identifier: Apache-2.0
 *
 * How tokens spread over experts, in the reports of runs. */
#ifndef DTI_CLI_EXPERT_REPORT_H
#define DTI_CLI_EXPERT_REPORT_H

#include <dtensor/expert_loads.h>
#include <dtensor/models.h>

/* Counts from now on, if the model has experts; on CPUs alone, where it costs nothing. */
dt_status cli_loads_begin(dt_model *model) DT_MUST_USE;

/* Sums what was counted since then or the last sum; *worst is the mixture whose load is the most
 * uneven, with n_experts 0 where nothing is counted. Collective. */
dt_status cli_loads_sum(dt_model *model, dt_expert_load *worst) DT_MUST_USE;

/* Of each mixture, a JSON array; NULL where nothing is counted. */
struct json_t *cli_loads_json(dt_model *model);

/* One line on stderr; nothing where nothing is counted. */
void cli_loads_print(const dt_expert_load *worst);

#endif
