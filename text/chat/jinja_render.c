/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements to text. A loop has a scope of its own in each turn; what it sets is gone behind it,
 * except in a namespace. */
#include <jansson.h>
#include <string.h>

#include "text/chat/jinja.h"

/* One name takes the value, several its parts. */
static dt_status bind_targets(dti_jrun *r, const dti_jnode *names, const dti_jvalue *v)
{
    dti_jvalue parts;
    size_t i = 0;

    if (names->next == NULL) return dti_jset(r, names->name, *v);
    DT_TRY(dti_jiterate(r, v, &parts));
    for (const dti_jnode *name = names; name != NULL; name = name->next, i++) {
        DTI_JCHECK(r, i < parts.list->n, DT_ERR_FORMAT, "%zu values for more names", parts.list->n);
        DT_TRY(dti_jset(r, name->name, parts.list->items[i]));
    }
    DTI_JCHECK(r, i == parts.list->n, DT_ERR_FORMAT, "%zu values for %zu names", parts.list->n, i);
    return DT_OK;
}

static dt_status run_set(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue v, *there;

    DT_TRY(dti_jeval(r, node->a, &v));
    r->line = node->line;
    if (node->name == NULL) return bind_targets(r, node->names, &v);
    DT_TRY(dti_jget(r, node->name, &there));
    DTI_JCHECK(r, there != NULL, DT_ERR_FORMAT, "the namespace \"%s\" is undefined", node->name);
    DTI_JCHECK(r, there->kind == DTI_J_NAMESPACE && !there->dict->loop, DT_ERR_FORMAT,
               "only attributes of a namespace can be set, \"%s\" is %s", node->name,
               dti_jkind_name(there));
    return dti_jdict_set(r, there, dti_jtext(node->names->name, strlen(node->names->name)), v);
}

dt_status dti_jcapture(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    const size_t begin = r->out->bytes;

    DT_TRY(dti_jrun_body(r, node->b));
    DT_TRY(dti_jcopy(r, r->out->bytes ? r->out->data + begin : "", r->out->bytes - begin, out));
    r->out->bytes = begin;
    return DT_OK;
}

/* What the body prints, through the filters of the block; nothing where a break or continue in it
 * leaves the block. */
static dt_status run_block(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jscope *before;

    DT_TRY(dti_jopen(r, r->scope, node->sets, &before));
    DT_TRY(dti_jcapture(r, node, out));
    r->captured = *out; /* the innermost filter takes it before anything else runs */
    if (node->a != NULL && r->leaving == 0) DT_TRY(dti_jeval(r, node->a, out));
    dti_jclose(r, before);
    return DT_OK;
}

/* A body in a scope of its own. */
static dt_status run_within(dti_jrun *r, const dti_jnode *body, const dti_jnode *sets)
{
    dti_jscope *before;

    DT_TRY(dti_jopen(r, r->scope, sets, &before));
    DT_TRY(dti_jrun_body(r, body));
    dti_jclose(r, before);
    return DT_OK;
}

/* --- loops ------------------------------------------------------------------------------------ */

static dt_status loop_value(dti_jrun *r, const dti_jlist *list, size_t i, dti_jvalue *out)
{
    const int64_t n = (int64_t)list->n, at = (int64_t)i;
    const struct {
        const char *name;
        dti_jvalue value;
    } members[] = {
        { "index", dti_jint(at + 1) },
        { "index0", dti_jint(at) },
        { "revindex", dti_jint(n - at) },
        { "revindex0", dti_jint(n - at - 1) },
        { "first", dti_jbool(i == 0) },
        { "last", dti_jbool(at == n - 1) },
        { "length", dti_jint(n) },
        { "depth", dti_jint(1) }, /* loops are not recursive */
        { "depth0", dti_jint(0) },
        { "previtem", i > 0 ? list->items[i - 1] : (dti_jvalue){ 0 } },
        { "nextitem", at + 1 < n ? list->items[i + 1] : (dti_jvalue){ 0 } },
    };

    DT_TRY(dti_jdict_new(r, DTI_J_NAMESPACE, out));
    out->dict->loop = true;
    for (size_t m = 0; m < DT_COUNT(members); m++)
        DT_TRY(dti_jdict_set(r, out, dti_jtext(members[m].name, strlen(members[m].name)),
                             members[m].value));
    return DT_OK;
}

/* The items that the loop's condition holds for. */
static dt_status select_items(dti_jrun *r, const dti_jnode *node, dti_jvalue *items)
{
    dti_jvalue kept;
    size_t n = 0;

    if (node->d == NULL) return DT_OK;
    DT_TRY(dti_jlist_new(r, items->list->n, &kept));
    for (size_t i = 0; i < items->list->n; i++) {
        dti_jscope *before;
        dti_jvalue yes;

        DT_TRY(dti_jopen(r, r->scope, NULL, &before));
        DT_TRY(bind_targets(r, node->names, &items->list->items[i]));
        DT_TRY(dti_jeval(r, node->d, &yes));
        dti_jclose(r, before);
        if (dti_jtrue(&yes)) kept.list->items[n++] = items->list->items[i];
    }
    kept.list->n = n;
    *items = kept;
    return DT_OK;
}

/* As in Jinja, unlike in Python, the else runs unless one round has come to the end of its body:
 * also behind a break in the first round, and where every round was left by continue. */
static dt_status run_for(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue items, loop;
    bool ended = false;

    DT_TRY(dti_jeval(r, node->a, &items));
    r->line = node->line;
    DT_TRY(dti_jiterate(r, &items, &items));
    DT_TRY(select_items(r, node, &items));
    for (size_t i = 0; i < items.list->n; i++) {
        dti_jscope *before;
        int leaving;

        DT_TRY(dti_jopen(r, r->scope, node->sets, &before));
        DT_TRY(loop_value(r, items.list, i, &loop));
        DT_TRY(dti_jset(r, "loop", loop));
        DT_TRY(bind_targets(r, node->names, &items.list->items[i]));
        DT_TRY(dti_jrun_body(r, node->b));
        dti_jclose(r, before);
        leaving = r->leaving;
        r->leaving = 0;
        ended |= leaving == 0;
        if (leaving == 'b') break;
    }
    return !ended && node->c != NULL ? run_within(r, node->c, node->sets) : DT_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static dt_status run_statement(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue v;

    switch (node->kind) {
    case DTI_N_TEXT:
        return dti_jprint(r, &node->value, r->out);
    case DTI_N_OUTPUT:
        DT_TRY(dti_jeval(r, node->a, &v));
        r->line = node->line;
        return dti_jprint(r, &v, r->out);
    case DTI_N_IF:
        DT_TRY(dti_jeval(r, node->a, &v));
        if (dti_jtrue(&v)) return dti_jrun_body(r, node->b);
        return dti_jrun_body(r, node->c); /* one more IF for elif, or nothing */
    case DTI_N_FOR:
        return run_for(r, node);
    case DTI_N_SET:
        return run_set(r, node);
    case DTI_N_SET_BLOCK:
        DT_TRY(run_block(r, node, &v));
        return r->leaving != 0 ? DT_OK : dti_jset(r, node->names->name, v);
    case DTI_N_FILTER_BLOCK:
        DT_TRY(run_block(r, node, &v));
        if (r->leaving != 0) return DT_OK;
        DTI_JCHECK(r, v.kind == DTI_J_STRING, DT_ERR_FORMAT,
                   "the filters of a {%% filter %%} block give %s instead of a text",
                   dti_jkind_name(&v));
        return dti_jprint(r, &v, r->out);
    case DTI_N_MACRO:
        DT_TRY(dti_jmacro_define(r, node, &v));
        return dti_jset(r, node->name, v);
    case DTI_N_CALL_BLOCK:
        return dti_jcall_block(r, node);
    case DTI_N_BREAK:
    case DTI_N_CONTINUE:
        r->leaving = node->kind == DTI_N_BREAK ? 'b' : 'c';
        return DT_OK;
    default:
        return run_within(r, node->b, node->sets);
    }
}

dt_status dti_jrun_body(dti_jrun *r, const dti_jnode *first)
{
    DT_TRY(dti_jenter(r));
    for (const dti_jnode *i = first; i != NULL && r->leaving == 0; i = i->next) {
        DT_TRY(dti_jcharge(r, 1));
        r->line = i->line;
        DT_TRY(run_statement(r, i));
    }
    r->depth--;
    return DT_OK;
}

static dt_status run(dti_jrun *r, const json_t *variables)
{
    dti_jscope *before;
    dti_jvalue all;

    DT_TRY(dti_jfrom_json(r, variables, &all));
    DT_TRY(dti_jopen(r, NULL, r->t->sets, &before));
    for (size_t i = 0; i < all.dict->n; i++)
        DT_TRY(dti_jset(r, all.dict->entries[i].key.s, all.dict->entries[i].value));
    for (size_t i = 0; i < r->n_names; i++) r->names[i].given = true;
    return dti_jrun_body(r, r->t->body);
}

dt_status dti_jinja_render(const dti_jinja *t, const json_t *variables, int64_t now, dti_text *out)
{
    dti_jrun r = { .t = t, .line = 1, .now = now, .arena = DTI_ARENA_INIT, .out = out };
    dt_status st;

    DT_CHECK(json_is_object(variables), DT_ERR_ARG, "%s: its variables must be a JSON object",
             t->file);
    st = run(&r, variables);
    dti_free(r.names);
    dti_arena_free(&r.arena);
    return st;
}
