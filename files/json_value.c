/* SPDX-License-Identifier: Apache-2.0
 *
 * Typed access to JSON values, with errors that say what was found. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "files/input.h"
#include "files/json.h"

enum { FOUND_BYTES = 96, MUST_BYTES = 320, SAID_BYTES = 512 };

/* What a value is, as the end of "hidden_size is ...". */
static void describe(const dti_json *v, char out[FOUND_BYTES])
{
    char text[64];

    switch (dti_json_kind_of(v)) {
    case DT_CONFIG_ABSENT:
        (void)snprintf(out, FOUND_BYTES, "missing");
        return;
    case DT_CONFIG_NULL:
        (void)snprintf(out, FOUND_BYTES, "null");
        return;
    case DT_CONFIG_BOOL:
        (void)snprintf(out, FOUND_BYTES, "%s", json_is_true(v->value) ? "true" : "false");
        return;
    case DT_CONFIG_INT:
        (void)snprintf(out, FOUND_BYTES, "%lld", (long long)json_integer_value(v->value));
        return;
    case DT_CONFIG_REAL:
        (void)snprintf(text, sizeof text, "%.9g", json_real_value(v->value));
        (void)snprintf(out, FOUND_BYTES, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
        return;
    case DT_CONFIG_STRING:
        (void)dti_printable(json_string_value(v->value), text, sizeof text);
        (void)snprintf(out, FOUND_BYTES, "the string \"%s\"", text);
        return;
    case DT_CONFIG_ARRAY:
        (void)snprintf(out, FOUND_BYTES, "an array of %zu", dti_json_count(v));
        return;
    case DT_CONFIG_OBJECT:
        (void)snprintf(out, FOUND_BYTES, "an object");
        return;
    }
}

dt_status dti_json_refuse(const dti_json *v, dt_status code, const char *fmt, ...)
{
    char found[FOUND_BYTES], must[MUST_BYTES];
    va_list args;

    describe(v, found);
    va_start(args, fmt);
    (void)vsnprintf(must, sizeof must, fmt, args);
    va_end(args);
    DT_FAIL(code, "%s: %s is %s, must be %s", v->file, v->path[0] ? v->path : "it", found, must);
}

dt_status dti_json_say(const dti_json *v, const char *fmt, va_list args)
{
    char text[SAID_BYTES];

    if (v->facts == NULL) return DT_OK;
    (void)vsnprintf(text, sizeof text, fmt, args);
    return dti_facts_say(v->facts, v->path, text);
}

dt_status dti_json_say_number(const dti_json *v, double x)
{
    char text[DTI_NUMBER_BYTES];

    return v->facts == NULL ? DT_OK : dt_config_say(v, "%s", dti_number_text(x, text));
}

static dt_status say_bool(const dti_json *v, bool is)
{
    return dt_config_say(v, "%s", is ? "true" : "false");
}

dt_status dti_json_as_int(const dti_json *v, int64_t min, int64_t max, int64_t *out)
{
    const json_int_t n = json_integer_value(v->value); /* 0 for any other kind */

    if (dti_json_kind_of(v) != DT_CONFIG_INT || n < min || n > max) {
        if (max == INT64_MAX)
            return dti_json_refuse(v, DT_ERR_FORMAT, "an integer of at least %lld", (long long)min);
        return dti_json_refuse(v, DT_ERR_FORMAT, "an integer from %lld to %lld", (long long)min,
                               (long long)max);
    }
    *out = n;
    return dt_config_say(v, "%lld", (long long)n);
}

dt_status dti_json_as_number(const dti_json *v, double min, double max, double *out)
{
    const double x = json_number_value(v->value);

    if (!json_is_number(v->value) || !(x >= min && x <= max)) {
        if (isinf(min) && isinf(max)) return dti_json_refuse(v, DT_ERR_FORMAT, "a number");
        return dti_json_refuse(v, DT_ERR_FORMAT, "a number from %.9g to %.9g", min, max);
    }
    *out = x;
    return dti_json_say_number(v, x);
}

dt_status dti_json_as_bool(const dti_json *v, bool *out)
{
    if (!json_is_boolean(v->value)) return dti_json_refuse(v, DT_ERR_FORMAT, "true or false");
    *out = json_is_true(v->value);
    return say_bool(v, *out);
}

dt_status dti_json_as_string(const dti_json *v, const char **out)
{
    if (!json_is_string(v->value)) return dti_json_refuse(v, DT_ERR_FORMAT, "a string");
    *out = json_string_value(v->value);
    return dt_config_say(v, "%s", *out);
}

dt_status dti_json_as_array(const dti_json *v)
{
    if (!json_is_array(v->value)) return dti_json_refuse(v, DT_ERR_FORMAT, "an array");
    return DT_OK;
}

dt_status dti_json_as_object(const dti_json *v)
{
    if (!json_is_object(v->value)) return dti_json_refuse(v, DT_ERR_FORMAT, "an object");
    return DT_OK;
}

dt_status dti_json_int(const dti_json *object, const char *key, int64_t min, int64_t max,
                       int64_t *out)
{
    const dti_json v = dti_json_get(object, key);

    return dti_json_as_int(&v, min, max, out);
}

dt_status dti_json_number(const dti_json *object, const char *key, double min, double max,
                          double *out)
{
    const dti_json v = dti_json_get(object, key);

    return dti_json_as_number(&v, min, max, out);
}

dt_status dti_json_bool(const dti_json *object, const char *key, bool *out)
{
    const dti_json v = dti_json_get(object, key);

    return dti_json_as_bool(&v, out);
}

dt_status dti_json_string(const dti_json *object, const char *key, const char **out)
{
    const dti_json v = dti_json_get(object, key);

    return dti_json_as_string(&v, out);
}

dt_status dti_json_array(const dti_json *object, const char *key, dti_json *out)
{
    *out = dti_json_get(object, key);
    return dti_json_as_array(out);
}

dt_status dti_json_object(const dti_json *object, const char *key, dti_json *out)
{
    *out = dti_json_get(object, key);
    return dti_json_as_object(out);
}

dt_status dti_json_int_or(const dti_json *object, const char *key, int64_t fallback, int64_t min,
                          int64_t max, int64_t *out)
{
    const dti_json v = dti_json_get(object, key);

    *out = fallback;
    return dti_json_is_set(&v) ? dti_json_as_int(&v, min, max, out)
                               : dt_config_say(&v, "%lld", (long long)fallback);
}

dt_status dti_json_number_or(const dti_json *object, const char *key, double fallback, double min,
                             double max, double *out)
{
    const dti_json v = dti_json_get(object, key);

    *out = fallback;
    return dti_json_is_set(&v) ? dti_json_as_number(&v, min, max, out)
                               : dti_json_say_number(&v, fallback);
}

dt_status dti_json_bool_or(const dti_json *object, const char *key, bool fallback, bool *out)
{
    const dti_json v = dti_json_get(object, key);

    *out = fallback;
    return dti_json_is_set(&v) ? dti_json_as_bool(&v, out) : say_bool(&v, fallback);
}

dt_status dti_json_string_or(const dti_json *object, const char *key, const char *fallback,
                             const char **out)
{
    const dti_json v = dti_json_get(object, key);

    *out = fallback;
    return dti_json_is_set(&v) ? dti_json_as_string(&v, out)
                               : dt_config_say(&v, "%s", fallback != NULL ? fallback : "");
}

dt_status dti_json_array_or_none(const dti_json *object, const char *key, dti_json *out)
{
    *out = dti_json_get(object, key);
    return dti_json_is_set(out) ? dti_json_as_array(out) : DT_OK;
}

dt_status dti_json_object_or_none(const dti_json *object, const char *key, dti_json *out)
{
    *out = dti_json_get(object, key);
    return dti_json_is_set(out) ? dti_json_as_object(out) : DT_OK;
}

static int add_to_hash(const char *text, size_t n, void *hash)
{
    *(uint64_t *)hash = dti_hash_bytes(*(uint64_t *)hash, text, n);
    return 0;
}

uint64_t dti_json_hash(const dti_json *v)
{
    uint64_t hash = 11;

    if (v->value == NULL) return 0;
    (void)json_dump_callback(v->value, add_to_hash, &hash, JSON_COMPACT | JSON_ENCODE_ANY);
    return hash;
}

dt_status dti_json_text(const dti_json *v, char **out)
{
    char *text = v->value != NULL ? json_dumps(v->value, JSON_ENCODE_ANY) : NULL;
    dt_status st;

    *out = NULL;
    DT_CHECK(text != NULL, DT_ERR_MEMORY, "%s: no memory for the text of %s", v->file, v->path);
    st = dti_strdup(text, out);
    free(text); /* jansson's */
    DT_TRY(st);
    return DT_OK;
}
