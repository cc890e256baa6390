/* SPDX-License-Identifier: Apache-2.0
 *
 * What later rooms ask about where a layer's styles come from, and say of the model. */
#ifndef DTI_RULES_OF_PLANS_H
#define DTI_RULES_OF_PLANS_H

#include <dtensor/parallel_styles.h>

#include "base/facts.h"

/* In a chain: one per mesh dim, and one of no named dim. */
enum { DTI_MOST_PLANS = DT_MAX_DIMS + 1 };

/* Does `pattern` match `name`? -1 if not, otherwise the number of stars. */
int dti_plan_match(const char *pattern, const char *name);

/* "weight [96, 64]" for messages. Returns `text`. */
enum { DTI_PARAM_TEXT_BYTES = 72 };
const char *dti_param_text(const dt_param_info *param, char text[DTI_PARAM_TEXT_BYTES]);

/* "plan.json, rule \"a.*\": \"colwise\"" for messages. Returns `text`. */
enum { DTI_RULE_TEXT_BYTES = 320 };
const char *dti_rule_text(const dt_plan *plan, const dt_plan_rule *rule,
                          char text[DTI_RULE_TEXT_BYTES]);

/* What a model is beside its layers, such as its rope_theta: a run that goes on compares it. */
dti_facts *dti_layers_facts(dt_layers *list);

/* The rule of that number, and the plan of the chain that it stands in; NULL if there is none. */
const dt_plan_rule *dti_plan_rule(const dt_plan *first, int number, const dt_plan **plan);

#endif
