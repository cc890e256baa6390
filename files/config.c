/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of JSON files as programs see them, dtensor/config.h. */
#include <stdarg.h>
#include <stdio.h>

#include "files/json.h"

static const dt_config nothing;

dt_config dt_config_member(const dt_config *object, const char *key)
{
    return object != NULL && key != NULL ? dti_json_get(object, key) : nothing;
}

dt_config dt_config_item(const dt_config *array, size_t i)
{
    return array != NULL ? dti_json_at(array, i) : nothing;
}

dt_config_kind dt_config_kind_of(const dt_config *v)
{
    return v != NULL ? dti_json_kind_of(v) : DT_CONFIG_ABSENT;
}

bool dt_config_is_set(const dt_config *v)
{
    return v != NULL && dti_json_is_set(v);
}

size_t dt_config_count(const dt_config *v)
{
    return v != NULL ? dti_json_count(v) : 0;
}

static dt_status check(const void *v, const void *out)
{
    DT_CHECK(v != NULL && out != NULL, DT_ERR_ARG, "a value of a configuration or out is NULL");
    return DT_OK;
}

dt_status dt_config_as_int(const dt_config *v, int64_t min, int64_t max, int64_t *out)
{
    DT_TRY(check(v, out));
    return dti_json_as_int(v, min, max, out);
}

dt_status dt_config_as_number(const dt_config *v, double min, double max, double *out)
{
    DT_TRY(check(v, out));
    return dti_json_as_number(v, min, max, out);
}

dt_status dt_config_as_bool(const dt_config *v, bool *out)
{
    DT_TRY(check(v, out));
    return dti_json_as_bool(v, out);
}

dt_status dt_config_as_string(const dt_config *v, const char **out)
{
    DT_TRY(check(v, out));
    return dti_json_as_string(v, out);
}

dt_status dt_config_as_array(const dt_config *v)
{
    DT_TRY(check(v, v));
    return dti_json_as_array(v);
}

dt_status dt_config_int_or(const dt_config *object, const char *key, int64_t fallback, int64_t min,
                           int64_t max, int64_t *out)
{
    DT_TRY(check(object, out));
    DT_TRY(check(key, out));
    return dti_json_int_or(object, key, fallback, min, max, out);
}

dt_status dt_config_number_or(const dt_config *object, const char *key, double fallback, double min,
                              double max, double *out)
{
    DT_TRY(check(object, out));
    DT_TRY(check(key, out));
    return dti_json_number_or(object, key, fallback, min, max, out);
}

dt_status dt_config_bool_or(const dt_config *object, const char *key, bool fallback, bool *out)
{
    DT_TRY(check(object, out));
    DT_TRY(check(key, out));
    return dti_json_bool_or(object, key, fallback, out);
}

dt_status dt_config_array(const dt_config *object, const char *key, dt_config *out)
{
    DT_TRY(check(object, out));
    DT_TRY(check(key, out));
    return dti_json_array_or_none(object, key, out);
}

dt_status dt_config_object(const dt_config *object, const char *key, dt_config *out)
{
    DT_TRY(check(object, out));
    DT_TRY(check(key, out));
    return dti_json_object_or_none(object, key, out);
}

dt_config dt_config_quietly(const dt_config *v)
{
    dt_config quiet = v != NULL ? *v : nothing;

    quiet.facts = NULL;
    return quiet;
}

dt_status dt_config_say(const dt_config *v, const char *fmt, ...)
{
    va_list args;
    dt_status st;

    DT_TRY(check(v, fmt));
    va_start(args, fmt);
    st = dti_json_say(v, fmt, args);
    va_end(args);
    return st;
}

dt_status dt_config_must_be(const dt_config *v, dt_status code, const char *fmt, ...)
{
    char want[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(want, sizeof want, fmt, args);
    va_end(args);
    return dti_json_refuse(v != NULL ? v : &nothing, code, "%s", want);
}
