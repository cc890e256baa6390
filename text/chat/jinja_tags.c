/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements to trees: if, for, set, macro, call, filter, break, continue, generation. */
#include <string.h>

#include "text/chat/jinja.h"

static bool tag_follows(const dti_jparser *p, const char *name)
{
    const dti_jtok *tok = dti_jpeek(p);

    return tok->kind == DTI_T_OPEN_TAG && tok[1].kind == DTI_T_NAME && tok[1].n == strlen(name) &&
           memcmp(tok[1].s, name, tok[1].n) == 0;
}

/* Skips "{% name %}". */
static dt_status end_tag(dti_jparser *p, const char *name)
{
    if (!tag_follows(p, name))
        return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_FORMAT, "{%% %s %%} must stand here",
                           name);
    p->at += 2;
    return dti_jexpect(p, DTI_T_CLOSE_TAG, NULL);
}

/* The body of a node that has a scope of its own, and the names that it sets there. */
static dt_status parse_scope(dti_jparser *p, dti_jnode *node, dti_jnode **body)
{
    dti_jnode *outside = p->sets;

    p->sets = node->sets;
    DT_TRY(dti_jbody(p, body));
    node->sets = p->sets;
    p->sets = outside;
    return DT_OK;
}

static dt_status note_set(dti_jparser *p, const char *name)
{
    dti_jnode *one;

    DT_TRY(dti_jnode_new(p, DTI_N_NAME, &one));
    one->name = name;
    one->next = p->sets;
    p->sets = one;
    return DT_OK;
}

static dt_status parse_if(dti_jparser *p, dti_jnode **out)
{
    DT_TRY(dti_jnode_new(p, DTI_N_IF, out));
    DT_TRY(dti_jexpression(p, true, false, &(*out)->a));
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(dti_jbody(p, &(*out)->b));
    if (tag_follows(p, "elif")) {
        const int depth = p->depth;

        p->at += 2;
        DT_TRY(dti_jdeeper(p));
        DT_TRY(parse_if(p, &(*out)->c)); /* which takes the endif */
        p->depth = depth;
        return DT_OK;
    }
    if (tag_follows(p, "else")) {
        DT_TRY(end_tag(p, "else"));
        DT_TRY(dti_jbody(p, &(*out)->c));
    }
    return end_tag(p, "endif");
}

/* a, b, or (a, b) */
static dt_status parse_targets(dti_jparser *p, dti_jnode **first)
{
    const bool round = dti_jskip(p, DTI_T_OPERATOR, "(");
    dti_jnode **last = first;

    do {
        DT_TRY(dti_jnode_new(p, DTI_N_NAME, last));
        DT_TRY(dti_jname(p, &(*last)->name));
        if (p->n_for > 0 && strcmp((*last)->name, "loop") == 0 &&
            !dti_jsees(p, DTI_T_OPERATOR, "."))
            return dti_jrefuse(p->t, (*last)->line, DT_ERR_FORMAT,
                               "the variable \"loop\" may not be set in a loop");
        last = &(*last)->next;
    } while (dti_jskip(p, DTI_T_OPERATOR, ","));
    if (round) DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ")"));
    return DT_OK;
}

static dt_status parse_for(dti_jparser *p, dti_jnode **out)
{
    dti_jnode *loop;

    DT_TRY(dti_jnode_new(p, DTI_N_FOR, &loop));
    *out = loop;
    p->n_for++;
    DT_TRY(parse_targets(p, &loop->names));
    DT_TRY(dti_jexpect(p, DTI_T_NAME, "in"));
    DT_TRY(dti_jexpression(p, true, false, &loop->a));
    if (dti_jskip(p, DTI_T_NAME, "if")) DT_TRY(dti_jexpression(p, false, true, &loop->d));
    if (dti_jsees(p, DTI_T_NAME, "recursive"))
        return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                           "recursive loops are not supported");
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    p->n_loops++;
    DT_TRY(parse_scope(p, loop, &loop->b));
    p->n_loops--;
    if (tag_follows(p, "else")) {
        DT_TRY(end_tag(p, "else"));
        DT_TRY(parse_scope(p, loop, &loop->c));
    }
    p->n_for--;
    return end_tag(p, "endfor");
}

/* set a = x; set a, b = x; set a.b = x; set a %}...{% endset */
static dt_status parse_set(dti_jparser *p, dti_jnode **out)
{
    dti_jnode *set;

    DT_TRY(dti_jnode_new(p, DTI_N_SET, &set));
    *out = set;
    DT_TRY(parse_targets(p, &set->names));
    if (dti_jskip(p, DTI_T_OPERATOR, ".")) {
        set->name = set->names->name;
        set->names = NULL;
        DT_TRY(dti_jnode_new(p, DTI_N_NAME, &set->names));
        DT_TRY(dti_jname(p, &set->names->name));
    }
    for (const dti_jnode *i = set->names; i != NULL && set->name == NULL; i = i->next)
        DT_TRY(note_set(p, i->name));
    if (dti_jskip(p, DTI_T_OPERATOR, "=")) {
        DT_TRY(dti_jexpression(p, true, true, &set->a));
        return dti_jexpect(p, DTI_T_CLOSE_TAG, NULL);
    }
    if (set->names->next != NULL || set->name != NULL) return dti_jexpect(p, DTI_T_OPERATOR, "=");
    set->kind = DTI_N_SET_BLOCK;
    if (dti_jsees(p, DTI_T_OPERATOR, "|")) {
        DT_TRY(dti_jnode_new(p, DTI_N_CAPTURED, &set->a));
        p->no_names = true;
        DT_TRY(dti_jfilters(p, false, &set->a));
        p->no_names = false;
    }
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(parse_scope(p, set, &set->b));
    return end_tag(p, "endset");
}

/* filter a|b %}...{% endfilter */
static dt_status parse_filter_block(dti_jparser *p, dti_jnode **out)
{
    dti_jnode *block;

    DT_TRY(dti_jnode_new(p, DTI_N_FILTER_BLOCK, &block));
    *out = block;
    DT_TRY(dti_jnode_new(p, DTI_N_CAPTURED, &block->a));
    DT_TRY(dti_jfilters(p, true, &block->a));
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(parse_scope(p, block, &block->b));
    return end_tag(p, "endfilter");
}

/* (a, b=1) */
static dt_status parse_parameters(dti_jparser *p, dti_jnode **first)
{
    dti_jnode **last = first;
    bool defaults = false;
    int n = 0;

    DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, "("));
    while (!dti_jskip(p, DTI_T_OPERATOR, ")")) {
        dti_jnode *one;

        if (n++ > 0) DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ","));
        DT_TRY(dti_jnode_new(p, DTI_N_NAME, &one));
        DT_TRY(dti_jname(p, &one->name));
        if (n > DTI_JINJA_ARGS || strcmp(one->name, "caller") == 0 ||
            strcmp(one->name, "varargs") == 0 || strcmp(one->name, "kwargs") == 0)
            return dti_jrefuse(p->t, one->line, DT_ERR_UNSUPPORTED,
                               "parameter %d of a macro, %s: at most %d, not called caller, "
                               "varargs or kwargs",
                               n, one->name, DTI_JINJA_ARGS);
        for (const dti_jnode *i = *first; i != NULL; i = i->next)
            if (strcmp(i->name, one->name) == 0)
                return dti_jrefuse(p->t, one->line, DT_ERR_FORMAT,
                                   "a macro has the parameter %s twice", one->name);
        if (dti_jskip(p, DTI_T_OPERATOR, "=")) {
            defaults = true;
            DT_TRY(dti_jexpression(p, false, true, &one->a));
        } else if (defaults) {
            return dti_jrefuse(p->t, one->line, DT_ERR_FORMAT,
                               "the parameter %s without a default follows one with a default",
                               one->name);
        }
        *last = one;
        last = &one->next;
    }
    return DT_OK;
}

/* What is around a macro is not around its body. */
static dt_status parse_macro_body(dti_jparser *p, dti_jnode *macro)
{
    const int n_loops = p->n_loops;
    const bool sees_caller = p->sees_caller;

    p->n_loops = 0;
    p->n_macros++;
    p->sees_caller = false;
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(parse_scope(p, macro, &macro->b));
    macro->takes_caller = p->sees_caller;
    p->sees_caller |= sees_caller;
    p->n_macros--;
    p->n_loops = n_loops;
    return DT_OK;
}

static dt_status parse_macro(dti_jparser *p, dti_jnode **out)
{
    dti_jnode *macro;

    DT_TRY(dti_jnode_new(p, DTI_N_MACRO, &macro));
    *out = macro;
    DT_TRY(dti_jname(p, &macro->name));
    DT_TRY(note_set(p, macro->name));
    p->n_macros++; /* for the defaults */
    DT_TRY(parse_parameters(p, &macro->names));
    p->n_macros--;
    DT_TRY(parse_macro_body(p, macro));
    return end_tag(p, "endmacro");
}

/* call(a) f(x) %}...{% endcall */
static dt_status parse_call_block(dti_jparser *p, dti_jnode **out)
{
    dti_jnode *call;

    DT_TRY(dti_jnode_new(p, DTI_N_CALL_BLOCK, &call));
    *out = call;
    if (dti_jsees(p, DTI_T_OPERATOR, "(")) DT_TRY(parse_parameters(p, &call->names));
    DT_TRY(dti_jexpression(p, false, true, &call->a));
    if (call->a->kind != DTI_N_CALL)
        return dti_jrefuse(p->t, call->line, DT_ERR_UNSUPPORTED,
                           "{%% call %%} must be followed by the call of a macro");
    DT_TRY(parse_macro_body(p, call));
    if (call->takes_caller)
        return dti_jrefuse(p->t, call->line, DT_ERR_UNSUPPORTED,
                           "a caller within a {%% call %%} block is not supported");
    return end_tag(p, "endcall");
}

static dt_status parse_leave(dti_jparser *p, bool is_break, dti_jnode **out)
{
    DT_TRY(dti_jnode_new(p, is_break ? DTI_N_BREAK : DTI_N_CONTINUE, out));
    if (p->n_loops == 0)
        return dti_jrefuse(p->t, (*out)->line, DT_ERR_FORMAT, "{%% %s %%} stands outside a loop",
                           is_break ? "break" : "continue");
    return dti_jexpect(p, DTI_T_CLOSE_TAG, NULL);
}

/* Transformers' mark around what the assistant says; its contents are rendered as they are. It is a
 * call block there, which no break or continue leaves. */
static dt_status parse_generation(dti_jparser *p, dti_jnode **out)
{
    const int n_loops = p->n_loops;

    DT_TRY(dti_jnode_new(p, DTI_N_BODY, out));
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    p->n_loops = 0;
    DT_TRY(parse_scope(p, *out, &(*out)->b));
    p->n_loops = n_loops;
    return end_tag(p, "endgeneration");
}

static dt_status parse_tag(dti_jparser *p, dti_jnode **out)
{
    const dti_jtok *name;

    p->at++;
    name = dti_jpeek(p);
    if (dti_jskip(p, DTI_T_NAME, "if")) return parse_if(p, out);
    if (dti_jskip(p, DTI_T_NAME, "for")) return parse_for(p, out);
    if (dti_jskip(p, DTI_T_NAME, "set")) return parse_set(p, out);
    if (dti_jskip(p, DTI_T_NAME, "break")) return parse_leave(p, true, out);
    if (dti_jskip(p, DTI_T_NAME, "continue")) return parse_leave(p, false, out);
    if (dti_jskip(p, DTI_T_NAME, "generation")) return parse_generation(p, out);
    if (dti_jskip(p, DTI_T_NAME, "macro")) return parse_macro(p, out);
    if (dti_jskip(p, DTI_T_NAME, "call")) return parse_call_block(p, out);
    if (dti_jskip(p, DTI_T_NAME, "filter")) return parse_filter_block(p, out);
    return dti_jrefuse(p->t, name->line, DT_ERR_UNSUPPORTED,
                       "the statement {%% %.*s %%} is not supported; there are if, for, set, "
                       "macro, call, filter, raw, break, continue and generation",
                       (int)(name->n < 40 ? name->n : 40), name->s);
}

static bool body_ends(const dti_jparser *p)
{
    static const char *const ends[] = { "elif",    "else",      "endif",
                                        "endfor",  "endset",    "endmacro",
                                        "endcall", "endfilter", "endgeneration" };

    if (dti_jpeek(p)->kind == DTI_T_END) return true;
    for (size_t i = 0; i < DT_COUNT(ends); i++)
        if (tag_follows(p, ends[i])) return true;
    return false;
}

static dt_status parse_statement(dti_jparser *p, dti_jnode **out)
{
    const dti_jtok *tok = dti_jpeek(p);

    if (tok->kind == DTI_T_OPEN_TAG) return parse_tag(p, out);
    DT_TRY(dti_jnode_new(p, tok->kind == DTI_T_TEXT ? DTI_N_TEXT : DTI_N_OUTPUT, out));
    p->at++;
    if (tok->kind == DTI_T_TEXT) {
        (*out)->value = dti_jtext(tok->s, tok->n);
        return DT_OK;
    }
    DT_TRY(dti_jexpression(p, true, true, &(*out)->a));
    return dti_jexpect(p, DTI_T_CLOSE_OUTPUT, NULL);
}

/* Up to a tag that ends it, or the end. */
dt_status dti_jbody(dti_jparser *p, dti_jnode **out)
{
    dti_jnode **last = out;

    DT_TRY(dti_jdeeper(p));
    while (!body_ends(p)) {
        DT_TRY(parse_statement(p, last));
        last = &(*last)->next;
    }
    p->depth--;
    return DT_OK;
}

dt_status dti_jinja_parse(const char *file, const char *source, size_t n, dti_jinja *out)
{
    dti_jparser p = { .t = out };
    char *name;

    DT_TRY(dti_arena_strndup(&out->arena, file, strlen(file), &name));
    out->file = name;
    DT_TRY(dti_jlex(out, source, n));
    DT_TRY(dti_jbody(&p, &out->body));
    out->sets = p.sets;
    if (dti_jpeek(&p)->kind != DTI_T_END)
        return dti_jrefuse(out, dti_jpeek(&p)->line, DT_ERR_FORMAT,
                           "{%% %.*s %%} ends nothing that is open", (int)dti_jpeek(&p)[1].n,
                           dti_jpeek(&p)[1].s);
    return DT_OK;
}

void dti_jinja_free(dti_jinja *t)
{
    dti_arena_free(&t->arena);
    *t = (dti_jinja){ 0 };
}
