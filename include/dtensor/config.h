/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a configuration, config.json or a part of it, as an architecture reads them. Files are
 * read strictly; a refusal names the file, the key, what is there and what has to be. */
#ifndef DT_CONFIG_H
#define DT_CONFIG_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_config_kind {
    DT_CONFIG_ABSENT = 0,
    DT_CONFIG_NULL,
    DT_CONFIG_BOOL,
    DT_CONFIG_INT,
    DT_CONFIG_REAL,
    DT_CONFIG_STRING,
    DT_CONFIG_ARRAY,
    DT_CONFIG_OBJECT
} dt_config_kind;

enum { DT_CONFIG_PATH_BYTES = 128 };

/* A value, and where it is for messages. Copy freely; borrowed: valid while its file is read. Its
 * fields are the library's. */
typedef struct dt_config {
    struct json_t *value; /* NULL: absent */
    const char *file;
    const struct dti_json_watch *watch;
    struct dti_facts *facts; /* what is read goes there, so that a run knows its model again */
    char path[DT_CONFIG_PATH_BYTES]; /* "rope_scaling.factor", "types[0]"; "" at the root */
} dt_config;

/* Walking. A member of something that is no object, or an item past the end, is absent. Not
 * collective, no errors. */
DT_API dt_config dt_config_member(const dt_config *object, const char *key);
DT_API dt_config dt_config_item(const dt_config *array, size_t i);
DT_API dt_config_kind dt_config_kind_of(const dt_config *v);
DT_API bool dt_config_is_set(const dt_config *v);  /* present and not null */
DT_API size_t dt_config_count(const dt_config *v); /* of an array or object, otherwise 0 */

/**
 * The value. A number may be written as an integer; a string lives as long as its file is read.
 *
 * Not collective.
 * Errors      DT_ERR_FORMAT  of another kind, or outside of min .. max; says file, key and value
 *             DT_ERR_ARG     v or out is NULL
 */
DT_API DT_MUST_USE dt_status dt_config_as_int(const dt_config *v, int64_t min, int64_t max,
                                              int64_t *out);
DT_API DT_MUST_USE dt_status dt_config_as_number(const dt_config *v, double min, double max,
                                                 double *out);
DT_API DT_MUST_USE dt_status dt_config_as_bool(const dt_config *v, bool *out);
DT_API DT_MUST_USE dt_status dt_config_as_string(const dt_config *v, const char **out);
DT_API DT_MUST_USE dt_status dt_config_as_array(const dt_config *v); /* it is one */

/** Member `key`, or `fallback` where it is absent or null. (dt_config_int() and its kin, in
 * architectures.h, refuse null.) As dt_config_as_int(). */
DT_API DT_MUST_USE dt_status dt_config_int_or(const dt_config *object, const char *key,
                                              int64_t fallback, int64_t min, int64_t max,
                                              int64_t *out);
DT_API DT_MUST_USE dt_status dt_config_number_or(const dt_config *object, const char *key,
                                                 double fallback, double min, double max,
                                                 double *out);
DT_API DT_MUST_USE dt_status dt_config_bool_or(const dt_config *object, const char *key,
                                               bool fallback, bool *out);

/** Member `key`, an array or object; absent or null is an absent value. As dt_config_as_int(). */
DT_API DT_MUST_USE dt_status dt_config_array(const dt_config *object, const char *key,
                                             dt_config *out);
DT_API DT_MUST_USE dt_status dt_config_object(const dt_config *object, const char *key,
                                              dt_config *out);

/**
 * What is read of a configuration, or taken where it has nothing, is what a checkpoint of a run
 * knows its model by: dt_run_folder_load() refuses one that reads something else, by the key. What
 * is of no account is read of dt_config_quietly(), a value that nobody hears of, as are keys that
 * say one thing in several ways; what these come to is then said once, of any member.
 *
 *   const dt_config quiet = dt_config_quietly(config);
 *   const dt_config experts = dt_config_member(config, "experts");
 *   DT_TRY(dt_config_int(&quiet, has_old ? "n_experts" : "experts", 8, 1, 64, &n));
 *   DT_TRY(dt_config_say(&experts, "%lld", (long long)n));
 *
 * Not collective.
 * Errors      DT_ERR_ARG     v or fmt is NULL
 *             DT_ERR_MEMORY
 */
DT_API dt_config dt_config_quietly(const dt_config *v);
DT_API DT_MUST_USE dt_status dt_config_say(const dt_config *v, const char *fmt, ...)
    DT_PRINTF(2, 3);

/**
 * Refuses a value: "FILE: KEY is WHAT IT IS, must be <fmt>". Returns `code`.
 *
 * Not collective.
 * Errors      it is one
 */
DT_API dt_status dt_config_must_be(const dt_config *v, dt_status code, const char *fmt, ...)
    DT_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
