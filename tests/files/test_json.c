/* SPDX-License-Identifier: Apache-2.0 */
#include "files/json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/dt_test.h"

static dti_json_doc parse(const char *text)
{
    dti_json_doc doc;

    DT_ASSERT_OK(dti_json_parse("config.json", text, strlen(text), &doc));
    return doc;
}

DT_TEST(json, malformed_texts_are_refused_with_line_and_column)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "", "config.json: is empty (0 bytes), must hold a JSON object" },
        { " \r\n\t", "config.json: is empty (4 bytes)" },
        { "\xef\xbb\xbf{}", "config.json: line 1 column 1: begins with a byte order mark" },
        { "\xff\xfe{", "config.json: line 1 column 1: is UTF-16; save it as UTF-8" },
        { "{",
          "line 1 column 1: a key in double quotes or '}' must stand here, but the file ends" },
        { "{\n \"a\": 1,\n}", "config.json: line 3 column 1: no comma may stand before '}'" },
        { "{\"a\": [1,]}", "config.json: line 1 column 10: no comma may stand before ']'" },
        { "{\"a\": }", "line 1 column 7: a value must stand here, found '}'" },
        { "{a: 1}", "line 1 column 2: a key in double quotes or '}' must stand here, found 'a'" },
        { "{\"a\" 1}", "line 1 column 6: ':' must follow the key, found '1'" },
        { "{\"a\": 1 \"b\"}", "column 11: ',' or '}' must follow the value, found '\"b\"'" },
        { "{\"a\": [1 2]}", "column 10: ',' or ']' must follow the value, found '2'" },
        { "{\"a\": [1", "column 8: ',' or ']' must follow the value, but the file ends" },
        { "{\"a\": 01}", "line 1 column 7: this is no value of JSON, found '0'" },
        { "{\"a\": NaN}", "line 1 column 9: this is no value of JSON, found 'NaN'" },
        { "{\"a\": 1} x", "column 10: nothing may follow the '}' that closes the first '{'" },
        { "{\"a\": 1 // no\n}", "line 1 column 9: ',' or '}' must follow the value, found '/'" },
        { "{\"a\": \"\xff\"}", "line 1 column 7: the text is not UTF-8" },
        { "{\"a\": \"b\nc\"}", "line 1 column 8: a string must end in its line" },
        { "{\"a\": \"b\tc\"}", "a control character in a string must be written as an escape" },
        { "{\"a\": \"\\q\"}", "this escape in a string does not exist, found '\"\\q'" },
        { "{\"a\": \"\\ud800\"}", "this escape in a string is no character" },
        { "{\"a\": \"b", "line 1 column 8: a string must end" },
        { "{\"a\": \"x\\u0000y\"}", "a string with a zero character is not supported" },
        { "{\"a\\u0000b\": 1}", "a key with a zero character is not supported" },
        { "{\"a\": 1e400}", "line 1 column 11: the number does not fit into a double" },
        { "{\"a\": 9223372036854775808}",
          "line 1 column 25: the integer does not fit into 64 bits" },
        { "{\"a\": -9223372036854775809}", "the integer does not fit into 64 bits" },
        { "[1, 2]", "config.json: holds an array, must hold an object" },
        { "3", "config.json: line 1 column 1: it must begin with '{', found '3'" },
        { "{\"hidden_size\": 1, \"hidden_size\": 2}",
          "config.json: line 1 column 32: key \"hidden_size\" occurs twice in one object" },
        { "{\"a\": {\"a rather long key, longer than twenty\": 1,\n"
          "\"a rather long key, longer than twenty\": 2}}",
          "line 2 column 39: key \"a rather long key, longer than twenty\" occurs twice" },
    };
    dti_json_doc doc;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        DT_ASSERT_STATUS(dti_json_parse("config.json", cases[i].text, strlen(cases[i].text), &doc),
                         DT_ERR_FORMAT, cases[i].message);
        DT_ASSERT(doc.root.value == NULL && doc.file == NULL);
        dti_json_free(&doc);
    }
}

/* `n` times `open`, then nothing: deep nesting, or many values. */
static void refuse_repeated(const char *start, const char *again, size_t n, const char *message)
{
    const size_t head = strlen(start), step = strlen(again);
    char *text = malloc(head + n * step);
    dti_json_doc doc;

    DT_ASSERT(text != NULL);
    memcpy(text, start, head);
    for (size_t i = 0; i < n; i++) memcpy(text + head + i * step, again, step);
    DT_ASSERT_STATUS(dti_json_parse("bomb.json", text, head + n * step, &doc), DT_ERR_FORMAT,
                     message);
    free(text);
}

DT_TEST(json, bombs_are_refused_before_they_take_memory)
{
    refuse_repeated("{\"a\":", "[", 100000,
                    "bomb.json: line 1 column 261: arrays and objects are nested deeper");
    refuse_repeated("{\"a\":", "{\"a\":", 100000, "nested deeper than 256");
    refuse_repeated("{\"a\":\n", "[", 256,
                    "line 2 column 256: arrays and objects are nested deeper");
    refuse_repeated("{\"a\":", "[", 255, "',' or ']' must follow the value, but the file ends");
    refuse_repeated("{\"a\":[[]", ",[]", 8000000, "hold so many values");
}

DT_TEST(json, text_with_brackets_in_strings_is_no_bomb)
{
    const size_t n = 9000000;
    char *text = malloc(n + 16);
    dti_json_doc doc;
    const char *value;

    DT_ASSERT(text != NULL);
    memcpy(text, "{\"a\":\"", 6);
    for (size_t i = 0; i < n; i += 3) memcpy(text + 6 + i, "[\\\"", 3);
    memcpy(text + 6 + n, "\"}", 2);
    DT_ASSERT_OK(dti_json_parse("x", text, n + 8, &doc));
    DT_ASSERT_OK(dti_json_string(&doc.root, "a", &value));
    DT_ASSERT_EQ_INT(strlen(value), n / 3 * 2);
    dti_json_free(&doc);
    free(text);
}

DT_TEST(json, getters_give_values)
{
    DT_ENDS(dti_json_free)
    dti_json_doc doc = parse("{\"i\": -5, \"x\": 1.5, \"theta\": 10000, \"b\": true, \"s\": \"hi\","
                             " \"n\": null, \"a\": [1, \"two\"], \"o\": {\"k\": {\"l\": 7}}}");
    const dti_json *r = &doc.root;
    dti_json v;
    int64_t i;
    double x;
    bool b;
    const char *s;

    DT_ASSERT_OK(dti_json_int(r, "i", -5, 5, &i));
    DT_ASSERT_EQ_INT(i, -5);
    DT_ASSERT_OK(dti_json_number(r, "x", 0, 2, &x));
    DT_ASSERT_CLOSE(x, 1.5, 0);
    DT_ASSERT_OK(dti_json_number(r, "theta", 0, INFINITY, &x));
    DT_ASSERT_CLOSE(x, 10000, 0);
    DT_ASSERT_OK(dti_json_bool(r, "b", &b));
    DT_ASSERT(b);
    DT_ASSERT_OK(dti_json_string(r, "s", &s));
    DT_ASSERT_EQ_STR(s, "hi");

    DT_ASSERT_OK(dti_json_int_or(r, "missing", 42, 0, 100, &i));
    DT_ASSERT_EQ_INT(i, 42);
    DT_ASSERT_OK(dti_json_int_or(r, "n", 43, 0, 100, &i));
    DT_ASSERT_EQ_INT(i, 43);
    DT_ASSERT_OK(dti_json_number_or(r, "missing", 0.5, 0, 1, &x));
    DT_ASSERT_CLOSE(x, 0.5, 0);
    DT_ASSERT_OK(dti_json_bool_or(r, "missing", true, &b));
    DT_ASSERT(b);
    DT_ASSERT_OK(dti_json_string_or(r, "n", NULL, &s));
    DT_ASSERT(s == NULL);

    DT_ASSERT_OK(dti_json_array(r, "a", &v));
    DT_ASSERT_EQ_INT(dti_json_count(&v), 2);
    v = dti_json_at(&v, 1);
    DT_ASSERT_OK(dti_json_as_string(&v, &s));
    DT_ASSERT_EQ_STR(s, "two");
    DT_ASSERT_EQ_STR(v.path, "a[1]");
    DT_ASSERT_OK(dti_json_object_or_none(r, "o", &v));
    DT_ASSERT(dti_json_is_set(&v));
    DT_ASSERT_OK(dti_json_object(&v, "k", &v));
    DT_ASSERT_OK(dti_json_int(&v, "l", 0, 9, &i));
    DT_ASSERT_EQ_INT(i, 7);
    DT_ASSERT_OK(dti_json_array_or_none(r, "n", &v));
    DT_ASSERT(!dti_json_is_set(&v));
}

DT_TEST(json, wrong_values_are_named_with_what_was_found)
{
    DT_ENDS(dti_json_free)
    dti_json_doc doc = parse("{\"hidden_size\": -3, \"n\": null, \"f\": 2.5, \"one\": 1.0,"
                             "\"s\": \"12\\u001b[31m\", \"a\": [1, -2], \"o\": {\"k\": 1e30}}");
    const dti_json *r = &doc.root;
    dti_json v, w;
    int64_t i;
    double x;
    bool b;
    const char *s;

    DT_ASSERT_STATUS(dti_json_int(r, "hidden_size", 1, 1048576, &i), DT_ERR_FORMAT,
                     "config.json: hidden_size is -3, must be an integer from 1 to 1048576");
    DT_ASSERT_STATUS(dti_json_int_or(r, "hidden_size", 4, 1, INT64_MAX, &i), DT_ERR_FORMAT,
                     "config.json: hidden_size is -3, must be an integer of at least 1");
    DT_ASSERT_STATUS(dti_json_int(r, "heads", 1, 8, &i), DT_ERR_FORMAT, "heads is missing, must");
    DT_ASSERT_STATUS(dti_json_int(r, "n", 1, 8, &i), DT_ERR_FORMAT, "n is null, must");
    DT_ASSERT_STATUS(dti_json_int(r, "f", 1, 8, &i), DT_ERR_FORMAT, "f is 2.5, must");
    DT_ASSERT_STATUS(dti_json_int(r, "one", 1, 8, &i), DT_ERR_FORMAT, "one is 1.0, must");
    DT_ASSERT_STATUS(dti_json_int(r, "s", 1, 8, &i), DT_ERR_FORMAT,
                     "s is the string \"12\\x1b[31m\", must");
    DT_ASSERT_STATUS(dti_json_number(r, "s", 0, 1, &x), DT_ERR_FORMAT,
                     "must be a number from 0 to 1");
    DT_ASSERT_STATUS(dti_json_number(r, "s", -INFINITY, INFINITY, &x), DT_ERR_FORMAT,
                     "must be a number");
    DT_ASSERT_STATUS(dti_json_bool(r, "f", &b), DT_ERR_FORMAT, "f is 2.5, must be true or false");
    DT_ASSERT_STATUS(dti_json_string(r, "a", &s), DT_ERR_FORMAT, "a is an array of 2, must be a");
    DT_ASSERT_STATUS(dti_json_array(r, "o", &v), DT_ERR_FORMAT, "o is an object, must be an array");
    DT_ASSERT_STATUS(dti_json_object(r, "a", &v), DT_ERR_FORMAT, "must be an object");
    DT_ASSERT_STATUS(dti_json_object_or_none(r, "a", &v), DT_ERR_FORMAT, "must be an object");
    v = dti_json_get(r, "a");
    w = dti_json_at(&v, 1);
    DT_ASSERT_STATUS(dti_json_as_int(&w, 0, 9, &i), DT_ERR_FORMAT, "config.json: a[1] is -2, must");
    v = dti_json_get(r, "o");
    DT_ASSERT_STATUS(dti_json_number(&v, "k", 0, 1e9, &x), DT_ERR_FORMAT,
                     "config.json: o.k is 1e+30, must be a number from 0 to 1e+09");
    DT_ASSERT_STATUS(dti_json_refuse(&v, DT_ERR_UNSUPPORTED, "%d of %s", 3, "these"),
                     DT_ERR_UNSUPPORTED, "config.json: o is an object, must be 3 of these");
}

DT_TEST(json, members_come_in_file_order)
{
    DT_ENDS(dti_json_free) dti_json_doc doc = parse("{\"z\": 0, \"a\": 1, \"m\": 2, \"\": 3}");
    static const char *const keys[] = { "z", "a", "m", "" };
    const char *key = NULL;
    dti_json member;
    int64_t n = 0, i;

    while (dti_json_next(&doc.root, &key, &member)) {
        DT_ASSERT_EQ_STR(key, keys[n]);
        DT_ASSERT_OK(dti_json_as_int(&member, 0, 9, &i));
        DT_ASSERT_EQ_INT(i, n++);
    }
    DT_ASSERT_EQ_INT(n, 4);
}

DT_TEST(json, absent_values_can_be_walked)
{
    DT_ENDS(dti_json_free) dti_json_doc doc = parse("{\"a\": 1}");
    dti_json v = dti_json_get(&doc.root, "a"), w = dti_json_get(&v, "b"), x = dti_json_at(&w, 3);
    const char *key = NULL;
    int64_t i;

    DT_ASSERT_EQ_INT(dti_json_kind_of(&v), DT_CONFIG_INT);
    DT_ASSERT_EQ_INT(dti_json_kind_of(&w), DT_CONFIG_ABSENT);
    DT_ASSERT_EQ_INT(dti_json_count(&w), 0);
    DT_ASSERT(!dti_json_next(&w, &key, &v));
    DT_ASSERT_STATUS(dti_json_as_int(&x, 0, 1, &i), DT_ERR_FORMAT, "a.b[3] is missing");
}

DT_TEST(json, deep_paths_and_long_keys_stay_within_their_field)
{
    char text[4096], key[301];
    DT_ENDS(dti_json_free) dti_json_doc doc;
    dti_json v;
    int64_t i;

    memset(key, 'k', 300);
    key[300] = '\0';
    (void)snprintf(text, sizeof text, "{\"%s\": {\"%s\": {\"%s\": 5}}}", key, key, key);
    doc = parse(text);
    v = dti_json_get(&doc.root, key);
    v = dti_json_get(&v, key);
    DT_ASSERT_OK(dti_json_int(&v, key, 0, 5, &i));
    v = dti_json_get(&v, "last");
    DT_ASSERT_STATUS(dti_json_as_int(&v, 0, 5, &i), DT_ERR_FORMAT, ".last is missing");
}

DT_TEST(json, files_are_read_and_their_errors_name_them)
{
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    dti_json_doc doc;
    int64_t i;

    dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DT_ASSERT_STATUS(dti_json_read(path, 100, &doc), DT_ERR_IO, "/config.json: cannot be opened");
    DT_ASSERT_STATUS(dti_json_read(folder, 100, &doc), DT_ERR_IO, "is a folder, not a file");
    DT_ASSERT_STATUS(dti_json_read("/dev/null", 100, &doc), DT_ERR_IO, "is a device");
    dt_test_write_file(folder, "config.json", "{\"a\": 3}", 8);
    DT_ASSERT_OK(dti_json_read(path, 8, &doc));
    DT_ASSERT_OK(dti_json_int(&doc.root, "a", 0, 5, &i));
    DT_ASSERT_STATUS(dti_json_int(&doc.root, "a", 0, 2, &i), DT_ERR_FORMAT,
                     "/config.json: a is 3, must be an integer from 0 to 2");
    dti_json_free(&doc);
    DT_ASSERT_STATUS(dti_json_read(path, 7, &doc), DT_ERR_FORMAT,
                     "/config.json: is 8 bytes, at most 7 are read");
    dt_test_write_file(folder, "config.json", "", 0);
    DT_ASSERT_STATUS(dti_json_read(path, 7, &doc), DT_ERR_FORMAT, "/config.json: is empty");
}

/* --- without memory --------------------------------------------------------------------------- */

static int allocations_left; /* of jansson's; a test has a process of its own, or restores them */

static void *fail_some(size_t bytes)
{
    if (allocations_left-- > 0) return malloc(bytes);
    errno = ENOMEM;
    return NULL;
}

/* Whichever allocation fails: that is no fault of the file. */
DT_TEST(json, a_text_for_which_there_is_no_memory_is_not_malformed)
{
    static const char text[] =
        "{\"a\": [1, 2.5, \"\\u00e4 b\", [], {}, true], \"a long key of many "
        "letters\": {\"x\": -12345678901, \"y\": {\"z\": \"\"}}, "
        "\"c\": 1, \"d\": 2, \"e\": 3, \"f\": 4, \"g\": 5, \"h\": 6, "
        "\"i\": 7, \"j\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}";
    dt_status st = DT_ERR_MEMORY;
    DT_ENDS(dti_json_free) dti_json_doc doc;
    int n = 0;

    for (; st != DT_OK && n < 1000; n++) {
        allocations_left = n;
        json_set_alloc_funcs(fail_some, free);
        st = dti_json_parse("config.json", text, sizeof text - 1, &doc);
        json_set_alloc_funcs(malloc, free);
        if (st != DT_OK) DT_ASSERT_STATUS(st, DT_ERR_MEMORY, "no memory");
    }
    DT_ASSERT_OK(st);
    DT_ASSERT(n > 40);
}
