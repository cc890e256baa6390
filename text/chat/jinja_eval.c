/* SPDX-License-Identifier: Apache-2.0
 *
 * Expressions to values. */
#include <math.h>
#include <string.h>

#include "text/chat/jinja.h"

static dt_status look_up(dti_jrun *r, const char *name, dti_jvalue *out)
{
    dti_jvalue *there;

    DT_TRY(dti_jget(r, name, &there));
    *out = (dti_jvalue){ .kind = dti_jis_global(name) ? DTI_J_GLOBAL : DTI_J_UNDEFINED };
    if (there != NULL) *out = *there;
    return DT_OK;
}

static dt_status eval_list(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    size_t n = 0;

    for (const dti_jnode *i = node->a; i != NULL; i = i->next) n++;
    DT_TRY(dti_jlist_new(r, n, out));
    out->list->like = node->tuple ? DTI_J_LIKE_TUPLE : DTI_J_LIKE_LIST;
    n = 0;
    for (const dti_jnode *i = node->a; i != NULL; i = i->next)
        DT_TRY(dti_jeval(r, i, &out->list->items[n++]));
    return DT_OK;
}

static dt_status eval_dict(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    DT_TRY(dti_jdict_new(r, DTI_J_DICT, out));
    for (const dti_jnode *i = node->a; i != NULL; i = i->next) {
        dti_jvalue key, value;

        DT_TRY(dti_jeval(r, i->a, &key));
        DT_TRY(dti_jeval(r, i->b, &value));
        DT_TRY(dti_jdict_set(r, out, key, value));
    }
    return DT_OK;
}

/* That v, which node gave, has attributes, items or methods. */
static dt_status check_defined(dti_jrun *r, const dti_jnode *node, const dti_jvalue *v,
                               const char *what)
{
    DTI_JCHECK(r, !v->markup, DT_ERR_UNSUPPORTED, "%s of what is |safe: not supported", what);
    DTI_JCHECK(r, v->kind != DTI_J_UNDEFINED, DT_ERR_FORMAT, "%s%s%s is undefined, so it has no %s",
               node->name != NULL ? "'" : "the value", node->name != NULL ? node->name : "",
               node->name != NULL ? "'" : "", what);
    return DT_OK;
}

static dt_status eval_attribute(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v;

    DT_TRY(dti_jeval(r, node->a, &v));
    DT_TRY(check_defined(r, node->a, &v, node->name));
    *out = (dti_jvalue){ 0 };
    r->line = node->line;
    DTI_JCHECK(r, v.kind != DTI_J_MACRO, DT_ERR_UNSUPPORTED,
               "attributes of a macro, such as \".%s\", are not supported", node->name);
    DTI_JCHECK(r, !dti_jis_method(v.kind, node->name), DT_ERR_UNSUPPORTED,
               "\".%s\" is a method of %s and has to be called; a key is written ['%s']",
               node->name, dti_jkind_name(&v), node->name);
    if (v.kind == DTI_J_DICT || v.kind == DTI_J_NAMESPACE)
        return dti_jdict_get(r, &v, node->name, strlen(node->name), out);
    return DT_OK;
}

/* --- items and slices ------------------------------------------------------------------------- */

/* Bytes before character i. */
static size_t character(const dti_jvalue *v, size_t i)
{
    size_t at = 0;

    while (i-- > 0) at += dti_utf8_length(v->s[at]);
    return at;
}

static dt_status eval_item(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v, key;
    int64_t i;
    size_t n;

    DT_TRY(dti_jeval(r, node->a, &v));
    DT_TRY(dti_jeval(r, node->b, &key));
    DT_TRY(check_defined(r, node->a, &v, "items"));
    *out = (dti_jvalue){ 0 };
    if (key.kind == DTI_J_STRING) {
        if (v.kind == DTI_J_DICT || v.kind == DTI_J_NAMESPACE)
            DT_TRY(dti_jdict_get(r, &v, key.s, key.n, out));
        DTI_JCHECK(r, out->kind != DTI_J_UNDEFINED || !dti_jis_method(v.kind, key.s),
                   DT_ERR_UNSUPPORTED, "a method of %s as an item is not supported",
                   dti_jkind_name(&v));
        return DT_OK;
    }
    if ((key.kind != DTI_J_INT && key.kind != DTI_J_BOOL) ||
        (v.kind != DTI_J_LIST && v.kind != DTI_J_STRING))
        return DT_OK;
    DT_TRY(dti_jlength(r, &v, &n));
    i = key.kind == DTI_J_INT ? key.i : key.b;
    if (i < 0) i += (int64_t)n;
    if (i < 0 || i >= (int64_t)n) return DT_OK;
    if (v.kind == DTI_J_LIST) {
        *out = v.list->items[i];
        return DT_OK;
    }
    n = character(&v, (size_t)i);
    *out = dti_jtext(v.s + n, dti_utf8_length(v.s[n]));
    return DT_OK;
}

static dt_status eval_bound(dti_jrun *r, const dti_jnode *node, int64_t fallback, int64_t *out)
{
    dti_jvalue v;

    *out = fallback;
    if (node == NULL) return DT_OK;
    DT_TRY(dti_jeval(r, node, &v));
    if (v.kind == DTI_J_NONE) return DT_OK;
    DTI_JCHECK(r, v.kind == DTI_J_INT, DT_ERR_FORMAT, "the bound of a slice is %s",
               dti_jkind_name(&v));
    *out = v.i;
    return DT_OK;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static dt_status eval_slice(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    int64_t begin, end, step, n;
    dti_jvalue v, items;
    size_t count, used = 0;

    DT_TRY(dti_jeval(r, node->a, &v));
    DT_TRY(check_defined(r, node->a, &v, "items"));
    DTI_JCHECK(r, v.kind == DTI_J_LIST || v.kind == DTI_J_STRING, DT_ERR_FORMAT,
               "%s cannot be sliced", dti_jkind_name(&v));
    DTI_JCHECK(r, v.kind == DTI_J_STRING || v.list->like == DTI_J_LIKE_LIST, DT_ERR_UNSUPPORTED,
               "slices of what is no list are not supported; |list gives one");
    DT_TRY(dti_jiterate(r, &v, &items));
    n = (int64_t)items.list->n;
    DT_TRY(eval_bound(r, node->d, 1, &step));
    DTI_JCHECK(r, step != 0, DT_ERR_FORMAT, "the step of a slice is 0");
    DT_TRY(eval_bound(r, node->b, step > 0 ? 0 : INT64_MAX, &begin));
    begin = step > 0 ? clamp(begin, n, 0, n) : clamp(begin, n, -1, n - 1);
    if (step < 0 && node->c == NULL) {
        end = -1;
    } else {
        DT_TRY(eval_bound(r, node->c, step > 0 ? INT64_MAX : INT64_MIN, &end));
        end = step > 0 ? clamp(end, n, 0, n) : clamp(end, n, -1, n - 1);
    }
    if (step > n) step = n + 1; /* sums stay small */
    if (step < -n) step = -n - 1;
    count = step > 0 ? (begin < end ? (size_t)((end - begin + step - 1) / step) : 0)
                     : (begin > end ? (size_t)((begin - end - step - 1) / -step) : 0);
    DT_TRY(dti_jlist_new(r, count, out));
    for (size_t i = 0; i < count; i++, begin += step) {
        out->list->items[i] = items.list->items[begin];
        if (v.kind == DTI_J_STRING) used += items.list->items[begin].n;
    }
    if (v.kind == DTI_J_STRING) {
        const dti_jlist *list = out->list;
        char *text;

        DT_TRY(dti_jalloc(r, used + 1, 1, (void **)&text));
        *out = dti_jtext(text, used);
        for (size_t i = 0; i < count; text += list->items[i++].n)
            memcpy(text, list->items[i].s, list->items[i].n);
    }
    return DT_OK;
}

/* --- operators -------------------------------------------------------------------------------- */

static dt_status join(dti_jrun *r, const dti_jvalue *a, const dti_jvalue *b, dti_jvalue *out)
{
    char *text;

    DT_TRY(dti_jalloc(r, a->n + b->n + 1, 1, (void **)&text));
    if (a->n > 0) memcpy(text, a->s, a->n);
    if (b->n > 0) memcpy(text + a->n, b->s, b->n);
    *out = dti_jtext(text, a->n + b->n);
    return DT_OK;
}

static dt_status join_lists(dti_jrun *r, const dti_jlist *a, const dti_jlist *b, dti_jvalue *out)
{
    DT_TRY(dti_jlist_new(r, a->n + b->n, out));
    if (a->n > 0) memcpy(out->list->items, a->items, a->n * sizeof *a->items);
    if (b->n > 0) memcpy(out->list->items + a->n, b->items, b->n * sizeof *b->items);
    return DT_OK;
}

static bool is_number(const dti_jvalue *v)
{
    return v->kind == DTI_J_BOOL || v->kind == DTI_J_INT || v->kind == DTI_J_FLOAT;
}

static double as_float(const dti_jvalue *v)
{
    return v->kind == DTI_J_FLOAT ? v->f : v->kind == DTI_J_INT ? (double)v->i : (double)v->b;
}

static dt_status integers(dti_jrun *r, const char *op, int64_t a, int64_t b, dti_jvalue *out)
{
    int64_t i = 0;
    bool over = false;

    if (op[0] == '+') over = __builtin_add_overflow(a, b, &i);
    if (op[0] == '-') over = __builtin_sub_overflow(a, b, &i);
    if (op[0] == '*') over = __builtin_mul_overflow(a, b, &i);
    if (op[0] == '/' || op[0] == '%') {
        DTI_JCHECK(r, b != 0, DT_ERR_FORMAT, "a division by zero");
        over = b == -1 && a == INT64_MIN;
        if (!over) {
            const int64_t rest = a % b, fix = rest != 0 && (rest < 0) != (b < 0);

            i = op[0] == '%' ? rest + (fix ? b : 0) : a / b - fix; /* Python rounds down */
        }
    }
    DTI_JCHECK(r, !over, DT_ERR_UNSUPPORTED, "an integer does not fit into 64 bits");
    *out = dti_jint(i);
    return DT_OK;
}

static dt_status calculate(dti_jrun *r, const char *op, const dti_jvalue *a, const dti_jvalue *b,
                           dti_jvalue *out)
{
    const double x = as_float(a), y = as_float(b);
    double f;

    if (a->kind != DTI_J_FLOAT && b->kind != DTI_J_FLOAT && strcmp(op, "/") != 0)
        return integers(r, op, a->kind == DTI_J_INT ? a->i : a->b,
                        b->kind == DTI_J_INT ? b->i : b->b, out);
    DTI_JCHECK(r, strcmp(op, "//") != 0 && op[0] != '%', DT_ERR_UNSUPPORTED,
               "the operator %s of floats is not supported", op);
    DTI_JCHECK(r, op[0] != '/' || y < 0 || y > 0, DT_ERR_FORMAT, "a division by zero");
    f = op[0] == '+' ? x + y : op[0] == '-' ? x - y : op[0] == '*' ? x * y : x / y;
    *out = (dti_jvalue){ .kind = DTI_J_FLOAT, .f = f };
    return DT_OK;
}

static dt_status eval_binary(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue a, b;

    DT_TRY(dti_jeval(r, node->a, &a));
    DT_TRY(dti_jeval(r, node->b, &b));
    if (node->op[0] == '~') {
        DT_TRY(dti_jstring(r, &a, &a));
        DT_TRY(dti_jstring(r, &b, &b));
        return join(r, &a, &b, out);
    }
    DTI_JCHECK(r, !a.markup && !b.markup, DT_ERR_UNSUPPORTED,
               "the operator %s of what is |safe is not supported; ~ is", node->op);
    if (is_number(&a) && is_number(&b)) return calculate(r, node->op, &a, &b, out);
    if (node->op[0] == '+' && a.kind == DTI_J_STRING && b.kind == DTI_J_STRING)
        return join(r, &a, &b, out);
    if (node->op[0] == '+' && a.kind == DTI_J_LIST && b.kind == DTI_J_LIST &&
        a.list->like == DTI_J_LIKE_LIST && b.list->like == DTI_J_LIKE_LIST)
        return join_lists(r, a.list, b.list, out);
    DTI_JFAIL(r, strchr("*%", node->op[0]) != NULL ? DT_ERR_UNSUPPORTED : DT_ERR_FORMAT,
              "%s %s %s is not possible", dti_jkind_name(&a), node->op, dti_jkind_name(&b));
}

static dt_status order(dti_jrun *r, const char *op, const dti_jvalue *a, const dti_jvalue *b,
                       bool *out)
{
    int sign;

    if (a->kind == DTI_J_STRING && b->kind == DTI_J_STRING) {
        const size_t n = a->n < b->n ? a->n : b->n;

        DT_TRY(dti_jcharge(r, n));
        sign = memcmp(a->s, b->s, n); /* UTF-8 is ordered as its characters are */
        if (sign == 0) sign = (a->n > b->n) - (a->n < b->n);
    } else if (is_number(a) && is_number(b)) {
        sign = a->kind == DTI_J_INT && b->kind == DTI_J_INT
                   ? (a->i > b->i) - (a->i < b->i)
                   : (as_float(a) > as_float(b)) - (as_float(a) < as_float(b));
    } else {
        DTI_JFAIL(r, DT_ERR_FORMAT, "%s and %s have no order", dti_jkind_name(a),
                  dti_jkind_name(b));
    }
    *out = (op[0] == '<' ? sign < 0 : sign > 0) || (op[1] == '=' && sign == 0);
    return DT_OK;
}

/* a < b < c is a < b and b < c. */
static dt_status eval_compare(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue a, b;
    bool yes = true;

    DT_TRY(dti_jeval(r, node->a, &a));
    for (const dti_jnode *i = node->b; i != NULL && yes; i = i->next, a = b) {
        DT_TRY(dti_jeval(r, i->a, &b));
        if (i->op[0] == '=' || i->op[0] == '!')
            DT_TRY(dti_jequal(r, &a, &b, &yes));
        else if (i->op[0] == 'i' || i->op[0] == 'n')
            DT_TRY(dti_jcontains(r, &b, &a, &yes));
        else
            DT_TRY(order(r, i->op, &a, &b, &yes));
        if (i->op[0] == '!' || i->op[0] == 'n') yes = !yes;
    }
    *out = dti_jbool(yes);
    return DT_OK;
}

static dt_status eval_sign(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v;

    DT_TRY(dti_jeval(r, node->a, &v));
    DTI_JCHECK(r, is_number(&v), DT_ERR_FORMAT, "%s has no sign", dti_jkind_name(&v));
    if (v.kind != DTI_J_FLOAT)
        return integers(r, node->kind == DTI_N_NEGATE ? "-" : "+", 0,
                        v.kind == DTI_J_INT ? v.i : v.b, out);
    *out = v;
    if (node->kind == DTI_N_NEGATE) out->f = -v.f;
    return DT_OK;
}

/* --- calls ------------------------------------------------------------------------------------ */

dt_status dti_jarguments(dti_jrun *r, const dti_jnode *first, dti_jargs *out)
{
    out->n = 0;
    for (const dti_jnode *i = first; i != NULL; i = i->next, out->n++) {
        const bool keyword = i->kind == DTI_N_KEYWORD;

        DTI_JCHECK(r, out->n < DTI_JINJA_ARGS, DT_ERR_UNSUPPORTED, "more than %d arguments",
                   DTI_JINJA_ARGS);
        DTI_JCHECK(r, keyword || out->n == 0 || out->keyword[out->n - 1] == NULL, DT_ERR_FORMAT,
                   "an argument without a name follows one with a name");
        DT_TRY(dti_jeval(r, keyword ? i->a : i, &out->v[out->n]));
        out->keyword[out->n] = keyword ? i->name : NULL;
    }
    return DT_OK;
}

static dt_status eval_call(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v = { 0 };
    dti_jargs args;
    bool yes;

    if (node->kind == DTI_N_CALL) DT_TRY(look_up(r, node->name, &v));
    if (node->kind != DTI_N_CALL) DT_TRY(dti_jeval(r, node->a, &v));
    DT_TRY(dti_jarguments(r, node->b, &args));
    r->line = node->line;
    switch (node->kind) {
    case DTI_N_CALL:
        if (v.kind == DTI_J_MACRO) return dti_jmacro_call(r, v.macro, &args, NULL, out);
        DTI_JCHECK(r, v.kind == DTI_J_GLOBAL, DT_ERR_UNSUPPORTED,
                   "there is no function %s(); there are macros, namespace, raise_exception, range "
                   "and strftime_now",
                   node->name);
        return dti_jglobal(r, node->name, &args, out);
    case DTI_N_METHOD:
        DT_TRY(check_defined(r, node->a, &v, node->name));
        return dti_jmethod(r, &v, node->name, &args, out);
    case DTI_N_FILTER:
        return dti_jfilter(r, node->name, &v, &args, out);
    default:
        DT_TRY(dti_jtest(r, node->name, &v, &args, &yes));
        *out = dti_jbool(yes);
        return DT_OK;
    }
}

static dt_status eval_choice(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v;

    DT_TRY(dti_jeval(r, node->a, &v));
    switch (node->kind) {
    case DTI_N_NOT:
        *out = dti_jbool(!dti_jtrue(&v));
        return DT_OK;
    case DTI_N_AND:
    case DTI_N_OR:
        *out = v;
        if (dti_jtrue(&v) == (node->kind == DTI_N_AND)) return dti_jeval(r, node->b, out);
        return DT_OK;
    default:
        *out = (dti_jvalue){ 0 };
        if (dti_jtrue(&v)) return dti_jeval(r, node->b, out);
        return node->c != NULL ? dti_jeval(r, node->c, out) : DT_OK;
    }
}

static dt_status eval(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    switch (node->kind) {
    case DTI_N_LITERAL:
        *out = node->value;
        return DT_OK;
    case DTI_N_NAME:
        return look_up(r, node->name, out);
    case DTI_N_CAPTURED:
        *out = r->captured;
        return DT_OK;
    case DTI_N_LIST:
        return eval_list(r, node, out);
    case DTI_N_DICT:
        return eval_dict(r, node, out);
    case DTI_N_ATTRIBUTE:
        return eval_attribute(r, node, out);
    case DTI_N_ITEM:
        return eval_item(r, node, out);
    case DTI_N_SLICE:
        return eval_slice(r, node, out);
    case DTI_N_CALL:
    case DTI_N_METHOD:
    case DTI_N_FILTER:
    case DTI_N_TEST:
        return eval_call(r, node, out);
    case DTI_N_NEGATE:
    case DTI_N_PLUS:
        return eval_sign(r, node, out);
    case DTI_N_BINARY:
        return eval_binary(r, node, out);
    case DTI_N_COMPARE:
        return eval_compare(r, node, out);
    default:
        return eval_choice(r, node, out);
    }
}

dt_status dti_jeval(dti_jrun *r, const dti_jnode *node, dti_jvalue *out)
{
    dti_jvalue v = { 0 };
    dt_status st;

    DT_TRY(dti_jenter(r));
    r->line = node->line;
    st = eval(r, node, &v); /* `out` may be an operand */
    *out = v;
    r->depth--;
    return st;
}
