/* SPDX-License-Identifier: Apache-2.0
 *
 * Text of a model, of its tokenizer or its template on the way to a reader. Such text may hold any
 * byte, and a terminal obeys some: it would set titles, paste, or hide what was printed before. */
#include <unistd.h>

#include "cli/print_report.h"

/* How many bytes of a control character begin at `c`: of ASCII without newline and tab, or of the
 * second block of Unicode, where one byte stands for ESC and another. 0: none. */
static size_t control_bytes(const unsigned char *c, size_t n)
{
    if (c[0] == '\n' || c[0] == '\t') return 0;
    if (c[0] < 0x20 || c[0] == 0x7f) return 1;
    return n > 1 && c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0 ? 2 : 0;
}

void cli_print_text(FILE *to, const char *text, size_t n)
{
    const unsigned char *c = (const unsigned char *)text;
    const bool obeys = isatty(to == stderr ? STDERR_FILENO : STDOUT_FILENO);
    size_t done = 0;

    for (size_t at = 0; obeys && at < n;) {
        const size_t bytes = control_bytes(c + at, n - at);
        if (bytes > 0) (void)fwrite(text + done, 1, at - done, to);
        for (size_t i = 0; i < bytes; i++) (void)fprintf(to, "\\x%02x", c[at + i]);
        at += bytes > 0 ? bytes : 1;
        if (bytes > 0) done = at;
    }
    if (n > done) (void)fwrite(text + done, 1, n - done, to);
}
