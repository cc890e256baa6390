/* SPDX-License-Identifier: Apache-2.0
 *
 * How a test ends when Criterion runs it: each test is a process of its own. */
#include "tests/support/dt_test.h"

#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 2048 };

void dt_test_fail(const char *file, int line, const char *fmt, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cr_assert_fail("%s:%d: %s", file, line, text);
}

void dt_test_skip(const char *fmt, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    cr_skip_test("%s", text);
}
