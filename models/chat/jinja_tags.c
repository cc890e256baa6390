/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements to trees: if, for, set, break, continue, generation. */
#include <string.h>

#include "models/chat/jinja.h"

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
    DT_TRY(parse_targets(p, &loop->names));
    DT_TRY(dti_jexpect(p, DTI_T_NAME, "in"));
    DT_TRY(dti_jexpression(p, true, false, &loop->a));
    if (dti_jskip(p, DTI_T_NAME, "if")) DT_TRY(dti_jexpression(p, false, true, &loop->d));
    if (dti_jsees(p, DTI_T_NAME, "recursive"))
        return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                           "recursive loops are not supported");
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    p->n_loops++;
    DT_TRY(dti_jbody(p, &loop->b));
    p->n_loops--;
    if (tag_follows(p, "else")) {
        DT_TRY(end_tag(p, "else"));
        DT_TRY(dti_jbody(p, &loop->c));
    }
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
    if (dti_jskip(p, DTI_T_OPERATOR, "=")) {
        DT_TRY(dti_jexpression(p, true, true, &set->a));
        return dti_jexpect(p, DTI_T_CLOSE_TAG, NULL);
    }
    if (dti_jsees(p, DTI_T_OPERATOR, "|"))
        return dti_jrefuse(p->t, set->line, DT_ERR_UNSUPPORTED,
                           "filters of a {%% set %%} block are not supported");
    if (set->names->next != NULL || set->name != NULL) return dti_jexpect(p, DTI_T_OPERATOR, "=");
    set->kind = DTI_N_SET_BLOCK;
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(dti_jbody(p, &set->b));
    return end_tag(p, "endset");
}

static dt_status parse_leave(dti_jparser *p, bool is_break, dti_jnode **out)
{
    DT_TRY(dti_jnode_new(p, is_break ? DTI_N_BREAK : DTI_N_CONTINUE, out));
    if (p->n_loops == 0)
        return dti_jrefuse(p->t, (*out)->line, DT_ERR_FORMAT, "{%% %s %%} stands outside a loop",
                           is_break ? "break" : "continue");
    return dti_jexpect(p, DTI_T_CLOSE_TAG, NULL);
}

/* Transformers' mark around what the assistant says; its contents are rendered as they are. */
static dt_status parse_generation(dti_jparser *p, dti_jnode **out)
{
    DT_TRY(dti_jnode_new(p, DTI_N_BODY, out));
    DT_TRY(dti_jexpect(p, DTI_T_CLOSE_TAG, NULL));
    DT_TRY(dti_jbody(p, &(*out)->b));
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
    return dti_jrefuse(p->t, name->line, DT_ERR_UNSUPPORTED,
                       "the statement {%% %.*s %%} is not supported; there are if, for, set, "
                       "break, continue and generation",
                       (int)(name->n < 40 ? name->n : 40), name->s);
}

static bool body_ends(const dti_jparser *p)
{
    static const char *const ends[] = {
        "elif", "else", "endif", "endfor", "endset", "endgeneration"
    };

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
