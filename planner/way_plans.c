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

/* --- experts ---------------------------------------------------------------------------------- */

/* "model.layers.3.mlp.experts" of "model.layers.3.mlp.experts.down_proj", if it is a point; NULL:
 * there is none. */
static const dt_layer_spec *point_around(const dti_described *d, const dt_layer_spec *spec)
{
    const char *last = strrchr(spec->name, '.');
    const size_t n = last != NULL ? (size_t)(last - spec->name) : 0;

    for (int i = 0; i < d->builder.n && n > 0; i++) {
        const dt_layer_spec *other = &d->builder.specs[i];
        if (strncmp(other->name, spec->name, n) == 0 && other->name[n] == '\0')
            return dti_kind_is(other->kind, "point") ? other : NULL;
    }
    return NULL;
}

/* A layer of experts, and the point around it, which sums terms or sends tokens. Where nothing else
 * joins its sum, tokens that are cut over tp may pass the block around it as they lie. */
static dt_status add_experts(dti_task *t, const dti_described *d, const dt_layer_spec *spec,
                             const char *pattern)
{
    const dt_layer_spec *point = point_around(d, spec);
    const dt_layer_spec *block = point != NULL ? point_around(d, point) : NULL;
    char *around;

    for (int k = DTI_EXPERTS; k <= (int)DTI_CUT_SENT; k++)
        DT_TRY(add(&t->rules[k], pattern, "grouped_gemm"));
    if (point == NULL) return DT_OK;
    DT_TRY(pattern_of(t, point->name, &around));
    DT_TRY(add(&t->rules[DTI_EXPERTS], around, "moe_tp_experts"));
    DT_TRY(add(&t->rules[DTI_SENT], around, "ep_dispatch_experts"));
    if (block == NULL || point->style == NULL || strcmp(point->style, "moe_tp_experts") != 0)
        return DT_OK;
    DT_TRY(add(&t->rules[DTI_CUT_SENT], around, "ep_dispatch_experts"));
    DT_TRY(pattern_of(t, block->name, &around));
    DT_TRY(add(&t->rules[DTI_CUT_SENT], around, "local"));
    return DT_OK;
}

/* Does a rule let the values of such layers pass as they lie? */
static bool passes(const dti_rules *r, const char *pattern)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->rules[i].style, "local") == 0 && strcmp(r->rules[i].pattern, pattern) == 0)
            return true;
    return false;
}

/* The pattern of the block around a layer, if tokens pass it as they lie; else NULL. */
static dt_status block_passed(dti_task *t, const dti_described *d, const dt_layer_spec *spec,
                              char **out)
{
    const dt_layer_spec *block = point_around(d, spec);

    *out = NULL;
    if (block == NULL) return DT_OK;
    DT_TRY(pattern_of(t, block->name, out));
    if (!passes(&t->rules[DTI_CUT_SENT], *out)) *out = NULL;
    return DT_OK;
}

/* Where a block that is none of experts has the name of those that are, a rule would speak of both:
 * then tokens are not sent over tp. */
static dt_status check_blocks(dti_task *t, const dti_described *d)
{
    int blocks = 0, points = 0;
    char *pattern, *around;

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        DT_TRY(pattern_of(t, spec->name, &pattern));
        DT_TRY(block_passed(t, d, spec, &around));
        blocks += passes(&t->rules[DTI_CUT_SENT], pattern);
        points += around != NULL && dti_kind_is(spec->kind, "point");
    }
    if (points == 0 || points != blocks) t->rules[DTI_CUT_SENT].n = 0;
    return DT_OK;
}

/* Each routes the tokens that it has. */
static dt_status add_routers(dti_task *t, const dti_described *d)
{
    char *pattern, *around;

    for (int i = 0; i < d->builder.n; i++) {
        const dt_layer_spec *spec = &d->builder.specs[i];
        DT_TRY(block_passed(t, d, spec, &around));
        if (around == NULL || dti_kind_is(spec->kind, "point")) continue;
        DT_TRY(pattern_of(t, spec->name, &pattern));
        DT_TRY(add(&t->rules[DTI_CUT_SENT], pattern, "local"));
    }
    return DT_OK;
}

/* --- layers ----------------------------------------------------------------------------------- */

static dt_status add_layer(dti_task *t, const dti_described *d, const dt_layer_spec *spec)
{
    const bool linear = dti_kind_is(spec->kind, "linear");
    const bool block = strpbrk(spec->name, "0123456789") != NULL;
    char *pattern;

    DT_TRY(pattern_of(t, spec->name, &pattern));
    if (dti_kind_is(spec->kind, "experts")) DT_TRY(add_experts(t, d, spec, pattern));
    if (spec->tied_to != NULL) return DT_OK;
    if (linear) DT_TRY(add_tiles(t, spec, pattern));
    if (!block && (linear || dti_kind_has_ids(spec->kind)))
        DT_TRY(add(&t->rules[DTI_ENDS], pattern, "fully_shard"));
    return DT_OK;
}

/* Rules of the k-th kind, and those of experts: of the kind before `beside`; 0: none. */
static dt_plan *chain_of(dti_task *t, int k, int beside)
{
    return &t->plans[DTI_BESIDE * k + beside];
}

dt_status dti_way_plans_open(dti_task *t, const dti_described *d)
{
    t->has_plan = t->load.plan != NULL || t->load.plan_name != NULL || t->load.n_policies > 0 ||
                  d->plan.n_rules > 0;
    for (int i = 0; i < d->builder.n; i++) DT_TRY(add_layer(t, d, &d->builder.specs[i]));
    DT_TRY(check_blocks(t, d));
    DT_TRY(add_routers(t, d));
    for (int k = 0; k < DTI_RULES; k++)
        for (int beside = 0; beside < DTI_BESIDE; beside++)
            *chain_of(t, k, beside) = (dt_plan){
                .rules = t->rules[k].rules,
                .n_rules = (int)t->rules[k].n,
                .source = "plan --auto",
                .dim = k >= DTI_ENDS       ? "dp"
                       : k == DTI_CUT_SENT ? "tp"
                                           : "ep",
                .more = beside > 0 ? chain_of(t, beside - 1, 0) : NULL,
            };
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
    dti_task *own = (dti_task *)(uintptr_t)t;
    const int experts = w->ep > 1 ? w->dispatch ? DTI_SENT : DTI_EXPERTS : DTI_CUT_SENT;
    const bool with = w->ep > 1 || w->dispatch;

    if (w->ends) return chain_of(own, DTI_ENDS, with ? experts + 1 : 0);
    for (int k = 0; k < DTI_TILES; k++)
        if (w->tiles == dti_tiles[k])
            return chain_of(own, tiled(k, w->tp > 1), with ? experts + 1 : 0);
    return with ? chain_of(own, experts, 0) : NULL;
}

const dt_plan *dti_way_plan(const dti_task *t, const dt_way *w)
{
    const dt_plan *own = own_plan(t, w);

    return own != NULL ? own : t->load.plan;
}

static const char *style_in(const dt_plan *plan, const char *pattern)
{
    for (int i = 0; i < plan->n_rules; i++)
        if (strcmp(plan->rules[i].pattern, pattern) == 0) return plan->rules[i].style;
    return NULL;
}

/* One member for each pattern, with its styles on all dims. */
bool dti_put_way_plan(dti_writer *w, const dti_task *t, const dt_way *way)
{
    const dt_plan *first = own_plan(t, way);
    const char *comma = "";

    if (first == NULL) return false;
    dti_put(w, "{");
    for (const dt_plan *plan = first; plan != NULL; plan = plan->more)
        for (int i = 0; i < plan->n_rules; i++) {
            const char *pattern = plan->rules[i].pattern;
            if (plan != first && style_in(first, pattern) != NULL) continue; /* said already */
            dti_put(w, "%s\n  \"%s\": {", comma, pattern);
            comma = "";
            for (const dt_plan *on = plan; on != NULL; on = on->more) {
                const char *style = style_in(on, pattern);
                if (style == NULL) continue;
                dti_put(w, "%s \"%s\": \"%s\"", comma, on->dim, style);
                comma = ",";
            }
            dti_put(w, " }");
            comma = ",";
        }
    dti_put(w, "\n}");
    return true;
}
