/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of styles that ways need beside the built-in one: whole experts on a mesh dim of their own,
 * what is in no block fully sharded, linear layers in tiles. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "models/describe/describe.h"
#include "parallel_styles/kind.h"
#include "planner/search.h"

/* Tiles of the k-th level, the cuts of a layer's other axis being none's, or tp's. */
static int tiled(int level, bool cut)
{
    return DTI_TILED + 2 * level + cut;
}

const int dti_tiles[DTI_TILES] = { 4, 16 };

/* --- rules ------------------------------------------------------------------------------------ */

/* "model.layers.3.mlp" is "model.layers.*.mlp", which is the same of all blocks. */
static dt_status pattern_of(dti_task *t, const char *name, char **out)
{
    const char *at = strchr(name, '.');
    size_t digits = 0;

    while (at != NULL && !isdigit((unsigned char)at[1])) at = strchr(at + 1, '.');
    DT_TRY(dti_arena_strndup(&t->texts, name, strlen(name), out));
    if (at == NULL) return DT_OK;
    digits = strspn(at + 1, "0123456789");
    (*out)[at + 1 - name] = '*';
    memmove(*out + (at + 2 - name), at + 1 + digits, strlen(at + 1 + digits) + 1);
    return DT_OK;
}

static dt_status add(dti_rules *r, const char *pattern, const char *style)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->rules[i].pattern, pattern) == 0) return DT_OK;
    DT_TRY(dti_grow((void **)&r->rules, &r->room, r->n + 1, sizeof *r->rules));
    r->rules[r->n++] = (dt_plan_rule){ pattern, style };
    return DT_OK;
}

/* Beside a style that cuts outputs a weight has tiles of inputs, else of outputs. */
static dt_status add_tiles(dti_task *t, const dt_layer_spec *spec, const char *pattern)
{
    static const char *const styles[DTI_TILES][2] = {
        { "fully_shard(out_tiles=4)", "fully_shard(in_tiles=4)" },
        { "fully_shard(out_tiles=16)", "fully_shard(in_tiles=16)" }
    };
    const bool columns = spec->style != NULL && strstr(spec->style, "colwise") != NULL;

    for (int k = 0; k < DTI_TILES; k++) {
        DT_TRY(add(&t->rules[tiled(k, false)], pattern, styles[k][0]));
        DT_TRY(add(&t->rules[tiled(k, true)], pattern, styles[k][columns]));
    }
    return DT_OK;
}

static dt_status add_layer(dti_task *t, const dt_layer_spec *spec)
{
    const bool linear = dti_kind_is(spec->kind, "linear");
    const bool block = strpbrk(spec->name, "0123456789") != NULL;
    char *pattern;

    DT_TRY(pattern_of(t, spec->name, &pattern));
    if (dti_kind_is(spec->kind, "experts"))
        DT_TRY(add(&t->rules[DTI_EXPERTS], pattern, "grouped_gemm"));
    else if (spec->style != NULL && strcmp(spec->style, "moe_tp_experts") == 0)
        DT_TRY(add(&t->rules[DTI_EXPERTS], pattern, spec->style));
    if (spec->tied_to != NULL) return DT_OK;
    if (linear) DT_TRY(add_tiles(t, spec, pattern));
    if (!block && (linear || dti_kind_has_ids(spec->kind)))
        DT_TRY(add(&t->rules[DTI_ENDS], pattern, "fully_shard"));
    return DT_OK;
}

dt_status dti_way_plans_open(dti_task *t, const dti_described *d)
{
    t->has_plan = t->load.plan != NULL || t->load.plan_name != NULL || t->load.n_policies > 0 ||
                  d->plan.n_rules > 0;
    for (int i = 0; i < d->builder.n; i++) DT_TRY(add_layer(t, &d->builder.specs[i]));
    for (int k = 0; k < DTI_RULES; k++)
        for (int with = 0; with < 2; with++)
            t->plans[2 * k + with] = (dt_plan){ .rules = t->rules[k].rules,
                                                .n_rules = (int)t->rules[k].n,
                                                .source = "plan --auto",
                                                .dim = k == DTI_EXPERTS ? "ep" : "dp",
                                                .more = with ? &t->plans[2 * DTI_EXPERTS] : NULL };
    return DT_OK;
}

void dti_way_plans_close(dti_task *t)
{
    for (int k = 0; k < DTI_RULES; k++) dti_free(t->rules[k].rules);
    dti_arena_free(&t->texts);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* Of its own; NULL: it has none. */
static const dt_plan *own_plan(const dti_task *t, const dt_way *w)
{
    const int with = w->ep > 1;

    if (w->ends) return &t->plans[2 * DTI_ENDS + with];
    for (int k = 0; k < DTI_TILES; k++)
        if (w->tiles == dti_tiles[k]) return &t->plans[2 * tiled(k, w->tp > 1) + with];
    return with ? &t->plans[2 * DTI_EXPERTS] : NULL;
}

const dt_plan *dti_way_plan(const dti_task *t, const dt_way *w)
{
    const dt_plan *own = own_plan(t, w);

    return own != NULL ? own : t->load.plan;
}

bool dti_put_way_plan(dti_writer *w, const dti_task *t, const dt_way *way)
{
    const dt_plan *plan = own_plan(t, way);
    bool first = true;

    if (plan == NULL) return false;
    for (dti_put(w, "{"); plan != NULL; plan = plan->more)
        for (int i = 0; i < plan->n_rules; i++, first = false)
            dti_put(w, "%s\n  \"%s\": { \"%s\": \"%s\" }", first ? "" : ",", plan->rules[i].pattern,
                    plan->dim, plan->rules[i].style);
    dti_put(w, "\n}");
    return true;
}
