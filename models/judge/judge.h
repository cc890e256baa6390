/* SPDX-License-Identifier: Apache-2.0
 *
 * Second step: is the plan possible? Dry passes say so before weights are read. */
#ifndef DTI_JUDGE_H
#define DTI_JUDGE_H

#include "models/describe/describe.h"

/* Judges the plan in `o` by dry passes, on a dry copy of `mesh`, of a model that is as `known` says
 * (judge.c). The message of a refusal names the plan's source, rule, parameter, sizes and mesh dim,
 * and what would fit. */
dt_status dti_judge(dt_mesh *mesh, const char *dir, const dti_described *known,
                    const dt_load_options *o) DT_MUST_USE;

/* The same, judged by the mesh's first rank alone, whose status and message all ranks take over: a
 * hundred ranks make one dry model. Collective over the mesh; outsiders judge for themselves. */
dt_status dti_judge_together(dt_mesh *mesh, const char *dir, const dti_described *known,
                             const dt_load_options *o) DT_MUST_USE;

/* What a run refuses that asks for nothing special (default_run.c): values of
 * generation_config.json, which the message names by file and key; the plan of the checkpoint
 * itself, on one rank. Errors: what the run would end with. */
dt_status dti_judge_generation(const dti_described *d) DT_MUST_USE;
dt_status dti_judge_own_plan(const dti_described *d) DT_MUST_USE;

#endif
