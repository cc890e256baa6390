/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* fopencookie */
#include "cli/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* The lowest free descriptor is the closed one, as those below it are taken by now. */
static void occupy(int file)
{
    if (fcntl(file, F_GETFD) >= 0 || errno != EBADF) return;
    if (open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
        (void)open("/", O_RDONLY); /* no less closed to readers and writers */
}

/* Who shares a pipe or a terminal may have made it one that does not block, for itself too; stdio
 * takes its answer "not now" for an error and drops what it has. */
static ssize_t write_patiently(void *cookie, const char *data, size_t bytes)
{
    const int file = (int)(intptr_t)cookie;
    size_t n = 0;

    while (n < bytes) {
        const ssize_t now = write(file, data + n, bytes - n);
        struct pollfd room = { .fd = file, .events = POLLOUT };
        if (now >= 0)
            n += (size_t)now;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            (void)poll(&room, 1, -1);
        else if (errno != EINTR)
            break;
    }
    return (ssize_t)n;
}

static FILE *patient(int file, FILE *as_it_is, int buffering)
{
    FILE *f = fopencookie((void *)(intptr_t)file, "w",
                          (cookie_io_functions_t){ .write = write_patiently });

    if (f == NULL) return as_it_is;
    (void)setvbuf(f, NULL, buffering, BUFSIZ);
    return f;
}

void cli_standard_streams(void)
{
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++) occupy(file);
    stdout = patient(STDOUT_FILENO, stdout, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = patient(STDERR_FILENO, stderr, _IONBF);
}
