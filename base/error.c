/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io_status.h"
#include "base/text.h"

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

/* Formats a text of any length and keeps what fits of it, one line that can be printed: a long one
 * loses its middle, because a message begins with the thing and ends with the remedy. Arguments may
 * point into `to`. Only without memory does a long text lose its end instead. */
static void format(char *to, size_t to_bytes, const char *fmt, va_list args)
{
    char text[2 * DT_ERROR_MESSAGE_BYTES];
    char *whole = NULL;
    va_list again;
    int n;

    va_copy(again, args);
    n = vsnprintf(text, sizeof text, fmt, args);
    if (n >= (int)sizeof text) whole = malloc((size_t)n + 1);
    if (whole != NULL) (void)vsnprintf(whole, (size_t)n + 1, fmt, again);
    va_end(again);
    (void)dti_printable(whole != NULL ? whole : text, to, to_bytes);
    free(whole);
}

dt_status dti_error_frame(dt_status code, const char *func, const char *file, int line)
{
    dt_error *e = &record.error;

    if (e->n_frames < DT_ERROR_MAX_FRAMES)
        e->frames[e->n_frames++] = (dt_error_frame){ func, file, line };
    return code;
}

/* The message, and what a record says besides. */
static void begin_record(dt_status code, const char *fmt, va_list args)
{
    dt_error *e = &record.error;
    const int kept = errno; /* DT_FAIL() looks at its code twice, and that may be of errno */

    format(e->message, sizeof e->message, fmt, args);
    memcpy(e->where, record.where, sizeof e->where);
    e->code = code;
    e->rank = record.rank_plus_one - 1;
    e->n_frames = 0;
    errno = kept;
}

dt_status dt_fail_at(dt_status code, const char *func, const char *file, int line, const char *fmt,
                     ...)
{
    va_list args;

    va_start(args, fmt);
    begin_record(code, fmt, args);
    va_end(args);
    return dti_error_frame(code, func, file, line);
}

dt_status dt_fail_through(dt_status code, const char *func, const char *file, int line)
{
    return dti_error_frame(code, func, file, line);
}

dt_status dt_fail(dt_status code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    begin_record(code, fmt, args);
    va_end(args);
    return code;
}

dt_status dti_io_status(int error)
{
    return error == ENOMEM || error == EMFILE || error == ENFILE ? DT_ERR_MEMORY : DT_ERR_IO;
}

void dti_error_prefix(const char *fmt, ...)
{
    char prefix[DT_ERROR_MESSAGE_BYTES / 2], text[2 * DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    format(prefix, sizeof prefix, fmt, args);
    va_end(args);
    (void)snprintf(text, sizeof text, "%s: %s", prefix, record.error.message);
    (void)dti_printable(text, record.error.message, sizeof record.error.message);
}

void dti_error_set_rank(int rank)
{
    record.rank_plus_one = rank + 1;
}

void dti_error_set_where(const char *where)
{
    (void)dti_printable(where, record.where, sizeof record.where);
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
