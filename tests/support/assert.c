/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dt_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void dt_test_free(void *pointer)
{
    void *p;

    memcpy(&p, pointer, sizeof p); /* of whatever type it is */
    dti_free(p);
}

void dt_test_print_error(void)
{
    const dt_error *e = dt_last_error();

    (void)fprintf(stderr, "%s", dt_status_name(e->code));
    if (e->rank >= 0) (void)fprintf(stderr, " on rank %d", e->rank);
    if (e->where[0] != '\0') (void)fprintf(stderr, " (%s)", e->where);
    (void)fprintf(stderr, ": %s\n", e->message);
    for (int i = 0; i < e->n_frames; i++)
        (void)fprintf(stderr, "    at %s (%s:%d)\n", e->frames[i].func, e->frames[i].file,
                      e->frames[i].line);
}

void dt_test_long(void)
{
    if (getenv("DTENSOR_LONG") == NULL) dt_test_skip("long: make test-long runs it");
}

bool dt_test_is_due(size_t item, size_t which, size_t n, size_t few)
{
    return getenv("DTENSOR_LONG") != NULL || (which + n - item % n) % n < few;
}

static bool close_enough(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) <= tolerance; /* a NaN is close to nothing */
}

static bool message_has(const char *substring)
{
    return substring == NULL || strstr(dt_last_error()->message, substring) != NULL;
}

void dt_test_equal_int(const char *file, int line, const char *a_text, const char *b_text,
                       int64_t a, int64_t b)
{
    if (a != b)
        dt_test_fail(file, line, "%s is %" PRId64 " but %s is %" PRId64, a_text, a, b_text, b);
}

void dt_test_equal_text(const char *file, int line, const char *a_text, const char *a,
                        const char *b)
{
    if (a == NULL || b == NULL || strcmp(a, b) != 0)
        dt_test_fail(file, line, "%s is \"%s\", expected \"%s\"", a_text, a ? a : "(NULL)",
                     b ? b : "(NULL)");
}

void dt_test_close(const char *file, int line, const char *a_text, double a, double b,
                   double tolerance)
{
    if (!close_enough(a, b, tolerance))
        dt_test_fail(file, line, "%s is %.9g, expected %.9g within %.3g", a_text, a, b, tolerance);
}

void dt_test_ok(const char *file, int line, const char *call, dt_status st)
{
    if (st == DT_OK) return;
    dt_test_print_error();
    dt_test_fail(file, line, "%s: %s: %s", call, dt_status_name(st), dt_last_error()->message);
}

void dt_test_status(const char *file, int line, const char *call, dt_status st, dt_status want,
                    const char *substring)
{
    if (st == want && (st == DT_OK || message_has(substring))) return;
    if (st != DT_OK) dt_test_print_error();
    dt_test_fail(file, line, "%s gave %s, expected %s with \"%s\" in its message", call,
                 dt_status_name(st), dt_status_name(want), substring ? substring : "");
}

dt_status dt_test_unexpected(const char *func, const char *file, int line, const char *cond,
                             const char *fmt, ...)
{
    char text[DT_ERROR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dt_fail_at(DT_ERR_INTERNAL, func, file, line, "not true: %s; %s", cond, text);
}

dt_status dt_test_expect_int(const char *func, const char *file, int line, const char *a_text,
                             int64_t a, int64_t b)
{
    if (a == b) return DT_OK;
    return dt_fail_at(DT_ERR_INTERNAL, func, file, line, "%s is %" PRId64 ", expected %" PRId64,
                      a_text, a, b);
}

dt_status dt_test_expect_text(const char *func, const char *file, int line, const char *a_text,
                              const char *a, const char *b)
{
    if (a != NULL && b != NULL && strcmp(a, b) == 0) return DT_OK;
    return dt_fail_at(DT_ERR_INTERNAL, func, file, line, "%s is \"%s\", expected \"%s\"", a_text,
                      a ? a : "(NULL)", b ? b : "(NULL)");
}

dt_status dt_test_expect_close(const char *func, const char *file, int line, const char *a_text,
                               double a, double b, double tolerance)
{
    if (close_enough(a, b, tolerance)) return DT_OK;
    return dt_fail_at(DT_ERR_INTERNAL, func, file, line, "%s is %.9g, expected %.9g within %.3g",
                      a_text, a, b, tolerance);
}

dt_status dt_test_expect_status(const char *func, const char *file, int line, dt_status st,
                                dt_status want, const char *substring)
{
    char message[DT_ERROR_MESSAGE_BYTES];

    if (st == want && (st == DT_OK || message_has(substring))) return DT_OK;
    (void)snprintf(message, sizeof message, "%s", st == DT_OK ? "" : dt_last_error()->message);
    return dt_fail_at(DT_ERR_INTERNAL, func, file, line,
                      "got %s \"%.500s\", expected %s with \"%s\" in its message",
                      dt_status_name(st), message, dt_status_name(want),
                      substring ? substring : "");
}
