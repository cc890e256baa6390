/* SPDX-License-Identifier: Apache-2.0
 *
 * What expressions give: made in the arena of a rendering, compared and searched as Python does. */
#include <jansson.h>
#include <string.h>

#include "text/chat/jinja.h"

/* --- bounds ----------------------------------------------------------------------------------- */

dt_status dti_jcharge(dti_jrun *r, size_t steps)
{
    DTI_JCHECK(r, steps <= (size_t)(DTI_JINJA_STEPS - r->steps), DT_ERR_UNSUPPORTED,
               "the template takes more than %d steps", DTI_JINJA_STEPS);
    r->steps += (int64_t)steps;
    return DT_OK;
}

dt_status dti_jalloc(dti_jrun *r, size_t n, size_t bytes, void **out)
{
    DTI_JCHECK(r, n <= (DTI_JINJA_BYTES - r->bytes) / bytes, DT_ERR_UNSUPPORTED,
               "the template makes values of more than %d MiB", DTI_JINJA_BYTES >> 20);
    r->bytes +=
        n * bytes + 16 < DTI_JINJA_BYTES - r->bytes ? n * bytes + 16 : DTI_JINJA_BYTES - r->bytes;
    return dti_arena_alloc(&r->arena, n * bytes, out);
}

dt_status dti_jenter(dti_jrun *r)
{
    DT_TRY(dti_jcharge(r, 1));
    DTI_JCHECK(r, r->depth < 2 * DTI_JINJA_DEPTH, DT_ERR_UNSUPPORTED,
               "values or expressions are nested deeper than %d", 2 * DTI_JINJA_DEPTH);
    r->depth++;
    return DT_OK;
}

/* --- making them ------------------------------------------------------------------------------ */

const char *dti_jkind_name(const dti_jvalue *v)
{
    static const char *const names[] = { "undefined",   "none",       "a boolean", "an integer",
                                         "a float",     "a string",   "a list",    "a dict",
                                         "a namespace", "a function", "a macro" };

    return names[v->kind];
}

dti_jvalue dti_jbool(bool b)
{
    return (dti_jvalue){ .kind = DTI_J_BOOL, .b = b };
}

dti_jvalue dti_jint(int64_t i)
{
    return (dti_jvalue){ .kind = DTI_J_INT, .i = i };
}

dti_jvalue dti_jtext(const char *s, size_t n)
{
    return (dti_jvalue){ .kind = DTI_J_STRING, .s = s, .n = n };
}

dt_status dti_jcopy(dti_jrun *r, const char *s, size_t n, dti_jvalue *out)
{
    char *copy;

    DT_TRY(dti_jalloc(r, n + 1, 1, (void **)&copy));
    if (n > 0) memcpy(copy, s, n);
    *out = dti_jtext(copy, n);
    return DT_OK;
}

dt_status dti_jlist_new(dti_jrun *r, size_t n, dti_jvalue *out)
{
    dti_jlist *list;

    DT_TRY(dti_jalloc(r, 1, sizeof *list, (void **)&list));
    DT_TRY(dti_jalloc(r, n, sizeof *list->items, (void **)&list->items));
    list->n = n;
    *out = (dti_jvalue){ .kind = DTI_J_LIST, .list = list };
    return DT_OK;
}

dt_status dti_jdict_new(dti_jrun *r, dti_jkind kind, dti_jvalue *out)
{
    dti_jdict *dict;

    DT_TRY(dti_jalloc(r, 1, sizeof *dict, (void **)&dict));
    *out = (dti_jvalue){ .kind = kind, .dict = dict };
    return DT_OK;
}

static bool same_text(const dti_jvalue *v, const char *s, size_t n)
{
    return v->n == n && memcmp(v->s, s, n) == 0;
}

dt_status dti_jdict_set(dti_jrun *r, dti_jvalue *dict, dti_jvalue key, dti_jvalue value)
{
    dti_jdict *d = dict->dict;

    DTI_JCHECK(r, key.kind == DTI_J_STRING, DT_ERR_UNSUPPORTED,
               "a key of a dict is %s, only strings are supported", dti_jkind_name(&key));
    DT_TRY(dti_jcharge(r, d->n + 1));
    for (size_t i = 0; i < d->n; i++) {
        if (!same_text(&d->entries[i].key, key.s, key.n)) continue;
        d->entries[i].value = value;
        return DT_OK;
    }
    if (d->n == d->room) {
        const size_t room = d->room ? 2 * d->room : 8;
        dti_jentry *more;

        DT_TRY(dti_jalloc(r, room, sizeof *more, (void **)&more));
        if (d->n > 0) memcpy(more, d->entries, d->n * sizeof *more);
        d->entries = more;
        d->room = room;
    }
    d->entries[d->n++] = (dti_jentry){ key, value };
    return DT_OK;
}

dt_status dti_jdict_get(dti_jrun *r, const dti_jvalue *dict, const char *s, size_t n,
                        dti_jvalue *out)
{
    const dti_jdict *d = dict->dict;

    *out = (dti_jvalue){ 0 };
    DT_TRY(dti_jcharge(r, d->n + 1));
    for (size_t i = 0; i < d->n; i++)
        if (same_text(&d->entries[i].key, s, n)) *out = d->entries[i].value;
    return DT_OK;
}

static dt_status from_array(dti_jrun *r, const json_t *json, dti_jvalue *out)
{
    DT_TRY(dti_jlist_new(r, json_array_size(json), out));
    for (size_t i = 0; i < out->list->n; i++)
        DT_TRY(dti_jfrom_json(r, json_array_get(json, i), &out->list->items[i]));
    return DT_OK;
}

/* JSON has no key twice, so entries are appended without a search. */
static dt_status from_object(dti_jrun *r, const json_t *json, dti_jvalue *out)
{
    const char *key;
    json_t *value;
    dti_jdict *d;

    DT_TRY(dti_jdict_new(r, DTI_J_DICT, out));
    d = out->dict;
    d->room = json_object_size(json);
    DT_TRY(dti_jalloc(r, d->room, sizeof *d->entries, (void **)&d->entries));
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        DT_TRY(dti_jcopy(r, key, strlen(key), &d->entries[d->n].key));
        DT_TRY(dti_jfrom_json(r, value, &d->entries[d->n].value));
        d->n++;
    }
    return DT_OK;
}

dt_status dti_jfrom_json(dti_jrun *r, const json_t *json, dti_jvalue *out)
{
    DT_TRY(dti_jenter(r));
    *out = (dti_jvalue){ .kind = DTI_J_NONE };
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        DT_TRY(from_object(r, json, out));
        break;
    case JSON_ARRAY:
        DT_TRY(from_array(r, json, out));
        break;
    case JSON_STRING:
        DT_TRY(dti_jcopy(r, json_string_value(json), json_string_length(json), out));
        break;
    case JSON_INTEGER:
        *out = dti_jint(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = (dti_jvalue){ .kind = DTI_J_FLOAT, .f = json_real_value(json) };
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = dti_jbool(json_is_true(json));
        break;
    default:
        break;
    }
    r->depth--;
    return DT_OK;
}

/* --- asking them ------------------------------------------------------------------------------ */

bool dti_jtrue(const dti_jvalue *v)
{
    switch (v->kind) {
    case DTI_J_UNDEFINED:
    case DTI_J_NONE:
        return false;
    case DTI_J_BOOL:
        return v->b;
    case DTI_J_INT:
        return v->i != 0;
    case DTI_J_FLOAT:
        return v->f < 0 || v->f > 0 || v->f != v->f;
    case DTI_J_STRING:
        return v->n > 0;
    case DTI_J_LIST:
        return v->list->n > 0 || v->list->like == DTI_J_LIKE_GENERATOR;
    case DTI_J_DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

static bool is_number(const dti_jvalue *v)
{
    return v->kind == DTI_J_BOOL || v->kind == DTI_J_INT || v->kind == DTI_J_FLOAT;
}

static double number(const dti_jvalue *v)
{
    return v->kind == DTI_J_FLOAT ? v->f : v->kind == DTI_J_INT ? (double)v->i : (double)v->b;
}

static bool equal_numbers(const dti_jvalue *a, const dti_jvalue *b)
{
    if (a->kind != DTI_J_FLOAT && b->kind != DTI_J_FLOAT)
        return (a->kind == DTI_J_INT ? a->i : a->b) == (b->kind == DTI_J_INT ? b->i : b->b);
    return !(number(a) < number(b)) && !(number(a) > number(b));
}

static dt_status equal_lists(dti_jrun *r, const dti_jlist *a, const dti_jlist *b, bool *out)
{
    *out = a->n == b->n && a->like == b->like;
    for (size_t i = 0; *out && i < a->n; i++)
        DT_TRY(dti_jequal(r, &a->items[i], &b->items[i], out));
    return DT_OK;
}

static dt_status equal_dicts(dti_jrun *r, const dti_jvalue *a, const dti_jvalue *b, bool *out)
{
    *out = a->dict->n == b->dict->n;
    for (size_t i = 0; *out && i < a->dict->n; i++) {
        const dti_jentry *e = &a->dict->entries[i];
        dti_jvalue other;

        DT_TRY(dti_jdict_get(r, b, e->key.s, e->key.n, &other));
        DT_TRY(dti_jequal(r, &e->value, &other, out));
    }
    return DT_OK;
}

dt_status dti_jequal(dti_jrun *r, const dti_jvalue *a, const dti_jvalue *b, bool *out)
{
    DT_TRY(dti_jenter(r));
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out = equal_numbers(a, b);
    } else if (a->kind == b->kind) {
        if (a->kind == DTI_J_STRING) {
            DT_TRY(dti_jcharge(r, a->n));
            *out = same_text(a, b->s, b->n);
        } else if (a->kind == DTI_J_LIST) {
            DT_TRY(equal_lists(r, a->list, b->list, out));
        } else if (a->kind == DTI_J_DICT) {
            DT_TRY(equal_dicts(r, a, b, out));
        } else {
            *out = a->kind == DTI_J_UNDEFINED || a->kind == DTI_J_NONE || a->dict == b->dict;
        }
    }
    r->depth--;
    return DT_OK;
}

dt_status dti_jfind(dti_jrun *r, const dti_jvalue *in, size_t from, const dti_jvalue *what,
                    size_t *out)
{
    *out = SIZE_MAX;
    DT_TRY(dti_jcharge(r, 1));
    for (size_t i = from; i + what->n <= in->n; i++) {
        size_t same = 0;

        while (same < what->n && in->s[i + same] == what->s[same]) same++;
        DT_TRY(dti_jcharge(r, same + 1));
        if (same < what->n) continue;
        *out = i;
        break;
    }
    return DT_OK;
}

dt_status dti_jcontains(dti_jrun *r, const dti_jvalue *in, const dti_jvalue *v, bool *out)
{
    dti_jvalue found;
    size_t where;

    *out = false;
    switch (in->kind) {
    case DTI_J_UNDEFINED:
        return DT_OK;
    case DTI_J_STRING:
        DTI_JCHECK(r, v->kind == DTI_J_STRING, DT_ERR_FORMAT,
                   "'in': the left side must be a string to look for it in a string, it is %s",
                   dti_jkind_name(v));
        DT_TRY(dti_jfind(r, in, 0, v, &where));
        *out = where != SIZE_MAX;
        return DT_OK;
    case DTI_J_DICT:
        if (v->kind != DTI_J_STRING) return DT_OK;
        for (size_t i = 0; i < in->dict->n && !*out; i++)
            DT_TRY(dti_jequal(r, &in->dict->entries[i].key, v, out));
        return DT_OK;
    case DTI_J_LIST:
        DTI_JCHECK(r, in->list->like != DTI_J_LIKE_GENERATOR, DT_ERR_UNSUPPORTED,
                   "'in' of a generator is not supported; |list gives a list");
        for (size_t i = 0; i < in->list->n && !*out; i++) {
            found = in->list->items[i];
            DT_TRY(dti_jequal(r, &found, v, out));
        }
        return DT_OK;
    default:
        DTI_JFAIL(r, DT_ERR_FORMAT, "'in': %s holds nothing", dti_jkind_name(in));
    }
}

dt_status dti_jlength(dti_jrun *r, const dti_jvalue *v, size_t *out)
{
    *out = 0;
    switch (v->kind) {
    case DTI_J_UNDEFINED:
        return DT_OK;
    case DTI_J_STRING:
        DT_TRY(dti_jcharge(r, v->n));
        for (size_t i = 0; i < v->n; i += dti_utf8_length(v->s[i])) ++*out;
        return DT_OK;
    case DTI_J_LIST:
        DTI_JCHECK(r, v->list->like != DTI_J_LIKE_GENERATOR, DT_ERR_FORMAT,
                   "a generator has no length; |list gives it one");
        *out = v->list->n;
        return DT_OK;
    case DTI_J_DICT:
        *out = v->dict->n;
        return DT_OK;
    default:
        DTI_JFAIL(r, DT_ERR_FORMAT, "%s has no length", dti_jkind_name(v));
    }
}

/* A generator gives its items once. */
static dt_status take_items(dti_jrun *r, dti_jlist *from, dti_jvalue *list)
{
    DT_TRY(dti_jlist_new(r, 0, list));
    list->list->items = from->items;
    list->list->n = from->n;
    from->n = 0;
    return DT_OK;
}

dt_status dti_jiterate(dti_jrun *r, const dti_jvalue *of, dti_jvalue *list)
{
    const dti_jvalue v = *of; /* `list` may be the same */
    size_t n, at = 0;

    DTI_JCHECK(r,
               v.kind == DTI_J_UNDEFINED || v.kind == DTI_J_STRING || v.kind == DTI_J_LIST ||
                   v.kind == DTI_J_DICT,
               DT_ERR_FORMAT, "%s cannot be looped over", dti_jkind_name(&v));
    *list = v;
    if (v.kind == DTI_J_LIST)
        return v.list->like == DTI_J_LIKE_GENERATOR ? take_items(r, v.list, list) : DT_OK;
    DT_TRY(dti_jlength(r, &v, &n));
    DT_TRY(dti_jlist_new(r, n, list));
    for (size_t i = 0; i < n; i++) {
        if (v.kind == DTI_J_DICT) {
            list->list->items[i] = v.dict->entries[i].key;
        } else {
            list->list->items[i] = dti_jtext(v.s + at, dti_utf8_length(v.s[at]));
            at += list->list->items[i].n;
        }
    }
    return DT_OK;
}

bool dti_jis_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}
