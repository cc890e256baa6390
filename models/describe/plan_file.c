/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as JSON: {"model.layers.*.mlp.up_proj": "colwise", ...}. Instead of the name of a style a
 * pattern may have an object, of a style and its layouts or of one style per mesh dim; the file
 * becomes a chain of plans, first that of no named dim. */
#include <dtensor/plans.h>
#include <string.h>

#include "base/memory.h"
#include "base/writer.h"
#include "files/json.h"
#include "parallel_styles/layer_rules.h"

/* What a plan of dt_plan_read() lies in; the plan comes first. */
typedef struct plan_file {
    dt_plan plan[DTI_MOST_PLANS];
    dti_json_doc doc;    /* owns the texts of the rules ... */
    dti_arena arena;     /* ... and this those with arguments */
    dt_plan_rule *rules; /* of all plans */
    int n_rules;
    dti_json others; /* a style, or one per mesh dim; absent if nobody says */
    bool strict;
    bool manual;
    const char *version;
} plan_file;

/* --- settings --------------------------------------------------------------------------------- */

static dt_status read_strict(plan_file *p, const dti_json *value)
{
    DT_TRY(dti_json_as_bool(value, &p->strict));
    return DT_OK;
}

static dt_status read_mode(plan_file *p, const dti_json *value)
{
    const char *mode;

    DT_TRY(dti_json_as_string(value, &mode));
    p->manual = strcmp(mode, "manual") == 0;
    if (!p->manual && strcmp(mode, "auto") != 0)
        return dti_json_refuse(value, DT_ERR_FORMAT, "\"auto\" or \"manual\"");
    return DT_OK;
}

static dt_status read_version(plan_file *p, const dti_json *value)
{
    DT_TRY(dti_json_as_string(value, &p->version));
    return DT_OK;
}

static dt_status read_others(plan_file *p, const dti_json *value)
{
    p->others = *value;
    return DT_OK;
}

/* Members that are no patterns. */
typedef struct setting {
    const char *key;
    dt_status (*read)(plan_file *p, const dti_json *value);
} setting;

static const setting settings[] = {
    { "strict", read_strict },
    { "others", read_others },
    { "mode", read_mode },
    { "version", read_version },
};

static const setting *find_setting(const char *key)
{
    for (size_t i = 0; i < DT_COUNT(settings); i++)
        if (strcmp(settings[i].key, key) == 0) return &settings[i];
    return NULL;
}

/* --- rules ------------------------------------------------------------------------------------ */

/* {"style": "colwise", "input": "S(1)", "output": "R"}, and not an object of mesh dims. */
static bool has_style(const dti_json *rule)
{
    const dti_json style = dti_json_get(rule, "style");

    return dti_json_kind_of(&style) != DT_CONFIG_ABSENT;
}

/* A layout or a number, as PyTorch has them: null is its None, and what a true says the style's own
 * reader refuses in words. */
static dt_status put_value(const dti_json *value, dti_writer *w)
{
    const char *text;
    double number;
    bool flag;

    switch (dti_json_kind_of(value)) {
    case DT_CONFIG_NULL:
        dti_put(w, "None");
        return DT_OK;
    case DT_CONFIG_BOOL:
        DT_TRY(dti_json_as_bool(value, &flag));
        dti_put(w, "%s", flag ? "true" : "false");
        return DT_OK;
    case DT_CONFIG_INT:
        DT_TRY(dti_json_as_number(value, -DT_MAX_AXES, 32, &number)); /* an axis, or tiles */
        dti_put(w, "%d", (int)number);
        return DT_OK;
    default:
        DT_TRY(dti_json_as_string(value, &text));
        dti_put(w, "%s", text);
        return DT_OK;
    }
}

/* "output=S(1)", or "input=[S(1), keep]" of several values. */
static dt_status put_argument(const char *key, const dti_json *value, dti_writer *w)
{
    const bool list = dti_json_kind_of(value) == DT_CONFIG_ARRAY;
    const size_t n = list ? dti_json_count(value) : 1;

    dti_put(w, "%s=%s", key, list ? "[" : "");
    for (size_t i = 0; i < n; i++) {
        const dti_json one = list ? dti_json_at(value, i) : *value;
        dti_put(w, "%s", i > 0 ? ", " : "");
        DT_TRY(put_value(&one, w));
    }
    dti_put(w, "%s", list ? "]" : "");
    return DT_OK;
}

/* The style of such an object as dt_style_find() reads it: "colwise(input=S(1), output=R)". */
static dt_status put_style(const dti_json *rule, dti_writer *w)
{
    const char *key = NULL, *style;
    dti_json member;
    int n = 0;

    DT_TRY(dti_json_string(rule, "style", &style));
    dti_put(w, "%s", style);
    while (dti_json_next(rule, &key, &member)) {
        if (strcmp(key, "style") == 0) continue;
        dti_put(w, "%s", n++ == 0 ? "(" : ", ");
        DT_TRY(put_argument(key, &member, w));
    }
    dti_put(w, "%s", n > 0 ? ")" : "");
    return DT_OK;
}

static dt_status join_style(plan_file *p, const dti_json *rule, const char **out)
{
    dti_writer w = { .text = NULL };
    void *text;

    DT_TRY(put_style(rule, &w));
    w.bytes = w.used + 1;
    DT_TRY(dti_arena_alloc(&p->arena, w.bytes, &text));
    w.text = text;
    w.used = 0;
    DT_TRY(put_style(rule, &w));
    *out = text;
    return DT_OK;
}

static dt_status read_style(plan_file *p, const dti_json *rule, const char **out)
{
    if (dti_json_kind_of(rule) == DT_CONFIG_OBJECT) return join_style(p, rule, out);
    if (dti_json_kind_of(rule) != DT_CONFIG_STRING)
        return dti_json_refuse(rule, DT_ERR_FORMAT,
                               "the name of a style, or an object of a style with arguments or of "
                               "one style per mesh dim");
    return dti_json_as_string(rule, out);
}

/* Adds the dims that a pattern's object names to the chain; the first plan stays for no named dim.
 */
static dt_status add_dims(plan_file *p, const dti_json *styles)
{
    const char *dim = NULL;
    dti_json style;

    if (dti_json_count(styles) == 0)
        return dti_json_refuse(styles, DT_ERR_FORMAT,
                               "a style, or an object that has one per mesh dim");
    while (dti_json_next(styles, &dim, &style)) {
        int i = 1;
        while (i < DTI_MOST_PLANS && p->plan[i].dim != NULL && strcmp(p->plan[i].dim, dim) != 0)
            i++;
        if (i == DTI_MOST_PLANS)
            return dti_json_refuse(&style, DT_ERR_ARG,
                                   "for one of %d mesh dims: a mesh has no more", (int)DT_MAX_DIMS);
        p->plan[i].dim = dim;
    }
    return DT_OK;
}

/* Reads the settings, finds the dims, and counts rules: every member, and every dim of its object.
 */
static dt_status survey(plan_file *p, size_t *n)
{
    const char *key = NULL;
    dti_json member;

    *n = 0;
    while (dti_json_next(&p->doc.root, &key, &member)) {
        const setting *s = find_setting(key);
        if (s != NULL) {
            DT_TRY(s->read(p, &member));
        } else if (dti_json_kind_of(&member) != DT_CONFIG_OBJECT || has_style(&member)) {
            ++*n;
        } else {
            DT_TRY(add_dims(p, &member));
            *n += dti_json_count(&member);
        }
    }
    if (dti_json_kind_of(&p->others) == DT_CONFIG_OBJECT && !has_style(&p->others))
        DT_TRY(add_dims(p, &p->others));
    return DT_OK;
}

/* The rules that speak of `dim`, NULL for those that name none, behind those there are. */
static dt_status add_rules(plan_file *p, const char *dim)
{
    const char *pattern = NULL;
    dti_json member;

    while (dti_json_next(&p->doc.root, &pattern, &member)) {
        const bool dims = dti_json_kind_of(&member) == DT_CONFIG_OBJECT && !has_style(&member);
        dti_json rule = member;
        if (dims != (dim != NULL) || find_setting(pattern) != NULL) continue;
        if (dims) rule = dti_json_get(&member, dim);
        if (dti_json_kind_of(&rule) == DT_CONFIG_ABSENT) continue;
        p->rules[p->n_rules].pattern = pattern;
        DT_TRY(read_style(p, &rule, &p->rules[p->n_rules].style));
        p->n_rules++;
    }
    return DT_OK;
}

/* "others": "replicate" of no named dim, {"dp": "fully_shard"} of those it names. */
static dt_status name_others(plan_file *p, dt_plan *plan)
{
    const bool dims = dti_json_kind_of(&p->others) == DT_CONFIG_OBJECT && !has_style(&p->others);
    dti_json style = p->others;

    if (dti_json_kind_of(&p->others) == DT_CONFIG_ABSENT || dims != (plan->dim != NULL))
        return DT_OK;
    if (dims) style = dti_json_get(&p->others, plan->dim);
    if (dti_json_kind_of(&style) == DT_CONFIG_ABSENT) return DT_OK;
    DT_TRY(read_style(p, &style, &plan->others));
    return DT_OK;
}

static dt_status fill(plan_file *p)
{
    size_t most;

    DT_TRY(survey(p, &most));
    DT_TRY(dti_alloc_array(most, sizeof *p->rules, (void **)&p->rules));
    for (int i = 0; i < DTI_MOST_PLANS && (i == 0 || p->plan[i].dim != NULL); i++) {
        dt_plan *plan = &p->plan[i];
        const int first = p->n_rules;
        DT_TRY(add_rules(p, plan->dim));
        plan->rules = &p->rules[first];
        plan->n_rules = p->n_rules - first;
        DT_TRY(name_others(p, plan));
        plan->strict = p->strict;
        plan->manual = p->manual && i == 0;
        plan->source = p->doc.file;
        plan->version = p->version;
        if (i > 0) p->plan[i - 1].more = plan;
    }
    return DT_OK;
}

/* Of a document, which is the plan's from then on, or freed. */
static dt_status plan_of(dti_json_doc *doc, dt_plan **out)
{
    dt_status st = DT_OK;
    plan_file *p = NULL;
    dt_plan *plan;

    st = dti_new(sizeof *p, &p);
    if (st != DT_OK) dti_json_free(doc);
    DT_TRY(st);
    plan = p->plan;
    p->doc = *doc;
    p->strict = true; /* a rule that matches nothing is a slip of the pen */
    DT_TRY_TO(fail, st, fill(p));
    *out = plan;
    return DT_OK;

fail:
    dt_plan_release(&plan);
    return st;
}

dt_status dt_plan_read(const char *path, dt_plan **out)
{
    dti_json_doc doc;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(path != NULL, DT_ERR_ARG, "path is NULL");
    DT_TRY(dti_json_read_stream(path, DTI_JSON_CONFIG_BYTES, &doc));
    DT_TRY(plan_of(&doc, out));
    return DT_OK;
}

dt_status dt_plan_parse(const char *name, const char *text, size_t n, dt_plan **out)
{
    dti_json_doc doc;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(name != NULL && text != NULL, DT_ERR_ARG, "name or text is NULL");
    DT_TRY(dti_json_parse(name, text, n, &doc));
    DT_TRY(plan_of(&doc, out));
    return DT_OK;
}

void dt_plan_release(dt_plan **plan)
{
    plan_file *p = plan != NULL ? (plan_file *)(void *)*plan : NULL;

    if (p == NULL) return;
    *plan = NULL;
    dti_free(p->rules);
    dti_arena_free(&p->arena);
    dti_json_free(&p->doc);
    dti_free(p);
}
