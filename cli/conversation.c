/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/conversation.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "cli/interrupts.h"

enum { READ_BYTES = 1 << 12, MAX_LINE_BYTES = 1 << 24, POLL_MS = 100 };

dt_status cli_turn_add(cli_conversation *t, const char *role, const char *text, size_t n)
{
    char *copy;

    DT_TRY(dti_grow((void **)&t->turns, &t->room, t->n + 1, sizeof *t->turns));
    DT_TRY(dti_alloc(n + 1, (void **)&copy));
    if (n > 0) memcpy(copy, text, n);
    t->turns[t->n++] = (dt_chat_message){ role, copy, n };
    return DT_OK;
}

void cli_turn_drop(cli_conversation *t)
{
    dti_free((void *)(uintptr_t)t->turns[--t->n].content);
}

/* Waits for more input, its end, or Ctrl-C. */
static dt_status read_more(cli_conversation *t)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    ssize_t got;

    if (poll(&in, 1, POLL_MS) <= 0) return DT_OK; /* looks at Ctrl-C now and then */
    DT_CHECK(t->n_input < MAX_LINE_BYTES, DT_ERR_IO,
             "standard input: a line has more than %d bytes", MAX_LINE_BYTES);
    DT_TRY(dti_grow((void **)&t->input, &t->room_input, t->n_input + READ_BYTES, 1));
    got = read(STDIN_FILENO, t->input + t->n_input, READ_BYTES);
    DT_CHECK(got >= 0 || errno == EINTR, dti_io_status(errno), "standard input: %s",
             strerror(errno));
    if (got == 0) t->ended = true;
    if (got > 0) t->n_input += (size_t)got;
    return DT_OK;
}

dt_status cli_turn_read(cli_conversation *t, bool *got)
{
    const bool asks = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);

    if (asks) (void)fputs("> ", stderr);
    for (*got = false; !*got;) {
        const char *newline = t->n_input > 0 ? memchr(t->input, '\n', t->n_input) : NULL;
        size_t n = newline != NULL ? (size_t)(newline - t->input) : t->n_input, used;
        bool zero;

        if (cli_interrupted() != 0 && asks) { /* it leaves the line, as in a shell */
            cli_interrupt_forget();
            t->n_input = 0;
            (void)fputs("\n(Ctrl-D ends)\n> ", stderr);
            continue;
        }
        if (cli_interrupted() != 0) return DT_OK; /* nobody is asked, so it ends the program */
        if (newline == NULL && !t->ended) {
            DT_TRY(read_more(t));
            continue;
        }
        if (newline == NULL && n == 0) return DT_OK;
        used = n + (newline != NULL);
        if (n > 0 && t->input[n - 1] == '\r') n--;
        zero = n > 0 && memchr(t->input, '\0', n) != NULL;
        if (n > 0 && !zero) DT_TRY(cli_turn_add(t, "user", t->input, n));
        *got = n > 0 && !zero;
        t->n_input -= used;
        memmove(t->input, t->input + used, t->n_input);
        DT_CHECK(!zero, DT_ERR_ARG, "standard input: a line holds a zero byte");
    }
    return DT_OK;
}

void cli_conversation_free(cli_conversation *t)
{
    while (t->n > 0) cli_turn_drop(t);
    dti_free(t->turns);
    dti_free(t->input);
    *t = (cli_conversation){ 0 };
}
