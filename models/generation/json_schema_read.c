/* SPDX-License-Identifier: Apache-2.0
 *
 * From the text of a schema to nodes. A keyword that is not read is refused: a text that breaks
 * what a caller has asked for is worse than none. */
#include "models/generation/json_schema.h"

#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "base/writer.h"
#include "files/json.h"

enum { MOST_NESTING = 32 };

/* Integers that every reader holds. */
static const int64_t MOST_INTEGER = (int64_t)1 << 53;

/* Which values a keyword is about. */
enum {
    OF_ALL = 0,
    OF_NULL = 1,
    OF_BOOLEAN = 2,
    OF_INTEGER = 4,
    OF_NUMBER = 8,
    OF_STRING = 16,
    OF_ARRAY = 32,
    OF_OBJECT = 64
};

/* What says all that there is to say: not more than one of them, with nothing beside. */
enum { SAYS_ALL = 1, SAYS_NOTHING = 2 };

typedef struct keyword {
    const char *name;
    unsigned of, says;
} keyword;

/* clang-format off */
static const keyword keywords[] = {
    { "type",                 OF_ALL,     0 },
    { "properties",           OF_OBJECT,  0 },
    { "required",             OF_OBJECT,  0 },
    { "additionalProperties", OF_OBJECT,  0 },
    { "items",                OF_ARRAY,   0 },
    { "minItems",             OF_ARRAY,   0 },
    { "maxItems",             OF_ARRAY,   0 },
    { "minLength",            OF_STRING,  0 },
    { "maxLength",            OF_STRING,  0 },
    { "minimum",              OF_INTEGER, 0 },
    { "maximum",              OF_INTEGER, 0 },
    { "exclusiveMinimum",     OF_INTEGER, 0 },
    { "exclusiveMaximum",     OF_INTEGER, 0 },
    { "enum",                 OF_ALL,     SAYS_ALL },
    { "const",                OF_ALL,     SAYS_ALL },
    { "anyOf",                OF_ALL,     SAYS_ALL },
    { "$ref",                 OF_ALL,     SAYS_ALL },
    { "$defs",                OF_ALL,     SAYS_NOTHING },
    { "definitions",          OF_ALL,     SAYS_NOTHING },
    { "title",                OF_ALL,     SAYS_NOTHING },
    { "description",          OF_ALL,     SAYS_NOTHING },
    { "default",              OF_ALL,     SAYS_NOTHING },
    { "examples",             OF_ALL,     SAYS_NOTHING },
    { "deprecated",           OF_ALL,     SAYS_NOTHING },
    { "$schema",              OF_ALL,     SAYS_NOTHING },
    { "$id",                  OF_ALL,     SAYS_NOTHING },
    { "$comment",             OF_ALL,     SAYS_NOTHING },
};

static const struct { const char *name; unsigned of; } types[] = {
    { "null", OF_NULL }, { "boolean", OF_BOOLEAN }, { "integer", OF_INTEGER }, { "number", OF_NUMBER },
    { "string", OF_STRING }, { "array", OF_ARRAY }, { "object", OF_OBJECT },
};
/* clang-format on */

/* A schema that $ref names, and its node; -1: not read yet. */
typedef struct definition {
    struct json_t *value;
    int32_t node;
} definition;

typedef struct reader {
    dti_json_schema *s;
    dti_json root;
    definition *definitions;
    int32_t n_definitions;
    size_t definitions_room;
    int nesting;
} reader;

static dt_status read_schema(reader *r, const dti_json *v, int32_t node);

static const char *path_of(const dti_json *v)
{
    return v->path[0] != '\0' ? v->path : "the schema";
}

/* A schema below another one gets a node of its own. */
static dt_status read_new(reader *r, const dti_json *v, int32_t *out)
{
    DT_TRY(dti_json_add_node(r->s, (dti_json_node){ .form = DTI_JSON_ANY }, out));
    DT_TRY(read_schema(r, v, *out));
    return DT_OK;
}

/* --- forms ------------------------------------------------------------------------------------ */

static dt_status read_range(const dti_json *v, const char *least, const char *most, int64_t bound,
                            dti_json_node *node)
{
    const int64_t from = bound == MOST_INTEGER ? -bound : 0;

    DT_TRY(dti_json_int_or(v, least, node->least, from, bound, &node->least));
    DT_TRY(dti_json_int_or(v, most, node->most, from, bound, &node->most));
    return DT_OK;
}

static dt_status check_range(const dti_json *v, const dti_json_node *node)
{
    DT_CHECK(node->least <= node->most, DT_ERR_FORMAT,
             "json_schema: %s: nothing is from %lld to %lld", path_of(v), (long long)node->least,
             (long long)node->most);
    return DT_OK;
}

static dt_status read_integer(const dti_json *v, dti_json_node *node)
{
    dti_json_node beyond = { .least = INT64_MIN, .most = INT64_MAX };

    *node = (dti_json_node){ .form = DTI_JSON_INTEGER, .least = INT64_MIN, .most = INT64_MAX };
    DT_TRY(read_range(v, "minimum", "maximum", MOST_INTEGER, node));
    DT_TRY(read_range(v, "exclusiveMinimum", "exclusiveMaximum", MOST_INTEGER, &beyond));
    if (beyond.least != INT64_MIN) node->least = dti_max(node->least, beyond.least + 1);
    if (beyond.most != INT64_MAX) node->most = dti_min(node->most, beyond.most - 1);
    if (node->least != INT64_MIN || node->most != INT64_MAX) { /* the other end is open no more */
        node->least = dti_max(node->least, -MOST_INTEGER);
        node->most = dti_min(node->most, MOST_INTEGER);
    }
    return check_range(v, node);
}

static dt_status read_array(reader *r, const dti_json *v, dti_json_node *node)
{
    const dti_json items = dti_json_get(v, "items");

    *node = (dti_json_node){ .form = DTI_JSON_ARRAY, .most = INT64_MAX };
    DT_TRY(read_range(v, "minItems", "maxItems", DTI_JSON_MOST_ITEMS, node));
    if (dti_json_kind_of(&items) != DT_CONFIG_ABSENT) DT_TRY(read_new(r, &items, &node->of));
    return check_range(v, node);
}

static dt_status quote(dti_json_schema *s, const char *text, const char **out)
{
    dti_writer w = { 0 };
    char *quoted;

    dti_put_json(&w, text);
    DT_TRY(dti_arena_alloc(&s->arena, w.used + 1, (void **)&quoted));
    w = (dti_writer){ quoted, w.used + 1, 0 };
    dti_put_json(&w, text);
    *out = quoted;
    return DT_OK;
}

/* Every name is one of the properties. */
static dt_status mark_required(dti_json_schema *s, const dti_json *required,
                               const dti_json_node *node)
{
    for (size_t i = 0; i < dti_json_count(required); i++) {
        const dti_json one = dti_json_at(required, i);
        const char *name, *key;
        int32_t p = node->first;
        DT_TRY(dti_json_as_string(&one, &name));
        DT_TRY(quote(s, name, &key));
        while (p < node->first + node->n && strcmp(s->properties[p].key, key) != 0) p++;
        DT_CHECK(p < node->first + node->n, DT_ERR_UNSUPPORTED,
                 "json_schema: %s is none of \"properties\"", path_of(&one));
        s->properties[p].required = true;
    }
    return DT_OK;
}

/* Places of an object's properties are taken before any of them is read, so that they stand one
 * behind the other. */
static dt_status read_properties(reader *r, const dti_json *v, const dti_json *properties,
                                 dti_json_node *node)
{
    dti_json_schema *s = r->s;
    const char *key = NULL;
    dti_json required, member;

    DT_TRY(dti_json_array_or_none(v, "required", &required));
    node->form = DTI_JSON_OBJECT;
    node->first = s->n_properties;
    node->n = (int32_t)dti_json_count(properties);
    DT_CHECK(dti_json_count(&required) <= (size_t)node->n, DT_ERR_UNSUPPORTED,
             "json_schema: %s: \"required\" has more names than \"properties\"", path_of(v));
    s->n_properties += node->n;
    DT_TRY(dti_grow((void **)&s->properties, &s->properties_room, (size_t)s->n_properties + 1,
                    sizeof *s->properties));
    for (int32_t i = 0; dti_json_next(properties, &key, &member); i++) {
        dti_json_property p = { 0 };
        DT_TRY(quote(s, key, &p.key));
        DT_TRY(read_new(r, &member, &p.of));
        s->properties[node->first + i] = p;
    }
    return mark_required(s, &required, node);
}

/* Where properties are named others are not written, whether they were allowed or not. */
static dt_status read_object(reader *r, const dti_json *v, dti_json_node *node)
{
    const dti_json more = dti_json_get(v, "additionalProperties");
    const dti_json required = dti_json_get(v, "required");
    dti_json properties;
    bool open = true;

    *node = (dti_json_node){ .form = DTI_JSON_MAP };
    if (dti_json_kind_of(&more) == DT_CONFIG_BOOL)
        DT_TRY(dti_json_as_bool(&more, &open));
    else if (dti_json_kind_of(&more) != DT_CONFIG_ABSENT)
        DT_TRY(read_new(r, &more, &node->of));
    DT_TRY(dti_json_object_or_none(v, "properties", &properties));
    if (open && dti_json_count(&properties) == 0 && dti_json_count(&required) == 0) return DT_OK;
    return read_properties(r, v, &properties, node);
}

static unsigned types_of_value(const dti_json *v)
{
    switch (dti_json_kind_of(v)) {
    case DT_CONFIG_NULL:
        return OF_NULL;
    case DT_CONFIG_BOOL:
        return OF_BOOLEAN;
    case DT_CONFIG_INT:
        return OF_INTEGER | OF_NUMBER;
    case DT_CONFIG_REAL:
        return OF_NUMBER;
    case DT_CONFIG_STRING:
        return OF_STRING;
    case DT_CONFIG_ARRAY:
        return OF_ARRAY;
    default:
        return OF_OBJECT;
    }
}

static dt_status add_value(dti_json_schema *s, const dti_json *v, dti_json_node *node)
{
    char number[DTI_NUMBER_BYTES], *text;
    double x;
    dt_status st;

    node->n++;
    if (dti_json_kind_of(v) == DT_CONFIG_REAL) {
        DT_TRY(dti_json_as_number(v, -HUGE_VAL, HUGE_VAL, &x));
        return dti_json_add_word(s, dti_number_text(x, number));
    }
    DT_TRY(dti_json_text(v, &text));
    st = dti_json_add_word(s, text);
    dti_free(text);
    return st;
}

/* Values of other types than `type` says are none. */
static dt_status read_values(reader *r, const dti_json *v, unsigned of, dti_json_node *node)
{
    const dti_json one = dti_json_get(v, "const");
    dti_json many;

    *node = (dti_json_node){ .form = DTI_JSON_WORDS, .first = r->s->n_words };
    if (dti_json_kind_of(&one) != DT_CONFIG_ABSENT) {
        if (of == OF_ALL || (types_of_value(&one) & of) != 0) DT_TRY(add_value(r->s, &one, node));
    } else {
        DT_TRY(dti_json_array(v, "enum", &many));
        for (size_t i = 0; i < dti_json_count(&many); i++) {
            const dti_json value = dti_json_at(&many, i);
            if (of == OF_ALL || (types_of_value(&value) & of) != 0)
                DT_TRY(add_value(r->s, &value, node));
        }
    }
    DT_CHECK(node->n > 0, DT_ERR_FORMAT, "json_schema: %s has no value that it may be", path_of(v));
    return DT_OK;
}

static dt_status read_branches(reader *r, const dti_json *v, dti_json_node *node)
{
    dti_json_schema *s = r->s;
    dti_json list;

    DT_TRY(dti_json_array(v, "anyOf", &list));
    DT_CHECK(dti_json_count(&list) > 0, DT_ERR_FORMAT, "json_schema: %s: \"anyOf\" is empty",
             path_of(v));
    *node = (dti_json_node){ .form = DTI_JSON_EITHER,
                             .first = s->n_branches,
                             .n = (int32_t)dti_json_count(&list) };
    for (int32_t i = 0; i < node->n; i++) DT_TRY(dti_json_add_branch(s, DTI_JSON_NODE_ANY));
    for (int32_t i = 0; i < node->n; i++) {
        const dti_json one = dti_json_at(&list, (size_t)i);
        int32_t branch;
        DT_TRY(read_new(r, &one, &branch));
        s->branches[node->first + i] = branch;
    }
    return DT_OK;
}

/* --- types ------------------------------------------------------------------------------------ */

static dt_status type_named(const dti_json *v, unsigned *of)
{
    const char *name;

    DT_TRY(dti_json_as_string(v, &name));
    for (size_t i = 0; i < DT_COUNT(types); i++)
        if (strcmp(name, types[i].name) == 0) {
            *of |= types[i].of;
            return DT_OK;
        }
    return dti_json_refuse(v, DT_ERR_FORMAT, "a type of JSON");
}

/* What `type` says; OF_ALL: nothing. */
static dt_status read_types(const dti_json *v, unsigned *of)
{
    const dti_json type = dti_json_get(v, "type");

    *of = OF_ALL;
    if (dti_json_kind_of(&type) == DT_CONFIG_ABSENT) return DT_OK;
    if (dti_json_kind_of(&type) != DT_CONFIG_ARRAY) return type_named(&type, of);
    for (size_t i = 0; i < dti_json_count(&type); i++) {
        const dti_json one = dti_json_at(&type, i);
        DT_TRY(type_named(&one, of));
    }
    DT_CHECK(*of != OF_ALL, DT_ERR_FORMAT, "json_schema: %s: \"type\" is empty", path_of(v));
    if ((*of & OF_NUMBER) != 0) *of &= ~(unsigned)OF_INTEGER; /* an integer is a number */
    return DT_OK;
}

static dt_status read_type(reader *r, const dti_json *v, unsigned type, dti_json_node *node)
{
    switch (type) {
    case OF_NULL:
        *node = (dti_json_node){ .form = DTI_JSON_WORDS, .first = 2, .n = 1 };
        return DT_OK;
    case OF_BOOLEAN:
        *node = (dti_json_node){ .form = DTI_JSON_WORDS, .first = 0, .n = 2 };
        return DT_OK;
    case OF_INTEGER:
        return read_integer(v, node);
    case OF_NUMBER:
        *node = r->s->nodes[DTI_JSON_NODE_NUMBER];
        return DT_OK;
    case OF_STRING:
        *node = r->s->nodes[DTI_JSON_NODE_STRING];
        DT_TRY(read_range(v, "minLength", "maxLength", DTI_JSON_MOST_ITEMS, node));
        return check_range(v, node);
    case OF_ARRAY:
        return read_array(r, v, node);
    default:
        return read_object(r, v, node);
    }
}

/* One of several types. */
static dt_status read_each_type(reader *r, const dti_json *v, unsigned of, dti_json_node *node)
{
    dti_json_schema *s = r->s;
    int32_t branches[DT_COUNT(types)];

    *node = (dti_json_node){ .form = DTI_JSON_EITHER };
    for (size_t i = 0; i < DT_COUNT(types); i++) {
        dti_json_node one;
        if ((of & types[i].of) == 0) continue;
        DT_TRY(read_type(r, v, types[i].of, &one));
        DT_TRY(dti_json_add_node(s, one, &branches[node->n++]));
    }
    node->first = s->n_branches;
    for (int32_t i = 0; i < node->n; i++) DT_TRY(dti_json_add_branch(s, branches[i]));
    return DT_OK;
}

/* --- schemas ---------------------------------------------------------------------------------- */

/* What a schema's keywords are about, and which says all; NULL: none. */
typedef struct outline {
    unsigned of;
    const keyword *all, *other; /* other: says something beside, but for `type` */
} outline;

static dt_status look_over(const dti_json *v, outline *o)
{
    const char *key = NULL;
    dti_json member;

    *o = (outline){ 0 };
    while (dti_json_next(v, &key, &member)) {
        const keyword *k = NULL;
        char shown[48];
        for (size_t i = 0; i < DT_COUNT(keywords) && k == NULL; i++)
            if (strcmp(key, keywords[i].name) == 0) k = &keywords[i];
        DT_CHECK(k != NULL, DT_ERR_UNSUPPORTED, "json_schema: %s: \"%s\" is not supported",
                 path_of(v), dti_printable(key, shown, sizeof shown));
        o->of |= k->of;
        if (k->says == SAYS_ALL && o->all == NULL)
            o->all = k;
        else if (k->says != SAYS_NOTHING && strcmp(key, "type") != 0)
            o->other = k;
    }
    DT_CHECK(o->all == NULL || o->other == NULL, DT_ERR_UNSUPPORTED,
             "json_schema: %s: \"%s\" beside \"%s\" is not supported", path_of(v), o->other->name,
             o->all->name);
    return DT_OK;
}

/* What "#", "#/$defs/NAME" or "#/definitions/NAME" is. */
static dt_status find_definition(const reader *r, const dti_json *v, dti_json *out)
{
    static const char *const places[] = { "$defs", "definitions" };
    const char *name;

    DT_TRY(dti_json_string(v, "$ref", &name));
    *out = r->root;
    if (strcmp(name, "#") == 0) return DT_OK;
    for (size_t i = 0; i < DT_COUNT(places); i++) {
        const size_t n = strlen(places[i]);
        const dti_json all = dti_json_get(&r->root, places[i]);
        if (strncmp(name, "#/", 2) != 0 || strncmp(name + 2, places[i], n) != 0 ||
            name[2 + n] != '/')
            continue;
        *out = dti_json_get(&all, name + 3 + n);
        if (dti_json_kind_of(out) != DT_CONFIG_ABSENT) return DT_OK;
    }
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "json_schema: %s: \"$ref\" names nothing in \"$defs\" of the schema itself",
            path_of(v));
}

/* As one of one branch: the schema that is named may still be in reading. */
static dt_status read_reference(reader *r, const dti_json *v, dti_json_node *node)
{
    dti_json_schema *s = r->s;
    dti_json to;
    int32_t i = 0;

    DT_TRY(find_definition(r, v, &to));
    while (i < r->n_definitions && r->definitions[i].value != to.value) i++;
    if (i == r->n_definitions) {
        int32_t of;
        DT_TRY(dti_grow((void **)&r->definitions, &r->definitions_room, (size_t)i + 1,
                        sizeof *r->definitions));
        DT_TRY(dti_json_add_node(s, (dti_json_node){ .form = DTI_JSON_ANY }, &of));
        r->definitions[r->n_definitions++] = (definition){ to.value, of };
        DT_TRY(read_schema(r, &to, of));
    }
    *node = (dti_json_node){ .form = DTI_JSON_EITHER, .first = s->n_branches, .n = 1 };
    DT_TRY(dti_json_add_branch(s, r->definitions[i].node));
    return DT_OK;
}

static dt_status read_node(reader *r, const dti_json *v, dti_json_node *node)
{
    unsigned of;
    outline o;

    DT_TRY(look_over(v, &o));
    DT_TRY(read_types(v, &of));
    if (o.all != NULL && (strcmp(o.all->name, "enum") == 0 || strcmp(o.all->name, "const") == 0))
        return read_values(r, v, of, node);
    DT_CHECK(o.all == NULL || of == OF_ALL, DT_ERR_UNSUPPORTED,
             "json_schema: %s: \"type\" beside \"%s\" is not supported", path_of(v), o.all->name);
    if (o.all != NULL && strcmp(o.all->name, "anyOf") == 0) return read_branches(r, v, node);
    if (o.all != NULL) return read_reference(r, v, node);
    DT_CHECK(of == OF_ALL || (o.of & ~of) == 0, DT_ERR_UNSUPPORTED,
             "json_schema: %s: a keyword is about another type than \"type\" says%s", path_of(v),
             (o.of & OF_INTEGER) != 0 ? "; numbers have no bounds here, integers have" : "");
    if (of == OF_ALL) of = o.of;
    *node = (dti_json_node){ .form = DTI_JSON_ANY };
    if (of == OF_ALL) return DT_OK;
    return (of & (of - 1)) == 0 ? read_type(r, v, of, node) : read_each_type(r, v, of, node);
}

static dt_status read_schema(reader *r, const dti_json *v, int32_t node)
{
    dti_json_node made = { .form = DTI_JSON_ANY };
    dt_status st;
    bool open = false;

    if (dti_json_kind_of(v) == DT_CONFIG_BOOL) {
        DT_TRY(dti_json_as_bool(v, &open));
        DT_CHECK(open, DT_ERR_UNSUPPORTED, "json_schema: %s is false: no value is so", path_of(v));
        return DT_OK;
    }
    DT_TRY(dti_json_as_object(v));
    DT_CHECK(r->nesting < MOST_NESTING, DT_ERR_UNSUPPORTED,
             "json_schema: %s: schemas are within each other more than %d times", path_of(v),
             (int)MOST_NESTING);
    r->nesting++;
    st = read_node(r, v, &made);
    r->nesting--;
    DT_TRY(st);
    r->s->nodes[node] = made;
    return DT_OK;
}

dt_status dti_json_schema_read(dti_json_schema *s, const char *text, int32_t *root)
{
    reader r = { .s = s };
    dti_json_doc doc = { 0 };
    const size_t n = strlen(text);
    dt_status st = DT_OK;

    DT_CHECK(n <= DTI_JSON_SCHEMA_BYTES, DT_ERR_UNSUPPORTED,
             "json_schema has %zu bytes, at most %d are read", n, (int)DTI_JSON_SCHEMA_BYTES);
    DT_TRY(dti_json_parse("json_schema", text, n, &doc));
    r.root = doc.root;
    DT_TRY_TO(done, st, dti_json_add_node(s, (dti_json_node){ .form = DTI_JSON_ANY }, root));
    DT_TRY_TO(done, st,
              dti_grow((void **)&r.definitions, &r.definitions_room, 1, sizeof *r.definitions));
    r.definitions[r.n_definitions++] = (definition){ doc.root.value, *root };
    DT_TRY_TO(done, st, read_schema(&r, &doc.root, *root));
done:
    dti_free(r.definitions);
    dti_json_free(&doc);
    return st;
}
