/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint's own plan: config.json may hold the one that Transformers would use, by the names
 * of layers in the model ("tp_plan") or in what is below its head ("base_model_tp_plan"). */
#include <stdio.h>
#include <string.h>

#include "models/describe/describe.h"

static const char *const keys[] = { "base_model_tp_plan", "tp_plan" };

/* Transformers 4 gave some names another meaning. */
static const char *version_of(const dti_json *root)
{
    const dti_json v = dti_json_get(root, "transformers_version");
    const char *text = "";

    if (dti_json_kind_of(&v) != DT_CONFIG_STRING || dti_json_as_string(&v, &text) != DT_OK)
        return NULL;
    return strncmp(text, "4.", 2) == 0 ? "v4.56" : NULL;
}

/* The rules of one object. A layer whose style is null has none, as layers without a rule. */
static dt_status add_rules(dti_described *d, const dti_json *from, dt_plan_rule *rules, int *n)
{
    const char *pattern = NULL, *style;
    dti_json value;
    char *copy, *name;

    while (dti_json_next(from, &pattern, &value)) {
        if (!dti_json_is_set(&value)) continue;
        DT_TRY(dti_json_as_string(&value, &style));
        DT_TRY(dti_arena_strndup(&d->plan_arena, style, strlen(style), &copy));
        DT_TRY(dti_arena_strndup(&d->plan_arena, pattern, strlen(pattern), &name));
        rules[(*n)++] = (dt_plan_rule){ name, copy };
    }
    return DT_OK;
}

dt_status dti_own_plan_read(const char *dir, const dti_json *root, dti_described *d)
{
    dti_json text = *root, plan[2 * DT_COUNT(keys)];
    const size_t bytes = strlen(dir) + sizeof "/config.json";
    size_t n_rules = 0, n_plans = 0;
    dt_plan_rule *rules;
    char *source;

    if (d->arch->text_config != NULL) text = dti_json_get(root, d->arch->text_config);
    for (size_t i = 0; i < 2 * DT_COUNT(keys); i++) {
        const dti_json *from = i < DT_COUNT(keys) ? &text : root;
        if (from == root && d->arch->text_config == NULL) break;
        DT_TRY(dti_json_object_or_none(from, keys[i % DT_COUNT(keys)], &plan[n_plans]));
        if (!dti_json_is_set(&plan[n_plans])) continue;
        n_rules += dti_json_count(&plan[n_plans++]);
    }
    if (n_rules == 0) return DT_OK;
    DT_TRY(dti_arena_alloc(&d->plan_arena, n_rules * sizeof *rules, (void **)&rules));
    DT_TRY(dti_arena_alloc(&d->plan_arena, bytes, (void **)&source));
    (void)snprintf(source, bytes, "%s/config.json", dir);
    d->plan = (dt_plan){ .rules = rules, .source = source, .version = version_of(root) };
    for (size_t i = 0; i < n_plans; i++) DT_TRY(add_rules(d, &plan[i], rules, &d->plan.n_rules));
    /* "layers.*.mlp" -> "model.layers.*.mlp"; what matches nothing is reported as it is */
    DT_TRY(dti_plan_spell(d, rules, d->plan.n_rules));
    return DT_OK;
}
