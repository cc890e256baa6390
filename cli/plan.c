/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plan.h"

#include <string.h>

/* Adds the dims that a pattern's object names to the chain; the first plan stays for no named dim.
 */
static dt_status add_dims(cli_plan *p, const dti_json *styles)
{
    const char *dim = NULL;
    dti_json style;

    if (dti_json_count(styles) == 0)
        return dti_json_refuse(styles, DT_ERR_FORMAT,
                               "a style, or an object that has one per mesh dim");
    while (dti_json_next(styles, &dim, &style)) {
        int i = 1;
        while (i < DT_MAX_DIMS && p->plan[i].dim != NULL && strcmp(p->plan[i].dim, dim) != 0) i++;
        if (i == DT_MAX_DIMS)
            return dti_json_refuse(&style, DT_ERR_ARG,
                                   "for one of %d mesh dims: a plan has no more",
                                   (int)DT_MAX_DIMS - 1);
        p->plan[i].dim = dim;
    }
    return DT_OK;
}

/* The rules that speak of `dim`, NULL for those that name none, behind the `n` there are. */
static dt_status add_rules(cli_plan *p, const char *dim, int *n)
{
    const char *pattern = NULL;
    dti_json member;

    while (dti_json_next(&p->doc.root, &pattern, &member)) {
        const bool object = dti_json_kind_of(&member) == DTI_JSON_OBJECT;
        dti_json style = member;
        if (object != (dim != NULL)) continue;
        if (object) style = dti_json_get(&member, dim);
        if (dti_json_kind_of(&style) == DTI_JSON_ABSENT) continue;
        p->rules[*n].pattern = pattern;
        DT_TRY(dti_json_as_string(&style, &p->rules[*n].style));
        ++*n;
    }
    return DT_OK;
}

/* Rules that there may be: every member, and every dim of its object. */
static dt_status count_rules(cli_plan *p, size_t *n)
{
    const char *pattern = NULL;
    dti_json member;

    *n = 0;
    while (dti_json_next(&p->doc.root, &pattern, &member)) {
        if (dti_json_kind_of(&member) != DTI_JSON_OBJECT) {
            ++*n;
            continue;
        }
        DT_TRY(add_dims(p, &member));
        *n += dti_json_count(&member);
    }
    return DT_OK;
}

dt_status cli_plan_read(const char *path, cli_plan *out)
{
    size_t most;
    int n = 0;

    DT_TRY(dti_json_read_stream(path, DTI_JSON_CONFIG_BYTES, &out->doc));
    DT_TRY(count_rules(out, &most));
    DT_TRY(dti_alloc_array(most, sizeof *out->rules, (void **)&out->rules));
    for (int i = 0; i < DT_MAX_DIMS && (i == 0 || out->plan[i].dim != NULL); i++) {
        const int first = n;
        DT_TRY(add_rules(out, out->plan[i].dim, &n));
        out->plan[i].rules = &out->rules[first];
        out->plan[i].n_rules = n - first;
        out->plan[i].strict = true;
        out->plan[i].source = out->doc.file;
        if (i > 0) out->plan[i - 1].more = &out->plan[i];
    }
    return DT_OK;
}

void cli_plan_free(cli_plan *plan)
{
    dti_free(plan->rules);
    dti_json_free(&plan->doc);
    *plan = (cli_plan){ 0 };
}
