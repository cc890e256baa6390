/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that are JSON objects by construction: what the automaton takes is what a reader of JSON
 * takes, and models that are made to write objects write them on every mesh alike. */
#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "models/generation/json_text.h"
#include "tests/support/dt_test.h"

/* How many bytes are taken; n: all, *whole: and the value is there. */
static size_t take_as(const dti_json_schema *schema, const char *text, size_t n, bool *whole)
{
    dti_json_state s;
    size_t i = 0;

    dti_json_begin(schema, &s);
    while (i < n && dti_json_step(schema, &s, (unsigned char)text[i])) i++;
    *whole = i == n && dti_json_is_whole(&s);
    return i;
}

/* Any object. */
static size_t take(const char *text, size_t n, bool *whole)
{
    dti_json_schema schema;
    size_t taken = 0;

    *whole = false;
    if (dti_json_schema_make(&schema, NULL) == DT_OK) taken = take_as(&schema, text, n, whole);
    dti_json_schema_free(&schema);
    return taken;
}

DT_TEST(json_text, objects_are_taken_and_what_is_none_is_not)
{
    static const char *const well[] = {
        "{}",
        " {\n} ",
        "{\"a\":1}",
        "{\"a\":-0.5e+10,\"b\":[1,2,[],{}],\"c\":{\"d\":null}}",
        "{\"\":\"\\u00e4\\ud7ff\\n\\\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"}",
        "{ \"a\": [ true , false , null , 0 , 0.1 , 1E5 ]\n\t}",
        "{\"a\":\"\x7f\"}",
    };
    static const char *const wrong[] = {
        "[",
        "1",
        "\"",
        "{a",
        "{,",
        "{\"a\" 1",
        "{\"a\":,",
        "{\"a\":1,}",
        "{\"a\":[1,]",
        "{\"a\":01",
        "{\"a\":.5",
        "{\"a\":+1",
        "{\"a\":1.}",
        "{\"a\":1e}",
        "{\"a\":--1",
        "{\"a\":tru}",
        "{\"a\":nul,",
        "{\"a\":\"\n",
        "{\"a\":\"\\x",
        "{\"a\":\"\\ud8",
        "{\"a\":\"\\u12g",
        "{\"a\":\"\xff",
        "{\"a\":\"\xc0\x80",
        "{\"a\":\"\xed\xa0",
        "{\"a\":\"\xf4\x90",
        "{\"a\":\"\xe2\x82\"",
        "{\"a\":1}]",
        "{\"a\":1}x",
        "{\"a\":[1}",
        "{\"a\":{\"b\":1]",
        "{}{",
        "{'a'",
        "{\"a\":NaN",
        "{\"a\":1e123}",
        "{\"a\" :",
        "{\"a\":  ",
        "{\n\n",
        "  {",
        "{      ",
    };
    bool whole;

    for (size_t i = 0; i < DT_COUNT(well); i++) {
        if (take(well[i], strlen(well[i]), &whole) != strlen(well[i]) || !whole)
            dt_test_fail(__FILE__, __LINE__, "not taken: %s", well[i]);
        for (size_t n = 0; n + 1 < strlen(well[i]); n++) {
            (void)take(well[i], n, &whole);
            DT_ASSERT(!whole || well[i][n] == ' ');
        }
    }
    for (size_t i = 0; i < DT_COUNT(wrong); i++)
        if (take(wrong[i], strlen(wrong[i]), &whole) == strlen(wrong[i]))
            dt_test_fail(__FILE__, __LINE__, "taken: %s", wrong[i]);
}

/* Texts by chance, of the bytes that may come next. */
DT_TEST(json_text, every_walk_that_ends_is_an_object_for_a_reader_too)
{
    static const char likely[] =
        "{}[]\",:0123456789.eE+-\\u/abtfnrlse \n\xc3\xa4\xe2\x82\xed\xf0\x9f";
    dti_json_schema schema;
    uint32_t x = 7;
    int n_whole = 0;

    DT_ASSERT_OK(dti_json_schema_make(&schema, NULL));
    for (int walk = 0; walk < 4000; walk++) {
        dti_json_state s, next;
        char text[400];
        size_t n = 0;
        dti_json_begin(&schema, &s);
        for (int tries = 0; n < sizeof text && tries < 4000 && !dti_json_is_whole(&s); tries++) {
            unsigned char c;
            x = x * 1664525u + 1013904223u;
            c = (x >> 30) == 0 ? (unsigned char)(x >> 8)
                               : (unsigned char)likely[(x >> 8) % (sizeof likely - 1)];
            dti_json_copy(&next, &s);
            if (!dti_json_step(&schema, &next, c)) continue;
            dti_json_copy(&s, &next);
            text[n++] = (char)c;
        }
        if (dti_json_is_whole(&s)) {
            json_error_t error;
            json_t *v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
            if (!json_is_object(v))
                dt_test_fail(__FILE__, __LINE__, "%s: %.*s", error.text, (int)n, text);
            json_decref(v);
            n_whole++;
        }
    }
    dti_json_schema_free(&schema);
    DT_ASSERT(n_whole > 500);
}

static json_t *random_value(uint32_t *x, int depth)
{
    json_t *v;

    *x = *x * 1664525u + 1013904223u;
    switch ((*x >> 8) % (depth > 4 ? 5 : 7)) {
    case 0:
        return json_integer((json_int_t)(int32_t)*x);
    case 1:
        return json_real((double)(int32_t)*x * 1e-7);
    case 2:
        return json_string("a\"\\\n\xc3\xa4\xf0\x9f\x98\x80");
    case 3:
        return json_boolean((*x >> 16) & 1);
    case 4:
        return json_null();
    case 5:
        v = json_array();
        for (uint32_t n = (*x >> 20) % 4; n > 0; n--)
            (void)json_array_append_new(v, random_value(x, depth + 1));
        return v;
    default:
        v = json_object();
        for (uint32_t n = (*x >> 20) % 4; n > 0; n--) {
            const char key[] = { (char)('a' + n), '\0' };
            (void)json_object_set_new(v, key, random_value(x, depth + 1));
        }
        return v;
    }
}

DT_TEST(json_text, what_a_writer_writes_is_taken)
{
    static const size_t flags[] = { 0, JSON_COMPACT, JSON_INDENT(2), JSON_ENSURE_ASCII };
    uint32_t x = 3;

    for (int i = 0; i < 2000; i++) {
        json_t *v = json_object();
        char *text;
        bool whole;
        size_t n;
        (void)json_object_set_new(v, "a", random_value(&x, 0));
        text = json_dumps(v, flags[i % 3]);
        n = take(text, strlen(text), &whole);
        if (!whole) dt_test_fail(__FILE__, __LINE__, "%zu bytes of %s", n, text);
        free(text);
        json_decref(v);
    }
}

/* --- tokens ----------------------------------------------------------------------------------- */

static bool same_state(const dti_json_state *a, const dti_json_state *b)
{
    bool same = a->n == b->n;

    for (int i = 0; i < a->n && same; i++) {
        const dti_json_way *x = &a->ways[i], *y = &b->ways[i];
        same = x->depth == y->depth && memcmp(x, y, offsetof(dti_json_way, frames)) == 0 &&
               memcmp(x->frames, y->frames, x->depth * sizeof x->frames[0]) == 0;
    }
    return same;
}

/* Texts that begin alike and part, each a token longer in turn: each token is read once, but for
 * what the second one has in common with the first. Bytes of tokens are made once. */
DT_TEST(json_text, a_longer_text_is_read_from_where_it_was_known)
{
    static const char *const texts[] = { "{\"name\": [1, 2.5, {\"b\": true}], \"k\": \"word\"",
                                         "{\"name\": [1, 2.5, null, \"of men\", [[]]]" };
    const dt_model_info info = { .vocab_size = 1 << 20, .max_positions = 1000 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_ENDS(dti_rules_free) dti_text_rules u, other;
    DT_HELD(tokenizer) *tok = NULL;
    char path[DT_TEST_PATH_BYTES];
    int32_t *ids[2];
    size_t n[2], alike = 0;

    DT_ASSERT_OK(dt_tokenizer_open(dt_test_source_path(path, "examples/checkpoint"), &tok));
    o.tokenizer = tok;
    o.json_object = true;
    DT_ASSERT_OK(dti_rules_make(&u, &info, &o, 1));
    DT_ASSERT_OK(dti_rules_make(&other, &info, &o, 1));
    DT_ASSERT_OK(dti_rules_make_texts(&u));
    DT_ASSERT_OK(dti_rules_make_texts(&other));
    DT_ASSERT(u.texts == other.texts);
    u.n_texts = 2;
    for (int i = 0; i < 2; i++)
        DT_ASSERT_OK(dt_tokenizer_encode(tok, texts[i], strlen(texts[i]), 0, &ids[i], &n[i]));
    while (ids[0][alike] == ids[1][alike]) alike++;
    for (size_t k = 0; k <= n[0] || k <= n[1]; k++)
        for (int i = 0; i < 2; i++) {
            dti_json_state s, whole;
            if (k > n[i]) continue;
            DT_ASSERT_OK(dti_json_read_tokens(&u, ids[i], (int64_t)k, &s));
            dti_json_memory_free(other.json);
            DT_ASSERT_OK(dti_json_read_tokens(&other, ids[i], (int64_t)k, &whole));
            DT_ASSERT(s.n > 0 && same_state(&s, &whole));
        }
    DT_ASSERT_EQ_INT(u.json->n_read, n[0] + n[1]);
    DT_ASSERT_EQ_INT(u.json->n, 2);
    DT_ASSERT(alike > 3);
    for (int i = 0; i < 2; i++) dt_tokenizer_free(ids[i]);
}

/* --- models ----------------------------------------------------------------------------------- */

static dt_status write_objects(dt_mesh *mesh, const void *arg)
{
    static const int32_t ids[] = { 0, 872, 27 };
    const dt_ids prompt = { ids, 3 };
    char path[DT_TEST_PATH_BYTES];
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    DT_HELD(tokenizer) *tok = NULL;
    DT_HELD(model) *model = NULL;
    int n_whole = 0;

    (void)arg;
    DT_TRY(dt_tokenizer_open(dt_test_source_path(path, "examples/checkpoint"), &tok));
    DT_TRY(dt_model_load(mesh, path, NULL, &model));
    o.tokenizer = tok;
    o.json_object = true;
    o.max_new_tokens = 150;
    o.do_sample = true;
    o.top_k = 0;
    o.num_return_sequences = 4;
    for (int seed = 0; seed < 3; seed++) {
        DT_HELD(generated) *g = NULL;
        o.seed = (uint64_t)seed;
        o.temperature = 0.8 + seed;
        DT_TRY(dt_generate_batch(model, &prompt, 1, &o, &g));
        for (int i = 0; i < 4; i++) {
            const dt_ids made = dt_generated_ids(g, i);
            bool whole;
            size_t n;
            char *text;
            DT_TRY(dt_tokenizer_decode(tok, made.ids, (size_t)made.n, true, &text, &n));
            DT_EXPECT(take(text, n, &whole) == n, "%s", text);
            DT_EXPECT(whole == (dt_generated_end(g, i) == DT_END_STRING), "%s", text);
            DT_EXPECT(whole || made.n == 150, "%s", text);
            n_whole += whole;
            dt_tokenizer_free(text);
        }
    }
    DT_EXPECT(n_whole > 0, "no object was whole");
    return DT_OK;
}

DT_TEST(json_text, models_write_objects_on_every_mesh)
{
    dt_test_on_ranks("tp=1", write_objects, NULL);
    dt_test_on_ranks("tp=2", write_objects, NULL);
    dt_test_on_ranks("tp=3", write_objects, NULL);
    dt_test_on_ranks("dp=2", write_objects, NULL);
}

DT_TEST(json_text, needs_a_tokenizer_and_no_beams)
{
    const dt_model_info info = { .vocab_size = 100, .max_positions = 100 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.json_object = true;
    DT_ASSERT_STATUS(dt_generate_check(&o, &info, 3, NULL), DT_ERR_ARG, "set options.tokenizer");
    o.num_beams = 2;
    DT_ASSERT_STATUS(dt_generate_check(&o, &info, 3, NULL), DT_ERR_ARG, "json_object");
}
