/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that a schema describes, by construction: what is taken and what is not, that no way ends
 * where nothing may follow, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "models/generation/json_text.h"
#include "tests/support/dt_test.h"

enum { MOST = 12 };

typedef struct texts_of {
    const char *schema;
    const char *well[MOST];  /* whole values */
    const char *wrong[MOST]; /* that no value begins as */
} texts_of;

/* clang-format off */
static const texts_of cases[] = {
    { "{\"type\":\"object\"}", { "{}", "{\"a\":[{}]}" }, { "[", "1" } },
    { "{\"type\":\"object\",\"additionalProperties\":false}", { "{}", "{ }" }, { "{\"" } },
    { "{\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"boolean\"},\"c\":{}},\"required\":[\"ab\"]}",
      { "{\"ab\":true}", "{\"a\":-1,\"ab\":false}", "{\"a\": 0 , \"ab\": true, \"c\": [null, {\"x\": 1.5}]}" },
      { "{}", "{\"c", "{\"a\":1}", "{\"a\":1,\"c", "{\"a\":1.", "{\"a\":1e", "{\"a\":\"", "{\"ab\":true,\"a", "{\"ab\":true,}", "{\"b", "{\"ab\":n" } },
    { "{\"type\":\"object\",\"properties\":{\"\\u00e4\\n\\\"\":{\"const\":\"x\"}}}",
      { "{}", "{\"\xc3\xa4\\u000a\\\"\":\"x\"}" }, { "{\"a", "{\"\xc3\xa4\\n" } },
    { "{\"enum\":[\"red\",\"green\",\"grey\",null,true,[1, 2],{\"a\":1}]}",
      { "\"red\"", "\"green\"", "\"grey\"", "null", "true", "[1, 2]", "{\"a\": 1}" },
      { "\"gray", "\"re\"", "f", "[1,2", "\"redd", "1" } },
    { "{\"type\":\"array\",\"items\":{\"enum\":[1,12,1.25,-3,100]}}",
      { "[]", "[1]", "[12, 1,100]", "[1.25,-3 ]" }, { "[2", "[11", "[10]", "[1.2]", "[,", "[1,]", "[-]" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3},\"minItems\":1,\"maxItems\":2}",
      { "[\"ab\"]", "[\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\",\"\\n\\u00e4\"]" },
      { "[]", "[ ]", "[\"a\"", "[\"abcd", "[\"ab\",\"abc\",", "[1", "[\"ab\\u1234\\" } },
    { "{\"type\":\"array\",\"maxItems\":0}", { "[]" }, { "[1", "[[" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}}",
      { "[-12,-1,0,1,9,10,105]", "[ 50 ]" }, { "[-13", "[-0", "[106", "[11 1", "[1050", "[1.", "[01", "[-]", "[-2 0" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"exclusiveMinimum\":3,\"maximum\":20}}",
      { "[4,9,10,20]" }, { "[3]", "[1]", "[2]", "[21", "[0", "[-" } },
    { "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"maximum\":-30}}", { "[-30,-31,-299]" }, { "[-2]", "[1", "[-0" } },
    { "{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"null\",\"number\"]}}",
      { "[\"\",null,-1.5e3]" }, { "[t", "[[", "[{" } },
    { "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
      { "{}", "{\"a\":1,\"\":2}" }, { "{\"a\":\"", "{\"a\":1.", "{\"a\":1,}" } },
    { "{\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"v\":{\"type\":\"integer\"}},\"required\":[\"k\",\"v\"]},"
      "{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{\"type\":\"string\"}},\"required\":[\"k\",\"v\"]}]}",
      { "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":\"\"}" }, { "{\"k\":\"a\",\"v\":\"", "{\"k\":\"b\",\"v\":1", "{\"v" } },
    { "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"enum\":[1,\"x\"]},{\"type\":\"string\"}]}}",
      { "[1,1.5,\"x\",\"xy\",1,1,1,1,1,1]" }, { "[n" } },
    { "{\"$defs\":{\"node\":{\"properties\":{\"value\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},"
      "\"required\":[\"value\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
      { "{\"value\":1,\"next\":null}", "{\"value\":1,\"next\":{\"value\":2,\"next\":null}}" }, { "{\"value\":1,\"next\":1", "{\"next", "{\"value\":1}" } },
    { "{\"type\":\"object\",\"properties\":{\"me\":{\"$ref\":\"#\"}}}", { "{\"me\":{\"me\":{}}}" }, { "{\"me\":1" } },
    { "{\"type\":\"string\",\"enum\":[\"a\",1,null]}", { "\"a\"" }, { "1", "n" } },
};

static const struct { const char *schema, *says; } refused[] = {
    { "{\"type\":\"string\",\"pattern\":\"a*\"}", "\"pattern\" is not supported" },
    { "{\"properties\":{\"a\":{\"properties\":{\"b\":{\"format\":\"date\"}}}}}", "properties.a.properties.b: \"format\" is not supported" },
    { "{\"type\":\"object\",\"allOf\":[]}", "\"allOf\"" },
    { "{\"oneOf\":[{}]}", "\"oneOf\"" },
    { "{\"type\":\"array\",\"uniqueItems\":true}", "\"uniqueItems\"" },
    { "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":0}}", "integers have" },
    { "{\"type\":\"object\",\"minLength\":1}", "another type" },
    { "{\"anyOf\":[{\"type\":\"object\"}],\"properties\":{}}", "\"properties\" beside \"anyOf\"" },
    { "{\"$ref\":\"#/$defs/x\",\"type\":\"object\"}", "\"type\" beside \"$ref\"" },
    { "{\"$ref\":\"#/$defs/x\"}", "names nothing" },
    { "{\"$ref\":\"http://x/y\"}", "names nothing" },
    { "{\"type\":\"objekt\"}", "type" },
    { "{\"type\":[]}", "\"type\" is empty" },
    { "{\"type\":3}", "type is 3" },
    { "{\"enum\":[]}", "no value" },
    { "{\"type\":\"integer\",\"enum\":[\"a\"]}", "no value" },
    { "{\"anyOf\":[]}", "empty" },
    { "{\"required\":[\"a\"]}", "more names" },
    { "{\"properties\":{\"b\":{}},\"required\":[\"a\"]}", "required[0] is none of" },
    { "{\"properties\":{\"b\":{}},\"required\":[1]}", "required[0] is 1" },
    { "{\"properties\":{\"b\":false}}", "is false" },
    { "{\"properties\":{\"b\":3}}", "must be an object" },
    { "{\"properties\":[]}", "must be an object" },
    { "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "nothing is from 3 to 2" },
    { "{\"type\":\"array\",\"minItems\":-1}", "minItems is -1" },
    { "{\"type\":\"array\",\"minItems\":1e6}", "minItems" },
    { "{\"type\":\"integer\",\"minimum\":0.5}", "minimum is 0.5" },
    { "{\"properties\":{\"a\":{\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}}}", "nothing is from" },
    { "{}", "says no type" },
    { "{\"type\":\"number\"}", "that of a number" },
    { "{\"enum\":[\"a\",1]}", "that of a number" },
    { "{\"type\":[\"object\",\"integer\"]}", "that of a number" },
    { "{\"properties\":{\"me\":{\"$ref\":\"#\"}},\"required\":[\"me\"]}", "within itself" },
    { "{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}", "within itself" },
    { "[1]", "json_schema" },
    { "{\"type\":", "json_schema" },
    { "", "json_schema" },
};
/* clang-format on */

static size_t take(const dti_json_schema *schema, const char *text, bool *whole)
{
    const size_t n = strlen(text);
    dti_json_state s;
    size_t i = 0;

    dti_json_begin(schema, &s);
    while (i < n && dti_json_step(schema, &s, (unsigned char)text[i])) i++;
    *whole = i == n && dti_json_is_whole(&s);
    return i;
}

DT_TEST(json_schema, values_are_taken_and_others_are_not)
{
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const texts_of *c = &cases[i];
        dti_json_schema schema;
        bool whole;
        DT_ASSERT_OK(dti_json_schema_make(&schema, c->schema));
        for (int k = 0; k < MOST && c->well[k] != NULL; k++) {
            const size_t n = take(&schema, c->well[k], &whole);
            if (!whole)
                dt_test_fail(__FILE__, __LINE__, "%s: %zu bytes of %s", c->schema, n, c->well[k]);
        }
        for (int k = 0; k < MOST && c->wrong[k] != NULL; k++)
            if (take(&schema, c->wrong[k], &whole) == strlen(c->wrong[k]))
                dt_test_fail(__FILE__, __LINE__, "%s: taken: %s", c->schema, c->wrong[k]);
        dti_json_schema_free(&schema);
    }
}

/* Wherever a walk by chance is, some byte leads on; brackets close and strings end sooner or later
 * when closing is preferred. */
static void walk(const dti_json_schema *schema, const char *text, uint32_t *x)
{
    static const char closing[] = "}]\",:0123456789";
    dti_json_state s, next;
    int n = 0;

    dti_json_begin(schema, &s);
    for (; n < 3000 && !dti_json_is_whole(&s); n++) {
        unsigned char c = 0;
        bool found = false;
        for (int i = 0; i < 40 + 256 && !found; i++) {
            *x = *x * 1664525u + 1013904223u;
            c = (unsigned char)(i < 40 ? *x >> 24 : (uint32_t)i - 40);
            if (i < 40 && n > 150) c = (unsigned char)closing[(*x >> 24) % (sizeof closing - 1)];
            dti_json_copy(&next, &s);
            found = dti_json_step(schema, &next, c);
        }
        if (!found) dt_test_fail(__FILE__, __LINE__, "%s: nothing follows byte %d", text, n);
        dti_json_copy(&s, &next);
    }
}

DT_TEST(json_schema, no_way_ends_where_nothing_may_follow)
{
    uint32_t x = 5;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dti_json_schema schema;
        DT_ASSERT_OK(dti_json_schema_make(&schema, cases[i].schema));
        for (int k = 0; k < 60; k++) walk(&schema, cases[i].schema, &x);
        dti_json_schema_free(&schema);
    }
}

DT_TEST(json_schema, what_is_not_kept_to_is_refused_by_its_name)
{
    DT_ASSERT_STATUS(dt_json_schema_check(NULL), DT_ERR_ARG, "NULL");
    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        const dt_status st = dt_json_schema_check(refused[i].schema);
        if ((st != DT_ERR_UNSUPPORTED && st != DT_ERR_FORMAT) ||
            strstr(dt_last_error()->message, refused[i].says) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s: %s", refused[i].schema,
                         st == DT_OK ? "taken" : dt_last_error()->message);
    }
}

/* n times `part` between two texts. */
static char *repeated(const char *before, const char *part, int n, const char *behind)
{
    const size_t bytes = strlen(before) + strlen(part) * (size_t)n + strlen(behind) + 1;
    char *text = malloc(bytes), *at = text;

    DT_ASSERT(text != NULL);
    at = stpcpy(at, before);
    for (int i = 0; i < n; i++) at = stpcpy(at, part);
    (void)stpcpy(at, behind);
    return text;
}

DT_TEST(json_schema, sizes_are_bounded)
{
    static const struct {
        const char *before, *part, *behind;
        int n;
        const char *says;
    } rows[] = {
        { "{\"description\":\"", "a", "\"}", 70000, "bytes" },
        { "", "{\"items\":", "", 40, "json_schema" },
        { "{\"anyOf\":[{}", ",{\"type\":\"object\"}", "]}", 200, "may be one of" },
        { "{\"anyOf\":[{}", ",{}", "]}", 9000, "parts" },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char *text = repeated(rows[i].before, rows[i].part, rows[i].n, rows[i].behind);
        DT_ASSERT(dt_json_schema_check(text) != DT_OK);
        if (strstr(dt_last_error()->message, rows[i].says) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%zu: %s", i, dt_last_error()->message);
        free(text);
    }
}

/* A value that is as deep as values may be: whatever is written, it can still be ended. */
DT_TEST(json_schema, depth_is_bounded_where_a_schema_goes_on_for_ever)
{
    dti_json_schema schema;
    dti_json_state s;
    bool whole;
    int n = 0;
    char *text;

    DT_ASSERT_OK(dti_json_schema_make(
        &schema, "{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}},"
                 "\"required\":[\"a\"]}"));
    dti_json_begin(&schema, &s);
    for (const char *at = "{\"a\":["; dti_json_step(&schema, &s, (unsigned char)*at); n++)
        at = at[1] != '\0' ? at + 1 : "{\"a\":[";
    DT_ASSERT_EQ_INT(n, 16 * 6);
    text = repeated("", "{\"a\":[", 16, "");
    DT_ASSERT_EQ_INT(take(&schema, text, &whole), n);
    free(text);
    dti_json_schema_free(&schema);
}

/* --- models ----------------------------------------------------------------------------------- */

static dt_status write_values(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 0, 872, 27 };
    const dt_ids prompt = { ids, 3 };
    const char *const schema = arg;
    char path[DT_TEST_PATH_BYTES];
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(tokenizer) *tok = NULL;
    DT_HELD(model) *model = NULL;
    DT_HELD(generated) *g = NULL;
    dti_json_schema read;
    int n_whole = 0;

    DT_TRY(dt_tokenizer_open(dt_test_source_path(path, "examples/checkpoint"), &tok));
    DT_TRY(dt_model_load(mesh, path, NULL, &model));
    o.tokenizer = tok;
    o.json_schema = schema;
    o.max_new_tokens = 400;
    o.do_sample = true;
    o.top_k = 0;
    o.temperature = 1.5;
    o.num_return_sequences = 6;
    DT_TRY(dt_generate_batch(model, &prompt, 1, &o, &g));
    DT_TRY(dti_json_schema_make(&read, schema));
    for (int i = 0; i < 6; i++) {
        const dt_ids made = dt_generated_ids(g, i);
        bool whole;
        size_t n;
        char *text;
        DT_TRY(dt_tokenizer_decode(tok, made.ids, (size_t)made.n, true, &text, &n));
        DT_EXPECT(take(&read, text, &whole) == n, "%s", text);
        DT_EXPECT(whole == (dt_generated_end(g, i) == DT_END_STRING), "%s", text);
        n_whole += whole;
        dt_tokenizer_free(text);
    }
    dti_json_schema_free(&read);
    DT_EXPECT(n_whole > 0, "no value was whole");
    return DT_OK;
}

DT_TEST(json_schema, models_write_values_on_every_mesh)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
        "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":120},"
        "\"mood\":{\"enum\":[\"merry\",\"sad\"]},"
        "\"friends\":{\"type\":\"array\",\"maxItems\":2,\"items\":{\"type\":[\"null\",\"boolean\"]}"
        "}"
        "},\"required\":[\"name\",\"age\",\"mood\"],\"additionalProperties\":false}";

    dt_test_on_ranks("tp=1", write_values, schema);
    dt_test_on_ranks("tp=3", write_values, schema);
    dt_test_on_ranks("dp=2", write_values, schema);
}
