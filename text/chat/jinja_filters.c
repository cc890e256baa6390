/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters and tests. */
#include <string.h>

#include "text/chat/jinja.h"

typedef dt_status (*filter_fn)(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a,
                               dti_jvalue *out);

/* A filter of strings is the method of that name, of whatever prints as one. */
static dt_status by_method(dti_jrun *r, const char *name, const dti_jvalue *v,
                           const dti_jargs *args, dti_jvalue *out)
{
    dti_jvalue text;

    DT_TRY(dti_jstring(r, v, &text));
    return dti_jmethod(r, &text, name, args, out);
}

static dt_status trim(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_jvalue text;

    DT_TRY(dti_jstring(r, v, &text));
    return dti_jstrip(r, &text, a->v[0], 3, out);
}

static dt_status length(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    size_t n;

    (void)a;
    DT_TRY(dti_jlength(r, v, &n));
    *out = dti_jint((int64_t)n);
    return DT_OK;
}

/* Transformers' own, which keeps all characters. */
static dt_status tojson(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_text text = { 0 };
    int indent = -1;
    dt_status st;

    DTI_JCHECK(r, a->v[0] == NULL || !dti_jtrue(a->v[0]), DT_ERR_UNSUPPORTED,
               "tojson(ensure_ascii=true) is not supported");
    if (a->v[1] != NULL && a->v[1]->kind != DTI_J_NONE) {
        DTI_JCHECK(r, a->v[1]->kind == DTI_J_INT && a->v[1]->i >= 0 && a->v[1]->i <= 16,
                   DT_ERR_UNSUPPORTED, "tojson: indent must be an integer from 0 to 16");
        indent = (int)a->v[1]->i;
    }
    st = dti_jto_json(r, v, indent, &text);
    if (st == DT_OK) st = dti_jcopy(r, text.data, text.bytes, out);
    dti_text_free(&text);
    return st;
}

static dt_status fallback(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    const bool missing =
        v->kind == DTI_J_UNDEFINED || (a->v[1] != NULL && dti_jtrue(a->v[1]) && !dti_jtrue(v));

    (void)r;
    *out = !missing ? *v : a->v[0] != NULL ? *a->v[0] : dti_jtext("", 0);
    return DT_OK;
}

static dt_status join_into(dti_jrun *r, const dti_jlist *list, const dti_jvalue *between,
                           dti_text *out)
{
    for (size_t i = 0; i < list->n; i++) {
        DT_TRY(dti_jcharge(r, 1));
        if (i > 0 && between != NULL) DT_TRY(dti_jprint(r, between, out));
        DT_TRY(dti_jprint(r, &list->items[i], out));
    }
    return DT_OK;
}

static dt_status join(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_text text = { 0 };
    dti_jvalue list;
    dt_status st;

    DT_TRY(dti_jiterate(r, v, &list));
    st = join_into(r, list.list, a->v[0], &text);
    if (st == DT_OK) st = dti_jcopy(r, text.bytes ? text.data : "", text.bytes, out);
    dti_text_free(&text);
    return st;
}

/* Undefined of nothing. */
static dt_status end_of(dti_jrun *r, const dti_jvalue *v, bool last, dti_jvalue *out)
{
    dti_jvalue list;
    size_t n;

    DT_TRY(dti_jiterate(r, v, &list));
    n = list.list->n;
    *out = n > 0 ? list.list->items[last ? n - 1 : 0] : (dti_jvalue){ 0 };
    return DT_OK;
}

static dt_status first(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return end_of(r, v, false, out);
}

static dt_status last(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return end_of(r, v, true, out);
}

static dt_status list(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_jvalue from;

    (void)a;
    DT_TRY(dti_jiterate(r, v, &from));
    DT_TRY(dti_jlist_new(r, 0, out)); /* the same items, as a list of their own */
    out->list->items = from.list->items;
    out->list->n = from.list->n;
    return DT_OK;
}

static dt_status string(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    return dti_jstring(r, v, out);
}

static dt_status items(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    static const dti_jargs none = { .n = 0 };

    (void)a;
    if (v->kind == DTI_J_UNDEFINED) {
        DT_TRY(dti_jlist_new(r, 0, out));
        out->list->like = DTI_J_LIKE_GENERATOR;
        return DT_OK;
    }
    DTI_JCHECK(r, v->kind == DTI_J_DICT, DT_ERR_FORMAT, "items: a dict is needed, there is %s",
               dti_jkind_name(v));
    DT_TRY(dti_jmethod(r, v, "items", &none, out));
    out->list->like = DTI_J_LIKE_GENERATOR;
    return DT_OK;
}

static dt_status safe(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    (void)a;
    DT_TRY(dti_jstring(r, v, out));
    out->markup = true;
    return DT_OK;
}

/* The order of two keys; 'A' is 'a' unless case counts. */
static dt_status compare_keys(dti_jrun *r, const dti_jvalue *a, const dti_jvalue *b, bool exact,
                              int *sign)
{
    const size_t n = a->n < b->n ? a->n : b->n;

    *sign = (a->n > b->n) - (a->n < b->n);
    DT_TRY(dti_jcharge(r, n + 1));
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)a->s[i], y = (unsigned char)b->s[i];

        DTI_JCHECK(r, exact || (x < 0x80 && y < 0x80), DT_ERR_UNSUPPORTED,
                   "dictsort of letters outside ASCII is supported with case_sensitive=true only");
        if (!exact && x >= 'A' && x <= 'Z') x = (unsigned char)(x - 'A' + 'a');
        if (!exact && y >= 'A' && y <= 'Z') y = (unsigned char)(y - 'A' + 'a');
        if (x == y) continue;
        *sign = x < y ? -1 : 1;
        break;
    }
    return DT_OK;
}

/* The pairs of a dict by their keys; equal ones stay as they are. */
static dt_status dictsort(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    static const dti_jargs none = { .n = 0 };
    const bool exact = a->v[0] != NULL && dti_jtrue(a->v[0]);
    const bool down = a->v[2] != NULL && dti_jtrue(a->v[2]);
    dti_jlist *list;

    DTI_JCHECK(r, v->kind == DTI_J_DICT, DT_ERR_FORMAT, "dictsort: a dict is needed, there is %s",
               dti_jkind_name(v));
    DTI_JCHECK(r,
               a->v[1] == NULL || (a->v[1]->kind == DTI_J_STRING && a->v[1]->n == 3 &&
                                   memcmp(a->v[1]->s, "key", 3) == 0),
               DT_ERR_UNSUPPORTED, "dictsort is supported by keys only");
    DT_TRY(dti_jmethod(r, v, "items", &none, out));
    list = out->list;
    list->like = DTI_J_LIKE_LIST;
    for (size_t i = 1; i < list->n; i++)
        for (size_t k = i; k > 0; k--) {
            const dti_jvalue one = list->items[k], before = list->items[k - 1];
            int sign;

            DT_TRY(compare_keys(r, &before.list->items[0], &one.list->items[0], exact, &sign));
            if (down ? sign >= 0 : sign <= 0) break;
            list->items[k] = before;
            list->items[k - 1] = one;
        }
    return DT_OK;
}

/* --- choosing from lists ---------------------------------------------------------------------- */

static dt_status attribute_of(dti_jrun *r, const dti_jvalue *v, const dti_jvalue *name,
                              dti_jvalue *out)
{
    DTI_JCHECK(r, name->kind == DTI_J_STRING && memchr(name->s, '.', name->n) == NULL,
               DT_ERR_UNSUPPORTED, "an attribute must be one name");
    DTI_JCHECK(r, v->kind != DTI_J_UNDEFINED, DT_ERR_FORMAT, "an element is undefined");
    *out = (dti_jvalue){ 0 };
    return v->kind == DTI_J_DICT ? dti_jdict_get(r, v, name->s, name->n, out) : DT_OK;
}

static dt_status map(dti_jrun *r, const dti_jvalue *v, const dti_jbound *a, dti_jvalue *out)
{
    dti_jvalue from;

    DTI_JCHECK(r, a->v[0] != NULL, DT_ERR_UNSUPPORTED, "map without attribute= is not supported");
    DT_TRY(dti_jiterate(r, v, &from));
    DT_TRY(dti_jlist_new(r, from.list->n, out));
    out->list->like = DTI_J_LIKE_GENERATOR;
    for (size_t i = 0; i < from.list->n; i++)
        DT_TRY(attribute_of(r, &from.list->items[i], a->v[0], &out->list->items[i]));
    return DT_OK;
}

typedef struct choice {
    const dti_jvalue *attribute; /* NULL: the element itself */
    const dti_jvalue *test;      /* NULL: is it true */
    dti_jargs args;
    bool want;
} choice;

static dt_status choose(dti_jrun *r, const dti_jvalue *v, const choice *c, dti_jvalue *out)
{
    dti_jvalue from;
    size_t n = 0;

    DTI_JCHECK(r, c->test == NULL || c->test->kind == DTI_J_STRING, DT_ERR_FORMAT,
               "the name of a test must be a string");
    DT_TRY(dti_jiterate(r, v, &from));
    DT_TRY(dti_jlist_new(r, from.list->n, out));
    for (size_t i = 0; i < from.list->n; i++) {
        dti_jvalue one = from.list->items[i];
        bool yes;

        DT_TRY(dti_jcharge(r, 1));
        if (c->attribute != NULL) DT_TRY(attribute_of(r, &from.list->items[i], c->attribute, &one));
        yes = dti_jtrue(&one);
        if (c->test != NULL) {
            dti_jvalue name; /* ended by a zero */

            DT_TRY(dti_jcopy(r, c->test->s, c->test->n, &name));
            DT_TRY(dti_jtest(r, name.s, &one, &c->args, &yes));
        }
        if (yes == c->want) out->list->items[n++] = from.list->items[i];
    }
    out->list->n = n;
    out->list->like = DTI_J_LIKE_GENERATOR;
    return DT_OK;
}

/* select, reject, selectattr, rejectattr */
static dt_status filter_choose(dti_jrun *r, const char *name, const dti_jvalue *v,
                               const dti_jargs *args, dti_jvalue *out)
{
    choice c = { .want = name[0] == 's' };
    int i = 0;

    for (int k = 0; k < args->n; k++)
        DTI_JCHECK(r, args->keyword[k] == NULL, DT_ERR_UNSUPPORTED, "%s with %s= is not supported",
                   name, args->keyword[k]);
    if (strlen(name) > 6) { /* ...attr */
        DTI_JCHECK(r, args->n > 0, DT_ERR_FORMAT, "%s needs the name of an attribute", name);
        c.attribute = &args->v[i++];
    }
    if (i < args->n) c.test = &args->v[i++];
    for (; i < args->n; i++) {
        c.args.keyword[c.args.n] = NULL;
        c.args.v[c.args.n++] = args->v[i];
    }
    return choose(r, v, &c, out);
}

/* clang-format off */
static const struct {
    const char *name;
    const char *params[4];
    filter_fn run;
} filters[] = {
    { "trim",    { "chars" },                    trim },
    { "length",  { NULL },                       length },
    { "count",   { NULL },                       length },
    { "tojson",  { "ensure_ascii", "indent" },   tojson },
    { "default", { "default_value", "boolean" }, fallback },
    { "d",       { "default_value", "boolean" }, fallback },
    { "join",    { "d" },                        join },
    { "first",   { NULL },                       first },
    { "last",    { NULL },                       last },
    { "list",    { NULL },                       list },
    { "string",  { NULL },                       string },
    { "items",   { NULL },                       items },
    { "safe",    { NULL },                       safe },
    { "dictsort", { "case_sensitive", "by", "reverse" }, dictsort },
    { "map",     { "attribute" },                map },
};
/* clang-format on */

dt_status dti_jfilter(dti_jrun *r, const char *name, const dti_jvalue *v, const dti_jargs *args,
                      dti_jvalue *out)
{
    static const char *const methods[] = { "upper", "lower", "capitalize", "replace" };
    static const char *const choices[] = { "select", "reject", "selectattr", "rejectattr" };
    static const char *const keep[] = { "safe", "string", "length", "default", "d", "tojson" };
    bool known = !v->markup;

    for (size_t i = 0; i < DT_COUNT(keep); i++) known |= strcmp(keep[i], name) == 0;
    DTI_JCHECK(r, known, DT_ERR_UNSUPPORTED, "|%s of what is |safe is not supported", name);

    for (size_t i = 0; i < DT_COUNT(filters); i++) {
        dti_jbound bound;

        if (strcmp(filters[i].name, name) != 0) continue;
        DTI_JCHECK(r, strcmp(name, "map") != 0 || (args->n == 1 && args->keyword[0] != NULL),
                   DT_ERR_UNSUPPORTED, "map is supported as map(attribute=\"name\") only");
        DT_TRY(dti_jbind(r, name, args, filters[i].params, &bound));
        return filters[i].run(r, v, &bound, out);
    }
    for (size_t i = 0; i < DT_COUNT(methods); i++)
        if (strcmp(methods[i], name) == 0) return by_method(r, name, v, args, out);
    for (size_t i = 0; i < DT_COUNT(choices); i++)
        if (strcmp(choices[i], name) == 0) return filter_choose(r, name, v, args, out);
    DTI_JFAIL(r, DT_ERR_UNSUPPORTED, "the filter |%s is not supported", name);
}

/* --- tests ------------------------------------------------------------------------------------ */

static dt_status test_with(dti_jrun *r, const char *name, const dti_jvalue *v,
                           const dti_jvalue *other, bool *out)
{
    const bool rest = strcmp(name, "divisibleby") == 0;

    if (strcmp(name, "in") == 0) return dti_jcontains(r, other, v, out);
    if (!rest) {
        DT_TRY(dti_jequal(r, v, other, out));
        if (strcmp(name, "ne") == 0) *out = !*out;
        return DT_OK;
    }
    DTI_JCHECK(r, v->kind == DTI_J_INT && other->kind == DTI_J_INT && other->i > 0, DT_ERR_FORMAT,
               "divisibleby needs integers");
    *out = v->i % other->i == 0;
    return DT_OK;
}

static dt_status test_parity(dti_jrun *r, const dti_jvalue *v, bool odd, bool *out)
{
    DTI_JCHECK(r, v->kind == DTI_J_INT, DT_ERR_FORMAT, "odd and even need an integer, there is %s",
               dti_jkind_name(v));
    *out = (v->i % 2 != 0) == odd;
    return DT_OK;
}

dt_status dti_jtest(dti_jrun *r, const char *name, const dti_jvalue *v, const dti_jargs *args,
                    bool *out)
{
    static const char *const with[] = { "eq", "equalto", "ne", "in", "divisibleby" };
    /* clang-format off */
    static const struct { const char *name; unsigned kinds; } tests[] = {
        { "defined", ~(1u << DTI_J_UNDEFINED) }, { "undefined", 1u << DTI_J_UNDEFINED },
        { "none", 1u << DTI_J_NONE },            { "string", 1u << DTI_J_STRING },
        { "mapping", 1u << DTI_J_DICT },         { "boolean", 1u << DTI_J_BOOL },
        { "integer", 1u << DTI_J_INT },          { "float", 1u << DTI_J_FLOAT },
        { "number", 1u << DTI_J_INT | 1u << DTI_J_FLOAT | 1u << DTI_J_BOOL },
        { "iterable", 1u << DTI_J_STRING | 1u << DTI_J_LIST | 1u << DTI_J_DICT | 1u << DTI_J_UNDEFINED },
        { "sequence", 1u << DTI_J_STRING | 1u << DTI_J_LIST | 1u << DTI_J_DICT | 1u << DTI_J_UNDEFINED },
    };
    /* clang-format on */

    for (size_t i = 0; i < DT_COUNT(with); i++) {
        if (strcmp(with[i], name) != 0) continue;
        DTI_JCHECK(r, args->n == 1, DT_ERR_FORMAT, "the test %s needs one argument", name);
        return test_with(r, name, v, &args->v[0], out);
    }
    DTI_JCHECK(r, args->n == 0, DT_ERR_UNSUPPORTED, "the test %s with an argument is not supported",
               name);
    for (size_t i = 0; i < DT_COUNT(tests); i++) {
        if (strcmp(tests[i].name, name) != 0) continue;
        *out = tests[i].kinds >> v->kind & 1;
        return DT_OK;
    }
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0)
        return test_parity(r, v, name[0] == 'o', out);
    DTI_JCHECK(r, strcmp(name, "true") == 0 || strcmp(name, "false") == 0, DT_ERR_UNSUPPORTED,
               "the test \"is %s\" is not supported", name);
    *out = v->kind == DTI_J_BOOL && v->b == (name[0] == 't');
    return DT_OK;
}
