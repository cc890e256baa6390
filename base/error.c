/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The one per-thread state of the library. */
typedef struct thread_record {
    dt_error error;
    int rank_plus_one; /* zero initialised thread storage must mean "no rank" */
    char where[DT_ERROR_WHERE_BYTES];
} thread_record;

static _Thread_local thread_record record;

const dt_error *dt_last_error(void)
{
    return &record.error;
}

/* Cuts what does not fit, between two characters of UTF-8. */
static void copy_text(char *to, size_t to_bytes, const char *from)
{
    size_t n = strlen(from);

    if (n >= to_bytes) {
        n = to_bytes - 1;
        while (n > 0 && ((unsigned char)from[n] & 0xc0u) == 0x80u) n--;
    }
    memcpy(to, from, n);
    to[n] = '\0';
}

dt_status dti_error_frame(dt_status code, const char *func, const char *file, int line)
{
    dt_error *e = &record.error;

    if (e->n_frames < DT_ERROR_MAX_FRAMES)
        e->frames[e->n_frames++] = (dt_error_frame){ func, file, line };
    return code;
}

dt_status dti_error_set(dt_status code, const char *func, const char *file, int line,
                        const char *fmt, ...)
{
    dt_error *e = &record.error;
    char text[2 * DT_ERROR_MESSAGE_BYTES]; /* arguments may point into the old message */
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    copy_text(e->message, sizeof e->message, text);
    copy_text(e->where, sizeof e->where, record.where);
    e->code = code;
    e->rank = record.rank_plus_one - 1;
    e->n_frames = 0;
    return dti_error_frame(code, func, file, line);
}

void dti_error_prefix(const char *fmt, ...)
{
    dt_error *e = &record.error;
    char prefix[2 * DT_ERROR_MESSAGE_BYTES], text[4 * DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    (void)snprintf(text, sizeof text, "%s: %s", prefix, e->message);
    copy_text(e->message, sizeof e->message, text);
}

void dti_error_set_rank(int rank)
{
    record.rank_plus_one = rank + 1;
}

void dti_error_set_where(const char *where)
{
    copy_text(record.where, sizeof record.where, where);
}

void dti_error_restore(const dt_error *from)
{
    if (from != &record.error) record.error = *from;
}

void dti_error_clear(void)
{
    record.error = (dt_error){ .code = DT_OK, .rank = record.rank_plus_one - 1 };
}

const char *dt_status_text(dt_status code)
{
    switch (code) {
#define X(name, number, text) \
    case DT_##name:           \
        return text;
        DT_STATUS_MAP(X)
#undef X
    }
    return "not a status code";
}

const char *dt_status_name(dt_status code)
{
    switch (code) {
#define X(name, number, text) \
    case DT_##name:           \
        return "DT_" #name;
        DT_STATUS_MAP(X)
#undef X
    }
    return "DT_?";
}

#define STRING(x)  STRING_(x)
#define STRING_(x) #x

const char *dt_version(void)
{
    return STRING(DT_VERSION_MAJOR) "." STRING(DT_VERSION_MINOR) "." STRING(DT_VERSION_PATCH);
}
