/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON files, strictly: a thin layer over jansson that refuses repeated keys and files that are too
 * large, and whose messages name the file, the key and what was found:
 *
 *   config.json: hidden_size is -3, must be an integer from 1 to 1048576
 *   config.json: line 3 column 7: ',' or '}' must follow the value, found '"b"'
 *
 * Empty files, byte order marks, comments, trailing commas, NaN, leading zeros, bad UTF-8 and
 * escaped NULs are refused too, and nesting deeper than 256. Keys keep the order of the file. */
#ifndef DTI_JSON_H
#define DTI_JSON_H

#include <dtensor/config.h>
#include <stdarg.h>

#include "base/error.h"
#include "base/facts.h"

enum {
    DTI_JSON_CONFIG_BYTES = 16 << 20, /* limit that suits config.json and its like */
    DTI_JSON_INDEX_BYTES = 100000000, /* and headers, indices, tokenizers */
};

/* Paths of a document ("rope_scaling.factor") of which somebody wants to know who looks at them. */
typedef struct dti_json_watch {
    const char *const *paths;
    bool *seen; /* one per path */
    size_t n;
} dti_json_watch;

/* A value, and where it is for messages. Copy freely; valid while its document is. `value` is
 * jansson's, for loops over hundreds of thousands of entries. */
typedef dt_config dti_json;
typedef dt_config_kind dti_json_kind;

/* A parsed file. Its root is an object. Immutable, so threads may share it. */
typedef struct dti_json_doc {
    dti_json root;
    char *file;
} dti_json_doc;

/* Reads and parses the file at `path`, of at most max_bytes. */
dt_status dti_json_read(const char *path, int64_t max_bytes, dti_json_doc *out) DT_MUST_USE;

/* As dti_json_read() for a file that the user names, which may be a pipe. */
dt_status dti_json_read_stream(const char *path, int64_t max_bytes, dti_json_doc *out) DT_MUST_USE;

/* Parses n bytes; messages call them `file`. */
dt_status dti_json_parse(const char *file, const char *text, size_t n,
                         dti_json_doc *out) DT_MUST_USE;

void dti_json_free(dti_json_doc *doc); /* accepts a zeroed document */

/* Walking. A member of something that is no object, or an index past the end, is absent. */
dti_json_kind dti_json_kind_of(const dti_json *v);
bool dti_json_is_set(const dti_json *v);  /* present and not null */
size_t dti_json_count(const dti_json *v); /* of an array or object, otherwise 0 */
dti_json dti_json_get(const dti_json *object, const char *key);
dti_json dti_json_at(const dti_json *array, size_t i);

/* The members of an object in file order: *key is NULL before the first call; false at the end. */
bool dti_json_next(const dti_json *object, const char **key, dti_json *member);

/* The value, or an error that says what is there instead. Numbers may be written as integers.
 * Strings are borrowed from the document. */
dt_status dti_json_as_int(const dti_json *v, int64_t min, int64_t max, int64_t *out) DT_MUST_USE;
dt_status dti_json_as_number(const dti_json *v, double min, double max, double *out) DT_MUST_USE;
dt_status dti_json_as_bool(const dti_json *v, bool *out) DT_MUST_USE;
dt_status dti_json_as_string(const dti_json *v, const char **out) DT_MUST_USE;
dt_status dti_json_as_array(const dti_json *v) DT_MUST_USE;
dt_status dti_json_as_object(const dti_json *v) DT_MUST_USE;

/* Member `key` of an object; it has to be there. */
dt_status dti_json_int(const dti_json *object, const char *key, int64_t min, int64_t max,
                       int64_t *out) DT_MUST_USE;
dt_status dti_json_number(const dti_json *object, const char *key, double min, double max,
                          double *out) DT_MUST_USE;
dt_status dti_json_bool(const dti_json *object, const char *key, bool *out) DT_MUST_USE;
dt_status dti_json_string(const dti_json *object, const char *key, const char **out) DT_MUST_USE;
dt_status dti_json_array(const dti_json *object, const char *key, dti_json *out) DT_MUST_USE;
dt_status dti_json_object(const dti_json *object, const char *key, dti_json *out) DT_MUST_USE;

/* The same, where an absent or null member gives the fallback (arrays and objects: an absent
 * value, see dti_json_is_set). A member of another kind or out of range is still an error. */
dt_status dti_json_int_or(const dti_json *object, const char *key, int64_t fallback, int64_t min,
                          int64_t max, int64_t *out) DT_MUST_USE;
dt_status dti_json_number_or(const dti_json *object, const char *key, double fallback, double min,
                             double max, double *out) DT_MUST_USE;
dt_status dti_json_bool_or(const dti_json *object, const char *key, bool fallback,
                           bool *out) DT_MUST_USE;
dt_status dti_json_string_or(const dti_json *object, const char *key, const char *fallback,
                             const char **out) DT_MUST_USE;
dt_status dti_json_array_or_none(const dti_json *object, const char *key,
                                 dti_json *out) DT_MUST_USE;
dt_status dti_json_object_or_none(const dti_json *object, const char *key,
                                  dti_json *out) DT_MUST_USE;

/* Of a value with dt_config.facts each of these says what it found, or the fallback; as do these,
 * dt_config_say() of files/config.c with other arguments. */
dt_status dti_json_say(const dti_json *v, const char *fmt, va_list args) DT_MUST_USE;
dt_status dti_json_say_number(const dti_json *v, double x) DT_MUST_USE;

/* A value as text, which dti_free() frees. */
dt_status dti_json_text(const dti_json *v, char **out) DT_MUST_USE;

/* Of all that a value holds, in the order of the file: equal where it says the same. */
uint64_t dti_json_hash(const dti_json *v);

/* Refuses a value in the same words: "FILE: PATH is WHAT IT IS, must be <fmt>". Returns `code`. */
dt_status dti_json_refuse(const dti_json *v, dt_status code, const char *fmt, ...) DT_PRINTF(3, 4);

#endif
