/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* fopencookie */
#include "cli/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* The lowest free descriptor is the closed one, as those below it are taken by now. */
static void occupy(int file)
{
    if (fcntl(file, F_GETFD) >= 0 || errno != EBADF) return;
    if (open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
        (void)open("/", O_RDONLY); /* no less closed to readers and writers */
}

enum { DEFAULT_TIMEOUT_MS = 600000 };

/* A descriptor, and the reader at its other end. */
typedef struct stream {
    int file;
    int timeout_ms; /* how long the reader may take nothing */
    bool given_up;  /* on a reader that took nothing for so long */
} stream;

/* As much as goes at once into a pipe, socket or terminal that has room, whether it blocks or not:
 * a pipe with room takes PIPE_BUF bytes. */
static ssize_t write_some(int file, const char *data, size_t bytes)
{
    const size_t n = bytes < PIPE_BUF ? bytes : PIPE_BUF;
    const ssize_t sent = send(file, data, n, MSG_DONTWAIT);

    return sent < 0 && errno == ENOTSOCK ? write(file, data, n) : sent;
}

/* Who shares a pipe or a terminal may have made it one that does not block, for itself too; stdio
 * takes its answer "not now" for an error and drops what it has. One that blocks would wait for
 * its reader for ever. So both are asked for room first, and for a bounded time. */
static ssize_t write_patiently(void *cookie, const char *data, size_t bytes)
{
    stream *s = cookie;
    size_t n = 0;

    if (s->given_up) errno = ETIMEDOUT;
    while (n < bytes && !s->given_up) {
        const int ready =
            poll(&(struct pollfd){ .fd = s->file, .events = POLLOUT }, 1, s->timeout_ms);
        const ssize_t now = ready > 0 ? write_some(s->file, data + n, bytes - n) : 0;
        if (ready == 0) {
            s->given_up = true;
            errno = ETIMEDOUT;
        }
        if (now > 0) n += (size_t)now;
        if ((ready < 0 || now < 0) && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            break;
    }
    return (ssize_t)n;
}

static FILE *patient(stream *s, FILE *as_it_is, int buffering)
{
    FILE *f = fopencookie(s, "w", (cookie_io_functions_t){ .write = write_patiently });

    if (f == NULL) return as_it_is;
    (void)setvbuf(f, NULL, buffering, BUFSIZ);
    return f;
}

void cli_standard_streams(const char *timeout_ms)
{
    const long asked = timeout_ms != NULL ? strtol(timeout_ms, NULL, 10) : 0;
    const int most = asked > 0 && asked <= INT32_MAX ? (int)asked : DEFAULT_TIMEOUT_MS;

    stream *streams;

    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++) occupy(file);
    /* Mapped: they end with the process, when what is left is written, and where fopencookie() is
     * wrapped (AddressSanitizer) a block of the heap would be taken for lost. */
    streams =
        mmap(NULL, 2 * sizeof *streams, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (streams == MAP_FAILED) return;
    streams[0] = (stream){ STDOUT_FILENO, most, false };
    streams[1] = (stream){ STDERR_FILENO, most, false };
    stdout = patient(&streams[0], stdout, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = patient(&streams[1], stderr, _IONBF);
}
