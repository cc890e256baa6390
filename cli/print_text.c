/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of a model, of its tokenizer or its template on the way to a reader. Such text may hold any
 * byte, and a terminal obeys some: it would set titles, paste, or hide what was printed before. */
#include <string.h>
#include <unistd.h>

#include "cli/print_report.h"

/* Control characters but for newlines and tabs become visible. */
static void print_visible(FILE *to, const char *text, size_t n)
{
    size_t done = 0;

    for (size_t at = 0; at < n;) {
        const size_t bytes =
            text[at] == '\n' || text[at] == '\t' ? 0 : dti_control_bytes(text + at, n - at);
        if (bytes > 0) (void)fwrite(text + done, 1, at - done, to);
        for (size_t i = 0; i < bytes; i++)
            (void)fprintf(to, "\\x%02x", (unsigned char)text[at + i]);
        at += bytes > 0 ? bytes : 1;
        if (bytes > 0) done = at;
    }
    (void)fwrite(text + done, 1, n - done, to);
}

void cli_print_text(FILE *to, const char *text, size_t n)
{
    if (isatty(to == stderr ? STDERR_FILENO : STDOUT_FILENO))
        print_visible(to, text, n);
    else
        (void)fwrite(text, 1, n, to);
}

void cli_print_notice(FILE *to, const char *text)
{
    print_visible(to, text, strlen(text));
}
