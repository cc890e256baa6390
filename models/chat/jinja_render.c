/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements to text. A loop has a scope of its own in each turn; what it sets is gone behind it,
 * except in a namespace. */
#include <jansson.h>
#include <string.h>

#include "models/chat/jinja.h"

static dt_status run_body(dti_jrun *r, const dti_jnode *first);

static dt_status bind(dti_jrun *r, const char *name, dti_jvalue value)
{
    DT_TRY(dti_jcharge(r, r->n_names - r->first_name + 1));
    for (size_t i = r->first_name; i < r->n_names; i++) {
        if (strcmp(r->names[i].name, name) != 0) continue;
        r->names[i].value = value;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&r->names, &r->room_names, r->n_names + 1, sizeof *r->names));
    r->names[r->n_names++] = (dti_jbinding){ name, value };
    return DT_OK;
}

/* One name takes the value, several its parts. */
static dt_status bind_targets(dti_jrun *r, const dti_jnode *names, const dti_jvalue *v)
{
    dti_jvalue parts;
    size_t i = 0;

    if (names->next == NULL) return bind(r, names->name, *v);
    DT_TRY(dti_jiterate(r, v, &parts));
    for (const dti_jnode *name = names; name != NULL; name = name->next, i++) {
        DTI_JCHECK(r, i < parts.list->n, DT_ERR_FORMAT, "%zu values for more names", parts.list->n);
        DT_TRY(bind(r, name->name, parts.list->items[i]));
    }
    DTI_JCHECK(r, i == parts.list->n, DT_ERR_FORMAT, "%zu values for %zu names", parts.list->n, i);
    return DT_OK;
}

static dt_status run_set(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue v;

    DT_TRY(dti_jeval(r, node->a, &v));
    r->line = node->line;
    if (node->name == NULL) return bind_targets(r, node->names, &v);
    for (size_t i = r->n_names; i-- > 0;) {
        if (strcmp(r->names[i].name, node->name) != 0) continue;
        DTI_JCHECK(r, r->names[i].value.kind == DTI_J_NAMESPACE, DT_ERR_FORMAT,
                   "only attributes of a namespace can be set, \"%s\" is %s", node->name,
                   dti_jkind_name(&r->names[i].value));
        return dti_jdict_set(r, &r->names[i].value,
                             dti_jtext(node->names->name, strlen(node->names->name)), v);
    }
    DTI_JFAIL(r, DT_ERR_FORMAT, "the namespace \"%s\" is undefined", node->name);
}

/* Opens a scope; close_scope() with what it returns. */
static size_t open_scope(dti_jrun *r)
{
    const size_t before = r->first_name;

    r->first_name = r->n_names;
    return before;
}

static void close_scope(dti_jrun *r, size_t before)
{
    r->n_names = r->first_name;
    r->first_name = before;
}

/* What the body prints becomes the value. */
static dt_status run_set_block(dti_jrun *r, const dti_jnode *node)
{
    const size_t begin = r->out->bytes, scope = open_scope(r);
    dti_jvalue v;

    DT_TRY(run_body(r, node->b));
    close_scope(r, scope);
    DT_TRY(dti_jcopy(r, r->out->bytes ? r->out->data + begin : "", r->out->bytes - begin, &v));
    r->out->bytes = begin;
    return bind(r, node->names->name, v);
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
        { "previtem", i > 0 ? list->items[i - 1] : (dti_jvalue){ 0 } },
        { "nextitem", at + 1 < n ? list->items[i + 1] : (dti_jvalue){ 0 } },
    };

    DT_TRY(dti_jdict_new(r, DTI_J_NAMESPACE, out));
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
        const size_t scope = open_scope(r);
        dti_jvalue yes;

        DT_TRY(bind_targets(r, node->names, &items->list->items[i]));
        DT_TRY(dti_jeval(r, node->d, &yes));
        close_scope(r, scope);
        if (dti_jtrue(&yes)) kept.list->items[n++] = items->list->items[i];
    }
    kept.list->n = n;
    *items = kept;
    return DT_OK;
}

static dt_status run_for(dti_jrun *r, const dti_jnode *node)
{
    dti_jvalue items, loop;

    DT_TRY(dti_jeval(r, node->a, &items));
    r->line = node->line;
    DT_TRY(dti_jiterate(r, &items, &items));
    DT_TRY(select_items(r, node, &items));
    for (size_t i = 0; i < items.list->n; i++) {
        const size_t scope = open_scope(r);
        int leaving;

        DT_TRY(loop_value(r, items.list, i, &loop));
        DT_TRY(bind(r, "loop", loop));
        DT_TRY(bind_targets(r, node->names, &items.list->items[i]));
        DT_TRY(run_body(r, node->b));
        close_scope(r, scope);
        leaving = r->leaving;
        r->leaving = 0;
        if (leaving == 'b') return DT_OK;
    }
    if (items.list->n == 0 && node->c != NULL) {
        const size_t scope = open_scope(r);

        DT_TRY(run_body(r, node->c));
        close_scope(r, scope);
    }
    return DT_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static dt_status run_generation(dti_jrun *r, const dti_jnode *node)
{
    const size_t scope = open_scope(r);

    DT_TRY(run_body(r, node->b));
    close_scope(r, scope);
    return DT_OK;
}

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
        if (dti_jtrue(&v)) return run_body(r, node->b);
        return run_body(r, node->c); /* one more IF for elif, or nothing */
    case DTI_N_FOR:
        return run_for(r, node);
    case DTI_N_SET:
        return run_set(r, node);
    case DTI_N_SET_BLOCK:
        return run_set_block(r, node);
    case DTI_N_BREAK:
    case DTI_N_CONTINUE:
        r->leaving = node->kind == DTI_N_BREAK ? 'b' : 'c';
        return DT_OK;
    default:
        return run_generation(r, node);
    }
}

static dt_status run_body(dti_jrun *r, const dti_jnode *first)
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
    dti_jvalue all;

    DT_TRY(dti_jfrom_json(r, variables, &all));
    for (size_t i = 0; i < all.dict->n; i++)
        DT_TRY(bind(r, all.dict->entries[i].key.s, all.dict->entries[i].value));
    return run_body(r, r->t->body);
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
