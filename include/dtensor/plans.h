/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans from files: which style each layer of a model has. docs/plans.md describes the format. */
#ifndef DT_PLANS_H
#define DT_PLANS_H

#include <dtensor/parallel_styles.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Reads a plan from a JSON file, or from whatever `path` names (a pipe such as /dev/stdin):
 *
 *   {"model.layers.*.self_attn.q_proj": "colwise",
 *    "model.layers.*.mlp.down_proj":    {"tp": "rowwise", "dp": "replicate"},
 *    "lm_head":                         {"style": "colwise", "output": "R"},
 *    "strict": false, "mode": "manual", "version": "v4.56"}
 *
 * A member is a pattern and its style, a style with arguments as dt_style_find() reads them (a list
 * for several values), or one of both per mesh dim. Settings are "strict" (dt_plan.strict,
 * true unless said otherwise), "mode" (dt_plan.manual: "auto", the default, or "manual") and
 * "version" (dt_plan.version). The plan's source is the file, so every message about a rule names
 * it.
 *
 *   *out  the first of a chain of plans, one per mesh dim that the file names; for
 *         dt_load_options.plan or dt_layers_create()
 *
 * Collective  no.
 * Ownership   *out owns its texts and the chain; released with dt_plan_release(), nothing else.
 * Errors      DT_ERR_IO      the file cannot be read
 *             DT_ERR_FORMAT  no JSON object; a value that is neither style nor setting
 *             DT_ERR_ARG     more mesh dims than a mesh has; NULL
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_plan_read(const char *path, dt_plan **out);

/** The same of n bytes of text, which messages call `name`. Collective no. Errors: those of
 * dt_plan_read() but DT_ERR_IO. */
DT_API DT_MUST_USE dt_status dt_plan_parse(const char *name, const char *text, size_t n,
                                           dt_plan **out);
DT_API void dt_plan_release(dt_plan **plan); /* of both; accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
