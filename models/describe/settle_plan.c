/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan to load with, in the model's own names: plans may be asked for by name, spell names of
 * layers as files do ("language_model.layers.*"), and speak of modules that have nothing to lay
 * out. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/describe/describe.h"
#include "models/policies/policies.h"
#include "parallel_styles/layer_rules.h"
#include "parallel_styles/pattern_index.h"

/* A pattern as it stands in a plan, or as our names would spell it; those of a rule follow each
 * other, the better ones first. */
typedef struct candidate {
    int rule;
    const char *name;
} candidate;

/* What candidates may name: layers, or modules that have nothing to lay out. */
typedef enum named { LAYER, UNLAID, N_NAMED } named;

typedef struct speller {
    dti_arena texts;
    candidate *all;
    size_t n, capacity;
    dti_patterns patterns; /* [N_NAMED n], apart by what they may name; numbers are places in ... */
    bool *names;           /* [n][N_NAMED] whether there is such a thing */
} speller;

/* What became of a rule's pattern. */
typedef struct spelled {
    const char *name; /* ours; NULL: there is nothing of any such name */
    named what;
} spelled;

static dt_status add_candidate(speller *s, int rule, const char *name)
{
    DT_TRY(dti_grow((void **)&s->all, &s->capacity, s->n + 1, sizeof *s->all));
    s->all[s->n++] = (candidate){ rule, name };
    return DT_OK;
}

/* The pattern, and with each beginning that files have for one of ours. Those end in dots. */
static dt_status add_spellings(speller *s, const dt_spelling *spelling, int rule,
                               const char *pattern)
{
    const size_t length = strlen(pattern);
    char *name;

    DT_TRY(add_candidate(s, rule, pattern));
    for (; spelling != NULL && spelling->ours != NULL; spelling++) {
        const size_t n = strlen(spelling->theirs);
        const bool whole = n == length + 1; /* the dot is not in the pattern */
        const size_t bytes = strlen(spelling->ours) + length + 2;
        if (n > length + 1 || strncmp(pattern, spelling->theirs, whole ? length : n) != 0) continue;
        DT_TRY(dti_arena_alloc(&s->texts, bytes, (void **)&name));
        (void)snprintf(name, bytes, "%s%s", spelling->ours, whole ? "" : pattern + n);
        if (whole && name[0] != '\0') name[strlen(name) - 1] = '\0';
        DT_TRY(add_candidate(s, rule, name));
    }
    return DT_OK;
}

static dt_status find_candidates(speller *s, const dti_described *d)
{
    dti_patterns *p = &s->patterns;

    DT_TRY(dti_alloc_array(N_NAMED * s->n, sizeof *p->all, (void **)&p->all));
    DT_TRY(dti_alloc_array(N_NAMED * s->n, sizeof *s->names, (void **)&s->names));
    for (; p->n < (int)(N_NAMED * s->n); p->n++)
        p->all[p->n] = (dti_pattern){ .text = s->all[p->n / N_NAMED].name,
                                      .part = p->n % N_NAMED,
                                      .number = p->n };
    dti_patterns_sort(p);
    for (int i = 0; i < d->builder.n; i++)
        (void)dti_patterns_find(p, LAYER, d->builder.specs[i].name);
    for (const char *const *u = d->arch->unlaid; u != NULL && *u != NULL; u++)
        (void)dti_patterns_find(p, UNLAID, *u);
    dti_patterns_spread(p);
    for (int i = 0; i < p->n; i++) s->names[p->all[i].number] = p->all[i].matched;
    return DT_OK;
}

/* Of each rule [n] the first candidate that names a layer, else the first of something unlaid. */
static void choose(const speller *s, spelled *out)
{
    for (named what = UNLAID + 1; what-- > LAYER;)
        for (size_t i = s->n; i-- > 0;)
            if (s->names[N_NAMED * i + what])
                out[s->all[i].rule] = (spelled){ s->all[i].name, what };
}

/* Names that are no pattern of a rule go to the arena of plans. */
static dt_status keep_names(dti_described *d, const dt_plan_rule *rules, int n, spelled *out)
{
    char *copy;

    for (int i = 0; i < n; i++) {
        if (out[i].name == NULL || out[i].name == rules[i].pattern) continue;
        DT_TRY(dti_arena_strndup(&d->plan_arena, out[i].name, strlen(out[i].name), &copy));
        out[i].name = copy;
    }
    return DT_OK;
}

/* [n], from the arena of plans. */
static dt_status spell_all(dti_described *d, const dt_plan_rule *rules, int n, spelled **out)
{
    speller s = { 0 };
    dt_status st = DT_OK;

    DT_TRY(dti_arena_alloc(&d->plan_arena, ((size_t)n + 1) * sizeof **out, (void **)out));
    memset(*out, 0, (size_t)n * sizeof **out);
    for (int i = 0; i < n; i++)
        if (rules[i].pattern != NULL)
            DT_TRY_TO(done, st, add_spellings(&s, d->arch->spellings, i, rules[i].pattern));
    DT_TRY_TO(done, st, find_candidates(&s, d));
    choose(&s, *out);
    DT_TRY_TO(done, st, keep_names(d, rules, n, *out));
done:
    dti_free(s.names);
    dti_free(s.patterns.all);
    dti_free(s.all);
    dti_arena_free(&s.texts);
    return st;
}

dt_status dti_plan_spell(dti_described *d, dt_plan_rule *rules, int n)
{
    spelled *as;

    DT_TRY(spell_all(d, rules, n, &as));
    for (int i = 0; i < n; i++)
        if (as[i].name != NULL && as[i].what == LAYER) rules[i].pattern = as[i].name;
    return DT_OK;
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

/* The rules with patterns as we spell them, without those that have nothing to lay out. One that
 * matches nothing stays: whoever matches rules will say so. True in *changed if any is another. */
static dt_status settle_rules(dti_described *d, const dt_plan *from, dt_plan *to, bool *changed)
{
    dt_plan_rule *rules;
    spelled *as;

    *to = *from;
    DT_TRY(dti_arena_alloc(&d->plan_arena, ((size_t)from->n_rules + 1) * sizeof *rules,
                           (void **)&rules));
    DT_TRY(spell_all(d, from->rules, from->n_rules, &as));
    to->rules = rules;
    to->n_rules = 0;
    for (int i = 0; i < from->n_rules; i++) {
        dt_plan_rule rule = from->rules[i];
        *changed = *changed || (as[i].name != NULL && as[i].name != rule.pattern);
        if (as[i].name != NULL && as[i].what == UNLAID) {
            *changed = true;
            if (d->n_idle_rules++ == 0) d->idle_rule = rule.pattern;
            continue;
        }
        if (as[i].name != NULL) rule.pattern = as[i].name;
        rules[to->n_rules++] = rule;
    }
    return DT_OK;
}

/* A plan whose rules are all ours stays the caller's. */
static dt_status settle(dti_described *d, const dt_plan *first)
{
    dt_plan *to, *last = NULL;
    const dt_plan *settled = first;
    bool changed = false;
    int plans = 0;

    d->asked = first;
    for (const dt_plan *p = first; p != NULL; p = p->more)
        if (++plans > DTI_MOST_PLANS || p->n_rules < 0 || (p->rules == NULL && p->n_rules > 0))
            return DT_OK; /* it will be refused */
    for (const dt_plan *p = first; p != NULL; p = p->more) {
        DT_TRY(dti_arena_alloc(&d->plan_arena, sizeof *to, (void **)&to));
        DT_TRY(settle_rules(d, p, to, &changed));
        if (last != NULL)
            last->more = to;
        else
            settled = to;
        last = to;
    }
    if (changed) d->asked = settled;
    return DT_OK;
}

/* Every layer is fully sharded over the mesh dims "dp_shard", "dp,ep": a plan for each before the
 * others. */
static dt_status shard_fully(dti_described *d, const char *dims)
{
    while (dims != NULL && *dims != '\0') {
        const size_t n = strcspn(dims, ",");
        dt_plan *plan;
        char *dim;
        DT_TRY(dti_arena_alloc(&d->plan_arena, sizeof *plan, (void **)&plan));
        DT_TRY(dti_arena_strndup(&d->plan_arena, dims, n, &dim));
        *plan = (dt_plan){ .strict = true,
                           .source = "options.fully_shard",
                           .dim = dim,
                           .more = d->asked,
                           .others = "fully_shard" };
        d->asked = plan;
        dims += n + (dims[n] == ',');
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
    DT_TRY(shard_fully(d, o->fully_shard));
    return DT_OK;
}
