/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions to trees, with Jinja's precedences: if else, or, and, not, comparisons, + -, ~,
 * * / // %, **, signs; filters and tests bind tightest. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "text/chat/jinja.h"

dt_status dti_jrefuse(const dti_jinja *t, int line, dt_status code, const char *fmt, ...)
{
    char raw[400], text[500];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    DT_FAIL(code, "%s: line %d: %s", t->file, line, dti_printable(raw, text, sizeof text));
}

/* --- tokens ----------------------------------------------------------------------------------- */

const dti_jtok *dti_jpeek(const dti_jparser *p)
{
    return &p->t->tokens[p->at];
}

bool dti_jsees(const dti_jparser *p, dti_jtok_kind kind, const char *text)
{
    const dti_jtok *tok = dti_jpeek(p);

    return tok->kind == kind &&
           (text == NULL || (tok->n == strlen(text) && memcmp(tok->s, text, tok->n) == 0));
}

bool dti_jskip(dti_jparser *p, dti_jtok_kind kind, const char *text)
{
    if (!dti_jsees(p, kind, text)) return false;
    p->at++;
    return true;
}

static dt_status surprise(dti_jparser *p, const char *wanted)
{
    const dti_jtok *tok = dti_jpeek(p);

    if (tok->kind == DTI_T_END)
        return dti_jrefuse(p->t, tok->line, DT_ERR_FORMAT, "%s must stand here, the template ends",
                           wanted);
    return dti_jrefuse(p->t, tok->line, DT_ERR_FORMAT, "%s must stand here, found \"%.*s\"", wanted,
                       (int)(tok->n < 60 ? tok->n : 60), tok->s);
}

dt_status dti_jexpect(dti_jparser *p, dti_jtok_kind kind, const char *text)
{
    if (dti_jskip(p, kind, text)) return DT_OK;
    return surprise(p, text != NULL                 ? text
                       : kind == DTI_T_CLOSE_TAG    ? "%}"
                       : kind == DTI_T_CLOSE_OUTPUT ? "}}"
                                                    : "a name");
}

dt_status dti_jname(dti_jparser *p, const char **out)
{
    const dti_jtok *tok = dti_jpeek(p);
    char *copy;

    DT_TRY(dti_jexpect(p, DTI_T_NAME, NULL));
    DT_TRY(dti_arena_strndup(&p->t->arena, tok->s, tok->n, &copy));
    *out = copy;
    return DT_OK;
}

dt_status dti_jnode_new(dti_jparser *p, dti_jnode_kind kind, dti_jnode **out)
{
    DT_TRY(dti_arena_alloc(&p->t->arena, sizeof **out, (void **)out));
    (*out)->kind = kind;
    (*out)->line = dti_jpeek(p)->line;
    return DT_OK;
}

dt_status dti_jdeeper(dti_jparser *p)
{
    if (++p->depth > DTI_JINJA_DEPTH)
        return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                           "expressions or blocks are nested deeper than %d", DTI_JINJA_DEPTH);
    return DT_OK;
}

static dt_status two(dti_jparser *p, dti_jnode_kind kind, dti_jnode *a, dti_jnode *b,
                     dti_jnode **out)
{
    dti_jnode *node;

    DT_TRY(dti_jnode_new(p, kind, &node));
    node->a = a;
    node->b = b;
    *out = node;
    return DT_OK;
}

static bool skip_operator(dti_jparser *p, const char *const *operators, char found[8])
{
    for (size_t i = 0; operators[i] != NULL; i++) {
        if (!dti_jskip(p, DTI_T_OPERATOR, operators[i])) continue;
        (void)snprintf(found, 8, "%s", operators[i]);
        return true;
    }
    return false;
}

/* --- what stands alone ------------------------------------------------------------------------ */

/* Items up to `end`, "," between them. */
static dt_status parse_items(dti_jparser *p, const char *end, bool *comma, dti_jnode **first)
{
    dti_jnode **last = first;

    *comma = false;
    while (!dti_jskip(p, DTI_T_OPERATOR, end)) {
        DT_TRY(dti_jexpression(p, false, true, last));
        last = &(*last)->next;
        if (dti_jskip(p, DTI_T_OPERATOR, end)) return DT_OK;
        DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ","));
        *comma = true;
    }
    return DT_OK;
}

static dt_status parse_dict(dti_jparser *p, dti_jnode **out)
{
    dti_jnode **last;

    DT_TRY(dti_jnode_new(p, DTI_N_DICT, out));
    last = &(*out)->a;
    while (!dti_jskip(p, DTI_T_OPERATOR, "}")) {
        dti_jnode *key = NULL, *value = NULL;

        DT_TRY(dti_jexpression(p, false, true, &key));
        DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ":"));
        DT_TRY(dti_jexpression(p, false, true, &value));
        DT_TRY(two(p, DTI_N_PAIR, key, value, last));
        last = &(*last)->next;
        if (dti_jskip(p, DTI_T_OPERATOR, "}")) return DT_OK;
        DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ","));
    }
    return DT_OK;
}

static dt_status parse_brackets(dti_jparser *p, dti_jnode **out)
{
    const bool round = dti_jskip(p, DTI_T_OPERATOR, "(");
    dti_jnode *items = NULL;
    bool comma;

    if (!round) DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, "["));
    DT_TRY(parse_items(p, round ? ")" : "]", &comma, &items));
    if (round && !comma && items != NULL) {
        *out = items;
        return DT_OK;
    }
    DT_TRY(two(p, DTI_N_LIST, items, NULL, out));
    (*out)->tuple = round;
    return DT_OK;
}

/* Strings side by side are one string. */
static dt_status parse_string(dti_jparser *p, dti_jnode *node)
{
    dti_text text = { 0 };
    dt_status st = DT_OK;
    char *copy;

    while (dti_jsees(p, DTI_T_STRING, NULL)) {
        const dti_jtok *tok = &p->t->tokens[p->at++];

        DT_TRY_TO(done, st, dti_text_append(&text, tok->s, tok->n));
    }
    DT_TRY_TO(done, st,
              dti_arena_strndup(&p->t->arena, text.bytes ? text.data : "", text.bytes, &copy));
    node->value = dti_jtext(copy, text.bytes);
done:
    dti_text_free(&text);
    return st;
}

static dt_status parse_name(dti_jparser *p, dti_jnode *node)
{
    static const struct {
        const char *name;
        dti_jvalue value;
    } constants[] = {
        { "true", { .kind = DTI_J_BOOL, .b = true } },
        { "True", { .kind = DTI_J_BOOL, .b = true } },
        { "false", { .kind = DTI_J_BOOL, .b = false } },
        { "False", { .kind = DTI_J_BOOL, .b = false } },
        { "none", { .kind = DTI_J_NONE } },
        { "None", { .kind = DTI_J_NONE } },
    };

    for (size_t i = 0; i < DT_COUNT(constants); i++) {
        if (!dti_jskip(p, DTI_T_NAME, constants[i].name)) continue;
        node->value = constants[i].value;
        return DT_OK;
    }
    node->kind = DTI_N_NAME;
    if (p->no_names)
        return dti_jrefuse(p->t, node->line, DT_ERR_UNSUPPORTED,
                           "names in the filters of a {%% set %%} block are not supported");
    if (dti_jsees(p, DTI_T_NAME, "caller")) p->sees_caller = true;
    if (p->n_macros > 0 &&
        (dti_jsees(p, DTI_T_NAME, "varargs") || dti_jsees(p, DTI_T_NAME, "kwargs")))
        return dti_jrefuse(p->t, node->line, DT_ERR_UNSUPPORTED,
                           "varargs and kwargs of a macro are not supported");
    return dti_jname(p, &node->name);
}

static dt_status parse_primary(dti_jparser *p, dti_jnode **out)
{
    const dti_jtok *tok = dti_jpeek(p);

    if (dti_jsees(p, DTI_T_OPERATOR, "(") || dti_jsees(p, DTI_T_OPERATOR, "["))
        return parse_brackets(p, out);
    if (dti_jskip(p, DTI_T_OPERATOR, "{")) return parse_dict(p, out);
    DT_TRY(dti_jnode_new(p, DTI_N_LITERAL, out));
    if (tok->kind == DTI_T_STRING) return parse_string(p, *out);
    if (tok->kind == DTI_T_NAME) return parse_name(p, *out);
    if (tok->kind != DTI_T_INT && tok->kind != DTI_T_FLOAT) return surprise(p, "a value");
    (*out)->value = dti_jint(tok->i);
    if (tok->kind == DTI_T_FLOAT) (*out)->value = (dti_jvalue){ .kind = DTI_J_FLOAT, .f = tok->f };
    p->at++;
    return DT_OK;
}

/* --- what follows it -------------------------------------------------------------------------- */

static dt_status parse_arguments(dti_jparser *p, dti_jnode **first)
{
    dti_jnode **last = first;

    while (!dti_jskip(p, DTI_T_OPERATOR, ")")) {
        const char *keyword = NULL;
        dti_jnode *value = NULL;

        if (dti_jsees(p, DTI_T_OPERATOR, "*") || dti_jsees(p, DTI_T_OPERATOR, "**"))
            return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                               "arguments with * are not supported");
        if (dti_jsees(p, DTI_T_NAME, NULL) && p->t->tokens[p->at + 1].kind == DTI_T_OPERATOR &&
            p->t->tokens[p->at + 1].n == 1 && p->t->tokens[p->at + 1].s[0] == '=') {
            DT_TRY(dti_jname(p, &keyword));
            p->at++;
        }
        DT_TRY(dti_jexpression(p, false, true, &value));
        if (keyword != NULL) {
            DT_TRY(two(p, DTI_N_KEYWORD, value, NULL, last));
            (*last)->name = keyword;
        } else {
            *last = value;
        }
        last = &(*last)->next;
        if (dti_jskip(p, DTI_T_OPERATOR, ")")) return DT_OK;
        DT_TRY(dti_jexpect(p, DTI_T_OPERATOR, ","));
    }
    return DT_OK;
}

static dt_status parse_slice(dti_jparser *p, dti_jnode *object, dti_jnode **out)
{
    dti_jnode *part[3] = { NULL, NULL, NULL };
    int colons = 0;

    for (;;) {
        if (dti_jskip(p, DTI_T_OPERATOR, "]")) break;
        if (dti_jskip(p, DTI_T_OPERATOR, ":")) {
            if (++colons > 2) return surprise(p, "]");
            continue;
        }
        if (part[colons] != NULL) return surprise(p, "]");
        DT_TRY(dti_jexpression(p, false, true, &part[colons]));
    }
    if (colons == 0 && part[0] == NULL) return surprise(p, "an index");
    DT_TRY(two(p, colons ? DTI_N_SLICE : DTI_N_ITEM, object, part[0], out));
    (*out)->c = part[1];
    (*out)->d = part[2];
    return DT_OK;
}

/* a.name, a.name(...), a[...], name(...) */
static dt_status parse_postfix(dti_jparser *p, dti_jnode **node)
{
    const int depth = p->depth;

    for (;;) {
        DT_TRY(dti_jdeeper(p));
        if (dti_jskip(p, DTI_T_OPERATOR, ".")) {
            DT_TRY(two(p, DTI_N_ATTRIBUTE, *node, NULL, node));
            DT_TRY(dti_jname(p, &(*node)->name));
            if (!dti_jskip(p, DTI_T_OPERATOR, "(")) continue;
            (*node)->kind = DTI_N_METHOD;
            DT_TRY(parse_arguments(p, &(*node)->b));
        } else if (dti_jskip(p, DTI_T_OPERATOR, "[")) {
            DT_TRY(parse_slice(p, *node, node));
        } else if (dti_jsees(p, DTI_T_OPERATOR, "(")) {
            const dti_jnode *called = *node;

            if (called->kind != DTI_N_NAME)
                return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                                   "only functions and methods can be called");
            p->at++;
            DT_TRY(dti_jnode_new(p, DTI_N_CALL, node));
            (*node)->name = called->name;
            DT_TRY(parse_arguments(p, &(*node)->b));
        } else {
            break;
        }
    }
    p->depth = depth;
    return DT_OK;
}

static dt_status parse_unary(dti_jparser *p, bool filters, dti_jnode **out);

/* The one argument that a test may have without parentheses: "x is divisibleby 3". */
static bool test_argument_follows(const dti_jparser *p)
{
    const dti_jtok_kind kind = dti_jpeek(p)->kind;

    if (kind == DTI_T_STRING || kind == DTI_T_INT || kind == DTI_T_FLOAT) return true;
    if (dti_jsees(p, DTI_T_OPERATOR, "[") || dti_jsees(p, DTI_T_OPERATOR, "{")) return true;
    return kind == DTI_T_NAME && !dti_jsees(p, DTI_T_NAME, "else") &&
           !dti_jsees(p, DTI_T_NAME, "or") && !dti_jsees(p, DTI_T_NAME, "and") &&
           !dti_jsees(p, DTI_T_NAME, "if") && !dti_jsees(p, DTI_T_NAME, "in") &&
           !dti_jsees(p, DTI_T_NAME, "is") && !dti_jsees(p, DTI_T_NAME, "not") &&
           !dti_jsees(p, DTI_T_NAME, "recursive");
}

static dt_status parse_test(dti_jparser *p, dti_jnode **node)
{
    dti_jnode *test, *not_;
    const bool negated = dti_jskip(p, DTI_T_NAME, "not");

    DT_TRY(two(p, DTI_N_TEST, *node, NULL, &test));
    DT_TRY(dti_jname(p, &test->name));
    if (dti_jskip(p, DTI_T_OPERATOR, "(")) {
        DT_TRY(parse_arguments(p, &test->b));
    } else if (test_argument_follows(p)) {
        DT_TRY(parse_primary(p, &test->b));
        DT_TRY(parse_postfix(p, &test->b));
    }
    *node = test;
    if (!negated) return DT_OK;
    DT_TRY(two(p, DTI_N_NOT, test, NULL, &not_));
    *node = not_;
    return DT_OK;
}

/* Behind the "|". */
static dt_status parse_filter(dti_jparser *p, dti_jnode **node)
{
    DT_TRY(two(p, DTI_N_FILTER, *node, NULL, node));
    DT_TRY(dti_jname(p, &(*node)->name));
    return dti_jskip(p, DTI_T_OPERATOR, "(") ? parse_arguments(p, &(*node)->b) : DT_OK;
}

dt_status dti_jfilters(dti_jparser *p, bool begun, dti_jnode **out)
{
    const int depth = p->depth;

    if (begun) DT_TRY(parse_filter(p, out));
    while (dti_jskip(p, DTI_T_OPERATOR, "|")) {
        DT_TRY(dti_jdeeper(p));
        DT_TRY(parse_filter(p, out));
    }
    p->depth = depth;
    return DT_OK;
}

static dt_status parse_filters(dti_jparser *p, dti_jnode **node)
{
    const int depth = p->depth;

    for (;;) {
        DT_TRY(dti_jdeeper(p));
        if (dti_jskip(p, DTI_T_OPERATOR, "|")) {
            DT_TRY(parse_filter(p, node));
        } else if (dti_jskip(p, DTI_T_NAME, "is")) {
            DT_TRY(parse_test(p, node));
        } else if (dti_jsees(p, DTI_T_OPERATOR, "(")) {
            return surprise(p, "an operator");
        } else {
            break;
        }
    }
    p->depth = depth;
    return DT_OK;
}

static dt_status parse_unary(dti_jparser *p, bool filters, dti_jnode **out)
{
    const bool minus = dti_jsees(p, DTI_T_OPERATOR, "-");

    DT_TRY(dti_jdeeper(p));
    if (minus || dti_jsees(p, DTI_T_OPERATOR, "+")) {
        DT_TRY(dti_jnode_new(p, minus ? DTI_N_NEGATE : DTI_N_PLUS, out));
        p->at++;
        DT_TRY(parse_unary(p, false, &(*out)->a));
    } else {
        DT_TRY(parse_primary(p, out));
    }
    DT_TRY(parse_postfix(p, out));
    if (filters) DT_TRY(parse_filters(p, out));
    p->depth--;
    return DT_OK;
}

/* --- operators -------------------------------------------------------------------------------- */

/* From the loosest to the tightest of those that take values on both sides. */
static const char *const levels[][6] = { { "+", "-", NULL },
                                         { "~", NULL },
                                         { "*", "/", "//", "%", NULL } };

static dt_status parse_math(dti_jparser *p, size_t level, dti_jnode **out)
{
    const int depth = p->depth;
    char op[8];

    if (level == DT_COUNT(levels)) {
        DT_TRY(parse_unary(p, true, out));
        if (dti_jsees(p, DTI_T_OPERATOR, "**"))
            return dti_jrefuse(p->t, dti_jpeek(p)->line, DT_ERR_UNSUPPORTED,
                               "the operator ** is not supported");
        return DT_OK;
    }
    DT_TRY(parse_math(p, level + 1, out));
    while (skip_operator(p, levels[level], op)) {
        DT_TRY(dti_jdeeper(p));
        DT_TRY(two(p, DTI_N_BINARY, *out, NULL, out));
        memcpy((*out)->op, op, sizeof op);
        DT_TRY(parse_math(p, level + 1, &(*out)->b));
    }
    p->depth = depth;
    return DT_OK;
}

static bool skip_comparison(dti_jparser *p, char op[8])
{
    static const char *const operators[] = { "==", "!=", "<=", ">=", "<", ">", NULL };

    if (skip_operator(p, operators, op)) return true;
    if (dti_jskip(p, DTI_T_NAME, "in")) {
        (void)snprintf(op, 8, "in");
        return true;
    }
    if (!dti_jsees(p, DTI_T_NAME, "not") || p->t->tokens[p->at + 1].kind != DTI_T_NAME ||
        p->t->tokens[p->at + 1].n != 2 || memcmp(p->t->tokens[p->at + 1].s, "in", 2) != 0)
        return false;
    p->at += 2;
    (void)snprintf(op, 8, "not in");
    return true;
}

static dt_status parse_comparison(dti_jparser *p, dti_jnode **out)
{
    dti_jnode **last, *compare;
    char op[8];

    DT_TRY(parse_math(p, 0, out));
    if (!skip_comparison(p, op)) return DT_OK;
    DT_TRY(two(p, DTI_N_COMPARE, *out, NULL, &compare));
    last = &compare->b;
    do {
        DT_TRY(two(p, DTI_N_OPERAND, NULL, NULL, last));
        memcpy((*last)->op, op, sizeof op);
        DT_TRY(parse_math(p, 0, &(*last)->a));
        last = &(*last)->next;
    } while (skip_comparison(p, op));
    *out = compare;
    return DT_OK;
}

static dt_status parse_not(dti_jparser *p, dti_jnode **out)
{
    if (!dti_jskip(p, DTI_T_NAME, "not")) return parse_comparison(p, out);
    DT_TRY(dti_jdeeper(p));
    DT_TRY(dti_jnode_new(p, DTI_N_NOT, out));
    DT_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return DT_OK;
}

static dt_status parse_logic(dti_jparser *p, bool is_or, dti_jnode **out)
{
    const int depth = p->depth;

    DT_TRY(is_or ? parse_logic(p, false, out) : parse_not(p, out));
    while (dti_jskip(p, DTI_T_NAME, is_or ? "or" : "and")) {
        DT_TRY(dti_jdeeper(p));
        DT_TRY(two(p, is_or ? DTI_N_OR : DTI_N_AND, *out, NULL, out));
        DT_TRY(is_or ? parse_logic(p, false, &(*out)->b) : parse_not(p, &(*out)->b));
    }
    p->depth = depth;
    return DT_OK;
}

static dt_status parse_conditional(dti_jparser *p, dti_jnode **out)
{
    const int depth = p->depth;

    DT_TRY(dti_jdeeper(p));
    DT_TRY(parse_logic(p, true, out));
    while (dti_jskip(p, DTI_T_NAME, "if")) {
        dti_jnode *choice;

        DT_TRY(dti_jdeeper(p));
        DT_TRY(two(p, DTI_N_IF_ELSE, NULL, *out, &choice));
        DT_TRY(parse_logic(p, true, &choice->a));
        if (dti_jskip(p, DTI_T_NAME, "else")) DT_TRY(parse_conditional(p, &choice->c));
        *out = choice;
    }
    p->depth = depth;
    return DT_OK;
}

dt_status dti_jexpression(dti_jparser *p, bool tuple, bool conditional, dti_jnode **out)
{
    dti_jnode *list, **last;

    if (!conditional) return parse_logic(p, true, out);
    DT_TRY(parse_conditional(p, out));
    if (!tuple || !dti_jsees(p, DTI_T_OPERATOR, ",")) return DT_OK;
    DT_TRY(two(p, DTI_N_LIST, *out, NULL, &list));
    list->tuple = true;
    last = &(*out)->next;
    while (dti_jskip(p, DTI_T_OPERATOR, ",")) {
        if (dti_jpeek(p)->kind == DTI_T_CLOSE_TAG || dti_jpeek(p)->kind == DTI_T_CLOSE_OUTPUT)
            break;
        DT_TRY(parse_conditional(p, last));
        last = &(*last)->next;
    }
    *out = list;
    return DT_OK;
}
