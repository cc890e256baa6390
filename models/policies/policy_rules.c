/* SPDX-License-Identifier: Apache-2.0
 *
 * From the lists of a policy to rules of a plan: which blocks it is for, which layers its paths
 * name, which style they get. Every path has to be there, in every block. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "base/text.h"
#include "models/policies/policies.h"
#include "parallel_styles/layer_rules.h"

enum { NAMES_BYTES = 320 };

/* --- policies --------------------------------------------------------------------------------- */

dti_policy_list dti_policy_list_at(const dt_policy *p, int i, bool cut_tokens)
{
    const char *out = cut_tokens ? "rowwise_reduce_scatter" : "rowwise";
    const dti_policy_list lists[DTI_N_POLICY_LISTS] = {
        { "attn_qkv", &p->attn_qkv, "colwise", false },
        { "attn_out", &p->attn_out, out, true },
        { "mlp_in", &p->mlp_in, "colwise", false },
        { "mlp_out", &p->mlp_out, out, true },
    };

    return lists[i];
}

const char *dti_policy_text(const dt_policy *p, char text[DTI_POLICY_TEXT_BYTES])
{
    char name[DTI_SHOWN_BYTES];

    (void)snprintf(
        text, DTI_POLICY_TEXT_BYTES, "policy \"%s\"",
        dti_printable(p->name != NULL ? p->name : p->original_layer_class, name, sizeof name));
    return text;
}

dt_status dti_policy_at(const dt_load_options *o, int i, dt_policy *out)
{
    char text[DTI_POLICY_TEXT_BYTES];

    *out = (dt_policy){ .size = sizeof *out };
    DT_CHECK(o->policies != NULL && o->policies[i] != NULL, DT_ERR_ARG, "policy %d of %d is NULL",
             i, o->n_policies);
    DT_TRY(dti_options_read("dt_policy", "set it to sizeof(dt_policy)", o->policies[i], out,
                            sizeof *out));
    DT_CHECK(out->original_layer_class != NULL && out->original_layer_class[0] != '\0', DT_ERR_ARG,
             "policy %d of %d has no original_layer_class: name the class of block that it is for, "
             "or the blocks (\"model.layers.*\")",
             i, o->n_policies);
    for (int k = 0; k < DTI_N_POLICY_LISTS; k++) {
        const dti_policy_list l = dti_policy_list_at(out, k, false);
        DT_CHECK(l.list->n >= 0 && (l.list->layers != NULL || l.list->n == 0), DT_ERR_ARG,
                 "%s: %s is a list of %d layers", dti_policy_text(out, text), l.name, l.list->n);
    }
    DT_CHECK(out->n_replace_modules >= 0 &&
                 (out->replace_modules != NULL || out->n_replace_modules == 0),
             DT_ERR_ARG, "%s: replace_modules is a list of %d", dti_policy_text(out, text),
             out->n_replace_modules);
    return DT_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

const char *dti_policy_blocks(const dt_policy *p, const dti_described *d)
{
    if (d->arch->block_class != NULL && strcmp(p->original_layer_class, d->arch->block_class) == 0)
        return d->arch->blocks;
    if (strpbrk(p->original_layer_class, ".*") == NULL) return NULL;
    for (int i = 0; i < d->builder.n; i++)
        if (dti_inside_block(p->original_layer_class, d->builder.specs[i].name) != NULL)
            return p->original_layer_class;
    return NULL;
}

const char *dti_inside_block(const char *blocks, const char *name)
{
    char block[256];
    size_t n = 0;

    for (const char *c = blocks; c != NULL; c = strchr(c, '.'), c = c != NULL ? c + 1 : NULL) {
        const char *dot = strchr(name + n, '.');
        if (dot == NULL) return NULL;
        n = (size_t)(dot - name) + 1;
    }
    if (n == 0 || n > sizeof block) return NULL;
    (void)snprintf(block, sizeof block, "%.*s", (int)n - 1, name);
    return dti_plan_match(blocks, block) >= 0 ? name + n : NULL;
}

static bool changes_something(const dt_policy *p)
{
    bool any = p->n_replace_modules > 0 || p->replace_arguments != NULL;

    for (int k = 0; k < DTI_N_POLICY_LISTS; k++)
        any = any || dti_policy_list_at(p, k, false).list->n > 0;
    return any;
}

static dt_status find_blocks(const dt_policy *p, const dti_described *d, const char **out)
{
    char text[DTI_POLICY_TEXT_BYTES], of[DTI_SHOWN_BYTES];

    *out = dti_policy_blocks(p, d);
    DT_CHECK(*out == NULL || changes_something(p), DT_ERR_ARG,
             "%s changes nothing: it lists no layer, replaces no module and no argument",
             dti_policy_text(p, text));
    if (*out != NULL) return DT_OK;
    (void)dti_printable(p->original_layer_class, of, sizeof of);
    DT_CHECK(d->arch->block_class != NULL, DT_ERR_ARG,
             "%s matches nothing: \"%s\" is no name of blocks of this %s model",
             dti_policy_text(p, text), of, d->arch->model_type);
    DT_FAIL(DT_ERR_ARG,
            "%s matches nothing: \"%s\" is no block of a %s model, whose blocks are %s (%s)",
            dti_policy_text(p, text), of, d->arch->model_type, d->arch->block_class,
            d->arch->blocks);
}

/* --- paths ------------------------------------------------------------------------------------ */

/* Where in a policy we are. */
typedef struct place {
    const dti_described *d;
    const dt_policy *policy;
    const char *blocks;
    const char *list;
    int i;
} place;

/* `policy "x", attn_qkv[1]` before the message of the current error. */
static dt_status blame(dt_status st, const place *at)
{
    char text[DTI_POLICY_TEXT_BYTES];

    if (st == DT_OK) return DT_OK;
    dti_error_prefix("%s, %s[%d]", dti_policy_text(at->policy, text), at->list, at->i);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

/* "attention[0].q.weight" -> "attention.0.q": the layer that a parameter's path names. */
static dt_status layer_of_path(dti_arena *arena, const char *path, const char *param, char **out)
{
    const size_t n = strlen(path), tail = strlen(param);
    char shown[DTI_SHOWN_BYTES], *to;

    DT_CHECK(n > tail + 1 && path[n - tail - 1] == '.' && strcmp(path + n - tail, param) == 0,
             DT_ERR_ARG, "the path \"%s\" does not end in \".%s\"",
             dti_printable(path, shown, sizeof shown), param);
    DT_TRY(dti_arena_strndup(arena, path, n - tail - 1, out));
    to = *out;
    for (const char *from = *out; *from != '\0'; from++)
        if (*from != ']') *to++ = *from == '[' ? '.' : *from;
    *to = '\0';
    return DT_OK;
}

/* "input_layernorm, self_attn.q_proj, ...": layers of the first block. */
static void list_layers(const place *at, char text[NAMES_BYTES])
{
    const char *first = NULL;
    size_t used = 0, block = 0;

    text[0] = '\0';
    for (int i = 0; i < at->d->builder.n && used < NAMES_BYTES; i++) {
        const char *name = at->d->builder.specs[i].name;
        const char *inside = dti_inside_block(at->blocks, name);
        if (inside == NULL || dt_spec_n_params(&at->d->builder.specs[i]) == 0) continue;
        if (first == NULL) {
            first = name;
            block = (size_t)(inside - name);
        }
        if (strncmp(first, name, block) == 0)
            used += (size_t)snprintf(text + used, NAMES_BYTES - used, used ? ", %s" : "%s", inside);
    }
}

/* The layer "<block>.<layer>", where `block` is the first n characters of a name; NULL: none. */
static const dt_layer_spec *layer_in(const dti_described *d, const char *block, size_t n,
                                     const char *layer)
{
    for (int i = 0; i < d->builder.n; i++) {
        const char *name = d->builder.specs[i].name;
        if (strncmp(name, block, n) == 0 && strcmp(name + n, layer) == 0)
            return &d->builder.specs[i];
    }
    return NULL;
}

/* The spec of a layer in the first block that has it, NULL if none has; *missing is a layer of the
 * first block that lacks it. */
static const dt_layer_spec *find_layer(const place *at, const char *layer, const char **missing)
{
    const dt_layer_spec *found = NULL, *one;
    const char *before = "";
    size_t n = 0;

    *missing = NULL;
    for (int i = 0; i < at->d->builder.n; i++) {
        const char *name = at->d->builder.specs[i].name;
        const char *inside = dti_inside_block(at->blocks, name);
        if (inside == NULL || (n > 0 && strncmp(before, name, n) == 0)) continue;
        before = name;
        n = (size_t)(inside - name);
        one = layer_in(at->d, name, n, layer);
        if (found == NULL) found = one;
        if (one == NULL && *missing == NULL) *missing = name;
    }
    return found;
}

static dt_status refuse_path(const place *at, const char *path, const char *missing)
{
    const char *inside = dti_inside_block(at->blocks, missing);
    char names[NAMES_BYTES], shown[DTI_SHOWN_BYTES];

    list_layers(at, names);
    DT_FAIL(DT_ERR_ARG,
            "\"%s\" is not in %.*s, whose layers are %s; set ignore_checker where a path may be "
            "absent",
            dti_printable(path, shown, sizeof shown), (int)(inside - missing) - 1, missing, names);
}

/* --- rules ------------------------------------------------------------------------------------ */

/* Areas of the axis of a weight that a list cuts: outputs, or inputs. */
static int areas_of(const dt_layer_spec *spec, bool inputs)
{
    const int n = spec->blocks[inputs ? 1 : 0].n;

    return n > 1 ? n : 1;
}

/* What the policy says of how the file stores the weight has to be what the architecture knows. */
static dt_status check_storage(const dt_policy_layer *l, const dt_layer_spec *spec, bool inputs)
{
    const dt_param_info weight = dt_spec_param(spec, DT_PARAM_WEIGHT);
    const int areas = areas_of(spec, inputs), said = l->n_fused > 1 ? l->n_fused : 1;
    char text[DTI_PARAM_TEXT_BYTES];

    (void)dti_param_text(&weight, text);
    DT_CHECK(l->n_fused >= 0, DT_ERR_ARG, "n_fused is %d", l->n_fused);
    if (l->ignore_checker && l->n_fused == 0) return DT_OK;
    DT_CHECK(said == areas || areas > 1, DT_ERR_ARG,
             "n_fused is %d, but the %s of %s.%s are one area; leave n_fused out", l->n_fused,
             inputs ? "inputs" : "outputs", spec->name, text);
    DT_CHECK(said == areas, DT_ERR_ARG,
             "n_fused is %d, but the %s of %s.%s are %d areas, each cut on its own; n_fused = %d",
             l->n_fused, inputs ? "inputs" : "outputs", spec->name, text, areas, areas);
    DT_CHECK(l->reversed == spec->reversed, DT_ERR_ARG, "%s.%s is stored %s; %s", spec->name, text,
             spec->reversed ? "[in, out]" : "[out, in]",
             spec->reversed ? "set reversed" : "leave reversed out");
    return DT_OK;
}

/* The layer that an entry names, by its weight, its bias or both; NULL if it may be absent and is.
 */
static dt_status resolve(dti_arena *arena, const place *at, const dt_policy_layer *l, char **layer,
                         const dt_layer_spec **out)
{
    const char *const path = l->weight != NULL ? l->weight : l->bias;
    const char *missing;
    const dt_layer_spec *spec;
    char *of_bias = NULL;

    *layer = NULL;
    *out = NULL;
    DT_CHECK(path != NULL, DT_ERR_ARG, "it names neither a weight nor a bias");
    DT_TRY(layer_of_path(arena, path, l->weight != NULL ? "weight" : "bias", layer));
    if (l->weight != NULL && l->bias != NULL) {
        DT_TRY(layer_of_path(arena, l->bias, "bias", &of_bias));
        DT_CHECK(strcmp(*layer, of_bias) == 0, DT_ERR_ARG,
                 "its weight is of %s and its bias of %s: one entry is one layer", *layer, of_bias);
    }
    spec = find_layer(at, *layer, &missing);
    if (missing != NULL && !l->ignore_checker) return refuse_path(at, path, missing);
    if (spec == NULL) {
        *layer = NULL;
        return DT_OK;
    }
    DT_CHECK(l->bias == NULL || l->ignore_checker || dt_spec_n_params(spec) == 2, DT_ERR_ARG,
             "\"%s\" does not exist: %s has no bias in this checkpoint's configuration", l->bias,
             spec->name);
    *out = spec;
    return DT_OK;
}

/* One list of rules; a layer that is named twice has to get one style. */
static dt_status add_rule(dti_policy_notes *out, dt_plan_rule rule)
{
    dt_plan *plan = &out->plan;

    for (int i = 0; i < plan->n_rules; i++) {
        if (strcmp(plan->rules[i].pattern, rule.pattern) != 0) continue;
        DT_CHECK(strcmp(plan->rules[i].style, rule.style) == 0, DT_ERR_ARG,
                 "%s was given style \"%s\" before and is \"%s\" here", rule.pattern,
                 plan->rules[i].style, rule.style);
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&out->rules, &out->rules_capacity, (size_t)plan->n_rules + 1,
                    sizeof *out->rules));
    plan->rules = out->rules;
    out->rules[plan->n_rules++] = rule;
    return DT_OK;
}

static dt_status add_layer(const place *at, const dt_policy_layer *l, const dti_policy_list *list,
                           dti_policy_notes *out)
{
    const char *style = list->style;
    const dt_layer_spec *spec = NULL;
    char *layer, *pattern;
    size_t bytes;

    DT_TRY(resolve(&out->arena, at, l, &layer, &spec));
    if (layer == NULL || spec == NULL) return DT_OK;
    DT_TRY(check_storage(l, spec, list->inputs));
    if (areas_of(spec, list->inputs) > 1)
        style = list->inputs ? "packed_rowwise" : "packed_colwise";
    else if (list->inputs && spec->style != NULL && strcmp(spec->style, "local_rowwise") == 0)
        style = spec->style; /* the block sums it with others */
    bytes = strlen(at->blocks) + strlen(layer) + 2;
    DT_TRY(dti_arena_alloc(&out->arena, bytes, (void **)&pattern));
    (void)snprintf(pattern, bytes, "%s.%s", at->blocks, layer);
    DT_TRY(add_rule(out, (dt_plan_rule){ .pattern = pattern,
                                         .style = l->replace != NULL ? l->replace : style }));
    return DT_OK;
}

static dt_status add_policy(const dt_policy *p, dti_described *d, bool cut_tokens)
{
    place at = { .d = d, .policy = p };

    DT_TRY(find_blocks(p, d, &at.blocks));
    for (int k = 0; k < DTI_N_POLICY_LISTS; k++) {
        const dti_policy_list l = dti_policy_list_at(p, k, cut_tokens);
        at.list = l.name;
        for (at.i = 0; at.i < l.list->n; at.i++)
            DT_TRY(blame(add_layer(&at, &l.list->layers[at.i], &l, &d->notes), &at));
    }
    return DT_OK;
}

/* "policy a", or "policies a, b" as far as there is room. */
static dt_status name_source(const dt_load_options *o, dti_policy_notes *out)
{
    char names[DTI_SHOWN_BYTES] = "", *text;
    size_t used = 0;

    for (int i = 0; i < o->n_policies && used < sizeof names; i++) {
        dt_policy p;
        DT_TRY(dti_policy_at(o, i, &p));
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 i > 0 ? ", " : (o->n_policies > 1 ? "policies " : "policy "),
                                 p.name != NULL ? p.name : p.original_layer_class);
    }
    DT_TRY(dti_arena_strndup(&out->arena, names, strlen(names), &text));
    out->plan.source = text;
    return DT_OK;
}

dt_status dti_policies_plan(dti_described *d, const dt_load_options *o)
{
    d->notes.plan = (dt_plan){ .strict = true, .more = o->plan };
    DT_TRY(name_source(o, &d->notes));
    for (int i = 0; i < o->n_policies; i++) {
        dt_policy p;
        DT_TRY(dti_policy_at(o, i, &p));
        DT_TRY(add_policy(&p, d, o->sequence_parallel));
    }
    return DT_OK;
}
