/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan to load with, in the model's own names: plans may be asked for by name, spell names of
 * layers as files do ("language_model.layers.*"), and speak of modules that have nothing to lay
 * out. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/describe/describe.h"
#include "models/policies/policies.h"
#include "parallel_styles/layer_rules.h"

/* Is there a layer that `pattern` names? */
static bool has_layer(const dti_described *d, const char *pattern)
{
    for (int i = 0; i < d->builder.n; i++)
        if (dti_plan_match(pattern, d->builder.specs[i].name) >= 0) return true;
    return false;
}

static bool is_unlaid(const dti_described *d, const char *pattern)
{
    for (const char *const *p = d->arch->unlaid; p != NULL && *p != NULL; p++)
        if (dti_plan_match(pattern, *p) >= 0) return true;
    return false;
}

typedef bool (*has_fn)(const dti_described *d, const char *pattern);

/* `pattern`, or how our names would spell it, if `has` knows that. Spellings end in dots. */
static bool spell_for(const dti_described *d, const char *pattern, has_fn has,
                      char name[DTI_PATTERN_BYTES])
{
    char dotted[DTI_PATTERN_BYTES];

    (void)snprintf(name, DTI_PATTERN_BYTES, "%s", pattern);
    if (has(d, name)) return true;
    if (snprintf(dotted, sizeof dotted, "%s.", pattern) >= DTI_PATTERN_BYTES) return false;
    for (const dt_spelling *s = d->arch->spellings; s != NULL && s->ours != NULL; s++) {
        const size_t n = strlen(s->theirs);
        if (strncmp(dotted, s->theirs, n) != 0) continue;
        (void)snprintf(name, DTI_PATTERN_BYTES, "%s%s", s->ours, dotted + n);
        name[strlen(name) - 1] = '\0';
        if (has(d, name)) return true;
    }
    return false;
}

bool dti_plan_spell(const dti_described *d, const char *pattern, char name[DTI_PATTERN_BYTES])
{
    return spell_for(d, pattern, has_layer, name);
}

/* --- by name ---------------------------------------------------------------------------------- */

static dt_status find_named(const dti_described *d, const dt_load_options *o, const dt_plan **out)
{
    const dt_named_plan *plans = d->arch->plans;
    char names[256] = "", shown[DTI_SHOWN_BYTES];
    size_t used = 0;

    *out = o->plan;
    if (o->plan_name == NULL) return DT_OK;
    DT_CHECK(o->plan == NULL, DT_ERR_ARG, "options have a plan and a plan_name, \"%s\": one is one",
             dti_printable(o->plan_name, shown, sizeof shown));
    for (; plans != NULL && plans->name != NULL; plans++) {
        *out = &plans->plan;
        if (strcmp(plans->name, o->plan_name) == 0) return DT_OK;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s\"%s\"",
                                 used > 0 ? ", " : "", plans->name);
        if (used >= sizeof names) used = sizeof names - 1;
    }
    *out = NULL;
    DT_FAIL(DT_ERR_ARG, "%s has no plan \"%s\"%s%s", d->arch->model_type,
            dti_printable(o->plan_name, shown, sizeof shown),
            used > 0 ? "; by name there is " : ", nor any other by name", names);
}

/* --- rules ------------------------------------------------------------------------------------ */

/* What becomes of a rule: its pattern as we spell it, or nothing where there is nothing to lay. */
static dt_status settle_rule(dti_described *d, const dt_plan_rule *rule, dt_plan_rule *to, int *n)
{
    char name[DTI_PATTERN_BYTES], *copy;

    to[*n] = *rule;
    if (rule->pattern != NULL && !dti_plan_spell(d, rule->pattern, name)) {
        if (!spell_for(d, rule->pattern, is_unlaid, name)) {
            ++*n; /* whoever matches rules will say that it matches nothing */
            return DT_OK;
        }
        if (d->n_idle_rules++ == 0) d->idle_rule = rule->pattern;
        return DT_OK;
    }
    if (rule->pattern != NULL && strcmp(name, rule->pattern) != 0) {
        DT_TRY(dti_arena_strndup(&d->plan_arena, name, strlen(name), &copy));
        to[*n].pattern = copy;
    }
    ++*n;
    return DT_OK;
}

/* A plan whose rules are all ours stays the caller's. */
static bool is_settled(const dti_described *d, const dt_plan *plan)
{
    char name[DTI_PATTERN_BYTES];

    for (; plan != NULL; plan = plan->more)
        for (int i = 0; i < plan->n_rules; i++) {
            const char *pattern = plan->rules[i].pattern;
            if (pattern == NULL || has_layer(d, pattern)) continue;
            if (dti_plan_spell(d, pattern, name) || spell_for(d, pattern, is_unlaid, name))
                return false;
        }
    return true;
}

static dt_status settle(dti_described *d, const dt_plan *first)
{
    dt_plan *to, *last = NULL;
    int plans = 0;

    d->asked = first;
    for (const dt_plan *p = first; p != NULL; p = p->more)
        if (++plans > DTI_MOST_PLANS || p->n_rules < 0 || (p->rules == NULL && p->n_rules > 0))
            return DT_OK; /* it will be refused */
    if (is_settled(d, first)) return DT_OK;
    for (const dt_plan *p = first; p != NULL; p = p->more) {
        dt_plan_rule *rules;
        int n = 0;
        DT_TRY(dti_arena_alloc(&d->plan_arena, sizeof *to, (void **)&to));
        DT_TRY(dti_arena_alloc(&d->plan_arena, ((size_t)p->n_rules + 1) * sizeof *rules,
                               (void **)&rules));
        for (int i = 0; i < p->n_rules; i++) DT_TRY(settle_rule(d, &p->rules[i], rules, &n));
        *to = *p;
        to->rules = rules;
        to->n_rules = n;
        if (last != NULL)
            last->more = to;
        else
            d->asked = to;
        last = to;
    }
    return DT_OK;
}

dt_status dti_plan_settle(dti_described *d, const dt_load_options *o)
{
    dt_load_options own = *o;

    DT_TRY(find_named(d, o, &own.plan));
    if (own.n_policies > 0) {
        DT_TRY(dti_policies_plan(d, &own));
        own.plan = &d->notes.plan;
    } else if (own.plan == NULL && d->plan.n_rules > 0 && !own.sequence_parallel) {
        own.plan = &d->plan;
    }
    DT_TRY(settle(d, own.plan));
    return DT_OK;
}
