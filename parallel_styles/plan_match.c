/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as lists of rules: matching of patterns to layer names ("*" is one whole component between
 * dots), which rule wins, which match nothing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "mesh/runtime.h"
#include "parallel_styles/layers_internal.h"

static size_t component(const char *text)
{
    return strcspn(text, ".");
}

int dti_plan_match(const char *pattern, const char *name)
{
    int stars = 0;

    for (;;) {
        const size_t p = component(pattern), n = component(name);
        if (p == 1 && pattern[0] == '*' && n > 0)
            stars++;
        else if (p != n || strncmp(pattern, name, n) != 0)
            return -1;
        pattern += p;
        name += n;
        if (*pattern != *name) return -1; /* one of them has components left */
        if (*pattern == '\0') return stars;
        pattern++;
        name++;
    }
}

static const char *source_of(const dt_plan *plan, char text[DTI_SHOWN_BYTES])
{
    return plan->source != NULL ? dti_printable(plan->source, text, DTI_SHOWN_BYTES) : "the plan";
}

const char *dti_rule_text(const dt_plan *plan, const dt_plan_rule *rule,
                          char text[DTI_RULE_TEXT_BYTES])
{
    char source[DTI_SHOWN_BYTES], pattern[DTI_SHOWN_BYTES], style[DTI_SHOWN_BYTES];

    (void)snprintf(text, DTI_RULE_TEXT_BYTES, "%s, rule \"%s\": \"%s\"", source_of(plan, source),
                   dti_printable(rule->pattern, pattern, sizeof pattern),
                   dti_printable(rule->style, style, sizeof style));
    return text;
}

const dt_plan_rule *dti_plan_rule(const dt_plan *first, int number, const dt_plan **plan)
{
    for (; first != NULL && number >= 0; number -= first->n_rules, first = first->more)
        if (number < first->n_rules) {
            *plan = first;
            return &first->rules[number];
        }
    return NULL;
}

/* Every plan names another dim, one perhaps none: a longer chain is a circle or a slip. */
static dt_status count_rules(const dt_plan *plan, int *n)
{
    int plans = 0;

    *n = 0;
    for (; plan != NULL; plan = plan->more) {
        DT_CHECK(
            ++plans <= DTI_MOST_PLANS, DT_ERR_ARG,
            "more than %d plans are chained by `more`: one per mesh dim and one of none are enough",
            (int)DTI_MOST_PLANS);
        DT_CHECK(plan->n_rules >= 0 && (plan->rules != NULL || plan->n_rules == 0), DT_ERR_ARG,
                 "a plan of %d rules", plan->n_rules);
        *n += plan->n_rules;
    }
    return DT_OK;
}

void dti_rule_list_free(dti_rule_list *rules)
{
    dti_free(rules->rule);
    dti_free(rules->patterns.all);
    *rules = (dti_rule_list){ 0 };
}

dt_status dti_rules_of(const dt_mesh *mesh, const char *dim, const dt_plan *plan,
                       dti_rule_list *out)
{
    const int main_dim = dt_mesh_find_dim(mesh, dim);
    char source[DTI_SHOWN_BYTES];
    dt_status st = DT_OK;
    int n = 0;

    *out = (dti_rule_list){ 0 };
    DT_TRY(count_rules(plan, &n));
    DT_TRY(dti_alloc_array((size_t)n, sizeof *out->rule, (void **)&out->rule));
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)n, sizeof *out->patterns.all, (void **)&out->patterns.all));
    for (; plan != NULL; plan = plan->more) {
        const bool other = plan->dim != NULL && strcmp(plan->dim, dim) != 0;
        const int found = other ? dt_mesh_find_dim(mesh, plan->dim) : main_dim;
        const dt_style *any;
        const int slot = found >= 0 || other ? found : DTI_NO_DIM;
        if (plan->manual && !other) out->manual = plan;
        DT_CHECK_TO(fail, st, plan->others == NULL || slot >= 0 || !plan->strict, DT_ERR_ARG,
                    "%s lays out all layers by \"%s\" on mesh dim \"%s\", which the mesh does not "
                    "have",
                    source_of(plan, source), plan->others, plan->dim);
        if (plan->others != NULL && slot >= 0 && out->others[slot] == NULL)
            out->others[slot] = plan;
        /* a version that there is none of is refused in a plan without rules, too */
        st = dt_style_find(dt_mesh_runtime(mesh), "replicate", plan->version, &any);
        if (st != DT_OK) dti_error_prefix("%s", source_of(plan, source));
        DT_TRY_TO(fail, st, st);
        for (int i = 0; i < plan->n_rules; i++) {
            const dt_plan_rule *r = &plan->rules[i];
            DT_CHECK_TO(fail, st, r->pattern != NULL && r->style != NULL, DT_ERR_ARG,
                        "%s: rule %d has no pattern or no style", source_of(plan, source), i);
            out->rule[out->n] = (dti_rule){ .rule = *r, .plan = plan, .slot = slot };
            out->patterns.all[out->n] = (dti_pattern){ .text = r->pattern,
                                                       .part = out->rule[out->n].slot,
                                                       .number = out->n };
            out->patterns.n = ++out->n;
        }
    }
    dti_patterns_sort(&out->patterns);
    return DT_OK;

fail:
    dti_rule_list_free(out);
    return st;
}

int dti_rules_find(dti_rule_list *rules, const char *name, int slot)
{
    return dti_patterns_find(&rules->patterns, slot, name);
}

static void mark_used(dti_rule_list *rules)
{
    dti_patterns_spread(&rules->patterns);
    for (int i = 0; i < rules->n; i++) {
        const dti_pattern *p = &rules->patterns.all[i];
        rules->rule[p->number].used = p->matched;
    }
}

/* A line for the log, which the list remembers. */
DT_PRINTF(2, 3) static dt_status remark(dt_layers *list, const char *fmt, ...)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (dti_mesh_place(list->mesh) == 0) /* for all */
        dti_runtime_log(dt_mesh_runtime(list->mesh), DT_LOG_WARNING, "%s", text);
    DT_TRY(dti_grow((void **)&list->remarks, &list->remarks_capacity, list->n_remarks + 1,
                    sizeof *list->remarks));
    DT_TRY(dti_strdup(text, &list->remarks[list->n_remarks]));
    list->n_remarks++;
    return DT_OK;
}

static bool is_covered(const dt_layer *layer, int slot)
{
    return layer->rule[slot] >= 0 || (layer->tied_to != NULL && layer->tied_to->rule[slot] >= 0);
}

/* Linear layers, embeddings and experts that no rule of a manual plan covers; *first is one. What
 * covers a layer covers its partner. */
static dt_status count_uncovered(const dt_layers *list, int *n, const dt_layer **first)
{
    bool *covered;

    *n = 0;
    DT_TRY(dti_alloc_array((size_t)list->n, sizeof *covered, (void **)&covered));
    for (int i = 0; i < list->n; i++) {
        const dt_layer *layer = &list->layers[i];
        covered[i] = covered[i] || is_covered(layer, list->slot);
        if (covered[i] && layer->tied_to != NULL) covered[layer->tied_to - list->layers] = true;
    }
    for (int i = list->n - 1; i >= 0; i--) {
        if (covered[i] || !dti_kind_is_covered(list->layers[i].spec.kind)) continue;
        *first = &list->layers[i];
        ++*n;
    }
    dti_free(covered);
    return DT_OK;
}

static dt_status check_covered(const dt_plan *plan, dt_layers *list)
{
    const dt_layer *first = NULL;
    char source[DTI_SHOWN_BYTES], param[DTI_PARAM_TEXT_BYTES], others[32] = "";
    dt_param_info info;
    int n;

    DT_TRY(count_uncovered(list, &n, &first));
    if (n == 0) return DT_OK;
    info = dt_layer_param_info(first, DT_PARAM_WEIGHT);
    (void)dti_param_text(&info, param);
    if (n > 1) (void)snprintf(others, sizeof others, " (and %d more)", n - 1);
    DT_CHECK(
        !plan->strict, DT_ERR_ARG,
        "%s: no rule covers %s.%s%s, and the plan is manual; give it a style, or \"replicate\" "
        "to have it whole on every rank",
        source_of(plan, source), first->name, param, others);
    DT_TRY(remark(list, "%s: no rule covers %s.%s%s: whole on every rank", source_of(plan, source),
                  first->name, param, others));
    return DT_OK;
}

/* Explains once what is taken without a meaning. */
static void say_idle(const dti_rule_list *rules, const dt_layers *list)
{
    char text[DTI_RULE_TEXT_BYTES];

    for (int i = 0; i < rules->n && dti_mesh_place(list->mesh) == 0; i++) {
        const dti_rule *r = &rules->rule[i];
        if (!dti_style_has_idle(r->rule.style)) continue;
        dti_runtime_log(dt_mesh_runtime(list->mesh), DT_LOG_INFO,
                        "%s: use_local_output and use_dtensor change nothing: every value is a "
                        "distributed tensor, of which dt_tensor_local() is a rank's piece",
                        dti_rule_text(r->plan, &r->rule, text));
        return;
    }
}

/* What is wrong with a rule that no layer matches, where the plan does not refuse it: in words. */
static dt_status name_unused(const dti_rule *r, const dt_layers *list,
                             char words[DT_ERROR_MESSAGE_BYTES])
{
    char text[DTI_RULE_TEXT_BYTES], dim[DTI_SHOWN_BYTES];
    const char *near;

    (void)dti_rule_text(r->plan, &r->rule, text);
    if (r->slot < 0) {
        (void)dti_printable(r->plan->dim, dim, sizeof dim);
        DT_CHECK(!dti_style_has_argument(r->plan->dim), DT_ERR_ARG,
                 "%s: \"%s\" is an argument of a style and no dim of the mesh; is \"style\" "
                 "missing beside it?",
                 text, dim);
        DT_CHECK(!r->plan->strict, DT_ERR_ARG,
                 "%s: the mesh has no dim \"%s\"; add it (\"%s=1\") or leave the rule out", text,
                 dim, dim);
        (void)snprintf(words, DT_ERROR_MESSAGE_BYTES, "%s: the mesh has no dim \"%s\"", text, dim);
        return DT_OK;
    }
    near = dti_nearest_layer(list, r->rule.pattern);
    DT_CHECK(!r->plan->strict, DT_ERR_ARG,
             "%s matches no layer; the nearest is %s, and * stands for one component between dots",
             text, near != NULL ? near : "none");
    (void)snprintf(words, DT_ERROR_MESSAGE_BYTES, "%s matches no layer; the nearest is %s", text,
                   near != NULL ? near : "none");
    return DT_OK;
}

/* Each of a few is worth a line. */
dt_status dti_rules_check(dti_rule_list *rules, dt_layers *list)
{
    enum { MOST_LINES = 16 };
    char words[DT_ERROR_MESSAGE_BYTES];
    int n = 0;

    mark_used(rules);
    for (int i = 0; i < rules->n; i++) {
        const dti_rule *r = &rules->rule[i];
        if (r->used) continue;
        if (++n > MOST_LINES && !r->plan->strict) continue;
        DT_TRY(name_unused(r, list, words));
        DT_TRY(remark(list, "%s", words));
    }
    if (n > MOST_LINES)
        DT_TRY(remark(list, "%d more rules match no layer, or name a dim that the mesh lacks",
                      n - MOST_LINES));
    if (rules->manual != NULL && rules->others[list->slot] == NULL)
        DT_TRY(check_covered(rules->manual, list));
    say_idle(rules, list);
    return DT_OK;
}
